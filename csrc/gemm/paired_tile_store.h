// Stores tiles of 16 x 16 accumulators to a row-major output, two neighbours along N at a time
// (gfx950).
//
// A lane holds four neighbours of a row of each tile. Of two tiles of 16-bit elements
// v_permlane16_swap gives it eight of one, so that four lanes store 64 bytes of a row with one
// instruction, half as many stores as of single tiles. Rows that are not aligned for it, and tiles
// of f32, are stored as by row_major_store.h.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/store/row_major_store.h"

namespace rfops {

// Rows of a row-major output that one workgroup stores; at most 2 GiB.
template <class Out>
class PairedTileStore {
 public:
  // Of at most max_rows rows of out[m, n] from `row` on.
  __device__ PairedTileStore(Out* out, u32 row, u32 m, u32 max_rows, u32 n)
      : out_(out), row_(row), m_(m), max_rows_(max_rows), n_(n) {}

  // Stores kMTiles x kNTiles tiles from row `row` of these and from `column` on, a multiple of 8;
  // value(i, j) is what the lane holds of one. Drops what is out of bounds.
  template <u32 kMTiles, u32 kNTiles, class Value>
  __device__ void store(u32 row, u32 column, Value value) const {
    static_assert(kNTiles % 2 == 0, "a whole number of pairs");
    const u32 lane_row = row + lane_id() % kTileRows, quad = lane_id() / kTileRows;
    if constexpr (sizeof(Out) == 2) {
      const u32 row_bytes = n_ * sizeof(Out);
      if ((row_bytes | static_cast<u32>(reinterpret_cast<u64>(out_))) % kVecBytes == 0) {
        const u32 num_rows = m_ - row_ < max_rows_ ? m_ - row_ : max_rows_;
        const Buffer buffer = make_buffer(out_ + u64{row_} * n_, num_rows * row_bytes);
#pragma unroll
        for (u32 j = 0; j < kNTiles; j += 2) {
          const u32 col = column + (j + quad % 2) * kTileRows + quad / 2 * 8;
          u32 oob_bits = col < n_ ? 0 : kOutOfBounds;
          force_vgpr(oob_bits);  // otherwise the compiler makes branches of it
#pragma unroll
          for (u32 i = 0; i < kMTiles; ++i) {
            const u32 offset = (lane_row + i * kTileRows) * row_bytes + col * sizeof(Out);
            __builtin_amdgcn_raw_buffer_store_b128(pair(value(i, j), value(i, j + 1)), buffer.rsrc,
                                                   offset | oob_bits, 0, 0);
          }
        }
        return;
      }
    }
    OutputView<Out>(out_, row_, m_, max_rows_, n_).store([&](auto store_four) {
#pragma unroll
      for (u32 j = 0; j < kNTiles; ++j) {
#pragma unroll
        for (u32 i = 0; i < kMTiles; ++i) {
          store_four(value(i, j), lane_row + i * kTileRows, column + j * kTileRows + quad * 4);
        }
      }
    });
  }

 private:
  // Returns eight neighbours of a row: lanes of even quads have those of `even`, the others those
  // of `odd`.
  __device__ static U32x4 pair(F32x4 even, F32x4 odd) {
    const U32x2 a = __builtin_bit_cast(U32x2, __builtin_convertvector(even, Vec4<Out>));
    const U32x2 b = __builtin_bit_cast(U32x2, __builtin_convertvector(odd, Vec4<Out>));
    const auto low = __builtin_amdgcn_permlane16_swap(a[0], b[0], false, false);
    const auto high = __builtin_amdgcn_permlane16_swap(a[1], b[1], false, false);
    return {low[0], high[0], low[1], high[1]};
  }

  Out* out_;
  u32 row_, m_, max_rows_, n_;
};

}  // namespace rfops
