// Scaled matrix cores on OCP MX-FP8 (gfx950): v_mfma_scale_f32_16x16x128_f8f6f4, one per 128 of K.
//
// A tile is 16 rows by 128 of K of e4m3, as memory has it: row-major, 128 consecutive bytes a row.
// Lane l of the wave holds, of row l % 16, the 16 bytes from k = 16 * (l / 16) and the 16 bytes
// from k = 64 + 16 * (l / 16); with them it supplies the e8m0 byte of block l / 16 of that row
// (k = 32 * (l / 16) and the next 31), which is not the block that its bytes come from.
// D = A * B^T + C, of which lane l holds rows 4 * (l / 16) + 0..3 of column l % 16: a lane's four
// values are neighbours along A's rows, so let A be the operand whose rows run along the row of
// the output (w, for out = x * w^T) and a lane stores them at once.
//
// A scale of 255 makes its row of A, or of B, NaN whatever the payload. A load that a descriptor's
// range check turns to zeros therefore wants its scale zeroed the same way: 2^-127 times 0 adds 0.
//
//   const u32 at = tile_offset(lane, k_bytes), scale_at = scale_offset(lane, scales_k);
//   const Tile a = load_tile(w, at, n0 * k_bytes + k);
//   const u32 a_scale = buffer_load_u8(w_scale, scale_at, n0 * scales_k + k / kMxBlock);
//   ...
//   sums = multiply_scaled(a, a_scale, b, b_scale, sums);
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/mxfp8.h"

namespace rfops {

constexpr u32 kTileBlocks = kTileK / kMxBlock;  // scales of a row of an operand

// `rows` rows of an operand [any, K] and their scales [any, K/32], from row `first` on.
struct MxRows {
  Buffer payload, scales;
  __device__ MxRows(const u8* payload, const u8* scales, u64 row_begin, u32 rows, u32 k)
      : payload(make_buffer(payload + row_begin * k, rows * k)),
        scales(make_buffer(scales + row_begin * (k / kMxBlock), rows * (k / kMxBlock))) {}
};

// A lane's scale's byte of a tile.
__device__ inline u32 scale_offset(u32 lane, u32 scales_k) {
  return lane % kTileRows * scales_k + lane / kTileRows;
}

// As load_tile, where K ends within the tile: `k` is the tile's first, `k_end` the row's end, both
// multiples of 32, and pieces from k_end on read zeros. Mask the scale with `block_offset`.
template <CacheHint kHint = kCached>
__device__ inline Fragment load_tail_fragment(const Buffer& buffer, u32 lane_offset, u32 scalar,
                                              u32 lane, u32 k, u32 k_end) {
  const u32 low_k = k + lane / kTileRows * kVecBytes, high_k = low_k + kPieceK;
  const u32 low = low_k < k_end ? lane_offset : kOutOfBounds;
  const u32 high = high_k < k_end ? lane_offset + kPieceK : kOutOfBounds;
  return {buffer_load_b128<kHint>(buffer, low, scalar),
          buffer_load_b128<kHint>(buffer, high, scalar)};
}
__device__ inline u32 block_offset(u32 lane_offset, u32 lane, u32 k, u32 k_end) {
  return k + lane / kTileRows * kMxBlock < k_end ? lane_offset : kOutOfBounds;
}

// Of the four scales of a row's 128 of K in one dword, the lane's own in the lowest byte.
__device__ inline u32 select_lane_scale(u32 scales, u32 lane) {
  return scales >> (lane / kTileRows * 8);
}

}  // namespace rfops
