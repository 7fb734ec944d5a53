// Q of 32 columns as the operand of 16 x 16 x 16 matrix instructions (gfx942), two steps of K in
// one: lane l = 16 g + c wants elements 32 i + 8 g + 0..7 of columns c and 16 + c.
//
// Four lanes side by side load what lies side by side (QueryLoads), and all of them exchange it by
// LDS, whose accesses are served in order: a KiB is enough, and nothing waits but for loads.
#pragma once

#include "attention/mla_online_softmax.h"

namespace rfops {

constexpr u32 kQuery16Bytes = kWaveSize * kVecBytes;  // of LDS, of a wave

template <u32 kOwn, u32 kSteps, class Loads>
__device__ inline void exchange_query_16(Bf16x8 (&all)[kOwn][kSteps], const Loads& loads,
                                         LdsBytes* lds) {
  static_assert(Loads::kCount == kOwn * kSteps);
  const u32 lane = lane_id();
  const auto place = [&](u32 row, u32 chunk) {
    return lds + (row * 4 + (chunk ^ row / 2 % 4)) * kVecBytes;  // no bank twice
  };
  static_for<Loads::kCount>([&](auto i) {
    Bf16x8& own = all[i % kOwn][i / kOwn];
    *reinterpret_cast<RFOPS_LDS U32x4*>(place(lane / 4, lane % 4)) = loads.template at<i>();
    own = *reinterpret_cast<const RFOPS_LDS Bf16x8*>(place(lane % 16, lane / 16));
  });
}

}  // namespace rfops
