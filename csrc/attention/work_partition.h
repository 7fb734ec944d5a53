// Partitions sequences of any lengths evenly over workers, inside the kernel: no plan from the
// host.
//
// A sequence costs its tokens and a FixedOverhead. All sequences are laid end to end and cut into
// equal ranges, one per worker; cuts are rounded up to granules within a sequence. At most one
// sequence of a range began before it, and at most one continues after it, so worker w stores its
// partials at 2 w and 2 w + 1. Every caller computes the same partition, so no list of partials is
// needed.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Returns a / b for a quotient below 2^16 in a third of a division's instructions; the fp32
// estimate is off by at most one.
__device__ inline u32 div_u16(u32 a, u32 b) {
  const f32 estimate = static_cast<f32>(a) * __builtin_amdgcn_rcpf(static_cast<f32>(b));
  const u32 quotient = readfirstlane(static_cast<u32>(estimate)), product = quotient * b;
  return product > a ? quotient - 1 : quotient + (a - product >= b ? 1 : 0);
}

// Overhead of an item in tokens, before and after its tokens; with equal parts, sequences of two
// workers each are cut in the middle.
struct FixedOverhead {
  u32 leading, trailing;

  __device__ u32 tokens() const { return leading + trailing; }
};

// Lengths of the sequences: pages between two bounds, or tokens.
struct SequenceTable {
  const i32* bounds;  // [count + 1], or null where there are lens
  const i32* lens;    // [count], or null
  u32 count, page_shift;
  FixedOverhead cost;

  __device__ u32 total(u32 tokens) const { return tokens + cost.tokens() * count; }
  __device__ u32 tokens() const {
    if (lens == nullptr) return static_cast<u32>(bounds[count] - bounds[0]) << page_shift;
    u32 lane_tokens = 0;
    for (u32 b = lane_id(); b < count; b += kWaveSize) lane_tokens += static_cast<u32>(lens[b]);
    return readlane(inclusive_scan<false>(lane_tokens), kWaveSize - 1);
  }
};

// 64 sequences, one per lane, from seq_begin on.
struct SequenceChunk {
  u32 start, length;
  u32 zero;   // where its first token lies
  u32 entry;  // its first page in a list
  u32 next;   // where the sequence after these starts; the same in all lanes

  __device__ SequenceChunk(const SequenceTable& seqs, u32 seq_begin, u32 base) {
    const u32 b = seq_begin + lane_id();
    const bool in_bounds = b < seqs.count;
    const u32 seq = in_bounds ? b : seqs.count - 1;
    entry = seqs.bounds == nullptr ? 0 : static_cast<u32>(seqs.bounds[seq]);
    if (seqs.lens == nullptr) {
      u32 page_end = static_cast<u32>(seqs.bounds[seq + 1]);
      const u32 zero = static_cast<u32>(seqs.bounds[0]);
      force_vgpr(page_end);  // loaded with `entry`, not in the branch that needs it
      length = in_bounds ? (page_end - entry) << seqs.page_shift : 0;
      start = in_bounds ? ((entry - zero) << seqs.page_shift) + seqs.cost.tokens() * seq : ~0u;
      next = ((readlane(page_end, kWaveSize - 1) - zero) << seqs.page_shift) +
             seqs.cost.tokens() *
                 (seq_begin + kWaveSize < seqs.count ? seq_begin + kWaveSize : seqs.count);
    } else {
      length = in_bounds ? static_cast<u32>(seqs.lens[b]) : 0;
      const u32 extent = in_bounds ? length + seqs.cost.tokens() : 0;
      const u32 sum = inclusive_scan<false>(extent);
      start = in_bounds ? base + sum - extent : ~0u;
      next = base + readlane(sum, kWaveSize - 1);
    }
    force_vgpr(entry);  // no wait of the compiler's own later, for what else is on its way then
    zero = start + seqs.cost.leading;
  }
};

struct WorkPartition {
  u32 active, quotient, remainder;

  // Partitions `total` tokens over `requested` workers, at least one and at most max_workers.
  __device__ WorkPartition(u32 total, u32 max_workers, u32 requested) {
    active = requested < 1 ? 1 : requested > max_workers ? max_workers : requested;
    quotient = total / active;
    remainder = total - quotient * active;
  }
  __device__ u32 begin(u32 worker) const {
    return worker * quotient + (worker < remainder ? worker : remainder);
  }
  // Returns the worker whose range has position `pos`.
  __device__ u32 owner(u32 pos) const {
    const u32 longer = remainder * (quotient + 1);
    const bool is_longer = pos < longer;
    const u32 worker =
        is_longer ? div_u16(pos, quotient + 1) : remainder + div_u16(pos - longer, quotient);
    return worker < active ? worker : active - 1;
  }
};

// Returns the first token of a sequence after the cut, or after it the next multiple of `granule`,
// a power of two; `zero` is the position of the sequence's first token.
__device__ inline u32 cut_token(u32 cut, u32 zero, u32 length, u32 granule) {
  if (cut <= zero) return 0;
  const u32 token = (cut - zero + granule - 1) & (0 - granule);
  return token < length ? token : length;
}

}  // namespace rfops
