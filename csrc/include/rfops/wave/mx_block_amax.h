// A block of 32 floats by four lanes, eight elements each: how quantisation to MX formats reads
// memory, and the block's largest magnitude.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/wave/reduce_scatter.h"

namespace rfops {

using U16x2 = u16 __attribute__((ext_vector_type(2)));

namespace details {

// The largest magnitude of pairs of 16-bit floats: as integers they order as magnitudes do, NaN
// above all.
template <u32 kWords>
__device__ inline u32 most_of_pairs(const u32 (&pairs)[kWords]) {
  const auto magnitude = [](u32 pair) { return __builtin_bit_cast(U16x2, pair & 0x7fff7fffu); };
  U16x2 most = magnitude(pairs[0]);
#pragma unroll
  for (u32 i = 1; i < kWords; ++i) most = __builtin_elementwise_max(most, magnitude(pairs[i]));
  return most[0] > most[1] ? most[0] : most[1];
}

}  // namespace details

// How a type of float is read. Words are 32 bits of memory: pairs, or one fp32.
template <class In>
struct MxFrom;

template <>
struct MxFrom<bf16> {
  static constexpr u32 kWordsOfEight = 4;

  // The bits of the largest magnitude of some words; of more, their largest as integers.
  template <u32 kWords>
  __device__ static u32 most(const u32 (&words)[kWords]) {
    return details::most_of_pairs(words);
  }
  // These bits as fp32.
  __device__ static f32 wide(u32 most) { return __builtin_bit_cast(f32, most << 16); }
  __device__ static f32 first(u32 word) { return __builtin_bit_cast(f32, word << 16); }
  __device__ static f32 second(u32 word) { return __builtin_bit_cast(f32, word & 0xffff0000u); }
};

template <>
struct MxFrom<f16> {
  static constexpr u32 kWordsOfEight = 4;

  template <u32 kWords>
  __device__ static u32 most(const u32 (&words)[kWords]) {
    return details::most_of_pairs(words);
  }
  // Denormals of f16 are normal in fp32.
  __device__ static f32 wide(u32 most) {
    return static_cast<f32>(__builtin_bit_cast(f16, static_cast<u16>(most)));
  }
  __device__ static f32 first(u32 word) {
    return static_cast<f32>(__builtin_bit_cast(F16x2, word)[0]);
  }
  __device__ static f32 second(u32 word) {
    return static_cast<f32>(__builtin_bit_cast(F16x2, word)[1]);
  }
};

template <>
struct MxFrom<f32> {
  static constexpr u32 kWordsOfEight = 8;

  template <u32 kWords>
  __device__ static u32 most(const u32 (&words)[kWords]) {
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) {
      most = __builtin_elementwise_max(most, words[i] & 0x7fffffffu);
    }
    return most;
  }
  __device__ static f32 wide(u32 most) { return __builtin_bit_cast(f32, most); }
};

// A lane's eight elements of x, [m, k] in rows `pitch` apart where they are kInRows, one row behind
// the other where not; k is a multiple of 32, and each row begins at a multiple of 16 bytes.
template <class In, u32 kThreads, bool kInRows>
struct MxEight {
  static constexpr u32 kEach = 8, kLanes = 32 / kEach;  // of a block
  static constexpr u32 kWords = MxFrom<In>::kWordsOfEight;

  u64 index;  // of the eight
  bool is_there;
  u32 words[kWords];
  u32 most;  // bits of the largest magnitude of the block

  __device__ MxEight(const In* x, u64 pitch, u32 m, u32 k)
      : index(u64{workgroup_id_x()} * kThreads + thread_id()) {
    const u32 eights = k / kEach;  // of a row
    is_there = index < u64{m} * eights;
    if (!is_there) return;  // a whole block
    u64 at = index * kEach;
    if constexpr (kInRows) {
      const u32 row = static_cast<u32>(index / eights);
      at = row * pitch + static_cast<u32>(index - u64{row} * eights) * kEach;
    }
#pragma unroll
    for (u32 i = 0; i < kWords; i += 4) {
      const U32x4 four = reinterpret_cast<const U32x4*>(x + at)[i / 4];
#pragma unroll
      for (u32 j = 0; j < 4; ++j) words[i + j] = four[j];
    }
    most = MxFrom<In>::most(words);
    const auto fold = [&](f32 other) {
      most = __builtin_elementwise_max(most, __builtin_bit_cast(u32, other));
    };
    fold(details::partner<1>(__builtin_bit_cast(f32, most)));
    fold(details::partner<2>(__builtin_bit_cast(f32, most)));
  }

  // Whether this lane stores the block's scale, and where.
  __device__ bool has_scale() const { return index % kLanes == 0; }
  __device__ u64 block() const { return index / kLanes; }

  __device__ f32 element(u32 i) const {
    if constexpr (__is_same(In, f32)) {
      return __builtin_bit_cast(f32, words[i]);
    } else {
      return i % 2 ? MxFrom<In>::second(words[i / 2]) : MxFrom<In>::first(words[i / 2]);
    }
  }
};

}  // namespace rfops
