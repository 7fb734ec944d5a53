// out[z][m, n] = sum_k x[z][m, k] * w[z][n, k],  bf16, sums in fp32: the products of an MLA layer.
//
// kDown     n goes over q_down's rows, then kv_down's, whose results are rows of the cache; and the
//           lengths and the block table that attention wants are written
// kQuery    q_up: each head's first 128 columns as they are, its last 64 turned by RoPE into q
// kAbsorb   of each head z; w lies as [K, N]: into q's first 512
// kPlain    of each head z, or of one
//
// Workgroups that read the same rows of w are neighbours in an L2, so that memory gives w once for
// many rows of x. Layout. A workgroup has 16 kMTiles rows of x, up to 128, and 64 kNTiles of w, and
// every kSplit-th step of 128 of K: what the kSplit read at a time lies side by side. A wave has
// all of these rows of x and 16 kNTiles of w. Both go through registers to LDS (lds_tile.h): x,
// half a step at a time, to one of two buffers for all waves; w to the wave's own, two steps ahead,
// 256 bytes of a row at once, as loads straight to where the matrix cores take it would be 64
// pieces each, and open a row of memory for each line. w is operand A: a lane ends with 4
// neighbours of a row of out. The workgroups' sums meet in a workspace (split_reduce.h). kAbsorb,
// whose K is 128, has w in registers.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of x and w to 16 bytes and of out to 8; K is a multiple of 32, N of 4.
#include "rfops/block_map.h"
#include "rfops/epilogue.h"
#include "rfops/lds_tile.h"
#include "rfops/matrix16.h"
#include "rfops/product_rows.h"
#include "rfops/rope.h"
#include "rfops/split_reduce.h"
#include "rfops/waits.h"

#if !defined(RFOPS_STAGE) || !defined(RFOPS_M_TILES) || !defined(RFOPS_N_TILES) || \
    !defined(RFOPS_SPLIT)
#error "mla_layer_decode needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

enum Stage : u32 { kDown, kQuery, kAbsorb, kPlain };
constexpr u32 kStage = RFOPS_STAGE;
constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w, of a wave
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr bool kTurnsW = kStage == kAbsorb;
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows, kOwnN = kNTiles * kTileRows, kN = kWaves * kOwnN;
constexpr u32 kPieces = 2, kPieceOfK = 32, kHalfStep = kPieces * kPieceOfK;  // LDS has half a step
constexpr u32 kStep = 2 * kHalfStep;
constexpr u32 kTurn = kSplit * kStep;  // of K: each of the workgroups has a step of it
constexpr u32 kNope = 128, kRoped = 192, kLatent = 512, kCacheRow = 576;
// A wave of kQuery has both halves of what it turns: its two tiles are 32 rows apart.
constexpr u32 kTileStep = kStage == kQuery ? 32 : kTileRows;
constexpr u32 kSpan = (kNTiles - 1) * kTileStep + kTileRows;

static_assert(kStage != kQuery || kNTiles == 2, "a wave has 16 pairs");
static_assert(!kTurnsW || (kNTiles == 4 && kSplit == 1), "of [K, N] four neighbours are loaded");

// LDS: two buffers of x, then each wave's rows of w, as two halves of a step.
constexpr u32 kXBytes = kM * kRowBytes, kWHalf = kOwnN * kRowBytes;
static_assert(kHalfStep * 2 == kRowBytes && kStep * 2 == kPairBytes, "rows of LDS");
constexpr u32 kLds = 2 * kXBytes + (kTurnsW ? 0 : kWaves * 2 * kWHalf);
static_assert(kLds <= kLdsBytes);

using Split = SplitTile<kSplit, kMTiles * kNTiles * kThreads, kThreads>;

using Weights = WaveRows<kOwnN, kTileStep>;
using Rows = GroupRows<kM, kThreads>;
using TurnedWeights = TurnedRows<kNTiles>;

// All waves meet, and see what they wrote to LDS; loads from memory stay on their way.
__device__ inline void sync_lds() {
  wait_lds();
  meet();
}

using Sums = F32x4[kMTiles * kNTiles];
using Operands = U32x4[kMTiles];

// between(m) before the instructions of each m: what lies there hides behind them.
template <class OfW, class Between>
__device__ inline void multiply_piece(Sums& sums, const Operands& rows, OfW of_w, Between between) {
#pragma unroll
  for (u32 m = 0; m < kMTiles; ++m) {
    between(m);
    keep_order();
#pragma unroll
    for (u32 n = 0; n < kNTiles; ++n) {
      F32x4& sum = sums[m * kNTiles + n];
      sum = multiply_16x16<bf16>(of_w(n), rows[m], sum);
    }
  }
}

// act(i) of the m-th share of kCount.
template <u32 kCount, class Act>
__device__ inline void each_of_share(u32 m, Act act) {
#pragma unroll
  for (u32 i = m * kCount / kMTiles; i < (m + 1) * kCount / kMTiles; ++i) act(i);
}

// From k on, up to both ends. Loads come back in order: each is asked for behind those that are
// waited for earlier. Between the instructions of a piece the next one is read from LDS.
[[maybe_unused]] __device__ inline void multiply_all(Sums& sums, Weights& w, Rows& x, u32 k,
                                                     LdsBytes* lds) {
  const LdsPieces pieces = lds_pieces(lane_in_wave());
  LdsBytes* const own = lds + 2 * kXBytes + wave_in_group() * (2 * kWHalf);
  Operands rows[kPieces];
  U32x4 of_w[kPieces][kNTiles];
  const auto read = [&](u32 half, u32 p, u32 m) {
    const u32 place = p == 0 ? pieces.low : pieces.high;
    each_of_share<kNTiles>(
        m, [&](u32 n) { of_w[p][n] = lds_load_16(own + half * kWHalf + n * kLdsTile + place); });
    rows[p][m] = lds_load_16(lds + half * kXBytes + place + m * kLdsTile);
  };
  const auto each = [](u32 count, auto act) {
#pragma unroll
    for (u32 i = 0; i < count; ++i) act(i);
  };
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
    each(Rows::kLoads, [&](u32 i) { x.load(s, k + s * kHalfStep, i); });
    each(Weights::kLoads, [&](u32 i) { w.load(s, k + s * kTurn, i); });
    keep_order();
  }
  each(Rows::kLoads, [&](u32 i) { x.store(0, lds, i); });
  each(Rows::kLoads, [&](u32 i) { x.load(0, k + kTurn, i); });
  each(Weights::kLoads, [&](u32 i) { w.store(0, own, i); });
  sync_lds();
  each(kMTiles, [&](u32 m) { read(0, 0, m); });
  // Buffers change in a half's midst: those who read the other one are behind the last such place.
  const auto take = [&](u32 s, u32 at) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 next = half ^ 1;
      multiply_piece(
          sums, rows[0], [&](u32 n) { return of_w[0][n]; },
          [&](u32 m) {
            read(half, 1, m);
            each_of_share<Rows::kLoads>(m, [&](u32 i) { x.store(next, lds + next * kXBytes, i); });
            if (half == 0)
              each_of_share<Weights::kLoads>(m, [&](u32 i) { w.load(s, at + 2 * kTurn, i); });
          });
      // The wave's own reads of w are behind it; others have none.
      if (half == 1) each(Weights::kLoads, [&](u32 i) { w.store(s ^ 1, own, i); });
      sync_lds();
      multiply_piece(
          sums, rows[1], [&](u32 n) { return of_w[1][n]; },
          [&](u32 m) {
            read(next, 0, m);
            each_of_share<Rows::kLoads>(
                m, [&](u32 i) { x.load(next, at + kTurn + (half == 0 ? kHalfStep : kTurn), i); });
          });
    }
  };
  for (; k < w.k_end; k += 2 * kTurn) {
    take(0, k);
    take(1, k + kTurn);
  }
  sync_lds();  // what was read ahead
}
[[maybe_unused]] __device__ inline void multiply_all(Sums& sums, const TurnedWeights& in, Rows& x,
                                                     u32 k, LdsBytes* lds) {
  U32x4 w[2][kPieces][kNTiles];
  const LdsPieces pieces = lds_pieces(lane_in_wave());
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
#pragma unroll
    for (u32 i = 0; i < Rows::kLoads; ++i) x.load(s, k + s * kHalfStep, i);
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) in.load(w[s][p], k + s * kHalfStep + p * kPieceOfK);
    keep_order();
  }
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
#pragma unroll
    for (u32 i = 0; i < Rows::kLoads; ++i) x.store(s, lds + s * kXBytes, i);
    sync_lds();
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
      Operands rows;
#pragma unroll
      for (u32 m = 0; m < kMTiles; ++m) {
        rows[m] =
            lds_load_16(lds + s * kXBytes + (p == 0 ? pieces.low : pieces.high) + m * kLdsTile);
      }
      multiply_piece(sums, rows, [&](u32 n) { return in.row_of(w[s][p], n); }, [](u32) {});
    }
  }
}

using Four4 = Four<bf16>;
__device__ inline void put(bf16* at, F32x4 four) {
  *reinterpret_cast<Four4*>(at) = __builtin_convertvector(four, Four4);
}

// 16 pairs of a head's last 64 columns, from d on: turned by the row's angles, after the product
// has been rounded.
__device__ inline void put_turned(bf16* at, const F32x4* total, const bf16* angles) {
  using T = details::Turned<4>;
  auto low = T::rounded(total[0]), high = T::rounded(total[1]);
  turn<4>(low, high, T::widen(*reinterpret_cast<const Four4*>(angles)),
          T::widen(*reinterpret_cast<const Four4*>(angles + kTurnedHalf)));
  put(at, low);
  put(at + kTurnedHalf, high);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(1, 2)))
mla_layer_decode(bf16* __restrict__ out,      // rows out_row apart, heads out_head
                 const bf16* __restrict__ x,  // [M, K]; rows x_row apart, heads x_head
                 const bf16* __restrict__ w,  // [N, K] or [K, N], heads w_head apart, from w_first
                 bf16* __restrict__ other,    // the cache [M, L, 576]; of kQuery q
                 const bf16* __restrict__ w_other,   // kv_down; kDown
                 const bf16* __restrict__ angles,    // [L or more, 64]; kQuery
                 const i32* __restrict__ positions,  // [M], or null: `start`
                 i32* __restrict__ lens,             // [M]; kDown writes it
                 i32* __restrict__ table,            // [M, width]; likewise
                 void* __restrict__ workspace,       // SplitTile; with kSplit > 1
                 u32* __restrict__ counts,           // [tiles], zeros
                 u32 m, u32 n, u32 n_other, u32 heads, u32 k, u32 x_row, u32 x_head, u32 w_first,
                 u32 w_head, u32 out_row, u32 out_head, u32 start, u32 cache_rows, u32 width) {
  const u32 own_tiles = (n + kN - 1) / kN, tiles = own_tiles + (n_other + kN - 1) / kN;
  const Block at = own_block<4, kSplit>((m + kM - 1) / kM, tiles * heads);
  const u32 head = as_scalar(at.n / tiles), n_tile = as_scalar(at.n % tiles), lane = lane_in_wave();
  const u32 m0 = at.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const bool is_other = n_tile >= own_tiles;
  const u32 n0 = (is_other ? n_tile - own_tiles : n_tile) * kN;
  const u32 all_n = is_other ? n_other : n;
  const auto position = [&](u32 row) {
    return positions == nullptr ? start : static_cast<u32>(positions[row]);
  };
  if constexpr (kStage == kDown) {
    const u32 threads = ((m + kM - 1) / kM) * tiles * kSplit * kThreads;
    for (u32 i = group_x() * kThreads + thread_in_group(); i < m * width; i += threads) {
      table[i] = static_cast<i32>(i);
      if (i < m) lens[i] = static_cast<i32>(position(i)) + 1;
    }
  }
  const u32 wave = wave_in_group();
  const u32 own_n = n0 + (kStage == kQuery ? wave / 2 * 64 + wave % 2 * 16 : wave * kOwnN);
  const u32 there = own_n < all_n ? all_n - own_n : 0, columns = there < kSpan ? there : kSpan;
  const bf16* const rows_of = (is_other ? w_other : w) + w_first + u64{head} * w_head;
  Rows x_rows = {make_buffer(x + u64{m0} * x_row + head * x_head, ((rows - 1) * x_row + k) * 2),
                 x_row * 2,
                 k,
                 {}};
  Sums sums = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  if constexpr (kTurnsW) {
    const TurnedWeights weights = {rows_of + own_n, (k * n - own_n) * 2, n * 2, k};
    multiply_all(sums, weights, x_rows, 0, lds);
  } else {
    const bf16* const own_rows = scalar_address(rows_of + u64{own_n} * k);
    Weights weights = {make_buffer(own_rows, as_scalar(columns * k * 2)), k * 2, k, {}};
    multiply_all(sums, weights, x_rows, at.split * kStep, lds);
  }
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, at.m * tiles * heads + at.n);
    if (!tile.reduce(sums, at.split, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
  }
  if (columns == 0) return;
#pragma unroll
  for (u32 m_tile = 0; m_tile < kMTiles; ++m_tile) {
    const F32x4* const total = sums + m_tile * kNTiles;
    const u32 row = m0 + m_tile * kTileRows + lane % kTileRows, g = lane / kTileRows;
    if (row >= m) continue;
    bf16* to = out + u64{row} * out_row + head * out_head + own_n;
    if constexpr (kStage == kDown) {
      if (is_other) to = other + (u64{row} * cache_rows + position(row)) * kCacheRow + own_n;
    }
    if constexpr (kStage == kQuery) {
      const u32 of = own_n / kRoped, part = own_n % kRoped;
      if (part >= kNope) {
        const u32 d = part - kNope + g * 4;
        bf16* const roped = other + (u64{row} * (n / kRoped) + of) * kCacheRow + kLatent + d;
        put_turned(roped, total, angles + u64{position(row)} * kTurned + d);
        continue;
      }
      to = out + u64{row} * out_row + of * kNope + part;
    }
#pragma unroll
    for (u32 i = 0; i < kNTiles; ++i) {
      if constexpr (kTurnsW) {  // every fourth column
        put(to + g * 16 + i * 4, F32x4{total[0][i], total[1][i], total[2][i], total[3][i]});
      } else if (i * kTileStep + g * 4 < columns) {
        put(to + i * kTileStep + g * 4, total[i]);
      }
    }
  }
}
