// Range-checked loads through buffer descriptors.
//
// A load whose offset is at or beyond the descriptor's size returns zero and touches no memory.
// Tails are handled that way: a lane without work passes kOutOfBounds as its offset. Offsets have
// 32 bits, so a buffer must be smaller than 2 GiB; the ops check that.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kOutOfBounds = 0x80000000u;

// Cache hint of a buffer load: the aux operand of the instruction.
enum CacheHint : int {
  kCached = 0,
  kStreamed = 2,  // the nt bit: the data is read once and displaces nothing that is reused
};

// A buffer descriptor (V#).
struct Buffer {
  __amdgpu_buffer_rsrc_t rsrc;
};

// Returns the descriptor of `bytes` bytes from `base` on. All lanes must pass the same values.
__device__ inline Buffer make_buffer(const void* base, u32 bytes) {
  constexpr int kRawBuffer = 0x00020000;  // word 3 of the descriptor: untyped, no swizzle
  return {__builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, static_cast<int>(bytes),
                                            kRawBuffer)};
}

// Returns the descriptor as four words, the form that inline assembly takes.
__device__ inline U32x4 make_buffer_words(const void* base, u32 bytes) {
  const u64 address = reinterpret_cast<u64>(base);
  return {static_cast<u32>(address), static_cast<u32>(address >> 32), bytes, 0x00020000};
}

// Loads 16 bytes at lane_offset + scalar_offset. `scalar_offset` must be uniform over the wave.
template <CacheHint kHint = kCached>
__device__ inline U32x4 buffer_load_b128(const Buffer& buffer, u32 lane_offset, u32 scalar_offset) {
  return __builtin_bit_cast(
      U32x4, __builtin_amdgcn_raw_buffer_load_b128(buffer.rsrc, lane_offset, scalar_offset, kHint));
}

// Result of buffer_load_dwords.
template <u32 kCount>
struct Dwords {
  u32 dword[kCount];
};

// Loads kCount consecutive dwords at lane_offset + scalar_offset, a multiple of 4. Each dword is
// range-checked by itself.
template <u32 kCount>
__device__ inline Dwords<kCount> buffer_load_dwords(const Buffer& buffer, u32 lane_offset,
                                                    u32 scalar_offset) {
  static_assert(kCount >= 1 && kCount <= 4, "1 to 4 dwords per load");
  if constexpr (kCount == 1) {
    return {__builtin_amdgcn_raw_buffer_load_b32(buffer.rsrc, lane_offset, scalar_offset, kCached)};
  } else if constexpr (kCount == 2) {
    const auto loaded =
        __builtin_amdgcn_raw_buffer_load_b64(buffer.rsrc, lane_offset, scalar_offset, kCached);
    return {loaded[0], loaded[1]};
  } else if constexpr (kCount == 3) {
    const auto loaded =
        __builtin_amdgcn_raw_buffer_load_b96(buffer.rsrc, lane_offset, scalar_offset, kCached);
    return {loaded[0], loaded[1], loaded[2]};
  } else {
    const auto loaded =
        __builtin_amdgcn_raw_buffer_load_b128(buffer.rsrc, lane_offset, scalar_offset, kCached);
    return {loaded[0], loaded[1], loaded[2], loaded[3]};
  }
}

// Loads *ptr into a scalar register through the constant cache. Requires: no kernel writes there
// while this one runs.
__device__ inline u32 load_uniform(const u32* ptr) {
  return *(const __attribute__((address_space(4))) u32*)ptr;
}

// Loads one byte at lane_offset + scalar_offset, zero-extended.
__device__ inline u32 buffer_load_u8(const Buffer& buffer, u32 lane_offset, u32 scalar_offset) {
  return __builtin_amdgcn_raw_buffer_load_b8(buffer.rsrc, lane_offset, scalar_offset, kCached);
}

}  // namespace rfops
