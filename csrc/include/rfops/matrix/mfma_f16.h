// Matrix cores on f16 and bf16.
//
// A lane's 16 bytes of an operand are 8 neighbours along K: lane l of a tile of 16 rows holds, of
// row l % 16, those from k = 8 * (l / 16) of 32; of 32 rows, of row l % 32, those from
// k = 8 * (l / 32) of 16. gfx950 multiplies them at once, gfx942 in two steps, each of which sums
// products that lie elsewhere along K than the instruction means, the same for A and B.
// D = A * B^T + C. Of 16 x 16, lane l holds rows 4 * (l / 16) + 0..3 of column l % 16; of 32 x 32
// rows 8 * i + 4 * (l / 32) + 0..3, in its values 4 i + 0..3, of column l % 32.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

namespace details {

// The first or second 8 bytes of 16.
template <class Target>
__device__ inline Target select_half(U32x4 value, u32 half) {
  return __builtin_bit_cast(Target, U32x2{value[2 * half], value[2 * half + 1]});
}

}  // namespace details

// c + a * b^T, 32 of K.
template <class Input>
__device__ inline F32x4 mfma_16x16x32(U32x4 a, U32x4 b, F32x4 c) {
#if defined(__gfx950__)
  const auto wide_a = __builtin_bit_cast(Vec8<Input>, a),
             wide_b = __builtin_bit_cast(Vec8<Input>, b);
  if constexpr (__is_same(Input, f16)) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(wide_a, wide_b, c, 0, 0, 0);
  } else {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(wide_a, wide_b, c, 0, 0, 0);
  }
#else
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    if constexpr (__is_same(Input, f16)) {
      c = __builtin_amdgcn_mfma_f32_16x16x16f16(details::select_half<Vec4<Input>>(a, half),
                                                details::select_half<Vec4<Input>>(b, half), c, 0, 0,
                                                0);
    } else {
      c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
          details::select_half<I16x4>(a, half), details::select_half<I16x4>(b, half), c, 0, 0, 0);
    }
  }
  return c;
#endif
}

// c + a * b^T, 16 of K, by the instructions that gfx942 has.
template <class Input>
__device__ inline F32x16 mfma_32x32x16(U32x4 a, U32x4 b, F32x16 c) {
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    if constexpr (__is_same(Input, f16)) {
      c = __builtin_amdgcn_mfma_f32_32x32x8f16(details::select_half<Vec4<Input>>(a, half),
                                               details::select_half<Vec4<Input>>(b, half), c, 0, 0,
                                               0);
    } else {
      c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(
          details::select_half<I16x4>(a, half), details::select_half<I16x4>(b, half), c, 0, 0, 0);
    }
  }
  return c;
}

}  // namespace rfops
