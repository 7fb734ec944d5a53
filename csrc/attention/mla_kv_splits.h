// What a worker has of a batch of sequences (work_partition.h), part by part, and where it goes.
#pragma once

#include "attention/mla_kv_cache.h"
#include "attention/mla_partials.h"
#include "attention/work_partition.h"
#include "rfops/chip/arch.h"

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
struct KvSplit {
  u32 sequence, zero, begin, end, length;
  u32 entry;  // where its pages begin, in a list

  // Of so many tokens each, that it has.
  template <u32 kTokens>
  __device__ u32 tiles() const {
    return (end - begin + kTokens - 1) / kTokens;
  }
  __device__ bool is_whole() const { return begin == 0 && end == length; }
  // The same without tokens from `seen` on, but for one.
  __device__ KvSplit without(i32 seen) const {
    const i32 least = static_cast<i32>(begin) + 1, most = static_cast<i32>(end);
    KvSplit kept = *this;
    if (begin < end && seen < most) kept.end = static_cast<u32>(seen > least ? seen : least);
    return kept;
  }
};

// act(part) for each part that `worker` has, cut at kGranule tokens; the same in all lanes. What a
// lane knows of its sequence is read again for each part: registers are for `act`.
template <u32 kGranule, class Act>
__device__ inline void for_each_row_slice(const Sequences& all, const Shares& shares, u32 worker,
                                          Act act) {
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  u32 done = 0;  // sequences that are done with
  for (u32 first = 0, base = 0;;) {
    asm volatile("" : "+s"(first), "+s"(base) : : "memory");
    const SequenceChunk chunk(all, first, base);
    const u32 begin = cut_token<kGranule>(from, chunk.zero, chunk.length);
    const u32 end = cut_token<kGranule>(to, chunk.zero, chunk.length);
    const u32 own = first + lane_id();
    const bool is_mine = chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    const u64 left = __builtin_amdgcn_ballot_w64(is_mine && own >= done && own < all.count);
    if (left != 0) {
      const u32 at = static_cast<u32>(__builtin_ctzll(left));
      done = first + at + 1;
      const bool is_last = to <= readlane(chunk.zero + chunk.length, at);
      act(KvSplit{first + at, readlane(chunk.zero, at), readlane(begin, at), readlane(end, at),
                  readlane(chunk.length, at), readlane(chunk.entry, at)});
      if (is_last) return;  // what comes next begins behind this worker's share
    } else {
      first += kWaveSize;
      base = chunk.next;
      if (first >= all.count || base >= to) return;
    }
  }
}

// Where the queries of sequences are said that have some number of them each.
struct Queries {
  const i32* bounds;  // [count + 1]
  u32 heads, rows;    // q has so many rows: those that bounds name beyond do not exist

  __device__ u32 bound(u32 at) const {
    const u32 given = static_cast<u32>(bounds[at]);
    return given < rows ? given : rows;
  }
};

// Sequences of such queries, of 64 one a lane. A sequence is an item for each kColumns of its
// columns (a query's head), and costs its tokens in each.
template <u32 kColumns>
struct ItemChunk {
  u32 row, columns;  // its first query, and all its columns
  u32 length, entry;
  u32 start, extent;  // where the first item starts, and from one to the next
  u32 next;           // where the sequence after these starts; the same in all lanes

  __device__ ItemChunk(const Sequences& all, const Queries& queries, u32 first, u32 base) {
    const u32 b = first + lane_id();
    const u32 at = b < all.count ? b : all.count - 1;
    row = queries.bound(at);
    const u32 end = queries.bound(at + 1);
    columns = b < all.count && row < end ? (end - row) * queries.heads : 0;
    entry = static_cast<u32>(all.bounds[at]);
    length = all.lens == nullptr ? (static_cast<u32>(all.bounds[at + 1]) - entry) << all.page_shift
                                 : static_cast<u32>(all.lens[at]);
    extent = length + all.cost.all();
    const u32 size = items() * extent, sum = prefix_sum(size);
    start = base + sum - size;
    next = base + readlane(sum, kWaveSize - 1);
  }
  __device__ u32 items() const { return (columns + kColumns - 1) / kColumns; }
};

// All items, and what they cost.
template <u32 kColumns>
struct ItemTotals {
  u32 items = 0, cost = 0;

  __device__ ItemTotals(const Sequences& all, const Queries& queries) {
    for (u32 first = 0; first < all.count; first += kWaveSize) {
      const ItemChunk<kColumns> chunk(all, queries, first, cost);
      items += readlane(prefix_sum(chunk.items()), kWaveSize - 1);
      cost = chunk.next;
    }
  }
};

// Columns of a sequence that has `columns`, from `base` on, and from row `row` of queries.
struct MlaItem {
  u32 row, columns, base;

  template <u32 kColumns>
  __device__ u32 last() const {
    return (base + kColumns < columns ? base + kColumns : columns) - 1;
  }
  // Tokens at the sequence's end that this column's query does not see.
  __device__ u32 unseen(u32 column, u32 heads, bool is_causal) const {
    return is_causal ? columns / heads - 1 - column / heads : 0;
  }
};

// act(part, item) for each part of an item that `worker` has, cut at kGranule tokens; the same in
// all lanes. Registers are for `act`, as in for_each_row_slice.
template <u32 kGranule, u32 kColumns, class Act>
__device__ inline void each_item(const Sequences& all, const Queries& queries, const Shares& shares,
                                 u32 worker, Act act) {
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  u32 next = 0, item = 0;  // the sequence that is next, and which of its items
  for (u32 first = 0, base = 0;;) {
    asm volatile("" : "+s"(first), "+s"(base), "+s"(next), "+s"(item) : : "memory");
    const ItemChunk<kColumns> chunk(all, queries, first, base);
    const u32 own = first + lane_id(), size = chunk.items() * chunk.extent;
    const u64 left = __builtin_amdgcn_ballot_w64(size != 0 && own >= next && chunk.start < to &&
                                                 from < chunk.start + size);
    if (left == 0) {
      first += kWaveSize;
      base = chunk.next;
      if (first >= all.count || base >= to) return;
      continue;
    }
    const u32 at = static_cast<u32>(__builtin_ctzll(left));
    const auto of = [at](u32 all_lanes) { return readlane(all_lanes, at); };
    const u32 sequence = first + at, start = of(chunk.start), extent = of(chunk.extent);
    const u32 length = of(chunk.length), columns = of(chunk.columns);
    if (sequence != next) item = 0;
    const u32 before = start < from ? (from - start) / extent : 0;  // items of other workers
    if (item < before) item = before;
    const u32 item_start = start + item * extent, zero = item_start + all.cost.before;
    const u32 begin = cut_token<kGranule>(from, zero, length);
    const u32 end = cut_token<kGranule>(to, zero, length);
    const bool is_mine = length == 0 ? from <= item_start && item_start < to : begin < end;
    const MlaItem part_of = {of(chunk.row), columns, item * kColumns};
    const bool has_next = part_of.base + kColumns < columns;
    next = has_next ? sequence : sequence + 1;
    item = has_next ? item + 1 : 0;
    if (is_mine) act(KvSplit{sequence, zero, begin, end, length, of(chunk.entry)}, part_of);
    if (to <= zero + length) return;  // what comes next begins behind this worker's share
  }
}

// The slots of all workers that share a sequence: this one's is number `own` of `count`.
struct SplitPartials {
  u32 first, own, count;

  template <u32 kGranule>
  __device__ static SplitPartials of(const KvSplit& part, const Shares& shares, u32 group,
                                     u32 worker, u32 workers) {
    const u32 first = shares.owner(part.zero);
    const u32 last = shares.owner(part.zero + (part.length - 1) / kGranule * kGranule);
    SplitPartials all = {readfirstlane(group * workers + first), readfirstlane(worker - first),
                         readfirstlane(last - first + 1)};
    force_sgpr(all.first), force_sgpr(all.own), force_sgpr(all.count);  // here, not where wanted
    return all;
  }
  __device__ u32 operator()(u32 i) const { return (first + i) * 2 + (i == 0 ? 1 : 0); }
};

}  // namespace rfops
