// Q of 32 columns as the operand of 16 x 16 x 16 matrix instructions (gfx942), two steps of K in
// one: lane l = 16 g + c wants elements 32 i + 8 g + 0..7 of columns c and 16 + c.
//
// Loaded so, 16 lanes would have 16 rows, which takes the L1 four times as long. Instead four lanes
// side by side load what lies side by side, and all of them exchange it by LDS, whose accesses are
// served in order: a KiB is enough, and nothing waits but for loads.
#pragma once

#include "rfops/mla_columns.h"

namespace rfops {

constexpr u32 kQuery16Bytes = kWaveSize * kVecBytes;  // of LDS, of a wave

// `rows` are those of columns lane / 4 and 16 + lane / 4. While loads are on their way, of which
// there are kLater, meanwhile(kLater).
template <bool kQueryFp8, u32 kOwn, u32 kSteps, class Meanwhile>
__device__ inline void load_query_16(Bf16x8 (&all)[kOwn][kSteps], const void* q,
                                     const u64 (&rows)[kOwn], bool is_negative, LdsBytes* lds,
                                     Meanwhile meanwhile) {
  constexpr u32 kLoads = kOwn * kSteps, kElement = kQueryFp8 ? 1 : 2;
  const u32 lane = lane_in_wave();
  const auto place = [&](u32 row, u32 chunk) {
    return lds + (row * 4 + (chunk ^ row / 2 % 4)) * kVecBytes;  // no bank twice
  };
  const u8* from[kOwn];
#pragma unroll
  for (u32 n = 0; n < kOwn; ++n) {
    const u8* const own = static_cast<const u8*>(q) + rows[n] * (kMlaKey * kElement);
    from[n] = in_vector(own + lane % 4 * (8 * kElement));
  }
  each_number<kLoads>([&](auto i) {
    all[i % kOwn][i / kOwn] = query_at<kQueryFp8>(from[i % kOwn], i / kOwn * 32, is_negative);
  });
  asm volatile("" ::: "memory");  // all of them before what waits for those before them
  keep_order();
  meanwhile(Number<kLoads>{});
  keep_order();
  each_number<kLoads>([&](auto i) {
    Bf16x8& own = all[i % kOwn][i / kOwn];
    *reinterpret_cast<RFOPS_LDS Bf16x8*>(place(lane / 4, lane % 4)) = own;
    own = *reinterpret_cast<const RFOPS_LDS Bf16x8*>(place(lane % 16, lane / 16));
  });
  each_number<kLoads>([&](auto i) { pin(all[i % kOwn][i / kOwn]); });  // waited for here
}

}  // namespace rfops
