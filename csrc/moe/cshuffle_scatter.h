// A wave's 64 columns of rows that lie anywhere, 16 rows at a time, on their way to memory through
// LDS, so that 8 lanes side by side store 128 bytes of a row (cshuffle_16x16.h has rows one after
// the other, and says how chunks lie in LDS).
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <class Out>
class ScatteredStore {
 public:
  static constexpr u32 kRowSize = kRowBytes, kElements = kVecBytes / sizeof(Out);
  static constexpr u32 kBytes = kTileRows * kRowSize;  // of LDS, a wave's own
  static constexpr u32 kNoRow = ~0u;
  static_assert(sizeof(Out) == 2, "64 columns are 128 bytes");

  // Row r goes to row to[r] of [.., n], from `column` on; kNoRow nowhere. n is a multiple of 8.
  __device__ ScatteredStore(Out* out, const RFOPS_LDS u32* to, u32 n, u32 column, LdsBytes* lds)
      : out_(out),
        to_(to),
        n_(n),
        column_(column + lane_id() % kRowChunks * kElements),
        lds_(lds) {}

  // Sums of 16 rows and of 16 columns from 16 `tile` on, as the matrix cores give them.
  __device__ void put(u32 tile, F32x4 sum) const {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 at =
        ((tile * 2 + quarter / 2) ^ row % kRowChunks) * kVecBytes + (quarter % 2 ^ row / 8) * 8;
    *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + row * kRowSize + at) =
        __builtin_convertvector(sum, Vec4<Out>);
  }

  // Rows 16 `tile` on.
  __device__ void store(u32 tile) const {
    constexpr u32 kAtOnce = kWaveSize / kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kTileRows / kAtOnce; ++i) {
      const u32 row = i * kAtOnce + lane_id() / kRowChunks;
      const u32 chunk = lane_id() % kRowChunks ^ row % kRowChunks;
      U32x4 got = lds_load_b128(lds_ + row * kRowSize + chunk * kVecBytes);
      if (i * kAtOnce >= 8) got = __builtin_shufflevector(got, got, 2, 3, 0, 1);
      const u32 to = to_[tile * kTileRows + row];
      if (to != kNoRow && column_ < n_) {
        *reinterpret_cast<U32x4*>(out_ + u64{to} * n_ + column_) = got;
      }
    }
  }

 private:
  Out* out_;
  const RFOPS_LDS u32* to_;
  u32 n_, column_;
  LdsBytes* lds_;
};

}  // namespace rfops
