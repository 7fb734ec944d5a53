// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], both MXFP4: e2m1 elements, one e8m0 scale for 32
// along K. Any M and N, K a multiple of 32; for so few rows that loads are the limit, and more than
// mxfp4_stream takes.
//
// Layout. kWavesM x kWavesN waves make kM x kN of the result, one tile a workgroup. K-steps of 256,
// rows of 128 bytes and shuffled scales, go through registers to LDS, in two buffers. kLoadX of the
// waves load x, the others w: a wave's loads end in order, and w comes from memory where x comes
// from L2. Of step t a wave
//
//   reads its operands from LDS and multiplies them,
//   writes its pieces of step t + 1 to LDS and loads those of step t + 1 + kAhead (x: 2),
//
// and meets the others. Tiles side by side begin at other steps of K and go round, so that each
// part of x is brought to L2 by one of them before the others want it. w is operand A, so that a
// lane holds 4 neighbours of a row of out. kSplit workgroups share out K; the last of a tile adds
// up (split_k_reduce.h).
//
// Promises. Deterministic: the order of sums is fixed by the config, K and the place in the result.
// A scale of 255 is NaN in its row or column. The caller aligns x, w and their rows to 16 bytes,
// scales to 4; a workgroup's rows span less than 2 GiB, what lies before them may be more.
#include "gemm/bias.h"
#include "gemm/mxfp4_loader.h"
#include "gemm/mxfp4_tile_scheduler.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_deep is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

#if !defined(RFOPS_M) || !defined(RFOPS_N) || !defined(RFOPS_WAVES_M) ||              \
    !defined(RFOPS_WAVES_N) || !defined(RFOPS_LOAD_X) || !defined(RFOPS_AHEAD) ||     \
    !defined(RFOPS_SPLIT) || !defined(RFOPS_GROUP_M) || !defined(RFOPS_OUT) ||        \
    !defined(RFOPS_BIAS) || !defined(RFOPS_SHUFFLED) || !defined(RFOPS_X_SHUFFLED) || \
    !defined(RFOPS_TAIL)
#error "mxfp4_deep needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                         // bf16, f16 or f32
using Bias = RFOPS_BIAS;                       // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;     // w lies in tiles of 16 rows by 16 bytes
constexpr bool kXShuffled = RFOPS_X_SHUFFLED;  // the same of x
constexpr u32 kM = RFOPS_M;                    // rows of x of a workgroup
constexpr u32 kN = RFOPS_N;                    // rows of w of a workgroup
constexpr u32 kWavesM = RFOPS_WAVES_M, kWavesN = RFOPS_WAVES_N;
constexpr u32 kLoadX = RFOPS_LOAD_X;    // waves that load x
constexpr u32 kPrefetch = RFOPS_AHEAD;  // K-steps of w on their way
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kGroupM = RFOPS_GROUP_M;  // tiles along M of a group of workgroups
constexpr bool kTail = RFOPS_TAIL;      // K ends within a K-step
constexpr u32 kWaves = kWavesM * kWavesN, kThreads = kWaves * kWaveSize;
constexpr u32 kWaveM = kM / kWavesM, kWaveN = kN / kWavesN;
constexpr u32 kMTiles = kWaveM / kTileRows, kNTiles = kWaveN / kTileRows;  // of a wave
constexpr u32 kTiles = kMTiles * kNTiles;
static_assert(kWaveM % kScalePair == 0 && kWaveN % kScalePair == 0, "whole pairs of tiles");

struct Stage {
  Fp4Rows<kM> x;
  Fp4Rows<kN> w;
};
static_assert(2 * sizeof(Stage) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Stage stages[2];

using LoadX = Fp4Loader<kM, kXShuffled, kTail, kLoadX, 2>;
using LoadW = Fp4Loader<kN, kShuffled, kTail, kWaves - kLoadX, kPrefetch>;
static_assert(LoadX::kNumStages % 2 == 0 && LoadW::kNumStages % 2 == 0,
              "a step's buffer of LDS is known from its place in the loop");

struct Operands {
  U32x4 x[kMTiles], w[kNTiles];
};
struct StepScales {
  u32 x[kMTiles / 2], w[kNTiles / 2];
};

__device__ inline RFOPS_LDS Stage& stage_of(u32 buffer) {
  return ((RFOPS_LDS Stage*)stages)[buffer];
}

// A wave that loads x, or w.
template <class Load, bool kIsX>
class Wave {
 public:
  u32 m, n;  // its first row of x and of w in the workgroup

  __device__ explicit Wave(const Load& loader)
      : m(wave_id() / kWavesN * kWaveM),
        n(wave_id() % kWavesN * kWaveN),
        loader_(loader),
        fragment_{lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows),
                  lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows + 4)} {}

  __device__ void run_mainloop(F32x4 (&sums)[kTiles], u32 steps_left) {
#pragma unroll
    for (u32 s = 0; s < kNumStages; ++s) load(s);
#pragma unroll
    for (u32 i = 0; i < Load::kLoads; ++i) loader_.write_lds(0, i, operand_lds(0));
    load(0);
    wait_lgkmcnt();
    s_barrier();
#pragma unroll
    for (u32 i = 0; i < kReads; ++i) read(i, 0, 0);
    while (steps<0>(sums, steps_left)) {
    }
  }

 private:
  static constexpr u32 kNumStages = Load::kNumStages;
  static constexpr u32 kScaleReads = (kMTiles + kNTiles) / 2;
  static constexpr u32 kReads = kScaleReads + kMTiles + kNTiles;

  __device__ static auto operand_lds(u32 buffer) {
    if constexpr (kIsX) {
      return &stage_of(buffer).x;
    } else {
      return &stage_of(buffer).w;
    }
  }
  __device__ void load(u32 stage_idx) {
    loader_.begin(stage_idx);
#pragma unroll
    for (u32 i = 0; i < Load::kLoads; ++i) loader_.load(stage_idx, i);
    sched_barrier();
  }
  // Read `i` of a step's half; of the first one scales too.
  __device__ void read(u32 i, u32 half, u32 buffer) {
    const RFOPS_LDS Stage& stage = stage_of(buffer);
    const u32 offset = half == 0 ? fragment_.low : fragment_.high, t = i - kScaleReads,
              lane = lane_id();
    const LdsBytes* const x = (const LdsBytes*)stage.x.rows + m * kRowBytes + offset;
    const LdsBytes* const w = (const LdsBytes*)stage.w.rows + n * kRowBytes + offset;
    if (i < kNTiles / 2) {
      scales_[buffer].w[i] = stage.w.scales[n / kScalePair + i][lane];
    } else if (i < kScaleReads) {
      scales_[buffer].x[i - kNTiles / 2] = stage.x.scales[m / kScalePair + i - kNTiles / 2][lane];
    } else if (t < kNTiles) {
      operands_[half].w[t] = lds_load_b128(w + t * kLdsTile);
    } else {
      operands_[half].x[t - kNTiles] = lds_load_b128(x + (t - kNTiles) * kLdsTile);
    }
  }

  // From slot kSlot on, as many of `left` steps as there are slots; whether more follow. (By a
  // condition of its own the loop's waits would be those of a part of it.)
  template <u32 kStageIdx>
  __device__ bool steps(F32x4 (&sums)[kTiles], u32& steps_left) {
    half<kStageIdx, 0>(sums);
    wait_lgkmcnt();
    s_barrier();
    half<kStageIdx, 1>(sums);
    if (--steps_left == 0) return false;
    if constexpr (kStageIdx + 1 < kNumStages) return steps<kStageIdx + 1>(sums, steps_left);
    return true;
  }

  // What else is done in a half of a step: in the first one the second's operands are read and the
  // next step is put to LDS, in the second one its operands are read and another one is loaded.
  template <u32 kStageIdx, u32 kHalf>
  __device__ void do_issue_slot(u32 i) {
    constexpr u32 kBuffer = kStageIdx % 2, kNext = (kStageIdx + 1) % kNumStages;
    if constexpr (kHalf == 0) {
      constexpr u32 kOperandReads = kReads - kScaleReads;
      i < kOperandReads ? read(kScaleReads + i, 1, kBuffer)
                        : loader_.write_lds(kNext, i - kOperandReads, operand_lds(1 - kBuffer));
    } else {
      if (i == kReads) loader_.begin(kNext);
      i < kReads ? read(i, 0, 1 - kBuffer) : loader_.load(kNext, i - kReads);
    }
  }

  template <u32 kStageIdx, u32 kHalf, u32 kT = 0>
  __device__ void half(F32x4 (&sums)[kTiles]) {
    if constexpr (kT < kTiles) {
      constexpr u32 i = kT / kNTiles, j = kT % kNTiles;
      constexpr u32 kIssues = kReads - (kHalf == 0 ? kScaleReads : 0) + Load::kLoads;
      const Operands& operands = operands_[kHalf];
      const StepScales& scales = scales_[kStageIdx % 2];
      const Fragment x = {operands.x[i], operands.x[i]};
      sums[kT] = mfma_mxfp4_16x16x128<kE2m1, i % 2 + 2 * kHalf, j % 2 + 2 * kHalf>(
          operands.w[j], scales.w[j / 2], x, scales.x[i / 2], sums[kT]);
#pragma unroll
      for (u32 o = kT * kIssues / kTiles; o < (kT + 1) * kIssues / kTiles; ++o) {
        do_issue_slot<kStageIdx, kHalf>(o);
      }
      sched_barrier();
      half<kStageIdx, kHalf, kT + 1>(sums);
    }
  }

  Load loader_;
  Operands operands_[2];
  StepScales scales_[2];
  LdsFragmentOffsets fragment_;
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(kWaves / 4)))
mxfp4_deep(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
           const u8* __restrict__ w_scale,  // [N, K/32] shuffled, w_scale_row columns
           const u8* __restrict__ x,        // [M, K/2], rows x_row bytes apart
           const u8* __restrict__ x_scale,  // [M, K/32] shuffled, x_scale_row columns
           u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
           Out* __restrict__ out,          // [M, N]
           const void* __restrict__ bias,  // [N]
           void* __restrict__ workspace,   // SplitKReducer; with kSplit > 1
           u32* __restrict__ counts) {     // [tiles], zeros
  const Fp4Args args = {w, w_scale, x, x_scale, m, n, k, x_row, w_row, w_scale_row, x_scale_row, 0};
  const TileWork work = fp4_tile_work<kM, kN, kSplit, kGroupM>(args, workgroup_id_x());
  const u32 steps = (work.end - work.begin + kStepK - 1) / kStepK;
  const u32 start_step = readfirstlane(work.n0 / kN % 16 * steps / 16);
  F32x4 sums[kTiles] = {};
  if (const u32 number = wave_id(); number < kLoadX) {
    const u32 x_rows = kXShuffled ? (m + 15) / 16 * 16 : m;  // shuffled ones come in sixteens
    const OperandView rows(x, work.m0, x_rows, kM, x_row, 0, k / 2,
                           OperandLayout<kXShuffled>::kKStrideBytes);
    const LoadX loader(number, make_buffer(rows.base, rows.bytes),
                       scale_rows(x_scale, work.m0, m, kM, x_scale_row, true), x_row, x_scale_row,
                       work, start_step);
    Wave<LoadX, true>(loader).run_mainloop(sums, steps);
  } else {
    const OperandView rows(w, work.n0, n, kN, w_row, 0, k / 2,
                           OperandLayout<kShuffled>::kKStrideBytes);
    const LoadW loader(number - kLoadX, make_buffer(rows.base, rows.bytes),
                       scale_rows(w_scale, work.n0, n, kN, w_scale_row, true), w_row, w_scale_row,
                       work, start_step);
    Wave<LoadW, false>(loader).run_mainloop(sums, steps);
  }
  if constexpr (kSplit > 1) {
    SplitKReducer<kSplit, kTiles * kThreads, kThreads> tile(workspace, counts, work.tile);
    if (!tile.reduce(sums, work.split)) return;
  }
  const u32 lane = lane_id(), wave = wave_id();
  const u32 wave_m = wave / kWavesN * kWaveM, wave_n = wave % kWavesN * kWaveN;
  const BiasRow<Bias> bias_row(bias, n);
  OutputView<Out>(out, work.m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      const u32 column = work.n0 + wave_n + j * kTileRows + lane / kTileRows * 4;
      const F32x4 bias_values = bias_row.load(column);
#pragma unroll
      for (u32 i = 0; i < kMTiles; ++i) {
        store(sums[i * kNTiles + j] + bias_values, wave_m + i * kTileRows + lane % kTileRows,
              column);
      }
    }
  });
}
