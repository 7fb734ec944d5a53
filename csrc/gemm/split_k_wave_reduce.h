// Reduces the partial tiles of kSplit workgroups (split-K), each wave on its own.
//
// As in split_k_reduce.h, except that each wave of a workgroup stores, counts and reduces its own
// tiles: there is no barrier, and no wave waits for another. This is for kernels so short that the
// reduction is a noticeable part: the counter has a cache line of its own that is prefetched, and
// all partials are in flight at once.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// Increments the counter; returns its previous value as a scalar. Requires: all lanes active.
// Inline assembly, because the compiler would first count the active lanes: 10 more instructions
// before other workgroups can go on.
__device__ inline u32 increment(u32* counter) {
  u32 previous;
  asm volatile(
      "s_mov_b64 exec, 1\n\tglobal_atomic_add %0, %1, %2, %3 sc0\n\ts_mov_b64 exec, -1\n\t"
      "s_waitcnt vmcnt(0)"
      : "=&v"(previous)
      : "v"(0), "v"(1), "s"(counter)
      : "memory");
  return readfirstlane(previous);
}

// One tile's partials in the workspace, F32x4[kSplit][kTiles][kWaveSize], and its line of counters,
// one per wave. MFMA tile t belongs to wave t % kWaves.
template <u32 kSplit, u32 kTiles, u32 kWaves>
class WaveSplitKReducer {
 public:
  static constexpr u32 kTilesPerWave = (kTiles + kWaves - 1) / kWaves;
  static_assert(kWaves <= kCounterStride, "each wave has a counter");

  __device__ WaveSplitKReducer(void* workspace, u32* counts, u32 tile, u32 wave)
      : partials_(static_cast<F32x4*>(workspace) + u64{tile} * (kSplit * kItems)),
        counts_(counts + u64{tile} * kCounterStride),
        wave_(wave) {}

  // Prefetches the counters to L2 while other loads are in flight.
  __device__ void prefetch_counter() {
    prefetched_ =
        buffer_load_dwords<1>(make_buffer(counts_, wave_ == 0 ? sizeof(u32) : 0), 0, 0).dword[0];
  }

  // Stores this wave's partials. Returns true in the last of the kSplit waves, whose `sum` then
  // holds the reduced tiles. Only for waves that have a tile.
  __device__ bool reduce(F32x4 (&sum)[kTilesPerWave], u32 split) const {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      if (has_tile(i)) partials_[split * kItems + item(i, lane)] = sum[i];
    }
    u32 prefetched = prefetched_;
    force_vgpr(prefetched);  // the prefetch is complete
    u32* const count = counts_ + wave_;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    if (increment(count) != kSplit - 1) return false;
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#pragma unroll
    for (u32 i = 0; i < kTilesPerWave; ++i) {
      if (!has_tile(i)) break;
      F32x4 partials[kSplit];
#pragma unroll
      for (u32 s = 0; s < kSplit; ++s) partials[s] = partials_[s * kItems + item(i, lane)];
      sched_barrier();  // all partials are in flight
      sum[i] = partials[0];
#pragma unroll
      for (u32 s = 1; s < kSplit; ++s) sum[i] += partials[s];
    }
    if (lane == 0) *count = 0;  // for the next launch
    return true;
  }

 private:
  static constexpr u32 kItems = kTiles * kWaveSize;
  __device__ bool has_tile(u32 i) const {
    return (i + 1) * kWaves <= kTiles || wave_ + i * kWaves < kTiles;
  }
  __device__ u32 item(u32 i, u32 lane) const { return (wave_ + i * kWaves) * kWaveSize + lane; }

  F32x4* partials_;
  u32* counts_;
  u32 wave_, prefetched_ = 0;
};

}  // namespace rfops
