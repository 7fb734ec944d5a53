// out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in block b} x[m, k] * w[n, k]
//
// OCP MX-FP8 on scaled MFMA: e4m3 payloads, one e8m0 scale per block of 32 along K; any M and N, K
// a multiple of 32. In decoding, w is read once from memory for up to 16 kMTiles rows of x.
//
// Layout. A workgroup computes 16 kNTiles rows of w by 16 kMTiles rows of x. Its kWaves waves, and
// kSplit workgroups with the same rows, interleave along K in K-steps of kSteps tiles of 128.
// Operands are loaded direct to registers in the layout of rfops/matrix/mfma_mxfp8.h, all of a
// K-step in flight at once: 2 kSteps kNTiles KiB of w per wave. Each 128 of K and 16 x 16 of the
// output take one v_mfma_scale; tiles out of bounds take none. w is MFMA operand A, so a lane holds
// 4 neighbours of a row of out. The waves' partials are reduced in LDS, the workgroups' partials in
// the workspace by the last to arrive. Workgroups that share rows of w are neighbours on one XCD,
// so the later ones find w in L2.
//
// 32x32x64 would take the same cycles, with 32 instead of 64 contiguous bytes of a row per load and
// four times the accumulators: only 16x16x128 is used.
//
// Guarantees: bitwise deterministic for a given config and K. A scale of 255 makes its row or
// column NaN.
// Requires: x and w 16-byte aligned, scales 4-byte aligned if kWideScales; 16 max(kMTiles, kNTiles)
// K < 2 GiB (offsets within a workgroup's rows have 32 bits, the rows' base has 64).
#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_mxfp8.h"
#include "rfops/store/row_major_store.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp8_mfma is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                  // bf16, f16 or f32
constexpr u32 kMTiles = RFOPS_M_TILES;  // 16-row tiles of x per workgroup
constexpr u32 kNTiles = RFOPS_N_TILES;  // 16-row tiles of w per workgroup
constexpr u32 kSteps = RFOPS_STEPS;     // tiles along K that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;     // waves per workgroup, interleaved along K
constexpr u32 kSplit = RFOPS_SPLIT;     // split-K: workgroups per output tile
// K is a multiple of 128 and scales are loaded four at a time. Otherwise they are loaded one by
// one, and K may end within a tile.
constexpr bool kWideScales = RFOPS_WIDE_SCALES;
constexpr u32 kTailSteps = RFOPS_LAST_TURN;  // tiles along K modulo kSteps
constexpr bool kSharedW = RFOPS_SHARED_W;    // other workgroups read the same rows of w
constexpr bool kRaggedM = RFOPS_RAGGED_M;    // the last workgroup's rows of x fill fewer tiles
constexpr bool kRaggedN = RFOPS_RAGGED_N;    // the last workgroup's rows of w fill fewer tiles

constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kTiles = kNTiles * kMTiles;  // output tiles
constexpr u32 kTilesPerWave = kTilesOfWave<kWaves, kTiles>;
using Split = SplitKReducer<kSplit, kTiles * kWaveSize, kThreads>;

static_assert(kMTiles >= 1 && kMTiles <= 4 && kNTiles >= 1 && kNTiles <= 4,
              "1 to 4 tiles along M and N");
static_assert(kThreads <= 1024, "a workgroup has at most 1024 threads");
static_assert(kSteps >= 1 && kSteps <= 4, "one load of 4 dwords brings a row's scales of a K-step");
static_assert(kTailSteps < kSteps, "the tail is shorter than a K-step");
static_assert((kSteps * 2 + (kWideScales ? 1 : kSteps)) * (kMTiles + kNTiles) <= 63,
              "vmcnt counts at most 63 loads in flight");
static_assert((kWaves > 1 ? kWaves * kTiles * kWaveSize * 16 : 0) + (kSplit > 1 ? 16 : 0) <=
                  kLdsBytes,
              "LDS holds all partials");

// The rows of x, or of w, of this workgroup.
struct Rows : MxRows {
  u32 num_tiles;  // tiles that have a row in bounds
};

__device__ inline Rows make_rows(const u8* payload, const u8* scales, u32 row0, u32 rows, u32 tiles,
                                 u32 k) {
  const u32 remaining = rows - row0;
  const u32 num_rows = remaining < tiles * kTileRows ? remaining : tiles * kTileRows;
  return {{payload, scales, row0, num_rows, k}, (num_rows + kTileRows - 1) / kTileRows};
}

// What a lane loads of one operand in a K-step of kNumSteps tiles.
template <u32 kNumSteps, u32 kCount>
struct KStepFragments {
  Fragment fragment[kNumSteps][kCount];
  u32 scale[kNumSteps][kCount];
};

struct Position {
  u32 step, steps;  // first tile of the K-step along K; number of tiles along K
  u32 k, lane;
};

template <u32 kNumSteps, u32 kCount>
__device__ inline void load_scales(KStepFragments<kNumSteps, kCount>& frags, const Rows& rows,
                                   const Position& pos) {
  const u32 scales_k = pos.k / kMxBlock;
#pragma unroll
  for (u32 t = 0; t < kCount; ++t) {
    const u32 scalar = t * kTileRows * scales_k + pos.step * kTileBlocks;
    if constexpr (kWideScales) {
      const auto scales =
          buffer_load_dwords<kNumSteps>(rows.scales, pos.lane % kTileRows * scales_k, scalar);
#pragma unroll
      for (u32 s = 0; s < kNumSteps; ++s) frags.scale[s][t] = scales.dword[s];
    } else {
#pragma unroll
      for (u32 s = 0; s < kNumSteps; ++s) {
        const u32 lane = scale_offset(pos.lane, scales_k) + s * kTileBlocks;
        const u32 masked = block_offset(lane, pos.lane, (pos.step + s) * kTileK, pos.k);
        frags.scale[s][t] = buffer_load_u8(rows.scales, masked, scalar);
      }
    }
  }
}

// Loads fragments in the order of use. All loads are issued before the first wait, because loads
// complete in order and the compiler would issue the first ones last.
template <CacheHint kHint, u32 kNumSteps, u32 kCount>
__device__ inline void load_tiles(KStepFragments<kNumSteps, kCount>& frags, const Rows& rows,
                                  const Position& pos) {
  const u32 lane = fragment_offset(pos.lane, pos.k);
#pragma unroll
  for (u32 s = 0; s < kNumSteps; ++s) {
    const u32 k = (pos.step + s) * kTileK;
#pragma unroll
    for (u32 t = 0; t < kCount; ++t) {
      const u32 scalar = t * kTileRows * pos.k + k;
      frags.fragment[s][t] =
          kWideScales ? load_fragment<kHint>(rows.payload, lane, scalar)
                      : load_tail_fragment<kHint>(rows.payload, lane, scalar, pos.lane, k, pos.k);
    }
    sched_barrier();
  }
}

using Sums = F32x4[kTiles];

// Multiplies kNumSteps tiles along K of the first kN x kM output tiles. w is loaded first: it comes
// from memory, x meanwhile from L2.
template <u32 kNumSteps, u32 kN, u32 kM>
__device__ inline void do_k_steps(Sums& sums, const Rows& w_rows, const Rows& x_rows,
                                  const Position& pos) {
  KStepFragments<kNumSteps, kN> w;
  KStepFragments<kNumSteps, kM> x;
  load_scales(w, w_rows, pos);
  load_tiles<kSharedW ? kCached : kStreamed>(w, w_rows, pos);
  load_scales(x, x_rows, pos);
  load_tiles<kCached>(x, x_rows, pos);
  const auto lane_scale = [&](u32 scale) {
    return kWideScales ? select_lane_scale(scale, pos.lane) : scale;
  };
#pragma unroll
  for (u32 s = 0; s < kNumSteps; ++s) {
#pragma unroll
    for (u32 j = 0; j < kN; ++j) {
#pragma unroll
      for (u32 i = 0; i < kM; ++i) {
        F32x4& sum = sums[j * kMTiles + i];
        sum = mfma_mxfp8_16x16x128(w.fragment[s][j], lane_scale(w.scale[s][j]), x.fragment[s][i],
                                   lane_scale(x.scale[s][i]), sum);
      }
    }
  }
}

// Runs all K-steps of a wave for the tiles that have rows in bounds. Each number of tiles has a
// loop of its own, because a branch per tile would make the compiler load one tile after the other.
template <u32 kN, u32 kM>
__device__ inline void run_mainloop(Sums& sums, const Rows& w, const Rows& x, Position pos) {
  if constexpr (kRaggedN && kN > 1) {
    if (w.num_tiles < kN) return run_mainloop<kN - 1, kM>(sums, w, x, pos);
  }
  if constexpr (kRaggedM && kM > 1) {
    if (x.num_tiles < kM) return run_mainloop<kN, kM - 1>(sums, w, x, pos);
  }
  for (; pos.step + kSteps <= pos.steps; pos.step += kSplit * kWaves * kSteps) {
    do_k_steps<kSteps, kN, kM>(sums, w, x, pos);
  }
  if constexpr (kTailSteps > 0) {
    if (pos.step < pos.steps) do_k_steps<kTailSteps, kN, kM>(sums, w, x, pos);
  }
}

}  // namespace

// Grid: x: 8 workgroups, one per XCD; y: tiles of x, which share rows of w; z: the other rows of w,
// kSplit times.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp8_mfma(Out* __restrict__ out,           // [M, N]
           const u8* __restrict__ x,        // [M, K] e4m3
           const u8* __restrict__ w,        // [N, K] e4m3
           const u8* __restrict__ x_scale,  // [M, K/32] e8m0
           const u8* __restrict__ w_scale,  // [N, K/32] e8m0
           u32 m, u32 n, u32 k,
           void* __restrict__ workspace,  // partials if kSplit > 1 (SplitKReducer)
           u32* __restrict__ counts) {    // [m groups, n groups], zeros before and after
  const u32 n_group = workgroup_id_z() / kSplit * kXcds + workgroup_id_x();
  const u32 split = workgroup_id_z() % kSplit;
  const u32 m0 = workgroup_id_y() * kMTiles * kTileRows, n0 = n_group * kNTiles * kTileRows;
  if (n0 >= n) return;

  const u32 wave = wave_id(), lane = lane_id();
  const Rows w_rows = make_rows(w, w_scale, n0, n, kNTiles, k);
  const Rows x_rows = make_rows(x, x_scale, m0, m, kMTiles, k);
  const Position pos = {(split * kWaves + wave) * kSteps, (k + kTileK - 1) / kTileK, k, lane};
  Sums sums = {};
  run_mainloop<kNTiles, kMTiles>(sums, w_rows, x_rows, pos);
  const auto store = [&](u32 t, F32x4 total) {
    const u32 row = m0 + t % kMTiles * kTileRows + lane % kTileRows;
    const u32 column = n0 + t / kMTiles * kTileRows + lane / kTileRows * 4;
    if (row >= m || column >= n) return;
    store_x4(out + u64{row} * n, total, column, n, are_rows_aligned(out, n));
  };
  if constexpr (kSplit == 1) {
    reduce_waves<kWaves>(sums, wave, lane, [&](u32, u32 t, F32x4 total) { store(t, total); });
  } else {
    F32x4 totals[kTilesPerWave] = {};
    reduce_waves<kWaves>(sums, wave, lane, [&](u32 i, u32, F32x4 total) { totals[i] = total; });
    const u32 n_groups = (n + kNTiles * kTileRows - 1) / (kNTiles * kTileRows);
    if (!Split(workspace, counts, workgroup_id_y() * n_groups + n_group).reduce(totals, split))
      return;
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      if (wave + i * kWaves < kTiles) store(wave + i * kWaves, totals[i]);
    }
  }
}
