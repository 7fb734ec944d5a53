// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales of blocks of 128 of K, for few rows of x: w is read once, from memory to
// registers. M up to 16 kMTiles, any N, K a multiple of 128, scales of any value.
//
// Layout. A workgroup has all rows of x and 16 kNTiles rows of w. Its kWaves waves, and kSplit
// workgroups of the same rows, take turns along K, kSteps blocks of 128 at a time; a turn's
// operands go to registers, all of them in flight at once: 2 kSteps kNTiles KiB of w a wave. With
// kLines they come as whole lines, and the wave's own LDS puts them into operands' order. Blocks
// beyond K are loaded as zeros, without touching memory. w is operand A, so that a lane holds 4
// neighbours of a row of out, and the scale of its tile is one value. The waves' sums meet in LDS,
// in their order; the workgroups' in a workspace, and the last one adds them up.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns x, w
// and their rows to 16 bytes; a workgroup's rows span less than 2 GiB, what lies before them may be
// more.
#include "rfops/arch.h"
#include "rfops/block_map.h"
#include "rfops/epilogue.h"
#include "rfops/loader.h"
#include "rfops/matrix.h"
#include "rfops/scales.h"
#include "rfops/split_reduce.h"
#include "rfops/wave_rows.h"
#include "rfops/wave_sums.h"

#if !defined(RFOPS_M_TILES) || !defined(RFOPS_N_TILES) || !defined(RFOPS_STEPS) || \
    !defined(RFOPS_WAVES) || !defined(RFOPS_SPLIT) || !defined(RFOPS_OUT) ||       \
    !defined(RFOPS_SHUFFLED) || !defined(RFOPS_LINES)
#error "a8w8_blockscale_stream needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w lies in tiles of 16 rows by 16 bytes
constexpr u32 kMTiles = RFOPS_M_TILES;      // tiles of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;      // tiles of 16 rows of w of a workgroup
constexpr u32 kSteps = RFOPS_STEPS;         // blocks along K that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;         // waves of a workgroup, side by side along K
constexpr u32 kSplit = RFOPS_SPLIT;         // workgroups along K
constexpr bool kLines = RFOPS_LINES;        // loads ask for whole lines (wave_rows.h)

constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kTiles = kNTiles * kMTiles;
constexpr u32 kN = kNTiles * kTileRows;
constexpr u32 kM = kMTiles * kTileRows;
using Split = SplitTile<kSplit, kTiles * kWaveSize, kThreads>;
constexpr u32 kOwn = kTilesOfWave<kWaves, kTiles>;  // that it writes at most
static_assert(kOwn == Split::kOwn);

static_assert(kScaleRows % kN == 0, "a workgroup's rows of w have one scale a block");
static_assert(kSteps * (2 * kNTiles + 3 * kMTiles) <= 63, "vmcnt counts at most 63 in flight");
static_assert(kWaves * (kTiles * kWaveSize * sizeof(F32x4) + kLines * kLdsTile) < kLdsBytes,
              "sums meet in LDS, beside what puts tiles into order");

static_assert(kSteps <= LaneScales::kSteps, "a load brings a turn's scales of 16 rows");

using XRows = WaveRows<false, kLines>;
using WRows = WaveRows<kShuffled, kLines>;
struct Inputs {
  XRows x;
  WRows w;
  WaveOrder order;
  LaneScales x_scale;
  BlockScales w_scale;
  u32 blocks;
};

// Adds up one turn: kSteps blocks from `first` on, of which those from in.blocks on are not there.
// w first: it comes from memory, x from L2 meanwhile.
__device__ inline void take_turn(F32x4 (&sums)[kTiles], const Inputs& in, u32 first) {
  Tile w[kSteps][kNTiles], x[kSteps][kMTiles];
  f32 x_scale[kMTiles], w_scale[kSteps];
  const auto there = [&](u32 step) { return first + step < in.blocks; };
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
    w_scale[s] = in.w_scale.at(there(s) ? first + s : first);  // no branch: zero it below
  }
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      w[s][j] = in.w.load<kStreamed>(j * kTileRows, (first + s) * kTileK, there(s));
    }
    keep_order();
  }
#pragma unroll
  for (u32 i = 0; i < kMTiles; ++i) {
    x_scale[i] = in.x_scale.load(i * kTileRows, first, in.blocks);
  }
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      x[s][i] = in.x.load(i * kTileRows, (first + s) * kTileK, there(s));
    }
    keep_order();
  }
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) WRows::arrange(w[s][j], in.order);
  }
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) XRows::arrange(x[s][i], in.order);
    const f32 w_own = there(s) ? w_scale[s] : 0.0f;
    f32 scale[kMTiles];
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) scale[i] = in.x_scale.at(x_scale[i], s) * w_own;
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      F32x4 part = {};
#pragma unroll
      for (u32 q = 0; q < kMatrixSteps; ++q) {
        part = multiply_step(q, w[s][t / kMTiles], x[s][t % kMTiles], part);
      }
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        sums[t][e] = __builtin_fmaf(part[e], scale[t % kMTiles], sums[t][e]);
      }
    }
  }
}

}  // namespace

// Grid: workgroups of the same rows of w are neighbours on one XCD.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
a8w8_blockscale_stream(Out* __restrict__ out,            // [M, N]
                       const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
                       const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
                       const f32* __restrict__ x_scale,  // [M, K/128], in steps of
                       const f32* __restrict__ w_scale,  // [N/128, K/128], likewise
                       void* __restrict__ workspace,     // SplitTile; with kSplit > 1
                       u32* __restrict__ counts,         // [tiles], zeros
                       u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 x_scale_row, u32 x_scale_k,
                       u32 w_scale_row, u32 w_scale_k) {
  const Block at = own_block<1, kSplit>(1, (n + kN - 1) / kN);
  const u32 n0 = at.n * kN, blocks = k / kTileK;
  const u32 wave = wave_in_group(), lane = lane_in_wave();
  __shared__ u8 tiles[kWaves][kLines ? kLdsTile : 1];
  const Inputs in = {{{x, 0, m, kM, x_row, 0, k}, lane},
                     {{w, n0, n, kN, w_row, 0, k, WRows::kUnit}, lane},
                     {(LdsBytes*)tiles[wave], lane},
                     LaneScales({x_scale, 0, m, kM, x_scale_row, x_scale_k, 0, blocks}),
                     {w_scale, n0, w_scale_row, w_scale_k, 0},
                     blocks};
  F32x4 sums[kTiles] = {};
  for (u32 first = (at.split * kWaves + wave) * kSteps; first < blocks;
       first += kSplit * kWaves * kSteps) {
    take_turn(sums, in, first);
  }
  F32x4 own[kOwn] = {};
  add_up_waves<kWaves>(sums, wave, lane, [&](u32 i, u32, F32x4 total) { own[i] = total; });
  if constexpr (kSplit > 1) {
    if (!Split(workspace, counts, at.n).reduce(own, at.split)) return;
  }
  OutRows<Out>(out, 0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTiles) return;
      store(own[i], t % kMTiles * kTileRows + lane % kTileRows,
            n0 + t / kMTiles * kTileRows + lane / kTileRows * 4);
    }
  });
}
