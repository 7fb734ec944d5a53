// Scalar types and bit helpers used everywhere in the virtual GPU.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vgpu {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using f32 = float;
using f64 = double;

inline constexpr u32 kLanes = 64;  // per wave

template <class Target, class Source>
constexpr Target bits(Source value) {
  return std::bit_cast<Target>(value);
}

// Unaligned little-endian access: device addresses have no alignment guarantee on the host.
template <class T>
inline T load(const void* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

template <class T>
inline void store(void* dst, T value) {
  std::memcpy(dst, &value, sizeof(T));
}

constexpr u64 lane_bit(u32 lane) { return u64{1} << lane; }

// Returns the bits [lo, lo + count) of an instruction word.
constexpr u32 field(u64 word, u32 lo, u32 count) {
  return static_cast<u32>((word >> lo) & ((u64{1} << count) - 1));
}

constexpr i32 sign_extend(u32 value, u32 bit_count) {
  const u32 shift = 32 - bit_count;
  return static_cast<i32>(value << shift) >> shift;
}

}  // namespace vgpu
