// Rows of bf16 that some waves of a workgroup fetch for the others: from memory by way of registers
// to LDS (lds_swizzle.h), in chunks of 128 kSteps of K, 256 kSteps bytes of a row at once, as a row
// of memory takes time to open. Nothing beyond K is touched.
#pragma once

#include "attention/bf16_row_loaders.h"

namespace rfops {

// A wave's share, of kWaves, of chunks of kRows rows, of which two are on their way. In LDS a chunk
// is lines of 128 bytes of all its rows one after the other.
template <u32 kRows, u32 kSteps, u32 kWaves>
struct ProducerLoader {
  static constexpr u32 kVecs = kPairChunks * kSteps, kRowsPerLoad = kWaveSize / kVecs;
  static constexpr u32 kLoads = kRows / (kWaves * kRowsPerLoad);
  static constexpr u32 kLineBytes = kRows * kRowBytes, kBytes = 2 * kSteps * kLineBytes;
  static_assert(kLoads * kWaves * kRowsPerLoad == kRows);
  Buffer rows;
  u32 row_bytes, k_end, wave;  // bytes of a row
  U32x4 regs[2][kLoads];

  __device__ u32 row_begin(u32 i) const { return (i * kWaves + wave) * kRowsPerLoad; }
  // Of rows from `row0` on, K from k on.
  __device__ void load(u32 s, u32 row0, u32 k, u32 i) {
    const u32 lane = lane_id(), vec = lane % kVecs;
    const u32 oob_bits = k + vec * 8 < k_end ? 0 : kOutOfBounds;
    regs[s][i] =
        buffer_load_b128<kStreamed>(rows, (lane / kVecs * row_bytes + vec * kVecBytes) | oob_bits,
                                    (row0 + row_begin(i)) * row_bytes + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* lds_dst, u32 i) const {
    const u32 lane = lane_id(), vec = lane % kVecs;
    const u32 offset = lds_offset(row_begin(i) + lane / kVecs, vec % kRowChunks);
    *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst + vec / kRowChunks * kLineBytes + offset) =
        regs[s][i];
  }
};

template <class Fn>
__device__ inline void for_each(u32 count, Fn fn) {
#pragma unroll
  for (u32 i = 0; i < count; ++i) fn(i);
}

}  // namespace rfops
