// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// Decoding with a latent cache, for up to 16 columns (a query's head) at a time: bound by reading
// the cache, which is read once. Q and P are bf16 whatever the cache; sums are fp32.
//
// Layout. split_schedule.h shares the tokens of all sequences out over workgroups. A wave takes
// every fourth tile of its workgroup's part of a sequence (mla_cache.h), and has maxima, sums and
// the result, transposed, for itself: there is no barrier until the part is done. Then the four
// meet in LDS, in their order. A part that is all of its sequence becomes the result. Others go to
// `parts`, and up a tree: of 16 neighbours the last one to come adds them up, in their order.
//
// Promises. Deterministic: the order of sums follows from lengths, workers and config. The caller
// aligns rows of q and kv to 16 bytes. Pages are a power of two of tokens.
#include "rfops/block_map.h"
#include "rfops/mla_direct.h"
#include "rfops/mla_staged.h"
#include "rfops/mla_worker.h"

#if !defined(RFOPS_KV_FP8) || !defined(RFOPS_Q_FP8) || !defined(RFOPS_LEAST) || \
    !defined(RFOPS_PAGED) || !defined(RFOPS_ROPE)
#error "mla_decode_flow needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8;
constexpr bool kQueryFp8 = RFOPS_Q_FP8;
constexpr bool kPaged = RFOPS_PAGED;  // pages of more than one token
constexpr bool kRope = RFOPS_ROPE;    // keys are turned by their place in the sequence
constexpr u32 kLeast = RFOPS_LEAST;   // tokens of a worker at least

using Row = MlaRow<kFp8>;
#if defined(__gfx950__)
using Tiles = DirectTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesAtOnce = 4;
#else
using Tiles = StagedTiles<kFp8, kPaged, kRope>;
constexpr u32 kSlicesAtOnce = 2;
#endif
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr f32 kLog2E = 1.44269504088896f;

// Where waves meet: each makes a slice of the result from what the others give away of it.
constexpr u32 kSlice = kMlaValue / kWaves, kGiven = kMlaColumns * kSlice * 4;
constexpr u32 kMeetBytes = kSlicesAtOnce * kWaves * kGiven;
static_assert(kSlice == 128 && kWaves * Tiles::kLds <= kLdsBytes && kMeetBytes <= kLdsBytes);
constexpr u32 kLds = kWaves * Tiles::kLds > kMeetBytes ? kWaves * Tiles::kLds : kMeetBytes;

struct Args {
  const void* q;
  u32 columns, unseen;
  f32 scale;
};

// A wave's own: of column l % 16, the same in all four lanes of it but for `sum`.
struct Own {
  f32 most, sum;
  MlaSums o;
};

// P of a tile from its scores, and what they change. Tokens from `seen` on are not there.
__device__ inline void soften(F32x4 (&s)[Row::kHalves], Bf16x4 (&p)[Row::kHalves], Own& own,
                              f32 scale, u32 first, i32 seen, bool is_last) {
  const u32 g = lane_in_wave() / 16;
  f32 most = kLowest;
#pragma unroll
  for (u32 h = 0; h < Row::kHalves; ++h) {
    s[h] *= scale;
    if (is_last) {
#pragma unroll
      for (u32 r = 0; r < 4; ++r) {
        const i32 token = static_cast<i32>(first + h * 16 + 4 * g + r);
        s[h][r] = token < seen ? s[h][r] : -__builtin_inff();
      }
    }
#pragma unroll
    for (u32 r = 0; r < 4; ++r) most = __builtin_fmaxf(most, s[h][r]);
  }
  most = over_rows(most, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
  most = __builtin_fmaxf(most, own.most);
  const bool is_first = own.most == kLowest;  // nothing to be scaled
  const f32 decay = __builtin_amdgcn_exp2f(own.most - most);
  own.most = most;
  own.sum *= decay;
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
  if (__builtin_amdgcn_ballot_w64(decay != 1.0f && !is_first) != 0) {
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) own.o[d] *= decay;
  }
}

// This wave's tiles of a part.
__device__ inline void take_part(Own& own, LdsBytes* lds, const Args& args,
                                 const MlaTokens<kPaged>& tokens, const MlaPart& part, u64 row,
                                 i32 seen) {
  const u32 wave = wave_in_group(), length = part.end - part.begin;
  const u32 tiles = (length + Row::kTokens - 1) / Row::kTokens;
  const u32 count = (tiles + kWaves - 1 - wave) / kWaves;
  if (count == 0) return;
  Tiles reader(lds + wave * Tiles::kLds, tokens, part.begin + wave * Row::kTokens,
               kWaves * Row::kTokens);
  reader.prime();
  MlaQuery q;
  load_query<Row, kQueryFp8>(q, args.q, row);
  // From here on some column does not see all tokens of a tile.
  const i32 seen_by_all = static_cast<i32>(part.length) - static_cast<i32>(args.unseen);
  const i32 end = static_cast<i32>(part.end), masked = end < seen_by_all ? end : seen_by_all;
  const auto take = [&](u32 i, auto has_next) {
    const u32 first = reader.first_token(i);
    F32x4 s[Row::kHalves];
    Bf16x4 p[Row::kHalves];
    reader.template scores<has_next()>(i, q, s);
    const bool is_last = static_cast<i32>(first + Row::kTokens) > masked;
    soften(s, p, own, args.scale, first, seen, is_last);
    reader.add_values(p, own.o);
  };
  const u32 with_next = Tiles::kKnowsLast ? count - 1 : count;
  for (u32 i = 0; i < with_next; ++i) take(i, [] { return true; });
  if constexpr (Tiles::kKnowsLast) take(count - 1, [] { return false; });
}

// Maxima and sums of all waves; this wave's result becomes its share of theirs.
__device__ inline MlaTotals meet(Own& own, LdsBytes* lds) {
  using Pair = f32 __attribute__((ext_vector_type(2)));
  auto* const all = reinterpret_cast<RFOPS_LDS Pair*>(lds);
  const u32 lane = lane_in_wave();
  own.sum = over_rows(own.sum, [](f32 a, f32 b) { return a + b; });
  sync_group();
  if (lane < kMlaColumns) all[wave_in_group() * kMlaColumns + lane] = Pair{own.most, own.sum};
  sync_group();
  Pair pairs[kWaves];
  MlaTotals found = {kLowest, 0.0f};
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) {
    pairs[w] = all[w * kMlaColumns + lane % kMlaColumns];
    found.most = __builtin_fmaxf(found.most, pairs[w][0]);
  }
#pragma unroll
  for (u32 w = 0; w < kWaves; ++w) {
    found.sum += pairs[w][1] * __builtin_amdgcn_exp2f(pairs[w][0] - found.most);
  }
  sync_group();
  return found;
}

// The sums of the waves' results, of which each wave makes a slice: act(x, four) of a lane's quads.
template <class Act>
__device__ inline void add_waves(const Own& own, f32 factor, LdsBytes* lds, Act act) {
  const u32 wave = wave_in_group(), lane = lane_in_wave();
  // What a wave gives away of a slice, as its lanes have it.
  const auto given = [&](u32 at, u32 from) {
    return reinterpret_cast<RFOPS_LDS F32x4*>(lds + (at * kWaves + from) * kGiven) + lane;
  };
#pragma unroll
  for (u32 first = 0; first < kWaves; first += kSlicesAtOnce) {
    if (first > 0) sync_group();
#pragma unroll
    for (u32 i = 0; i < kSlicesAtOnce; ++i) {
      if (first + i == wave) continue;
      auto* const to = given(i, wave);
      Tiles::each_quad(own.o, first + i,
                       [&](u32 x, F32x4 four, u32) { to[x * kWaveSize] = four * factor; });
    }
    sync_group();
#pragma unroll
    for (u32 i = 0; i < kSlicesAtOnce; ++i) {
      if (first + i != wave) continue;
      F32x4 others[8][kWaves];
#pragma unroll
      for (u32 x = 0; x < 8; ++x) {
#pragma unroll
        for (u32 w = 0; w < kWaves; ++w) {
          if (w != first + i) others[x][w] = given(i, w)[x * kWaveSize];
        }
      }
      keep_order();  // one wait for all of them
      Tiles::each_quad(own.o, first + i, [&](u32 x, F32x4 four, u32) {
        four *= factor;
#pragma unroll
        for (u32 w = 0; w < kWaves; ++w) {
          if (w != first + i) four += others[x][w];
        }
        act(x, four);
      });
    }
  }
}

// The four waves' sums: the result, or this worker's part of it.
__device__ inline void finish_part(Own& own, LdsBytes* lds, const MlaTarget& target,
                                   const MlaPart& part, const Shares& shares, u32 group, u32 worker,
                                   u32 workers) {
  const MlaTotals all = meet(own, lds);
  const f32 share = __builtin_amdgcn_exp2f(own.most - all.most);
  const u32 lane = lane_in_wave(), column = lane % kMlaColumns;
  const bool has_totals = thread_in_group() < kMlaColumns, is_whole = part.is_whole();
  F32x4 made[8];
  add_waves(own, is_whole ? share * target.factor(all) : share, lds,
            [&](u32 x, F32x4 four) { made[x] = four; });
  const auto finish = [&](const F32x4(&quads)[8]) {
    Tiles::each_quad(own.o, 0, [&](u32 x, F32x4, u32 d) {
      target.store(quads[x], column, wave_in_group() * kSlice + d);
    });
  };
  if (is_whole) {
    if (has_totals) target.store_lse(lane, all);
    return finish(made);
  }
  const MlaSlots slots = MlaSlots::of<Row::kTokens>(part, shares, group, worker, workers);
  if (has_totals) target.store_totals(slots(slots.own), lane, all);
  target.store_part(slots(slots.own), 0, made);
  MlaParts from;
  if (climb(target, slots.own, slots.count, column, slots, lds, from)) {
    F32x4 sums[8];
    details::add_parts(sums, target, 0, column, from.count, from.kept, from.of(slots),
                       reinterpret_cast<RFOPS_LDS f32*>(lds),
                       [&](auto& quads) { __builtin_memcpy(quads, made, sizeof(made)); });
    finish(sums);
  }
}

}  // namespace

// Grid: workers of 16 columns, then those of the next 16.
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
                    f32 sm_scale, u32 columns, u32 heads, u32 unseen) {
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const u32 id = group_x() % workers, group = group_x() / workers, lane = lane_in_wave();
  const Sequences all = {kv_indptr, kv_lens, batch, page_shift, {64, 0}};
  SequenceChunk chunk(all, 0, 0);
  const u32 total = all.total(all.tokens());
  const Shares shares(total, workers, total / kLeast);
  if (id >= shares.active) return;
  const u32 worker = xcd_order(id, shares.active);  // those of a sequence share an L2
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
  const f32 scale = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
  const u32 base_column = group * kMlaColumns, own_column = base_column + lane % kMlaColumns;
  const u32 column = own_column < columns ? own_column : columns - 1;
  const u32 unseen_here = unseen == 0 ? 0 : unseen - column / heads;
  const u32 slots = (columns + kMlaColumns - 1) / kMlaColumns * workers * 2;
  // Scalar registers are few, and these are wanted at the end.
  out = in_vector(out), lse = in_vector(lse), parts = in_vector(parts), counts = in_vector(counts);
  for (u32 first = 0;;) {
    const u32 begin = token_at<Row::kTokens>(from, chunk.zero, chunk.length);
    const u32 end = token_at<Row::kTokens>(to, chunk.zero, chunk.length);
    const bool is_mine = chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    const Args args = {q, columns, unseen, scale};
    u64 left = __builtin_amdgcn_ballot_w64(is_mine && first + lane < batch);
    for (; left != 0; left &= left - 1) {
      const u32 at = static_cast<u32>(__builtin_ctzll(left));
      const auto of = [at](u32 all_lanes) { return lane_value(all_lanes, at); };
      const MlaPart part = {first + at, of(chunk.zero), of(begin), of(end), of(chunk.length), 0};
      const u64 row = u64{part.sequence} * columns;
      const u64 list = width != 0 ? u64{part.sequence} * width : of(chunk.entry);
      const MlaTokens<kPaged> tokens = {kv, kv_indices + list, part.end, page_shift, angles};
      Own own = {kLowest, 0.0f, {}};
      take_part(own, lds, args, tokens, part, row + column,
                static_cast<i32>(part.length) - static_cast<i32>(unseen_here));
      const MlaTarget target = {out + (row + base_column) * kMlaValue,
                                lse == nullptr ? nullptr : lse + row + base_column,
                                parts,
                                counts,
                                columns - base_column,
                                slots,
                                value_scale};
      finish_part(own, lds, target, part, shares, group, worker, workers);
      sync_group();  // LDS is the next part's
    }
    first += kWaveSize;
    if (first >= batch || chunk.next >= to) return;
    chunk = SequenceChunk(all, first, chunk.next);
  }
}
