// Scaled MFMA on OCP MX-FP8 (gfx950): v_mfma_scale_f32_16x16x128_f8f6f4, one per 128 of K.
//
// An operand tile is 16 rows by 128 of K of e4m3, row-major, 128 consecutive bytes per row. Lane l
// holds the 16 bytes of row l % 16 from k = 16 * (l / 16) on and the 16 bytes from k = 64 + 16 * (l
// / 16) on. With them it supplies the e8m0 scale of block l / 16 of that row (k = 32 * (l / 16) +
// 0..31), which is not the block that its bytes belong to.
// D = A * B^T + C, of which lane l holds rows 4 * (l / 16) + 0..3 of column l % 16: a lane's four
// elements are neighbours along A's rows. If A is the operand whose rows run along a row of the
// output (w for out = x * w^T), a lane stores them with one instruction.
//
// A scale of 255 makes its row of A, or of B, NaN whatever the payload. So where the range check
// turns a payload into zeros its scale must be zeroed too: 2^-127 times 0 adds 0.
//
//   const u32 offset = fragment_offset(lane, k_bytes), scale = scale_offset(lane, scales_k);
//   const Fragment a = load_fragment(w, offset, n0 * k_bytes + k);
//   const u32 a_scale = buffer_load_u8(w_scale, scale, n0 * scales_k + k / kMxBlock);
//   ...
//   acc = mfma_mxfp8_16x16x128(a, a_scale, b, b_scale, acc);
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/mxfp8.h"

namespace rfops {

constexpr u32 kTileBlocks = kTileK / kMxBlock;  // scales per row of an operand tile

// Rows [row_begin, row_begin + rows) of an operand [any, K] and of its scales [any, K/32].
struct MxRows {
  Buffer payload, scales;
  __device__ MxRows(const u8* payload, const u8* scales, u64 row_begin, u32 rows, u32 k)
      : payload(make_buffer(payload + row_begin * k, rows * k)),
        scales(make_buffer(scales + row_begin * (k / kMxBlock), rows * (k / kMxBlock))) {}
};

// Returns the offset of the scale that a lane supplies for a tile.
__device__ inline u32 scale_offset(u32 lane, u32 scales_k) {
  return lane % kTileRows * scales_k + lane / kTileRows;
}

// As load_fragment, for a tile in which K ends: `k` is the tile's first element, `k_end` the end of
// the row, both multiples of 32. Chunks from k_end on are zeros; mask the scale with
// block_offset().
template <CacheHint kHint = kCached>
__device__ inline Fragment load_tail_fragment(const Buffer& buffer, u32 lane_offset, u32 scalar,
                                              u32 lane, u32 k, u32 k_end) {
  const u32 low_k = k + lane / kTileRows * kVecBytes, high_k = low_k + kPieceK;
  const u32 low = low_k < k_end ? lane_offset : kOutOfBounds;
  const u32 high = high_k < k_end ? lane_offset + kPieceK : kOutOfBounds;
  return {buffer_load_b128<kHint>(buffer, low, scalar),
          buffer_load_b128<kHint>(buffer, high, scalar)};
}
// Returns lane_offset, or kOutOfBounds if the lane's scale block of the tile at `k` begins at or
// after k_end.
__device__ inline u32 block_offset(u32 lane_offset, u32 lane, u32 k, u32 k_end) {
  return k + lane / kTileRows * kMxBlock < k_end ? lane_offset : kOutOfBounds;
}

// Shifts the lane's scale to the lowest byte, from a dword with the four scales of a row's 128 of
// K.
__device__ inline u32 select_lane_scale(u32 scales, u32 lane) {
  return scales >> (lane / kTileRows * 8);
}

}  // namespace rfops
