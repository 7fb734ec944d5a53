// Stores accumulators to the rows of a row-major output.
//
// A lane stores four neighbours of a row with one instruction if all rows are aligned for it,
// otherwise one by one. The descriptor's range check drops rows and columns beyond the end, without
// branches.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// Returns the low bits of the row addresses that prevent storing four neighbours at once; 0 if they
// can be.
template <class Out>
__device__ inline u32 misaligned_bits(const Out* out, u32 n) {
  return (n * static_cast<u32>(sizeof(Out)) | static_cast<u32>(reinterpret_cast<u64>(out))) %
         sizeof(Vec4<Out>);
}

// Returns whether four neighbours of any row, of n elements each, can be stored at once.
template <class Out>
__device__ inline bool are_rows_aligned(const Out* out, u32 n) {
  return misaligned_bits(out, n) == 0;
}

// Stores four neighbours of a row at any address, also beyond 2 GiB, with branches. Requires column
// < n; elements from column n on are dropped.
template <class Out>
__device__ inline void store_x4(Out* row, F32x4 sums, u32 column, u32 n, bool is_aligned) {
  const Vec4<Out> values = __builtin_convertvector(sums, Vec4<Out>);
  if (is_aligned) {
    *reinterpret_cast<Vec4<Out>*>(row + column) = values;
    return;
  }
#pragma unroll
  for (u32 e = 0; e < 4; ++e) {
    if (column + e < n) row[column + e] = values[e];
  }
}

// Rows of a row-major output that one workgroup stores; at most 2 GiB.
template <class Out>
class OutputView {
 public:
  // View of at most max_rows rows of out[m, n] from `row` on.
  __device__ OutputView(Out* out, u32 row, u32 m, u32 max_rows, u32 n)
      : n_(n), row_bytes_(n * sizeof(Out)) {
    const u32 num_rows = m - row < max_rows ? m - row : max_rows;
    buffer_ = make_buffer(out + u64{row} * n, num_rows * row_bytes_);
    misaligned_ = misaligned_bits(out, n);
  }

  // Returns the offset of four neighbours that are stored at once. It is materialised here, so that
  // a caller can compute it while loads are in flight.
  __device__ u32 make_offset(u32 row, u32 column) const {
    u32 offset = element_offset(row, column);
    force_vgpr(offset);
    return offset;
  }

  // Materialises the alignment of the rows, for the same reason.
  __device__ void force_alignment() { force_sgpr(misaligned_); }

  // Calls store_of(store) once, with the store for aligned or for unaligned rows. store(sum, row,
  // column) stores four neighbours and drops those out of bounds; store(sum, row, column, offset)
  // takes the result of make_offset.
  template <class StoreOf>
  __device__ void store(StoreOf store_of) const {
    if (misaligned_ == 0) {
      store_of([&](F32x4 sum, u32 row, u32 column, auto... offset) {
        const Vec4<Out> values = __builtin_convertvector(sum, Vec4<Out>);
        if constexpr (sizeof...(offset) == 0) {
          store_whole(values, element_offset(row, column));
        } else {
          store_whole(values, offset...);
        }
      });
    } else {
      store_of([&](F32x4 sum, u32 row, u32 column, auto...) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          store_one(static_cast<Out>(sum[e]), element_offset(row, column + e));
        }
      });
    }
  }

 private:
  __device__ u32 element_offset(u32 row, u32 column) const {
    u32 oob_bits = column < n_ ? 0 : kOutOfBounds;
    force_vgpr(oob_bits);  // otherwise the compiler makes branches of it
    return (row * row_bytes_ + column * sizeof(Out)) | oob_bits;
  }
  __device__ void store_whole(Vec4<Out> values, u32 offset) const {
    if constexpr (sizeof(Out) == 4) {
      __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(U32x4, values), buffer_.rsrc,
                                             offset, 0, 0);
    } else {
      __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(U32x2, values), buffer_.rsrc, offset,
                                            0, 0);
    }
  }
  __device__ void store_one(Out value, u32 offset) const {
    if constexpr (sizeof(Out) == 4) {
      __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(u32, value), buffer_.rsrc, offset, 0,
                                            0);
    } else {
      __builtin_amdgcn_raw_buffer_store_b16(__builtin_bit_cast(u16, value), buffer_.rsrc, offset, 0,
                                            0);
    }
  }

  Buffer buffer_;
  u32 n_, row_bytes_;
  u32 misaligned_;
};

}  // namespace rfops
