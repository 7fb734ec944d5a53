// Loads one wave's part of an MXFP4 operand from memory to LDS: K-steps of 256 in the layout of
// mxfp4_k_step.h with their scales, several K-steps in flight (gfx950).
//
// Scales are preshuffled, or raw: then LDS holds the 8 bytes of a row's K-step, blocks 0 and 4, 1
// and 5, ..., so that a lane reads those of both halves as one pair. Raw scales require K a
// multiple of 256 and rows 8-byte aligned.
#pragma once

#include "gemm/mxfp4_tile_scheduler.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

constexpr u32 kScalePair = 2 * kTileRows;  // rows whose scales are one dword per lane

constexpr u32 kMaxLoaders = 4;  // waves that load an operand

// LDS buffer of the scales of one K-step of an operand, preshuffled: one dword per lane for 32
// rows. Loading waves without rows write what pads it.
template <u32 kRows, bool kRawScales>
struct Fp4Scales {
  u32 pairs[(kRows / kScalePair + kMaxLoaders - 1) / kMaxLoaders * kMaxLoaders][kWaveSize];
};
template <u32 kRows>
struct Fp4Scales<kRows, true> {
  U32x2 rows[kRows + kWaveSize];  // the last kWaveSize are written by lanes without a row
};

// LDS buffer of one K-step of an operand.
template <u32 kRows, bool kRawScales>
struct Fp4Rows {
  u8 rows[kRows * kRowBytes];
  Fp4Scales<kRows, kRawScales> scales;
};

// A wave's scales of one K-step of kTiles row tiles, from LDS to the operand of an MFMA.
template <u32 kTiles, bool kRawScales>
class Fp4StepScales {
 public:
  static constexpr u32 kReads = kTiles / 2;

  template <u32 kRows>
  __device__ void read(const RFOPS_LDS Fp4Scales<kRows, false>& lds, u32 row, u32 i) {
    pairs_[i] = lds.pairs[row / kScalePair + i][lane_id()];
  }
  // Returns the dword with the scale of a row tile; the MFMA selects byte byte_of(tile, half).
  __device__ u32 dword(u32 tile) const { return pairs_[tile / 2]; }
  static constexpr u32 byte_of(u32 tile, u32 half) { return tile % 2 + 2 * half; }

 private:
  u32 pairs_[kReads];
};
template <u32 kTiles>
class Fp4StepScales<kTiles, true> {
 public:
  static constexpr u32 kReads = kTiles;

  template <u32 kRows>
  __device__ void read(const RFOPS_LDS Fp4Scales<kRows, true>& lds, u32 row, u32 i) {
    const auto* const halves =
        (const RFOPS_LDS u16*)&lds.rows[row + i * kTileRows + lane_id() % kTileRows];
    tiles_[i] = halves[lane_id() / kTileRows];
  }
  __device__ u32 dword(u32 tile) const { return tiles_[tile]; }
  static constexpr u32 byte_of(u32, u32 half) { return half; }

 private:
  u32 tiles_[kTiles];
};

// Iterates over the K-steps of a workgroup's split, from any of them on, with wrap-around.
class Fp4Cursor {
 public:
  __device__ Fp4Cursor(const TileWork& work, u32 start_step)
      : begin_(work.begin),
        end_(work.end),
        k_(work.begin + start_step * kStepK),
        steps_left_((work.end - work.begin + kStepK - 1) / kStepK) {}
  // Returns the first element of the current step, kOutOfBounds after the last, and advances.
  __device__ u32 next() {
    const u32 k = steps_left_ ? k_ : kOutOfBounds;
    steps_left_ -= steps_left_ ? 1 : 0;
    k_ += kStepK;
    k_ = k_ >= end_ ? begin_ : k_;
    return k;
  }

 private:
  u32 begin_, end_, k_, steps_left_;
};

// Loads what one of kNumWaves waves has of an operand: 16-byte chunks of 8 rows per load
// (preshuffled: half the K of 16 rows) and scales; kSteps K-steps in flight.
template <u32 kRows, bool kShuffled, bool kRawScales, bool kTail, u32 kNumWaves, u32 kSteps>
class Fp4Loader {
 public:
  static constexpr u32 kNumStages = kSteps;
  static constexpr u32 kLoadBytes = kWaveSize * kVecBytes;
  static constexpr u32 kChunksPerLane = kRows / 8 / kNumWaves;
  static_assert(kChunksPerLane * 8 * kNumWaves == kRows && (!kShuffled || kChunksPerLane % 2 == 0),
                "a whole number of loads");
  static_assert(!kRawScales || !kTail, "a whole number of K-steps");
  static constexpr u32 kPairs = (kRows / kScalePair + kNumWaves - 1) / kNumWaves;
  static_assert(kMaxLoaders % kNumWaves == 0, "what pads the scales is enough");
  static constexpr u32 kWaveRows = kRows / kNumWaves;  // whose raw scales a wave loads
  static constexpr u32 kScaleLoads = kRawScales ? (kWaveRows + kWaveSize - 1) / kWaveSize : kPairs;
  static constexpr u32 kScaleDwords = kRawScales ? 2 : 1;      // per load and lane
  static constexpr u32 kLoads = kChunksPerLane + kScaleLoads;  // per K-step
  using Layout = OperandLayout<kShuffled>;
  using LdsRows = Fp4Rows<kRows, kRawScales>;

  __device__ Fp4Loader(u32 number, const Buffer& rows, const Buffer& scales, u32 row_bytes,
                       u32 scale_row, const TileWork& work, u32 start_step)
      : rows_(rows),
        scales_(scales),
        end_(work.end),
        number_(number),
        load_stride_((kShuffled ? 16 : 8) * row_bytes),
        cursor_(work, start_step) {
    const u32 lane = lane_id();
    const u32 row = kShuffled ? lane % 16 : lane / kRowChunks;
    chunk_ = kShuffled ? lane / 16 : lane % kRowChunks;
    src_offset_ = Layout::offset(number * (kChunksPerLane * 8) + row, chunk_, row_bytes);
    force_vgpr(src_offset_);
#pragma unroll
    for (u32 i = 0; i < kScaleLoads; ++i) {
      if constexpr (kRawScales) {
        scale_src_offset_[i] = has_row(i) ? row_of(i) * scale_row : kOutOfBounds;
      } else {
        scale_src_offset_[i] = pair_of(i) < kRows / kScalePair
                                   ? pair_of(i) * kScalePair * scale_row + lane * 4
                                   : kOutOfBounds;
      }
      force_vgpr(scale_src_offset_[i]);
    }
    lds_dst_ = lds_offset_mxfp4(row, chunk_) + number * (kChunksPerLane * kLoadBytes);
  }

  // Sets the next K-step as the target of the loads to `stage`; after the last one they load zeros.
  __device__ void begin(u32 stage) {
    u32 k = cursor_.next();
    asm volatile("" : "+s"(k));
    k_[stage] = k;
    k_offset_ = k < end_ ? k / 2 * Layout::kKStrideBytes : kOutOfBounds;
    constexpr u32 kStepBytes = kRawScales ? kStepK / kFp4Block : kWaveSize * 4;
    scale_k_offset_ = k < end_ ? k / kStepK * kStepBytes : kOutOfBounds;
  }
  // Issues load `i` of the K-step.
  __device__ void load(u32 stage, u32 i) {
    if (i < kChunksPerLane) {
      // Shuffled rows: two loads of 64 bytes of K for 16 rows.
      u32 offset = src_offset_ + (kShuffled ? i % 2 * 4 * Layout::kChunkStrideBytes : 0);
      if constexpr (kTail) {
        offset = k_[stage] + (chunk_ + (kShuffled ? i % 2 * 4 : 0)) * kFp4Block < end_
                     ? offset
                     : kOutOfBounds;
      }
      chunks_[stage][i] =
          buffer_load_b128(rows_, offset, k_offset_ + (kShuffled ? i / 2 : i) * load_stride_);
    } else {
      loaded_[stage][i - kChunksPerLane] = buffer_load_dwords<kScaleDwords>(
          scales_, scale_src_offset_[i - kChunksPerLane], scale_k_offset_);
    }
  }
  // Writes what load `i` brought to LDS.
  __device__ void write_lds(u32 stage, u32 i, RFOPS_LDS LdsRows* lds) const {
    if (i < kChunksPerLane) {
      const u32 lds_dst =
          kShuffled ? (lds_dst_ ^ i % 2 * 64) + i / 2 * 2048 : lds_dst_ + i * kLoadBytes;
      *reinterpret_cast<RFOPS_LDS U32x4*>((LdsBytes*)lds->rows + lds_dst) = chunks_[stage][i];
    } else if constexpr (kRawScales) {
      const u32 load = i - kChunksPerLane;
      const auto& loaded = loaded_[stage][load].dword;
      constexpr u32 kLowPairs = 0x05010400, kHighPairs = 0x07030602;  // bytes of v_perm
      lds->scales.rows[has_row(load) ? row_of(load) : kRows + lane_id()] = {
          __builtin_amdgcn_perm(loaded[1], loaded[0], kLowPairs),
          __builtin_amdgcn_perm(loaded[1], loaded[0], kHighPairs)};
    } else {
      u32 valid_mask = ~0u;  // scales beyond K may be NaN
      if constexpr (kTail) {
        const u32 block_k = k_[stage] + lane_id() / kTileRows * kFp4Block;
        valid_mask =
            (block_k < end_ ? 0x0000ffffu : 0) | (block_k + kTileK < end_ ? 0xffff0000u : 0);
      }
      lds->scales.pairs[pair_of(i - kChunksPerLane)][lane_id()] =
          loaded_[stage][i - kChunksPerLane].dword[0] & valid_mask;
    }
  }

 private:
  // Of scale load i: 32 rows of preshuffled scales; the lane's row of raw ones, if it has one.
  __device__ u32 pair_of(u32 i) const { return number_ + i * kNumWaves; }
  __device__ bool has_row(u32 i) const { return i * kWaveSize + lane_id() < kWaveRows; }
  __device__ u32 row_of(u32 i) const { return number_ * kWaveRows + i * kWaveSize + lane_id(); }

  const Buffer rows_, scales_;
  const u32 end_, number_, load_stride_;
  Fp4Cursor cursor_;
  u32 chunk_, lds_dst_, src_offset_, scale_src_offset_[kScaleLoads], k_offset_, scale_k_offset_;
  u32 k_[kSteps];
  U32x4 chunks_[kSteps][kChunksPerLane];
  Dwords<kScaleDwords> loaded_[kSteps][kScaleLoads];
};

}  // namespace rfops
