// Scalars spilled by hand to the lanes of one VGPR.
//
// A kernel that needs more scalars than there are SGPRs has them spilled by the compiler, which
// reloads them wherever it likes, in loops too. A LaneSpill keeps a struct out of SGPRs from where
// it is made to where it is loaded.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"

namespace rfops {

// A pointer to global memory that is still known as one after it was spilled: without the address
// space the compiler would emit flat loads and stores.
template <class T>
struct GlobalPointer {
  __attribute__((address_space(1))) T* address;

  __device__ GlobalPointer(T* pointer) : address((__attribute__((address_space(1))) T*)pointer) {}
  __device__ operator T*() const { return (T*)address; }
};

// One dword of T per lane; T is the same in all lanes.
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
  // Each call reads the lanes anew, so that no SGPR holds a dword between calls.
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
