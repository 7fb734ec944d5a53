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

using F32x16 = f32 __attribute__((ext_vector_type(16)));

namespace details {

template <class In>
struct Lanes16 {
  using Four = In __attribute__((ext_vector_type(4)));
  using Eight = In __attribute__((ext_vector_type(8)));
};
using I16x4 = short __attribute__((ext_vector_type(4)));

// The first or second 8 bytes of 16.
template <class To>
__device__ inline To half_of(U32x4 value, u32 half) {
  using U32x2 = u32 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(To, U32x2{value[2 * half], value[2 * half + 1]});
}

}  // namespace details

// c + a * b^T, 32 of K.
template <class In>
__device__ inline F32x4 multiply_16x16(U32x4 a, U32x4 b, F32x4 c) {
#if defined(__gfx950__)
  using Eight = typename details::Lanes16<In>::Eight;
  const auto wide_a = __builtin_bit_cast(Eight, a), wide_b = __builtin_bit_cast(Eight, b);
  if constexpr (__is_same(In, f16)) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(wide_a, wide_b, c, 0, 0, 0);
  } else {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(wide_a, wide_b, c, 0, 0, 0);
  }
#else
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    if constexpr (__is_same(In, f16)) {
      using Four = typename details::Lanes16<In>::Four;
      c = __builtin_amdgcn_mfma_f32_16x16x16f16(details::half_of<Four>(a, half),
                                                details::half_of<Four>(b, half), c, 0, 0, 0);
    } else {
      using Four = details::I16x4;
      c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(details::half_of<Four>(a, half),
                                                    details::half_of<Four>(b, half), c, 0, 0, 0);
    }
  }
  return c;
#endif
}

// c + a * b^T, 16 of K, by the instructions that gfx942 has.
template <class In>
__device__ inline F32x16 multiply_32x32(U32x4 a, U32x4 b, F32x16 c) {
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    if constexpr (__is_same(In, f16)) {
      using Four = typename details::Lanes16<In>::Four;
      c = __builtin_amdgcn_mfma_f32_32x32x8f16(details::half_of<Four>(a, half),
                                               details::half_of<Four>(b, half), c, 0, 0, 0);
    } else {
      using Four = details::I16x4;
      c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(details::half_of<Four>(a, half),
                                                   details::half_of<Four>(b, half), c, 0, 0, 0);
    }
  }
  return c;
}

}  // namespace rfops
