// q[m, h] = [nope[m, h] . kv_up[h] | RoPE(q_lora[m] . q_up[h, 128:192])],  512 and 64 elements,
// nope[m, h] = q_lora[m] . q_up[h, :128],  bf16, sums in fp32: q of an MLA layer, kv_up absorbed.
//
// Layout. A workgroup has 16 kMTiles rows of q_lora, up to 32, and a head (64 rows are
// mla_layer_decode_query_wide.hip's). Of q_up's 192 rows each wave has 48 (wave_gemm.h); those
// of RoPE are the last two waves', each with both halves of what it turns. nope, rounded, goes
// through LDS as matrix cores leave it: of tiles n and n + 1 a lane has 4 elements each, which are
// a piece of K of the next product if kv_up's rows are taken in the same order (mla_absorb.h).
// kv_up lies as [K, N], and is in registers before q_up's end: a wave has 128 columns, lane i % 16
// eight neighbours of them, turned round between the products: a tile is every eighth. Workgroups
// of a head are neighbours in an L2, so that memory gives its weights once. Of few heads each has
// kSplit workgroups with turns of K; their sums meet in a workspace (split_k_reduce.h), and the
// last of them turns and absorbs.
//
// Promises. Deterministic: sums are in the order of K. The caller aligns all rows to 16 bytes; K is
// a multiple of 32.
#include "attention/mla_absorb.h"
#include "attention/wave_gemm.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"

namespace {

using namespace rfops;

constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of q_lora
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kNTiles = 3;              // of 16 rows of q_up, of a wave
constexpr u32 kPrefetch = 2;
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows;

using Weights = WaveRowLoader<kNTiles, kPrefetch>;
using Rows = PackedRows<kMTiles, kPrefetch>;
using Accumulators = F32x4[kMTiles * kNTiles];

// LDS: each wave's rows of q_up, then nope.
constexpr u32 kWaveBytes = 2 * Weights::kHalfBytes;
constexpr u32 kNopeEnd = kWaves * kWaveBytes + Nope<kMTiles>::kBytes;
constexpr u32 kLds = kNopeEnd + (kSplit > 1 ? 16 : 0);  // a word of the split's
static_assert(kLds <= kLdsBytes && kOwnLatent * kWaves == kLatent);
using Split = SplitKReducer<kSplit, kMTiles * kNTiles * kThreads, kThreads>;

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 2)))
    mla_layer_decode_query(bf16* __restrict__ q,               // [M, heads, 576]
                           const bf16* __restrict__ q_lora,    // [K / 32, M / 16, 64, 8]
                           const bf16* __restrict__ q_up,      // [heads, 192, K]
                           const bf16* __restrict__ kv_up,     // [heads, 256, 512]
                           const bf16* __restrict__ angles,    // [L or more, 64]
                           const i32* __restrict__ positions,  // [M], or null: `start`
                           void* __restrict__ workspace,       // SplitKReducer; with kSplit > 1
                           u32* __restrict__ counts,           // [tiles], zeros
                           u32 m, u32 heads, u32 k, u32 start, u32 length) {
  const TileCoord pos = this_tile<4, kSplit>((m + kM - 1) / kM, heads);
  const u32 head = pos.n, m0 = pos.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const u32 wave = wave_id(), lane = lane_id();
  // The last two waves have one tile of nope, and pairs of 32 rows apart.
  const bool rotates = wave >= 2;
  const u32 first_tile = rotates ? 4 + wave : wave * kNTiles, row_begin = first_tile * kTileRows;
  const bf16* const own_rows = scalar_address(q_up + (u64{head} * kRoped + row_begin) * k);
  Weights weights = {make_buffer(own_rows, readfirstlane((kRoped - row_begin) * k * 2)),
                     k * 2,
                     k,
                     rotates ? 2 * kTileRows : kTileRows,
                     {}};
  Rows x = packed_rows<kMTiles, kPrefetch>(q_lora, m, pos.m, k);
  const u32 d = wave % 2 * kTileRows + lane / kTileRows * 4;
  const Buffer position_buffer = make_buffer(positions, positions == nullptr ? 0 : m * 4);
  const Buffer all_angles = make_buffer(angles, length * (kRopeDim * 2));
  Absorbed up;
  u32 position[kMTiles];
  Angles angle[kMTiles];
#pragma unroll
  for (u32 i = 0; i < kMTiles; ++i) {
    position[i] = start + buffer_load_dwords<1>(position_buffer,
                                                (m0 + i * kTileRows + lane % kTileRows) * 4, 0)
                              .dword[0];
  }
  // Behind the first steps' loads, as it comes in order: what only the end wants.
  const auto issue_late_loads = [&] {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const u32 oob_bits = rotates && i * kTileRows + lane % kTileRows < rows ? 0 : kOutOfBounds;
      angle[i].load(all_angles, (position[i] * kRopeDim + d) * 2 | oob_bits);
    }
    up.load(scalar_address(kv_up + u64{head} * (kUpRows * kLatent) + wave * kOwnLatent));
  };
  Accumulators acc = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  constexpr u32 kStrideK = kPrefetch * kStepOfK;
  multiply_wave<kMTiles, kNTiles, kPrefetch>(acc, weights, x, pos.split * kStrideK,
                                             kSplit * kStrideK, lds + wave * kWaveBytes, [&] {
                                               if (kSplit == 1) issue_late_loads();
                                             });
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, pos.m * heads + head);
    if (!tile.reduce_if_all_arrived(acc, pos.split,
                                    reinterpret_cast<RFOPS_LDS u32*>(lds + kNopeEnd)))
      return;
    issue_late_loads();
  }
  const Nope<kMTiles> nope = {lds + kWaves * kWaveBytes};
#pragma unroll
  for (u32 tile = 0; tile < kNTiles; ++tile) {
    if (tile > 0 && rotates) break;
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      nope.store(first_tile + tile, i, acc[i * kNTiles + tile]);
    }
  }
  wait_lgkmcnt();
  s_barrier();
  const u64 row_of_q = u64{heads} * kCacheRow;
  bf16* const own_q = q + u64{m0} * row_of_q + head * kCacheRow;
  if (rotates) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const u32 row = i * kTileRows + lane % kTileRows;
      if (row >= rows) continue;
      store_rotated(own_q + row * row_of_q + kLatent + d, acc + i * kNTiles + 1, angle[i]);
    }
  }
  for_each(kPieces, [&](u32 p) { up.transpose(p); });
  absorb(up, nope, own_q + wave * kOwnLatent, rows, row_of_q);
}
