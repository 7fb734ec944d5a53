// Rows of bf16 that some waves of a workgroup fetch for the others: from memory by way of registers
// to LDS (lds_swizzle.h), in chunks of 128 kSteps of K, 256 kSteps bytes of a row at once, as a row
// of memory takes time to open. Nothing beyond K is touched.
#pragma once

#include "attention/bf16_row_loaders.h"

namespace rfops {

// A wave's share, of kWaves, of chunks of kRows rows, of which two are on their way. In LDS a chunk
// is lines of 128 bytes of all its rows one after the other.
template <u32 kRows, u32 kSteps, u32 kWaves>
struct FetchedRows {
  static constexpr u32 kVecs = kPairChunks * kSteps, kAtOnce = kWaveSize / kVecs;
  static constexpr u32 kLoads = kRows / (kWaves * kAtOnce);
  static constexpr u32 kLineBytes = kRows * kRowBytes, kBytes = 2 * kSteps * kLineBytes;
  static_assert(kLoads * kWaves * kAtOnce == kRows);
  Buffer rows;
  u32 row, k_end, wave;  // bytes of a row
  U32x4 own[2][kLoads];

  __device__ u32 first(u32 i) const { return (i * kWaves + wave) * kAtOnce; }
  // Of rows from `row0` on, K from k on.
  __device__ void load(u32 s, u32 row0, u32 k, u32 i) {
    const u32 lane = lane_id(), vec = lane % kVecs;
    const u32 outside = k + vec * 8 < k_end ? 0 : kOutOfBounds;
    own[s][i] = buffer_load_b128<kStreamed>(rows, (lane / kVecs * row + vec * kVecBytes) | outside,
                                            (row0 + first(i)) * row + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* to, u32 i) const {
    const u32 lane = lane_id(), vec = lane % kVecs;
    const u32 at = lds_offset(first(i) + lane / kVecs, vec % kRowChunks);
    *reinterpret_cast<RFOPS_LDS U32x4*>(to + vec / kRowChunks * kLineBytes + at) = own[s][i];
  }
};

template <class Act>
__device__ inline void each(u32 count, Act act) {
#pragma unroll
  for (u32 i = 0; i < count; ++i) act(i);
}

}  // namespace rfops
