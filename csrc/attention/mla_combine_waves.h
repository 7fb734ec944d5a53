// Combines the partial outputs of the four waves of a workgroup (16 query rows) in LDS.
//
// Each wave reduces one slice, a quarter of the 512 output columns. A wave writes its unscaled sums
// of the other slices to LDS, with its row max and row sum; the wave that reduces a slice rescales.
#pragma once

#include "attention/mla_partials.h"

namespace rfops {

constexpr u32 kMlaWaves = 4, kMlaSlice = kMlaValue / kMlaWaves;
constexpr u32 kMlaSliceBytes = kQRowsPerTile * kMlaSlice * 4;  // bytes of a slice

// Partial output in a lane: the statistics of its query row and eight quads of sums.
struct Partial {
  SoftmaxStats stats;
  F32x4 quads[8];
};

// Running state of one wave: query row l % 16, the same in all four of its lanes, except that `sum`
// covers only the lane's tokens.
struct WaveState {
  f32 row_max, sum;
  MlaSums o;

  // Zeroes the state. Forced here, because loads are issued before it and are in flight meanwhile.
  __device__ void begin() {
    f32 zero = 0.0f;
    force_vgpr(zero);
    row_max = kMinScore, sum = zero;
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) o[d] = F32x4{zero, zero, zero, zero};
  }
};

// Combines the four waves' sums; each wave calls fn(partial) with its slice, inside the branch that
// made it, because merging four branches takes longer. kSlicesPerPass slices fit LDS.
template <class Tiles, u32 kSlicesPerPass, class Fn>
__device__ inline void combine_waves(WaveState& state, LdsBytes* lds, Fn fn) {
  const u32 wave = wave_id(), lane = lane_id_in_vgpr();
  // LDS of the slices and statistics that a wave gives to its peers: where its tiles were, so that
  // an early wave neither waits for the others nor overwrites their tiles. If that does not fit,
  // the statistics replace the slice that wave 0 would give to itself. (Assigned as vectors: a
  // struct in LDS cannot be assigned in code that is compiled for the host too, as load_inline
  // does.)
  constexpr u32 kTotals = kQRowsPerTile * sizeof(F32x2);
  constexpr bool kFitsLds = kSlicesPerPass * kMlaSliceBytes + kTotals <= Tiles::kLds;
  const auto slice_ptr = [&](u32 slice, u32 src_wave) {
    const u32 offset = kFitsLds ? src_wave * Tiles::kLds + slice * kMlaSliceBytes
                                : (slice * kMlaWaves + src_wave) * kMlaSliceBytes;
    return reinterpret_cast<RFOPS_LDS F32x4*>(lds + offset) + lane;
  };
  const auto totals_of = [&](u32 src_wave) {
    const u32 offset =
        kFitsLds ? src_wave * Tiles::kLds + kSlicesPerPass * kMlaSliceBytes : src_wave * kTotals;
    return reinterpret_cast<RFOPS_LDS F32x2*>(lds + offset) + lane % kQRowsPerTile;
  };
  SoftmaxStats total;
  f32 weights[kMlaWaves];
  const auto weigh = [&] {
    SoftmaxStats totals[kMlaWaves];
#pragma unroll
    for (u32 w = 0; w < kMlaWaves; ++w) totals[w] = {(*totals_of(w))[0], (*totals_of(w))[1]};
    total = combine_stats(totals, weights);
  };
  state.sum = sum_over_row_lanes(state.sum);
  if constexpr (!kFitsLds) workgroup_barrier();  // all tiles are done with
  if (lane < kQRowsPerTile) *totals_of(wave) = F32x2{state.row_max, state.sum};
#pragma unroll
  for (u32 slice_begin = 0; slice_begin < kMlaWaves; slice_begin += kSlicesPerPass) {
    if (slice_begin > 0) workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kSlicesPerPass; ++i) {
      if (slice_begin + i == wave) continue;
      auto* const dst = slice_ptr(i, wave);
      Tiles::each_quad(state.o, slice_begin + i,
                       [&](u32 x, F32x4 four) { dst[x * kWaveSize] = four; });
    }
    workgroup_barrier();
    if (slice_begin == 0) weigh();
#pragma unroll
    for (u32 i = 0; i < kSlicesPerPass; ++i) {
      if (slice_begin + i != wave) continue;
      F32x4 peers[8][kMlaWaves];
      const auto read = [&](u32 x) {
#pragma unroll
        for (u32 w = 0; w < kMlaWaves; ++w) {
          if (w != slice_begin + i) peers[x][w] = slice_ptr(i, w)[x * kWaveSize];
        }
        sched_barrier();  // on its way while others are added up
      };
      constexpr u32 kPrefetch = 2;
#pragma unroll
      for (u32 x = 0; x < kPrefetch; ++x) read(x);
      Partial node;
      node.stats = total;
      Tiles::each_quad(state.o, slice_begin + i, [&](u32 x, F32x4 four) {
        if (x + kPrefetch < 8) read(x + kPrefetch);
        four *= weights[slice_begin + i];
#pragma unroll
        for (u32 w = 0; w < kMlaWaves; ++w) {
          if (w != slice_begin + i) four += weights[w] * peers[x][w];
        }
        node.quads[x] = four;
      });
      fn(node);
    }
  }
}

}  // namespace rfops
