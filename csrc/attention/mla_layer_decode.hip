// out[z][m, n] = sum_k x[z][m, k] * w[z][n, k],  bf16, sums in fp32: the products of an MLA layer
// whose x lies as rows. The others are mla_layer_decode_query.hip's, and mla_layer_decode_out.hip's
// or _wide.hip's, which want x packed: so is the result here, a head's columns behind those of the
// one before.
//
// kDown     n goes over q_down's rows, then kv_down's, whose results are rows of the cache; and the
//           lengths and the block table that attention wants are written; more than 32 rows of x
//           are mla_layer_decode_down.hip's
// kValue    of each head z
//
// Workgroups that read the same rows of w are neighbours in an L2, so that memory gives w once for
// many rows of x. Layout. A workgroup has 16 kMTiles rows of x, up to 128, and 64 kNTiles of w, and
// every kSplit-th step of 128 of K: what the kSplit read at a time lies side by side. A wave has
// all of these rows of x and 16 kNTiles of w. Both go through registers to LDS (lds_swizzle.h): x,
// half a step at a time, to one of two buffers for all waves; w to the wave's own, two steps ahead,
// 256 bytes of a row at once, as loads straight to where the matrix cores take it would be 64
// pieces each, and open a row of memory for each line. w is operand A: a lane ends with 4
// neighbours of a row of out. The workgroups' sums meet in a workspace (split_k_reduce.h).
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of x and w to 16 bytes and of the cache to 8; K is a multiple of 32, N of 4.
#include "attention/bf16_row_loaders.h"
#include "attention/wave_gemm.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/tile/lds_swizzle.h"

namespace {

using namespace rfops;

enum Stage : u32 { kDown, kValue };
constexpr u32 kStage = RFOPS_STAGE;
constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w, of a wave
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows, kOwnN = kNTiles * kTileRows, kN = kWaves * kOwnN;
constexpr u32 kHalfPieces = kPieces / 2, kHalfStep = kStepOfK / 2;  // LDS has half a step
constexpr u32 kStrideK = kSplit * kStepOfK;  // of K: each of the workgroups has a step of it
constexpr u32 kCacheRow = 576;

// LDS: two buffers of x, then each wave's rows of w, as two halves of a step.
constexpr u32 kXBytes = kM * kRowBytes, kWHalf = kOwnN * kRowBytes;
constexpr u32 kLds = 2 * kXBytes + kWaves * 2 * kWHalf;
static_assert(kLds <= kLdsBytes);

using Split = SplitKReducer<kSplit, kMTiles * kNTiles * kThreads, kThreads>;

using Weights = WaveRowLoader<kNTiles, 2>;
using Rows = GroupRows<kM, kThreads>;

// All waves meet, and see what they wrote to LDS; loads from memory stay on their way.
__device__ inline void sync_lds() {
  wait_lgkmcnt();
  s_barrier();
}

using Accumulators = F32x4[kMTiles * kNTiles];
using Operands = U32x4[kMTiles];

// From k on, up to both ends. Loads come back in order: each is asked for behind those that are
// waited for earlier. Between the instructions of a piece the next one is read from LDS.
__device__ inline void run_mainloop(Accumulators& acc, Weights& w, Rows& x, u32 k, LdsBytes* lds) {
  const LdsFragmentOffsets frag_offsets = lds_fragment_offsets(lane_id());
  LdsBytes* const wave_lds = lds + 2 * kXBytes + wave_id() * (2 * kWHalf);
  Operands rows[kHalfPieces];
  U32x4 w_frags[kHalfPieces][kNTiles];
  const auto read = [&](u32 half, u32 p, u32 m) {
    const u32 offset = p == 0 ? frag_offsets.low : frag_offsets.high;
    details::for_each_slice<kNTiles, kMTiles>(m, [&](u32 n) {
      w_frags[p][n] = lds_load_b128(wave_lds + half * kWHalf + n * kLdsTile + offset);
    });
    rows[p][m] = lds_load_b128(lds + half * kXBytes + offset + m * kLdsTile);
  };
  const auto for_each = [](u32 count, auto fn) {
#pragma unroll
    for (u32 i = 0; i < count; ++i) fn(i);
  };
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
    for_each(Rows::kLoads, [&](u32 i) { x.load(s, k + s * kHalfStep, i); });
    for_each(Weights::kLoads, [&](u32 i) { w.load(s, k + s * kStrideK, i); });
    sched_barrier();
  }
  for_each(Rows::kLoads, [&](u32 i) { x.store(0, lds, i); });
  for_each(Rows::kLoads, [&](u32 i) { x.load(0, k + kStrideK, i); });
  for_each(Weights::kLoads, [&](u32 i) { w.store(0, wave_lds, i); });
  sync_lds();
  for_each(kMTiles, [&](u32 m) { read(0, 0, m); });
  // Buffers change in a half's midst: those who read the other one are behind the last such place.
  const auto do_k_step = [&](u32 s, u32 k0) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 next = half ^ 1;
      multiply_piece<kMTiles, kNTiles>(acc, rows[0], w_frags[0], [&](u32 m) {
        read(half, 1, m);
        details::for_each_slice<Rows::kLoads, kMTiles>(
            m, [&](u32 i) { x.store(next, lds + next * kXBytes, i); });
        if (half == 0)
          details::for_each_slice<Weights::kLoads, kMTiles>(
              m, [&](u32 i) { w.load(s, k0 + 2 * kStrideK, i); });
      });
      // The wave's own reads of w are behind it; others have none.
      if (half == 1) for_each(Weights::kLoads, [&](u32 i) { w.store(s ^ 1, wave_lds, i); });
      sync_lds();
      multiply_piece<kMTiles, kNTiles>(acc, rows[1], w_frags[1], [&](u32 m) {
        read(next, 0, m);
        details::for_each_slice<Rows::kLoads, kMTiles>(
            m, [&](u32 i) { x.load(next, k0 + kStrideK + (half == 0 ? kHalfStep : kStrideK), i); });
      });
    }
  };
  for (; k < w.k_end; k += 2 * kStrideK) {
    do_k_step(0, k);
    do_k_step(1, k + kStrideK);
  }
  sync_lds();  // what was read ahead
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 2)))
    mla_layer_decode(bf16* __restrict__ out,             // packed (bf16_row_loaders.h)
                     const bf16* __restrict__ x,         // [M, K]; rows x_row apart, heads x_head
                     const bf16* __restrict__ w,         // [N, K], heads w_head apart, from w_first
                     bf16* __restrict__ cache,           // [M, L, 576]; kDown
                     const bf16* __restrict__ w_other,   // kv_down; kDown
                     const i32* __restrict__ positions,  // [M], or null: `start`
                     i32* __restrict__ lens,             // [M]; kDown writes it
                     i32* __restrict__ table,            // [M, width]; likewise
                     void* __restrict__ workspace,       // SplitKReducer; with kSplit > 1
                     u32* __restrict__ counts,           // [tiles], zeros
                     u32 m, u32 n, u32 n_other, u32 heads, u32 k, u32 x_row, u32 x_head,
                     u32 w_first, u32 w_head, u32 start, u32 cache_rows, u32 width) {
  const u32 own_tiles = (n + kN - 1) / kN, tiles = own_tiles + (n_other + kN - 1) / kN;
  const TileCoord pos = this_tile<4, kSplit>((m + kM - 1) / kM, tiles * heads);
  const u32 head = readfirstlane(pos.n / tiles), n_tile = readfirstlane(pos.n % tiles),
            lane = lane_id();
  const u32 m0 = pos.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const bool is_other = n_tile >= own_tiles;
  const u32 n0 = (is_other ? n_tile - own_tiles : n_tile) * kN;
  const u32 all_n = is_other ? n_other : n;
  const auto position = [&](u32 row) {
    return positions == nullptr ? start : static_cast<u32>(positions[row]);
  };
  if constexpr (kStage == kDown) {
    const u32 threads = ((m + kM - 1) / kM) * tiles * kSplit * kThreads;
    for (u32 i = workgroup_id_x() * kThreads + thread_id(); i < m * width; i += threads) {
      table[i] = static_cast<i32>(i);
      if (i < m) lens[i] = static_cast<i32>(position(i)) + 1;
    }
  }
  const u32 wave = wave_id();
  const u32 own_n = n0 + wave * kOwnN;
  const u32 remaining = own_n < all_n ? all_n - own_n : 0,
            columns = remaining < kOwnN ? remaining : kOwnN;
  const bf16* const w_begin = (is_other ? w_other : w) + w_first + u64{head} * w_head;
  Rows x_rows = {make_buffer(x + u64{m0} * x_row + head * x_head, ((rows - 1) * x_row + k) * 2),
                 x_row * 2,
                 k,
                 {}};
  Accumulators acc = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const bf16* const own_rows = scalar_address(w_begin + u64{own_n} * k);
  Weights weights = {
      make_buffer(own_rows, readfirstlane(columns * k * 2)), k * 2, k, kTileRows, {}};
  run_mainloop(acc, weights, x_rows, pos.split * kStepOfK, lds);
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, pos.m * tiles * heads + pos.n);
    if (!tile.reduce_if_all_arrived(acc, pos.split, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
  }
  const u32 row_tiles = (m + kTileRows - 1) / kTileRows;
#pragma unroll
  for (u32 m_tile = 0; m_tile < kMTiles; ++m_tile) {
    const u32 row = m0 + m_tile * kTileRows + lane % kTileRows;
    if (row >= m) continue;
#pragma unroll
    for (u32 i = 0; i < kNTiles; ++i) {
      const u32 column = own_n + i * kTileRows + lane / kTileRows * 4;
      if (column >= all_n) continue;
      u8* dst = reinterpret_cast<u8*>(out) + packed_offset(row_tiles, row, head * n + column);
      if constexpr (kStage == kDown) {
        if (is_other) {
          const u64 cache_row = u64{row} * cache_rows + position(row);
          dst = reinterpret_cast<u8*>(cache + cache_row * kCacheRow + column);
        }
      }
      *reinterpret_cast<Bf16x4*>(dst) = __builtin_convertvector(acc[m_tile * kNTiles + i], Bf16x4);
    }
  }
}
