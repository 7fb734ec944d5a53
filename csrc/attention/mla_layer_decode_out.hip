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
constexpr u32 kAhead = 1;
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows;
constexpr u32 kTurn = kSplit * kWaves * kStepOfK;  // of K: each wave has a step of it

using Weights = WaveRowLoader<kNTiles, kAhead>;
using Rows = PackedRows<kMTiles, kAhead>;

// LDS: each wave's rows of w; then sums of waves, some tiles at a time.
constexpr u32 kTiles = kMTiles * kNTiles, kOwn = kTilesOfWave<kWaves, kTiles>;
constexpr u32 kAtOnce = kTiles < 16 ? kTiles : 16;
constexpr u32 kWaveBytes = 2 * Weights::kHalfBytes;
constexpr u32 kSumBytes = kAtOnce * kWaveSize * sizeof(F32x4);
constexpr u32 kLds = kWaves * (kWaveBytes > kSumBytes ? kWaveBytes : kSumBytes);
static_assert(kLds <= kLdsBytes);
static_assert(kTiles % kAtOnce == 0 && (kTiles == kAtOnce || kAtOnce % kWaves == 0));

using Sums = F32x4[kTiles];
using OwnSums = F32x4[kOwn];
using Split = SplitKReducer<kSplit, kOwn * kThreads, kThreads>;

// Of all waves, in their order, this one's tiles: wave, wave + kWaves, and so on.
__device__ inline void add_up(OwnSums& own, const Sums& sums, LdsBytes* lds) {
  using Memory = RFOPS_LDS F32x4[kWaves][kAtOnce * kWaveSize];
  auto& memory = *reinterpret_cast<Memory*>(lds);
  const u32 wave = wave_id(), lane = lane_id();
#pragma unroll
  for (u32 first = 0; first < kTiles; first += kAtOnce) {
    workgroup_barrier();  // where others had their rows of w, or sums
#pragma unroll
    for (u32 t = 0; t < kAtOnce; ++t) memory[wave][t * kWaveSize + lane] = sums[first + t];
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kTilesOfWave<kWaves, kAtOnce>; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kAtOnce) break;
      F32x4 part[kWaves];
#pragma unroll
      for (u32 w = 0; w < kWaves; ++w) part[w] = memory[w][t * kWaveSize + lane];
      F32x4& total = own[first / kWaves + i];
      total = part[0];
#pragma unroll
      for (u32 w = 1; w < kWaves; ++w) total += part[w];
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
  const TileCoord at = this_tile<4, kSplit>((m + kM - 1) / kM, (n + kN - 1) / kN);
  const u32 m0 = at.m * kM, n0 = at.n * kN, columns = n - n0 < kN ? n - n0 : kN;
  const u32 wave = wave_id(), lane = lane_id();
  Rows rows = packed_rows<kMTiles, kAhead>(x, m, at.m, k);
  Weights weights = {make_buffer(scalar_address(w + u64{n0} * k), readfirstlane(columns * k * 2)),
                     k * 2,
                     k,
                     kTileRows,
                     {}};
  Sums sums = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  multiply_wave<kMTiles, kNTiles, kAhead>(sums, weights, rows,
                                          (at.split * kWaves + wave) * kStepOfK, kTurn,
                                          lds + wave * kWaveBytes, [] {});
  OwnSums own = {};
  add_up(own, sums, lds);
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, at.m * ((n + kN - 1) / kN) + at.n);
    workgroup_barrier();
    if (!tile.reduce(own, at.split, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
  }
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const u32 t = wave + i * kWaves;
    const u32 row = m0 + t / kNTiles * kTileRows + lane % kTileRows;
    const u32 column = n0 + t % kNTiles * kTileRows + lane / kTileRows * 4;
    if (t >= kTiles || row >= m || column >= n) continue;
    *reinterpret_cast<Bf16x4*>(out + u64{row} * n + column) =
        __builtin_convertvector(own[i], Bf16x4);
  }
}
