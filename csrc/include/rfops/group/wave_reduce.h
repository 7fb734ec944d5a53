// Reduces the partial tiles of the waves of a workgroup through LDS.
//
// Partials are added in the order of their index, whichever wave adds them.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// Partials in LDS: kPartials of kItems items each.
template <class T, u32 kPartials, u32 kItems>
struct LdsPartials {
  T items[kPartials][kItems];

  // Returns the sum of one item over all partials; call it after workgroup_barrier(). With
  // kIssueAll all reads are issued before the first is waited for, and the compiler hoists nothing
  // out of a loop around it.
  template <bool kIssueAll = false>
  __device__ T sum(u32 item) const {
    T values[kPartials];
#pragma unroll
    for (u32 p = 0; p < kPartials; ++p) values[p] = items[p][item];
    if constexpr (kIssueAll) sched_barrier();
    T total = values[0];
#pragma unroll
    for (u32 p = 1; p < kPartials; ++p) total += values[p];
    return total;
  }
};

// Tiles per wave where tile t of kTiles belongs to wave t % kWaves.
template <u32 kWaves, u32 kTiles>
constexpr u32 kTilesOfWave = (kTiles + kWaves - 1) / kWaves;

// Reduces tiles of which each wave has a partial along K; fn(i, t, total) receives tile t, the i-th
// of this wave. Partial number partial_idx is stored in `memory`, of which only its own range may
// still be in use by this wave. A single wave needs no LDS.
template <u32 kWaves, u32 kTiles, u32 kCapacity, class Fn>
__device__ inline void reduce_waves(F32x4 (&memory)[kWaves][kCapacity], const F32x4 (&sums)[kTiles],
                                    u32 partial_idx, u32 wave, u32 lane, Fn fn) {
  if constexpr (kWaves == 1) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) fn(t, t, sums[t]);
  } else {
    static_assert(kCapacity >= kTiles * kWaveSize, "capacity for a wave's sums");
    using Partials = LdsPartials<F32x4, kWaves, kCapacity>;
    auto& partials = reinterpret_cast<Partials&>(memory);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) partials.items[partial_idx][t * kWaveSize + lane] = sums[t];
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kTilesOfWave<kWaves, kTiles>; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTiles) return;
      fn(i, t, partials.template sum<true>(t * kWaveSize + lane));
    }
  }
}
// As above, with LDS of its own; the partial index is the wave.
template <u32 kWaves, u32 kTiles, class Fn>
__device__ inline void reduce_waves(const F32x4 (&sums)[kTiles], u32 wave, u32 lane, Fn fn) {
  __shared__ F32x4 memory[kWaves][kWaves > 1 ? kTiles * kWaveSize : 1];
  reduce_waves(memory, sums, wave, wave, lane, fn);
}

}  // namespace rfops
