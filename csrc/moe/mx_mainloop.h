// Mainloop over K of a tile of rows of a mixture's expert by a wave's weights, MXFP4 or MX-FP8
// (gfx950). Weights are loaded to the registers of the wave that multiplies them while the previous
// K-step is multiplied. Rows are loaded to LDS, one chunk while another is multiplied, by
// direct-to-LDS loads or through registers.
#pragma once

#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "rfops/chip/sync.h"

namespace rfops {

// A wave has kTiles weight tiles: the same columns of kMatrices matrices. kKWaves waves split the
// K-steps of each chunk.
template <class Rows, class Weights, u32 kTiles, u32 kMatrices, u32 kKWaves, u32 kPrefetch,
          bool kThroughRegisters>
class ExpertLoop {
  using Fragments = typename Weights::Fragments;
  using Scales = LaneScales<typename Rows::Scales>;
  static constexpr u32 kChunk = Rows::kSteps, kWaveSteps = kChunk / kKWaves;
  static_assert(kChunk % kKWaves == 0, "the waves must have equal numbers of K-steps per chunk");
  // The loop is unrolled over kRound chunks, after which the weight stages repeat: so no loads in
  // flight are moved between registers.
  static constexpr u32 kNumStages = kPrefetch + 1;
  static constexpr u32 round_of(u32 chunks) {
    return chunks * kWaveSteps % kNumStages == 0 ? chunks : round_of(chunks + 1);
  }
  static constexpr u32 kRound = round_of(1);
  // Loads of the next chunk's rows are issued between the MFMAs of the first half of this chunk's
  // K-steps, because issued together they would fill the queue while nothing is multiplied. The
  // weight loads of the second half are issued after them.
  static constexpr u32 kRowSteps = kThroughRegisters ? 0 : kWaveSteps / 2;

 public:
  // Offset of the wave's weights in each matrix.
  struct Starts {
    u32 begin[kMatrices];
  };
  // This wave's weights of an expert.
  struct WaveWeights {
    MatrixBytes matrix;
    u32 row, n;  // first row in the first matrix; the second matrix starts n rows later
    u32 steps;

    // Issues loads kLoadBegin .. kLoadEnd - 1 of a K-step.
    template <u32 kLoadBegin, u32 kLoadEnd>
    __device__ void load(const Weights& weights, const Starts& starts, Fragments& fragments,
                         u32 step) const {
      if constexpr (kLoadBegin < kLoadEnd) {
        constexpr u32 kTile = Weights::tile_of(kLoadBegin), kMatrixTiles = kTiles / kMatrices;
        const bool in_bounds = step < steps && (kMatrices == 1 || row < n);
        if constexpr (Weights::kIsShuffled && kLoadBegin < 2 * kTiles) {
          u32 row_stride = matrix.row_bytes;
          asm volatile("" : "+s"(row_stride));  // recomputed, because scalar registers are too few
          const u32 start =
              starts.begin[kTile / kMatrixTiles] + kTile % kMatrixTiles * kTileRows * row_stride;
          weights.template load_piece<kLoadBegin>(fragments, matrix, start, step, in_bounds);
        } else {
          weights.template load<kLoadBegin>(
              fragments, matrix, row + kTile / kMatrixTiles * n + kTile % kMatrixTiles * kTileRows,
              step, in_bounds);
        }
        load<kLoadBegin + 1, kLoadEnd>(weights, starts, fragments, step);
      }
    }
    __device__ Starts starts() const {
      Starts starts;
#pragma unroll
      for (u32 i = 0; i < kMatrices; ++i)
        starts.begin[i] = readfirstlane((row + i * n) * matrix.row_bytes);
      return starts;
    }
  };

  // `wave_k`: index among the waves that split K; `chunks`: LDS for two chunks; `staging`: LDS of
  // this wave.
  __device__ ExpertLoop(const Weights& weights, const WaveWeights& wave_weights, Rows& rows,
                        u32 wave_k, LdsBytes* chunks, LdsBytes* staging)
      : weights_(weights),
        wave_weights_(wave_weights),
        starts_(wave_weights.starts()),
        rows_(rows),
        wave_k_(wave_k),
        chunks_(chunks),
        staging_(staging) {}

  // Issues the weight loads of the first K-steps.
  __device__ void begin() {
#pragma unroll
    for (u32 i = 0; i < kPrefetch; ++i) {
      wave_weights_.template load<0, Weights::kLoads>(weights_, starts_, stages_[i],
                                                      wave_k_ + i * kKWaves);
      sched_barrier();
    }
  }

  // Multiplies kRowTiles tiles of rows. Requires a barrier since LDS was last read.
  template <u32 kRowTiles>
  __device__ void multiply(F32x4 (&sums)[kRowTiles][kTiles]) {
    if constexpr (kThroughRegisters) {
      rows_.load(0, true);
      rows_.write_lds(chunks_);
      rows_.load(1, kChunk < wave_weights_.steps);
      wait_lgkmcnt();
      s_barrier();
    } else {
      rows_.issue(chunks_, 0);
      wait_vmcnt<0>();
    }
    u32 step_begin = 0;
    while (multiply_round<kRowTiles, 0>(sums, step_begin)) {
    }
  }

 private:
  template <u32 kRowTiles, u32 kC>
  __device__ bool multiply_round(F32x4 (&sums)[kRowTiles][kTiles], u32& step_begin) {
    if constexpr (kC < kRound) {
      multiply_chunk<kRowTiles, kC>(sums, step_begin);
      step_begin += kChunk;
      if (step_begin >= wave_weights_.steps) return false;
      return multiply_round<kRowTiles, kC + 1>(sums, step_begin);
    } else {
      return true;
    }
  }

  template <u32 kRowTiles, u32 kC>
  __device__ void multiply_chunk(F32x4 (&sums)[kRowTiles][kTiles], u32 step_begin) {
    // Uniform, but the compiler cannot prove it after a loop with several exits.
    step_begin = readfirstlane(step_begin);
    const u32 number = step_begin / kChunk;
    const LdsBytes* const chunk = chunks_ + number % 2 * Rows::kBytes;
    LdsBytes* const next = chunks_ + (number + 1) % 2 * Rows::kBytes;
    if constexpr (kThroughRegisters) {
      rows_.write_lds(next);
      rows_.load(number + 2, step_begin + 2 * kChunk < wave_weights_.steps);
    } else {
      s_barrier();  // this chunk is in LDS, and all waves have read the other one
      if (step_begin + kChunk < wave_weights_.steps) {
        rows_.issue_scales(next, number + 1);
        if constexpr (kRowSteps == 0) rows_.template issue<0, Rows::kIssues>(next, number + 1);
      }
      sched_barrier();
    }
    const u32 lane = lane_id(), lane_row = lane % kTileRows * 4 + lane / kTileRows;
    Scales scales[kRowTiles];
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      scales[i] = Scales::load(chunk + Rows::kScalesOffset +
                               (i * kTileRows * 4 + lane_row) * Rows::Scales::kScalesPerLane);
    }
    multiply_own<kRowTiles, kC * kWaveSteps % kNumStages>(sums, step_begin, chunk, scales);
    if constexpr (kThroughRegisters) {
      wait_lgkmcnt();
      s_barrier();
    } else {
      constexpr u32 kTrailingLoads = (kWaveSteps - kRowSteps) * Weights::kLoads;
      wait_vmcnt<(kTrailingLoads < 63 ? kTrailingLoads : 63)>();  // weight loads stay in flight
    }
  }

  // Multiplies the wave's K-steps of a chunk, number kK of each kKWaves. The weights of the first
  // are in stage kStageBegin.
  template <u32 kRowTiles, u32 kStageBegin, u32 kK = 0>
  __device__ void multiply_own(F32x4 (&sums)[kRowTiles][kTiles], u32 step_begin,
                               const LdsBytes* chunk, const Scales (&scales)[kRowTiles]) {
    if constexpr (kK + 1 < kKWaves) {
      if (wave_k_ != kK)
        return multiply_own<kRowTiles, kStageBegin, kK + 1>(sums, step_begin, chunk, scales);
    }
    multiply_steps<kRowTiles, kStageBegin, kK>(sums, step_begin, chunk, scales);
  }
  template <u32 kRowTiles, u32 kStageBegin, u32 kK, u32 kI = 0>
  __device__ void multiply_steps(F32x4 (&sums)[kRowTiles][kTiles], u32 step_begin,
                                 const LdsBytes* chunk, const Scales (&scales)[kRowTiles]) {
    if constexpr (kI < kWaveSteps) {
      constexpr u32 kS = kI * kKWaves + kK, kStage = (kStageBegin + kI) % kNumStages;
      // Issues slot kIssueSlot of kIssueSlots of the loads for later K-steps.
      const auto load = [&]<u32 kIssueSlot, u32 kIssueSlots>() {
        if constexpr (kI < kRowSteps) {
          constexpr u32 kIssue = kI * kIssueSlots + kIssueSlot, kIssues = kRowSteps * kIssueSlots;
          const u32 next = step_begin / kChunk + 1;
          rows_.template issue<kIssue * Rows::kIssues / kIssues,
                               (kIssue + 1) * Rows::kIssues / kIssues>(
              chunks_ + next % 2 * Rows::kBytes, next, next * kChunk < wave_weights_.steps);
        }
        constexpr u32 kLoads = Weights::kLoads;
        wave_weights_.template load<kIssueSlot * kLoads / kIssueSlots,
                                    (kIssueSlot + 1) * kLoads / kIssueSlots>(
            weights_, starts_, stages_[(kStage + kPrefetch) % kNumStages],
            step_begin + kS + kPrefetch * kKWaves);
      };
      const u32 lane = lane_id(), row = lane % kTileRows, lane_chunk = lane / kTileRows;
      const LdsBytes* const step = chunk + kS * Rows::kStepBytes;
      const U32x4 x[2] = {lds_load_b128(step + lds_offset_mxfp4(row, lane_chunk)),
                          lds_load_b128(step + lds_offset_mxfp4(row, lane_chunk + kRowChunks / 2))};
      weights_.to_fragment(stages_[kStage], step_begin + kS, staging_);
      multiply_step<kRowTiles, kS>(sums, stages_[kStage], step, scales, x, load);
      multiply_steps<kRowTiles, kStageBegin, kK, kI + 1>(sums, step_begin, chunk, scales);
    }
  }

  // Multiplies the row tiles one by one and issues a share of the later loads between the MFMAs.
  template <u32 kRowTiles, u32 kS, u32 kI = 0, class Load>
  __device__ void multiply_step(F32x4 (&sums)[kRowTiles][kTiles], const Fragments& w,
                                const LdsBytes* step, const Scales (&scales)[kRowTiles],
                                const U32x4 (&x)[2], Load load) {
    if constexpr (kI < kRowTiles) {
      const u32 lane = lane_id(), row = lane % kTileRows, lane_chunk = lane / kTileRows;
      const LdsBytes* const next_rows = step + (kI + 1) * (kTileRows * kRowBytes);
      U32x4 next[2];
      mfma_interleaved<Weights, kS>(sums[kI], w, x, scales[kI], [&]<u32 kIssueSlot>() {
        constexpr u32 kTileMfmas = kMfmas<Weights, kTiles>;
        if constexpr (kI + 1 < kRowTiles && kIssueSlot < 2) {
          next[kIssueSlot] = lds_load_b128(
              next_rows + lds_offset_mxfp4(row, lane_chunk + kIssueSlot * (kRowChunks / 2)));
        }
        load.template operator()<kI * kTileMfmas + kIssueSlot, kRowTiles * kTileMfmas>();
      });
      multiply_step<kRowTiles, kS, kI + 1>(sums, w, step, scales, next, load);
    }
  }

  const Weights weights_;
  const WaveWeights wave_weights_;
  const Starts starts_;
  Rows& rows_;
  const u32 wave_k_;
  LdsBytes* const chunks_;
  LdsBytes* const staging_;
  Fragments stages_[kNumStages];
};

}  // namespace rfops
