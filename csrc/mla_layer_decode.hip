// out[z][m, n] = sum_k x[z][m, k] * w[z][n, k],  bf16, sums in fp32: the products of an MLA layer.
//
// kDown     n goes over q_down's rows, then kv_down's, whose results are rows of the cache; and the
//           lengths and the block table that attention wants are written
// kQuery    q_up: each head's first 128 columns as they are, its last 64 turned by RoPE into q
// kAbsorb   of each head z; w lies as [K, N]: into q's first 512
// kPlain    of each head z, or of one
//
// For up to 128 rows of x at a time: w is read once, from memory to registers. Layout. A workgroup
// has 16 kMTiles rows of x and 16 kNTiles rows of w. Its waves, and kSplit workgroups, take turns
// along K, 32 kPieces of it at a time; each has kStages turns on their way, straight to where the
// matrix cores take them: no barrier until K is done. w is operand A: a lane ends with 4 neighbours
// of a row of out. Waves' sums meet in LDS, in their order, workgroups' in a workspace.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of x and w to 16 bytes and of out to 8; K is a multiple of 32, N of 4.
#include "rfops/block_map.h"
#include "rfops/epilogue.h"
#include "rfops/matrix16.h"
#include "rfops/memory.h"
#include "rfops/rope.h"
#include "rfops/split_reduce.h"

#if !defined(RFOPS_STAGE) || !defined(RFOPS_M_TILES) || !defined(RFOPS_N_TILES) || \
    !defined(RFOPS_STAGES) || !defined(RFOPS_SPLIT)
#error "mla_layer_decode needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

enum Stage : u32 { kDown, kQuery, kAbsorb, kPlain };
constexpr u32 kStage = RFOPS_STAGE;
constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w
constexpr u32 kStages = RFOPS_STAGES;   // turns of a wave on their way
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr bool kTurnsW = kStage == kAbsorb;
constexpr u32 kPieces = kTurnsW ? 1 : 2;  // of 32 of K in a turn: a cache line of a row
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows, kPieceOfK = 32;
constexpr u32 kNope = 128, kRoped = 192, kLatent = 512, kCacheRow = 576;
// Tiles of rows that meet in LDS at a time, 32 KiB of them: two workgroups a CU of gfx942.
constexpr u32 kMost = 8 / kNTiles, kRound = kMost < kMTiles ? kMost : kMTiles;

static_assert((kStage != kQuery && kStage != kAbsorb) || kN == 64, "whole parts of heads");
static_assert(kStages * kPieces * (kMTiles + (kTurnsW ? 8 : kNTiles)) <= 63, "vmcnt is 63 at most");

using Total = F32x4[kNTiles];

// 32 of K. Of [K, N] a lane has 8 of K of four neighbours of N, still to be turned.
struct Piece {
  U32x4 w[kNTiles], x[kMTiles];
};

struct Operands {
  const bf16 *w, *x;
  u32 w_bytes, w_row, x_bytes, x_row, k;

  __device__ void load(Piece& to, u32 k0) const {
    const u32 lane = lane_in_wave(), row = lane % kTileRows, g = lane / kTileRows;
    const Buffer ws = make_buffer(w, k0 < k ? w_bytes : 0);  // nothing beyond K is touched
    const Buffer xs = make_buffer(x, k0 < k ? x_bytes : 0);
    if constexpr (kTurnsW) {
#pragma unroll
      for (u32 e = 0; e < 8; ++e) {
        const auto two = load_dwords<2>(ws, g * 8 * w_row + row * 8, (k0 + e) * w_row);
        to.w[e / 2][e % 2 * 2] = two.dword[0];
        to.w[e / 2][e % 2 * 2 + 1] = two.dword[1];
      }
    } else {
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) {
        to.w[n] = load_16<kStreamed>(ws, row * w_row + g * 16, n * kTileRows * w_row + k0 * 2);
      }
    }
#pragma unroll
    for (u32 m = 0; m < kMTiles; ++m) {
      to.x[m] = load_16(xs, row * x_row + g * 16, m * kTileRows * x_row + k0 * 2);
    }
  }
};

// Row n of w as an operand; of [K, N] every fourth of them, from n on.
__device__ inline U32x4 row_of(const Piece& p, u32 n) {
  if constexpr (!kTurnsW) return p.w[n];
  U32x4 made;
#pragma unroll
  for (u32 e = 0; e < 8; e += 2) {
    const u32 low = p.w[e / 2][n / 2], high = p.w[e / 2][2 + n / 2];
    made[e / 2] = __builtin_amdgcn_perm(high, low, n % 2 ? 0x07060302 : 0x05040100);
  }
  return made;
}

__device__ inline void multiply_all(F32x4 (&sums)[kMTiles][kNTiles], const Operands& in,
                                    u32 split) {
  constexpr u32 kOwn = kPieces * kPieceOfK, kStep = kSplit * kWaves * kOwn;
  Piece ring[kStages][kPieces];
  const auto load = [&](u32 s, u32 k0) {
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) in.load(ring[s][p], k0 + p * kPieceOfK);
    keep_order();
  };
  u32 k = (split * kWaves + wave_in_group()) * kOwn;
#pragma unroll
  for (u32 s = 0; s < kStages; ++s) load(s, k + s * kStep);
  for (; k < in.k; k += kStages * kStep) {
#pragma unroll
    for (u32 s = 0; s < kStages; ++s) {
#pragma unroll
      for (u32 p = 0; p < kPieces; ++p) {
#pragma unroll
        for (u32 n = 0; n < kNTiles; ++n) {
          const U32x4 w = row_of(ring[s][p], n);
#pragma unroll
          for (u32 m = 0; m < kMTiles; ++m) {
            sums[m][n] = multiply_16x16<bf16>(w, ring[s][p].x[m], sums[m][n]);
          }
        }
      }
      keep_order();
      load(s, k + (s + kStages) * kStep);
    }
  }
}

// The waves' sums: act(m, total) of 16 rows each, by one of the waves.
template <class Act>
__device__ inline void meet_in_lds(const F32x4 (&sums)[kMTiles][kNTiles], Act act) {
  __shared__ F32x4 parts[kWaves][kRound][kNTiles][kWaveSize];
  const u32 wave = wave_in_group(), lane = lane_in_wave();
#pragma unroll
  for (u32 first = 0; first < kMTiles; first += kRound) {
    if (first > 0) sync_group();
#pragma unroll
    for (u32 i = 0; i < kRound; ++i) {
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) parts[wave][i][n][lane] = sums[first + i][n];
    }
    sync_group();
    if (wave >= kRound) continue;
    Total total;
#pragma unroll
    for (u32 n = 0; n < kNTiles; ++n) {
      total[n] = parts[0][wave][n][lane];
#pragma unroll
      for (u32 w = 1; w < kWaves; ++w) total[n] += parts[w][wave][n][lane];
    }
    act(first + wave, total);
  }
}

// All sums, of waves and of workgroups.
template <class Act>
__device__ inline void add_up(const F32x4 (&sums)[kMTiles][kNTiles], F32x4* workspace, u32* counts,
                              u32 tile, u32 split, Act act) {
  if constexpr (kSplit == 1) {
    meet_in_lds(sums, act);
  } else {
    const auto place = [&](u32 s, u32 m, u32 n) {
      return workspace + (((u64{tile} * kSplit + s) * kMTiles + m) * kNTiles + n) * kWaveSize +
             lane_in_wave();
    };
    meet_in_lds(sums, [&](u32 m, const Total& total) {
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) *place(split, m, n) = total[n];
    });
    __shared__ u32 arrived;
    if (!is_last_of(counts + tile, kSplit, (__attribute__((address_space(3))) u32*)&arrived))
      return;
    for (u32 m = wave_in_group(); m < kMTiles; m += kWaves) {
      F32x4 parts[kSplit][kNTiles];
#pragma unroll
      for (u32 s = 0; s < kSplit; ++s) {
#pragma unroll
        for (u32 n = 0; n < kNTiles; ++n) parts[s][n] = *place(s, m, n);
      }
      Total total;
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) {
        total[n] = parts[0][n];
#pragma unroll
        for (u32 s = 1; s < kSplit; ++s) total[n] += parts[s][n];
      }
      act(m, total);
    }
  }
}

using Four4 = Four<bf16>;
__device__ inline void put(bf16* at, F32x4 four) {
  *reinterpret_cast<Four4*>(at) = __builtin_convertvector(four, Four4);
}

// A head's last 64 columns: turned by the row's angles, after the product has been rounded.
__device__ inline void put_turned(bf16* at, const Total& total, const bf16* angles) {
  using T = details::Turned<4>;
  const u32 g = lane_in_wave() / kTileRows;
#pragma unroll
  for (u32 n = 0; n < kNTiles / 2; ++n) {
    const u32 d = n * kTileRows + g * 4;
    auto low = T::rounded(total[n]), high = T::rounded(total[n + kNTiles / 2]);
    turn<4>(low, high, T::widen(*reinterpret_cast<const Four4*>(angles + d)),
            T::widen(*reinterpret_cast<const Four4*>(angles + kTurnedHalf + d)));
    put(at + d, low);
    put(at + kTurnedHalf + d, high);
  }
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
                 F32x4* __restrict__ workspace, u32* __restrict__ counts, u32 m, u32 n, u32 n_other,
                 u32 heads, u32 k, u32 x_row, u32 x_head, u32 w_first, u32 w_head, u32 out_row,
                 u32 out_head, u32 start, u32 cache_rows, u32 width) {
  const u32 own_tiles = (n + kN - 1) / kN, tiles = own_tiles + (n_other + kN - 1) / kN;
  const Block at = own_block<4, kSplit>((m + kM - 1) / kM, tiles * heads);
  const u32 head = at.n / tiles, n_tile = at.n % tiles, lane = lane_in_wave();
  const u32 m0 = at.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const bool is_other = n_tile >= own_tiles;
  const u32 n0 = (is_other ? n_tile - own_tiles : n_tile) * kN;
  const u32 left = (is_other ? n_other : n) - n0, columns = left < kN ? left : kN;
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
  Operands in = {(is_other ? w_other : w) + w_first + u64{head} * w_head,
                 x + u64{m0} * x_row + head * x_head,
                 columns * k * 2,
                 k * 2,
                 ((rows - 1) * x_row + k) * 2,
                 x_row * 2,
                 k};
  if constexpr (kTurnsW) {
    in.w += n0;
    in.w_row = n * 2;
    in.w_bytes = (k * n - n0) * 2;
  } else {
    in.w += u64{n0} * k;
  }
  F32x4 sums[kMTiles][kNTiles] = {};
  multiply_all(sums, in, at.split);
  const u32 tile = at.m * tiles * heads + at.n;
  add_up(sums, workspace, counts, tile, at.split, [&](u32 m_tile, const Total& total) {
    const u32 row = m0 + m_tile * kTileRows + lane % kTileRows, g = lane / kTileRows;
    if (row >= m) return;
    bf16* to = out + u64{row} * out_row + head * out_head + n0;
    if constexpr (kStage == kDown) {
      if (is_other) to = other + (u64{row} * cache_rows + position(row)) * kCacheRow + n0;
    }
    if constexpr (kStage == kQuery) {
      const u32 of = n0 / kRoped, part = n0 % kRoped;
      if (part == kNope) {
        bf16* const roped = other + (u64{row} * (n / kRoped) + of) * kCacheRow + kLatent;
        return put_turned(roped, total, angles + u64{position(row)} * kTurned);
      }
      to = out + u64{row} * out_row + of * kNope + part;
    }
#pragma unroll
    for (u32 i = 0; i < kNTiles; ++i) {
      if constexpr (kTurnsW) {  // every fourth column
        put(to + g * 16 + i * 4, F32x4{total[0][i], total[1][i], total[2][i], total[3][i]});
      } else if (i * kTileRows + g * 4 < columns) {
        put(to + i * kTileRows + g * 4, total[i]);
      }
    }
  });
}
