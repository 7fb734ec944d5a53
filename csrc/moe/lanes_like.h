// Ranks the rows of a wave among those of the same expert.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// Returns the lanes among those with `active` whose value equals this lane's in the lowest `bits`.
__device__ inline u64 lanes_like(u32 value, bool active, u32 bits) {
  const u64 lanes = __builtin_amdgcn_ballot_w64(active);
  u32 low = static_cast<u32>(lanes), high = static_cast<u32>(lanes >> 32);
  for (u32 bit = 0; bit < bits; ++bit) {
    const i32 set = static_cast<i32>(value << (31 - bit)) >> 31;  // all bits, or none
    const u64 lanes_with_bit = __builtin_amdgcn_ballot_w64(set != 0);
    low &= ~(static_cast<u32>(lanes_with_bit) ^ static_cast<u32>(set));
    high &= ~(static_cast<u32>(lanes_with_bit >> 32) ^ static_cast<u32>(set));
  }
  return u64{high} << 32 | low;
}

}  // namespace rfops
