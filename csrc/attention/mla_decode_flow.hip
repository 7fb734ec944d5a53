// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// MLA decode for up to 16 query rows (a head of a query each) per workgroup: bound by reading the
// cache, which is read once. Q and P are bf16 for every cache type; sums are fp32.
//
// Layout. work_partition.h partitions the tokens of all sequences over workgroups. Each wave takes
// every fourth tile of its workgroup's split (mla_kv_cache.h) and keeps its own row max, row sum
// and transposed output; there is no barrier until the split is nearly done. Then the four waves
// combine in LDS, in wave order (mla_combine_waves.h). If the split is the whole sequence, the
// result is the output. Otherwise it is stored in `partials`: a tree combines many partials
// (mla_combine_tree.h), and of few each workgroup combines an output slice (mla_combine_all.h).
//
// Guarantees: deterministic; the order of sums depends only on lengths, workers and config.
// Requires: rows of q and kv 16-byte aligned; a page is a power of two of tokens.
#include "attention/mla_combine_all.h"
#include "attention/mla_combine_tree.h"
#include "attention/mla_combine_waves.h"
#include "attention/mla_kv_lds_dma.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_kv_staged.h"

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8;
constexpr bool kQueryFp8 = RFOPS_Q_FP8;
constexpr bool kPaged = RFOPS_PAGED;     // pages of more than one token
constexpr bool kRope = RFOPS_ROPE;       // rotate keys by their position in the sequence
constexpr bool kRagged = RFOPS_RAGGED;   // sequences have some number of queries each
constexpr bool kEven = RFOPS_EVEN;       // sequences of equal lengths have equally many workers
constexpr u32 kMinTokens = RFOPS_LEAST;  // tokens of a worker at least
constexpr u32 kMaxSpins = RFOPS_TURNS;   // that a part waits for others, at most
// Granule of split boundaries in tokens, also the fixed overhead per sequence, where lengths are
// equal: equal sequences with equally many workers are then cut into equal splits.
constexpr u32 kCut = kMinTokens < 64 ? kMinTokens : 64;
static_assert(kCut % 32 == 0);
static_assert(!(kFp8 && kRope), "of FP8 the two halves of a pair are in two lanes");

using Row = MlaRow<kFp8>;
#if defined(__gfx950__)
using Tiles = DirectTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesPerPass = 4;
#else
using Tiles = StagedTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesPerPass = 2;
#endif
constexpr u32 kWaves = kMlaWaves, kThreads = kWaves * kWaveSize;
constexpr u32 kTile = kWaves * Row::kTokens;                          // tokens of a step
constexpr bool kSharesQuery = Tiles::kPrefetchesPages && !kQueryFp8;  // waves do, by LDS

constexpr u32 kLds = kWaves * Tiles::kLds;
static_assert(kLds <= kLdsBytes && kSlicesPerPass * kMlaSliceBytes <= Tiles::kLds);

struct Args {
  const void* q;
  u32 columns, unseen;
  f32 scale;
};

// Scales scores to powers of two and masks tokens from `kv_end` on. Returns a bit per masked token
// that has a score which is not finite.
__device__ inline u32 scale_scores(F32x4 (&s)[Row::kHalves], f32 scale, u32 token_begin, i32 kv_end,
                                   bool is_last) {
  const u32 g = lane_id() / 16;
  u32 not_finite = 0;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) {
    s[h] *= scale;
    if (!is_last) continue;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      const i32 token = static_cast<i32>(token_begin + h * 16 + 4 * g + r);
      const bool is_visible = token < kv_end;
      if (!is_visible && !is_finite(s[h][r])) not_finite |= u32{1} << (h * 4 + r);
      s[h][r] = is_visible ? s[h][r] : -__builtin_inff();
    }
  }
  if (!is_last) return 0;
  const auto token_of = [](u32 i) { return i / 4 * 16 + i % 4; };
  return static_cast<u32>(tokens_of_lanes<Row::kHalves * 4, 16>(not_finite, token_of));
}

// Returns the maximum of a tile's scores for the lane's query row. Inlined first, as it is
// optimised with its caller.
__device__ __attribute__((always_inline)) inline f32 max_score(const F32x4 (&s)[Row::kHalves]) {
  f32 row_max = kMinScore;
#pragma unroll
  for (const F32x4& four : s) {
#pragma unroll
    for (u32 r = 0; r < 4; ++r) row_max = max_of(row_max, four[r]);
  }
  return max_over_row_lanes(row_max);
}

// Returns P = exp2(S - row_max) of four tokens, and adds it to `sum`.
__device__ __attribute__((always_inline)) inline Bf16x4 exp_four(F32x4 s, f32 row_max, f32& sum) {
  F32x4 weight;
#pragma unroll
  for (u32 r = 0; r < 4; ++r) {
    weight[r] = __builtin_amdgcn_exp2f(s[r] - row_max);
    sum += weight[r];
  }
  return __builtin_convertvector(weight, Bf16x4);
}

// Turns the scores of a tile into P, updates the statistics, and rescales the output if row_max
// grew.
__device__ inline void exp_scores(const F32x4 (&s)[Row::kHalves], Bf16x4 (&p)[Row::kHalves],
                                  WaveState& state) {
  const f32 row_max = max_of(max_score(s), state.row_max);
  const bool is_first = state.row_max == kMinScore;  // nothing to be scaled
  const f32 rescale_factor = __builtin_amdgcn_exp2f(state.row_max - row_max);
  state.row_max = row_max;
  state.sum *= rescale_factor;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) p[h] = exp_four(s[h], row_max, state.sum);
  if (__builtin_amdgcn_ballot_w64(rescale_factor != 1.0f && !is_first) != 0) {
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) state.o[d] *= rescale_factor;
  }
}

// The same for the first tiles of all waves: each wave computes the P of its own tile, and all read
// P and the statistics through LDS. Calls fn() when all tiles are in LDS.
template <class Sharing, class Fn>
__device__ inline void exp_scores_shared(const F32x4 (&s)[Row::kHalves],
                                         Bf16x4 (&p)[kWaves][Row::kHalves], SoftmaxStats& stats,
                                         LdsBytes* lds, Fn fn) {
  const u32 lane = lane_id_in_vgpr(), wave = wave_id(), column = lane % kQRowsPerTile;
  const auto weights_of = [&](u32 w) {
    LdsBytes* const ptr = lds + w * Sharing::kLds + Sharing::kWeights;
    return reinterpret_cast<RFOPS_LDS Bf16x4*>(ptr) + lane * Row::kHalves;
  };
  const auto totals_of = [&](u32 w) {
    return reinterpret_cast<RFOPS_LDS f32*>(lds + w * Sharing::kLds + Sharing::kTotals);
  };
  const f32 row_max = max_score(s);
  if (lane < kQRowsPerTile) totals_of(wave)[column] = row_max;
  workgroup_barrier();
  fn();
  stats = {kMinScore, 0.0f};
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) stats.row_max = max_of(stats.row_max, totals_of(w)[column]);
  f32 sum = 0.0f;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) weights_of(wave)[h] = exp_four(s[h], stats.row_max, sum);
  sum = sum_over_row_lanes(sum);
  if (lane < kQRowsPerTile) totals_of(wave)[kQRowsPerTile + column] = sum;
  workgroup_barrier();
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) {
    stats.sum += totals_of(w)[kQRowsPerTile + column];
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) p[w][h] = weights_of(w)[h];
  }
}

// Returns the reader of this wave's tiles of a split.
__device__ inline Tiles tiles_of(LdsBytes* lds, const KvPageTable<kPaged>& tokens,
                                 const KvSplit& split) {
  const u32 wave = wave_id();
  return Tiles(lds + wave * Tiles::kLds, tokens, split.begin + wave * Row::kTokens,
               kWaves * Row::kTokens);
}

// Issues the first loads of a split: page entries, then q.
template <class Reader>
__device__ inline void issue_split_loads(Reader& reader, const Args& args, u64 row) {
  if constexpr (Reader::kPrefetchesPages) reader.issue_page_loads();
  if constexpr (kSharesQuery) reader.issue_q_loads(args.q, row);
}

// Issues the first tile, if the wave has one, and reads q; fn() runs in between.
template <class Reader, class Fn>
__device__ inline void begin_split(Reader& reader, MlaQuery& q, LdsBytes* lds, const Args& args,
                                   u64 row, bool has_tile, bool is_issued, Fn fn) {
  if (!is_issued) issue_split_loads(reader, args, row);
  if constexpr (Reader::kPrefetchesPages) reader.template wait_pages<kSharesQuery>();
  if (has_tile) reader.prime();
  fn();
  if constexpr (kSharesQuery) {
    Reader::wait_query(has_tile);
    s_barrier();
    Reader::read_query(lds, q);
  } else {
    load_query<Row, kQueryFp8>(q, args.q, row);
  }
}

// Processes this wave's tiles of a split. `is_issued`: issue_split_loads was called. early() runs
// while the first tile is in flight, late() before the last tile.
template <class Early, class Late>
__device__ inline void process_wave_tiles(WaveState& state, LdsBytes* lds, const Args& args,
                                          const KvPageTable<kPaged>& tokens, const KvSplit& split,
                                          u64 row, i32 kv_end, bool is_issued, Early early,
                                          Late late) {
  const u32 tiles = split.tiles<Row::kTokens>();
  const u32 count = (tiles + kWaves - 1 - wave_id()) / kWaves;
  if (!Tiles::kSharesValues && count == 0) return state.begin(), late();
  Tiles reader = tiles_of(lds, tokens, split);
  MlaQuery q;
  begin_split(reader, q, lds, args, row, true, is_issued, [&] { state.begin(), early(); });
  if constexpr (kSharesQuery) s_barrier();  // the second tile comes where it was
  const i32 masked = split.masked_from(split.kv_end(args.unseen));
  const u32 last_round = (tiles + kWaves - 1) / kWaves - 1;
  const auto process_tile = [&](u32 i, auto has_next) {
    F32x4 s[Row::kHalves];
    Bf16x4 p[Row::kHalves];
    reader.template scores<has_next()>(i, q, s);
    const u32 token_begin = reader.first_token(i);
    const bool is_last = static_cast<i32>(token_begin + Row::kTokens) > masked;
    const u32 masked_tokens = scale_scores(s, args.scale, token_begin, kv_end, is_last);
    if (__builtin_expect(masked_tokens != 0, 0)) reader.mask_values(masked_tokens);
    exp_scores(s, p, state);
    reader.accumulate_pv(p, state.o);
  };
  const u32 with_next = Tiles::kKnowsLast ? count - 1 : count;
  for (u32 i = 0; i < with_next; ++i) {
    // The waves start their last tiles together: a late wave would load alone at the end.
    if (i + 2 == last_round) s_barrier();
    process_tile(i, [] { return true; });
  }
  late();
  if constexpr (Tiles::kKnowsLast) process_tile(count - 1, [] { return false; });
}

// Processes a split of at most one tile per wave. The waves exchange P, 1 KiB per wave, instead of
// partial outputs, 24 KiB: each has P of all tokens and multiplies a quarter of the columns.
template <class Sharing, class Fn, class Leave>
__device__ inline void process_single_tiles(LdsBytes* lds, const Args& args,
                                            const KvPageTable<kPaged>& tokens, const KvSplit& split,
                                            u64 row, i32 kv_end, bool is_issued, Fn meanwhile,
                                            Leave leave) {
  const u32 tiles = split.tiles<Row::kTokens>(), wave = wave_id();
  Sharing reader = tiles_of(lds, tokens, split);
  MlaQuery q;
  begin_split(reader, q, lds, args, row, wave < tiles, is_issued, meanwhile);
  F32x4 s[Row::kHalves];
  if (wave < tiles) {
    reader.template scores<false, false>(0, q, s);
    const u32 token_begin = reader.first_token(0);
    const bool is_last =
        static_cast<i32>(token_begin + Row::kTokens) > split.masked_from(split.kv_end(args.unseen));
    const u32 masked_tokens = scale_scores(s, args.scale, token_begin, kv_end, is_last);
    if (__builtin_expect(masked_tokens != 0, 0)) reader.make_finite(masked_tokens);
  } else {
#pragma unroll
    for (F32x4& four : s) four = F32x4{} - __builtin_inff();
  }
  Partial partial = {};
  Bf16x4 p[kWaves][Row::kHalves];
  typename Sharing::SharedValues values;
  exp_scores_shared<Sharing>(s, p, partial.stats, lds,
                             [&] { reader.read_shared(lds, tiles, values); });
  Sharing::add_shared(values, tiles, p, partial.quads);
  leave(partial);
}

// Processes a split; each wave calls leave(partial) with its quarter of the columns.
template <class Early, class Late, class Leave>
__device__ inline void process_split(LdsBytes* lds, const Args& args,
                                     const KvPageTable<kPaged>& tokens, const KvSplit& split,
                                     u64 row, i32 kv_end, bool is_issued, Early early, Late late,
                                     Leave leave) {
  const u32 tiles = split.tiles<Row::kTokens>();
  if (tiles == 0) return leave(Partial{{kMinScore, 0.0f}, {}});
  if constexpr (Tiles::kSharesValues) {
    if (tiles <= kWaves) {
      return process_single_tiles<Tiles>(
          lds, args, tokens, split, row, kv_end, is_issued, [&] { early(), late(); }, leave);
    }
  }
  WaveState state;
  process_wave_tiles(state, lds, args, tokens, split, row, kv_end, is_issued, early, late);
  combine_waves<Tiles, kSlicesPerPass>(state, lds, leave);
}

__device__ inline PartialStore partial_store(const MlaTarget& target, u32 wave, u32 lane) {
  return {target.partials, reinterpret_cast<u64*>(target.counts), target.num_partials, wave, lane};
}

// A wave's quarter of the output columns.
struct Result {
  const MlaTarget& target;
  u32 wave, lane;
  bf16* out = pointer_in_vgpr(target.out + lane % kQRowsPerTile * kMlaValue + wave * kMlaSlice);

  __device__ void store(u32 offset, F32x4 quad) const {
    if (lane % kQRowsPerTile < target.columns) MlaTarget::store(quad, out + offset);
  }
  __device__ void store_lse(const SoftmaxStats& stats) const {
    if (wave == 0 && lane < kQRowsPerTile) target.store_lse(lane, stats);
  }
};

// Stores a wave's quarter: the output if the split is the whole sequence, otherwise a partial.
__device__ inline void store_split(const Partial& partial, const MlaTarget& target,
                                   const KvSplit& split, const SplitPartials& partials) {
  const u32 lane = lane_id_in_vgpr(), wave = wave_id();
  if (!split.is_whole())
    return partial_store(target, wave, lane).store(partials(partials.split_idx), partial);
  const Result result = {target, wave, lane};
  result.store_lse(partial.stats);
  const f32 times = target.factor(partial.stats);
#pragma unroll
  for (u32 x = 0; x < 8; ++x) result.store(Tiles::quad_at(x, lane), partial.quads[x] * times);
}

// Combines a stored partial with the other partials of its sequence.
__device__ inline void combine_partials(const MlaTarget& target, SplitPartials partials,
                                        bool has_more) {
  const u32 lane = lane_id_in_vgpr(), wave = wave_id();
  const PartialStore store = partial_store(target, wave, lane);
  partials = {readfirstlane(partials.worker_begin), readfirstlane(partials.split_idx),
              readfirstlane(partials.count)};
  TreeNode node = {partials.split_idx, partials.count, 1, 0};
  if (CombineTree{store}.reduce_upward<CombineAll::kMaxSplits>(node, partials)) {
    const Result result = {target, wave, lane};
    const auto factor = [&](const SoftmaxStats& stats) { return target.factor(stats); };
    CombineAll{store}.combine<kMaxSpins>(
        node, has_more, partials, factor,
        [&](const SoftmaxStats& stats, u32 x, u32 src_lane, F32x4 quad) {
          if (x == 0 && src_lane == lane) result.store_lse(stats);
          result.store(Tiles::quad_at(x, src_lane), quad);
        });
  }
  // Otherwise the compiler sees a path to the next split with unfinished loads, and waits there for
  // those of a tile too.
  wait_vmcnt<0>();
}

// Values that all splits of a workgroup share.
struct Common {
  LdsBytes* lds;
  bf16* out;
  f32 *lse, *partials;
  u32* counts;
  WorkPartition partition;
  u32 granule, group, worker, workers, num_partials;
  f32 value_scale;
};

// Processes a split for query rows `base` to base + 15 of a sequence whose rows begin at
// `first_row`; the lane's row is `column`, for which tokens from `kv_end` on are masked. `computed`
// is the split without tokens that are masked for all rows.
__device__ inline void process_and_store(const Common& common, const Args& args,
                                         const KvPageTable<kPaged>& tokens, const KvSplit& split,
                                         const KvSplit& computed, u64 first_row, u32 base,
                                         u32 column, i32 kv_end, bool is_issued, bool has_more) {
  f32* const all_lse = pointer_in_vgpr(common.lse);  // no mask of it is kept
  const MlaTarget target = {common.out + (first_row + base) * kMlaValue,
                            all_lse == nullptr ? nullptr : all_lse + first_row + base,
                            common.partials,
                            common.counts,
                            args.columns - base,
                            common.num_partials,
                            common.value_scale};
  SplitPartials split_partials = {};
  u32 count_prefetched = 0;
  const auto find_partials = [&] {
    if (split.is_whole()) return;
    WorkPartition scalar_partition = common.partition;
    // Its divisions, for all parts.
    force_sgpr(scalar_partition.quotient), force_sgpr(scalar_partition.remainder);
    split_partials = SplitPartials::make(split, scalar_partition, common.granule, common.group,
                                         common.worker, common.workers);
    force_vgpr(split_partials.worker_begin), force_vgpr(split_partials.split_idx),
        force_vgpr(split_partials.count);
  };
  // Runs while the first tiles are in flight; gfx942 has no registers for that.
  const auto early = [&] {
    if constexpr (Tiles::kPrefetchesPages) find_partials();
  };
  const auto late = [&] {
    if constexpr (!Tiles::kPrefetchesPages) return find_partials();
    if (split.is_whole()) return;
    const u32 counted = split_partials.count <= CombineAll::kMaxSplits
                            ? 0
                            : CombineTree::first_sibling(split_partials.split_idx);
    count_prefetched =
        partial_store(target, wave_id(), lane_id()).prefetch_count(split_partials(counted));
  };
  const auto leave = [&](const Partial& partial) {
    force_vgpr(count_prefetched);  // behind the stores it would be waited for with them
    store_split(partial, target, split, split_partials);
  };
  process_split(common.lds, args, tokens, computed, first_row + column, kv_end, is_issued, early,
                late, leave);
  if (!split.is_whole()) combine_partials(target, split_partials, has_more);
  workgroup_barrier();  // LDS is the next part's
}

}  // namespace

// Grid: one workgroup per worker and 16 query rows, all workers of the first 16 rows first; if
// kRagged, one per worker.
extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mla_decode_flow(const i32* __restrict__ kv_indptr,  // [batch + 1], of a list
                    const i32* __restrict__ kv_lens,    // [batch], or null
                    u32 batch, u32 workers, u32 page_shift, u32 width,
                    const i32* __restrict__ kv_indices,  // of a list, or [batch, width]
                    const void* __restrict__ q,          // [batch * columns, 576]
                    const u8* __restrict__ kv,           // [pages, page, 576]
                    const f32* __restrict__ kv_scale,    // [1], or null
                    const f32* __restrict__ q_scale,     // [1], or null
                    bf16* __restrict__ out,              // [batch * columns, 512]
                    f32* __restrict__ lse,               // [batch * columns], or null
                    f32* __restrict__ partials,          // MlaTarget
                    u32* __restrict__ counts,            // likewise
                    const bf16* __restrict__ angles,     // [positions, 64]: cos, sin; with kRope
                    f32 sm_scale,
                    u32 columns,  // of a sequence; of kRagged the rows of q
                    u32 heads,
                    u32 unseen,                           // of kRagged: whether it is causal
                    const i32* __restrict__ qo_indptr) {  // [batch + 1]; with kRagged
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const u32 id = workgroup_id_x() % workers, group = workgroup_id_x() / workers, lane = lane_id();
  SequenceTable seqs = {kv_indptr, kv_lens, batch, page_shift, {kCut, 0}};
  // SGPRs are few, and these are used at the end or rarely.
  const auto pointers_to_vgprs = [&] {
    seqs.bounds = pointer_in_vgpr(seqs.bounds), seqs.lens = pointer_in_vgpr(seqs.lens);
    out = pointer_in_vgpr(out), lse = pointer_in_vgpr(lse), partials = pointer_in_vgpr(partials);
    counts = pointer_in_vgpr(counts);
  };
  const auto tokens_of = [&](const KvSplit& split) {
    return KvPageTable<kPaged>{kv, split.pages(kv_indices, width), split.end, page_shift, angles};
  };
  if constexpr (kRagged) {
    const Queries queries = {qo_indptr, heads, columns};
    const ItemChunk<kQRowsPerTile> chunk(seqs, queries, 0, 0);
    const ItemTotals<kQRowsPerTile> totals(seqs, queries, chunk);
    const u32 fit = (totals.cost - kCut * totals.items) / kMinTokens;
    const WorkPartition partition(totals.cost, workers, fit < totals.items ? totals.items : fit);
    const u32 worker = worker_of(id, partition.active, batch, workers);
    if (worker == kNoWorker) return;
    const MlaScales scales(sm_scale, kv_scale, q_scale);
    pointers_to_vgprs();
    const Common common = {lds,  out, lse,    partials, counts,      partition,
                           kCut, 0,   worker, workers,  workers * 2, scales.value};
    const u32 range_end = partition.begin(worker + 1);
    for_each_item<kCut, kQRowsPerTile, true>(
        seqs, queries, partition, worker, chunk, [&](const KvSplit& split, const MlaItem& item) {
          const u32 q_row = item.base + lane_id() % kQRowsPerTile;
          const u32 last_row = item.last_row<kQRowsPerTile>(),
                    column = q_row < last_row ? q_row : last_row;
          const auto kv_end_of = [&](u32 q_row) {
            return split.kv_end(item.hidden_tokens(q_row, heads, unseen != 0));
          };
          const KvSplit computed = split.clipped_to(kv_end_of(last_row));
          const Args args = {q, item.columns, item.hidden_tokens(item.base, heads, unseen != 0),
                             scales.score};
          process_and_store(common, args, tokens_of(computed), split, computed,
                            u64{item.row} * heads, item.base, column, kv_end_of(column), false,
                            split.zero + split.length < range_end);
        });
    return;
  }
  SequenceChunk chunk(seqs, 0, 0);
  const u32 total = batch <= kWaveSize ? chunk.next : seqs.total(seqs.tokens());
  const GranularPartition partition =
      partition_for_flow<kCut, kMinTokens, kEven, kTile, CombineAll::kMaxSplits>(seqs, chunk, total,
                                                                                 workers);
  const u32 worker = worker_of(id, partition.active, batch, workers);
  if (worker == kNoWorker) return;
  const u32 range_begin = partition.begin(worker), range_end = partition.begin(worker + 1);
  const MlaScales scales(sm_scale, kv_scale, q_scale);
  const u32 base_column = group * kQRowsPerTile, own_column = base_column + lane % kQRowsPerTile;
  const u32 column = own_column < columns ? own_column : columns - 1;
  const u32 hidden_here = unseen == 0 ? 0 : unseen - column / heads;
  const u32 num_partials = (columns + kQRowsPerTile - 1) / kQRowsPerTile * workers * 2;
  const Args args = {q, columns, unseen, scales.score};
  u32 chunk_begin = 0, begin, end;
  const auto splits_of_chunk = [&] {
    begin = cut_token(range_begin, chunk.zero, chunk.length, partition.granule);
    end = cut_token(range_end, chunk.zero, chunk.length, partition.granule);
    const bool is_mine =
        chunk.length == 0 ? range_begin <= chunk.start && chunk.start < range_end : begin < end;
    return __builtin_amdgcn_ballot_w64(is_mine && chunk_begin + lane < batch);
  };
  const auto split_of = [&](u64 pending) {
    return split_of_lane(chunk, chunk_begin, begin, end,
                         static_cast<u32>(__builtin_ctzll(pending)));
  };
  u64 pending = splits_of_chunk();
  // Issued first; what all splits need is computed while these loads are in flight.
  bool is_issued = pending != 0;
  if (is_issued) {
    const KvSplit split = split_of(pending);
    Tiles reader = tiles_of(lds, tokens_of(split), split);
    if (split.begin != split.end)
      issue_split_loads(reader, args, u64{split.sequence} * columns + column);
  }
  pointers_to_vgprs();
  const Common common = {
      lds,   out,    lse,     partials,     counts,      partition, partition.granule,
      group, worker, workers, num_partials, scales.value};
  while (true) {
    for (; pending != 0; pending &= pending - 1) {
      const KvSplit split = split_of(pending);
      const bool ends = chunk_begin + kWaveSize >= batch || chunk.next >= range_end;
      process_and_store(common, args, tokens_of(split), split, split, u64{split.sequence} * columns,
                        base_column, column, split.kv_end(hidden_here), is_issued,
                        (pending & (pending - 1)) != 0 || !ends);
      is_issued = false;
    }
    chunk_begin += kWaveSize;
    if (chunk_begin >= batch || chunk.next >= range_end) return;
    // No mask of them is kept.
    seqs.bounds = pointer_in_vgpr(seqs.bounds), seqs.lens = pointer_in_vgpr(seqs.lens);
    chunk = SequenceChunk(seqs, chunk_begin, chunk.next);
    pending = splits_of_chunk();
  }
}
