// Calls of few tokens: the experts that have a row, and the choices of the tokens of a lane.
#pragma once

#include "moe/token_lists.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// Writes how many experts a call of `count` ids has, and which: the shared ones, routed to experts
// - 1, and then the chosen ones; ids outside 0..routed-1 are no choice. By one workgroup, with
// `bits` in LDS, the caller's own: a few bytes more may cost a CU a workgroup.
using HitBits = u32[kMaxExperts / 32];
template <u32 kThreads, class Id>
__device__ inline void find_hit_experts(HitBits& bits, u32* hits, const Id* ids, u32 count,
                                        u32 routed, u32 experts) {
  constexpr u32 kWords = kMaxExperts / 32, kBits = 32;
  const u32 thread = thread_id(), shared = experts - routed;
  if (thread < kWords) bits[thread] = 0;
  workgroup_barrier();
  for (u32 i = thread; i < count; i += kThreads) {
    const Id id = ids[i];
    if (id >= 0 && id < static_cast<Id>(routed)) {
      const u32 e = static_cast<u32>(id);
      __hip_atomic_fetch_or(&bits[e / kBits], 1u << e % kBits, __ATOMIC_RELAXED,
                            __HIP_MEMORY_SCOPE_WORKGROUP);
    }
  }
  workgroup_barrier();
  u32 total = 0;
#pragma unroll
  for (u32 i = 0; i < kWords; ++i) total += static_cast<u32>(__builtin_popcount(bits[i]));
#pragma unroll
  for (u32 e = thread; e < kMaxExperts; e += kThreads) {
    u32 rank = 0, expert_word = 0;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) {
      const u32 word = bits[i], below = (1u << e % kBits) - 1;
      if (i == e / kBits) expert_word = word;
      rank += static_cast<u32>(__builtin_popcount(i < e / kBits    ? word
                                                  : i == e / kBits ? word & below
                                                                   : 0));
    }
    if (expert_word >> e % kBits & 1) hits[1 + shared + rank] = e;
  }
  for (u32 i = thread; i < shared; i += kThreads) hits[1 + i] = routed + i;
  if (thread == 0) hits[0] = shared + total;
}

// The choices of the tokens of a lane: of tile i that of row l % 16, token 16 i + l % 16.
template <u32 kTopK, u32 kTiles, class Id>
struct LaneChoices {
  static constexpr u32 kNone = ~0u;
  u32 id[kTiles][kTopK];  // kNone where it is no expert, or there is no token

  __device__ LaneChoices(const Id* ids, u32 m, u32 routed) {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      const u32 token = i * kTileRows + lane_id() % kTileRows;
      const Id* const own = ids + (token < m ? token : 0) * kTopK;
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) {
        const Id value = own[j];
        const bool is_valid = token < m && value >= 0 && value < static_cast<Id>(routed);
        id[i][j] = is_valid ? static_cast<u32>(value) : kNone;
      }
    }
  }
  // Returns the first choice of tile i's token that is the expert; kNone if none is.
  __device__ u32 first(u32 i, u32 expert) const {
    u32 found = kNone;
#pragma unroll
    for (u32 j = kTopK; j-- > 0;) found = id[i][j] == expert ? j : found;
    return found;
  }
  // Whether an entry of topk_ids before number `end` is the expert, in any token of the wave.
  __device__ bool any_before(u32 end, u32 expert) const {
    bool found = false;
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      const u32 begin = (i * kTileRows + lane_id() % kTileRows) * kTopK;
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) found |= id[i][j] == expert && begin + j < end;
    }
    return __builtin_amdgcn_ballot_w64(found) != 0;
  }
};

}  // namespace rfops
