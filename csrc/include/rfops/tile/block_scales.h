// fp32 scales of FP8 blocks: 1 x 128 for x, 128 x 128 for w, with any strides.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/global_to_lds.h"

namespace rfops {

constexpr u32 kScaleRows = 128;  // rows of w per scale

// Scales of a workgroup's rows of x and range of K, from [rows, K/128] with any strides.
struct RowScales {
  const f32* base;
  u32 row_stride_bytes, k_stride_bytes;
  u32 bytes;  // to the end of the last scale in bounds

  __device__ RowScales(const f32* scales, u32 row, u32 rows, u32 max_rows, u32 row_stride,
                       u32 k_stride, u32 block, u32 blocks)
      : base(scales + u64{row} * row_stride + u64{block} * k_stride),
        row_stride_bytes(row_stride * sizeof(f32)),
        k_stride_bytes(k_stride * sizeof(f32)) {
    const u32 num_rows = rows - row < max_rows ? rows - row : max_rows;
    bytes = (num_rows - 1) * row_stride_bytes + (blocks - 1) * k_stride_bytes + sizeof(f32);
  }
};

// Scales of one 128-row block of w, loaded to scalars.
struct BlockScales {
  const f32* base;
  u32 k_stride_bytes;

  __device__ BlockScales(const f32* scales, u32 w_row, u32 row_stride, u32 k_stride, u32 block)
      : base(scales + u64{w_row / kScaleRows} * row_stride + u64{block} * k_stride),
        k_stride_bytes(k_stride * sizeof(f32)) {}

  // Returns the scale of block `block` of the range of K.
  __device__ f32 load(u32 block) const {
    return *reinterpret_cast<const f32*>(reinterpret_cast<const u8*>(base) +
                                         block * k_stride_bytes);
  }
};

// Whether consecutive lanes load scales along K. A load of one K-step would touch as many cache
// lines as it has rows, so each load brings several K-steps: in consecutive lanes those that are
// contiguous in memory.
__device__ inline bool is_row_major(const RowScales& scales) {
  return scales.k_stride_bytes < scales.row_stride_bytes;
}

// Scales of 16 rows of x for 4 K-steps, one per lane.
class LaneBlockScales {
 public:
  static constexpr u32 kSteps = kWaveSize / kTileRows;

  __device__ explicit LaneBlockScales(const RowScales& scales)
      : scales_(scales),
        row_lanes_(is_row_major(scales) ? kSteps : 1),
        step_lanes_(is_row_major(scales) ? 1 : kTileRows) {
    const u32 lane = lane_id();  // selects instead of branches: fewer instructions before the load
    const u32 row = is_row_major(scales) ? lane / kSteps : lane % kTileRows;
    step_ = is_row_major(scales) ? lane % kSteps : lane / kTileRows;
    lane_offset_ = row * scales.row_stride_bytes + step_ * scales.k_stride_bytes;
  }

  // Loads the scales of the 16 rows from `row` on for the K-steps from step_begin on; zeros from
  // K-step `end` on.
  __device__ f32 load(u32 row, u32 step_begin, u32 end) const {
    const u32 offset = step_begin + step_ < end ? lane_offset_ : kOutOfBounds;
    const u32 scalar_offset = row * scales_.row_stride_bytes + step_begin * scales_.k_stride_bytes;
    const Buffer buffer = make_buffer(scales_.base, step_begin < end ? scales_.bytes : 0);
    return __builtin_bit_cast(
        f32, buffer_load_dwords<1>(buffer, offset, readfirstlane(scalar_offset)).dword[0]);
  }

  // Returns to lane l the loaded scale of row l % 16 at K-step `step`.
  __device__ f32 select(f32 loaded, u32 step) const {
    const u32 lane = lane_id() % kTileRows * row_lanes_ + step * step_lanes_;
    return __builtin_bit_cast(f32,
                              __builtin_amdgcn_ds_bpermute(static_cast<i32>(lane * sizeof(f32)),
                                                           __builtin_bit_cast(i32, loaded)));
  }

 private:
  RowScales scales_;
  u32 row_lanes_, step_lanes_, step_, lane_offset_;
};

#if defined(__gfx950__)

// Scales of the kRows rows of a workgroup of kWaves waves, loaded direct to LDS: kLoads loads per
// wave bring kSteps K-steps, into a ring of two such groups. Each load writes LDS in lane order. To
// avoid bank conflicts (32 banks), rows 4 to 7 of a load of row-major scales have their K-steps
// rotated by 4, and loads are kWordsPerLoad words apart, so that the rows of an operand tile are in
// different banks.
template <u32 kRows, u32 kWaves>
class LdsDmaScales {
 public:
  static constexpr u32 kSteps = 8, kRing = 2 * kSteps, kLoads = 4;
  static constexpr u32 kRowsPerLoad = kRows / kWaves / kLoads;
  static constexpr u32 kLanes = kRowsPerLoad * kSteps;
  static constexpr u32 kWordsPerLoad =
      2 * kLanes + kRowsPerLoad * 5 / 4;  // LDS words between the loads' results
  static constexpr u32 kWords = kRows / kRowsPerLoad * kWordsPerLoad;  // LDS words of the ring
  static_assert(kRowsPerLoad == 4 || kRowsPerLoad == 8, "a tile's rows are in different banks");

  __device__ explicit LdsDmaScales(const RowScales& scales)
      : buffer_(make_buffer_words(scales.base, scales.bytes)),
        row_step_(scales.row_stride_bytes),
        k_step_(scales.k_stride_bytes),
        row_lanes_(is_row_major(scales) ? kSteps : 1),
        step_lanes_(is_row_major(scales) ? 1 : kRowsPerLoad) {
    const u32 lane = lane_id(), row = lane / row_lanes_ % kRowsPerLoad;
    step_ = lane / step_lanes_ % kSteps ^ swizzle(row);
    lane_offset_ = (wave_id() * kLoads * kRowsPerLoad + row) * row_step_ + step_ * k_step_;
  }

  // Issues the loads of kSteps K-steps from step_begin, a multiple of kSteps, on; zeros from K-step
  // `end` on.
  __device__ void issue(const RFOPS_LDS f32* ring, u32 step_begin, u32 end) const {
    const u32 offset = step_begin + step_ < end ? lane_offset_ : kOutOfBounds;
    U32x4 buffer = buffer_;
    buffer[2] = step_begin < end ? buffer[2] : 0;  // range check, and keeps the descriptor in SGPRs
    const RFOPS_LDS f32* const lds_dst =
        ring + wave_id() * kLoads * kWordsPerLoad + step_begin / kSteps % 2 * kLanes;
#pragma unroll
    for (u32 load = 0; load < kLoads; ++load) {
      buffer_load_lds_b32<kLanes>(buffer, offset,
                                  load * kRowsPerLoad * row_step_ + step_begin * k_step_,
                                  lds_address((LdsBytes*)(lds_dst + load * kWordsPerLoad)));
    }
  }

  // Returns the word of a row in the ring, to which step_offset() is added for a K-step. Rows that
  // are kRowsPerLoad apart are kWordsPerLoad words apart.
  __device__ u32 row_offset(u32 row) const {
    return row / kRowsPerLoad * kWordsPerLoad + row % kRowsPerLoad * row_lanes_;
  }
  // Returns what is added to row_offset(row) for a K-step.
  __device__ u32 step_offset(u32 row, u32 step) const {
    return step / kSteps % 2 * kLanes + (step % kSteps * step_lanes_ ^ swizzle(row % kRowsPerLoad));
  }

 private:
  __device__ u32 swizzle(u32 row) const { return step_lanes_ == 1 ? row & 4 : 0; }

  U32x4 buffer_;
  u32 row_step_, k_step_, lane_offset_, row_lanes_, step_lanes_, step_;
};

#endif

}  // namespace rfops
