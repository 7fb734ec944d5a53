// Weights of an expert on their way to the matrix cores, MXFP4 or MX-FP8: from memory to the
// registers of the one wave that multiplies them, a step of 128 bytes of K at a time (gfx950).
//
// Shuffled ones come as the matrix cores want them, 1 KB an instruction, and their scales as dwords
// of two tiles of rows. Rows of others go through 2 KB of LDS of the wave's own. Rows that are not
// there, and what lies beyond K, are zeros with scale 2^-127, and no memory is touched for them.
#pragma once

#include "moe/mx_format.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

// Rows [rows, K] of one matrix with their scales, as loads of one kind take memory.
template <class Memory, Memory (*kMake)(const void*, u32)>
struct MatrixOf {
  Memory payload, scales;
  u32 row_bytes, scale_row_bytes;

  __device__ MatrixOf(const u8* payload, const u8* scales, u32 rows, u32 row_bytes,
                      u32 scale_row_bytes)
      : payload(kMake(payload, rows * row_bytes)),
        scales(kMake(scales, rows * scale_row_bytes)),
        row_bytes(row_bytes),
        scale_row_bytes(scale_row_bytes) {}
};
using MatrixBytes = MatrixOf<Buffer, make_buffer>;
using MatrixWords = MatrixOf<U32x4, make_buffer_words>;  // by inline assembly

template <class Format, bool kShuffled, bool kShuffledScales, bool kTail, u32 kTiles>
class WeightLoader {
 public:
  static constexpr MatrixFormat kFormat = Format::kFormat;
  static constexpr bool kIsFp4 = kFormat == kE2m1, kIsShuffled = kShuffled;
  static constexpr u32 kStepBlocks = Format::kStepK / kMxBlock;
  static constexpr u32 kWords = kShuffledScales ? (kTiles + 1) / 2 : kTiles * kStepBlocks / 4;
  static constexpr u32 kLoads = 2 * kTiles + kWords;  // instructions of a step
  static constexpr u32 kStagingBytes = kShuffled ? 0 : kTileRows * kRowBytes;
  static_assert(kTiles == 1 || kTiles % 2 == 0, "a dword of shuffled scales is of two tiles");

  // A step of kTiles tiles of 16 rows.
  struct Held {
    U32x4 piece[kTiles][2];
    u32 scale[kWords];
  };

  __device__ explicit WeightLoader(u32 k) : k_(k) {}

  // Load kQ of a step: piece kQ of the tiles, then their scales. Its tile is of the matrix' rows
  // from `row` on, those of even tiles a multiple of 32, of a single one of 16.
  template <u32 kQ>
  __device__ void load(Held& held, const MatrixBytes& from, u32 row, u32 step,
                       bool is_there) const {
    const u32 outside = is_there ? 0 : kOutOfBounds;
    if constexpr (kQ < 2 * kTiles) {
      const At at = piece_at<kQ % 2>(from.row_bytes, row, step, outside);
      held.piece[kQ / 2][kQ % 2] = buffer_load_b128<kStreamed>(from.payload, at.lane, at.scalar);
    } else {
      constexpr u32 kWord = kQ - 2 * kTiles;
      const At at = scale_at<kWord>(from.scale_row_bytes, row, step, outside);
      if constexpr (kShuffledScales) {
        held.scale[kWord] = buffer_load_dwords<1>(from.scales, at.lane, at.scalar).dword[0];
      } else {
        held.scale[kWord] = buffer_load_u8(from.scales, at.lane, at.scalar);
      }
    }
  }
  // The same of a piece of a shuffled tile, which begins at byte `start`: no products in a loop.
  template <u32 kQ>
  __device__ void load_piece(Held& held, const MatrixBytes& from, u32 start, u32 step,
                             bool is_there) const {
    static_assert(kShuffled && kQ < 2 * kTiles, "others lie by rows");
    constexpr u32 kH = kQ % 2, kPiece = kWaveSize * kVecBytes;
    const u32 lane = lane_id(), outside = is_there ? 0 : kOutOfBounds;
    const u32 chunk = step * kRowChunks + lane / kTileRows + 4 * kH;
    const u32 at = lane * kVecBytes + step * (kTileRows * kRowBytes);
    held.piece[kQ / 2][kH] = buffer_load_b128<kStreamed>(
        from.payload, (at | beyond(chunk * (Format::kStepK / kRowChunks)) | outside) + kH * kPiece,
        start);
  }
  // The tile that load kQ is of.
  static constexpr u32 tile_of(u32 q) {
    if (q < 2 * kTiles) return q / 2;
    return (q - 2 * kTiles) * kTiles / kWords;
  }

  // Ready for the matrix cores, whose operand is piece h of MXFP4, or both; through LDS where rows
  // are. A single tile says where its rows begin.
  __device__ void turn(Held& held, u32 step, LdsBytes* staging, u32 row = 0) const {
    if constexpr (!kShuffled) {
      const u32 lane = lane_id();
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
          const u32 row = lane / kRowChunks + h * (kTileRows / 2);
          *reinterpret_cast<RFOPS_LDS U32x4*>(staging + lds_offset_mxfp4(row, lane % kRowChunks)) =
              held.piece[t][h];
        }
        const u32 row = lane % kTileRows, chunk = lane / kTileRows;
        held.piece[t][0] = lds_load_b128(staging + lds_offset_mxfp4(row, chunk));
        held.piece[t][1] = lds_load_b128(staging + lds_offset_mxfp4(row, chunk + kRowChunks / 2));
      }
    }
    turn_scales(held, step, row);
  }
  __device__ void turn_scales(Held& held, u32 step, u32 row = 0) const {
    if constexpr (kShuffledScales) {
      if constexpr (kTiles == 1) held.scale[0] >>= row / kTileRows % 2 * 8;
      if constexpr (!kIsFp4) {  // the half of a dword that is this step's
#pragma unroll
        for (u32 i = 0; i < kWords; ++i) held.scale[i] >>= step % 2 * 16;
      }
      if constexpr (kTail) {  // what pads scales may be anything
        const u32 block = step * kStepBlocks + lane_id() / kTileRows;
        const u32 low = block * kMxBlock < k_ ? 0xffffu : 0;
        const u32 high = (block + 4) * kMxBlock < k_ ? 0xffff0000u : 0;
#pragma unroll
        for (u32 i = 0; i < kWords; ++i) held.scale[i] &= low | high;
      }
    }
  }

  // Which word and which of its bytes has the scale of tile t's half h.
  static constexpr u32 word(u32 t, u32 h) {
    return kShuffledScales ? t / 2 : kIsFp4 ? t * 2 + h : t;
  }
  static constexpr u32 byte(u32 t, u32 h) { return kShuffledScales ? t % 2 + 2 * h : 0; }

  // Where a lane finds its part of a load, from its own place and one of all.
  struct At {
    u32 lane, scalar;
  };
  // Of piece kH. kPermuted: such that lanes side by side are rows as lds_offset_mxfp4 has them.
  template <u32 kH, bool kPermuted = false>
  __device__ At piece_at(u32 row_bytes, u32 row, u32 step, u32 outside) const {
    const u32 lane = lane_id(), pitch = row_bytes;
    asm volatile("" : "+s"(row_bytes));  // a product each time, else scalar registers are too few
    u32 at, chunk, scalar = row * row_bytes;
    if constexpr (kShuffled) {
      chunk = lane / kTileRows + 4 * kH;
      at = lane * kVecBytes;
      scalar += step * (kTileRows * kRowBytes) + kH * (kWaveSize * kVecBytes);
    } else {
      chunk = lane % kRowChunks ^ (kPermuted ? lane / kRowChunks : 0);
      at = lane / kRowChunks * pitch + chunk * kVecBytes;
      scalar += step * kRowBytes + kH * (kTileRows / 2) * row_bytes;
    }
    at |= beyond((step * kRowChunks + chunk) * (Format::kStepK / kRowChunks)) | outside;
    return {at, scalar};
  }
  // Of word kWord of scales: a dword a lane of two tiles, or a byte.
  template <u32 kWord>
  __device__ At scale_at(u32 row_bytes, u32 row, u32 step, u32 outside) const {
    const u32 lane = lane_id(), pitch = row_bytes;
    asm volatile("" : "+s"(row_bytes));
    if constexpr (kShuffledScales) {
      const u32 first = kTiles == 1 ? row & ~31u : row;
      return {lane * 4 | outside, first * row_bytes + step * kStepBlocks / 8 * (kWaveSize * 4)};
    } else {
      constexpr u32 kHalf = kWord % (kStepBlocks / 4);
      const u32 block = step * kStepBlocks + lane / kTileRows + 4 * kHalf;
      const u32 at = lane % kTileRows * pitch + block;
      return {at | beyond(block * kMxBlock) | outside, row * row_bytes};
    }
  }

 private:
  __device__ u32 beyond(u32 k) const {
    // By its sign: masks of comparisons would fill scalar registers.
    static_assert(kOutOfBounds == 1u << 31, "an offset's highest bit");
    if constexpr (kTail) return ~(k - k_) & kOutOfBounds;
    return 0;
  }

  u32 k_;
};

}  // namespace rfops
