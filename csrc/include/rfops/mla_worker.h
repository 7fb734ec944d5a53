// What a worker has of a batch of sequences (split_schedule.h), part by part, and where it goes.
#pragma once

#include "rfops/arch.h"
#include "rfops/mla_cache.h"
#include "rfops/mla_parts.h"
#include "rfops/split_schedule.h"

namespace rfops {

// What workgroup `id` is, of a launch of `groups`: one of `active` workers of `batch` sequences, or
// none. Those of a sequence are neighbours on one XCD: what they leave for each other stays in its
// L2. Of few sequences with little to read each has an XCD for itself, but where more than half of
// its compute units would read at once.
constexpr u32 kNoWorker = ~0u;
constexpr u32 worker_of(u32 id, u32 active, u32 batch, u32 groups) {
  u32 xcds = kXcds;
#pragma unroll
  for (u32 half = kXcds / 2; half > 0; half /= 2) {
    if (batch <= half && 2 * active * kXcds <= half * groups) xcds = half;
  }
  const u32 xcd = id % kXcds, at = id / kXcds, share = active / xcds, rest = active % xcds;
  if (xcd >= xcds || at >= share + (xcd < rest ? 1 : 0)) return kNoWorker;
  return xcd * share + (xcd < rest ? xcd : rest) + at;
}

namespace details {

// Whether each worker is one workgroup; of at most 64.
constexpr bool are_all_there(u32 active, u32 batch, u32 groups) {
  u64 seen = 0;
  for (u32 id = 0; id < groups; ++id) {
    const u32 worker = worker_of(id, active, batch, groups);
    if (worker == kNoWorker) continue;
    if (worker >= active || (seen >> worker & 1) != 0) return false;
    seen |= u64{1} << worker;
  }
  return seen == (u64{2} << (active - 1)) - 1;
}
static_assert(are_all_there(17, 1, 256) && are_all_there(34, 2, 256) && are_all_there(64, 4, 304) &&
                  are_all_there(64, 4, 64) && are_all_there(51, 3, 256) && are_all_there(7, 1, 7) &&
                  are_all_there(1, 1, 1) && are_all_there(40, 9, 40),
              "each worker is one workgroup");

}  // namespace details

// The tokens from `begin` to `end` of a sequence of `length`, whose first one lies at `zero` of
// all.
struct MlaPart {
  u32 sequence, zero, begin, end, length;
  u32 entry;  // where its pages begin, in a list

  // Of so many tokens each, that it has.
  template <u32 kTokens>
  __device__ u32 tiles() const {
    return (end - begin + kTokens - 1) / kTokens;
  }
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
      const bool is_last = to <= lane_value(chunk.zero + chunk.length, at);
      act(MlaPart{first + at, lane_value(chunk.zero, at), lane_value(begin, at),
                  lane_value(end, at), lane_value(chunk.length, at), lane_value(chunk.entry, at)});
      if (is_last) return;  // what comes next begins behind this worker's share
    } else {
      first += kWaveSize;
      base = chunk.next;
      if (first >= all.count || base >= to) return;
    }
  }
}

// The slots of all workers that share a sequence: this one's is number `own` of `count`.
struct MlaSlots {
  u32 first, own, count;

  template <u32 kGranule>
  __device__ static MlaSlots of(const MlaPart& part, const Shares& shares, u32 group, u32 worker,
                                u32 workers) {
    const u32 first = shares.owner(part.zero);
    const u32 last = shares.owner(part.zero + (part.length - 1) / kGranule * kGranule);
    MlaSlots all = {as_scalar(group * workers + first), as_scalar(worker - first),
                    as_scalar(last - first + 1)};
    not_before(all.first), not_before(all.own), not_before(all.count);  // here, not where wanted
    return all;
  }
  __device__ u32 operator()(u32 i) const { return (first + i) * 2 + (i == 0 ? 1 : 0); }
};

}  // namespace rfops
