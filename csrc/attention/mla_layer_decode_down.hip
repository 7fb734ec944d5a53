// out[m, n] = sum_k x[m, k] * w[n, k],  bf16, sums in fp32: the first product of an MLA layer, for
// batches of more than 32; mla_layer_decode.hip has the smaller ones. n goes over q_down's rows,
// then kv_down's, whose results are rows of the cache; and the lengths and the block table that
// attention wants are written.
//
// Layout. A workgroup has 64 rows of x, 16 kNTiles of w, and one of kSplit parts of K, in chunks of
// 128. Bf16x4 waves fetch both (producer_loader.h): while one chunk is multiplied the next comes to
// the other buffer of LDS, and two more are on their way, so that no load waits for a product.
// Bf16x4 others multiply 32 rows by half of those of w. Workgroups that read the same rows of w are
// neighbours in an L2, so that memory gives w once. w is operand A: a lane ends with 4 neighbours
// of a row of out, which lies packed (bf16_row_loaders.h). The workgroups' sums meet in a workspace
// (split_k_reduce.h), wave by wave. MI300X, 128 rows of DeepSeek-V3's layer, estimated: 15.6 us,
// and 17.6 where all waves fetch and multiply.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of x and w to 16 bytes and of the cache to 8; K is a multiple of 32, N of 4.
#include "attention/producer_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/matrix/mfma_f16.h"

namespace {

using namespace rfops;

constexpr u32 kMTiles = 4;                                    // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;                        // of 16 rows of w
constexpr u32 kSplit = RFOPS_SPLIT;                           // workgroups along K
constexpr u32 kWaves = 4, kThreads = 2 * kWaves * kWaveSize;  // that multiply; and that fetch
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows;
constexpr u32 kMTilesPerWave = kMTiles / 2, kNTilesPerWave = kNTiles / 2,
              kAccTiles = kMTilesPerWave * kNTilesPerWave;  // of a wave
constexpr u32 kCacheRow = 576;

using XLoader = ProducerLoader<kM, 1, kWaves>;
using WLoader = ProducerLoader<kN, 1, kWaves>;
using Accumulators = F32x4[kAccTiles];
using Split = SplitKReducer<kSplit, kAccTiles * kWaveSize, kWaveSize>;
constexpr u32 kBuffer = XLoader::kBytes + WLoader::kBytes, kLds = 2 * kBuffer;  // x, then w
static_assert(kLds <= kLdsBytes);

// Chunks from k on, each to be seen by all waves before they meet.
__device__ inline void run_producer(XLoader& x, WLoader& w, u32 k, LdsBytes* lds) {
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
    for_each(WLoader::kLoads, [&](u32 i) { w.load(s, 0, k + s * kStepOfK, i); });
    for_each(XLoader::kLoads, [&](u32 i) { x.load(s, 0, k + s * kStepOfK, i); });
  }
  sched_barrier();
  const auto store_and_load = [&](auto& rows, u32 s, u32 i, LdsBytes* lds_dst) {
    rows.store(s, lds_dst, i);
    rows.load(s, 0, k + (2 + s) * kStepOfK, i);
    sched_barrier();
  };
  for (; k < w.k_end; k += 2 * kStepOfK) {
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
      if (s > 0 && k + kStepOfK >= w.k_end) break;
      LdsBytes* const lds_dst = lds + s * kBuffer;
      for_each(WLoader::kLoads, [&](u32 i) { store_and_load(w, s, i, lds_dst + XLoader::kBytes); });
      for_each(XLoader::kLoads, [&](u32 i) { store_and_load(x, s, i, lds_dst); });
      wait_lgkmcnt();
      s_barrier();
    }
  }
}

// kMTilesPerWave tiles of rows of x, from `x` on in a buffer, by kNTilesPerWave of w. While a piece
// of 32 of K is multiplied the next one is read.
__device__ inline void run_mainloop(Accumulators& acc, u32 chunks, const LdsBytes* x,
                                    const LdsBytes* w) {
  const LdsFragmentOffsets frag_offsets = lds_fragment_offsets(lane_id());
  U32x4 x_frags[2][kMTilesPerWave], w_frags[2][kNTilesPerWave];
  for (u32 c = 0; c < chunks; ++c) {
    const auto read = [&](u32 p) {
      const u32 offset = c % 2 * kBuffer + (p % 2 ? frag_offsets.high : frag_offsets.low),
                line = p / 2;
      for_each(kNTilesPerWave, [&](u32 i) {
        w_frags[p % 2][i] = lds_load_b128(w + offset + line * WLoader::kLineBytes + i * kLdsTile);
      });
      for_each(kMTilesPerWave, [&](u32 i) {
        x_frags[p % 2][i] = lds_load_b128(x + offset + line * XLoader::kLineBytes + i * kLdsTile);
      });
    };
    s_barrier();
    read(0);
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
      if (p + 1 < kPieces) read(p + 1);
      sched_barrier();
      for_each(kAccTiles, [&](u32 i) {
        acc[i] = mfma_16x16x32<bf16>(w_frags[p % 2][i % kNTilesPerWave],
                                     x_frags[p % 2][i / kNTilesPerWave], acc[i]);
      });
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    mla_layer_decode_down(const bf16* __restrict__ x,                   // [M, K], rows x_row apart
                          const bf16* __restrict__ w,                   // q_down, [N, K]
                          const bf16* __restrict__ w_other,             // kv_down
                          u32 m, u32 n, u32 n_other, u32 k, u32 x_row,  // preloaded up to here
                          bf16* __restrict__ out,             // packed (bf16_row_loaders.h)
                          bf16* __restrict__ cache,           // [M, L, 576]
                          const i32* __restrict__ positions,  // [M], or null: `start`
                          i32* __restrict__ lens,             // [M]
                          i32* __restrict__ table,            // [M, width]
                          void* __restrict__ workspace,       // SplitKReducer; with kSplit > 1
                          u32* __restrict__ counts,           // [4 tiles], zeros
                          u32 start, u32 cache_rows, u32 width) {
  const u32 own_tiles = (n + kN - 1) / kN, tiles = own_tiles + (n_other + kN - 1) / kN;
  const u32 m_tiles = (m + kM - 1) / kM;
  const TileCoord pos = this_tile<4, kSplit>(m_tiles, tiles);
  const u32 m0 = pos.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const bool is_other = pos.n >= own_tiles;
  const u32 n0 = (is_other ? pos.n - own_tiles : pos.n) * kN, all_n = is_other ? n_other : n;
  const u32 columns = all_n - n0 < kN ? all_n - n0 : kN;
  const u32 k_per_split = ((k + kStepOfK - 1) / kStepOfK + kSplit - 1) / kSplit * kStepOfK;
  const u32 begin = pos.split * k_per_split,
            end = begin + k_per_split < k ? begin + k_per_split : k;
  const u32 wave = wave_id(), lane = lane_id();
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  if (wave >= kWaves) {
    const u32 producer = wave - kWaves;
    const bf16* const rows_of_w = scalar_address((is_other ? w_other : w) + u64{n0} * k);
    WLoader w_loader = {
        make_buffer(rows_of_w, readfirstlane(columns * k * 2)), k * 2, end, producer, {}};
    const Buffer rows_of_x = make_buffer(x + u64{m0} * x_row, ((rows - 1) * x_row + k) * 2);
    XLoader x_loader = {rows_of_x, x_row * 2, end, producer, {}};
    return run_producer(x_loader, w_loader, begin, lds);
  }
  const u32 m_tile = wave / 2 * kMTilesPerWave, n_tile = wave % 2 * kNTilesPerWave;
  Accumulators acc = {};
  run_mainloop(acc, (end - begin + kStepOfK - 1) / kStepOfK, lds + m_tile * kLdsTile,
               lds + XLoader::kBytes + n_tile * kLdsTile);
  const auto position = [&](u32 row) {
    return positions == nullptr ? start : static_cast<u32>(positions[row]);
  };
  constexpr u32 kWriters = kWaves * kWaveSize;
  for (u32 i = workgroup_id_x() * kWriters + thread_id(); i < m * width;
       i += m_tiles * tiles * kSplit * kWriters) {
    table[i] = static_cast<i32>(i);
    if (i < m) lens[i] = static_cast<i32>(position(i)) + 1;
  }
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, (pos.m * tiles + pos.n) * kWaves + wave);
    if (!tile.reduce_if_all_arrived(acc, pos.split)) return;
  }
  const u32 row_tiles = (m + kTileRows - 1) / kTileRows;
#pragma unroll
  for (u32 i = 0; i < kAccTiles; ++i) {
    const u32 row = m0 + (m_tile + i / kNTilesPerWave) * kTileRows + lane % kTileRows;
    const u32 column = n0 + (n_tile + i % kNTilesPerWave) * kTileRows + lane / kTileRows * 4;
    if (row >= m || column >= all_n) continue;
    u8* dst = reinterpret_cast<u8*>(out) + packed_offset(row_tiles, row, column);
    if (is_other) {
      const u64 cache_row = u64{row} * cache_rows + position(row);
      dst = reinterpret_cast<u8*>(cache + cache_row * kCacheRow + column);
    }
    *reinterpret_cast<Bf16x4*>(dst) = __builtin_convertvector(acc[i], Bf16x4);
  }
}
