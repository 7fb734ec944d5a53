// bf16 MFMAs, and the exact conversion of FP8 to bf16.
//
// A 16 x 16 result has rows 4 * (l / 16) + 0..3 of column l % 16 in lane l. An operand of 32 along
// K has, in lane l, eight elements of row l % 16 from 8 * (l / 16) on; an operand of 16 along K has
// four from 4 * (l / 16) on. The order along K may differ if it differs alike in both operands.
// gfx942 multiplies 32 as two times 16: elements 0..3 of all lanes, then 4..7.
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

__device__ inline Bf16x8 concat(Bf16x4 low, Bf16x4 high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

__device__ inline F32x4 mfma_bf16_16x16x32(Bf16x8 a, Bf16x8 b, F32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
#else
  c = mfma_bf16_16x16x16(low_half(a), low_half(b), c);
  return mfma_bf16_16x16x16(high_half(a), high_half(b), c);
#endif
}

// Returns the upper halves of two words: for fp32, bf16 rounded towards zero.
__device__ inline u32 upper_halves(u32 low, u32 high) {
  return __builtin_amdgcn_perm(high, low, 0x07060302);
}

// Returns element kElement, of four, of four rows of bf16.
__device__ inline Bf16x4 transposed_bf16(const U32x2 (&rows)[4], u32 element) {
  const u32 halves = element % 2 ? 0x07060302 : 0x05040100, word = element / 2;
  return __builtin_bit_cast(Bf16x4,
                            U32x2{__builtin_amdgcn_perm(rows[1][word], rows[0][word], halves),
                                  __builtin_amdgcn_perm(rows[3][word], rows[2][word], halves)});
}

// Converts two of the four FP8 elements of a word to bf16, exactly.
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

// Returns element `element` of four rows of 8 bytes: of four bf16 each, or of eight FP8, as bf16.
template <bool kFp8>
__device__ inline Bf16x4 transposed(const U32x2 (&rows)[4], u32 element) {
  if constexpr (!kFp8) return transposed_bf16(rows, element);
  const u32 word = element / 4, bytes = element % 4 < 2 ? 0x05010400 : 0x07030602;
  const u32 low = __builtin_amdgcn_perm(rows[1][word], rows[0][word], bytes);
  const u32 high = __builtin_amdgcn_perm(rows[3][word], rows[2][word], bytes);
  return element % 2 == 0
             ? __builtin_bit_cast(Bf16x4, U32x2{widen_pair<false>(low), widen_pair<false>(high)})
             : __builtin_bit_cast(Bf16x4, U32x2{widen_pair<true>(low), widen_pair<true>(high)});
}

// Reductions over the lanes of a query row, which are kLanes apart.
template <u32 kLanes = 16>
__device__ __attribute__((always_inline)) inline f32 sum_over_row_lanes(f32 value) {
  return reduce_lanes<kWaveSize, kLanes>(value, [](f32 a, f32 b) { return a + b; });
}
template <u32 kLanes = 16>
__device__ __attribute__((always_inline)) inline f32 max_over_row_lanes(f32 value) {
  return reduce_lanes<kWaveSize, kLanes>(value, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
}

}  // namespace rfops
