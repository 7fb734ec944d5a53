// Arrival counter and slices for combining few partials of many query rows (mla_partials.h).
//
// Each workgroup stores the blocks of its partial that it does not reduce, increments the counter
// and spins until all have arrived. A workgroup with more splits to compute, which only the last
// split of a sequence can have, reduces nothing and continues at once. The spin is bounded, because
// the other workgroups may not be resident while another kernel holds their CUs: a workgroup that
// exceeds it stores the rest of its partial, sets its bit in the counter and moves on. The last to
// arrive reduces the slices of those that left. The sums are the same whichever workgroup reduces
// them.
#pragma once

#include "attention/mla_partials.h"
#include "attention/work_partition.h"

namespace rfops {

// Output slice of one workgroup: blocks, or quarters of blocks if there are more partials.
struct OutputSlice {
  u32 begin, end;

  // Slice of split `split_idx`, of `sharers` that reduce something. kUnits: units of the whole
  // output.
  template <u32 kUnits>
  __device__ static OutputSlice make(u32 split_idx, u32 sharers) {
    if (split_idx >= sharers) return {kUnits, kUnits};
    return {div_u16(split_idx * kUnits, sharers), div_u16((split_idx + 1) * kUnits, sharers)};
  }
  __device__ bool is_nothing() const { return begin == end; }
  __device__ bool contains(u32 unit) const { return begin <= unit && unit < end; }
};

// Counter of a sequence's `count` partials, of which this workgroup has `split_idx`. `makes`: this
// workgroup has a slice, as `makers` of them have. `word` is zero before and after. `lds_word` is
// free LDS. All threads of the workgroup call each method.
class CombineBarrier : ArrivalWord {
 public:
  __device__ CombineBarrier(u64* word, u32 split_idx, u32 count, bool makes, u32 makers,
                            RFOPS_LDS u64* lds_word)
      : word_(word),
        split_idx_(split_idx),
        count_(count),
        makes_(makes),
        makers_(makers),
        lds_word_(lds_word) {}

  // Counts the stored partial as arrived. Returns whether all have arrived within the spin limit;
  // without a slice, whether this was the last to arrive.
  template <u32 kMaxSpins>
  __device__ bool arrive_and_wait() {
    release();
    if (thread_id() == 0) *lds_word_ = arrive<kMaxSpins>();
    return acquire();
  }
  // The limit was exceeded and the whole partial is stored: abandons the slice. Returns true if all
  // have arrived by now, as if this workgroup had waited.
  __device__ bool abandon() {
    release();
    if (thread_id() == 0)
      *lds_word_ = arrived(add(word_, kAbandoned << split_idx_)) == count_ ? kAllArrived : 0;
    return acquire();
  }
  // Returns a bit for each abandoned slice that this workgroup reduces.
  __device__ u64 abandoned_slices() const { return abandoned_; }
  // Counts the reduced slices as finished; the word is not read any more.
  __device__ void finish() const {
    if (thread_id() != 0) return;
    const u32 num_made = static_cast<u32>(__builtin_popcountll(abandoned_)) + (makes_ ? 1 : 0);
    if (finished(add(word_, num_made * kFinished)) + num_made == makers_) reset(word_);
  }

 private:
  static constexpr u64 kAllArrived = u64{1} << 63;  // found, with who had gone by then
  static_assert(kMaxShared < 50);

  __device__ static void release() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    __builtin_amdgcn_s_barrier();
  }
  __device__ bool acquire() {
    workgroup_barrier();
    const u64 word = readfirstlane(*lds_word_);
    if (word >> 32 == 0) return false;
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    abandoned_ = word & ~kAllArrived;
    workgroup_barrier();  // `word` is LDS of the next step
    return true;
  }
  template <u32 kMaxSpins>
  __device__ u64 arrive() const {
    const u64 old_word = add(word_, kArrived);
    if (arrived(old_word) + 1 == count_) return kAllArrived | old_word / kAbandoned;
    if (!makes_) return 0;
    const auto is_all = [&](u32 counts) { return arrived(counts) == count_; };
    return spin_until<kMaxSpins>(word_, is_all) ? kAllArrived : 0;
  }

  u64* word_;
  u32 split_idx_, count_;
  bool makes_;
  u32 makers_;
  u64 abandoned_ = 0;
  RFOPS_LDS u64* lds_word_;
};

}  // namespace rfops
