// MFMA on f16 and bf16: D = A * B^T + C.
//
// A lane holds 16 bytes of an operand, 8 consecutive elements along K. In a tile of 16 rows and 32
// of K, lane l holds row l % 16 from k = 8 * (l / 16) on; in a tile of 32 rows and 16 of K, row l %
// 32 from k = 8 * (l / 32) on. gfx950 multiplies such a tile with one instruction; gfx942 takes
// two, each of which sums other k than the instruction defines, the same ones for A and B.
// D of 16 x 16: lane l holds rows 4 * (l / 16) + 0..3 of column l % 16. D of 32 x 32: lane l holds
// rows 8 * i + 4 * (l / 32) + 0..3 of column l % 32 in its elements 4 i + 0..3.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

namespace details {

// Returns the lower or upper 8 of 16 bytes.
template <class Target>
__device__ inline Target select_half(U32x4 value, u32 half) {
  return __builtin_bit_cast(Target, U32x2{value[2 * half], value[2 * half + 1]});
}

}  // namespace details

// Returns c + a * b^T over 32 of K, 16 x 16 outputs.
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

// Returns c + a * b^T over 16 of K, 32 x 32 outputs, by the two instructions that gfx942 has.
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
