// q[m, h] = [nope[m, h] . kv_up[h] | RoPE(q_lora[m] . q_up[h, 128:192])],  512 and 64 elements,
// nope[m, h] = q_lora[m] . q_up[h, :128],  bf16, sums in fp32: q of an MLA layer, kv_up absorbed.
//
// Layout. A workgroup has 16 kMTiles rows of q_lora, up to 64, and a head. Of q_up's 192 rows each
// wave has 48 (wave_product.h); those of RoPE are the last two waves', each with both halves of
// what it turns. nope, rounded, goes through LDS as matrix cores leave it: of tiles n and n + 1 a
// lane has 4 elements each, which are a piece of K of the next product if kv_up's rows are taken in
// the same order. kv_up lies as [K, N], and is in registers before q_up's end: a wave has 128
// columns, lane i % 16 eight neighbours of them, turned round between the products: a tile is every
// eighth. Workgroups of a head are neighbours in an L2, so that memory gives its weights once. Of
// few heads each has kSplit workgroups with turns of K; their sums meet in a workspace
// (split_reduce.h), and the last of them turns and absorbs.
//
// Promises. Deterministic: sums are in the order of K. The caller aligns all rows to 16 bytes; K is
// a multiple of 32.
#include "rfops/block_map.h"
#include "rfops/rope.h"
#include "rfops/split_reduce.h"
#include "rfops/waits.h"
#include "rfops/wave_product.h"

#if !defined(RFOPS_M_TILES) || !defined(RFOPS_SPLIT)
#error "mla_layer_decode_query needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of q_lora
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kNTiles = 3;              // of 16 rows of q_up, of a wave
constexpr u32 kAhead = 2;
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows;
constexpr u32 kNope = 128, kRoped = 192, kLatent = 512, kCacheRow = 576;
constexpr u32 kOwnLatent = kLatent / kWaves, kUpRow = kLatent * 2, kUpRows = 256;
constexpr u32 kNopeTiles = kNope / kTileRows;

using Weights = WaveRows<kNTiles, kAhead>;
using Rows = PackedRows<kMTiles, kAhead>;
using Sums = F32x4[kMTiles * kNTiles];
using Four = bf16 __attribute__((ext_vector_type(4)));
using Eight = bf16 __attribute__((ext_vector_type(8)));
using U32x2 = u32 __attribute__((ext_vector_type(2)));

// LDS: each wave's rows of q_up, then nope: of each tile of it and of rows 8 bytes a lane.
constexpr u32 kWaveBytes = 2 * Weights::kHalfBytes, kFragment = kWaveSize * 8;
constexpr u32 kNopeEnd = kWaves * kWaveBytes + kNopeTiles * kMTiles * kFragment;
constexpr u32 kLds = kNopeEnd + (kSplit > 1 ? 16 : 0);  // a word of the split's
static_assert(kLds <= kLdsBytes);
using Split = SplitTile<kSplit, kMTiles * kNTiles * kThreads, kThreads>;
__device__ inline u32 nope_at(u32 tile, u32 m) {
  return kWaves * kWaveBytes + (tile * kMTiles + m) * kFragment + lane_in_wave() * 8;
}

// A head's rows of kv_up, 128 of K, by 128 columns of this wave.
struct Absorbed {
  static constexpr u32 kLoads = 8;  // a piece of K
  U32x4 row[kPieces][kLoads];

  // A lane of group g has rows 4 g + e of two tiles of nope.
  __device__ void load(const bf16* first) {
    const u32 lane = lane_in_wave(), own = lane % kTileRows, g = lane / kTileRows;
    const Buffer rows = make_buffer(first, kNope * kUpRow - (kLatent - kOwnLatent) * 2);
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
#pragma unroll
      for (u32 e = 0; e < kLoads; ++e) {
        row[p][e] = load_16(rows, g * 4 * kUpRow + own * 16,
                            (p * kPieceOfK + e / 4 * kTileRows + e % 4) * kUpRow);
      }
    }
  }
  // Every eighth of the columns, from j on, turned round.
  __device__ U32x4 tile(u32 p, u32 j) const {
    U32x4 made;
#pragma unroll
    for (u32 e = 0; e < kLoads; e += 2) {
      made[e / 2] = __builtin_amdgcn_perm(row[p][e + 1][j / 2], row[p][e][j / 2],
                                          j % 2 ? 0x07060302 : 0x05040100);
    }
    return made;
  }
};

// Of four pairs.
struct Angles {
  Four cos, sin;
  __device__ void load(const Buffer& rows, u32 at) {
    cos = __builtin_bit_cast(Four, load_dwords<2>(rows, at, 0));
    sin = __builtin_bit_cast(Four, load_dwords<2>(rows, at, kTurnedHalf * 2));
  }
};

// 16 pairs of a head's last 64 columns: turned after the product has been rounded.
__device__ inline void put_turned(bf16* at, const F32x4* total, const Angles& by) {
  using T = details::Turned<4>;
  auto low = T::rounded(total[0]), high = T::rounded(total[1]);
  turn<4>(low, high, T::widen(by.cos), T::widen(by.sin));
  *reinterpret_cast<Four*>(at) = T::narrow(low);
  *reinterpret_cast<Four*>(at + kTurnedHalf) = T::narrow(high);
}

// This wave's 128 columns of nope . kv_up, to q's rows from `to` on.
__device__ inline void absorb(const Absorbed& up, const LdsBytes* lds, bf16* to, u32 rows,
                              u64 row_of_q) {
  constexpr u32 kTiles = Absorbed::kLoads;
  F32x4 sums[kMTiles * kTiles] = {};
#pragma unroll
  for (u32 p = 0; p < kPieces; ++p) {
    U32x4 x[kMTiles], w[kTiles];
#pragma unroll
    for (u32 m = 0; m < kMTiles; ++m) {
      const auto low = *reinterpret_cast<const RFOPS_LDS U32x2*>(lds + nope_at(2 * p, m));
      const auto high = *reinterpret_cast<const RFOPS_LDS U32x2*>(lds + nope_at(2 * p + 1, m));
      x[m] = {low[0], low[1], high[0], high[1]};
    }
#pragma unroll
    for (u32 j = 0; j < kTiles; ++j) w[j] = up.tile(p, j);
#pragma unroll
    for (u32 m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (u32 j = 0; j < kTiles; ++j) {
        sums[m * kTiles + j] = multiply_16x16<bf16>(x[m], w[j], sums[m * kTiles + j]);
      }
    }
  }
  const u32 lane = lane_in_wave(), first = lane / kTileRows * 4;
#pragma unroll
  for (u32 m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
      const u32 row = m * kTileRows + first + e;
      if (row >= rows) continue;
      details::Turned<8>::Wide made;
#pragma unroll
      for (u32 j = 0; j < kTiles; ++j) made[j] = sums[m * kTiles + j][e];
      *reinterpret_cast<Eight*>(to + row * row_of_q + lane % kTileRows * 8) =
          details::Turned<8>::narrow_rounded(made);
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 2)))
    mla_layer_decode_query(bf16* __restrict__ q,               // [M, heads, 576]
                           const bf16* __restrict__ q_lora,    // [K / 32, M / 16, 64, 8]
                           const bf16* __restrict__ q_up,      // [heads, 192, K]
                           const bf16* __restrict__ kv_up,     // [heads, 256, 512]
                           const bf16* __restrict__ angles,    // [L or more, 64]
                           const i32* __restrict__ positions,  // [M], or null: `start`
                           void* __restrict__ workspace,       // SplitTile; with kSplit > 1
                           u32* __restrict__ counts,           // [tiles], zeros
                           u32 m, u32 heads, u32 k, u32 start, u32 length) {
  const Block at = own_block<4, kSplit>((m + kM - 1) / kM, heads);
  const u32 head = at.n, m0 = at.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const u32 wave = wave_in_group(), lane = lane_in_wave();
  // The last two waves have one tile of nope, and pairs of 32 rows apart.
  const bool turns = wave >= 2;
  const u32 first_tile = turns ? 4 + wave : wave * kNTiles, first = first_tile * kTileRows;
  const bf16* const own_rows = scalar_address(q_up + (u64{head} * kRoped + first) * k);
  Weights weights = {make_buffer(own_rows, as_scalar((kRoped - first) * k * 2)),
                     k * 2,
                     k,
                     turns ? 2 * kTileRows : kTileRows,
                     {}};
  Rows x = packed_rows<kMTiles, kAhead>(q_lora, m, at.m, k);
  const u32 d = wave % 2 * kTileRows + lane / kTileRows * 4;
  const Buffer places = make_buffer(positions, positions == nullptr ? 0 : m * 4);
  const Buffer all_angles = make_buffer(angles, length * (kTurned * 2));
  Absorbed up;
  u32 place[kMTiles];
  Angles angle[kMTiles];
#pragma unroll
  for (u32 i = 0; i < kMTiles; ++i) {
    place[i] =
        start + load_dwords<1>(places, (m0 + i * kTileRows + lane % kTileRows) * 4, 0).dword[0];
  }
  // Behind the first steps' loads, as it comes in order: what only the end wants.
  const auto load_rest = [&] {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const u32 outside = turns && i * kTileRows + lane % kTileRows < rows ? 0 : kOutside;
      angle[i].load(all_angles, (place[i] * kTurned + d) * 2 | outside);
    }
    up.load(scalar_address(kv_up + u64{head} * (kUpRows * kLatent) + wave * kOwnLatent));
  };
  Sums sums = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  constexpr u32 kTurn = kAhead * kStepOfK;
  multiply_wave<kMTiles, kNTiles, kAhead>(sums, weights, x, at.split * kTurn, kSplit * kTurn,
                                          lds + wave * kWaveBytes, [&] {
                                            if (kSplit == 1) load_rest();
                                          });
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, at.m * heads + head);
    if (!tile.reduce_late(sums, at.split, reinterpret_cast<RFOPS_LDS u32*>(lds + kNopeEnd))) return;
    load_rest();
  }
#pragma unroll
  for (u32 tile = 0; tile < kNTiles; ++tile) {
    if (tile > 0 && turns) break;
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const Four made = details::Turned<4>::narrow_rounded(sums[i * kNTiles + tile]);
      *reinterpret_cast<RFOPS_LDS U32x2*>(lds + nope_at(first_tile + tile, i)) =
          __builtin_bit_cast(U32x2, made);
    }
  }
  wait_lds();
  meet();
  const u64 row_of_q = u64{heads} * kCacheRow;
  bf16* const own_q = q + u64{m0} * row_of_q + head * kCacheRow;
  if (turns) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const u32 row = i * kTileRows + lane % kTileRows;
      if (row >= rows) continue;
      put_turned(own_q + row * row_of_q + kLatent + d, sums + i * kNTiles + 1, angle[i]);
    }
  }
  absorb(up, lds, own_q + wave * kOwnLatent, rows, row_of_q);
}
