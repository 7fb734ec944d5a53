// A wave's part of the result on its way from accumulation registers to memory, in pieces that fit
// between matrix instructions: 16 rows of fp32 through LDS, from which lanes side by side take what
// lies side by side in memory, 8 elements each. At most kMost rows from one `aim` to the next.
//
// In LDS chunk c of 16 bytes of row r lies at chunk c ^ r: neither the writes of a tile, 16 rows at
// once, nor the reads of 4 rows, every other chunk, have a bank conflict. The caller aligns the
// result, its rows and LDS to 16 bytes.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <class Out, u32 kColumns, u32 kMost>
class InterleavedStore {
  using Out4 = Out __attribute__((ext_vector_type(4)));

 public:
  static constexpr u32 kReads = 4;                                 // of 4 rows each
  static constexpr u32 kLds = kTileRows * kColumns * sizeof(f32);  // bytes, a wave's own
  static_assert(kColumns == 128, "16 lanes a row");

  __device__ explicit InterleavedStore(const LdsBytes* lds) {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 base = lds_address(lds);
    put_at_ = base + row * kBytes + (quarter ^ row) * kVecBytes;
    fetch_at_ = base + quarter * kBytes + (row * 2 ^ quarter) * kVecBytes;
  }
  // What follows leaves for columns from `column` on of n.
  __device__ void aim_columns(u32 column, u32 n) {
    u32 lane = lane_id();
    asm volatile("" : "+v"(lane));  // now: what it comes from would take registers until later
    const u32 first = lane % kTileRows * 8;
    at_ = first + column < n ? (lane / kTileRows * n + first) * sizeof(Out) : kOutOfBounds;
  }
  // And for rows from `row` on of [m, n].
  __device__ void aim(Out* out, u32 m, u32 n, u32 row, u32 column) {
    const u32 own = row < m ? m - row : 0, most = own < kMost ? own : kMost;
    row_bytes_ = n * sizeof(Out);
    buffer_ = make_buffer(out + (u64{row} * n + column),
                          most && column < n ? most * row_bytes_ - column * sizeof(Out) : 0);
  }
  __device__ void put(u32 j, F32x4 sum) const {
    *(RFOPS_LDS F32x4*)(put_at_ ^ j * (4 * kVecBytes)) = sum;
  }
  // The low and the high half of 8 elements, of 4 rows.
  __device__ void fetch_low(u32 read) {
    low_ = *(RFOPS_LDS F32x4*)((fetch_at_ ^ read * (4 * kVecBytes)) + read * (4 * kBytes));
  }
  __device__ void fetch_high(u32 read) {
    high_ = *(RFOPS_LDS F32x4*)((fetch_at_ ^ (read * 4 + 1) * kVecBytes) + read * (4 * kBytes));
  }
  // What was fetched becomes elements of `out`; a store is read `read` of rows from 16 i on.
  __device__ void convert_low() { out_low_ = __builtin_convertvector(low_, Out4); }
  __device__ void convert_high() { out_high_ = __builtin_convertvector(high_, Out4); }
  __device__ void store(u32 i, u32 read) const {
    const u32 from = (i * kTileRows + read * 4) * row_bytes_;
    if constexpr (sizeof(Out) == 4) {
      put_16(out_low_, from, 0);
      put_16(out_high_, from, kVecBytes);
    } else {
      put_16(__builtin_shufflevector(out_low_, out_high_, 0, 1, 2, 3, 4, 5, 6, 7), from, 0);
    }
  }

 private:
  static constexpr u32 kBytes = kColumns * sizeof(f32);
  template <class T>
  __device__ void put_16(T value, u32 from, u32 further) const {
    __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(U32x4, value), buffer_.rsrc,
                                           at_ + further, from, 0);
  }
  Buffer buffer_;
  u32 put_at_, fetch_at_, at_, row_bytes_;
  F32x4 low_, high_;
  Out4 out_low_, out_high_;
};

}  // namespace rfops
