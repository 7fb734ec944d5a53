// LDS-shuffled store of a wave's 16 x 16 output tiles: accumulators go through LDS, 16 rows at a
// time, so that adjacent lanes store adjacent addresses, 16 bytes per lane.
//
// In LDS the 16-byte chunk c of row r is at chunk c ^ r % 16 (or % 8). Four 16-bit elements, which
// a lane holds of a row, are half a chunk; in rows from 8 on the two halves of a chunk are
// exchanged. So neither the writes of a tile (16 rows at once) nor the reads of whole chunks have a
// bank conflict.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// kColumns: output columns per wave.
template <class Out, u32 kColumns>
class WaveStore {
 public:
  static constexpr u32 kRowSize = kColumns * sizeof(Out);
  static constexpr u32 kChunks = kRowSize / kVecBytes, kElements = kVecBytes / sizeof(Out);
  static constexpr u32 kSwizzled = kChunks < kTileRows ? kChunks : kTileRows;
  static constexpr u32 kRowsPerRead = kWaveSize / kChunks;
  static constexpr u32 kBytes = kTileRows * kRowSize;  // LDS per wave
  static_assert(kChunks >= 8 && kWaveSize % kChunks == 0 && kRowsPerRead <= 8,
                "a read covers whole rows of at least 128 bytes");

  // Stores to out[m, n]: at most max_rows rows from `row` on, columns from `column` on. `lds` is
  // kBytes of LDS that no other wave uses.
  __device__ WaveStore(Out* out, u32 row, u32 m, u32 max_rows, u32 n, u32 column, LdsBytes* lds)
      : n_(n), lds_(lds) {
    const u32 num_rows = row < m ? (m - row < max_rows ? m - row : max_rows) : 0;
    buffer_ = make_buffer(out + u64{row} * n, num_rows * n * sizeof(Out));
    const u32 lane = lane_id();
    column_ = column + lane % kChunks * kElements;
    lane_offset_ = (lane / kChunks * n + column_) * sizeof(Out);
    is_aligned_ = (u64{n} * sizeof(Out) | reinterpret_cast<u64>(out)) % kVecBytes == 0;
  }

  // Stores 16 kTiles16 rows. sum_of(i, j) returns the accumulator of the tile at row 16 i, column
  // 16 j. Each 16 rows are read back from LDS before the writes of the next 16, and stored after
  // them: LDS serves the accesses of one wave in order.
  template <u32 kTiles16, class SumOf>
  __device__ void store(SumOf sum_of) const {
    is_aligned_ ? store_tiles<true, kTiles16>(sum_of) : store_tiles<false, kTiles16>(sum_of);
  }

 private:
  static constexpr u32 kReads = kTileRows / kRowsPerRead;
  static constexpr u32 kTilesOfColumns = kColumns / kTileRows;

  template <bool kAligned, u32 kTiles16, class SumOf>
  __device__ void store_tiles(SumOf sum_of) const {
    u32 row_offset = 0;
    write_rows(sum_of, 0);
#pragma unroll
    for (u32 i = 0; i < kTiles16; ++i) {
      U32x4 values[kReads];
#pragma unroll
      for (u32 r = 0; r < kReads; ++r) values[r] = read_chunk(r);
      sched_barrier();
      if (i + 1 < kTiles16) write_rows(sum_of, i + 1);
      sched_barrier();
#pragma unroll
      for (u32 r = 0; r < kReads; ++r) {
        kAligned ? store_chunk(values[r], row_offset) : store_elements(values[r], row_offset);
        row_offset += kRowsPerRead * n_ * sizeof(Out);
        asm volatile("" : "+s"(row_offset));  // one offset after the other, because SGPRs are few
      }
    }
  }
  template <class SumOf>
  __device__ void write_rows(SumOf sum_of, u32 i) const {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
#pragma unroll
    for (u32 j = 0; j < kTilesOfColumns; ++j) {
      u32 chunk_offset;
      if constexpr (sizeof(Out) == 4) {
        chunk_offset = ((j * 4 + quarter) ^ row % kSwizzled) * kVecBytes;
      } else {
        chunk_offset =
            ((j * 2 + quarter / 2) ^ row % kSwizzled) * kVecBytes + (quarter % 2 ^ row / 8) * 8;
      }
      *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + row * kRowSize + chunk_offset) =
          __builtin_convertvector(sum_of(i, j), Vec4<Out>);
    }
  }
  __device__ U32x4 read_chunk(u32 read) const {
    const u32 lane = lane_id(), row = read * kRowsPerRead + lane / kChunks;
    const u32 chunk = lane % kChunks ^ row % kSwizzled;
    const U32x4 values = lds_load_b128(lds_ + row * kRowSize + chunk * kVecBytes);
    const bool has_swapped_halves = sizeof(Out) == 2 && read * kRowsPerRead >= 8;
    return has_swapped_halves ? __builtin_shufflevector(values, values, 2, 3, 0, 1) : values;
  }
  __device__ void store_chunk(U32x4 values, u32 row_offset) const {
    const u32 offset = column_ < n_ ? lane_offset_ : kOutOfBounds;
    __builtin_amdgcn_raw_buffer_store_b128(values, buffer_.rsrc, offset, row_offset, 0);
  }
  __device__ void store_elements(U32x4 values, u32 row_offset) const {
#pragma unroll
    for (u32 e = 0; e < kElements; ++e) {
      const u32 offset = column_ + e < n_ ? lane_offset_ + e * sizeof(Out) : kOutOfBounds;
      if constexpr (sizeof(Out) == 4) {
        __builtin_amdgcn_raw_buffer_store_b32(values[e], buffer_.rsrc, offset, row_offset, 0);
      } else {
        const u16 half = static_cast<u16>(values[e / 2] >> e % 2 * 16);
        __builtin_amdgcn_raw_buffer_store_b16(half, buffer_.rsrc, offset, row_offset, 0);
      }
    }
  }

  Buffer buffer_;
  u32 n_, column_, lane_offset_;
  bool is_aligned_;
  LdsBytes* lds_;
};

}  // namespace rfops
