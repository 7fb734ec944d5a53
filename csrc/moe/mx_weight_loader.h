// Loads of an expert's weights, MXFP4 or MX-FP8, from memory to the registers of the one wave that
// multiplies them, one K-step of 128 bytes at a time (gfx950).
//
// Preshuffled weights are loaded in operand order, 1 KiB per instruction, and their scales as
// dwords of two row tiles. Row-major weights pass through 2 KiB of LDS of the wave. Out-of-range
// rows and elements beyond K are zeros with scale 2^-127 and are not accessed.
#pragma once

#include "moe/mx_format.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

// Rows [rows, K] of one matrix and their scales, in the buffer type of the loads.
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
using MatrixWords = MatrixOf<U32x4, make_buffer_words>;  // for inline assembly

template <class Format, bool kShuffled, bool kShuffledScales, bool kTail, u32 kTiles>
class WeightLoader {
 public:
  static constexpr MatrixFormat kFormat = Format::kFormat;
  static constexpr bool kIsFp4 = kFormat == kE2m1, kIsShuffled = kShuffled;
  static constexpr u32 kStepBlocks = Format::kStepK / kMxBlock;
  static constexpr u32 kWords = kShuffledScales ? (kTiles + 1) / 2 : kTiles * kStepBlocks / 4;
  static constexpr u32 kLoads = 2 * kTiles + kWords;  // instructions per K-step
  static constexpr u32 kStagingBytes = kShuffled ? 0 : kTileRows * kRowBytes;
  static_assert(kTiles == 1 || kTiles % 2 == 0, "a dword of shuffled scales must cover two tiles");

  // One K-step of kTiles tiles of 16 rows.
  struct Fragments {
    U32x4 piece[kTiles][2];
    u32 scale[kWords];
  };

  __device__ explicit WeightLoader(u32 k) : k_(k) {}

  // Issues load kQ of a K-step: first the pieces of the tiles, then their scales. `row` is the
  // first row of the load's tile, a multiple of 32 for even tiles, of 16 for a single one.
  template <u32 kQ>
  __device__ void load(Fragments& fragments, const MatrixBytes& matrix, u32 row, u32 step,
                       bool in_bounds) const {
    const u32 oob_bits = in_bounds ? 0 : kOutOfBounds;
    if constexpr (kQ < 2 * kTiles) {
      const LoadOffset offset = piece_offset<kQ % 2>(matrix.row_bytes, row, step, oob_bits);
      fragments.piece[kQ / 2][kQ % 2] =
          buffer_load_b128<kStreamed>(matrix.payload, offset.lane, offset.scalar);
    } else {
      constexpr u32 kWord = kQ - 2 * kTiles;
      const LoadOffset offset = scale_offset<kWord>(matrix.scale_row_bytes, row, step, oob_bits);
      if constexpr (kShuffledScales) {
        fragments.scale[kWord] =
            buffer_load_dwords<1>(matrix.scales, offset.lane, offset.scalar).dword[0];
      } else {
        fragments.scale[kWord] = buffer_load_u8(matrix.scales, offset.lane, offset.scalar);
      }
    }
  }
  // The same for a piece of a preshuffled tile that begins at byte `start`, without multiplications
  // in the loop.
  template <u32 kQ>
  __device__ void load_piece(Fragments& fragments, const MatrixBytes& matrix, u32 start, u32 step,
                             bool in_bounds) const {
    static_assert(kShuffled && kQ < 2 * kTiles, "the weights must be preshuffled");
    constexpr u32 kH = kQ % 2, kPiece = kWaveSize * kVecBytes;
    const u32 lane = lane_id(), oob_bits = in_bounds ? 0 : kOutOfBounds;
    const u32 chunk = step * kRowChunks + lane / kTileRows + 4 * kH;
    const u32 offset = lane * kVecBytes + step * (kTileRows * kRowBytes);
    fragments.piece[kQ / 2][kH] = buffer_load_b128<kStreamed>(
        matrix.payload,
        (offset | k_oob_bits(chunk * (Format::kStepK / kRowChunks)) | oob_bits) + kH * kPiece,
        start);
  }
  // Returns the tile of load kQ.
  static constexpr u32 tile_of(u32 q) {
    if (q < 2 * kTiles) return q / 2;
    return (q - 2 * kTiles) * kTiles / kWords;
  }

  // Converts loaded data to MFMA fragments: one piece of MXFP4, or both of MX-FP8, is an operand.
  // Row-major data is exchanged through LDS. `row` is the tile's first row, used with a single
  // tile.
  __device__ void to_fragment(Fragments& fragments, u32 step, LdsBytes* staging,
                              u32 row = 0) const {
    if constexpr (!kShuffled) {
      const u32 lane = lane_id();
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
          const u32 row = lane / kRowChunks + h * (kTileRows / 2);
          *reinterpret_cast<RFOPS_LDS U32x4*>(staging + lds_offset_mxfp4(row, lane % kRowChunks)) =
              fragments.piece[t][h];
        }
        const u32 row = lane % kTileRows, chunk = lane / kTileRows;
        fragments.piece[t][0] = lds_load_b128(staging + lds_offset_mxfp4(row, chunk));
        fragments.piece[t][1] =
            lds_load_b128(staging + lds_offset_mxfp4(row, chunk + kRowChunks / 2));
      }
    }
    to_fragment_scales(fragments, step, row);
  }
  __device__ void to_fragment_scales(Fragments& fragments, u32 step, u32 row = 0) const {
    if constexpr (kShuffledScales) {
      if constexpr (kTiles == 1) fragments.scale[0] >>= row / kTileRows % 2 * 8;
      if constexpr (!kIsFp4) {  // selects this K-step's half of a dword
#pragma unroll
        for (u32 i = 0; i < kWords; ++i) fragments.scale[i] >>= step % 2 * 16;
      }
      if constexpr (kTail) {  // the padding of scales may be arbitrary
        const u32 block = step * kStepBlocks + lane_id() / kTileRows;
        const u32 low = block * kMxBlock < k_ ? 0xffffu : 0;
        const u32 high = (block + 4) * kMxBlock < k_ ? 0xffff0000u : 0;
#pragma unroll
        for (u32 i = 0; i < kWords; ++i) fragments.scale[i] &= low | high;
      }
    }
  }

  // The word, and the byte in it, of the scale of tile t's half h.
  static constexpr u32 word(u32 t, u32 h) {
    return kShuffledScales ? t / 2 : kIsFp4 ? t * 2 + h : t;
  }
  static constexpr u32 byte(u32 t, u32 h) { return kShuffledScales ? t % 2 + 2 * h : 0; }

  // Offsets of a load: the lane's part and the uniform part.
  struct LoadOffset {
    u32 lane, scalar;
  };
  // Offsets of piece kH. kPermuted: adjacent lanes load the chunks of a row swizzled as in
  // lds_offset_mxfp4.
  template <u32 kH, bool kPermuted = false>
  __device__ LoadOffset piece_offset(u32 row_bytes, u32 row, u32 step, u32 oob_bits) const {
    const u32 lane = lane_id(), row_stride = row_bytes;
    asm volatile("" : "+s"(row_bytes));  // recomputed, because scalar registers are too few
    u32 lane_offset, chunk, scalar = row * row_bytes;
    if constexpr (kShuffled) {
      chunk = lane / kTileRows + 4 * kH;
      lane_offset = lane * kVecBytes;
      scalar += step * (kTileRows * kRowBytes) + kH * (kWaveSize * kVecBytes);
    } else {
      chunk = lane % kRowChunks ^ (kPermuted ? lane / kRowChunks : 0);
      lane_offset = lane / kRowChunks * row_stride + chunk * kVecBytes;
      scalar += step * kRowBytes + kH * (kTileRows / 2) * row_bytes;
    }
    lane_offset |=
        k_oob_bits((step * kRowChunks + chunk) * (Format::kStepK / kRowChunks)) | oob_bits;
    return {lane_offset, scalar};
  }
  // Offsets of scale word kWord: per lane a dword of two tiles, or a byte.
  template <u32 kWord>
  __device__ LoadOffset scale_offset(u32 row_bytes, u32 row, u32 step, u32 oob_bits) const {
    const u32 lane = lane_id(), row_stride = row_bytes;
    asm volatile("" : "+s"(row_bytes));
    if constexpr (kShuffledScales) {
      const u32 row_begin = kTiles == 1 ? row & ~31u : row;
      return {lane * 4 | oob_bits,
              row_begin * row_bytes + step * kStepBlocks / 8 * (kWaveSize * 4)};
    } else {
      constexpr u32 kHalf = kWord % (kStepBlocks / 4);
      const u32 block = step * kStepBlocks + lane / kTileRows + 4 * kHalf;
      const u32 lane_offset = lane % kTileRows * row_stride + block;
      return {lane_offset | k_oob_bits(block * kMxBlock) | oob_bits, row * row_bytes};
    }
  }

 private:
  __device__ u32 k_oob_bits(u32 k) const {
    // By the sign bit, because masks of comparisons would fill scalar registers.
    static_assert(kOutOfBounds == 1u << 31, "kOutOfBounds must be an offset's highest bit");
    if constexpr (kTail) return ~(k - k_) & kOutOfBounds;
    return 0;
  }

  u32 k_;
};

}  // namespace rfops
