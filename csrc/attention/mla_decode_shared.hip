// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// Decoding with a latent cache, for up to 128 columns (a query's head) at a time, where the matrix
// cores have as much to do as memory. Q and P are bf16 whatever the cache; sums are fp32. Few
// columns are mla_decode_flow.hip's.
//
// Layout. work_partition.h shares the tokens of all sequences out over workgroups. Of its part of a
// sequence a workgroup has a tile after the other in LDS (mla_kv_stage.h), once for both products,
// and each of its four waves has 32 columns (mla_online_softmax.h; of FP8, mla_kv_stage_fp8.h,
// mla_wave_fp8.h). A part that is all of its sequence becomes the result. Others go to `parts`, in
// fp16; many up a tree (mla_partials.h), and of few each workgroup makes a share of the result
// (mla_output.h).
//
// Promises. Deterministic: the order of sums follows from lengths, workers and config. The caller
// aligns rows of q and kv to 16 bytes. Pages are a power of two of tokens.
#include "attention/lane_spill.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_kv_stage_load.h"
#include "attention/mla_kv_stage_widen.h"
#include "attention/mla_output.h"
#include "attention/mla_wave_fp8.h"
#include "attention/mla_wave_gfx942.h"
#include "attention/mla_wave_gfx950.h"
#include "rfops/group/tile_map.h"

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8;
constexpr bool kQueryFp8 = RFOPS_Q_FP8;
constexpr bool kPaged = RFOPS_PAGED;    // pages of more than one token
constexpr bool kRope = RFOPS_ROPE;      // keys are turned by their place in the sequence
constexpr bool kRagged = RFOPS_RAGGED;  // sequences have some number of queries each
static_assert(!(kFp8 && kRope), "keys of FP8 are not turned");
constexpr u32 kLeast = RFOPS_LEAST;  // tokens of a worker at least
constexpr u32 kTurns = RFOPS_TURNS;  // that a part waits for others, at most

#if RFOPS_P_FP8
static_assert(kFp8 && kQueryFp8, "weights of FP8 go with a cache and q of FP8");
using Slot = MlaFp8Slot;
using Slots = Fp8Slots<kPaged>;
using Columns = MlaFp8Columns;
#else
template <bool kWidened>
struct Loaders {
  using Type = DirectSlots<kPaged, kRope>;
};
template <>
struct Loaders<true> {
  using Type = WidenedSlots<kPaged>;
};
using Slot = KvStageLayout;
using Slots = Loaders<kFp8>::Type;
using Columns = WaveAttention<kQueryFp8, kFp8 ? 6 : 18>;
#endif
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize, kColumns = kWaves * kQRowsPerWave;
constexpr u32 kTokens = Slot::kTokens;
constexpr u32 kItemCost = (kTokens == 16 ? 12 : 28) * kTokens;  // Q, storing, adding up
constexpr f32 kLog2E = 1.44269504088896f;
using Target = SplitOutput<kColumns>;
using Result = MlaResult<Columns, kWaves, kTurns>;

constexpr u32 kSlotBytes = Slots::kSlots * Slot::kBytes;
constexpr u32 kLds = kSlotBytes + kWaves * Columns::kParkedBytes;
static_assert(kLds <= kLdsBytes && Result::kLds <= kSlotBytes);

// All tiles of a part. Tokens from `seen` on are not there for this lane's column; `masked`: some
// column of the workgroup does not see all of a tile that ends beyond.
__device__ inline void take_part(Columns& own, LdsBytes* lds, const KvPageTable<kPaged>& tokens,
                                 const KvSplit& part, i32 masked, const i32 (&seen)[Columns::kOwn],
                                 const WaveQuery& q) {
  const u32 tiles = (part.end - part.begin + kTokens - 1) / kTokens;
  Slots slots(lds, tokens, part.begin);
  const auto all_there = [&] {
    slots.wait();
    wait_lgkmcnt();
    s_barrier();
  };
  // The first token of the tile whose scores were made last; some column may not see all of it.
  i32 first = static_cast<i32>(part.begin - kTokens);
  // Where tiles are: the one whose scores are made, those behind it, and before it the one whose
  // values are added.
  u32 places[Slots::kSlots], before = 0;
  // Masks a tile's scores; 1 where some of its values were not finite.
  const auto mask = [&](typename Columns::Scores& s, auto looks) -> u32 {
    if (looks && !RFOPS_UNLIKELY(first + static_cast<i32>(kTokens) > masked)) return 0;
    const u64 tokens = Columns::mask(s, first, seen);
    // Tokens behind the end are the last one again: only others can be masked for some columns.
    if (!looks || masked == static_cast<i32>(part.end)) return 0;
    s_barrier();  // all waves have read this tile's keys
    LdsBytes* const tile = lds + (Columns::kMasksLate ? before : places[0]);
    make_values_finite<RFOPS_P_FP8>(tokens, [&](u32 token) { return tile + token * Slot::kPitch; });
    return tokens != 0 ? 1 : 0;
  };
  LdsBytes* const parked = lds + kSlotBytes + wave_id() * Columns::kParkedBytes;
  slots.prime([&] { own.issue_q_loads(q); });
  own.finish_q_loads(parked, [&] { slots.rotate_first_tile(); });
  slots.widen_first();
  all_there();
  own.set_key_tile(lds);
  own.read_keys();
  static_for<Slots::kSlots>([&](auto i) { places[i] = i * Slot::kBytes; });
  u32 turn = 0;
  const auto advance = [&] {
    const u32 now = places[0];
    static_for<Slots::kSlots - 1>([&](auto i) { places[i] = places[i + 1]; });
    places[Slots::kSlots - 1] = before = now;
    force_sgpr(before);
    static_for<Slots::kSlots>([&](auto i) {
      u32& place = places[i];
      asm volatile("" : "+s"(place));  // here
    });
    ++turn;
    asm volatile("" : "+s"(turn));
  };
  // Turn n makes the scores of tile n, and adds the values of the one before; the first adds zeros.
  do {
    own.scores(lds + before, mask, [&](auto piece) {
      slots.template in_scores<piece>(lds + places[Slots::kBefore], lds + places[2]);
    });
    first += static_cast<i32>(kTokens);
    asm volatile("" : "+s"(first));
    const auto in_values = [&](auto at, auto of) {
      constexpr u32 kAdvance = of / 4 + 1;  // where instructions of matrices hide it
      if constexpr (at == kAdvance) advance();
      slots.template in_values<at, of>(lds + places[at < kAdvance]);
    };
    own.accumulate_pv([&] { return lds + places[0]; }, in_values, mask, all_there);
  } while (turn <= tiles);
  own.end();
  slots.drain();
  wait_lgkmcnt();  // what was read ahead
  s_barrier();
}

// This wave's columns: the result, or this worker's part of it.
__device__ inline void finish_part(const Columns& own, LdsBytes* lds, const Target& target,
                                   const KvSplit& part, const Shares& shares, u32 group, u32 worker,
                                   u32 workers) {
  u32 wave = wave_id();
  force_sgpr(wave);  // as `lane` below
  const u32 first = wave * kQRowsPerWave;
  const bool is_whole = part.is_whole();
  const SplitPartials slots = SplitPartials::of<kTokens>(part, shares, group, worker, workers);
  u32 lane = lane_id();
  force_vgpr(
      lane);  // what follows from it is computed here, not kept in registers from the beginning
  f32 factors[Columns::kOwn];
#pragma unroll
  for (u32 n = 0; n < Columns::kOwn; ++n) {
    const SoftmaxStats all = own.totals(n);
    const u32 column = first + Columns::column(lane, n);
    factors[n] = target.factor(all);
    is_whole ? target.store_lse(column, all) : target.store_totals(slots(slots.own), column, all);
  }
  const Result result(own, target, lds, lane);
  if (is_whole) {
    result.store(Columns::of_result(factors, lane));
  } else {
    // The last part's worker may have tokens of the next sequence.
    const u32 end = shares.begin(worker - slots.own + slots.count);
    result.share(slots, slots.count - (end > part.zero + part.length + kItemCost ? 1 : 0));
  }
  workgroup_barrier();  // LDS is the next part's
}

// The arguments that a part needs at its begin and at its end.
struct Args {
  GlobalPointer<const i32> kv_indices;
  GlobalPointer<const void> q;
  GlobalPointer<const u8> kv;
  GlobalPointer<const bf16> angles;
  GlobalPointer<bf16> out;
  GlobalPointer<f32> lse, parts;
  GlobalPointer<u32> counts;
  f32 scale, value_scale;
  u32 width, page_shift, heads, unseen;
  Shares shares;
  u32 group, worker, workers, slots;

  __device__ Target target(u64 first_row, u32 base, u32 columns) const {
    f32* const own_lse = lse;
    return {out + (first_row + base) * kMlaValue,
            own_lse == nullptr ? nullptr : own_lse + first_row + base,
            parts,
            counts,
            columns - base,
            slots,
            value_scale};
  }
};

// A part of the columns of a sequence from `base` on; its rows of q begin at `first_row`.
struct Work {
  KvSplit part;
  u64 first_row;
  u32 base, columns;
};

// Of a sequence without tokens.
__device__ inline void store_nothing(const Target& target) {
  u32 thread = thread_id();
  force_vgpr(thread);
  for (u32 i = thread; i < kColumns * kMlaValue / 4; i += kThreads) {
    const u32 column = i / (kMlaValue / 4);
    target.store(F32x4{}, column, i % (kMlaValue / 4) * 4);
    if (i % (kMlaValue / 4) == 0) target.store_lse(column, {kMinScore, 0.0f});
  }
}

}  // namespace

// Grid: workers of 128 columns, then those of the next 128; of kRagged workers of all columns.
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
                      f32* __restrict__ parts,             // Target
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
  const Sequences all = {kv_indptr, kv_lens, batch, page_shift, {kItemCost / 2, kItemCost / 2}};
  const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
  const f32 given = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
  const f32 scale = given == 0.0f ? 1e-30f : given;  // so that -inf stays -inf
  // unseen_by(column): tokens at the sequence's end that are masked for a column.
  const auto take = [&](const LaneSpill<Args>& spilled, const Work& work, auto unseen_by) {
    const LaneSpill<Work> spilled_work(work);
    const Args args = spilled.load();
    const KvSplit& part = work.part;
    const u32 base = work.base;
    u32 lane = lane_id();
    force_vgpr(lane);  // columns are found anew for each part, not kept in registers
    u32 wave = wave_id();
    force_sgpr(wave);  // likewise
    const auto there = [&](u32 own) {
      own += base + wave * kQRowsPerWave;
      return own < work.columns ? own : work.columns - 1;
    };
    const auto row = [&](u32 n) { return work.first_row + there(query_column(lane, n)); };
    const auto seen_by = [&](u32 column) {
      return static_cast<i32>(part.length) - static_cast<i32>(unseen_by(args, column));
    };
    i32 seen[Columns::kOwn];
#pragma unroll
    for (u32 n = 0; n < Columns::kOwn; ++n) seen[n] = seen_by(there(Columns::column(lane, n)));
    if (part.length == 0) {
      return store_nothing(args.target(work.first_row, base, work.columns));
    }
    const u32 last = (base + kColumns < work.columns ? base + kColumns : work.columns) - 1;
    const KvSplit computed = kRagged ? part.without(seen_by(last)) : part;
    const u64 list = args.width != 0 ? u64{part.sequence} * args.width : part.entry;
    const KvPageTable<kPaged> tokens = {args.kv, args.kv_indices + list, computed.end,
                                        args.page_shift, args.angles};
    Columns own;
    // From here on some column does not see all tokens of a tile.
    const i32 seen_by_all =
        kRagged ? seen_by(base) : static_cast<i32>(part.length) - static_cast<i32>(args.unseen);
    const i32 end = static_cast<i32>(computed.end);
    take_part(own, lds, tokens, computed, end < seen_by_all ? end : seen_by_all, seen,
              {args.q, args.scale, {row(0), row(1)}});
    const Args at_end = spilled.load();
    const Work done = spilled_work.load();
    finish_part(own, lds, at_end.target(done.first_row, done.base, done.columns), done.part,
                at_end.shares, at_end.group, at_end.worker, at_end.workers);
  };
  const auto spilled_args = [&](const Shares& shares, u32 worker, u32 slots) {
    return LaneSpill<Args>({kv_indices, q, kv, angles, out, lse, parts, counts, scale, value_scale,
                            width, page_shift, heads, unseen, shares, group, worker, workers,
                            slots});
  };
  if constexpr (kRagged) {
    const Queries queries = {qo_indptr, heads, columns};
    const ItemChunk<kColumns> chunk(all, queries, 0, 0);
    const ItemTotals<kColumns> totals(all, queries, chunk);
    const Shares shares(totals.cost, workers,
                        (totals.cost - all.cost.all() * totals.items) / kLeast);
    if (id >= shares.active) return;
    const u32 worker = xcd_remap(id, shares.active);  // those of a sequence share an L2
    const LaneSpill<Args> spilled = spilled_args(shares, worker, workers * 2);
    each_item<kTokens, kColumns, false>(
        all, queries, shares, worker, chunk, [&](const KvSplit& part, const MlaItem& item) {
          take(spilled, {part, u64{item.row} * heads, item.base, item.columns},
               [&](const Args& args, u32 column) {
                 return item.unseen(column, args.heads, args.unseen != 0);
               });
        });
  } else {
    const u32 sum = all.tokens();
    const Shares shares(all.total(sum), workers, sum / kLeast);
    if (id >= shares.active) return;
    const u32 worker = xcd_remap(id, shares.active);  // those of a sequence share an L2
    const u32 slots = (columns + kColumns - 1) / kColumns * workers * 2;
    const LaneSpill<Args> spilled = spilled_args(shares, worker, slots);
    for_each_row_slice<kTokens>(all, shares, worker, [&](const KvSplit& part) {
      take(spilled, {part, u64{part.sequence} * columns, group * kColumns, columns},
           [](const Args& args, u32 column) {
             return args.unseen == 0 ? 0 : args.unseen - column / args.heads;
           });
    });
  }
}
