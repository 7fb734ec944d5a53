// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales, of any value, per block of 128 of K, for few rows of x: w is read once,
// from memory to registers. M up to 16 kMTiles, any N, K a multiple of 128.
//
// Layout. A workgroup computes all rows of x by 16 kNTiles rows of w. Its kWaves waves, and kSplit
// workgroups with the same rows, interleave along K in K-steps of kSteps blocks of 128. All
// operands of a K-step are in flight at once, in registers: 2 kSteps kNTiles KiB of w per wave.
// Loads complete in order; kXFirst sets that order. If x comes first, the workgroups of an XCD
// prefetch x to L2 together; if w comes last, x and its scales are complete when w arrives. With
// kLines loads bring whole cache lines, and the wave reorders them to fragments through its own
// LDS. Blocks beyond K load zeros without a memory access. w is MFMA operand A, so a lane holds 4
// neighbours of a row of out and the scale of its tile is one value. The waves' partials are
// reduced in LDS, the workgroups' partials in the workspace by the last to arrive, both in a fixed
// order.
//
// Guarantees: bitwise deterministic for a given config and K.
// Requires: x, w and their rows 16-byte aligned; the rows of a workgroup span less than 2 GiB (what
// lies before them may be larger).
#include "gemm/split_k_wave_reduce.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"
#include "rfops/group/tile_map.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/wave_loader.h"

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kDense = RFOPS_DENSE;        // x, w and w_scale are contiguous
constexpr u32 kMTiles = RFOPS_M_TILES;      // 16-row tiles of x
constexpr u32 kNTiles = RFOPS_N_TILES;      // 16-row tiles of w per workgroup
constexpr u32 kSteps = RFOPS_STEPS;         // blocks along K that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;         // waves per workgroup, interleaved along K
constexpr u32 kSplit = RFOPS_SPLIT;         // split-K: workgroups per output tile
constexpr u32 kLines = RFOPS_LINES;         // cache lines of a row per load, or 0 (wave_loader.h)
// Order of a K-step's loads: 0: w, x, scales; 1: x, w, scales; 2: x, scales, w; 3: half of w, x,
// scales, rest of w.
constexpr u32 kXFirst = RFOPS_X_FIRST;

constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kTiles = kNTiles * kMTiles;
constexpr u32 kN = kNTiles * kTileRows;
constexpr u32 kM = kMTiles * kTileRows;
using Split = WaveSplitKReducer<kSplit, kTiles, kWaves>;
constexpr u32 kTilesPerWave = kTilesOfWave<kWaves, kTiles>;  // maximum
static_assert(kTilesPerWave == Split::kTilesPerWave);

static_assert(kScaleRows % kN == 0, "a workgroup's rows of w have one scale per block");
static_assert(2 * kSteps * (kNTiles + kMTiles) + kMTiles <= 63,
              "vmcnt counts at most 63 in flight");
static_assert(kSteps <= LaneBlockScales::kSteps,
              "one load brings the scales of 16 rows for a K-step");

using Order = WaveOrder<kLines>;
using XRows = WaveTileLoader<false, kLines>;
using WRows = WaveTileLoader<kShuffled, kLines>;
constexpr u32 kSpan = Order::kTiles;  // blocks that are loaded together
static_assert(kSteps % kSpan == 0, "a whole number of loads");

// LDS per wave: first for reordering fragments, later for its sums.
constexpr u32 kSumBytes = kWaves > 1 ? kTiles * kWaveSize * sizeof(F32x4) : kVecBytes;
constexpr u32 kWaveBytes = kSumBytes > Order::kBytes ? kSumBytes : Order::kBytes;
static_assert(kWaves * kWaveBytes < kLdsBytes, "a workgroup fits a CU");
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

// w is loaded in units of 16 rows by kSpan blocks: kLead units before x, units up to kMiddle before
// the scales, the others last.
constexpr u32 kUnits = kSteps / kSpan * kNTiles;
constexpr u32 kLead = kXFirst == 0 ? kUnits : kXFirst == 3 ? kUnits / 2 : 0;
constexpr u32 kMiddle = kXFirst == 1 ? kUnits : kLead;

// Operands of one K-step: kSteps blocks from block_begin on; those from `blocks` on are zeros.
struct KStep {
  Fragment w[kNTiles][kSteps], x[kMTiles][kSteps];
  f32 x_scale[kMTiles], w_scale[kSteps];

  template <u32 kUnitBegin, u32 kUnitEnd>
  __device__ void load_w(const WRows& rows, u32 block_begin, u32 blocks) {
#pragma unroll
    for (u32 u = kUnitBegin; u < kUnitEnd; ++u) {
      const u32 s = u / kNTiles * kSpan, j = u % kNTiles;
      rows.template load<kStreamed>(&w[j][s], j * kTileRows, block_begin + s, blocks);
      if (j == kNTiles - 1) sched_barrier();
    }
    sched_barrier();
  }
  __device__ void load_x(const XRows& rows, u32 block_begin, u32 blocks) {
#pragma unroll
    for (u32 s = 0; s < kSteps; s += kSpan) {
#pragma unroll
      for (u32 i = 0; i < kMTiles; ++i) {
        rows.template load<kCached>(&x[i][s], i * kTileRows, block_begin + s, blocks);
      }
      sched_barrier();
    }
  }
  __device__ void load_x_scales(const LaneBlockScales& x_loader, u32 block_begin, u32 blocks) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i)
      x_scale[i] = x_loader.load(i * kTileRows, block_begin, blocks);
    sched_barrier();
  }
  __device__ void load_w_scales(const BlockScales& w_loader, u32 block_begin, u32 blocks) {
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      w_scale[s] =
          w_loader.load(block_begin + s < blocks ? block_begin + s
                                                 : blocks - 1);  // zeroed below if out of bounds
    }
    sched_barrier();
  }

  __device__ void arrange_w(u32 unit, const Order& arranger) {
    WRows::arrange(&w[unit % kNTiles][unit / kNTiles * kSpan], arranger);
  }
  __device__ void arrange_x(u32 step, const Order& arranger) {
#pragma unroll
    for (u32 i = 0; i < kMTiles && step % kSpan == 0; ++i) XRows::arrange(&x[i][step], arranger);
  }
  __device__ F32x4 product(u32 step, u32 i, u32 j) const {
    F32x4 partial = {};
#pragma unroll
    for (u32 q = 0; q < kMatrixSteps; ++q)
      partial = mfma_fp8_step(q, w[j][step], x[i][step], partial);
    return partial;
  }
  __device__ void scales_of(f32 (&scale)[kMTiles], u32 step, const LaneBlockScales& x_loader,
                            u32 block_begin, u32 blocks) const {
    const f32 w_block_scale = block_begin + step < blocks ? w_scale[step] : 0.0f;
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) scale[i] = x_loader.select(x_scale[i], step) * w_block_scale;
  }
  __device__ static void add(F32x4& sum, F32x4 partial, f32 scale) {
#pragma unroll
    for (u32 e = 0; e < 4; ++e) sum[e] = __builtin_fmaf(partial[e], scale, sum[e]);
  }

  // Accumulates a K-step whose scales arrive last.
  __device__ void add_scales_last(F32x4 (&sums)[kTiles], const Order& arranger,
                                  const LaneBlockScales& x_loader, u32 block_begin, u32 blocks) {
    constexpr bool kMultiplyFirst =
        kSteps * kTiles <= 4;  // computes all products first, so that no MFMA latency is exposed
    F32x4 partial[kSteps][kTiles];
#pragma unroll
    for (u32 u = 0; u < kUnits; ++u) arrange_w(u, arranger);
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      arrange_x(s, arranger);
#pragma unroll
      for (u32 t = 0; t < kTiles && kMultiplyFirst; ++t)
        partial[s][t] = product(s, t % kMTiles, t / kMTiles);
    }
    if constexpr (kMultiplyFirst) sched_barrier();
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      f32 scale[kMTiles];
      scales_of(scale, s, x_loader, block_begin, blocks);
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) {
        if (!kMultiplyFirst) partial[s][t] = product(s, t % kMTiles, t / kMTiles);
        add(sums[t], partial[s][t], scale[t % kMTiles]);
      }
    }
  }
  __device__ void accumulate(F32x4 (&sums)[kTiles], const Order& arranger,
                             const LaneBlockScales& x_loader, u32 block_begin, u32 blocks) {
    if constexpr (kMiddle == kUnits) {
      add_scales_last(sums, arranger, x_loader, block_begin, blocks);
    } else {
      add_w_last(sums, arranger, x_loader, block_begin, blocks);
    }
  }

  // Accumulates a K-step whose w arrives last.
  __device__ void add_w_last(F32x4 (&sums)[kTiles], const Order& arranger,
                             const LaneBlockScales& x_loader, u32 block_begin, u32 blocks) {
    f32 scale[kSteps][kMTiles];
#pragma unroll
    for (u32 u = 0; u < kLead; ++u) arrange_w(u, arranger);
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) arrange_x(s, arranger);
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) scales_of(scale[s], s, x_loader, block_begin, blocks);
#pragma unroll
    for (u32 u = 0; u < kUnits; ++u) {
      const u32 j = u % kNTiles;
      if (u >= kLead) arrange_w(u, arranger);
#pragma unroll
      for (u32 s = u / kNTiles * kSpan; s < u / kNTiles * kSpan + kSpan; ++s) {
        F32x4 partial[kMTiles];
#pragma unroll
        for (u32 i = 0; i < kMTiles; ++i) partial[i] = product(s, i, j);
#pragma unroll
        for (u32 i = 0; i < kMTiles; ++i) add(sums[j * kMTiles + i], partial[i], scale[s][i]);
        sched_barrier();
      }
    }
  }
};

// Returns the part of x that this wave prefetches to L2. The first waves of each workgroup do it,
// because the others start later.
__device__ inline u32 prefetch_part(u32 wave) {
  constexpr u32 kPrefetchWaves = kWaves < 4 ? kWaves : 4;
  return wave < kPrefetchWaves ? workgroup_id_x() / kXcds * kPrefetchWaves + wave : ~0u >> 8;
}

}  // namespace

// Grid: workgroups with the same rows of w are neighbours on one XCD.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
a8w8_blockscale_stream(
    const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
    const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
    const f32* __restrict__ x_scale,  // [M, K/128], strides x_scale_row, x_scale_k
    const f32* __restrict__ w_scale,  // [N/128, K/128], strides w_scale_row, w_scale_k
    u32 m, u32 n, u32 k, u32 x_scale_row, u32 x_scale_k, u32 w_scale_k,
    Out* __restrict__ out,         // [M, N]
    void* __restrict__ workspace,  // partials if kSplit > 1 (WaveSplitKReducer)
    u32* __restrict__ counts,      // [tiles][kCounterStride], zeros before and after
    u32 x_row, u32 w_row, u32 w_scale_row) {
  if constexpr (kDense) x_row = w_row = k;
  const u32 n_tiles = (n + kN - 1) / kN, blocks = k / kTileK;
  const u32 order = xcd_remap(workgroup_id_x(), n_tiles * kSplit), tile = order / kSplit;
  const u32 n0 = tile * kN, split = order % kSplit;
  const u32 wave = kWaves == 1 ? 0 : wave_id(), lane = lane_id();
  u32 block_begin = (split * kWaves + wave) * kSteps;
  // The first loads are issued before anything else is computed, and unconditionally: beyond K they
  // return zeros, and no branch delays them.
  KStep k_step;
  const WRows w_rows({w, n0, n, kN, w_row, 0, k, WRows::kKStrideBytes}, lane);
  if constexpr (kXFirst == 0) k_step.load_w<0, kLead>(w_rows, block_begin, blocks), force_sgpr(m);
  const OperandView x_view(x, 0, m, kM, x_row, 0, k);
  u32 prefetched = 0;
  if constexpr (kXFirst != 0) {
    prefetched = prefetch_rows_to_l2<kM>(x_view, prefetch_part(wave), blocks);
    k_step.load_w<0, kLead>(w_rows, block_begin, blocks);
  }
  const XRows x_rows(x_view, lane);
  k_step.load_x(x_rows, block_begin, blocks);
  k_step.load_w<kLead, kMiddle>(w_rows, block_begin, blocks);
  force_sgpr(x_scale_row), force_sgpr(x_scale_k);
  const LaneBlockScales x_loader({x_scale, 0, m, kM, x_scale_row, x_scale_k, 0, blocks});
  k_step.load_x_scales(x_loader, block_begin, blocks);
  k_step.load_w<kMiddle, kUnits>(w_rows, block_begin, blocks);
  force_sgpr(w_scale_k);  // after the vector loads, because scalar loads complete sooner
  if constexpr (kDense) w_scale_row = w_scale_k == 1 ? k / kTileK : 1;
  const BlockScales w_loader(w_scale, n0, w_scale_row, w_scale_k, 0);
  k_step.load_w_scales(w_loader, block_begin, blocks);
  const auto row_of = [&](u32 t) { return t % kMTiles * kTileRows + lane % kTileRows; };
  const auto column_of = [&](u32 t) { return n0 + t / kMTiles * kTileRows + lane / kTileRows * 4; };
  // While the loads are in flight: offsets of the output; with kSplit only few workgroups store.
  u32 offsets[kTilesPerWave];
  OutputView<Out> out_rows(out, 0, m, kM, n);
  if constexpr (kSplit == 1) {
    out_rows.force_alignment();
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      const u32 t = wave + i * kWaves;
      offsets[i] = out_rows.make_offset(row_of(t), column_of(t));
    }
  }
  Split reducer(workspace, counts, tile, wave);
  if constexpr (kSplit > 1) reducer.prefetch_counter();
  const Order arranger((LdsBytes*)memory, wave * kWaveBytes, lane);
  F32x4 sums[kTiles] = {}, totals[kTilesPerWave] = {};
  k_step.accumulate(sums, arranger, x_loader, block_begin, blocks);
  force_vgpr(prefetched);  // the prefetch is complete
  while ((block_begin += kSplit * kWaves * kSteps) < blocks) {
    k_step.load_w<0, kLead>(w_rows, block_begin, blocks);
    k_step.load_x(x_rows, block_begin, blocks);
    k_step.load_w<kLead, kMiddle>(w_rows, block_begin, blocks);
    k_step.load_x_scales(x_loader, block_begin, blocks);
    k_step.load_w<kMiddle, kUnits>(w_rows, block_begin, blocks);
    k_step.load_w_scales(w_loader, block_begin, blocks);
    k_step.accumulate(sums, arranger, x_loader, block_begin, blocks);
  }
  reduce_waves(memory, sums, wave, wave, lane, [&](u32 i, u32, F32x4 total) { totals[i] = total; });
  if (kWaves > kTiles && wave >= kTiles) return;
  if constexpr (kSplit > 1) {
    if (!reducer.reduce(totals, split)) return;
  }
  out_rows.store([&](auto store) {
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTiles) return;
      if constexpr (kSplit == 1) {
        store(totals[i], row_of(t), column_of(t), offsets[i]);
      } else {
        store(totals[i], row_of(t), column_of(t));
      }
    }
  });
}
