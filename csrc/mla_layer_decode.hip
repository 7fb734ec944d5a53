// out[z][m, n] = sum_k x[z][m, k] * w[z][n, k],  bf16, sums in fp32: the products of an MLA layer.
//
// kDown     n goes over q_down's rows, then kv_down's, whose results are rows of the cache; and the
//           lengths and the block table that attention wants are written
// kQuery    q_up: each head's first 128 columns as they are, its last 64 turned by RoPE into q
// kAbsorb   of each head z; w lies as [K, N]: into q's first 512
// kPlain    of each head z, or of one
//
// For up to 128 rows of x at a time, w is read once. Layout. A workgroup has 16 kMTiles rows of x
// and 64 kNTiles of w, and every kSplit-th step of 64 of K: what the kSplit read at a time lies
// side by side. A wave has all of these rows of x and 16 kNTiles of w, which go straight to where
// the matrix cores take them, two steps ahead; x goes through registers to one of two buffers in
// LDS (lds_tile.h). w is operand A: a lane ends with 4 neighbours of a row of out. The workgroups'
// sums meet in a workspace (split_reduce.h).
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of x and w to 16 bytes and of out to 8; K is a multiple of 32, N of 4.
#include "rfops/block_map.h"
#include "rfops/epilogue.h"
#include "rfops/lds_tile.h"
#include "rfops/matrix16.h"
#include "rfops/memory.h"
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
constexpr u32 kPieces = 2, kPieceOfK = 32, kStep = kPieces * kPieceOfK;
constexpr u32 kTurn = kSplit * kStep;  // of K: each of the workgroups has a step of it
constexpr u32 kNope = 128, kRoped = 192, kLatent = 512, kCacheRow = 576;
constexpr u32 kRowsAtOnce = kThreads / kRowChunks;  // of x that the workgroup loads
constexpr u32 kPasses = (kM + kRowsAtOnce - 1) / kRowsAtOnce;

// A wave of kQuery has both halves of what it turns: its two tiles are 32 rows apart.
constexpr u32 kTileStep = kStage == kQuery ? 32 : kTileRows;
constexpr u32 kSpan = (kNTiles - 1) * kTileStep + kTileRows;

static_assert(kStage != kQuery || kNTiles == 2, "a wave has 16 pairs");
static_assert(kStage != kAbsorb || kNTiles == 4, "of [K, N] four neighbours are loaded at once");
static_assert(kStep * 2 == kRowBytes, "a row of LDS");

using Split = SplitTile<kSplit, kMTiles * kNTiles * kThreads, kThreads>;

// A wave's rows of w: 32 of K of them as operands. Of [K, N] a lane has 8 of K of four neighbours
// of N, still to be turned round.
struct Weights {
  const bf16* first;
  u32 bytes, row, k_end;

  __device__ void load(U32x4 (&to)[kNTiles], u32 k) const {
    const u32 lane = lane_in_wave(), own = lane % kTileRows, g = lane / kTileRows;
    const Buffer rows = make_buffer(first, k < k_end ? bytes : 0);  // beyond K nothing is touched
    if constexpr (kTurnsW) {
#pragma unroll
      for (u32 e = 0; e < 8; ++e) {
        const auto two = load_dwords<2>(rows, g * 8 * row + own * 8, (k + e) * row);
        to[e / 2][e % 2 * 2] = two.dword[0];
        to[e / 2][e % 2 * 2 + 1] = two.dword[1];
      }
    } else {
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) {
        to[n] = load_16<kStreamed>(rows, own * row + g * 16, n * kTileStep * row + k * 2);
      }
    }
  }
};

// Row n of w as an operand; of [K, N] every fourth of them, from n on.
__device__ inline U32x4 row_of(const U32x4 (&w)[kNTiles], u32 n) {
  if constexpr (!kTurnsW) return w[n];
  U32x4 made;
#pragma unroll
  for (u32 e = 0; e < 8; e += 2) {
    const u32 low = w[e / 2][n / 2], high = w[e / 2][2 + n / 2];
    made[e / 2] = __builtin_amdgcn_perm(high, low, n % 2 ? 0x07060302 : 0x05040100);
  }
  return made;
}

// The workgroup's rows of x, a step at a time: 128 bytes of a row by eight threads.
struct Rows {
  Buffer rows;
  u32 row, k_end;
  U32x4 own[2][kPasses];  // of two steps

  __device__ void load(u32 s, u32 k) {
    const u32 chunk = thread_in_group() % kRowChunks, first = thread_in_group() / kRowChunks;
    const u32 outside = k + chunk * 8 < k_end ? 0 : kOutside;
#pragma unroll
    for (u32 i = 0; i < kPasses; ++i) {
      own[s][i] =
          load_16(rows, (first * row + chunk * kVecBytes) | outside, i * kRowsAtOnce * row + k * 2);
    }
  }
  __device__ void store(u32 s, LdsBytes* to) const {
    const u32 chunk = thread_in_group() % kRowChunks, first = thread_in_group() / kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kPasses; ++i) {
      const u32 own_row = first + i * kRowsAtOnce;
      if (kM % kRowsAtOnce == 0 || own_row < kM) {
        *reinterpret_cast<RFOPS_LDS U32x4*>(to + lds_at(own_row, chunk)) = own[s][i];
      }
    }
  }
};

// All waves meet, and see what they wrote to LDS; loads from memory stay on their way.
__device__ inline void sync_lds() {
  wait_lds();
  meet();
}

// From k on, up to both ends. Loads come back in order: rows of x are asked for before the weights
// of their step, so that no wait for x waits for those.
__device__ inline void multiply_all(F32x4 (&sums)[kMTiles * kNTiles], const Weights& in, Rows& x,
                                    u32 k) {
  __shared__ __attribute__((aligned(16))) u8 memory[2][kM * kRowBytes];
  U32x4 w[2][kPieces][kNTiles];
  const LdsPieces pieces = lds_pieces(lane_in_wave());
  const auto buffer = [&](u32 s) { return (LdsBytes*)memory[s]; };
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
    x.load(s, k + s * kTurn);
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) in.load(w[s][p], k + s * kTurn + p * kPieceOfK);
    keep_order();
  }
  x.store(0, buffer(0));
  sync_lds();
  const auto take = [&](u32 s, u32 at) {
    x.load(s, at + 2 * kTurn);
    keep_order();
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
      const LdsBytes* const from = buffer(s) + (p == 0 ? pieces.low : pieces.high);
      U32x4 rows[kMTiles];
#pragma unroll
      for (u32 m = 0; m < kMTiles; ++m) rows[m] = lds_load_16(from + m * kLdsTile);
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) {
        const U32x4 own = row_of(w[s][p], n);
#pragma unroll
        for (u32 m = 0; m < kMTiles; ++m) {
          F32x4& sum = sums[m * kNTiles + n];
          sum = multiply_16x16<bf16>(own, rows[m], sum);
        }
      }
      in.load(w[s][p], at + 2 * kTurn + p * kPieceOfK);
      keep_order();
    }
    x.store(s ^ 1, buffer(s ^ 1));
    sync_lds();
  };
  for (; k < in.k_end; k += 2 * kTurn) {
    take(0, k);
    take(1, k + kTurn);
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
  const u32 head = at.n / tiles, n_tile = at.n % tiles, lane = lane_in_wave();
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
  const Weights weights = {rows_of + (kTurnsW ? own_n : u64{own_n} * k),
                           kTurnsW ? (k * n - own_n) * 2 : columns * k * 2, (kTurnsW ? n : k) * 2,
                           k};
  Rows x_rows = {make_buffer(x + u64{m0} * x_row + head * x_head, ((rows - 1) * x_row + k) * 2),
                 x_row * 2, k};
  F32x4 sums[kMTiles * kNTiles] = {};
  multiply_all(sums, weights, x_rows, at.split * kStep);
  if constexpr (kSplit > 1) {
    if (!Split(workspace, counts, at.m * tiles * heads + at.n).reduce(sums, at.split)) return;
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
