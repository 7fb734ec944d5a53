// RoPE of 64 elements, pairs d and d + 32, as bf16 torch rounds it: each product and the sum.
//
//     low' = low * cos - high * sin,  high' = high * cos + low * sin
//
// A row of angles has 32 cosines and then 32 sines, of a position.
#pragma once

#include "attention/mfma_bf16.h"
#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kRopeDim = 64, kRopePairs = kRopeDim / 2;

// Of eight pairs.
struct RopeAngles {
  Bf16x8 cos, sin;
};

// Of pairs 8 g and the next seven.
__device__ inline RopeAngles load_angles(const bf16* angles, u32 g) {
  const auto* const src = reinterpret_cast<const Bf16x8*>(angles + 8 * g);
  return {src[0], src[kRopePairs / 8]};
}

namespace details {

template <u32 kCount>
struct Bf16Rounding {
  using Floats = f32 __attribute__((ext_vector_type(kCount)));
  using Narrow = bf16 __attribute__((ext_vector_type(kCount)));
  using Bits = u32 __attribute__((ext_vector_type(kCount)));
  __device__ static Floats widen(Narrow v) {
#pragma clang fp contract(off)
    return __builtin_convertvector(v, Floats);
  }
  // To bf16. Of gfx942 in three instructions, for NaNs that bf16 arithmetic makes: lower halves of
  // these are zero.
  __device__ static Floats rounded(Floats v) {
#pragma clang fp contract(off)
#if defined(__gfx950__)
    return widen(__builtin_convertvector(v, Narrow));
#else
    return __builtin_bit_cast(Floats, raised(v) & 0xffff0000);
#endif
  }
  // Of values that are rounded.
  __device__ static Narrow narrow(Floats v) {
#if defined(__gfx950__)
    return __builtin_convertvector(v, Narrow);
#else
    return upper(__builtin_bit_cast(Bits, v));
#endif
  }
  __device__ static Narrow narrow_rounded(Floats v) {
#if defined(__gfx950__)
    return __builtin_convertvector(v, Narrow);
#else
    return upper(raised(v));
#endif
  }

#if !defined(__gfx950__)
 private:
  // Their upper halves are bf16.
  __device__ static Bits raised(Floats v) {
    const Bits bits = __builtin_bit_cast(Bits, v);
    return bits + (0x7fff + (bits >> 16 & 1));
  }
  __device__ static Narrow upper(Bits bits) {
    u32 words[kCount / 2];
#pragma unroll
    for (u32 i = 0; i < kCount / 2; ++i) words[i] = upper_halves(bits[2 * i], bits[2 * i + 1]);
    return __builtin_bit_cast(Narrow, words);
  }
#endif
};

}  // namespace details

template <u32 kCount>
__device__ inline void rotate(typename details::Bf16Rounding<kCount>::Floats& low,
                              typename details::Bf16Rounding<kCount>::Floats& high,
                              typename details::Bf16Rounding<kCount>::Floats cos,
                              typename details::Bf16Rounding<kCount>::Floats sin) {
#pragma clang fp contract(off)  // else a conversion there and back is taken for nothing
  using T = details::Bf16Rounding<kCount>;
  const auto old_low = low;
  low = T::rounded(T::rounded(old_low * cos) - T::rounded(high * sin));
  high = T::rounded(T::rounded(high * cos) + T::rounded(old_low * sin));
}

// What lanes have of a key: eight elements of its first half, and their partners.
__device__ inline void rotate(U32x4& low, U32x4& high, const RopeAngles& angles) {
  using T = details::Bf16Rounding<8>;
  auto low_wide = T::widen(__builtin_bit_cast(Bf16x8, low));
  auto high_wide = T::widen(__builtin_bit_cast(Bf16x8, high));
  rotate<8>(low_wide, high_wide, T::widen(angles.cos), T::widen(angles.sin));
  low = __builtin_bit_cast(U32x4, T::narrow(low_wide));
  high = __builtin_bit_cast(U32x4, T::narrow(high_wide));
}

}  // namespace rfops
