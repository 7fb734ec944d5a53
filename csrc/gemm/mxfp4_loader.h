// Loads one wave's part of an MXFP4 operand from memory to LDS: K-steps of 256 in the layout of
// mxfp4_k_step.h with their scales, several K-steps in flight (gfx950).
//
// Scales are preshuffled, or raw. A row has 8 bytes of raw scales in a K-step, but a load brings at
// least 64 to L1, where those of the next K-steps do not stay. So raw scales are loaded for a group
// of kScaleSteps K-steps, 16 bytes of two K-steps per lane. LDS holds a group by pairs of K-steps:
// of a row four dwords, each with blocks i and i + 4 of both K-steps, which a lane reads at once.
// Raw scales require K a multiple of 256 and rows 8-byte aligned.
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

constexpr u32 kScalePair = 2 * kTileRows;  // rows whose preshuffled scales are one dword per lane

constexpr u32 kScaleSteps = 4;                 // K-steps of a group of raw scales
constexpr u32 kScaleChunks = kScaleSteps / 2;  // 16-byte chunks of a row's group
static_assert(kScaleSteps % 4 == 0, "a pair of K-steps always uses the same registers");

// LDS buffer of the scales of an operand, preshuffled: of two K-steps, one dword per lane for 32
// rows. Those of the kNumWaves loading waves that have no rows write what pads it.
template <u32 kRows, bool kRawScales, u32 kNumWaves>
struct Fp4Scales {
  static constexpr u32 kPairs = (kRows / kScalePair + kNumWaves - 1) / kNumWaves;  // per wave
  u32 pairs[2][kPairs * kNumWaves][kWaveSize];
};
// Raw: of one group, by pairs of K-steps. Lanes without a row write what pads the rows.
template <u32 kRows, u32 kNumWaves>
struct Fp4Scales<kRows, true, kNumWaves> {
  static constexpr u32 kRowsPerLoad = kNumWaves * kWaveSize / kScaleChunks;
  static constexpr u32 kLoads = (kRows + kRowsPerLoad - 1) / kRowsPerLoad;  // per wave
  // The last rows of a pair shift the next one to other banks.
  U32x4 rows[kScaleChunks][kLoads * kRowsPerLoad + 8 / kScaleChunks];
};

// Returns what swaps the halves of a row's four dwords: 2 or 0.
constexpr u32 scale_swizzle(u32 row) { return row / 8 % 2 * 2; }

#if defined(__gfx950__)
namespace details {
constexpr u32 kScalePairBytes = sizeof(Fp4Scales<kTileRows, true, 1>) / kScaleChunks;
constexpr u32 kPhasesB32[] = {lanes(0, 31)};
static_assert(conflict_free(kWritePhases, 32,
                            [](u32 l) {
                              return l % kScaleChunks * kScalePairBytes +
                                     l / kScaleChunks * kVecBytes;
                            }) &&
                  conflict_free<4>(kPhasesB32, 32,
                                   [](u32 l) {
                                     return l % 16 * kVecBytes +
                                            (l / 16 ^ scale_swizzle(l % 16)) * 4;
                                   }),
              "writes and reads of raw scales have no bank conflict");
}  // namespace details
#endif

// A wave's scales of kTiles row tiles, from LDS to the operand of an MFMA. `step` counts K-steps
// from the first of a group.
template <u32 kTiles, bool kRawScales>
class Fp4StepScales {
 public:
  // Returns the LDS reads of a K-step.
  static constexpr u32 num_reads(u32) { return kTiles / 2; }

  template <u32 kRows, u32 kNumWaves>
  __device__ void read(const RFOPS_LDS Fp4Scales<kRows, false, kNumWaves>& lds, u32 row, u32 step,
                       u32 i) {
    pairs_[step % 2][i] = lds.pairs[step % 2][row / kScalePair + i][lane_id()];
  }
  // Returns the dword with the scale of a row tile; the MFMA selects byte byte_of.
  __device__ u32 dword(u32 step, u32 tile) const { return pairs_[step % 2][tile / 2]; }
  static constexpr u32 byte_of(u32, u32 tile, u32 half) { return tile % 2 + 2 * half; }
  // Makes the scales of K-step `step` those of the first.
  __device__ void move_to_first(u32 step) {
#pragma unroll
    for (u32 i = 0; i < kTiles / 2; ++i) {
      if (step % 2 == 1) pairs_[0][i] = pairs_[1][i];
    }
  }

 private:
  u32 pairs_[2][kTiles / 2];
};
template <u32 kTiles>
class Fp4StepScales<kTiles, true> {
 public:
  static constexpr u32 num_reads(u32 step) { return step % 2 == 0 ? kTiles : 0; }

  template <u32 kRows, u32 kNumWaves>
  __device__ void read(const RFOPS_LDS Fp4Scales<kRows, true, kNumWaves>& lds, u32 row, u32 step,
                       u32 i) {
    const u32 tile_row = lane_id() % kTileRows;
    const auto* const dwords =
        (const RFOPS_LDS u32*)&lds.rows[step / 2 % kScaleChunks][row + i * kTileRows + tile_row];
    tiles_[step / 2 % 2][i] = dwords[lane_id() / kTileRows ^ scale_swizzle(tile_row)];
  }
  __device__ u32 dword(u32 step, u32 tile) const { return tiles_[step / 2 % 2][tile]; }
  static constexpr u32 byte_of(u32 step, u32, u32 half) { return half + step % 2 * 2; }
  __device__ void move_to_first(u32 step) {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      if (step / 2 % 2 == 1) tiles_[0][i] = tiles_[1][i];
      tiles_[0][i] >>= step % 2 * 16;
    }
  }

 private:
  u32 tiles_[2][kTiles];
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

// Loads a wave's part of the scales of an operand: preshuffled, those of a K-step with its rows,
// kStages K-steps ahead. `step` counts K-steps from the first of a group.
template <u32 kRows, bool kRawScales, bool kTail, u32 kNumWaves, u32 kStages>
class Fp4ScaleLoader {
 public:
  using LdsScales = Fp4Scales<kRows, false, kNumWaves>;
  static constexpr u32 kPairs = LdsScales::kPairs;
  // Returns how many loads `step` issues, and how many writes of scales of the next one.
  static constexpr u32 num_loads(u32) { return kPairs; }
  static constexpr u32 num_writes(u32) { return kPairs; }

  __device__ Fp4ScaleLoader(u32 number, const Buffer& scales, u32 row_bytes, const TileWork& work,
                            u32)
      : scales_(scales), end_(work.end), number_(number) {
#pragma unroll
    for (u32 i = 0; i < kPairs; ++i) {
      src_offset_[i] = pair_of(i) < kRows / kScalePair
                           ? pair_of(i) * kScalePair * row_bytes + lane_id() * 4
                           : kOutOfBounds;
      force_vgpr(src_offset_[i]);
    }
  }
  // Issues the loads to `stage` that precede the first K-step.
  __device__ void load_first(u32 stage) {
#pragma unroll
    for (u32 i = 0; i < kPairs; ++i) load(0, stage, i);
  }
  __device__ void load_group() {}
  // Sets the K-step at element k as the target of the loads to `stage`.
  __device__ void begin(u32 stage, u32 k) {
    k_[stage] = k;
    k_offset_ = k < end_ ? k / kStepK * (kWaveSize * 4) : kOutOfBounds;
  }
  // Issues load `i` of step `step`, to `stage`.
  __device__ void load(u32, u32 stage, u32 i) {
    loaded_[stage][i] = buffer_load_dwords<1>(scales_, src_offset_[i], k_offset_).dword[0];
  }
  // Writes what a load brought: write `i` of step `step`, from `stage`.
  __device__ void write_lds(RFOPS_LDS LdsScales& lds, u32 step, u32 stage, u32 i) const {
    u32 valid_mask = ~0u;  // scales beyond K may be NaN
    if constexpr (kTail) {
      const u32 block_k = k_[stage] + lane_id() / kTileRows * kFp4Block;
      valid_mask = (block_k < end_ ? 0x0000ffffu : 0) | (block_k + kTileK < end_ ? 0xffff0000u : 0);
    }
    lds.pairs[(step + 1) % 2][pair_of(i)][lane_id()] = loaded_[stage][i] & valid_mask;
  }

 private:
  __device__ u32 pair_of(u32 i) const { return number_ + i * kNumWaves; }

  const Buffer scales_;
  const u32 end_, number_;
  u32 src_offset_[kPairs], k_offset_, k_[kStages], loaded_[kStages][kPairs];
};

// Raw: the last step of a group writes the next group, which was loaded kStages steps before or
// earlier.
template <u32 kRows, bool kTail, u32 kNumWaves, u32 kStages>
class Fp4ScaleLoader<kRows, true, kTail, kNumWaves, kStages> {
 public:
  using LdsScales = Fp4Scales<kRows, true, kNumWaves>;
  static constexpr u32 kRowsPerLoad = LdsScales::kRowsPerLoad, kLoads = LdsScales::kLoads;
  static constexpr u32 num_loads(u32 step) {
    return first_load(step % kScaleSteps + 1) - first_load(step % kScaleSteps);
  }
  static constexpr u32 num_writes(u32 step) {
    return step % kScaleSteps == kScaleSteps - 1 ? kLoads : 0;
  }

  // The first group begins at K-step group_step of the split; after the last K-step follow the
  // first ones.
  __device__ Fp4ScaleLoader(u32 number, const Buffer& scales, u32 row_bytes, const TileWork& work,
                            u32 group_step)
      : scales_(scales),
        chunk_(number * kWaveSize + lane_id()),
        load_stride_(kRowsPerLoad * row_bytes),
        split_bytes_((work.end - work.begin) / kFp4Block),
        row_offset_(chunk_ / kScaleChunks * row_bytes + work.begin / kFp4Block),
        is_end_in_chunk_(split_bytes_ / kStepBytes % 2 != group_step % 2),
        offset_(group_step * kStepBytes + chunk_ % kScaleChunks * kVecBytes),
        split_begin_{} {
    wrap_around();
  }
  __device__ void load_first(u32 stage) {
    if (stage != 0) return;
    load_group();
    if (!is_end_in_chunk_) return;
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      split_begin_[i] = buffer_load_dwords<2>(scales_, row_offset_, i * load_stride_);
    }
  }
  // Issues all loads of a group at once.
  __device__ void load_group() {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) load_chunk(i);
  }
  __device__ void begin(u32, u32) {}
  __device__ void load(u32 step, u32, u32 i) { load_chunk(first_load(step % kScaleSteps) + i); }
  // Writes four dwords of two K-steps of a row: byte i of each of the chunk's dwords is dword i. In
  // the upper half of 16 rows the last two come first, so that reads have no bank conflict.
  __device__ void write_lds(RFOPS_LDS LdsScales& lds, u32, u32, u32 i) const {
    U32x4 chunk = loaded_[i];
    // offset_ is that of the next group: was the first K-step of this chunk the last of the split?
    if (offset_ == (kScaleSteps - 1) * kStepBytes) {
      chunk[2] = split_begin_[i].dword[0];
      chunk[3] = split_begin_[i].dword[1];
    }
    const u32 row = chunk_ / kScaleChunks;
    constexpr u32 kLow = 0x05010400, kHigh = 0x07030602;  // pairs of bytes, as v_perm selects them
    constexpr u32 kLowPairs = 0x05040100, kHighPairs = 0x07060302;
    const u32 first = scale_swizzle(row) ? kHigh : kLow, last = scale_swizzle(row) ? kLow : kHigh;
    const u32 a = __builtin_amdgcn_perm(chunk[1], chunk[0], first);
    const u32 b = __builtin_amdgcn_perm(chunk[1], chunk[0], last);
    const u32 c = __builtin_amdgcn_perm(chunk[3], chunk[2], first);
    const u32 d = __builtin_amdgcn_perm(chunk[3], chunk[2], last);
    lds.rows[chunk_ % kScaleChunks][row + i * kRowsPerLoad] = {
        __builtin_amdgcn_perm(c, a, kLowPairs), __builtin_amdgcn_perm(c, a, kHighPairs),
        __builtin_amdgcn_perm(d, b, kLowPairs), __builtin_amdgcn_perm(d, b, kHighPairs)};
  }

 private:
  static_assert(!kTail, "a whole number of K-steps");
  static_assert(kStages <= kScaleSteps, "a group is complete when it is written");
  static constexpr u32 kStepBytes = kStepK / kFp4Block;  // of a row
  // The steps that issue loads: the first ones of a group, or its last one, after its writes.
  static constexpr u32 kIssueStep = kStages < kScaleSteps ? 0 : kScaleSteps - 1;
  static constexpr u32 kIssueSteps = kStages < kScaleSteps ? kScaleSteps - kStages : 1;
  // Returns how many loads of a group the steps before `step` issue.
  static constexpr u32 first_load(u32 step) {
    if (step <= kIssueStep) return 0;
    return step >= kIssueStep + kIssueSteps
               ? kLoads
               : ((step - kIssueStep) * kLoads + kIssueSteps - 1) / kIssueSteps;
  }
  __device__ void load_chunk(u32 i) {
    loaded_[i] = buffer_load_b128(scales_, row_offset_ + offset_, i * load_stride_);
    if (i == kLoads - 1) {
      offset_ += kScaleSteps * kStepBytes;
      wrap_around();
    }
  }
  __device__ void wrap_around() {
    const u32 wrapped = offset_ - split_bytes_;  // huge if offset_ is within the split
    offset_ = wrapped < offset_ ? wrapped : offset_;
  }

  const Buffer scales_;
  const u32 chunk_, load_stride_, split_bytes_, row_offset_;
  const bool is_end_in_chunk_;  // a chunk has the last K-step and the first
  u32 offset_;                  // of the lane's chunk of the next group in the split
  U32x4 loaded_[kLoads];
  Dwords<2> split_begin_[kLoads];  // of the first K-step, where it follows the last in a chunk
};

// Loads what one of kNumWaves waves has of an operand: 16-byte chunks of 8 rows per load
// (preshuffled: half the K of 16 rows), kStages K-steps in flight, and scales.
template <u32 kRows, bool kShuffled, bool kRawScales, bool kTail, u32 kNumWaves, u32 kStages>
class Fp4Loader {
 public:
  using ScaleLoader = Fp4ScaleLoader<kRows, kRawScales, kTail, kNumWaves, kStages>;
  static constexpr u32 kNumStages = kStages;
  static constexpr u32 kLoadBytes = kWaveSize * kVecBytes;
  static constexpr u32 kChunksPerLane = kRows / 8 / kNumWaves;
  static_assert(kChunksPerLane * 8 * kNumWaves == kRows && (!kShuffled || kChunksPerLane % 2 == 0),
                "a whole number of loads");
  using Layout = OperandLayout<kShuffled>;

  ScaleLoader scales;

  __device__ Fp4Loader(u32 number, const Buffer& rows, const Buffer& scales, u32 row_bytes,
                       u32 scale_row, const TileWork& work, u32 start_step, u32 group_step)
      : scales(number, scales, scale_row, work, group_step),
        rows_(rows),
        end_(work.end),
        load_stride_((kShuffled ? 16 : 8) * row_bytes),
        cursor_(work, start_step) {
    const u32 lane = lane_id();
    const u32 row = kShuffled ? lane % 16 : lane / kRowChunks;
    chunk_ = kShuffled ? lane / 16 : lane % kRowChunks;
    src_offset_ = Layout::offset(number * (kChunksPerLane * 8) + row, chunk_, row_bytes);
    force_vgpr(src_offset_);
    lds_dst_ = lds_offset_mxfp4(row, chunk_) + number * (kChunksPerLane * kLoadBytes);
  }

  // Sets the next K-step as the target of the loads to `stage`; after the last one they load zeros.
  __device__ void begin(u32 stage) {
    u32 k = cursor_.next();
    asm volatile("" : "+s"(k));
    k_[stage] = k;
    k_offset_ = k < end_ ? k / 2 * Layout::kKStrideBytes : kOutOfBounds;
    scales.begin(stage, k);
  }
  // Issues load `i` of the K-step's rows.
  __device__ void load(u32 stage, u32 i) {
    // Shuffled rows: two loads of 64 bytes of K for 16 rows.
    u32 offset = src_offset_ + (kShuffled ? i % 2 * 4 * Layout::kChunkStrideBytes : 0);
    if constexpr (kTail) {
      offset = k_[stage] + (chunk_ + (kShuffled ? i % 2 * 4 : 0)) * kFp4Block < end_ ? offset
                                                                                     : kOutOfBounds;
    }
    chunks_[stage][i] =
        buffer_load_b128(rows_, offset, k_offset_ + (kShuffled ? i / 2 : i) * load_stride_);
  }
  // Writes what load `i` brought to the rows of an LDS stage.
  __device__ void write_lds(u32 stage, u32 i, LdsBytes* rows) const {
    const u32 lds_dst =
        kShuffled ? (lds_dst_ ^ i % 2 * 64) + i / 2 * 2048 : lds_dst_ + i * kLoadBytes;
    *reinterpret_cast<RFOPS_LDS U32x4*>(rows + lds_dst) = chunks_[stage][i];
  }

 private:
  const Buffer rows_;
  const u32 end_, load_stride_;
  Fp4Cursor cursor_;
  u32 chunk_, lds_dst_, src_offset_, k_offset_;
  u32 k_[kStages];
  U32x4 chunks_[kStages][kChunksPerLane];
};

}  // namespace rfops
