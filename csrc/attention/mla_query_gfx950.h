// Q of 32 columns as the operand of 32 x 32 matrix instructions (gfx950).
//
// As in mla_query_gfx942.h what lanes have loaded is exchanged by LDS: lane l has of 64 bytes of
// rows l / 4 and 16 + l / 4 a chunk, and gets two of row l % 32.
#pragma once

#include "attention/mla_online_softmax.h"

#if defined(__gfx950__)

namespace rfops {

constexpr u32 kQuery32Bytes = 2 * kWaveSize * kVecBytes;  // of LDS, of a wave

// Chunks g and 2 + g of four, or 2 g and 2 g + 1 with kNeighbours, where g = l / 32.
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
