// Ranks the rows of a wave among those of the same expert.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// Returns the lanes among those with `active` whose value equals this lane's in the lowest `bits`.
__device__ inline u64 lanes_like(u32 value, bool active, u32 bits) {
  u64 like = __builtin_amdgcn_ballot_w64(active);
  for (u32 bit = 0; bit < bits; ++bit) {
    const bool set = (value >> bit & 1) != 0;
    const u64 lanes_with_bit = __builtin_amdgcn_ballot_w64(set);
    like &= set ? lanes_with_bit : ~lanes_with_bit;
  }
  return like;
}

}  // namespace rfops
