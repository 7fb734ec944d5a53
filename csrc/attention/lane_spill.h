// Scalars spilled by hand to the lanes of one VGPR.
//
// If a kernel needs more scalars than there are SGPRs, the compiler spills some and may reload them
// inside loops. A LaneSpill keeps a struct out of SGPRs from its construction until load().
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"

namespace rfops {

// A pointer that keeps the global address space when it is spilled, because without the address
// space the compiler emits flat loads and stores.
template <class T>
struct GlobalPointer {
  __attribute__((address_space(1))) T* address;

  __device__ GlobalPointer(T* pointer) : address((__attribute__((address_space(1))) T*)pointer) {}
  __device__ operator T*() const { return (T*)address; }
};

// Holds one dword of T per lane. T must be uniform.
template <class T>
class LaneSpill {
  static constexpr u32 kWords = sizeof(T) / 4;
  static_assert(sizeof(T) % 4 == 0 && kWords <= kWaveSize, "a dword per lane");
  struct Words {
    u32 dwords[kWords];
  };

 public:
  __device__ explicit LaneSpill(const T& value) {
    const Words words = __builtin_bit_cast(Words, value);
    u32 lane = lane_id();
    force_vgpr(lane);
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) lanes_ = lane == i ? words.dwords[i] : lanes_;
    force_vgpr(lanes_);
  }
  // Reads the lanes on each call, so that no SGPR holds a dword between calls.
  __device__ T load() const {
    u32 lanes = lanes_;
    force_vgpr(lanes);
    Words words;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) words.dwords[i] = readlane(lanes, i);
    return __builtin_bit_cast(T, words);
  }

 private:
  u32 lanes_ = 0;
};

}  // namespace rfops
