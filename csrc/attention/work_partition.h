// Shares out sequences of any lengths evenly over workers, in the kernel: no plan, no host.
//
// Sequence b costs its tokens, and those of an FixedOverhead more. Laid end to end, sequence b
// begins at start(b); the whole is cut into equal shares, and a worker has the tokens between two
// cuts, which are rounded up to granules within a sequence. A worker meets at most one sequence
// that began before its share, and one that goes on after it: its partial results lie in slot 2 w
// and 2 w + 1. Whoever asks gets the same answer, so that what adds partial results up needs no
// list of them.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// a / b where that is below 2^16, in a third of a division's instructions: of fp32 it is one off.
__device__ inline u32 div_u16(u32 a, u32 b) {
  const f32 about = static_cast<f32>(a) * __builtin_amdgcn_rcpf(static_cast<f32>(b));
  const u32 found = readfirstlane(static_cast<u32>(about)), product = found * b;
  return product > a ? found - 1 : found + (a - product >= b ? 1 : 0);
}

// What an item costs beside its own tokens, in tokens. As much behind them as before: then
// sequences of two workers each are cut in the middle.
struct FixedOverhead {
  u32 before, behind;

  __device__ u32 all() const { return before + behind; }
};

// Where sequences are said: pages of each between two bounds, or tokens of each.
struct Sequences {
  const i32* bounds;  // [count + 1], or null where there are lens
  const i32* lens;    // [count], or null
  u32 count, page_shift;
  FixedOverhead cost;

  __device__ u32 total(u32 tokens) const { return tokens + cost.all() * count; }
  __device__ u32 tokens() const {
    if (lens == nullptr) return static_cast<u32>(bounds[count] - bounds[0]) << page_shift;
    u32 own = 0;
    for (u32 b = lane_id(); b < count; b += kWaveSize) own += static_cast<u32>(lens[b]);
    return readlane(inclusive_scan<false>(own), kWaveSize - 1);
  }
};

// 64 sequences, one a lane: those from `first` on.
struct SequenceChunk {
  u32 start, length;
  u32 zero;   // where its first token lies
  u32 entry;  // its first page in a list
  u32 next;   // where the sequence after these starts; the same in all lanes

  __device__ SequenceChunk(const Sequences& all, u32 first, u32 base) {
    const u32 b = first + lane_id();
    const bool is_there = b < all.count;
    const u32 at = is_there ? b : all.count - 1;
    entry = all.bounds == nullptr ? 0 : static_cast<u32>(all.bounds[at]);
    if (all.lens == nullptr) {
      u32 to = static_cast<u32>(all.bounds[at + 1]);
      const u32 zero = static_cast<u32>(all.bounds[0]);
      force_vgpr(to);  // asked for with `entry`, not where a lane turns out to want it
      length = is_there ? (to - entry) << all.page_shift : 0;
      start = is_there ? ((entry - zero) << all.page_shift) + all.cost.all() * at : ~0u;
      next = ((readlane(to, kWaveSize - 1) - zero) << all.page_shift) +
             all.cost.all() * (first + kWaveSize < all.count ? first + kWaveSize : all.count);
    } else {
      length = is_there ? static_cast<u32>(all.lens[b]) : 0;
      const u32 own = is_there ? length + all.cost.all() : 0;
      const u32 sum = inclusive_scan<false>(own);
      start = is_there ? base + sum - own : ~0u;
      next = base + readlane(sum, kWaveSize - 1);
    }
    force_vgpr(entry);  // no wait of the compiler's own later, for what else is on its way then
    zero = start + all.cost.before;
  }
};

struct Shares {
  u32 active, quotient, rest;

  // Of `total` tokens and costs, for as many workers as are wanted: one at least, and at most
  // `most`.
  __device__ Shares(u32 total, u32 most, u32 wanted) {
    active = wanted < 1 ? 1 : wanted > most ? most : wanted;
    quotient = total / active;
    rest = total - quotient * active;
  }
  __device__ u32 begin(u32 worker) const {
    return worker * quotient + (worker < rest ? worker : rest);
  }
  // The worker whose share has place `at`.
  __device__ u32 owner(u32 at) const {
    const u32 longer = rest * (quotient + 1);
    const bool is_longer = at < longer;
    const u32 found = is_longer ? div_u16(at, quotient + 1) : rest + div_u16(at - longer, quotient);
    return found < active ? found : active - 1;
  }
};

// The first token of a sequence that lies behind a cut at `at`; its first one lies at `zero`.
template <u32 kGranule>
__device__ inline u32 cut_token(u32 at, u32 zero, u32 length) {
  if (at <= zero) return 0;
  const u32 token = (at - zero + kGranule - 1) / kGranule * kGranule;
  return token < length ? token : length;
}

}  // namespace rfops
