// What a worker has of a batch of sequences (work_partition.h), part by part, and where it goes.
#pragma once

#include "attention/lane_spill.h"
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

// Where a worker is in its share of all sequences: what is spilled while a part is computed.
struct MlaWalk {
  GlobalPointer<const i32> bounds, lens, query_bounds;
  u32 count, page_shift, heads, rows;
  u32 from, to;     // the share
  u32 first, base;  // the chunk's first sequence, and where that starts
  u32 next, item;   // the sequence that is next, and which of its items
  u32 is_last;      // the part is the last one of the share

  __device__ MlaWalk(const Sequences& all, const Shares& shares, u32 worker,
                     const i32* given_bounds = nullptr, u32 given_heads = 0, u32 given_rows = 0)
      : bounds(all.bounds),
        lens(all.lens),
        query_bounds(given_bounds),
        count(all.count),
        page_shift(all.page_shift),
        heads(given_heads),
        rows(given_rows),
        from(shares.begin(worker)),
        to(shares.begin(worker + 1)),
        first(0),
        base(0),
        next(0),
        item(0),
        is_last(0) {}
  __device__ Sequences sequences(const FixedOverhead& cost) const {
    return {bounds, lens, count, page_shift, cost};
  }
  // The next 64 sequences, `start` is where they start. False if this share has none of them.
  __device__ bool advance(u32 start) {
    first += kWaveSize;
    base = start;
    return first < count && base < to;
  }
};

// act(part) for each part that `worker` has, cut at kGranule tokens; the same in all lanes. A lane
// reads its sequence again for each part, because `act` wants all registers.
template <u32 kGranule, class Act>
__device__ inline void for_each_row_slice(const Sequences& all, const Shares& shares, u32 worker,
                                          Act act) {
  for (MlaWalk walk(all, shares, worker);;) {
    const SequenceChunk chunk(walk.sequences(all.cost), walk.first, walk.base);
    const u32 begin = cut_token<kGranule>(walk.from, chunk.zero, chunk.length);
    const u32 end = cut_token<kGranule>(walk.to, chunk.zero, chunk.length);
    const u32 own = walk.first + lane_id();
    const bool is_mine =
        chunk.length == 0 ? walk.from <= chunk.start && chunk.start < walk.to : begin < end;
    const u64 left = __builtin_amdgcn_ballot_w64(is_mine && own >= walk.next && own < walk.count);
    if (left == 0) {
      if (!walk.advance(chunk.next)) return;
      continue;
    }
    const u32 at = static_cast<u32>(__builtin_ctzll(left));
    const auto of = [at](u32 all_lanes) { return readlane(all_lanes, at); };
    const u32 sequence = walk.first + at;
    walk.next = sequence + 1;
    walk.is_last = walk.to <= of(chunk.zero + chunk.length) ? 1 : 0;
    const LaneSpill<MlaWalk> spilled(walk);
    act(KvSplit{sequence, of(chunk.zero), of(begin), of(end), of(chunk.length), of(chunk.entry)});
    walk = spilled.load();
    if (walk.is_last != 0) return;  // what comes next begins behind this worker's share
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

// 64 sequences of such queries, one per lane. A sequence is an item for each kColumns of its
// columns (a query's head), and each item costs the sequence's tokens and a FixedOverhead.
template <u32 kColumns>
struct ItemChunk {
  u32 row, queries, items;
  u32 length, entry;
  u32 start;  // of the first item
  u32 next;   // where the sequence after these starts; the same in all lanes

  __device__ ItemChunk(const Sequences& all, const Queries& given, u32 first, u32 base) {
    const u32 b = first + lane_id();
    const u32 at = b < all.count ? b : all.count - 1;
    row = given.bound(at);
    u32 end = given.bound(at + 1);
    entry = static_cast<u32>(all.bounds[at]);
    u32 last = static_cast<u32>(all.lens == nullptr ? all.bounds[at + 1] : all.lens[at]);
    force_vgpr(row), force_vgpr(end), force_vgpr(entry),
        force_vgpr(last);  // all are loaded before one is waited for
    length = all.lens == nullptr ? (last - entry) << all.page_shift : last;
    queries = b < all.count && row < end ? end - row : 0;
    items = (queries * given.heads + kColumns - 1) / kColumns;
    const u32 size = items * extent(all), sum = inclusive_scan<false>(size);
    start = base + sum - size;
    next = base + readlane(sum, kWaveSize - 1);
  }
  // From the start of an item to the start of the next.
  __device__ u32 extent(const Sequences& all) const { return length + all.cost.all(); }
  // The items of all lanes.
  __device__ u32 total() const { return readlane(inclusive_scan<false>(items), kWaveSize - 1); }
};

// All items, and their cost; `chunk` has the first 64 sequences.
template <u32 kColumns>
struct ItemTotals {
  u32 items, cost;

  __device__ ItemTotals(const Sequences& all, const Queries& queries,
                        const ItemChunk<kColumns>& chunk)
      : items(chunk.total()), cost(chunk.next) {
    for (u32 first = kWaveSize; first < all.count; first += kWaveSize) {
      const ItemChunk<kColumns> more(all, queries, first, cost);
      items += more.total();
      cost = more.next;
    }
  }
};

// The columns from `base` on of a sequence whose queries begin at row `row`.
struct MlaItem {
  u32 row, queries, columns, base;

  template <u32 kColumns>
  __device__ u32 last() const {
    return (base + kColumns < columns ? base + kColumns : columns) - 1;
  }
  // Tokens at the sequence's end that this column's query does not see.
  __device__ u32 unseen(u32 column, u32 heads, bool is_causal) const {
    return is_causal && queries > 1 ? queries - 1 - column / heads : 0;
  }
};

// act(part, item) for each part of an item that `worker` has, cut at kGranule tokens; the same in
// all lanes. `chunk` has the first 64 sequences; unless kKeeps it is read again after each part,
// because `act` wants all registers.
template <u32 kGranule, u32 kColumns, bool kKeeps, class Act>
__device__ inline void each_item(const Sequences& all, const Queries& queries, const Shares& shares,
                                 u32 worker, ItemChunk<kColumns> chunk, Act act) {
  for (MlaWalk walk(all, shares, worker, queries.bounds, queries.heads, queries.rows);;) {
    const u32 own = walk.first + lane_id(), size = chunk.items * chunk.extent(all);
    const u64 left = __builtin_amdgcn_ballot_w64(
        size != 0 && own >= walk.next && chunk.start < walk.to && walk.from < chunk.start + size);
    if (left == 0) {
      if (!walk.advance(chunk.next)) return;
    } else {
      const u32 at = static_cast<u32>(__builtin_ctzll(left));
      const auto of = [at](u32 all_lanes) { return readlane(all_lanes, at); };
      const u32 sequence = walk.first + at, start = of(chunk.start), length = of(chunk.length);
      const u32 extent = length + all.cost.all(), count = of(chunk.queries);
      u32 number = sequence != walk.next ? 0 : walk.item;
      // Items of other workers; a share seldom begins behind a sequence's first item.
      const u32 before = start + extent <= walk.from ? (walk.from - start) / extent : 0;
      if (number < before) number = before;
      const u32 item_start = start + number * extent, zero = item_start + all.cost.before;
      const u32 begin = cut_token<kGranule>(walk.from, zero, length);
      const u32 end = cut_token<kGranule>(walk.to, zero, length);
      const bool is_mine =
          length == 0 ? walk.from <= item_start && item_start < walk.to : begin < end;
      const MlaItem item = {of(chunk.row), count, count * walk.heads, number * kColumns};
      const bool has_next = item.base + kColumns < item.columns;
      walk.next = has_next ? sequence : sequence + 1;
      walk.item = has_next ? number + 1 : 0;
      walk.is_last = walk.to <= zero + length ? 1 : 0;
      const KvSplit part = {sequence, zero, begin, end, length, of(chunk.entry)};
      if constexpr (kKeeps) {
        if (is_mine) act(part, item);
      } else if (is_mine) {
        const LaneSpill<MlaWalk> spilled(walk);
        act(part, item);
        walk = spilled.load();
      }
      if (walk.is_last != 0) return;  // what comes next begins behind this worker's share
      if (kKeeps || !is_mine) continue;
    }
    const Queries here = {walk.query_bounds, walk.heads, walk.rows};
    chunk = ItemChunk<kColumns>(walk.sequences(all.cost), here, walk.first, walk.base);
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
