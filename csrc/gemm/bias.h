// Bias row that is added to each row of the output; a lane loads four neighbours.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// Bias of shape [n] and type T; void means none. Elements from n on are 0.
template <class T>
class BiasRow {
 public:
  __device__ BiasRow(const void* bias, u32 n) : buffer_(make_buffer(bias, n * sizeof(T))) {}

  __device__ F32x4 load(u32 column) const {
    F32x4 v4;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
      const u32 offset = (column + e) * sizeof(T);
      if constexpr (sizeof(T) == 4) {
        v4[e] = __builtin_bit_cast(
            f32, __builtin_amdgcn_raw_buffer_load_b32(buffer_.rsrc, offset, 0, kCached));
      } else {
        v4[e] = static_cast<f32>(__builtin_bit_cast(
            T, __builtin_amdgcn_raw_buffer_load_b16(buffer_.rsrc, offset, 0, kCached)));
      }
    }
    return v4;
  }

 private:
  Buffer buffer_;
};

template <>
class BiasRow<void> {
 public:
  __device__ BiasRow(const void*, u32) {}
  __device__ F32x4 load(u32) const { return {}; }
};

}  // namespace rfops
