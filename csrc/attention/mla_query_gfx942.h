// Exchanges Q of 32 query rows to operands of 16x16x16 MFMAs (gfx942), two K-steps in one: lane l =
// 16 g + c gets elements 32 i + 8 g + 0..7 of rows c and 16 + c.
//
// Four adjacent lanes load adjacent bytes (QueryLoads), and all lanes exchange them through LDS.
// LDS accesses complete in order, so 1 KiB suffices and only the loads are waited for.
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
