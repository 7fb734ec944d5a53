// Raw MXFP4 scales of a workgroup whose waves keep scales in registers (mxfp4_loop): direct-to-LDS
// loads for a group of kScaleGroupSteps K-steps at a time, then the registers that preshuffled
// scales have, which Scales of mxfp4_k_step.h loads (gfx950).
//
// A row has 8 bytes of raw scales in a K-step and 32 in a group, which two lanes load. LDS has two
// groups, one in use, of 32 bytes row after row; the halves of every other 8 rows are exchanged, so
// that reads have no bank conflict. A group's loads are complete before its first reads if a load
// to registers that was issued after them has been waited for, because loads complete in order.
//
// Raw scales require K a multiple of 256 and rows 8-byte aligned.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

constexpr u32 kScaleGroupSteps = 4;  // K-steps of a group of raw scales

// A buffer of scales: raw ones are loaded by inline assembly, which takes the four words.
template <bool kRaw>
struct ScaleBuffer {
  using Type = Buffer;
};
template <>
struct ScaleBuffer<true> {
  using Type = U32x4;
};

// LDS buffer of the raw scales of an operand of kRows rows; empty for preshuffled scales. Aligned
// so that an XOR changes the group.
template <u32 kRows, bool kRaw>
struct ScaleGroups {
  U32x4 chunks[0];
};
template <u32 kRows>
struct alignas(2 * kRows * 2 * kVecBytes) ScaleGroups<kRows, true> {
  U32x4 chunks[2][kRows][2];
};

// Scales of a wave's kTiles row tiles of an operand of kRows rows: preshuffled.
template <u32 kRows, u32 kTiles, bool kRaw, bool kTail>
class WaveScales : public Scales<kTiles, kTail> {
 public:
  static constexpr u32 kReads = 0;
  using Groups = ScaleGroups<kRows, false>;

  __device__ WaveScales(u32 row_bytes, u32, const RFOPS_LDS Groups&)
      : Scales<kTiles, kTail>(row_bytes) {}
  __device__ void load_group(const Buffer&, u32, u32, RFOPS_LDS Groups&) const {}
  __device__ void begin_reads(u32, bool) {}
  __device__ void read(u32) {}
  __device__ void select(u32) {}
  __device__ void combine(u32, u32) {}
};

// Raw. The MFMA finds them as it finds preshuffled ones.
template <u32 kRows, u32 kTiles, bool kTail>
class WaveScales<kRows, kTiles, true, kTail> {
 public:
  static constexpr u32 kReads = kTiles / 2;  // of a K-step, each of a pair of tiles
  using Groups = ScaleGroups<kRows, true>;
  static_assert(!kTail, "a whole number of K-steps");

  // `row` is the wave's first row of the workgroup's.
  __device__ WaveScales(u32 row_bytes, u32 row, const RFOPS_LDS Groups& lds)
      : row_bytes_(row_bytes) {
    const u32 lane = lane_id();
    const u32 tile_row = lane % kTileRows, block = lane / kTileRows;
    read_address_ = lds_address((const LdsBytes*)lds.chunks) + (row + tile_row) * kGroupBytes +
                    swizzle(tile_row) * kVecBytes;
    select_ = 0x0c040c00 + block * 0x00010001;  // bytes `block` and 4 + block; 0x0c selects zero
  }

  __device__ void set_k(u32, u32) {}
  __device__ void load(const U32x4&, u32, u32) {}
  __device__ void mask_tail(u32, u32, u32) {}

  // Issues the loads of the group from element k on; `step` is its first K-step of the tile.
  __device__ void load_group(const U32x4& rows, u32 k, u32 step, RFOPS_LDS Groups& lds) const {
    const u32 lds_dst = lds_address((LdsBytes*)lds.chunks) + group_of(step) * kRows * kGroupBytes;
    u32 lane = lane_id();
    force_vgpr(lane);  // keeps the offset from being hoisted, which would spill
    const u32 row = wave_id() * kRowsPerWave + lane / 2;
    load_rows<0>(rows, row * row_bytes_ + (lane % 2 ^ swizzle(row)) * kVecBytes, k / kFp4Block,
                 lds_dst + wave_id() * (kWaveSize * kVecBytes));
  }
  // Sets the K-step of the following reads, the tile's `step`; where it is not in bounds they are
  // zeros.
  __device__ void begin_reads(u32 step, bool in_bounds) {
    const u32 offset = step % kScaleGroupSteps * kStepBytes + group_of(step) * kRows * kGroupBytes;
    read_address_ ^= offset ^ step_offset_;
    step_offset_ = offset;
    step_select_ = in_bounds ? select_ : 0x0c0c0c0c;
  }
  // Reads the rows of a pair of tiles, then selects the bytes of each, then combines them: byte
  // 2 * (half of K) + tile of the pair.
  __device__ void read(u32 pair) {
    const auto* const rows = (const RFOPS_LDS U32x2*)read_address_;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      rows_[pair][i] = rows[(pair * 2 + i) * (kTileRows * kGroupBytes / kStepBytes)];
    }
  }
  __device__ void select(u32 pair) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const U32x2 row = rows_[pair][i];
      rows_[pair][i][0] = __builtin_amdgcn_perm(row[1], row[0], step_select_);
    }
  }
  __device__ void combine(u32 stage, u32 pair) {
    pairs_[stage][pair] = rows_[pair][0][0] | rows_[pair][1][0] << 8;
    force_vgpr(pairs_[stage][pair]);
  }
  __device__ u32 scale(u32 stage, u32 tile) const { return pairs_[stage][tile / 2]; }

 private:
  static constexpr u32 kRowsPerWave = kWaveSize / 2, kRowsPerLoad = 4 * kRowsPerWave;
  static constexpr u32 kStepBytes = kStepK / kFp4Block;  // of a row
  static constexpr u32 kGroupBytes = kScaleGroupSteps * kStepBytes;
  static_assert(kRows % kRowsPerLoad == 0, "a whole number of loads by 4 waves");

  __device__ static constexpr u32 swizzle(u32 row) { return row / 8 % 2; }
  __device__ static constexpr u32 group_of(u32 step) { return step / kScaleGroupSteps % 2; }

  template <u32 kLoad>
  __device__ void load_rows(const U32x4& rows, u32 lane_offset, u32 k_offset, u32 lds_dst) const {
    if constexpr (kLoad < kRows / kRowsPerLoad) {
      buffer_load_lds_b128<kLoad * kRowsPerLoad * kGroupBytes>(
          rows, lane_offset, k_offset, kLoad * kRowsPerLoad * row_bytes_, lds_dst);
      load_rows<kLoad + 1>(rows, lane_offset, k_offset, lds_dst);
    }
  }

  u32 row_bytes_, read_address_, select_;
  u32 step_offset_ = 0, step_select_;
  U32x2 rows_[kReads][2];
  u32 pairs_[2][kTiles / 2];
};

}  // namespace rfops
