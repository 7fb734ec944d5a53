// Q of 32 columns as the operand of 16 x 16 x 16 matrix instructions (gfx942), two steps of K in
// one: lane l = 16 g + c wants elements 32 i + 8 g + 0..7 of columns c and 16 + c.
//
// Four lanes side by side load what lies side by side (QueryLoads), and all of them exchange it by
// LDS, whose accesses are served in order: a KiB is enough, and nothing waits but for loads.
#pragma once

#include "attention/mla_online_softmax.h"

namespace rfops {

constexpr u32 kQuery16Bytes = kWaveSize * kVecBytes;  // of LDS, of a wave

template <u32 kQRowsPerLane, u32 kSteps, class Loads>
__device__ inline void exchange_query_16(Bf16x8 (&q_frags)[kQRowsPerLane][kSteps],
                                         const Loads& loads, LdsBytes* lds) {
  static_assert(Loads::kCount == kQRowsPerLane * kSteps);
  const u32 lane = lane_id();
  const auto chunk_ptr = [&](u32 row, u32 chunk) {
    return lds + (row * 4 + (chunk ^ row / 2 % 4)) * kVecBytes;  // no bank twice
  };
  static_for<Loads::kCount>([&](auto i) {
    Bf16x8& frag = q_frags[i % kQRowsPerLane][i / kQRowsPerLane];
    *reinterpret_cast<RFOPS_LDS U32x4*>(chunk_ptr(lane / 4, lane % 4)) = loads.template chunk<i>();
    frag = *reinterpret_cast<const RFOPS_LDS Bf16x8*>(chunk_ptr(lane % 16, lane / 16));
  });
}

}  // namespace rfops
