// A wave's 32 rows of a result on their way from matrix cores of 32 x 32 to memory through LDS, so
// that lanes side by side store what lies side by side, 16 bytes each.
//
// In LDS rows lie one after the other; chunk c of 16 bytes of row r is exchanged with c ^ f, where
// f counts rows that begin in the same banks. Four neighbours, which a lane has, are half a chunk:
// in every second eight rows halves are exchanged too. Neither writes nor reads have a bank
// conflict.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// kColumns of a wave, of 16 bits each.
template <class Out, u32 kColumns>
class WaveStore32 {
  static constexpr u32 kRows = 32, kRowSize = kColumns * sizeof(Out);
  static constexpr u32 kChunks = kRowSize / kVecBytes, kAtOnce = kWaveSize / kChunks;
  static constexpr u32 kSpread = kRowBytes / kRowSize;  // rows before the banks come again
  static_assert(sizeof(Out) == 2 && (kColumns == 32 || kColumns == 64), "64 or 128 bytes a row");

  static constexpr u32 half_of(u32 row) { return row / 8 % 2; }
  static constexpr u32 at(u32 row, u32 chunk) {
    return row * kRowSize + (chunk ^ row / kSpread % kChunks) * kVecBytes;
  }
  static constexpr u32 put_at(u32 lane) {
    return at(lane % kRows, 0) + (lane / kRows ^ half_of(lane % kRows)) * 8;
  }
  static constexpr u32 fetch_at(u32 lane) { return at(lane / kChunks, lane % kChunks); }
  static constexpr u32 kPutPhases[] = {details::lanes(0, 15), details::lanes(16, 31)};
  static constexpr bool has_no_conflict() {
    return details::conflict_free<8>(kPutPhases, 32, [](u32 l) { return put_at(l); }) &&
           details::conflict_free(details::kReadPhases, 32, [](u32 l) { return fetch_at(l); });
  }

 public:
  static constexpr u32 kBytes = kRows * kRowSize;  // of LDS, a wave's own

  // Rows of row_bytes, a multiple of 16, in `buffer`, columns from `column` on; of these there are
  // n, a multiple of 8.
  __device__ WaveStore32(Buffer buffer, u32 lane, u32 column, u32 n, u32 row_bytes, LdsBytes* lds)
      : buffer_(buffer), lane_(lane), row_bytes_(row_bytes), lds_(lds) {
    static_assert(has_no_conflict());
    const u32 own = column + lane % kChunks * (kVecBytes / sizeof(Out));
    to_ = own < n ? lane / kChunks * row_bytes + own * sizeof(Out) : kOutOfBounds;
  }
  // four_of(j, q): what the lane has of tile j of 32 columns, 8 q from its first on. Rows of the
  // buffer from `row` on.
  template <class FourOf>
  __device__ void store(u32 row, FourOf four_of) const {
    u32 to = put_at(lane_);
    force_vgpr(to);
#pragma unroll
    for (u32 j = 0; j < kColumns / kRows; ++j) {
#pragma unroll
      for (u32 q = 0; q < 4; ++q) {
        *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + (to ^ (j * 4 + q) * kVecBytes)) =
            __builtin_convertvector(four_of(j, q), Vec4<Out>);
      }
    }
    sched_barrier();
#pragma unroll
    for (u32 read = 0; read < kRows / kAtOnce; ++read) {
      const u32 first = read * kAtOnce;
      const U32x4 got = lds_load_b128(lds_ + first * kRowSize + fetch_at(lane_));
      const bool is_turned = half_of(first + lane_ / kChunks) != 0;
      const U32x4 whole = is_turned ? __builtin_shufflevector(got, got, 2, 3, 0, 1) : got;
      // The place in a vector register: else the compiler counts no wait states behind the store.
      __builtin_amdgcn_raw_buffer_store_b128(whole, buffer_.rsrc, to_ + (row + first) * row_bytes_,
                                             0, 0);
    }
    sched_barrier();
  }

 private:
  Buffer buffer_;
  u32 lane_, row_bytes_, to_;
  LdsBytes* lds_;
};

}  // namespace rfops
