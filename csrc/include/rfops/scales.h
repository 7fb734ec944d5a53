// Scales of FP8 blocks: fp32, of 1 x 128 of x and of 128 x 128 of w, each in any order.
#pragma once

#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

constexpr u32 kScaleRows = 128;  // of w that share a scale

// [rows, K/128] with any strides, of a workgroup's rows and its part of K.
struct RowScales {
  const f32* first;
  u32 row_step, k_step;  // bytes
  u32 bytes;             // to the end of the last that is there

  __device__ RowScales(const f32* scales, u32 row, u32 rows, u32 most, u32 row_stride, u32 k_stride,
                       u32 block, u32 blocks)
      : first(scales + u64{row} * row_stride + u64{block} * k_stride),
        row_step(row_stride * sizeof(f32)),
        k_step(k_stride * sizeof(f32)) {
    const u32 own = rows - row < most ? rows - row : most;
    bytes = (own - 1) * row_step + (blocks - 1) * k_step + sizeof(f32);
  }
};

// One block row of w's scales, in scalars.
struct BlockScales {
  const f32* first;
  u32 k_stride;

  __device__ BlockScales(const f32* scales, u32 w_row, u32 row_stride, u32 k_stride, u32 block)
      : first(scales + u64{w_row / kScaleRows} * row_stride + u64{block} * k_stride),
        k_stride(k_stride) {}

  __device__ f32 at(u32 block) const { return first[block * k_stride]; }
};

}  // namespace rfops
