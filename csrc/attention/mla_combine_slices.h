// A sequence's few parts of many columns (mla_partials.h), added up by those who made them: each
// makes some blocks of the result, from the parts that others leave and from what it has itself.
//
// A workgroup leaves what it does not make, counts up, and waits until all have. Who has more
// sequences to work on, which only a sequence's last part may, makes nothing and goes at once. Who
// waits too long leaves the rest of its part, and goes, and says so: others may not be resident, as
// where another kernel has their compute units. The last to come makes the shares of those who have
// gone. So nobody waits for ever, and whoever makes a share, its sums are the same.
#pragma once

#include "attention/mla_partials.h"
#include "attention/work_partition.h"

namespace rfops {

// What a part makes of the result: blocks, or where there are more parts quarters of blocks.
struct MlaShare {
  u32 from, to;

  // Part `own` of `sharers` that make something. kUnits: of the result, all that can be made.
  template <u32 kUnits>
  __device__ static MlaShare of(u32 own, u32 sharers) {
    if (own >= sharers) return {kUnits, kUnits};
    return {div_u16(own * kUnits, sharers), div_u16((own + 1) * kUnits, sharers)};
  }
  __device__ bool is_nothing() const { return from == to; }
  __device__ bool has(u32 unit) const { return from <= unit && unit < to; }
};

// The count of a sequence's parts, of which this workgroup's is number `own`, and whether it has
// something to make, as `makers` of them have. `word` is zero, and will be; `found` is a word of
// LDS that nobody needs. What a method does all of a workgroup do.
class CombineBarrier {
 public:
  __device__ CombineBarrier(u64* word, u32 own, u32 count, bool makes, u32 makers,
                            RFOPS_LDS u64* found)
      : word_(word), own_(own), count_(count), makes_(makes), makers_(makers), found_(found) {}

  // What this part leaves is written. Whether all parts are there after a while; of who has
  // nothing to make, whether it has come last.
  template <u32 kTurns>
  __device__ bool s_barrier() {
    release();
    if (thread_id() == 0) *found_ = come<kTurns>();
    return acquire();
  }
  // They did not come: now all of this part is written. If they have by now, it is as if this
  // workgroup had waited.
  __device__ bool go() {
    release();
    if (thread_id() == 0) *found_ = came(add(kGone << own_)) == count_ ? kHasMet : 0;
    return acquire();
  }
  // Parts whose share this workgroup makes beside its own, a bit each.
  __device__ u64 abandoned_slices() const { return others_; }
  // It has met and made that, and asks nothing any more.
  __device__ void end() const {
    if (thread_id() != 0) return;
    const u32 made = static_cast<u32>(__builtin_popcountll(others_)) + (makes_ ? 1 : 0);
    // Nor does anybody else: zero, for the next launch.
    if (done(add(made * kDone)) + made == makers_) {
      __hip_atomic_fetch_and(word_, u64{0}, __ATOMIC_RELAXED, kAgentScope);
    }
  }

 private:
  // In the word: how many came, how many shares are made, and a bit for each who has gone.
  static constexpr u32 kMostCounted = 64;
  static constexpr u64 kCame = 1, kDone = kMostCounted, kGone = kMostCounted * kMostCounted;
  static constexpr u64 kHasMet = u64{1} << 63;  // found, with who had gone by then
  static_assert(kMostShared < 50);

  __device__ static u32 came(u64 word) { return static_cast<u32>(word) % kMostCounted; }
  __device__ static u32 done(u64 word) { return static_cast<u32>(word / kDone) % kMostCounted; }
  __device__ u64 add(u64 what) const {
    return __hip_atomic_fetch_add(word_, what, __ATOMIC_RELAXED, kAgentScope);
  }
  __device__ static void release() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    __builtin_amdgcn_s_barrier();
  }
  __device__ bool acquire() {
    workgroup_barrier();
    const u64 found = *found_;
    const u32 low = readfirstlane(static_cast<u32>(found));
    const u32 high = readfirstlane(static_cast<u32>(found >> 32));
    if (high == 0) return false;
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    others_ = (u64{high} << 32 | low) & ~kHasMet;
    workgroup_barrier();  // `found` is LDS of the next step
    return true;
  }
  template <u32 kTurns>
  __device__ u64 come() const {
    const u64 before = add(kCame);
    if (came(before) + 1 == count_) return kHasMet | before / kGone;
    if (!makes_) return 0;
    const u32* const low = reinterpret_cast<const u32*>(word_);
#pragma nounroll
    for (u32 turn = 0; turn < kTurns; ++turn) {
      if (came(__hip_atomic_load(low, __ATOMIC_RELAXED, kAgentScope)) == count_) return kHasMet;
      __builtin_amdgcn_s_sleep(1);
    }
    return 0;
  }

  u64* word_;
  u32 own_, count_;
  bool makes_;
  u32 makers_;
  u64 others_ = 0;
  RFOPS_LDS u64* found_;
};

}  // namespace rfops
