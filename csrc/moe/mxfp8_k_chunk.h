// K chunks of MX-FP8 operands of scaled MFMAs (mfma_mxfp8.h), loaded from row-major memory.
//
// A chunk is 128 of K, one MFMA, with scales that are loaded byte by byte; or 256, two MFMAs, of
// its 64-byte pieces (0, 2) and (1, 3): the two scale bytes that a lane supplies are then 2 apart
// in one dword, so that one load and one shift serve both. K may end within a chunk of 128, but not
// of 256. Bytes beyond K (the next row's scales, possibly NaN) are loaded as zero.
//
// A tile has 16 rows; or 8, and is folded: lanes with l % 16 >= 8 hold the same rows one chunk of K
// later. Of the accumulators of two folded tiles, the two diagonal quarters are partials of the
// result and the other two are unused. That doubles the number of tiles for the same bytes and
// MFMAs.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp8.h"

namespace rfops {

template <u32 kRows, u32 kChunk>
struct MxChunk {
  static_assert(kRows == 16 || kRows == 8, "a tile of an MFMA, or half of one");
  static_assert(kChunk == 128 || kChunk == 256, "a lane's scales are a byte or a dword");
  static constexpr u32 kCount = kChunk / kTileK;      // MFMAs per chunk
  static constexpr u32 kFold = kTileRows / kRows;     // chunks in one MFMA
  static constexpr u32 kStepK = kChunk * kFold;       // elements of K that they cover
  static constexpr u32 kHolders = kRows * kRows / 4;  // lanes that hold a tile's result, 4 each

  u32 row, quarter, chunk;  // a lane's row of the tile, quarter of an MFMA's K, chunk of the fold

  __device__ explicit MxChunk(u32 lane)
      : row(lane % kRows), quarter(lane / kTileRows), chunk(lane % kTileRows / kRows) {}

  // Returns the offsets of the lane's first payload and first scale of a row that begins at the
  // given offsets. kOutOfBounds stays out of bounds whatever is added.
  struct ChunkOffsets {
    u32 payload, scale;
  };
  __device__ ChunkOffsets offsets(u32 payload, u32 scale) const {
    const u32 block = kCount == 2 ? quarter / 2 * 4 : quarter;
    return {payload + chunk * kChunk + quarter * kVecBytes,
            scale + chunk * kChunk / kMxBlock + block};
  }

  // Out-of-bounds bits to be or-ed to offsets: kOutOfBounds for the parts of a K-step beyond K.
  struct OobBits {
    u32 low, high, scale;
  };
  __device__ OobBits oob_bits(u32 step_k, u32 k) const {
    const u32 chunk_k = step_k + chunk * kChunk;
    const auto flag = [&](u32 position) { return position < k ? 0 : kOutOfBounds; };
    if constexpr (kCount == 2) return {flag(chunk_k), flag(chunk_k), flag(chunk_k)};
    const u32 low = chunk_k + quarter * kVecBytes;
    return {flag(low), flag(low + kPieceK), flag(chunk_k + quarter * kMxBlock)};
  }

  // Loads the chunk of a row from `k` on; rows are in the lane's offset, which is range-checked.
  template <CacheHint kHint = kCached>
  __device__ static void load(Fragment (&tiles)[kCount], const Buffer& buffer, u32 payload,
                              const OobBits& oob, u32 k) {
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) {
      tiles[i].low = buffer_load_b128<kHint>(buffer, payload | oob.low, k + i * kPieceK);
      tiles[i].high =
          buffer_load_b128<kHint>(buffer, payload | oob.high, k + (kCount + i) * kPieceK);
    }
  }

  // Loads the scales of a chunk; own_scales moves those of the lane's first MFMA to byte 0 and
  // those of its second to byte 2.
  __device__ static u32 load_scales(const Buffer& buffer, u32 scale, const OobBits& oob, u32 k) {
    const u32 lane = scale | oob.scale;
    if constexpr (kCount == 1) return buffer_load_u8(buffer, lane, k / kMxBlock);
    return buffer_load_dwords<1>(buffer, lane, k / kMxBlock).dword[0];
  }
  __device__ u32 own_scales(u32 loaded) const {
    return kCount == 1 ? loaded : loaded >> (quarter % 2 * 8);
  }

  // Returns c + a * b^T of a chunk.
  __device__ static F32x4 multiply(const Fragment (&a)[kCount], u32 a_scale,
                                   const Fragment (&b)[kCount], u32 b_scale, F32x4 c) {
    c = mfma_mxfp8_16x16x128<0>(a[0], a_scale, b[0], b_scale, c);
    if constexpr (kCount == 2) c = mfma_mxfp8_16x16x128<2>(a[1], a_scale, b[1], b_scale, c);
    return c;
  }

  // Returns whether the lane holds a part of the result; `holder` its index among those that do:
  // the lane has 4 adjacent values along a's rows, from 4 * (holder / kRows) on, of b's row holder
  // % kRows. There are kFold partials.
  __device__ bool is_holder() const { return quarter / kQuarters == chunk; }
  __device__ u32 holder() const { return quarter % kQuarters * kRows + row; }

 private:
  static constexpr u32 kQuarters = 4 / kFold;
};

}  // namespace rfops
