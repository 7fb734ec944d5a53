// All of K of rows of a mixture's expert by a wave's weights, MXFP4 or MX-FP8 (gfx950). Weights go
// from memory to the registers of that one wave while the step before is multiplied; rows to LDS, a
// chunk while another is multiplied, straight or through registers.
#pragma once

#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "rfops/chip/sync.h"

namespace rfops {

// kTiles tiles of weights of a wave, of kMatrices matrices the same columns side by side; kKWaves
// waves share out the steps of each chunk.
template <class Rows, class Weights, u32 kTiles, u32 kMatrices, u32 kKWaves, u32 kAhead,
          bool kThroughRegisters>
class ExpertLoop {
  using Held = typename Weights::Held;
  using Scales = LaneScales<typename Rows::Scales>;
  static constexpr u32 kChunk = Rows::kSteps, kOwnSteps = kChunk / kKWaves;
  static_assert(kChunk % kKWaves == 0, "as many steps of a chunk a wave");
  // Chunks after which weights are in the same registers again: no loop moves what is on its way.
  static constexpr u32 kSlots = kAhead + 1;
  static constexpr u32 round_of(u32 chunks) {
    return chunks * kOwnSteps % kSlots == 0 ? chunks : round_of(chunks + 1);
  }
  static constexpr u32 kRound = round_of(1);
  // Rows of the next chunk are asked for beside the first half of this one's steps: in one piece
  // they fill the queue while nothing is multiplied. Behind them are the other half's weights.
  static constexpr u32 kRowSteps = kThroughRegisters ? 0 : kOwnSteps / 2;

 public:
  // Where its weights begin in each matrix.
  struct Starts {
    u32 of[kMatrices];
  };
  // This wave's weights in an expert.
  struct Place {
    MatrixBytes from;
    u32 row, n;  // of the first matrix; the second's are n rows on
    u32 steps;

    // Loads kFrom .. kTo - 1 of a step.
    template <u32 kFrom, u32 kTo>
    __device__ void load(const Weights& weights, const Starts& starts, Held& held, u32 step) const {
      if constexpr (kFrom < kTo) {
        constexpr u32 kTile = Weights::tile_of(kFrom), kEach = kTiles / kMatrices;
        const bool is_there = step < steps && (kMatrices == 1 || row < n);
        if constexpr (Weights::kIsShuffled && kFrom < 2 * kTiles) {
          u32 pitch = from.row_bytes;
          asm volatile("" : "+s"(pitch));  // else scalar registers are too few
          const u32 start = starts.of[kTile / kEach] + kTile % kEach * kTileRows * pitch;
          weights.template load_piece<kFrom>(held, from, start, step, is_there);
        } else {
          weights.template load<kFrom>(
              held, from, row + kTile / kEach * n + kTile % kEach * kTileRows, step, is_there);
        }
        load<kFrom + 1, kTo>(weights, starts, held, step);
      }
    }
    __device__ Starts starts() const {
      Starts made;
#pragma unroll
      for (u32 i = 0; i < kMatrices; ++i)
        made.of[i] = readfirstlane((row + i * n) * from.row_bytes);
      return made;
    }
  };

  // `wave_k`: which of the waves that share out K; `chunks`: LDS for two, `staging`: this wave's
  // own.
  __device__ ExpertLoop(const Weights& weights, const Place& place, Rows& rows, u32 wave_k,
                        LdsBytes* chunks, LdsBytes* staging)
      : weights_(weights),
        place_(place),
        starts_(place.starts()),
        rows_(rows),
        wave_k_(wave_k),
        chunks_(chunks),
        staging_(staging) {}

  // Weights of the first steps, on their way.
  __device__ void begin() {
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      place_.template load<0, Weights::kLoads>(weights_, starts_, held_[i], wave_k_ + i * kKWaves);
      sched_barrier();
    }
  }

  // kOwn tiles of rows. All waves have met since LDS was read.
  template <u32 kOwn>
  __device__ void multiply(F32x4 (&sums)[kOwn][kTiles]) {
    if constexpr (kThroughRegisters) {
      rows_.load(0, true);
      rows_.put(chunks_);
      rows_.load(1, kChunk < place_.steps);
      wait_lgkmcnt();
      s_barrier();
    } else {
      rows_.issue(chunks_, 0);
      wait_vmcnt<0>();
    }
    u32 first = 0;
    while (multiply_round<kOwn, 0>(sums, first)) {
    }
  }

 private:
  template <u32 kOwn, u32 kC>
  __device__ bool multiply_round(F32x4 (&sums)[kOwn][kTiles], u32& first) {
    if constexpr (kC < kRound) {
      next_chunk<kOwn, kC>(sums, first);
      first += kChunk;
      if (first >= place_.steps) return false;
      return multiply_round<kOwn, kC + 1>(sums, first);
    } else {
      return true;
    }
  }

  template <u32 kOwn, u32 kC>
  __device__ void next_chunk(F32x4 (&sums)[kOwn][kTiles], u32 first) {
    first = readfirstlane(first);  // it is, but loops of several exits hide it from the compiler
    const u32 number = first / kChunk;
    const LdsBytes* const chunk = chunks_ + number % 2 * Rows::kBytes;
    LdsBytes* const other = chunks_ + (number + 1) % 2 * Rows::kBytes;
    if constexpr (kThroughRegisters) {
      rows_.put(other);
      rows_.load(number + 2, first + 2 * kChunk < place_.steps);
    } else {
      s_barrier();  // this chunk is there, and the other one is read
      if (first + kChunk < place_.steps) {
        rows_.issue_scales(other, number + 1);
        if constexpr (kRowSteps == 0) rows_.template issue<0, Rows::kIssues>(other, number + 1);
      }
      sched_barrier();
    }
    const u32 lane = lane_id(), of_lane = lane % kTileRows * 4 + lane / kTileRows;
    Scales scales[kOwn];
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      scales[i] = Scales::from(chunk + Rows::kScalesAt +
                               (i * kTileRows * 4 + of_lane) * Rows::Scales::kScalesPerLane);
    }
    multiply_own<kOwn, kC * kOwnSteps % kSlots>(sums, first, chunk, scales);
    if constexpr (kThroughRegisters) {
      wait_lgkmcnt();
      s_barrier();
    } else {
      constexpr u32 kBehind = (kOwnSteps - kRowSteps) * Weights::kLoads;
      wait_vmcnt<(kBehind < 63 ? kBehind : 63)>();  // the next chunk; weights may be on their way
    }
  }

  // The wave's steps of a chunk: kK of each kKWaves. Weights of the first are held_[kAt].
  template <u32 kOwn, u32 kAt, u32 kK = 0>
  __device__ void multiply_own(F32x4 (&sums)[kOwn][kTiles], u32 first, const LdsBytes* chunk,
                               const Scales (&scales)[kOwn]) {
    if constexpr (kK + 1 < kKWaves) {
      if (wave_k_ != kK) return multiply_own<kOwn, kAt, kK + 1>(sums, first, chunk, scales);
    }
    multiply_chunk<kOwn, kAt, kK>(sums, first, chunk, scales);
  }
  template <u32 kOwn, u32 kAt, u32 kK, u32 kI = 0>
  __device__ void multiply_chunk(F32x4 (&sums)[kOwn][kTiles], u32 first, const LdsBytes* chunk,
                                 const Scales (&scales)[kOwn]) {
    if constexpr (kI < kOwnSteps) {
      constexpr u32 kS = kI * kKWaves + kK, kHeld = (kAt + kI) % kSlots;
      // What comes next, part kPart of kParts of it.
      const auto load = [&]<u32 kPart, u32 kParts>() {
        if constexpr (kI < kRowSteps) {
          constexpr u32 kFrom = kI * kParts + kPart, kOf = kRowSteps * kParts;
          const u32 next = first / kChunk + 1;
          rows_.template issue<kFrom * Rows::kIssues / kOf, (kFrom + 1) * Rows::kIssues / kOf>(
              chunks_ + next % 2 * Rows::kBytes, next, next * kChunk < place_.steps);
        }
        constexpr u32 kLoads = Weights::kLoads;
        place_.template load<kPart * kLoads / kParts, (kPart + 1) * kLoads / kParts>(
            weights_, starts_, held_[(kHeld + kAhead) % kSlots], first + kS + kAhead * kKWaves);
      };
      const u32 lane = lane_id(), row = lane % kTileRows, of_row = lane / kTileRows;
      const LdsBytes* const step = chunk + kS * Rows::kStepBytes;
      const U32x4 x[2] = {lds_load_b128(step + lds_offset_mxfp4(row, of_row)),
                          lds_load_b128(step + lds_offset_mxfp4(row, of_row + kRowChunks / 2))};
      weights_.turn(held_[kHeld], first + kS, staging_);
      multiply_step<kOwn, kS>(sums, held_[kHeld], step, scales, x, load);
      multiply_chunk<kOwn, kAt, kK, kI + 1>(sums, first, chunk, scales);
    }
  }

  // Tile after tile of rows, and beside each some of the loads of weights that come next.
  template <u32 kOwn, u32 kS, u32 kI = 0, class Load>
  __device__ void multiply_step(F32x4 (&sums)[kOwn][kTiles], const Held& w, const LdsBytes* step,
                                const Scales (&scales)[kOwn], const U32x4 (&x)[2], Load load) {
    if constexpr (kI < kOwn) {
      const u32 lane = lane_id(), row = lane % kTileRows, of_row = lane / kTileRows;
      const LdsBytes* const at = step + (kI + 1) * (kTileRows * kRowBytes);
      U32x4 next[2];
      mfma_interleaved<Weights, kS>(sums[kI], w, x, scales[kI], [&]<u32 kPart>() {
        constexpr u32 kEach = kProducts<Weights, kTiles>;
        if constexpr (kI + 1 < kOwn && kPart < 2) {
          next[kPart] =
              lds_load_b128(at + lds_offset_mxfp4(row, of_row + kPart * (kRowChunks / 2)));
        }
        load.template operator()<kI * kEach + kPart, kOwn * kEach>();
      });
      multiply_step<kOwn, kS, kI + 1>(sums, w, step, scales, next, load);
    }
  }

  const Weights weights_;
  const Place place_;
  const Starts starts_;
  Rows& rows_;
  const u32 wave_k_;
  LdsBytes* const chunks_;
  LdsBytes* const staging_;
  Held held_[kSlots];
};

}  // namespace rfops
