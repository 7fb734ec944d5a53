// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], in MX formats: w is e2m1; x is e2m1 or e4m3, or
// bf16 or f16 that is quantised here to e2m1; one e8m0 scale per 32 along K.
//
// For few rows of x: w is read once, from memory to registers. M up to 16 kMTiles, any N, K a
// multiple of 32.
//
// Layout. A workgroup computes all rows of x by 16 kNTiles rows of w. Its kWaves waves, and kSplit
// workgroups with the same rows, interleave along K in K-steps of kSteps tiles of 128. All operands
// of a K-step are in flight at once, in the registers that the MFMAs use
// (rfops/matrix/mfma_mxfp4.h). x that is quantised is loaded row by row and transposed through LDS
// so that a lane gets a block of 32; each workgroup quantises each element once. w is MFMA operand
// A, so a lane holds 4 neighbours of a row of out. The waves' partials are reduced in LDS, the
// workgroups' partials in the workspace by the last to arrive, both in a fixed order.
//
// Guarantees: bitwise deterministic for a given config and K. A scale of 255 makes its row or
// column NaN.
// Requires: x, w and their rows 16-byte aligned, preshuffled scales 4-byte aligned; the rows of a
// workgroup span less than 2 GiB (what lies before them may be larger).
#include "gemm/bias.h"
#include "gemm/mxfp4_operand.h"
#include "rfops/chip/arch.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/global_to_lds.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_stream is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
using X = RFOPS_X;                          // bf16, f16, Fp4 or Fp8
using Bias = RFOPS_BIAS;                    // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr u32 kMTiles = RFOPS_M_TILES;      // 16-row tiles of x
constexpr u32 kNTiles = RFOPS_N_TILES;      // 16-row tiles of w per workgroup
constexpr u32 kSteps = RFOPS_STEPS;         // tiles along K that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;         // waves per workgroup, interleaved along K
constexpr u32 kSplit = RFOPS_SPLIT;         // split-K: workgroups per output tile
constexpr bool kOneStep = RFOPS_ONE_TURN;   // K is at most one K-step of all waves
constexpr bool kTail = RFOPS_TAIL;          // K ends within a tile

constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kTiles = kNTiles * kMTiles;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows;
using Split = SplitKReducer<kSplit, kTiles * kWaveSize, kThreads>;
constexpr u32 kTilesPerWave = Split::kItemsPerThread;  // maximum per wave
using XTiles = XSource<X, RFOPS_ROUNDING, RFOPS_X_SHUFFLED_SCALES, kTail>;
using WTiles = ScaledSource<Fp4, kShuffled, RFOPS_SHUFFLED_SCALES, kTail, kStreamed>;

// LDS per wave: first tiles of x in staging, later its sums.
constexpr u32 kSumBytes = kTiles * kWaveSize * sizeof(F32x4);
constexpr u32 kStagingBytes = XTiles::kStagingBytes * (kMTiles * kSteps > 1 ? 2 : 1);
constexpr u32 kWaveBytes = kSumBytes > kStagingBytes ? kSumBytes : kStagingBytes;
static_assert(kSumBytes >= WTiles::kStagingBytes, "a tile of w fits the staging buffer");
static_assert(kWaves * kWaveBytes <= kLdsBytes, "a workgroup fits a CU");
__shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

// Operands of one K-step: kSteps tiles from tile_begin on; those from `tiles` on are zeros. w
// first, because it comes from memory and x meanwhile from L2.
struct KStep {
  WTiles::Staged w[kSteps][kNTiles];
  XTiles::Staged x[kSteps][kMTiles];

  __device__ void load(const WTiles& w_tiles, const XTiles& x_tiles, u32 tile_begin, u32 tiles) {
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
      for (u32 j = 0; j < kNTiles; ++j)
        w[s][j] = w_tiles.load(j, tile_begin + s, tile_begin + s < tiles);
      sched_barrier();
    }
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
      for (u32 i = 0; i < kMTiles; ++i)
        x[s][i] = x_tiles.load(i, tile_begin + s, tile_begin + s < tiles);
      sched_barrier();
    }
  }

  // Multiplies tile after tile of x, while the next one is staged through LDS.
  __device__ void multiply(F32x4 (&sums)[kTiles], const WTiles& w_tiles, const XTiles& x_tiles,
                           u32 tile_begin, LdsBytes* staging) const {
    constexpr u32 kXFragments = kSteps * kMTiles;
    const auto stage = [&](u32 q) {
      x_tiles.stage(x[q / kMTiles][q % kMTiles], staging + q % 2 * XTiles::kStagingBytes);
    };
    const auto transpose = [&](u32 q) {
      return x_tiles.transpose(x[q / kMTiles][q % kMTiles],
                               staging + q % 2 * XTiles::kStagingBytes);
    };
    ScaledFragment a[kNTiles];
    stage(0);
    typename XTiles::Transposed next = transpose(0);
#pragma unroll
    for (u32 q = 0; q < kXFragments; ++q) {
      const typename XTiles::Transposed current = next;
      if (q + 1 < kXFragments) {
        stage(q + 1);
        next = transpose(q + 1);
      }
      const u32 s = q / kMTiles, i = q % kMTiles;
      if (i == 0) {
#pragma unroll
        for (u32 j = 0; j < kNTiles; ++j) {
          w_tiles.stage(w[s][j], staging);
          a[j] = w_tiles.make_fragment(w_tiles.transpose(w[s][j], staging), j, tile_begin + s);
        }
      }
      const ScaledFragment b = x_tiles.make_fragment(current, i, tile_begin + s);
#pragma unroll
      for (u32 j = 0; j < kNTiles; ++j) {
        F32x4& sum = sums[j * kMTiles + i];
        sum = mfma_mxfp4_16x16x128<XTiles::kFormat>(a[j].fragment.low, a[j].scale, b.fragment,
                                                    b.scale, sum);
      }
    }
  }
};

}  // namespace

// Grid: workgroups with the same rows of w are neighbours on one XCD.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp4_stream(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
             const u8* __restrict__ w_scale,  // [N, K/32], rows w_scale_row bytes apart
             const void* __restrict__ x,      // [M, K], rows x_row bytes apart
             const u8* __restrict__ x_scale,  // [M, K/32], rows x_scale_row bytes apart
             u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
             Out* __restrict__ out,          // [M, N]
             const void* __restrict__ bias,  // [N]
             void* __restrict__ workspace,   // partials if kSplit > 1 (SplitKReducer)
             u32* __restrict__ counts) {     // [tiles], zeros before and after
  const u32 n_tiles = (n + kN - 1) / kN, tiles = (k + kTileK - 1) / kTileK;
  const u32 order = xcd_remap(workgroup_id_x(), n_tiles * kSplit);
  const u32 n_tile = order / kSplit, split = order % kSplit, n0 = n_tile * kN;
  const u32 wave = wave_id(), lane = lane_id();
  // The workgroups of an XCD start at different parts of x, so that each part is brought to L2 by
  // one of them for all.
  const u32 k_part = (wave + n_tile) % kWaves;
  const WTiles w_tiles = {{w, n0, n, kN, w_row, 0, k / 2, WTiles::Layout::kKStrideBytes},
                          {w_scale, n0, n, kN, w_scale_row, k},
                          k};
  const XTiles x_tiles = x_source<XTiles, X>(x, x_scale, 0, m, kM, x_row, x_scale_row, k);
  LdsBytes* const staging = (LdsBytes*)memory[k_part];
  u32 tile_begin = (split * kWaves + k_part) * kSteps;
  KStep k_step;
  k_step.load(w_tiles, x_tiles, tile_begin, tiles);
  F32x4 sums[kTiles] = {};
  if constexpr (!kOneStep) {
    constexpr u32 kStride = kSplit * kWaves * kSteps;
    for (; tile_begin + kStride < tiles; tile_begin += kStride) {
      KStep next;
      next.load(w_tiles, x_tiles, tile_begin + kStride, tiles);
      k_step.multiply(sums, w_tiles, x_tiles, tile_begin, staging);
      k_step = next;
    }
  }
  k_step.multiply(sums, w_tiles, x_tiles, tile_begin, staging);
  const auto column = [&](u32 t) { return n0 + t / kMTiles * kTileRows + lane / kTileRows * 4; };
  const BiasRow<Bias> bias_row(bias, n);
  F32x4 totals[kTilesPerWave] = {}, biases[kTilesPerWave];
#pragma unroll
  for (u32 i = 0; i < kTilesPerWave; ++i) biases[i] = bias_row.load(column(wave + i * kWaves));
  reduce_waves(memory, sums, k_part, wave, lane,
               [&](u32 i, u32, F32x4 total) { totals[i] = total; });
  if constexpr (kSplit > 1) {
    if (!Split(workspace, counts, n_tile).reduce(totals, split)) return;
  }
  OutputView<Out>(out, 0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTiles) return;
      store(totals[i] + biases[i], t % kMTiles * kTileRows + lane % kTileRows, column(t));
    }
  });
}
