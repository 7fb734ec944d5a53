// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// Decoding with a latent cache, for up to 16 columns (a query's head) at a time: bound by reading
// the cache, which is read once. Q and P are bf16 whatever the cache; sums are fp32.
//
// Layout. work_partition.h shares the tokens of all sequences out over workgroups. A wave takes
// every fourth tile of its workgroup's part of a sequence (mla_kv_cache.h), and has maxima, sums
// and the result, transposed, for itself: there is no barrier until the part is nearly done. Then
// the four meet in LDS, in their order (mla_combine_waves.h). A part that is all of its sequence
// becomes the result. Others go to `parts`: up a tree where they are many (mla_combine_tree.h), and
// then their makers add them up, in their order, a share of the result each (mla_combine_all.h).
//
// Promises. Deterministic: the order of sums follows from lengths, workers and config. The caller
// aligns rows of q and kv to 16 bytes. Pages are a power of two of tokens.
#include "attention/mla_combine_all.h"
#include "attention/mla_combine_tree.h"
#include "attention/mla_combine_waves.h"
#include "attention/mla_kv_lds_dma.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_kv_staged.h"
#include "rfops/group/tile_map.h"

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8;
constexpr bool kQueryFp8 = RFOPS_Q_FP8;
constexpr bool kPaged = RFOPS_PAGED;    // pages of more than one token
constexpr bool kRope = RFOPS_ROPE;      // keys are turned by their place in the sequence
constexpr bool kRagged = RFOPS_RAGGED;  // sequences have some number of queries each
constexpr u32 kLeast = RFOPS_LEAST;     // tokens of a worker at least
constexpr u32 kTurns = RFOPS_TURNS;     // that a part waits for others, at most
// Tokens to which cuts are rounded up, and what a sequence costs beside its own: equal sequences
// of as many workers each are then cut into equal parts.
constexpr u32 kCut = kLeast < 64 ? kLeast : 64;
static_assert(kCut % 32 == 0);

using Row = MlaRow<kFp8>;
#if defined(__gfx950__)
using Tiles = DirectTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesAtOnce = 4;
#else
using Tiles = StagedTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesAtOnce = 2;
#endif
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr bool kSharesQuery = Tiles::kAsks && !kQueryFp8;  // waves do, by LDS
constexpr f32 kLog2E = 1.44269504088896f;

constexpr u32 kLds = kWaves * Tiles::kLds;
static_assert(kWaves == kMlaWaves && kLds <= kLdsBytes && kSlicesAtOnce * kMlaGiven <= Tiles::kLds);

struct Args {
  const void* q;
  u32 columns, unseen;
  f32 scale;
};

// Scores in powers of two. Tokens from `seen` on are masked. Returns those of them, by bits, that
// have a score which is not finite.
__device__ inline u32 scale_scores(F32x4 (&s)[Row::kHalves], f32 scale, u32 first, i32 seen,
                                   bool is_last) {
  const u32 g = lane_id() / 16;
  u32 not_finite = 0;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) {
    s[h] *= scale;
    if (!is_last) continue;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      const i32 token = static_cast<i32>(first + h * 16 + 4 * g + r);
      const bool is_seen = token < seen;
      if (!is_seen && !is_finite(s[h][r])) not_finite |= u32{1} << (h * 4 + r);
      s[h][r] = is_seen ? s[h][r] : -__builtin_inff();
    }
  }
  if (!is_last) return 0;
  const auto token_of = [](u32 i) { return i / 4 * 16 + i % 4; };
  return static_cast<u32>(tokens_of_lanes<Row::kHalves * 4, 16>(not_finite, token_of));
}

// P of a tile from its scores, and what they change.
__device__ inline void exp_scores(const F32x4 (&s)[Row::kHalves], Bf16x4 (&p)[Row::kHalves],
                                  WaveState& own) {
  f32 most = kMinScore;
#pragma unroll
  for (const F32x4& four : s) {
#pragma unroll
    for (u32 r = 0; r < 4; ++r) most = __builtin_fmaxf(most, four[r]);
  }
  most = reduce_row_lanes(most, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
  most = __builtin_fmaxf(most, own.most);
  const bool is_first = own.most == kMinScore;  // nothing to be scaled
  const f32 rescale_factor = __builtin_amdgcn_exp2f(own.most - most);
  own.most = most;
  own.sum *= rescale_factor;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) {
    F32x4 weight;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      weight[r] = __builtin_amdgcn_exp2f(s[h][r] - most);
      own.sum += weight[r];
    }
    p[h] = __builtin_convertvector(weight, Bf16x4);
  }
  if (__builtin_amdgcn_ballot_w64(rescale_factor != 1.0f && !is_first) != 0) {
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) own.o[d] *= rescale_factor;
  }
}

// The same of the first tiles of all waves, each of which makes its own's, with their totals. `act`
// when all tiles are there.
template <class Sharing, class Act>
__device__ inline void soften_shared(const F32x4 (&s)[Row::kHalves],
                                     Bf16x4 (&p)[kWaves][Row::kHalves], SoftmaxStats& all,
                                     LdsBytes* lds, Act act) {
  u32 lane = lane_id();
  force_vgpr(lane);  // what follows from it is computed here
  const u32 wave = wave_id(), column = lane % kQRowsPerTile;
  const auto weights_of = [&](u32 w) {
    LdsBytes* const at = lds + w * Sharing::kLds + Sharing::kWeights;
    return reinterpret_cast<RFOPS_LDS Bf16x4*>(at) + lane * Row::kHalves;
  };
  const auto totals_of = [&](u32 w) {
    return reinterpret_cast<RFOPS_LDS f32*>(lds + w * Sharing::kLds + Sharing::kTotals);
  };
  f32 most = kMinScore, sum = 0.0f;
#pragma unroll
  for (const F32x4& four : s) {
#pragma unroll
    for (u32 r = 0; r < 4; ++r) most = __builtin_fmaxf(most, four[r]);
  }
  most = reduce_row_lanes(most, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
  if (lane < kQRowsPerTile) totals_of(wave)[column] = most;
  workgroup_barrier();
  act();
  all = {kMinScore, 0.0f};
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) all.most = __builtin_fmaxf(all.most, totals_of(w)[column]);
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) {
    F32x4 weight;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      weight[r] = __builtin_amdgcn_exp2f(s[h][r] - all.most);
      sum += weight[r];
    }
    weights_of(wave)[h] = __builtin_convertvector(weight, Bf16x4);
  }
  sum = reduce_row_lanes(sum, [](f32 a, f32 b) { return a + b; });
  if (lane < kQRowsPerTile) totals_of(wave)[kQRowsPerTile + column] = sum;
  workgroup_barrier();
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) {
    all.sum += totals_of(w)[kQRowsPerTile + column];
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) p[w][h] = weights_of(w)[h];
  }
}

// This wave's share of a part's tiles.
__device__ inline Tiles tiles_of(LdsBytes* lds, const KvPageTable<kPaged>& tokens,
                                 const KvSplit& part) {
  const u32 wave = wave_id();
  return Tiles(lds + wave * Tiles::kLds, tokens, part.begin + wave * Row::kTokens,
               kWaves * Row::kTokens);
}

// What a part wants first: the list, and behind it q.
__device__ inline void ask_part(Tiles& reader, const Args& args, u64 row) {
  reader.ask();
  if constexpr (kSharesQuery) reader.issue_q_loads(args.q, row);
}

// A wave's first tile, if it has one, is on its way, and q is here. Meanwhile `act`.
template <class Act>
__device__ inline void begin_part(Tiles& reader, MlaQuery& q, LdsBytes* lds, const Args& args,
                                  u64 row, bool has_tile, bool is_asked, Act act) {
  if (!is_asked) ask_part(reader, args, row);
  reader.place();
  Tiles::template wait_list<kSharesQuery>();
  if (has_tile) reader.prime();
  act();
  if constexpr (kSharesQuery) {
    Tiles::wait_query(has_tile);
    s_barrier();
    Tiles::read_query(lds, q);
  } else {
    load_query<Row, kQueryFp8>(q, args.q, row);
  }
}

// From here on some column does not see all tokens.
__device__ inline i32 masked_from(const KvSplit& part, const Args& args) {
  const i32 seen_by_all = static_cast<i32>(part.length) - static_cast<i32>(args.unseen);
  const i32 end = static_cast<i32>(part.end);
  return end < seen_by_all ? end : seen_by_all;
}

// A wave's share of a part; `is_asked` says that it was asked for. `early` while the first tile is
// on its way, `late` before the last.
template <class Early, class Late>
__device__ inline void take_share(WaveState& own, LdsBytes* lds, const Args& args,
                                  const KvPageTable<kPaged>& tokens, const KvSplit& part, u64 row,
                                  i32 seen, bool is_asked, Early early, Late late) {
  const u32 tiles = part.tiles<Row::kTokens>();
  const u32 count = (tiles + kWaves - 1 - wave_id()) / kWaves;
  if (!Tiles::kSharesValues && count == 0) return own.begin(), late();
  Tiles reader = tiles_of(lds, tokens, part);
  MlaQuery q;
  begin_part(reader, q, lds, args, row, true, is_asked, [&] { own.begin(), early(); });
  if constexpr (kSharesQuery) s_barrier();  // the second tile comes where it was
  const i32 masked = masked_from(part, args);
  const u32 last = (tiles + kWaves - 1) / kWaves - 1;
  const auto take = [&](u32 i, auto has_next) {
    F32x4 s[Row::kHalves];
    Bf16x4 p[Row::kHalves];
    reader.template scores<has_next()>(i, q, s);
    const u32 first = reader.first_token(i);
    const bool is_last = static_cast<i32>(first + Row::kTokens) > masked;
    const u32 masked_tokens = scale_scores(s, args.scale, first, seen, is_last);
    if (__builtin_expect(masked_tokens != 0, 0)) reader.mask_values(masked_tokens);
    exp_scores(s, p, own);
    reader.accumulate_pv(p, own.o);
  };
  const u32 with_next = Tiles::kKnowsLast ? count - 1 : count;
  for (u32 i = 0; i < with_next; ++i) {
    // Their last tiles together: a wave that is behind would be alone with memory at the end.
    if (i + 2 == last) s_barrier();
    take(i, [] { return true; });
  }
  late();
  if constexpr (Tiles::kKnowsLast) take(count - 1, [] { return false; });
}

// A part of a tile a wave at most: P meets, 1 KiB a wave, and not what waves make of it, 24. Each
// wave has P of all tokens then, and takes its quarter of their values.
template <class Sharing, class Act, class Leave>
__device__ inline void take_tiles(LdsBytes* lds, const Args& args,
                                  const KvPageTable<kPaged>& tokens, const KvSplit& part, u64 row,
                                  i32 seen, bool is_asked, Act meanwhile, Leave leave) {
  const u32 tiles = part.tiles<Row::kTokens>(), wave = wave_id();
  Sharing reader = tiles_of(lds, tokens, part);
  MlaQuery q;
  begin_part(reader, q, lds, args, row, wave < tiles, is_asked, meanwhile);
  F32x4 s[Row::kHalves];
  if (wave < tiles) {
    reader.template scores<false, false>(0, q, s);
    const u32 first = reader.first_token(0);
    const bool is_last = static_cast<i32>(first + Row::kTokens) > masked_from(part, args);
    const u32 masked_tokens = scale_scores(s, args.scale, first, seen, is_last);
    if (__builtin_expect(masked_tokens != 0, 0)) reader.make_finite(masked_tokens);
  } else {
#pragma unroll
    for (F32x4& four : s) four = F32x4{} - __builtin_inff();
  }
  Partial made = {};
  Bf16x4 p[kWaves][Row::kHalves];
  typename Sharing::SharedValues values;
  soften_shared<Sharing>(s, p, made.all, lds, [&] { reader.read_shared(lds, tiles, values); });
  Sharing::add_shared(values, tiles, p, made.quads);
  leave(made);
}

// What a workgroup makes of a part goes to leave(node).
template <class Early, class Late, class Leave>
__device__ inline void take_part(LdsBytes* lds, const Args& args, const KvPageTable<kPaged>& tokens,
                                 const KvSplit& part, u64 row, i32 seen, bool is_asked, Early early,
                                 Late late, Leave leave) {
  const u32 tiles = part.tiles<Row::kTokens>();
  if (tiles == 0) return leave(Partial{{kMinScore, 0.0f}, {}});
  if constexpr (Tiles::kSharesValues) {
    if (tiles <= kWaves) {
      return take_tiles<Tiles>(
          lds, args, tokens, part, row, seen, is_asked, [&] { early(), late(); }, leave);
    }
  }
  WaveState own;
  take_share(own, lds, args, tokens, part, row, seen, is_asked, early, late);
  add_waves<Tiles, kSlicesAtOnce>(own, lds, leave);
}

__device__ inline PartialStore left_of(const MlaTarget& target, u32 wave, u32 lane) {
  return {target.parts, reinterpret_cast<u64*>(target.counts), target.slots, wave, lane};
}

// Where a part is counted first.
__device__ inline u32 first_counted(const SplitPartials& slots) {
  return slots(
      slots.count <= CombineAll::kMost ? 0 : slots.own / CombineTree::kFanIn * CombineTree::kFanIn);
}

// A wave's quarter of a result.
struct Result {
  const MlaTarget& target;
  u32 wave, lane;
  bf16* out;

  __device__ Result(const MlaTarget& to, u32 own_wave, u32 own_lane)
      : target(to), wave(own_wave), lane(own_lane) {
    out = pointer_in_vgpr(to.out + (own_lane % kQRowsPerTile) * kMlaValue + own_wave * kMlaSlice);
  }
  __device__ void store(u32 at, F32x4 quad) const {
    if (lane % kQRowsPerTile < target.columns) MlaTarget::store(quad, out + at);
  }
  __device__ void store_lse(const SoftmaxStats& all) const {
    if (wave == 0 && lane < kQRowsPerTile) target.store_lse(lane, all);
  }
};

// Where a part goes: it is the result, or left for who adds it up.
__device__ inline void leave_part(const Partial& made, const MlaTarget& target, const KvSplit& part,
                                  const SplitPartials& slots) {
  u32 lane = lane_id();
  force_vgpr(lane);
  const u32 wave = wave_id();
  if (!part.is_whole()) return left_of(target, wave, lane).store(slots(slots.own), made);
  const Result result(target, wave, lane);
  result.store_lse(made.all);
  const f32 times = target.factor(made.all);
#pragma unroll
  for (u32 x = 0; x < 8; ++x) result.store(Tiles::quad_at(x, lane), made.quads[x] * times);
}

// A part that is left, and what others have of the sequence.
__device__ inline void add_parts(const MlaTarget& target, SplitPartials slots, bool has_more) {
  u32 lane = lane_id();
  force_vgpr(lane);
  const u32 wave = wave_id();
  const PartialStore left = left_of(target, wave, lane);
  slots = {readfirstlane(slots.first), readfirstlane(slots.own), readfirstlane(slots.count)};
  MlaPlace at = {slots.own, slots.count, 1, 0};
  if (CombineTree{left}.reduce_upward<CombineAll::kMost>(at, slots)) {
    const Result result(target, wave, lane);
    const auto factor = [&](const SoftmaxStats& all) { return target.factor(all); };
    CombineAll{left}.gather<kTurns>(at, has_more, slots, factor,
                                    [&](const SoftmaxStats& all, u32 x, u32 at, F32x4 quad) {
                                      if (x == 0 && at == lane) result.store_lse(all);
                                      result.store(Tiles::quad_at(x, at), quad);
                                    });
  }
  // The compiler else sees ways to the next part on which some of its loads are not waited for,
  // and does so there, for a tile too.
  wait_vmcnt<0>();
}

// What all parts of a workgroup have in common.
struct Common {
  LdsBytes* lds;
  bf16* out;
  f32 *lse, *parts;
  u32* counts;
  Shares shares;
  u32 group, worker, workers, slots;
  f32 value_scale;
};

// A part of the columns of a sequence that begin at row `first_row`, of those from `base` on; the
// lane's is `column`. Tokens from `seen` on are masked for it; `computed` is the part without what
// all columns mask.
__device__ inline void take_and_leave(const Common& all, const Args& args,
                                      const KvPageTable<kPaged>& tokens, const KvSplit& part,
                                      const KvSplit& computed, u64 first_row, u32 base, u32 column,
                                      i32 seen, bool is_asked, bool has_more) {
  f32* const all_lse = pointer_in_vgpr(all.lse);  // no mask of it is kept
  const MlaTarget target = {all.out + (first_row + base) * kMlaValue,
                            all_lse == nullptr ? nullptr : all_lse + first_row + base,
                            all.parts,
                            all.counts,
                            args.columns - base,
                            all.slots,
                            all.value_scale};
  SplitPartials slots_of_all = {};
  u32 asked = 0;
  const auto find_slots = [&] {
    if (part.is_whole()) return;
    Shares here = all.shares;
    force_sgpr(here.quotient), force_sgpr(here.rest);  // its divisions, for all parts
    slots_of_all = SplitPartials::of<kCut>(part, here, all.group, all.worker, all.workers);
    force_vgpr(slots_of_all.first), force_vgpr(slots_of_all.own), force_vgpr(slots_of_all.count);
  };
  // While the first tiles are on their way; gfx942 has no registers for that.
  const auto early = [&] {
    if constexpr (Tiles::kAsks) find_slots();
  };
  const auto late = [&] {
    if constexpr (!Tiles::kAsks) return find_slots();
    if (part.is_whole()) return;
    asked = left_of(target, wave_id(), lane_id()).ask(first_counted(slots_of_all));
  };
  const auto leave = [&](const Partial& made) {
    force_vgpr(asked);  // behind the stores it would be waited for with them
    leave_part(made, target, part, slots_of_all);
  };
  take_part(all.lds, args, tokens, computed, first_row + column, seen, is_asked, early, late,
            leave);
  if (!part.is_whole()) add_parts(target, slots_of_all, has_more);
  workgroup_barrier();  // LDS is the next part's
}

}  // namespace

// Grid: workers of 16 columns, then those of the next 16; of kRagged workers of all columns.
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
                    f32* __restrict__ parts,             // MlaTarget
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
  Sequences all = {kv_indptr, kv_lens, batch, page_shift, {kCut, 0}};
  if constexpr (kRagged) {
    const Queries queries = {qo_indptr, heads, columns};
    const ItemChunk<kQRowsPerTile> chunk(all, queries, 0, 0);
    const ItemTotals<kQRowsPerTile> totals(all, queries, chunk);
    const u32 fit = (totals.cost - kCut * totals.items) / kLeast;
    const Shares shares(totals.cost, workers, fit < totals.items ? totals.items : fit);
    const u32 worker = worker_of(id, shares.active, batch, workers);
    if (worker == kNoWorker) return;
    const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
    const f32 scale = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
    // Scalar registers are few, and these are wanted at the end, or seldom.
    all.bounds = pointer_in_vgpr(all.bounds), all.lens = pointer_in_vgpr(all.lens);
    out = pointer_in_vgpr(out), lse = pointer_in_vgpr(lse), parts = pointer_in_vgpr(parts);
    counts = pointer_in_vgpr(counts);
    const Common common = {lds, out,    lse,     parts,       counts,     shares,
                           0,   worker, workers, workers * 2, value_scale};
    const u32 to = shares.begin(worker + 1);
    each_item<kCut, kQRowsPerTile, true>(
        all, queries, shares, worker, chunk, [&](const KvSplit& part, const MlaItem& item) {
          const u32 own = item.base + lane_id() % kQRowsPerTile;
          const u32 last = item.last<kQRowsPerTile>(), column = own < last ? own : last;
          const auto seen_by = [&](u32 one) {
            return static_cast<i32>(part.length) -
                   static_cast<i32>(item.unseen(one, heads, unseen != 0));
          };
          const KvSplit computed = part.without(seen_by(last));
          const u64 list = width != 0 ? u64{part.sequence} * width : part.entry;
          const KvPageTable<kPaged> tokens = {kv, kv_indices + list, computed.end, page_shift,
                                              angles};
          const Args args = {q, item.columns, item.unseen(item.base, heads, unseen != 0), scale};
          take_and_leave(common, args, tokens, part, computed, u64{item.row} * heads, item.base,
                         column, seen_by(column), false, part.zero + part.length < to);
        });
    return;
  }
  SequenceChunk chunk(all, 0, 0);
  const u32 total = batch <= kWaveSize ? chunk.next : all.total(all.tokens());
  // Full ones, or as many as sequences.
  const u32 fit = (total - kCut * batch) / kLeast;
  const Shares shares(total, workers, fit < batch ? batch : fit);
  const u32 worker = worker_of(id, shares.active, batch, workers);
  if (worker == kNoWorker) return;
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
  const f32 scale = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
  const u32 base_column = group * kQRowsPerTile, own_column = base_column + lane % kQRowsPerTile;
  const u32 column = own_column < columns ? own_column : columns - 1;
  const u32 unseen_here = unseen == 0 ? 0 : unseen - column / heads;
  const u32 slots = (columns + kQRowsPerTile - 1) / kQRowsPerTile * workers * 2;
  const Args args = {q, columns, unseen, scale};
  u32 first = 0, begin, end;
  const auto own_of_chunk = [&] {
    begin = cut_token<kCut>(from, chunk.zero, chunk.length);
    end = cut_token<kCut>(to, chunk.zero, chunk.length);
    const bool is_mine = chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    return __builtin_amdgcn_ballot_w64(is_mine && first + lane < batch);
  };
  const auto part_of = [&](u64 left) {
    const u32 at = static_cast<u32>(__builtin_ctzll(left));
    const auto of = [at](u32 all_lanes) { return readlane(all_lanes, at); };
    return KvSplit{first + at, of(chunk.zero),   of(begin),
                   of(end),    of(chunk.length), of(chunk.entry)};
  };
  const auto tokens_of = [&](const KvSplit& part) {
    const u64 list = width != 0 ? u64{part.sequence} * width : part.entry;
    return KvPageTable<kPaged>{kv, kv_indices + list, part.end, page_shift, angles};
  };
  u64 left = own_of_chunk();
  // While this is on its way what all parts want is made ready.
  bool is_asked = left != 0;
  if (is_asked) {
    const KvSplit part = part_of(left);
    Tiles reader = tiles_of(lds, tokens_of(part), part);
    if (part.begin != part.end) ask_part(reader, args, u64{part.sequence} * columns + column);
  }
  // Scalar registers are few, and these are wanted at the end, or seldom.
  all.bounds = pointer_in_vgpr(all.bounds), all.lens = pointer_in_vgpr(all.lens);
  out = pointer_in_vgpr(out), lse = pointer_in_vgpr(lse), parts = pointer_in_vgpr(parts),
  counts = pointer_in_vgpr(counts);
  const Common common = {lds,   out,    lse,     parts, counts,     shares,
                         group, worker, workers, slots, value_scale};
  while (true) {
    for (; left != 0; left &= left - 1) {
      const KvSplit part = part_of(left);
      const bool ends = first + kWaveSize >= batch || chunk.next >= to;
      take_and_leave(common, args, tokens_of(part), part, part, u64{part.sequence} * columns,
                     base_column, column,
                     static_cast<i32>(part.length) - static_cast<i32>(unseen_here), is_asked,
                     (left & (left - 1)) != 0 || !ends);
      is_asked = false;
    }
    first += kWaveSize;
    if (first >= batch || chunk.next >= to) return;
    all.bounds = pointer_in_vgpr(all.bounds),
    all.lens = pointer_in_vgpr(all.lens);  // no mask of them is kept
    chunk = SequenceChunk(all, first, chunk.next);
    left = own_of_chunk();
  }
}
