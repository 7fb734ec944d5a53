// Where the four waves of a workgroup meet: what each has of 16 columns, added up in LDS.
//
// Of the result a wave makes a slice, a quarter along 512, from what the others give away of it as
// it is: a column's maximum of each wave lies beside, and who adds up weighs.
#pragma once

#include "attention/mla_partials.h"

namespace rfops {

constexpr u32 kMlaWaves = 4, kMlaSlice = kMlaValue / kMlaWaves;
constexpr u32 kMlaGiven = kQRowsPerTile * kMlaSlice * 4;  // bytes of a slice

// What a lane has of a part: a column's totals, and eight quads of its sums.
struct Partial {
  SoftmaxStats all;
  F32x4 quads[8];
};

// A wave's own: of column l % 16, the same in all four lanes of it but for `sum`.
struct WaveState {
  f32 most, sum;
  MlaSums o;

  // Zeros, made here and not before: what loads are asked for before them is on its way.
  __device__ void begin() {
    f32 zero = 0.0f;
    force_vgpr(zero);
    most = kMinScore, sum = zero;
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d) o[d] = F32x4{zero, zero, zero, zero};
  }
};

// The four waves' sums, of which each wave makes a slice: act(node), where it is made, as to bring
// four ways together takes longer. kAtOnce slices fit LDS.
template <class Tiles, u32 kAtOnce, class Act>
__device__ inline void add_waves(WaveState& own, LdsBytes* lds, Act act) {
  constexpr u32 kWaves = kMlaWaves, kGiven = kMlaGiven;
  const u32 wave = wave_id();
  u32 lane = lane_id();
  force_vgpr(
      lane);  // what follows from it is computed here, not kept in registers from the beginning
  // What a wave gives away of a slice, as its lanes have it, and its totals: where its tiles were,
  // so that who is early neither waits for others' nor writes when they do. Without room for that,
  // totals are where wave 0 gives nothing away: to itself. (A struct in LDS is for the device
  // alone: what compiles for the host too, as load_inline does, refuses to assign one.)
  constexpr u32 kTotals = kQRowsPerTile * sizeof(F32x2);
  constexpr bool kHasRoom = kAtOnce * kGiven + kTotals <= Tiles::kLds;
  const auto given = [&](u32 at, u32 from) {
    const u32 place = kHasRoom ? from * Tiles::kLds + at * kGiven : (at * kWaves + from) * kGiven;
    return reinterpret_cast<RFOPS_LDS F32x4*>(lds + place) + lane;
  };
  const auto totals_of = [&](u32 from) {
    const u32 place = kHasRoom ? from * Tiles::kLds + kAtOnce * kGiven : from * kTotals;
    return reinterpret_cast<RFOPS_LDS F32x2*>(lds + place) + lane % kQRowsPerTile;
  };
  SoftmaxStats found = {kMinScore, 0.0f};
  f32 weights[kWaves];
  const auto weigh = [&] {
    SoftmaxStats totals[kWaves];
#pragma unroll
    for (u32 w = 0; w < kWaves; ++w) {
      const F32x2 from = *totals_of(w);
      totals[w] = {from[0], from[1]};
      found.most = __builtin_fmaxf(found.most, totals[w].most);
    }
#pragma unroll
    for (u32 w = 0; w < kWaves; ++w) {
      weights[w] = __builtin_amdgcn_exp2f(totals[w].most - found.most);
      found.sum += totals[w].sum * weights[w];
    }
  };
  own.sum = reduce_row_lanes(own.sum, [](f32 a, f32 b) { return a + b; });
  if constexpr (!kHasRoom) workgroup_barrier();  // all tiles are done with
  if (lane < kQRowsPerTile) *totals_of(wave) = F32x2{own.most, own.sum};
#pragma unroll
  for (u32 first = 0; first < kWaves; first += kAtOnce) {
    if (first > 0) workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (first + i == wave) continue;
      auto* const to = given(i, wave);
      Tiles::each_quad(own.o, first + i, [&](u32 x, F32x4 four) { to[x * kWaveSize] = four; });
    }
    workgroup_barrier();
    if (first == 0) weigh();
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (first + i != wave) continue;
      F32x4 others[8][kWaves];
      const auto read = [&](u32 x) {
#pragma unroll
        for (u32 w = 0; w < kWaves; ++w) {
          if (w != first + i) others[x][w] = given(i, w)[x * kWaveSize];
        }
        sched_barrier();  // on its way while others are added up
      };
      constexpr u32 kAhead = 2;
#pragma unroll
      for (u32 x = 0; x < kAhead; ++x) read(x);
      Partial node;
      node.all = found;
      Tiles::each_quad(own.o, first + i, [&](u32 x, F32x4 four) {
        if (x + kAhead < 8) read(x + kAhead);
        four *= weights[first + i];
#pragma unroll
        for (u32 w = 0; w < kWaves; ++w) {
          if (w != first + i) four += weights[w] * others[x][w];
        }
        node.quads[x] = four;
      });
      act(node);
    }
  }
}

}  // namespace rfops
