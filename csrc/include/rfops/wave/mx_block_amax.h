// Loads blocks of 32 floats, 8 elements per lane and 4 lanes per block, and computes each block's
// largest magnitude, for quantisation to MX formats.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

namespace details {

// Returns the largest magnitude of pairs of 16-bit floats, compared as integers: the order is that
// of magnitudes, with NaN above all.
template <u32 kWords>
__device__ inline u32 max_of_pairs(const u32 (&pairs)[kWords]) {
  const auto magnitude = [](u32 pair) { return __builtin_bit_cast(U16x2, pair & 0x7fff7fffu); };
  U16x2 amax_bits = magnitude(pairs[0]);
#pragma unroll
  for (u32 i = 1; i < kWords; ++i)
    amax_bits = __builtin_elementwise_max(amax_bits, magnitude(pairs[i]));
  return amax_bits[0] > amax_bits[1] ? amax_bits[0] : amax_bits[1];
}

}  // namespace details

// How elements of type Input are read from 32-bit words: pairs of 16 bits, or one fp32.
template <class Input>
struct MxFloat;

template <>
struct MxFloat<bf16> {
  static constexpr u32 kWordsPerEight = 4;

  // Returns the bits of the largest magnitude of some words. Results of several calls combine by
  // integer maximum.
  template <u32 kWords>
  __device__ static u32 amax_bits(const u32 (&words)[kWords]) {
    return details::max_of_pairs(words);
  }
  // Returns these bits as fp32.
  __device__ static f32 amax_value(u32 amax_bits) {
    return __builtin_bit_cast(f32, amax_bits << 16);
  }
  __device__ static f32 even_element(u32 word) { return __builtin_bit_cast(f32, word << 16); }
  __device__ static f32 odd_element(u32 word) {
    return __builtin_bit_cast(f32, word & 0xffff0000u);
  }
};

template <>
struct MxFloat<f16> {
  static constexpr u32 kWordsPerEight = 4;

  template <u32 kWords>
  __device__ static u32 amax_bits(const u32 (&words)[kWords]) {
    return details::max_of_pairs(words);
  }
  // Returns these bits as fp32. Denormals of f16 are normal in fp32.
  __device__ static f32 amax_value(u32 amax_bits) {
    return static_cast<f32>(__builtin_bit_cast(f16, static_cast<u16>(amax_bits)));
  }
  __device__ static f32 even_element(u32 word) {
    return static_cast<f32>(__builtin_bit_cast(F16x2, word)[0]);
  }
  __device__ static f32 odd_element(u32 word) {
    return static_cast<f32>(__builtin_bit_cast(F16x2, word)[1]);
  }
};

template <>
struct MxFloat<f32> {
  static constexpr u32 kWordsPerEight = 8;

  template <u32 kWords>
  __device__ static u32 amax_bits(const u32 (&words)[kWords]) {
    u32 amax_bits = 0;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) {
      amax_bits = __builtin_elementwise_max(amax_bits, words[i] & 0x7fffffffu);
    }
    return amax_bits;
  }
  __device__ static f32 amax_value(u32 amax_bits) { return __builtin_bit_cast(f32, amax_bits); }
};

// Eight neighbouring elements of a row, as one lane holds them.
template <class Input>
struct Eight {
  static constexpr u32 kElems = 8, kWords = MxFloat<Input>::kWordsPerEight;

  u32 words[kWords];

  // Returns element i as fp32.
  __device__ f32 element(u32 i) const {
    if constexpr (__is_same(Input, f32)) {
      return __builtin_bit_cast(f32, words[i]);
    } else {
      return i % 2 ? MxFloat<Input>::odd_element(words[i / 2])
                   : MxFloat<Input>::even_element(words[i / 2]);
    }
  }
};

// A lane's eight elements of x [m, k]. With kStrided the rows are `pitch` elements apart, otherwise
// contiguous. Requires: k a multiple of 32, each row 16-byte aligned.
template <class Input, u32 kThreads, bool kStrided>
struct MxEight : Eight<Input> {
  static constexpr u32 kElemsPerLane = 8, kLanesPerBlock = 32 / kElemsPerLane;
  using Eight<Input>::words;

  u64 index;  // of the lane's group of eight
  bool in_bounds;
  u32 amax_bits;  // largest magnitude of the block

  __device__ MxEight(const Input* x, u64 pitch, u32 m, u32 k)
      : index(u64{workgroup_id_x()} * kThreads + thread_id()) {
    const u32 eights = k / kElemsPerLane;  // groups of eight per row
    in_bounds = index < u64{m} * eights;
    if (!in_bounds) return;  // the same for all lanes of a block
    u64 offset = index * kElemsPerLane;
    if constexpr (kStrided) {
      const u32 row = static_cast<u32>(index / eights);
      offset = row * pitch + static_cast<u32>(index - u64{row} * eights) * kElemsPerLane;
    }
#pragma unroll
    for (u32 i = 0; i < this->kWords; i += 4) {
      const U32x4 v4 = reinterpret_cast<const U32x4*>(x + offset)[i / 4];
#pragma unroll
      for (u32 j = 0; j < 4; ++j) words[i + j] = v4[j];
    }
    amax_bits = max_over_lanes<kLanesPerBlock>(MxFloat<Input>::amax_bits(words));
  }

  // Whether this lane stores the block's scale, and the block's index.
  __device__ bool has_scale() const { return index % kLanesPerBlock == 0; }
  __device__ u64 block() const { return index / kLanesPerBlock; }
};

}  // namespace rfops
