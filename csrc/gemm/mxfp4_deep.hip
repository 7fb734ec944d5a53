// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], both MXFP4: e2m1 elements, one e8m0 scale per 32
// along K. Any M and N, K a multiple of 32; for more rows than mxfp4_stream takes, but so few that
// loads are the limit.
//
// Layout. kWavesM x kWavesN waves compute kM x kN of the output, one tile per workgroup. K-steps of
// 256 (rows of 128 bytes with their scales) are loaded through registers to LDS, in two buffers.
// kLoadX of the waves load x, the others w, because the loads of one wave complete in order, and w
// comes from memory while x comes from L2. In step t a wave
//
//   reads its operands from LDS and multiplies them,
//   writes its chunks of step t + 1 to LDS and issues the loads of step t + 1 + kPrefetch (x: 2),
//
// and waits at the barrier. Raw scales are loaded for four K-steps at a time (mxfp4_loader.h). The
// last round loads next to nothing, because loads that are out of bounds occupy the memory pipe as
// others do. The loop runs whole rounds of the loading stages and of raw scales; before it is part
// of a round, if need be. The last round has one to kPrefetch + 1 steps and shares the code of its
// last step, because LLVM counts loads and allocates registers well only where the loop has one
// exit and the sums meet after it. Neighbouring tiles start at different steps of K and wrap
// around, so that each part of x is brought to L2 by one of them before the others need it. w is
// MFMA operand A, so a lane holds 4 neighbours of a row of out, 8 when it stores
// (paired_tile_store.h). kSplit workgroups split K; the last to arrive reduces (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config, N, K and position in the output. A scale of
// 255 makes its row or column NaN.
// Requires: at least one K-step for each split; x, w and their rows 16-byte aligned, preshuffled
// scales 4-byte aligned; with raw scales K a multiple of 256 and the rows of scales 8-byte aligned;
// the rows of a workgroup span less than 2 GiB (what lies before them may be larger).
#include "gemm/bias.h"
#include "gemm/mxfp4_loader.h"
#include "gemm/mxfp4_tile_scheduler.h"
#include "gemm/paired_tile_store.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_deep is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                         // bf16, f16 or f32
using Bias = RFOPS_BIAS;                       // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;     // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kXShuffled = RFOPS_X_SHUFFLED;  // x is preshuffled
constexpr bool kRawScales = RFOPS_RAW_SCALES;  // scales of w are [N, K/32]
constexpr bool kXRawScales = RFOPS_X_RAW_SCALES;
constexpr u32 kM = RFOPS_M;  // rows of x per workgroup
constexpr u32 kN = RFOPS_N;  // rows of w per workgroup
constexpr u32 kWavesM = RFOPS_WAVES_M, kWavesN = RFOPS_WAVES_N;
constexpr u32 kLoadX = RFOPS_LOAD_X;    // waves that load x
constexpr u32 kPrefetch = RFOPS_AHEAD;  // K-steps of w in flight
constexpr u32 kSplit = RFOPS_SPLIT;     // split-K: workgroups per output tile
constexpr u32 kStarts = RFOPS_STARTS;   // steps that tiles start at, where 4 are few (first_step)
constexpr u32 kGroupM = RFOPS_GROUP_M;  // tiles along M per raster group (tile_map.h)
constexpr bool kTail = RFOPS_TAIL;      // K ends within a K-step
constexpr u32 kWaves = kWavesM * kWavesN, kThreads = kWaves * kWaveSize;
constexpr u32 kWaveM = kM / kWavesM, kWaveN = kN / kWavesN;
constexpr u32 kMTiles = kWaveM / kTileRows, kNTiles = kWaveN / kTileRows;  // per wave
constexpr u32 kTiles = kMTiles * kNTiles;
static_assert(kWaveM % kScalePair == 0 && kWaveN % kScalePair == 0, "a whole number of tile pairs");

using LoadX = Fp4Loader<kM, kXShuffled, kXRawScales, kTail, kLoadX, 2>;
using LoadW = Fp4Loader<kN, kShuffled, kRawScales, kTail, kWaves - kLoadX, kPrefetch>;
struct Stage {
  u8 x[kM * kRowBytes], w[kN * kRowBytes];
};
struct Memory {
  Stage stages[2];
  LoadX::ScaleLoader::LdsScales x_scales;
  LoadW::ScaleLoader::LdsScales w_scales;
};
static_assert(sizeof(Memory) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Memory memory;

constexpr bool kHasRawScales = kRawScales || kXRawScales;
// Rounds of the mainloop are whole rounds of the stages of both operands, and of groups of scales.
constexpr u32 kRoundSteps = kHasRawScales ? kScaleSteps : kPrefetch;
static_assert(LoadX::kNumStages == 2 && kPrefetch % LoadX::kNumStages == 0 &&
                  kRoundSteps % kPrefetch == 0 && kRoundSteps <= 2 * kPrefetch,
              "a stage always uses the same LDS buffer");

// The K-steps of a workgroup: the last kPrefetch steps of a round, of which the others are skipped,
// or none; whole rounds; the last round.
struct Rounds {
  u32 skipped_steps, whole, last_steps;

  __device__ explicit Rounds(u32 steps) {
    const u32 parts = steps > 1 ? (steps - 2) / kPrefetch : 0;
    whole = parts / (kRoundSteps / kPrefetch);
    const bool has_part = parts % (kRoundSteps / kPrefetch) != 0;
    skipped_steps = has_part ? kRoundSteps - kPrefetch : 0;
    last_steps = steps - parts * kPrefetch;
  }
};

struct Operands {
  U32x4 x[kMTiles], w[kNTiles];
};

// Returns the buffer of the scales of at most max_rows rows from `row` on.
template <bool kRaw>
__device__ inline Buffer scale_buffer(const u8* scales, u32 row, u32 rows, u32 max_rows,
                                      u32 row_bytes, u32 k) {
  if constexpr (kRaw) {
    const OperandView view(scales, row, rows, max_rows, row_bytes, 0, k / kFp4Block);
    return make_buffer(view.base, view.bytes);
  } else {
    return scale_rows(scales, row, rows, max_rows, row_bytes, true);
  }
}

__device__ inline RFOPS_LDS Memory& lds_memory() { return *(RFOPS_LDS Memory*)&memory; }

// Returns a / b, which are uniform, in half as many instructions as the compiler's division.
// Requires: a quotient below 2^22.
__device__ inline u32 divide_uniform(u32 a, u32 b) {
  const f32 estimate = static_cast<f32>(a) * __builtin_amdgcn_rcpf(static_cast<f32>(b));
  const u32 quotient = readfirstlane(static_cast<u32>(estimate));  // off by one at most
  const u32 remainder = a - quotient * b;
  return static_cast<i32>(remainder) < 0 ? quotient - 1 : remainder >= b ? quotient + 1 : quotient;
}

// Returns the workgroup's tile, in the order of tile_map.h: the grid has no others, so none is
// checked, and few tiles along M need no division by the size of a group.
__device__ inline TileWork tile_work(u32 m, u32 n, u32 k) {
  const u32 m_tiles = (m + kM - 1) / kM, n_tiles = (n + kN - 1) / kN;
  const u32 order = xcd_remap(workgroup_id_x(), m_tiles * n_tiles * kSplit);
  const u32 tile = order / kSplit, split = order % kSplit;
  u32 first_m = 0, index = tile;
  if (m_tiles > kGroupM) {
    const u32 group_tiles = kGroupM * n_tiles, group = divide_uniform(tile, group_tiles);
    first_m = group * kGroupM;
    index = tile - group * group_tiles;
  }
  const u32 remaining = m_tiles - first_m, rows = remaining < kGroupM ? remaining : kGroupM;
  const u32 n_index = divide_uniform(index, rows), m_index = first_m + index - n_index * rows;
  const u32 steps = (k + kStepK - 1) / kStepK;  // splits differ by at most one
  const u32 begin = steps * split / kSplit * kStepK;
  const u32 end = split + 1 == kSplit ? k : steps * (split + 1) / kSplit * kStepK;
  return {m_index * kM, n_index * kN, m_index * n_tiles + n_index, split, begin, end};
}

// Returns the step at which a tile starts, one of 4 or kStarts. With one for all, the tiles that
// share x wait for the same part of it. With 16 and a medium number of steps, parts of x leave L2
// before all tiles have read them; a split, 4 to 11 steps, or many steps with few tiles in flight
// that share w (many along N) take kStarts: mostly 16 are as quick as 4, else up to 20 % slower or
// quicker (estimated). With many steps and raw scales, groups of scales begin at a multiple of 32
// bytes, so that none is in two cache lines.
__device__ inline u32 first_step(const TileWork& work, u32 n, u32 steps, u32 skipped_steps) {
  constexpr u32 kManyTiles = 128;
  const bool is_short = steps >= 4 && steps < 12, is_long = steps >= 40;
  const bool is_wide = kSplit > 1 || is_short || (is_long && n > kManyTiles * kN);
  const u32 starts = is_wide ? kStarts : 4;
  const u32 start = work.n0 / kN % starts * steps / starts;
  constexpr u32 kManySteps = 16;
  if (!kHasRawScales || steps % kScaleSteps != 0 || steps < kManySteps) return start;
  return start / kScaleSteps * kScaleSteps + skipped_steps;
}

// A wave that loads x (kIsX) or w.
template <class Load, bool kIsX>
class Wave {
 public:
  u32 m, n;  // the wave's first row of x and of w in the workgroup's tile

  __device__ explicit Wave(const Load& loader)
      : m(wave_id() / kWavesN * kWaveM),
        n(wave_id() % kWavesN * kWaveN),
        loader_(loader),
        fragment_{lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows),
                  lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows + 4)} {}

  __device__ void run_mainloop(F32x4 (&sums)[kTiles], const Rounds& rounds) {
    constexpr u32 kPrologue = kRoundSteps - 1;  // the step before the first
#pragma unroll
    for (u32 stage = 0; stage < kNumStages; ++stage) {
      loader_.begin(stage);
#pragma unroll
      for (u32 i = 0; i < Load::kChunksPerLane; ++i) loader_.load(stage, i);
      loader_.scales.load_first(stage);
      sched_barrier();
    }
#pragma unroll
    for (u32 i = 0; i < num_writes(kPrologue); ++i) {
      write_lds(kPrologue, i);
      // Otherwise LLVM writes scales first, and chunks wait for them; that is quicker for few.
      if (kHasRawScales || kTiles >= 16) sched_barrier();
    }
    loader_.begin(0);
#pragma unroll
    for (u32 i = 0; i < num_loads(kPrologue); ++i) load(kPrologue, i);
    sched_barrier();
    wait_lgkmcnt();
    s_barrier();
#pragma unroll
    for (u32 i = 0; i < num_reads(0, 0); ++i) read(0, 0, i);
    if constexpr (kRoundSteps > kPrefetch) {
      constexpr u32 kSkipped = kRoundSteps - kPrefetch;
#pragma unroll
      for (u32 i = 0; i < num_scale_reads(kSkipped); ++i) read(kSkipped, 0, i);
      if (rounds.skipped_steps != 0) {
        loader_.scales.load_group();
        run_round<kSkipped>(sums);
      }
    }
    for (u32 i = 0; i < rounds.whole; ++i) run_round(sums);
    run_last_round(sums, rounds.last_steps);
    run_last_step(sums, rounds.last_steps - 1);
  }

 private:
  static constexpr u32 kNumStages = Load::kNumStages;
  // Steps of the last round that may still load.
  static constexpr u32 kLoadingSteps = kPrefetch - kNumStages;
  // Instructions of a step: all, all but loads, and MFMAs with the reads of its own operands.
  enum Phase { kMain, kDrain, kLast };
  using XScales = Fp4StepScales<kMTiles, kXRawScales>;
  using WScales = Fp4StepScales<kNTiles, kRawScales>;

  // Returns the reads of a half of `step`, those of the first with scales; what `step` writes of
  // the next one; what it loads.
  static constexpr u32 num_scale_reads(u32 step) {
    return WScales::num_reads(step) + XScales::num_reads(step);
  }
  static constexpr u32 num_reads(u32 step, u32 half) {
    return (half == 0 ? num_scale_reads(step) : 0) + kMTiles + kNTiles;
  }
  static constexpr u32 num_writes(u32 step) {
    return Load::kChunksPerLane + Load::ScaleLoader::num_writes(step);
  }
  static constexpr u32 num_loads(u32 step) {
    return Load::kChunksPerLane + Load::ScaleLoader::num_loads(step);
  }

  // Read number i of a half of `step`.
  __device__ void read(u32 step, u32 half, u32 i) {
    const u32 w_scale_reads = half == 0 ? WScales::num_reads(step) : 0;
    const u32 scale_reads = half == 0 ? num_scale_reads(step) : 0;
    const RFOPS_LDS Stage& stage = lds_memory().stages[step % 2];
    const u32 offset = half == 0 ? fragment_.low : fragment_.high, t = i - scale_reads;
    const LdsBytes* const x = (const LdsBytes*)stage.x + m * kRowBytes + offset;
    const LdsBytes* const w = (const LdsBytes*)stage.w + n * kRowBytes + offset;
    if (i < w_scale_reads) {
      w_scales_.read(lds_memory().w_scales, n, step, i);
    } else if (i < scale_reads) {
      x_scales_.read(lds_memory().x_scales, m, step, i - w_scale_reads);
    } else if (t < kNTiles) {
      operands_[half].w[t] = lds_load_b128(w + t * kLdsTile);
    } else {
      operands_[half].x[t - kNTiles] = lds_load_b128(x + (t - kNTiles) * kLdsTile);
    }
  }
  // Write number i of `step`: of the next step's chunks, then of its scales.
  __device__ void write_lds(u32 step, u32 i) {
    const u32 stage_idx = (step + 1) % kNumStages;
    RFOPS_LDS Stage& stage = lds_memory().stages[(step + 1) % 2];
    if (i < Load::kChunksPerLane) {
      loader_.write_lds(stage_idx, i, (LdsBytes*)(kIsX ? stage.x : stage.w));
    } else if constexpr (kIsX) {
      loader_.scales.write_lds(lds_memory().x_scales, step, stage_idx, i - Load::kChunksPerLane);
    } else {
      loader_.scales.write_lds(lds_memory().w_scales, step, stage_idx, i - Load::kChunksPerLane);
    }
  }
  // Load number i of `step`, to the stage that it wrote.
  __device__ void load(u32 step, u32 i) {
    const u32 stage_idx = (step + 1) % kNumStages;
    i < Load::kChunksPerLane ? loader_.load(stage_idx, i)
                             : loader_.scales.load(step, stage_idx, i - Load::kChunksPerLane);
  }

  template <u32 kStep = 0>
  __device__ void run_round(F32x4 (&sums)[kTiles]) {
    if constexpr (kStep < kRoundSteps) {
      step<kStep, kMain>(sums);
      run_round<kStep + 1>(sums);
    }
  }
  // Runs all but the last step of the last round, which has `steps` steps, 1 to kPrefetch + 1.
  template <u32 kStep = 0>
  __device__ void run_last_round(F32x4 (&sums)[kTiles], u32 steps) {
    if constexpr (kStep < kPrefetch) {
      if (steps > kStep + 1) {
        constexpr Phase kPhase = kStep < kLoadingSteps ? kMain : kDrain;
        step<kStep, kPhase>(sums);
        run_last_round<kStep + 1>(sums, steps);
      }
    }
  }
  // Runs the last step, which is number `last_step` of its round.
  __device__ void run_last_step(F32x4 (&sums)[kTiles], u32 last_step) {
    x_scales_.move_to_first(last_step);
    w_scales_.move_to_first(last_step);
    fragment_.high += last_step % 2 * sizeof(Stage);
    step<0, kLast>(sums);
  }
  template <u32 kStep, Phase kPhase>
  __device__ void step(F32x4 (&sums)[kTiles]) {
    half<kStep, kPhase, 0>(sums);
    if constexpr (kPhase != kLast) {
      wait_lgkmcnt();
      s_barrier();
    }
    half<kStep, kPhase, 1>(sums);
  }

  // Issue slot `i` of a half step. First half: reads the second half's operands and writes the next
  // step to LDS; second half: reads the next step's operands and issues loads.
  template <u32 kStep, u32 kHalf>
  __device__ void do_issue_slot(u32 i) {
    if constexpr (kHalf == 0) {
      constexpr u32 kReads = num_reads(kStep, 1);
      i < kReads ? read(kStep, 1, i) : write_lds(kStep, i - kReads);
    } else {
      constexpr u32 kNext = (kStep + 1) % kRoundSteps, kReads = num_reads(kNext, 0);
      if (i == kReads) loader_.begin((kStep + 1) % kNumStages);
      i < kReads ? read(kNext, 0, i) : load(kStep, i - kReads);
    }
  }

  template <u32 kStep, Phase kPhase, u32 kHalf, u32 kT = 0>
  __device__ void half(F32x4 (&sums)[kTiles]) {
    if constexpr (kT < kTiles) {
      constexpr u32 i = kT / kNTiles, j = kT % kNTiles;
      constexpr u32 kIssues = num_issues(kStep, kPhase, kHalf);
      const Operands& operands = operands_[kHalf];
      const Fragment x = {operands.x[i], operands.x[i]};
      constexpr u32 kXByte = XScales::byte_of(kStep, i, kHalf);
      constexpr u32 kWByte = WScales::byte_of(kStep, j, kHalf);
      sums[kT] = mfma_mxfp4_16x16x128<kE2m1, kXByte, kWByte>(
          operands.w[j], w_scales_.dword(kStep, j), x, x_scales_.dword(kStep, i), sums[kT]);
#pragma unroll
      for (u32 o = kT * kIssues / kTiles; o < (kT + 1) * kIssues / kTiles; ++o) {
        do_issue_slot<kStep, kHalf>(o);
      }
      sched_barrier();
      half<kStep, kPhase, kHalf, kT + 1>(sums);
    }
  }

  // Returns the issue slots of a half of `step`: reads, then writes or loads.
  static constexpr u32 num_issues(u32 step, Phase phase, u32 half) {
    if (half == 0) return num_reads(step, 1) + (phase == kLast ? 0 : num_writes(step));
    const u32 next_reads = num_reads((step + 1) % kRoundSteps, 0);
    return phase == kLast ? 0 : next_reads + (phase == kMain ? num_loads(step) : 0);
  }

  Load loader_;
  Operands operands_[2];
  XScales x_scales_;
  WScales w_scales_;
  LdsFragmentOffsets fragment_;
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(kWaves / 4)))
mxfp4_deep(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
           const u8* __restrict__ w_scale,  // [N, K/32], rows w_scale_row apart, or shuffled
           const u8* __restrict__ x,        // [M, K/2], rows x_row bytes apart
           const u8* __restrict__ x_scale,  // [M, K/32], rows x_scale_row apart, or shuffled
           u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
           Out* __restrict__ out,          // [M, N]
           const void* __restrict__ bias,  // [N]
           void* __restrict__ workspace,   // partials if kSplit > 1 (SplitKReducer)
           u32* __restrict__ counts) {     // [tiles], zeros before and after
  const TileWork work = tile_work(m, n, k);
  const u32 steps = (work.end - work.begin + kStepK - 1) / kStepK;
  const Rounds rounds(steps);
  const u32 start_step = first_step(work, n, steps, rounds.skipped_steps);
  const u32 group_step =  // of the first group of scales, with the steps that are skipped
      start_step + (rounds.skipped_steps > start_step ? steps : 0) - rounds.skipped_steps;
  F32x4 sums[kTiles] = {};
  if (const u32 number = wave_id(); number < kLoadX) {
    const u32 x_rows = kXShuffled ? (m + 15) / 16 * 16 : m;  // preshuffled rows are padded to 16
    const OperandView rows(x, work.m0, x_rows, kM, x_row, 0, k / 2,
                           OperandLayout<kXShuffled>::kKStrideBytes);
    const LoadX loader(number, make_buffer(rows.base, rows.bytes),
                       scale_buffer<kXRawScales>(x_scale, work.m0, m, kM, x_scale_row, k), x_row,
                       x_scale_row, work, start_step, group_step);
    Wave<LoadX, true>(loader).run_mainloop(sums, rounds);
  } else {
    const OperandView rows(w, work.n0, n, kN, w_row, 0, k / 2,
                           OperandLayout<kShuffled>::kKStrideBytes);
    const LoadW loader(number - kLoadX, make_buffer(rows.base, rows.bytes),
                       scale_buffer<kRawScales>(w_scale, work.n0, n, kN, w_scale_row, k), w_row,
                       w_scale_row, work, start_step, group_step);
    Wave<LoadW, false>(loader).run_mainloop(sums, rounds);
  }
  if constexpr (kSplit > 1) {
    SplitKReducer<kSplit, kTiles * kThreads, kThreads> tile(workspace, counts, work.tile);
    if (!tile.reduce(sums, work.split)) return;
  }
  const u32 wave = wave_id();
  const u32 wave_m = wave / kWavesN * kWaveM, column = work.n0 + wave % kWavesN * kWaveN;
  const BiasRow<Bias> bias_row(bias, n);
  F32x4 bias_values[kNTiles];
#pragma unroll
  for (u32 j = 0; j < kNTiles; ++j) {
    bias_values[j] = bias_row.load(column + j * kTileRows + lane_id() / kTileRows * 4);
  }
  PairedTileStore<Out>(out, work.m0, m, kM, n)
      .template store<kMTiles, kNTiles>(
          wave_m, column, [&](u32 i, u32 j) { return sums[i * kNTiles + j] + bias_values[j]; });
}
