// Exchanges Q of 32 query rows to operands of 32x32 MFMAs (gfx950), through LDS as in
// mla_query_gfx942.h: lane l has a chunk of 64 bytes of rows l / 4 and 16 + l / 4, and gets two
// chunks of row l % 32.
#pragma once

#include "attention/mla_online_softmax.h"

#if defined(__gfx950__)

namespace rfops {

// Layout of 32 query rows and their outputs over the lanes of 32x32 MFMAs: lane l has row l % 32.
struct RowsOf32x32 {
  static constexpr u32 kQRowsPerLane = 1;
  __device__ static u32 column(u32 lane, u32) { return lane % 32; }
  __device__ static f32 of_result(const f32 (&one)[kQRowsPerLane], u32) { return one[0]; }
  // Returns quad i of a result, and its first column among 64.
  __device__ static F32x4 quad_of(const F32x16& acc_tile, u32 i) {
    const u32 r = i % 4 * 4;
    return {acc_tile[r], acc_tile[r + 1], acc_tile[r + 2], acc_tile[r + 3]};
  }
  __device__ static u32 quad_at(u32 i, u32 lane) { return i * 8 + lane / 32 * 4; }
};

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
