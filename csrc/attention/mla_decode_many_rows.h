// The MLA decode kernel for many query rows. mla_decode_shared.hip (which has the formula) and
// mla_decode_shared_fp8.hip each define its types and include it once:
//
//     StageLayout   layout of one KV tile in LDS (mla_kv_stage.h)
//     Stages        loader of a ring of such tiles (mla_kv_stage_load.h)
//     Attention     32 query rows of a wave (mla_online_softmax.h)
//     kPaged        a page has more than one token
//     kRagged       sequences differ in their number of queries
//     kPFp8         P and V are FP8
//     kMinTokens    least number of tokens per worker
//     kEven         sequences of equal lengths have equally many workers
//     kMaxSpins     limit of the spin-wait for other workgroups
//
// A workgroup walks its KV splits, computes attention for each, and stores the output or a partial.
#pragma once

#include "attention/lane_spill.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_masked.h"
#include "attention/mla_output.h"
#include "rfops/group/tile_map.h"

namespace {

using namespace rfops;

constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize, kColumns = kWaves * kQRowsPerWave;
constexpr u32 kTokens = StageLayout::kTokens;
constexpr u32 kItemCost = (kTokens == 16 ? 12 : 28) * kTokens;  // Q, storing, adding up
using Target = SplitOutput<kColumns>;
using Result = MlaResult<Attention, kWaves, kMaxSpins>;

constexpr u32 kStageBytes = Stages::kNumStages * StageLayout::kBytes;
constexpr u32 kLds = kStageBytes + kWaves * Attention::kParkedBytes;
static_assert(kLds <= kLdsBytes && Result::kLds <= kStageBytes);

// Processes the tiles of a split. `kv_end`: end of the tokens that the lane's query rows see;
// `masked`: end of the tokens that all rows of the workgroup see.
__device__ inline void process_split(Attention& attention, LdsBytes* lds,
                                     const KvPageTable<kPaged>& tokens, const KvSplit& split,
                                     i32 masked, const i32 (&kv_end)[Attention::kQRowsPerLane],
                                     const WaveQuery& q) {
  const u32 tiles = (split.end - split.begin + kTokens - 1) / kTokens;
  Stages stages(lds, tokens, split.begin);
  const auto wait_all = [&] {
    stages.wait();
    wait_lgkmcnt();
    s_barrier();
  };
  // First token of the tile whose scores were computed last.
  i32 token_begin = static_cast<i32>(split.begin - kTokens);
  // LDS offsets of the ring: the tile whose scores are computed, those after it, and `prev_stage`,
  // whose values are accumulated.
  u32 stages_lds[Stages::kNumStages], prev_stage = 0;
  // Masks a tile's scores; returns 1 if some of its values were not finite.
  const auto mask = [&](typename Attention::Scores& s, auto looks) -> u32 {
    if (looks && !RFOPS_UNLIKELY(token_begin + static_cast<i32>(kTokens) > masked)) return 0;
    const u64 tokens = Attention::mask(s, token_begin, kv_end);
    // If `masked` is the end of the split, masked tokens are copies of its last token, which all
    // rows see.
    if (!looks || masked == static_cast<i32>(split.end)) return 0;
    s_barrier();  // all waves have read this tile's keys
    LdsBytes* const tile = lds + (Attention::kMasksLate ? prev_stage : stages_lds[0]);
    make_values_finite<kPFp8>(tokens,
                              [&](u32 token) { return tile + token * StageLayout::kPitch; });
    return tokens != 0 ? 1 : 0;
  };
  LdsBytes* const parked = lds + kStageBytes + wave_id() * Attention::kParkedBytes;
  stages.prime([&] { attention.issue_q_loads(q); });
  attention.finish_q_loads(parked, [&] { stages.rotate_first_tile(); });
  stages.widen_first();
  wait_all();
  attention.set_key_tile(lds);
  attention.read_keys();
  static_for<Stages::kNumStages>([&](auto i) { stages_lds[i] = i * StageLayout::kBytes; });
  u32 iteration = 0;
  const auto advance = [&] {
    const u32 released = stages_lds[0];
    static_for<Stages::kNumStages - 1>([&](auto i) { stages_lds[i] = stages_lds[i + 1]; });
    stages_lds[Stages::kNumStages - 1] = prev_stage = released;
    force_sgpr(prev_stage);
    static_for<Stages::kNumStages>([&](auto i) {
      u32& offset = stages_lds[i];
      asm volatile("" : "+s"(offset));  // here
    });
    ++iteration;
    asm volatile("" : "+s"(iteration));
  };
  // Iteration n computes the scores of tile n and accumulates the values of tile n - 1; the first
  // accumulates zeros.
  do {
    attention.scores(lds + prev_stage, mask, [&](auto piece) {
      stages.template in_scores<piece>(lds + stages_lds[Stages::kPrefetch], lds + stages_lds[2]);
    });
    token_begin += static_cast<i32>(kTokens);
    asm volatile("" : "+s"(token_begin));
    const auto in_values = [&](auto issue_idx, auto kNumIssues) {
      constexpr u32 kAdvance = kNumIssues / 4 + 1;  // where instructions of matrices hide it
      if constexpr (issue_idx == kAdvance) advance();
      stages.template in_values<issue_idx, kNumIssues>(lds + stages_lds[issue_idx < kAdvance]);
    };
    attention.accumulate_pv([&] { return lds + stages_lds[0]; }, in_values, mask, wait_all);
  } while (iteration <= tiles);
  attention.finish();
  stages.drain();
  wait_lgkmcnt();  // what was read ahead
  s_barrier();
}

// Stores this wave's query rows: the output, or a partial of this worker.
__device__ inline void store_split(const Attention& attention, LdsBytes* lds, const Target& target,
                                   const KvSplit& split, const WorkPartition& partition, u32 group,
                                   u32 worker, u32 workers) {
  u32 wave = wave_id();
  force_sgpr(wave);  // as `lane` below
  const u32 q_row_begin = wave * kQRowsPerWave;
  const bool is_whole = split.is_whole();
  const SplitPartials partials =
      SplitPartials::make(split, partition, kTokens, group, worker, workers);
  u32 lane = lane_id();
  force_vgpr(
      lane);  // what follows from it is computed here, not kept in registers from the beginning
  f32 factors[Attention::kQRowsPerLane];
#pragma unroll
  for (u32 n = 0; n < Attention::kQRowsPerLane; ++n) {
    const SoftmaxStats stats = attention.totals(n);
    const u32 column = q_row_begin + Attention::column(lane, n);
    factors[n] = target.factor(stats);
    is_whole ? target.store_lse(column, stats)
             : target.store_totals(partials(partials.split_idx), column, stats);
  }
  const Result result(attention, target, lds, lane);
  if (is_whole) {
    result.store(Attention::of_result(factors, lane));
  } else {
    // The worker of the last split may have tokens of the next sequence, too.
    const u32 end = partition.begin(worker - partials.split_idx + partials.count);
    result.store_partial(partials,
                         partials.count - (end > split.zero + split.length + kItemCost ? 1 : 0));
  }
  workgroup_barrier();  // LDS is the next part's
}

// Arguments that a split needs at its begin and at its end; spilled between.
struct Args {
  GlobalPointer<const i32> kv_indices;
  GlobalPointer<const void> q;
  GlobalPointer<const u8> kv;
  GlobalPointer<const bf16> angles;
  GlobalPointer<bf16> out;
  GlobalPointer<f32> lse, partials;
  GlobalPointer<u32> counts;
  f32 scale, value_scale;
  u32 width, page_shift, heads, unseen;
  WorkPartition partition;
  u32 group, worker, workers, num_partials;

  __device__ Target target(u64 first_row, u32 base, u32 columns) const {
    f32* const own_lse = lse;
    return {out + (first_row + base) * kMlaValue,
            own_lse == nullptr ? nullptr : own_lse + first_row + base,
            partials,
            counts,
            columns - base,
            num_partials,
            value_scale};
  }
};

// A split for query rows `base` and following of a sequence whose rows of q begin at `first_row`.
struct Work {
  KvSplit split;
  u64 first_row;
  u32 base, columns;
};

// Stores the output of a sequence without tokens.
__device__ inline void store_empty(const Target& target) {
  u32 thread = thread_id();
  force_vgpr(thread);
  for (u32 i = thread; i < kColumns * kMlaValue / 4; i += kThreads) {
    const u32 column = i / (kMlaValue / 4);
    target.store(F32x4{}, column, i % (kMlaValue / 4) * 4);
    if (i % (kMlaValue / 4) == 0) target.store_lse(column, {kMinScore, 0.0f});
  }
}

// Partitions the work over as many workers as have kMinTokens each; if kEven and lengths are
// equal, over fewer, such that each sequence has as many.
__device__ inline WorkPartition partition_of(const SequenceTable& seqs, u32 workers) {
  const u32 sum = seqs.tokens(), total = seqs.total(sum), fit = sum / kMinTokens;
  if constexpr (kEven) {
    const u32 max_workers = fit < workers ? fit : workers;
    if (seqs.count <= max_workers) {
      return partition_by_lengths<kTokens>(SequenceChunk(seqs, 0, 0), seqs.count, total, workers,
                                           max_workers, fit);
    }
  }
  return WorkPartition(total, workers, fit);
}

}  // namespace

// Grid: one workgroup per worker and 128 query rows, all workers of the first 128 rows first; if
// kRagged, one per worker.
extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mla_decode_shared(const i32* __restrict__ kv_indptr,  // [batch + 1], of a list
                      const i32* __restrict__ kv_lens,    // [batch], or null
                      u32 batch, u32 workers, u32 page_shift, u32 width,
                      const i32* __restrict__ kv_indices,  // of a list, or [batch, width]
                      const void* __restrict__ q,          // [batch * columns, 576]
                      const u8* __restrict__ kv,           // [pages, page, 576]
                      const f32* __restrict__ kv_scale,    // [1], or null
                      const f32* __restrict__ q_scale,     // [1], or null
                      bf16* __restrict__ out,              // [batch * columns, 512]
                      f32* __restrict__ lse,               // [batch * columns], or null
                      f32* __restrict__ partials,          // Target
                      u32* __restrict__ counts,            // likewise
                      const bf16* __restrict__ angles,     // [positions, 64]: cos, sin; with kRope
                      f32 sm_scale,
                      u32 columns,  // of a sequence; of kRagged the rows of q
                      u32 heads,
                      u32 unseen,                           // of kRagged: whether it is causal
                      const i32* __restrict__ qo_indptr) {  // [batch + 1]; with kRagged
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const u32 id = workgroup_id_x() % workers, group = workgroup_id_x() / workers;
  const SequenceTable seqs = {
      kv_indptr, kv_lens, batch, page_shift, {kItemCost / 2, kItemCost / 2}};
  const MlaScales scales(sm_scale, kv_scale, q_scale);
  const f32 scale = scales.score == 0.0f ? 1e-30f : scales.score;  // so that -inf stays -inf
  // hidden_tokens_of(args, column): tokens at the end of the sequence that are masked for a query
  // row.
  const auto process = [&](const LaneSpill<Args>& spilled, const Work& work,
                           auto hidden_tokens_of) {
    const LaneSpill<Work> spilled_work(work);
    const Args args = spilled.load();
    const KvSplit& split = work.split;
    const u32 base = work.base;
    const u32 lane = lane_id_in_vgpr();  // columns are found anew for each part
    u32 wave = wave_id();
    force_sgpr(wave);  // likewise
    const auto clamp_q_row = [&](u32 q_row) {
      q_row += base + wave * kQRowsPerWave;
      return q_row < work.columns ? q_row : work.columns - 1;
    };
    const auto row = [&](u32 n) { return work.first_row + clamp_q_row(query_column(lane, n)); };
    const auto kv_end_of = [&](u32 column) { return split.kv_end(hidden_tokens_of(args, column)); };
    i32 kv_end[Attention::kQRowsPerLane];
#pragma unroll
    for (u32 n = 0; n < Attention::kQRowsPerLane; ++n)
      kv_end[n] = kv_end_of(clamp_q_row(Attention::column(lane, n)));
    if (split.length == 0) {
      return store_empty(args.target(work.first_row, base, work.columns));
    }
    const u32 last_row = (base + kColumns < work.columns ? base + kColumns : work.columns) - 1;
    const KvSplit computed = kRagged ? split.clipped_to(kv_end_of(last_row)) : split;
    const KvPageTable<kPaged> tokens = {args.kv, split.pages(args.kv_indices, args.width),
                                        computed.end, args.page_shift, args.angles};
    Attention attention;
    // End of the tokens that all query rows see.
    const i32 kv_end_of_all = kRagged ? kv_end_of(base) : split.kv_end(args.unseen);
    process_split(attention, lds, tokens, computed, computed.masked_from(kv_end_of_all), kv_end,
                  {args.q, args.scale, {row(0), row(1)}});
    const Args at_end = spilled.load();
    const Work output_work = spilled_work.load();
    store_split(attention, lds,
                at_end.target(output_work.first_row, output_work.base, output_work.columns),
                output_work.split, at_end.partition, at_end.group, at_end.worker, at_end.workers);
  };
  const auto spilled_args = [&](const WorkPartition& partition, u32 worker, u32 num_partials) {
    return LaneSpill<Args>({kv_indices, q, kv, angles, out, lse, partials, counts, scale,
                            scales.value, width, page_shift, heads, unseen, partition, group,
                            worker, workers, num_partials});
  };
  if constexpr (kRagged) {
    const Queries queries = {qo_indptr, heads, columns};
    const ItemChunk<kColumns> chunk(seqs, queries, 0, 0);
    const ItemTotals<kColumns> totals(seqs, queries, chunk);
    const WorkPartition partition(totals.cost, workers,
                                  (totals.cost - seqs.cost.tokens() * totals.items) / kMinTokens);
    if (id >= partition.active) return;
    const u32 worker = xcd_remap(id, partition.active);  // those of a sequence share an L2
    const LaneSpill<Args> spilled = spilled_args(partition, worker, workers * 2);
    for_each_item<kTokens, kColumns, false>(
        seqs, queries, partition, worker, chunk, [&](const KvSplit& split, const MlaItem& item) {
          process(spilled, {split, u64{item.row} * heads, item.base, item.columns},
                  [&](const Args& args, u32 column) {
                    return item.hidden_tokens(column, args.heads, args.unseen != 0);
                  });
        });
  } else {
    const WorkPartition partition = partition_of(seqs, workers);
    if (id >= partition.active) return;
    const u32 worker = xcd_remap(id, partition.active);  // those of a sequence share an L2
    const u32 num_partials = (columns + kColumns - 1) / kColumns * workers * 2;
    const LaneSpill<Args> spilled = spilled_args(partition, worker, num_partials);
    for_each_split<kTokens>(seqs, partition, worker, [&](const KvSplit& split) {
      process(spilled, {split, u64{split.sequence} * columns, group * kColumns, columns},
              [](const Args& args, u32 column) {
                return args.unseen == 0 ? 0 : args.unseen - column / args.heads;
              });
    });
  }
}
