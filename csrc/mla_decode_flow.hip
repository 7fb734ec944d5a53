// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// Decoding with a latent cache, for up to 16 columns (a query's head) at a time: bound by reading
// the cache, which is read once. Q and P are bf16 whatever the cache; sums are fp32.
//
// Layout. split_schedule.h shares the tokens of all sequences out over workgroups. A wave takes
// every fourth tile of its workgroup's part of a sequence (mla_cache.h), and has maxima, sums and
// the result, transposed, for itself: there is no barrier until the part is nearly done. Then the
// four meet in LDS, in their order (mla_meet.h). A part that is all of its sequence becomes the
// result. Others go to `parts`, and up a tree: of four neighbours the last one to come adds them
// up, in their order (mla_tree.h).
//
// Promises. Deterministic: the order of sums follows from lengths, workers and config. The caller
// aligns rows of q and kv to 16 bytes. Pages are a power of two of tokens.
#include "rfops/mla_direct.h"
#include "rfops/mla_meet.h"
#include "rfops/mla_staged.h"
#include "rfops/mla_tree.h"
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
// Tokens to which cuts are rounded up, and what a sequence costs beside its own: equal sequences
// of as many workers each are then cut into equal parts.
constexpr u32 kCut = 64;
static_assert(kLeast >= kCut);

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

constexpr u32 kMeetBytes = kMlaMeetBytes<kSlicesAtOnce>;
static_assert(kWaves == kMlaWaves && kWaves * Tiles::kLds <= kLdsBytes && kMeetBytes <= kLdsBytes);
constexpr u32 kLds = kWaves * Tiles::kLds > kMeetBytes ? kWaves * Tiles::kLds : kMeetBytes;

struct Args {
  const void* q;
  u32 columns, unseen;
  f32 scale;
};

// P of a tile from its scores, and what they change. Tokens from `seen` on are not there.
__device__ inline void soften(F32x4 (&s)[Row::kHalves], Bf16x4 (&p)[Row::kHalves], MlaOwn& own,
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

// This wave's share of a part's tiles.
__device__ inline Tiles tiles_of(LdsBytes* lds, const MlaTokens<kPaged>& tokens,
                                 const MlaPart& part) {
  const u32 wave = wave_in_group();
  return Tiles(lds + wave * Tiles::kLds, tokens, part.begin + wave * Row::kTokens,
               kWaves * Row::kTokens);
}

// Takes them; `is_asked` says that they were asked for.
__device__ inline void take_part(MlaOwn& own, LdsBytes* lds, const Args& args,
                                 const MlaTokens<kPaged>& tokens, const MlaPart& part, u64 row,
                                 i32 seen, bool is_asked) {
  const u32 tiles = (part.end - part.begin + Row::kTokens - 1) / Row::kTokens;
  const u32 count = (tiles + kWaves - 1 - wave_in_group()) / kWaves;
  if (tiles == 0 || (!kSharesQuery && count == 0)) return own.begin();
  Tiles reader = tiles_of(lds, tokens, part);
  MlaQuery q;
  if (!is_asked) reader.ask();
  reader.place();
  if constexpr (kSharesQuery) reader.ask_query(args.q, row);
  Tiles::wait_list<kSharesQuery>();
  if (count != 0) reader.prime();
  own.begin();
  if constexpr (kSharesQuery) {
    Tiles::wait_query(count != 0);
    meet();
    Tiles::read_query(lds, q);
    meet();  // the second tile comes where it was
    if (count == 0) return;
  } else {
    load_query<Row, kQueryFp8>(q, args.q, row);
  }
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
  const u32 last = (tiles + kWaves - 1) / kWaves - 1;
  for (u32 i = 0; i < with_next; ++i) {
    // Their last tiles together: a wave that is behind would be alone with memory at the end.
    if (i + 2 == last) meet();
    take(i, [] { return true; });
  }
  if constexpr (Tiles::kKnowsLast) take(count - 1, [] { return false; });
}

// The four waves' sums: the result, or this worker's part of it.
__device__ inline void finish_part(MlaOwn& own, LdsBytes* lds, const MlaTarget& target,
                                   const MlaPart& part, Shares shares, u32 group, u32 worker,
                                   u32 workers) {
  const u32 lane = lane_in_wave();
  const bool is_whole = part.is_whole();
  MlaNode made;
  made.all = add_waves<Tiles, kSlicesAtOnce>(
      own, lds, [&](const MlaTotals& all) { return is_whole ? target.factor(all) : 1.0f; },
      [&](u32 x, F32x4 four) { made.quads[x] = four; });
  if (!is_whole) {
    not_before(shares.quotient), not_before(shares.rest);  // its divisions, for all parts
    const MlaSlots slots = MlaSlots::of<kCut>(part, shares, group, worker, workers);
    const MlaTree tree = {target.parts, target.counts, target.slots};
    const auto factor = [&](const MlaTotals& all) { return target.factor(all); };
    if (!tree.climb(made, slots.own, slots.count, slots, factor)) return;
  }
  if (thread_in_group() < kMlaColumns) target.store_lse(lane, made.all);
  Tiles::each_quad(own.o, 0, [&](u32 x, F32x4, u32 d) {
    target.store(made.quads[x], lane % kMlaColumns, wave_in_group() * kMlaSlice + d);
  });
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
  Sequences all = {kv_indptr, kv_lens, batch, page_shift, {kCut, 0}};
  SequenceChunk chunk(all, 0, 0);
  const u32 total = batch <= kWaveSize ? chunk.next : all.total(all.tokens());
  const Shares shares(total, workers, total / kLeast);
  const u32 worker = worker_of(id, shares.active, batch, workers);
  if (worker == kNoWorker) return;
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);
  const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
  const f32 scale = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
  const u32 base_column = group * kMlaColumns, own_column = base_column + lane % kMlaColumns;
  const u32 column = own_column < columns ? own_column : columns - 1;
  const u32 unseen_here = unseen == 0 ? 0 : unseen - column / heads;
  const u32 slots = (columns + kMlaColumns - 1) / kMlaColumns * workers * 2;
  const Args args = {q, columns, unseen, scale};
  u32 first = 0, begin, end;
  const auto own_of_chunk = [&] {
    begin = token_at<kCut>(from, chunk.zero, chunk.length);
    end = token_at<kCut>(to, chunk.zero, chunk.length);
    const bool is_mine = chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    return __builtin_amdgcn_ballot_w64(is_mine && first + lane < batch);
  };
  const auto part_of = [&](u64 left) {
    const u32 at = static_cast<u32>(__builtin_ctzll(left));
    const auto of = [at](u32 all_lanes) { return lane_value(all_lanes, at); };
    return MlaPart{first + at, of(chunk.zero),   of(begin),
                   of(end),    of(chunk.length), of(chunk.entry)};
  };
  const auto tokens_of = [&](const MlaPart& part) {
    const u64 list = width != 0 ? u64{part.sequence} * width : part.entry;
    return MlaTokens<kPaged>{kv, kv_indices + list, part.end, page_shift, angles};
  };
  u64 left = own_of_chunk();
  // While this is on its way what all parts want is made ready.
  bool is_asked = left != 0;
  if (is_asked) {
    const MlaPart part = part_of(left);
    if (part.begin != part.end) tiles_of(lds, tokens_of(part), part).ask();
  }
  // Scalar registers are few, and these are wanted at the end, or seldom.
  all.bounds = in_vector(all.bounds), all.lens = in_vector(all.lens);
  out = in_vector(out), lse = in_vector(lse), parts = in_vector(parts), counts = in_vector(counts);
  while (true) {
    for (; left != 0; left &= left - 1) {
      const MlaPart part = part_of(left);
      const u64 row = u64{part.sequence} * columns;
      MlaOwn own;
      take_part(own, lds, args, tokens_of(part), part, row + column,
                static_cast<i32>(part.length) - static_cast<i32>(unseen_here), is_asked);
      is_asked = false;
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
    left = own_of_chunk();
  }
}
