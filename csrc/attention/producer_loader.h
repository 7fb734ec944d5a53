// Loads bf16 rows in producer waves for the other waves of a workgroup: from memory through
// registers to LDS (lds_swizzle.h), in chunks of 128 kSteps of K, 256 kSteps bytes of a row per
// load, because opening a DRAM row takes time. Nothing beyond K is read.
#pragma once

#include "attention/bf16_row_loaders.h"

namespace rfops {

// One of kWaves waves' part of chunks of kRows rows; two chunks are in flight. In LDS, a chunk has
// the first 128 bytes of all its rows, then the next 128 bytes of all, and so on.
template <u32 kRows, u32 kSteps, u32 kWaves>
struct ProducerLoader {
  static constexpr u32 kVecs = kPairChunks * kSteps, kRowsPerLoad = kWaveSize / kVecs;
  static constexpr u32 kLoads = kRows / (kWaves * kRowsPerLoad);
  static constexpr u32 kLineBytes = kRows * kRowBytes, kBytes = 2 * kSteps * kLineBytes;
  static_assert(kLoads * kWaves * kRowsPerLoad == kRows);
  Buffer rows;
  u32 row_bytes, k_end, wave;  // row stride in bytes
  U32x4 regs[2][kLoads];

  __device__ u32 row_begin(u32 i) const { return (i * kWaves + wave) * kRowsPerLoad; }
  // Issues load i of a chunk: rows from `row0` on, K from k on.
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
