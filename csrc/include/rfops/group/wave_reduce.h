// Sums of the waves of a workgroup, which each have a part of them, added up in LDS.
//
// The order is that of the parts, whoever adds them up.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

// What the waves leave in LDS; a part may be less than a wave's.
template <class T, u32 kParts, u32 kItems>
struct LdsPartials {
  T part[kParts][kItems];

  // After workgroup_barrier(). kAtOnce: nothing is waited for before the last part is on its way,
  // and nothing is moved out of a loop around it.
  template <bool kAtOnce = false>
  __device__ T sum(u32 item) const {
    T own[kParts];
#pragma unroll
    for (u32 p = 0; p < kParts; ++p) own[p] = part[p][item];
    if constexpr (kAtOnce) sched_barrier();
    T total = own[0];
#pragma unroll
    for (u32 p = 1; p < kParts; ++p) total += own[p];
    return total;
  }
};

// Tiles that a wave has of kTiles which kWaves share out: wave, wave + kWaves, and so on.
template <u32 kWaves, u32 kTiles>
constexpr u32 kTilesOfWave = (kTiles + kWaves - 1) / kWaves;

// All waves have sums of the same tiles, each a part along K; act(i, t, total) gets the i-th of a
// wave's own tiles, t. They meet in `memory`, where nobody but the wave that has a part has used
// its place. One wave needs no LDS.
template <u32 kWaves, u32 kTiles, u32 kPlace, class Act>
__device__ inline void reduce_waves(F32x4 (&memory)[kWaves][kPlace], const F32x4 (&sums)[kTiles],
                                    u32 part, u32 wave, u32 lane, Act act) {
  if constexpr (kWaves == 1) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) act(t, t, sums[t]);
  } else {
    static_assert(kPlace >= kTiles * kWaveSize, "room for a wave's sums");
    using Parts = LdsPartials<F32x4, kWaves, kPlace>;
    auto& parts = reinterpret_cast<Parts&>(memory);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) parts.part[part][t * kWaveSize + lane] = sums[t];
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kTilesOfWave<kWaves, kTiles>; ++i) {
      const u32 t = wave + i * kWaves;
      if (t >= kTiles) return;
      act(i, t, parts.template sum<true>(t * kWaveSize + lane));
    }
  }
}
template <u32 kWaves, u32 kTiles, class Act>
__device__ inline void reduce_waves(const F32x4 (&sums)[kTiles], u32 wave, u32 lane, Act act) {
  __shared__ F32x4 memory[kWaves][kWaves > 1 ? kTiles * kWaveSize : 1];
  reduce_waves(memory, sums, wave, wave, lane, act);
}

}  // namespace rfops
