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
struct OutputSlice {
  u32 begin, end;

  // Part `split_idx` of `sharers` that make something. kUnits: of the result, all that can be made.
  template <u32 kUnits>
  __device__ static OutputSlice make(u32 split_idx, u32 sharers) {
    if (split_idx >= sharers) return {kUnits, kUnits};
    return {div_u16(split_idx * kUnits, sharers), div_u16((split_idx + 1) * kUnits, sharers)};
  }
  __device__ bool is_nothing() const { return begin == end; }
  __device__ bool contains(u32 unit) const { return begin <= unit && unit < end; }
};

// The count of a sequence's parts, of which this workgroup's is number `split_idx`, and whether it
// has something to make, as `makers` of them have. `word` is zero, and will be; `found` is a word
// of LDS that nobody needs. What a method does all of a workgroup do.
class CombineBarrier {
 public:
  __device__ CombineBarrier(u64* word, u32 split_idx, u32 count, bool makes, u32 makers,
                            RFOPS_LDS u64* lds_word)
      : word_(word),
        split_idx_(split_idx),
        count_(count),
        makes_(makes),
        makers_(makers),
        lds_word_(lds_word) {}

  // What this part leaves is written. Whether all parts are there after a while; of who has
  // nothing to make, whether it has come last.
  template <u32 kMaxSpins>
  __device__ bool arrive_and_wait() {
    release();
    if (thread_id() == 0) *lds_word_ = arrive<kMaxSpins>();
    return acquire();
  }
  // They did not come: now all of this part is written. If they have by now, it is as if this
  // workgroup had waited.
  __device__ bool abandon() {
    release();
    if (thread_id() == 0)
      *lds_word_ = arrived(add(kAbandoned << split_idx_)) == count_ ? kAllArrived : 0;
    return acquire();
  }
  // Parts whose share this workgroup makes beside its own, a bit each.
  __device__ u64 abandoned_slices() const { return abandoned_; }
  // It has met and made that, and asks nothing any more.
  __device__ void finish() const {
    if (thread_id() != 0) return;
    const u32 num_made = static_cast<u32>(__builtin_popcountll(abandoned_)) + (makes_ ? 1 : 0);
    // Nor does anybody else: zero, for the next launch.
    if (finished(add(num_made * kFinished)) + num_made == makers_) {
      __hip_atomic_fetch_and(word_, u64{0}, __ATOMIC_RELAXED, kAgentScope);
    }
  }

 private:
  // In the word: how many came, how many shares are made, and a bit for each who has gone.
  static constexpr u32 kCountRange = 64;
  static constexpr u64 kArrived = 1, kFinished = kCountRange,
                       kAbandoned = kCountRange * kCountRange;
  static constexpr u64 kAllArrived = u64{1} << 63;  // found, with who had gone by then
  static_assert(kMaxShared < 50);

  __device__ static u32 arrived(u64 word) { return static_cast<u32>(word) % kCountRange; }
  __device__ static u32 finished(u64 word) {
    return static_cast<u32>(word / kFinished) % kCountRange;
  }
  __device__ u64 add(u64 increment) const {
    return __hip_atomic_fetch_add(word_, increment, __ATOMIC_RELAXED, kAgentScope);
  }
  __device__ static void release() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    __builtin_amdgcn_s_barrier();
  }
  __device__ bool acquire() {
    workgroup_barrier();
    const u64 word = *lds_word_;
    const u32 low = readfirstlane(static_cast<u32>(word));
    const u32 high = readfirstlane(static_cast<u32>(word >> 32));
    if (high == 0) return false;
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    abandoned_ = (u64{high} << 32 | low) & ~kAllArrived;
    workgroup_barrier();  // `word` is LDS of the next step
    return true;
  }
  template <u32 kMaxSpins>
  __device__ u64 arrive() const {
    const u64 old_word = add(kArrived);
    if (arrived(old_word) + 1 == count_) return kAllArrived | old_word / kAbandoned;
    if (!makes_) return 0;
    const u32* const low = reinterpret_cast<const u32*>(word_);
#pragma nounroll
    for (u32 spin = 0; spin < kMaxSpins; ++spin) {
      if (arrived(__hip_atomic_load(low, __ATOMIC_RELAXED, kAgentScope)) == count_)
        return kAllArrived;
      __builtin_amdgcn_s_sleep(1);
    }
    return 0;
  }

  u64* word_;
  u32 split_idx_, count_;
  bool makes_;
  u32 makers_;
  u64 abandoned_ = 0;
  RFOPS_LDS u64* lds_word_;
};

}  // namespace rfops
