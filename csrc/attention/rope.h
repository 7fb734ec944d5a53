// RoPE of 64 elements, pairs d and d + 32, as bf16 torch rounds it: each product and the sum.
//
//     low' = low * cos - high * sin,  high' = high * cos + low * sin
//
// A row of angles has 32 cosines and then 32 sines, of a position.
#pragma once

#include "attention/mfma_bf16.h"
#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kTurned = 64, kTurnedHalf = kTurned / 2;

// Of eight pairs.
struct Turn {
  Bf16x8 cos, sin;
};

// Of pairs 8 g and the next seven.
__device__ inline Turn load_turn(const bf16* angles, u32 g) {
  const auto* const at = reinterpret_cast<const Bf16x8*>(angles + 8 * g);
  return {at[0], at[kTurnedHalf / 8]};
}

namespace details {

template <u32 kCount>
struct Turned {
  using Wide = f32 __attribute__((ext_vector_type(kCount)));
  using Narrow = bf16 __attribute__((ext_vector_type(kCount)));
  using Bits = u32 __attribute__((ext_vector_type(kCount)));
  __device__ static Wide widen(Narrow v) {
#pragma clang fp contract(off)
    return __builtin_convertvector(v, Wide);
  }
  // To bf16. Of gfx942 in three instructions, for NaNs that bf16 arithmetic makes: lower halves of
  // these are zero.
  __device__ static Wide rounded(Wide v) {
#pragma clang fp contract(off)
#if defined(__gfx950__)
    return widen(__builtin_convertvector(v, Narrow));
#else
    return __builtin_bit_cast(Wide, raised(v) & 0xffff0000);
#endif
  }
  // Of values that are rounded.
  __device__ static Narrow narrow(Wide v) {
#if defined(__gfx950__)
    return __builtin_convertvector(v, Narrow);
#else
    return upper(__builtin_bit_cast(Bits, v));
#endif
  }
  __device__ static Narrow narrow_rounded(Wide v) {
#if defined(__gfx950__)
    return __builtin_convertvector(v, Narrow);
#else
    return upper(raised(v));
#endif
  }

#if !defined(__gfx950__)
 private:
  // Their upper halves are bf16.
  __device__ static Bits raised(Wide v) {
    const Bits bits = __builtin_bit_cast(Bits, v);
    return bits + (0x7fff + (bits >> 16 & 1));
  }
  __device__ static Narrow upper(Bits bits) {
    u32 made[kCount / 2];
#pragma unroll
    for (u32 i = 0; i < kCount / 2; ++i) made[i] = upper_halves(bits[2 * i], bits[2 * i + 1]);
    return __builtin_bit_cast(Narrow, made);
  }
#endif
};

}  // namespace details

template <u32 kCount>
__device__ inline void turn(typename details::Turned<kCount>::Wide& low,
                            typename details::Turned<kCount>::Wide& high,
                            typename details::Turned<kCount>::Wide cos,
                            typename details::Turned<kCount>::Wide sin) {
#pragma clang fp contract(off)  // else a conversion there and back is taken for nothing
  using T = details::Turned<kCount>;
  const auto was = low;
  low = T::rounded(T::rounded(was * cos) - T::rounded(high * sin));
  high = T::rounded(T::rounded(high * cos) + T::rounded(was * sin));
}

// What lanes have of a key: eight elements of its first half, and their partners.
__device__ inline void turn(U32x4& low, U32x4& high, const Turn& by) {
  using T = details::Turned<8>;
  auto first = T::widen(__builtin_bit_cast(Bf16x8, low));
  auto second = T::widen(__builtin_bit_cast(Bf16x8, high));
  turn<8>(first, second, T::widen(by.cos), T::widen(by.sin));
  low = __builtin_bit_cast(U32x4, T::narrow(first));
  high = __builtin_bit_cast(U32x4, T::narrow(second));
}

}  // namespace rfops
