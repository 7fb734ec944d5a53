// LDS-shuffled store of a wave's 64 columns to scattered rows, 16 rows at a time: 8 adjacent lanes
// store 128 bytes of a row. The LDS layout is that of cshuffle_16x16.h, which stores contiguous
// rows.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <class Out>
class ScatteredStore {
 public:
  static constexpr u32 kRowSize = kRowBytes, kElements = kVecBytes / sizeof(Out);
  static constexpr u32 kBytes = kTileRows * kRowSize;  // of LDS per wave
  static constexpr u32 kNoRow = ~0u;
  static_assert(sizeof(Out) == 2, "64 columns are 128 bytes");

  // Row r is stored to row dst_rows[r] of out [.., n], from `column` on; rows with kNoRow are not
  // stored. n is a multiple of 8.
  __device__ ScatteredStore(Out* out, const RFOPS_LDS u32* dst_rows, u32 n, u32 column,
                            LdsBytes* lds)
      : out_(out),
        dst_rows_(dst_rows),
        n_(n),
        column_(column + lane_id() % kRowChunks * kElements),
        lds_(lds) {}

  // Writes the accumulator of 16 rows by the 16 columns from 16 `tile` on to LDS.
  __device__ void write(u32 tile, F32x4 sum) const {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 chunk_offset =
        ((tile * 2 + quarter / 2) ^ row % kRowChunks) * kVecBytes + (quarter % 2 ^ row / 8) * 8;
    *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + row * kRowSize + chunk_offset) =
        __builtin_convertvector(sum, Vec4<Out>);
  }

  // Stores the 16 rows in LDS to the destinations of rows 16 `tile` on.
  __device__ void store(u32 tile) const {
    constexpr u32 kRowsPerStore = kWaveSize / kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kTileRows / kRowsPerStore; ++i) {
      const u32 row = i * kRowsPerStore + lane_id() / kRowChunks;
      const u32 chunk = lane_id() % kRowChunks ^ row % kRowChunks;
      U32x4 chunk_data = lds_load_b128(lds_ + row * kRowSize + chunk * kVecBytes);
      if (i * kRowsPerStore >= 8)
        chunk_data = __builtin_shufflevector(chunk_data, chunk_data, 2, 3, 0, 1);
      const u32 dst_row = dst_rows_[tile * kTileRows + row];
      if (dst_row != kNoRow && column_ < n_) {
        *reinterpret_cast<U32x4*>(out_ + u64{dst_row} * n_ + column_) = chunk_data;
      }
    }
  }

 private:
  Out* out_;
  const RFOPS_LDS u32* dst_rows_;
  u32 n_, column_;
  LdsBytes* lds_;
};

}  // namespace rfops
