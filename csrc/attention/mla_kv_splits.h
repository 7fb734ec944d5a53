// Iterates over the KV splits of a worker (work_partition.h), and finds their partials.
#pragma once

#include "attention/lane_spill.h"
#include "attention/mla_kv_cache.h"
#include "attention/mla_partials.h"
#include "attention/work_partition.h"
#include "rfops/chip/arch.h"

namespace rfops {

// Returns the worker of workgroup `id` of `groups`, of `active` workers for `batch` sequences, or
// kNoWorker. Workers of a sequence are neighbours on one XCD, because partials then stay in its L2.
// A few short sequences get an XCD each, unless more than half of its CUs would read at once.
constexpr u32 kNoWorker = ~0u;
constexpr u32 worker_of(u32 id, u32 active, u32 batch, u32 groups) {
  u32 xcds = kXcds;
#pragma unroll
  for (u32 half = kXcds / 2; half > 0; half /= 2) {
    if (batch <= half && 2 * active * kXcds <= half * groups) xcds = half;
  }
  const u32 xcd = id % kXcds, rank = id / kXcds, per_xcd = active / xcds, remainder = active % xcds;
  if (xcd >= xcds || rank >= per_xcd + (xcd < remainder ? 1 : 0)) return kNoWorker;
  return xcd * per_xcd + (xcd < remainder ? xcd : remainder) + rank;
}

namespace details {

// Returns whether workers and workgroups correspond one to one; for at most 64 workers.
constexpr bool is_bijective(u32 active, u32 batch, u32 groups) {
  u64 workers_seen = 0;
  for (u32 id = 0; id < groups; ++id) {
    const u32 worker = worker_of(id, active, batch, groups);
    if (worker == kNoWorker) continue;
    if (worker >= active || (workers_seen >> worker & 1) != 0) return false;
    workers_seen |= u64{1} << worker;
  }
  return workers_seen == (u64{2} << (active - 1)) - 1;
}
static_assert(is_bijective(17, 1, 256) && is_bijective(34, 2, 256) && is_bijective(64, 4, 304) &&
                  is_bijective(64, 4, 64) && is_bijective(51, 3, 256) && is_bijective(7, 1, 7) &&
                  is_bijective(1, 1, 1) && is_bijective(40, 9, 40),
              "each worker is one workgroup");

}  // namespace details

// Returns whether each of the first 64 sequences begins about where the first of its `splits`
// workers does: lengths are equal, or nearly. Ranges that are one longer than others come first;
// those of equal lengths are at most a quarter of the workers ahead.
template <u32 kGranule>
__device__ inline bool has_own_workers(const SequenceChunk& chunk, u32 batch,
                                       const WorkPartition& partition, u32 splits) {
  const u32 seq = lane_id(), begin = partition.begin(seq * splits), quarter = partition.active / 4;
  const u32 max_shift = partition.remainder < quarter ? partition.remainder : quarter;
  const bool is_near = chunk.start <= begin + kGranule && begin <= chunk.zero + max_shift;
  return __builtin_amdgcn_ballot_w64(seq < batch && !is_near) == 0;
}

// Returns how many of at most `max_workers` workers each sequence can have, at least one.
__device__ inline u32 max_splits(u32 max_workers, u32 batch) {
  const u32 quotient = div_u16(max_workers, batch);
  return quotient > 1 ? quotient : 1;
}

// Partitions `total` over as many workers as each sequence can have equally many of, at most
// `max_workers`, or over `otherwise` where lengths differ, because a worker would then have parts
// of two sequences all the same, and the other workers nothing.
template <u32 kGranule>
__device__ inline WorkPartition partition_by_lengths(const SequenceChunk& chunk, u32 batch,
                                                     u32 total, u32 workers, u32 max_workers,
                                                     u32 otherwise) {
  const u32 splits = max_splits(max_workers, batch);
  const WorkPartition partition(total, workers, splits * batch);
  return has_own_workers<kGranule>(chunk, batch, partition, splits)
             ? partition
             : WorkPartition(total, workers, otherwise);
}

// Makes `tokens` what a sequence costs beside its own, also of `chunk`, the first 64.
__device__ inline void set_cost(SequenceTable& seqs, SequenceChunk& chunk, u32 tokens) {
  const u32 batch = seqs.count, more = tokens - seqs.cost.leading;
  seqs.cost.leading = tokens;
  if (lane_id() < batch) chunk.start += more * lane_id();
  chunk.zero = chunk.start + tokens;
  chunk.next += more * (batch < kWaveSize ? batch : kWaveSize);
}

// Ranges of workers that each have a part of one sequence alone: a sequence then costs a range
// beside its tokens, and no range has the end of one and the begin of the next.
struct SingleParts {
  u32 range;        // tokens, or 0 where ranges are longer than a second part takes
  bool is_limited;  // ranges are longer so that no sequence has more than kMaxParts parts

  // Of at most `workers` ranges, of kMinRange to kMaxRange tokens. `tokens` is without what
  // sequences cost; 64 sequences are looked at. A tree of parts takes more time than ranges up to
  // max_flat_range do.
  template <u32 kMinRange, u32 kMaxRange, u32 kMaxParts>
  __device__ static SingleParts make(const SequenceChunk& chunk, u32 batch, u32 tokens, u32 workers,
                                     u32 max_flat_range) {
    u32 range = kMinRange;
    if (tokens > (workers - batch) * kMinRange || batch >= workers) {
      if (batch >= workers || tokens > (workers - batch) * kMaxRange) return {0, false};
      range = div_u16(tokens + workers - batch - 1, workers - batch);
    }
    if (__builtin_amdgcn_ballot_w64(chunk.length > range * kMaxParts) == 0) return {range, false};
    const u32 longest = static_cast<u32>(max_of_wave(static_cast<i32>(chunk.length)));
    const u32 long_range = longest / (kMaxParts - 1) + 1;  // for one less, as one begins anywhere
    return long_range > max_flat_range ? SingleParts{range, false} : SingleParts{long_range, true};
  }
  // Partitions `tokens` over at most `workers`, and makes a range what a sequence costs.
  __device__ WorkPartition partition(SequenceTable& seqs, SequenceChunk& chunk, u32 tokens,
                                     u32 workers) const {
    set_cost(seqs, chunk, range);
    // None is shorter: then it might be within a granule, and have no part of its sequence.
    const u32 ranges = div_u16(tokens + range * seqs.count + range - 1, range);
    return WorkPartition(ranges * range, workers, ranges);
  }
};

// Returns whether the first 64 sequences, and all on average, have about the tokens of the first.
template <u32 kCut>
__device__ inline bool are_alike(const SequenceChunk& chunk, u32 batch, u32 tokens) {
  constexpr u32 kMost = kCut / 4;
  const u32 first = readlane(chunk.length, 0);
  if (batch > kWaveSize && tokens - batch * first + batch * kMost > 2 * batch * kMost) return false;
  const bool differs = chunk.length - first + kMost > 2 * kMost;
  return __builtin_amdgcn_ballot_w64(lane_id() < batch && differs) == 0;
}

// Ranges of workers, and the tokens of which cuts within a sequence are multiples.
struct GranularPartition : WorkPartition {
  u32 granule;
};

// Partitions over as many workers as have kMinTokens each, at least one per sequence; if kEven,
// each sequence of equal lengths has as many. Where lengths differ all variants have the same
// ranges, except that none is below kCut, with cuts at multiples of kFineCut: a second part of a
// worker takes as long as kPartCost tokens more, so a sequence costs that; or a range, where that
// is shorter (SingleParts). Estimated, MI355X, 37 sequences of up to 1,803 tokens in FP8, 32 heads:
// with 64 tokens 20.8 us, with kPartCost 16.8 us.
template <u32 kCut, u32 kMinTokens, bool kEven, u32 kTile, u32 kMaxParts>
__device__ inline GranularPartition partition_for_flow(SequenceTable& seqs, SequenceChunk& chunk,
                                                       u32 total, u32 workers) {
  constexpr u32 kFineCut = 32, kPartCost = 2 * kTile;
  constexpr u32 kMaxFlatRange = 2 * kCut < kTile ? kTile : 2 * kCut;
  const u32 batch = seqs.count, tokens = total - kCut * batch, fit = tokens / kMinTokens;
  const u32 max_workers = fit < workers ? fit : workers;
  const u32 splits = kEven ? max_splits(max_workers, batch) : 1;
  const u32 requested = kEven && batch <= workers ? splits * batch : fit < batch ? batch : fit;
  const WorkPartition equal(total, workers, requested);
  if (kEven && batch > workers) return {equal, kCut};
  const bool is_equal = kEven ? has_own_workers<kCut>(chunk, batch, equal, splits)
                              : are_alike<kCut>(chunk, batch, tokens);
  const u32 flat_workers = kMaxParts * batch;
  const bool has_tree = kMinTokens == kCut && equal.active > flat_workers &&
                        tokens <= (flat_workers - batch) * kMaxFlatRange &&
                        u64{tokens} * equal.active > u64{total} * flat_workers;
  if (is_equal && !has_tree) return {equal, kCut};
  const auto single = SingleParts::make<kCut, kPartCost, kMaxParts>(
      chunk, batch, tokens, workers, is_equal ? kMaxFlatRange : kTile);
  if (is_equal && !single.is_limited) return {equal, kCut};
  const u32 granule = is_equal ? kCut : kFineCut;
  if (single.range != 0) return {single.partition(seqs, chunk, tokens, workers), granule};
  set_cost(seqs, chunk, kPartCost);
  return {WorkPartition(tokens + kPartCost * batch, workers, workers), granule};
}

// Tokens `begin` to `end` of a sequence; `zero` is the position of its first token in the work.
struct KvSplit {
  u32 sequence, zero, begin, end, length;
  u32 entry;  // where its pages begin, in a list

  // Returns the number of tiles of kTokens.
  template <u32 kTokens>
  __device__ u32 tiles() const {
    return (end - begin + kTokens - 1) / kTokens;
  }
  // Returns the end of the tokens before the last `hidden` ones of the sequence.
  __device__ i32 kv_end(u32 hidden) const {
    return static_cast<i32>(length) - static_cast<i32>(hidden);
  }
  // Returns the first token that is masked for some query row; all rows see those before `kv_end`.
  __device__ i32 masked_from(i32 kv_end) const {
    const i32 max_end = static_cast<i32>(end);
    return max_end < kv_end ? max_end : kv_end;
  }
  // Returns the pages of the sequence: a row of a table of `width` columns, or a part of a list.
  __device__ const i32* pages(const i32* kv_indices, u32 width) const {
    return kv_indices + (width != 0 ? u64{sequence} * width : entry);
  }
  __device__ bool is_whole() const { return begin == 0 && end == length; }
  // Returns the split without tokens from `kv_end` on, but with at least one.
  __device__ KvSplit clipped_to(i32 kv_end) const {
    const i32 min_end = static_cast<i32>(begin) + 1, max_end = static_cast<i32>(end);
    KvSplit clipped = *this;
    if (begin < end && kv_end < max_end)
      clipped.end = static_cast<u32>(kv_end > min_end ? kv_end : min_end);
    return clipped;
  }
};

// Returns the split of lane `src_lane`, tokens `begin` to `end` of its sequence of a chunk that
// begins with sequence `chunk_begin`.
__device__ inline KvSplit split_of_lane(const SequenceChunk& chunk, u32 chunk_begin, u32 begin,
                                        u32 end, u32 src_lane) {
  const auto read_lane = [src_lane](u32 all_lanes) { return readlane(all_lanes, src_lane); };
  return {chunk_begin + src_lane, read_lane(chunk.zero),   read_lane(begin),
          read_lane(end),         read_lane(chunk.length), read_lane(chunk.entry)};
}

// Position of a worker in its range of the work; spilled while a split is computed.
struct PartitionWalk {
  GlobalPointer<const i32> bounds, lens, query_bounds;
  u32 count, page_shift, heads, rows;
  u32 range_begin, range_end;  // the share
  u32 chunk_begin, base;       // the chunk's first sequence, and where that starts
  u32 next, item;              // the sequence that is next, and which of its items
  u32 is_last;                 // the part is the last one of the share

  __device__ PartitionWalk(const SequenceTable& seqs, const WorkPartition& partition, u32 worker,
                           const i32* q_bounds = nullptr, u32 num_heads = 0, u32 num_rows = 0)
      : bounds(seqs.bounds),
        lens(seqs.lens),
        query_bounds(q_bounds),
        count(seqs.count),
        page_shift(seqs.page_shift),
        heads(num_heads),
        rows(num_rows),
        range_begin(partition.begin(worker)),
        range_end(partition.begin(worker + 1)),
        chunk_begin(0),
        base(0),
        next(0),
        item(0),
        is_last(0) {}
  __device__ SequenceTable sequences(const FixedOverhead& cost) const {
    return {bounds, lens, count, page_shift, cost};
  }
  // Advances to the next 64 sequences, which begin at `start`. Returns false if the range ends
  // before.
  __device__ bool advance(u32 start) {
    chunk_begin += kWaveSize;
    base = start;
    return chunk_begin < count && base < range_end;
  }
};

// Calls fn(split) for each split of `worker`, cut at kGranule tokens, uniformly. The chunk is
// computed again after each call, because `fn` needs all registers.
template <u32 kGranule, class Fn>
__device__ inline void for_each_split(const SequenceTable& seqs, const WorkPartition& partition,
                                      u32 worker, Fn fn) {
  for (PartitionWalk walk(seqs, partition, worker);;) {
    const SequenceChunk chunk(walk.sequences(seqs.cost), walk.chunk_begin, walk.base);
    const u32 begin = cut_token(walk.range_begin, chunk.zero, chunk.length, kGranule);
    const u32 end = cut_token(walk.range_end, chunk.zero, chunk.length, kGranule);
    const u32 seq = walk.chunk_begin + lane_id();
    const bool is_mine = chunk.length == 0
                             ? walk.range_begin <= chunk.start && chunk.start < walk.range_end
                             : begin < end;
    const u64 pending =
        __builtin_amdgcn_ballot_w64(is_mine && seq >= walk.next && seq < walk.count);
    if (pending == 0) {
      if (!walk.advance(chunk.next)) return;
      continue;
    }
    const u32 src_lane = static_cast<u32>(__builtin_ctzll(pending));
    walk.next = walk.chunk_begin + src_lane + 1;
    walk.is_last = walk.range_end <= readlane(chunk.zero + chunk.length, src_lane) ? 1 : 0;
    const LaneSpill<PartitionWalk> spilled(walk);
    fn(split_of_lane(chunk, walk.chunk_begin, begin, end, src_lane));
    walk = spilled.load();
    if (walk.is_last != 0) return;  // what comes next begins behind this worker's share
  }
}

// Bounds of the queries of each sequence.
struct Queries {
  const i32* bounds;  // [count + 1]
  u32 heads, rows;    // q has so many rows: those that bounds name beyond do not exist

  __device__ u32 bound(u32 seq) const {
    const u32 row = static_cast<u32>(bounds[seq]);
    return row < rows ? row : rows;
  }
};

// 64 sequences with their queries, one per lane. A sequence has an item for every kColumns query
// rows; an item costs the tokens of the sequence and a FixedOverhead.
template <u32 kColumns>
struct ItemChunk {
  u32 row, queries, items;
  u32 length, entry;
  u32 start;  // of the first item
  u32 next;   // where the sequence after these starts; the same in all lanes

  __device__ ItemChunk(const SequenceTable& seqs, const Queries& query_table, u32 seq_begin,
                       u32 base) {
    const u32 b = seq_begin + lane_id();
    const u32 seq = b < seqs.count ? b : seqs.count - 1;
    row = query_table.bound(seq);
    u32 end = query_table.bound(seq + 1);
    entry = static_cast<u32>(seqs.bounds[seq]);
    u32 kv_bound = static_cast<u32>(seqs.lens == nullptr ? seqs.bounds[seq + 1] : seqs.lens[seq]);
    force_vgpr(row), force_vgpr(end), force_vgpr(entry),
        force_vgpr(kv_bound);  // all are loaded before one is waited for
    length = seqs.lens == nullptr ? (kv_bound - entry) << seqs.page_shift : kv_bound;
    queries = b < seqs.count && row < end ? end - row : 0;
    items = (queries * query_table.heads + kColumns - 1) / kColumns;
    const u32 size = items * extent(seqs), sum = inclusive_scan<false>(size);
    start = base + sum - size;
    next = base + readlane(sum, kWaveSize - 1);
  }
  // Returns the distance between the starts of two items.
  __device__ u32 extent(const SequenceTable& seqs) const { return length + seqs.cost.tokens(); }
  // Returns the number of items of all lanes.
  __device__ u32 total() const { return readlane(inclusive_scan<false>(items), kWaveSize - 1); }
};

// Number and cost of all items; `chunk` has the first 64 sequences.
template <u32 kColumns>
struct ItemTotals {
  u32 items, cost;

  __device__ ItemTotals(const SequenceTable& seqs, const Queries& queries,
                        const ItemChunk<kColumns>& chunk)
      : items(chunk.total()), cost(chunk.next) {
    for (u32 seq_begin = kWaveSize; seq_begin < seqs.count; seq_begin += kWaveSize) {
      const ItemChunk<kColumns> next_chunk(seqs, queries, seq_begin, cost);
      items += next_chunk.total();
      cost = next_chunk.next;
    }
  }
};

// Query rows from `base` on of a sequence whose queries begin at row `row`.
struct MlaItem {
  u32 row, queries, columns, base;

  template <u32 kColumns>
  __device__ u32 last_row() const {
    return (base + kColumns < columns ? base + kColumns : columns) - 1;
  }
  // Returns the number of tokens at the end that are masked for this query row.
  __device__ u32 hidden_tokens(u32 column, u32 heads, bool is_causal) const {
    return is_causal && queries > 1 ? queries - 1 - column / heads : 0;
  }
};

// Calls fn(split, item) for each split of an item of `worker`, cut at kGranule tokens, uniformly.
// `chunk` has the first 64 sequences; unless kKeepsChunk, it is computed again after each call,
// because `fn` needs all registers.
template <u32 kGranule, u32 kColumns, bool kKeepsChunk, class Fn>
__device__ inline void for_each_item(const SequenceTable& seqs, const Queries& queries,
                                     const WorkPartition& partition, u32 worker,
                                     ItemChunk<kColumns> chunk, Fn fn) {
  for (PartitionWalk walk(seqs, partition, worker, queries.bounds, queries.heads, queries.rows);;) {
    const u32 seq = walk.chunk_begin + lane_id(), size = chunk.items * chunk.extent(seqs);
    const u64 pending =
        __builtin_amdgcn_ballot_w64(size != 0 && seq >= walk.next && chunk.start < walk.range_end &&
                                    walk.range_begin < chunk.start + size);
    if (pending == 0) {
      if (!walk.advance(chunk.next)) return;
    } else {
      const u32 src_lane = static_cast<u32>(__builtin_ctzll(pending));
      const auto read_lane = [src_lane](u32 all_lanes) { return readlane(all_lanes, src_lane); };
      const u32 sequence = walk.chunk_begin + src_lane, start = read_lane(chunk.start),
                length = read_lane(chunk.length);
      const u32 extent = length + seqs.cost.tokens(), count = read_lane(chunk.queries);
      u32 item_idx = sequence != walk.next ? 0 : walk.item;
      // Skips items of other workers; a range rarely begins after a sequence's first item.
      const u32 num_skipped =
          start + extent <= walk.range_begin ? (walk.range_begin - start) / extent : 0;
      if (item_idx < num_skipped) item_idx = num_skipped;
      const u32 item_start = start + item_idx * extent, zero = item_start + seqs.cost.leading;
      const u32 begin = cut_token(walk.range_begin, zero, length, kGranule);
      const u32 end = cut_token(walk.range_end, zero, length, kGranule);
      const bool is_mine =
          length == 0 ? walk.range_begin <= item_start && item_start < walk.range_end : begin < end;
      const MlaItem item = {read_lane(chunk.row), count, count * walk.heads, item_idx * kColumns};
      const bool has_next = item.base + kColumns < item.columns;
      walk.next = has_next ? sequence : sequence + 1;
      walk.item = has_next ? item_idx + 1 : 0;
      walk.is_last = walk.range_end <= zero + length ? 1 : 0;
      const KvSplit split = {sequence, zero, begin, end, length, read_lane(chunk.entry)};
      if constexpr (kKeepsChunk) {
        if (is_mine) fn(split, item);
      } else if (is_mine) {
        const LaneSpill<PartitionWalk> spilled(walk);
        fn(split, item);
        walk = spilled.load();
      }
      if (walk.is_last != 0) return;  // what comes next begins behind this worker's share
      if (kKeepsChunk || !is_mine) continue;
    }
    const Queries query_table = {walk.query_bounds, walk.heads, walk.rows};
    chunk =
        ItemChunk<kColumns>(walk.sequences(seqs.cost), query_table, walk.chunk_begin, walk.base);
  }
}

// Partials of a sequence: this worker has number `split_idx` of `count`.
struct SplitPartials {
  u32 worker_begin, split_idx, count;

  __device__ static SplitPartials make(const KvSplit& split, const WorkPartition& partition,
                                       u32 granule, u32 group, u32 worker, u32 workers) {
    const u32 worker_begin = partition.owner(split.zero);
    const u32 worker_last = partition.owner(split.zero + ((split.length - 1) & (0 - granule)));
    SplitPartials partials = {readfirstlane(group * workers + worker_begin),
                              readfirstlane(worker - worker_begin),
                              readfirstlane(worker_last - worker_begin + 1)};
    force_sgpr(partials.worker_begin), force_sgpr(partials.split_idx),
        force_sgpr(partials.count);  // here, not where wanted
    return partials;
  }
  __device__ u32 operator()(u32 i) const { return (worker_begin + i) * 2 + (i == 0 ? 1 : 0); }
};

}  // namespace rfops
