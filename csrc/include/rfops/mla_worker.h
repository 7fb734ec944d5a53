// What a worker has of a batch of sequences (split_schedule.h), part by part, and where it goes.
#pragma once

#include "rfops/mla_cache.h"
#include "rfops/mla_parts.h"
#include "rfops/split_schedule.h"

namespace rfops {

// The tokens from `begin` to `end` of a sequence of `length`, whose first one lies at `zero` of
// all.
struct MlaPart {
  u32 sequence, zero, begin, end, length;
  u32 entry;  // where its pages begin, in a list

  __device__ bool is_whole() const { return begin == 0 && end == length; }
};

// act(part) for each part that `worker` has, cut at kGranule tokens; the same in all lanes. What a
// lane knows of its sequence is read again for each part: registers are for `act`.
template <u32 kGranule, class Act>
__device__ inline void each_part(const Sequences& all, const Shares& shares, u32 worker, Act act) {
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  u32 done = 0;  // sequences that are done with
  for (u32 first = 0, base = 0;;) {
    asm volatile("" : "+s"(first), "+s"(base) : : "memory");
    const SequenceChunk chunk(all, first, base);
    const u32 begin = token_at<kGranule>(from, chunk.zero, chunk.length);
    const u32 end = token_at<kGranule>(to, chunk.zero, chunk.length);
    const u32 own = first + lane_in_wave();
    const bool is_mine = chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    const u64 left = __builtin_amdgcn_ballot_w64(is_mine && own >= done && own < all.count);
    if (left != 0) {
      const u32 at = static_cast<u32>(__builtin_ctzll(left));
      done = first + at + 1;
      act(MlaPart{first + at, lane_value(chunk.zero, at), lane_value(begin, at),
                  lane_value(end, at), lane_value(chunk.length, at), lane_value(chunk.entry, at)});
    } else {
      first += kWaveSize;
      base = chunk.next;
      if (first >= all.count || base >= to) return;
    }
  }
}

// The slots of all workers that share a sequence: this one's is number `own` of `count`.
struct MlaSlots {
  u32 first, base, own, count;

  template <u32 kGranule>
  __device__ static MlaSlots of(const MlaPart& part, const Shares& shares, u32 group, u32 worker,
                                u32 workers) {
    const u32 first = shares.owner(part.zero);
    const u32 last = shares.owner(part.zero + (part.length - 1) / kGranule * kGranule);
    return {first, group * workers, worker - first, last - first + 1};
  }
  __device__ u32 operator()(u32 i) const { return (base + first + i) * 2 + (i == 0 ? 1 : 0); }
};

}  // namespace rfops
