// Matrix cores on bf16, and FP8 widened to it, in which every FP8 value is exact.
//
// A 16 x 16 result has rows 4 * (l / 16) + 0..3 of column l % 16 in lane l. An operand of 32 along
// K has in lane l, of row l % 16, eight elements from 8 * (l / 16) on; one of 16 four from 4 * (l /
// 16) on. Where the elements of both operands lie elsewhere, alike, the sum is the same. gfx942
// multiplies 32 as two times 16: elements 0..3 of all lanes, then 4..7.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/wave/reduce.h"

namespace rfops {

__device__ inline F32x4 mfma_bf16_16x16x16(Bf16x4 a, Bf16x4 b, F32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(I16x4, a),
                                                   __builtin_bit_cast(I16x4, b), c, 0, 0, 0);
}

__device__ inline Bf16x4 low_half(Bf16x8 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); }
__device__ inline Bf16x4 high_half(Bf16x8 v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); }

__device__ inline F32x4 mfma_bf16_16x16x32(Bf16x8 a, Bf16x8 b, F32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
#else
  c = mfma_bf16_16x16x16(low_half(a), low_half(b), c);
  return mfma_bf16_16x16x16(high_half(a), high_half(b), c);
#endif
}

// The upper halves of two words: of fp32 their bf16, rounded towards zero.
__device__ inline u32 upper_halves(u32 low, u32 high) {
  return __builtin_amdgcn_perm(high, low, 0x07060302);
}

// Two of the four FP8 in a word, as bf16: exact.
template <bool kHigh>
__device__ inline u32 widen_pair(u32 fp8) {
#if defined(__gfx950__)
  constexpr f32 kNoScale = 1.0f;
  return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(fp8, kNoScale, kHigh));
#else
  const F32x2 v2 = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(fp8), kHigh);
  const f32 low = v2[0], high = v2[1];
  return upper_halves(__builtin_bit_cast(u32, low), __builtin_bit_cast(u32, high));
#endif
}

__device__ inline Bf16x8 fp8x8_to_bf16x8(u32 low, u32 high) {
  return __builtin_bit_cast(Bf16x8, U32x4{widen_pair<false>(low), widen_pair<true>(low),
                                          widen_pair<false>(high), widen_pair<true>(high)});
}

// What `op` makes of the values of the four lanes of a column.
template <class Op>
__device__ inline f32 reduce_row_lanes(f32 value, Op op) {
  return reduce_lanes<kWaveSize, 16>(value, op);
}

}  // namespace rfops
