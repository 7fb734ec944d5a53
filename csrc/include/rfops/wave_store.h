// A wave's part of the result on its way to memory through LDS, 16 rows at a time, so that lanes
// side by side store what lies side by side, 16 bytes each.
//
// In LDS chunk c of 16 bytes of row r lies at chunk c ^ r % 16 (or % 8). Of 16-bit elements four
// neighbours, which a lane has, are half a chunk: in rows from 8 on halves are exchanged. So
// neither the writes of a tile, 16 rows at once, nor the reads of whole chunks have a bank
// conflict.
#pragma once

#include "rfops/lds_tile.h"
#include "rfops/matrix.h"
#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

// kColumns of a wave's columns.
template <class Out, u32 kColumns>
class WaveStore {
 public:
  static constexpr u32 kRowSize = kColumns * sizeof(Out);
  static constexpr u32 kChunks = kRowSize / kVecBytes, kElements = kVecBytes / sizeof(Out);
  static constexpr u32 kSwizzled = kChunks < kTileRows ? kChunks : kTileRows;
  static constexpr u32 kRowsAtOnce = kWaveSize / kChunks;
  static constexpr u32 kBytes = kTileRows * kRowSize;  // of LDS, a wave's own
  static_assert(kChunks >= 8 && kWaveSize % kChunks == 0 && kRowsAtOnce <= 8,
                "whole rows of 128 bytes or more in a read");

  // Of [m, n], at most `most` rows from `row` on, columns from `column` on.
  __device__ WaveStore(Out* out, u32 row, u32 m, u32 most, u32 n, u32 column, LdsBytes* lds)
      : n_(n), lds_(lds) {
    const u32 own = row < m ? (m - row < most ? m - row : most) : 0;
    buffer_ = make_buffer(out + u64{row} * n, own * n * sizeof(Out));
    const u32 lane = lane_in_wave();
    column_ = column + lane % kChunks * kElements;
    to_ = (lane / kChunks * n + column_) * sizeof(Out);
    is_aligned_ = (u64{n} * sizeof(Out) | reinterpret_cast<u64>(out)) % kVecBytes == 0;
  }

  // Sums of 16 rows and of 16 columns from 16 `tile` on, as the matrix cores give them.
  __device__ void put(u32 tile, F32x4 sum) const {
    using Out4 = Out __attribute__((ext_vector_type(4)));
    const u32 lane = lane_in_wave(), row = lane % kTileRows, quarter = lane / kTileRows;
    u32 at;
    if constexpr (sizeof(Out) == 4) {
      at = ((tile * 4 + quarter) ^ row % kSwizzled) * kVecBytes;
    } else {
      at = ((tile * 2 + quarter / 2) ^ row % kSwizzled) * kVecBytes + (quarter % 2 ^ row / 8) * 8;
    }
    *reinterpret_cast<RFOPS_LDS Out4*>(lds_ + row * kRowSize + at) =
        __builtin_convertvector(sum, Out4);
  }

  // The 16 rows, to rows 16 `tile` on.
  __device__ void store(u32 tile) const {
    const u32 lane = lane_in_wave();
#pragma unroll
    for (u32 i = 0; i < kTileRows / kRowsAtOnce; ++i) {
      const u32 row = i * kRowsAtOnce + lane / kChunks;
      const u32 chunk = lane % kChunks ^ row % kSwizzled;
      U32x4 got = lds_load_16(lds_ + row * kRowSize + chunk * kVecBytes);
      if (sizeof(Out) == 2 && i * kRowsAtOnce >= 8) {
        got = __builtin_shufflevector(got, got, 2, 3, 0, 1);
      }
      const u32 from = (tile * kTileRows + i * kRowsAtOnce) * n_ * sizeof(Out);
      if (is_aligned_) {
        store_chunk(got, from);
      } else {
        store_elements(got, from);
      }
    }
  }

 private:
  __device__ void store_chunk(U32x4 got, u32 from) const {
    const u32 at = column_ < n_ ? to_ : kOutside;
    __builtin_amdgcn_raw_buffer_store_b128(got, buffer_.rsrc, at, from, 0);
  }
  __device__ void store_elements(U32x4 got, u32 from) const {
#pragma unroll
    for (u32 e = 0; e < kElements; ++e) {
      const u32 at = column_ + e < n_ ? to_ + e * sizeof(Out) : kOutside;
      if constexpr (sizeof(Out) == 4) {
        __builtin_amdgcn_raw_buffer_store_b32(got[e], buffer_.rsrc, at, from, 0);
      } else {
        const u16 half = static_cast<u16>(got[e / 2] >> e % 2 * 16);
        __builtin_amdgcn_raw_buffer_store_b16(half, buffer_.rsrc, at, from, 0);
      }
    }
  }

  Buffer buffer_;
  u32 n_, column_, to_;
  bool is_aligned_;
  LdsBytes* lds_;
};

}  // namespace rfops
