// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// Decoding with a latent cache, for up to 16 columns (a query's head) at a time: bound by reading
// the cache, which is read once. Q and P are bf16 whatever the cache; sums are fp32.
//
// Layout. split_schedule.h shares the tokens of all sequences out over workgroups. A wave takes
// every fourth tile of its workgroup's part of a sequence (mla_cache.h), and has maxima, sums and
// the result, transposed, for itself: there is no barrier until the part is done. Then the four
// meet in LDS, in their order. A part that is all of its sequence becomes the result; others go to
// `parts` as they are, for mla_decode_reduce.
//
// Promises. Deterministic: the order of sums follows from lengths, workers and config. The caller
// aligns rows of q and kv to 16 bytes. Pages are a power of two of tokens.
#include "rfops/mla_direct.h"
#include "rfops/mla_staged.h"
#include "rfops/split_schedule.h"

#if !defined(RFOPS_KV_FP8) || !defined(RFOPS_Q_FP8) || !defined(RFOPS_LEAST)
#error "mla_decode_flow needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8;
constexpr bool kQueryFp8 = RFOPS_Q_FP8;
constexpr u32 kLeast = RFOPS_LEAST;  // tokens of a worker at least

using Row = MlaRow<kFp8>;
#if defined(__gfx950__)
using Tiles = DirectTiles<kFp8>;
constexpr u32 kSlicesAtOnce = 4;
#else
using Tiles = StagedTiles<kFp8>;
constexpr u32 kSlicesAtOnce = 1;
#endif
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr f32 kLog2E = 1.44269504088896f, kLn2 = 0.693147180559945f;
constexpr f32 kLowest = -1e30f;  // a maximum that no score is below, and finite

// Where waves meet: maxima and sums of columns, then slices of 128 elements of the result, of which
// a column's lie 132 words apart.
constexpr u32 kSlice = 128, kPitch = kSlice + 4, kSlices = kMlaValue / kSlice;
constexpr u32 kMeetBytes = kWaves * kMlaColumns * kPitch * 4;
static_assert(kWaves * Tiles::kLds <= kLdsBytes && kSlicesAtOnce * kMeetBytes <= kLdsBytes, "LDS");
constexpr u32 kLds =
    kWaves * Tiles::kLds > kSlicesAtOnce * kMeetBytes ? kWaves * Tiles::kLds : kSlicesAtOnce * kMeetBytes;

struct Args {
  bf16* out;   // [rows, 512], rows of q
  f32* lse;    // [rows], or null
  f32* parts;  // [groups, 2 workers, 16, 512], then [groups, 2 workers, 16, 2]
  const void* q;
  u32 columns, heads, unseen, workers;
  f32 scale, value_scale;
};

// What a worker has of a sequence.
struct Part {
  u32 sequence, begin, end, length;
  __device__ bool is_whole() const { return begin == 0 && end == length; }
};

// A wave's own: of column l % 16, the same in all four lanes of it but for `sum`.
struct Own {
  f32 most, sum;
  MlaSums o;
};

__device__ inline void load_query(MlaQuery& q, const void* all, u64 row) {
  const u32 g = lane_in_wave() / 16;
#pragma unroll
  for (u32 i = 0; i < kMlaOperands; ++i) {
    const u64 at = row * kMlaKey + Row::element(i, g);
    if constexpr (kQueryFp8) {
      const U32x2 eight = *reinterpret_cast<const U32x2*>(static_cast<const u8*>(all) + at);
      q[i] = widen_8(eight[0], eight[1]);
    } else {
      q[i] = *reinterpret_cast<const Bf16x8*>(static_cast<const bf16*>(all) + at);
    }
  }
#pragma unroll
  for (u32 i = 0; i < kMlaOperands; ++i) pin(q[i]);  // waited for here, not in the loop
}

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
  if (__builtin_amdgcn_ballot_w64(decay != 1.0f) != 0) {
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) own.o[d] *= decay;
  }
}

// This wave's tiles of a part.
__device__ inline void take_part(Own& own, LdsBytes* lds, const Args& args, const MlaTokens& tokens,
                                 const Part& part, u64 row, i32 seen) {
  const u32 wave = wave_in_group();
  const u32 tiles = (part.end - part.begin + Row::kTokens - 1) / Row::kTokens;
  const u32 count = (tiles + kWaves - 1 - wave) / kWaves;
  if (count == 0) return;
  Tiles reader(lds + wave * Tiles::kLds, tokens, part.begin + wave * Row::kTokens,
               kWaves * Row::kTokens);
  MlaQuery q;
  load_query(q, args.q, row);
  reader.prime();
  // From here on some column does not see all tokens of a tile.
  const i32 seen_by_all = static_cast<i32>(part.length) - static_cast<i32>(args.unseen);
  const i32 end = static_cast<i32>(part.end), masked = end < seen_by_all ? end : seen_by_all;
  for (u32 i = 0; i < count; ++i) {
    const u32 first = reader.first_token(i);
    reader.advance(i, i + 1 < count);
    F32x4 s[Row::kHalves];
    Bf16x4 p[Row::kHalves];
    reader.scores(q, s);
    const bool is_last = static_cast<i32>(first + Row::kTokens) > masked;
    soften(s, p, own, args.scale, first, seen, is_last);
    reader.add_values(p, own.o);
  }
}

struct Totals {
  f32 most, sum;
};

// Maxima and sums of all waves; this wave's result becomes its share of theirs.
__device__ inline Totals meet(Own& own, LdsBytes* lds) {
  using Pair = f32 __attribute__((ext_vector_type(2)));
  auto* const all = reinterpret_cast<RFOPS_LDS Pair*>(lds);
  const u32 lane = lane_in_wave();
  own.sum = over_rows(own.sum, [](f32 a, f32 b) { return a + b; });
  sync_group();
  if (lane < kMlaColumns) all[wave_in_group() * kMlaColumns + lane] = Pair{own.most, own.sum};
  sync_group();
  Pair pairs[kWaves];
  Totals found = {kLowest, 0.0f};
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

// The sum of the waves' results: each thread has 8 elements of a column, store(eight, column, d).
template <class Store>
__device__ inline void add_waves(const Own& own, f32 factor, LdsBytes* lds, Store store) {
  auto* const words = reinterpret_cast<RFOPS_LDS f32*>(lds);
  const u32 thread = thread_in_group(), column = thread / 16, at = thread % 16 * 8;
  const u32 to = (wave_in_group() * kMlaColumns + lane_in_wave() % 16) * kPitch;
#pragma unroll
  for (u32 first = 0; first < kSlices; first += kSlicesAtOnce) {
#pragma unroll
    for (u32 i = 0; i < kSlicesAtOnce; ++i) {
      Tiles::each_quad(own.o, first + i, [&](F32x4 four, u32 d) {
        *reinterpret_cast<RFOPS_LDS F32x4*>(words + i * (kMeetBytes / 4) + to + d) = four * factor;
      });
    }
    sync_group();
#pragma unroll
    for (u32 i = 0; i < kSlicesAtOnce; ++i) {
      F32x4 low = {}, high = {};
#pragma unroll
      for (u32 w = 0; w < kWaves; ++w) {
        const auto* from = words + i * (kMeetBytes / 4) + (w * kMlaColumns + column) * kPitch + at;
        low += *reinterpret_cast<const RFOPS_LDS F32x4*>(from);
        high += *reinterpret_cast<const RFOPS_LDS F32x4*>(from + 4);
      }
      store(low, high, column, (first + i) * kSlice + at);
    }
    sync_group();
  }
}

__device__ inline void finish_part(Own& own, LdsBytes* lds, const Args& args, const Part& part,
                                   u32 group, u32 worker) {
  using Bf16x8 = rfops::Bf16x8;
  const Totals all = meet(own, lds);
  const f32 share = __builtin_amdgcn_exp2f(own.most - all.most);
  const u32 here = args.columns - group * kMlaColumns;  // columns of this group, or more
  const u64 row = u64{part.sequence} * args.columns + group * kMlaColumns;
  const u32 lane = lane_in_wave();
  if (part.is_whole()) {
    const bool is_none = all.sum == 0.0f;
    const f32 factor = is_none ? 0.0f : share * args.value_scale / all.sum;
    if (args.lse != nullptr && thread_in_group() < kMlaColumns && lane < here) {
      const f32 log = all.most + __builtin_amdgcn_logf(all.sum);
      args.lse[row + lane] = is_none ? -__builtin_inff() : log * kLn2;
    }
    add_waves(own, factor, lds, [&](F32x4 low, F32x4 high, u32 column, u32 d) {
      if (column >= here) return;
      const F32x4 four[2] = {low, high};
      Bf16x8 eight;
#pragma unroll
      for (u32 e = 0; e < 8; ++e) eight[e] = static_cast<bf16>(four[e / 4][e % 4]);
      *reinterpret_cast<Bf16x8*>(args.out + (row + column) * kMlaValue + d) = eight;
    });
    return;
  }
  const u64 slot = (u64{group} * args.workers + worker) * 2 + (part.begin == 0 ? 1 : 0);
  const u64 slots = u64{(args.columns + kMlaColumns - 1) / kMlaColumns} * args.workers * 2;
  if (thread_in_group() < kMlaColumns) {
    f32* const totals = args.parts + (slots * kMlaValue + slot * 2) * kMlaColumns + lane * 2;
    totals[0] = all.most;
    totals[1] = all.sum;
  }
  add_waves(own, share, lds, [&](F32x4 low, F32x4 high, u32 column, u32 d) {
    f32* const to = args.parts + (slot * kMlaColumns + column) * kMlaValue + d;
    *reinterpret_cast<F32x4*>(to) = low;
    *reinterpret_cast<F32x4*>(to + 4) = high;
  });
}

}  // namespace

// Grid: workers of 16 columns, then those of the next 16.
extern "C" __global__ void
__attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
mla_decode_flow(bf16* __restrict__ out, f32* __restrict__ lse, f32* __restrict__ parts,
                const void* __restrict__ q,          // [batch * columns, 576]
                const u8* __restrict__ kv,           // [pages, page, 576]
                const i32* __restrict__ kv_indptr,   // [batch + 1], of a list
                const i32* __restrict__ kv_indices,  // of a list, or [batch, width]
                const i32* __restrict__ kv_lens,     // [batch], or null
                const f32* __restrict__ kv_scale,    // [1], or null
                const f32* __restrict__ q_scale,     // [1], or null
                f32 sm_scale, u32 batch, u32 columns, u32 heads, u32 unseen, u32 page_shift,
                u32 width, u32 workers) {
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const u32 worker = group_x() % workers, group = group_x() / workers;
  const f32 value_scale = kv_scale == nullptr ? 1.0f : *kv_scale;
  const f32 scale = sm_scale * kLog2E * value_scale * (q_scale == nullptr ? 1.0f : *q_scale);
  const Args args = {out, lse, parts, q, columns, heads, unseen, workers, scale, value_scale};

  const Sequences all = {kv_indptr, kv_lens, batch, page_shift};
  const u32 total = all.total();
  const Shares shares(total, workers, kLeast);
  if (worker >= shares.active) return;
  const u32 from = shares.begin(worker), to = shares.begin(worker + 1);

  const u32 lane = lane_in_wave(), own_column = group * kMlaColumns + lane % kMlaColumns;
  const u32 column = own_column < columns ? own_column : columns - 1;
  const u32 unseen_here = unseen == 0 ? 0 : unseen - column / heads;

  for (u32 first = 0, base = 0; first < batch && base < to; first += kWaveSize) {
    const SequenceChunk chunk(all, first, base);
    base = chunk.next;
    const u32 begin = token_at<Row::kTokens>(from, chunk.start, chunk.length);
    const u32 end = token_at<Row::kTokens>(to, chunk.start, chunk.length);
    const bool is_mine =
        chunk.length == 0 ? from <= chunk.start && chunk.start < to : begin < end;
    u64 left = __builtin_amdgcn_ballot_w64(is_mine && first + lane < batch);
    for (; left != 0; left &= left - 1) {
      const u32 at = static_cast<u32>(__builtin_ctzll(left));
      const Part part = {first + at, lane_value(begin, at), lane_value(end, at),
                         lane_value(chunk.length, at)};
      const u64 list = width != 0 ? u64{part.sequence} * width
                                  : static_cast<u64>(kv_indptr[part.sequence]);
      const MlaTokens tokens = {kv, kv_indices + list, part.end, page_shift};
      Own own = {kLowest, 0.0f, {}};
      take_part(own, lds, args, tokens, part, u64{part.sequence} * columns + column,
                static_cast<i32>(part.length) - static_cast<i32>(unseen_here));
      finish_part(own, lds, args, part, group, worker);
    }
  }
}
