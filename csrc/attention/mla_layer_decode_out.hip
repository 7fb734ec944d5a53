// out[m, n] = sum_k x[m, k] * w[n, k],  bf16, sums in fp32: the last product of an MLA layer, whose
// x lies packed (bf16_row_loaders.h). Of more than 32 rows it is mla_layer_decode_wide.hip's.
//
// Layout. A workgroup has 16 kMTiles rows of x, up to 32, and 16 kNTiles of w; of K a step of 128
// after the other goes to its four waves, and to the kSplit workgroups of the tile: what they read
// at a time lies side by side. A wave multiplies its steps by itself (wave_gemm.h); w is operand
// A: a lane ends with 4 neighbours of a row of out. The sums of waves meet in LDS, those of
// workgroups in a workspace (split_k_reduce.h). Workgroups that read the same rows of w are
// neighbours in an L2.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of w to 16 bytes and of out to 8; K is a multiple of 32, N of 4.
#include "attention/wave_gemm.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/group/wave_reduce.h"

namespace {

using namespace rfops;

constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kPrefetch = 1;
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows;
constexpr u32 kStrideK = kSplit * kWaves * kStepOfK;  // of K: each wave has a step of it

using Weights = WaveRowLoader<kNTiles, kPrefetch>;
using Rows = PackedRows<kMTiles, kPrefetch>;

// LDS: each wave's rows of w; then sums of waves, some tiles at a time.
constexpr u32 kTiles = kMTiles * kNTiles, kTilesPerWave = kTilesOfWave<kWaves, kTiles>;
constexpr u32 kTilesPerPass = kTiles < 16 ? kTiles : 16;
constexpr u32 kWaveBytes = 2 * Weights::kHalfBytes;
constexpr u32 kSumBytes = kTilesPerPass * kWaveSize * sizeof(F32x4);
constexpr u32 kLds = kWaves * (kWaveBytes > kSumBytes ? kWaveBytes : kSumBytes);
static_assert(kLds <= kLdsBytes);
static_assert(kTiles % kTilesPerPass == 0 &&
              (kTiles == kTilesPerPass || kTilesPerPass % kWaves == 0));

using Accumulators = F32x4[kTiles];
using WaveAccumulators = F32x4[kTilesPerWave];
using Split = SplitKReducer<kSplit, kTilesPerWave * kThreads, kThreads>;

// Of all waves, in their order, this one's tiles: wave, wave + kWaves, and so on.
__device__ inline void reduce_wave_tiles(WaveAccumulators& wave_acc, const Accumulators& acc,
                                         LdsBytes* lds) {
  using Memory = RFOPS_LDS F32x4[kWaves][kTilesPerPass * kWaveSize];
  auto& memory = *reinterpret_cast<Memory*>(lds);
  const u32 wave = wave_id(), lane = lane_id();
#pragma unroll
  for (u32 tile_begin = 0; tile_begin < kTiles; tile_begin += kTilesPerPass) {
    workgroup_barrier();  // where others had their rows of w, or sums
#pragma unroll
    for (u32 t = 0; t < kTilesPerPass; ++t)
      memory[wave][t * kWaveSize + lane] = acc[tile_begin + t];
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kTilesOfWave<kWaves, kTilesPerPass>; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTilesPerPass) break;
      F32x4 partials[kWaves];
#pragma unroll
      for (u32 w = 0; w < kWaves; ++w) partials[w] = memory[w][t * kWaveSize + lane];
      F32x4& total = wave_acc[tile_begin / kWaves + i];
      total = partials[0];
#pragma unroll
      for (u32 w = 1; w < kWaves; ++w) total += partials[w];
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 2)))
    mla_layer_decode_out(bf16* __restrict__ out,        // [M, N]
                         const bf16* __restrict__ x,    // [K / 32, M / 16, 64, 8]
                         const bf16* __restrict__ w,    // [N, K]
                         void* __restrict__ workspace,  // SplitKReducer; with kSplit > 1
                         u32* __restrict__ counts,      // [tiles], zeros
                         u32 m, u32 n, u32 k) {
  const TileCoord pos = this_tile<4, kSplit>((m + kM - 1) / kM, (n + kN - 1) / kN);
  const u32 m0 = pos.m * kM, n0 = pos.n * kN, columns = n - n0 < kN ? n - n0 : kN;
  const u32 wave = wave_id(), lane = lane_id();
  Rows rows = packed_rows<kMTiles, kPrefetch>(x, m, pos.m, k);
  Weights weights = {make_buffer(scalar_address(w + u64{n0} * k), readfirstlane(columns * k * 2)),
                     k * 2,
                     k,
                     kTileRows,
                     {}};
  Accumulators acc = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  multiply_wave<kMTiles, kNTiles, kPrefetch>(acc, weights, rows,
                                             (pos.split * kWaves + wave) * kStepOfK, kStrideK,
                                             lds + wave * kWaveBytes, [] {});
  WaveAccumulators wave_acc = {};
  reduce_wave_tiles(wave_acc, acc, lds);
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, pos.m * ((n + kN - 1) / kN) + pos.n);
    workgroup_barrier();
    if (!tile.reduce(wave_acc, pos.split, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
  }
#pragma unroll
  for (u32 i = 0; i < kTilesPerWave; ++i) {
    const u32 t = wave + i * kWaves;
    const u32 row = m0 + t / kNTiles * kTileRows + lane % kTileRows;
    const u32 column = n0 + t % kNTiles * kTileRows + lane / kTileRows * 4;
    if (t >= kTiles || row >= m || column >= n) continue;
    *reinterpret_cast<Bf16x4*>(out + u64{row} * n + column) =
        __builtin_convertvector(wave_acc[i], Bf16x4);
  }
}
