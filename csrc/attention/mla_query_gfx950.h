// Exchanges Q of 32 query rows to operands of 32x32 MFMAs (gfx950), through LDS as in
// mla_query_gfx942.h: lane l has a chunk of 64 bytes of rows l / 4 and 16 + l / 4, and gets two
// chunks of row l % 32.
#pragma once

#include "attention/mla_online_softmax.h"

#if defined(__gfx950__)

namespace rfops {

constexpr u32 kQuery32Bytes = 2 * kWaveSize * kVecBytes;  // of LDS, of a wave

// Returns chunks g and 2 + g of four, or 2 g and 2 g + 1 if kNeighbours, where g = l / 32.
template <bool kNeighbours, class Loads>
__device__ inline void exchange_query_32(U32x4 (&q_frags)[Loads::kCount], const Loads& loads,
                                         LdsBytes* lds) {
  const u32 lane = lane_id(), g = lane / 32;
  const auto chunk_ptr = [&](u32 row, u32 chunk) {  // no bank twice
    return (RFOPS_LDS U32x4*)(lds + (row * 4 + (chunk ^ row / 4 % 4)) * kVecBytes);
  };
  static_for<Loads::kCount / 2>([&](auto i) {
    *chunk_ptr(lane / 4, lane % 4) = loads.template chunk<2 * i>();
    *chunk_ptr(16 + lane / 4, lane % 4) = loads.template chunk<2 * i + 1>();
    q_frags[2 * i] = *chunk_ptr(lane % 32, kNeighbours ? 2 * g : g);
    q_frags[2 * i + 1] = *chunk_ptr(lane % 32, kNeighbours ? 2 * g + 1 : 2 + g);
  });
}

}  // namespace rfops

#endif
