// Rows of bf16 operands of a product, a step along K at a time: from memory to registers, of two
// steps, and from there to LDS (lds_tile.h), in pieces that the caller has others between. Nothing
// beyond K is touched.
#pragma once

#include "rfops/lds_tile.h"
#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

constexpr u32 kPairBytes = 2 * kRowBytes, kPairChunks = kPairBytes / kVecBytes;

// kRows rows of all kThreads threads, 128 bytes each.
template <u32 kRows, u32 kThreads>
struct GroupRows {
  static constexpr u32 kAtOnce = kThreads / kRowChunks, kLoads = (kRows + kAtOnce - 1) / kAtOnce;
  Buffer rows;
  u32 row, k_end;  // bytes of a row, and elements
  U32x4 own[2][kLoads];

  __device__ void load(u32 s, u32 k, u32 i) {
    const u32 chunk = thread_in_group() % kRowChunks, first = thread_in_group() / kRowChunks;
    const u32 outside = k + chunk * 8 < k_end ? 0 : kOutside;
    own[s][i] =
        load_16(rows, (first * row + chunk * kVecBytes) | outside, i * kAtOnce * row + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* to, u32 i) const {
    const u32 chunk = thread_in_group() % kRowChunks;
    const u32 own_row = thread_in_group() / kRowChunks + i * kAtOnce;
    if (kRows % kAtOnce == 0 || own_row < kRows) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(to + lds_at(own_row, chunk)) = own[s][i];
    }
  }
};

// kRows rows of one wave, 256 bytes each, read once: two lines at a time, as a row of memory takes
// time to open. In LDS first halves are before second ones. Tiles of 16 rows are kTileStep apart.
template <u32 kRows, u32 kTileStep>
struct WaveRows {
  static constexpr u32 kAtOnce = kWaveSize / kPairChunks, kLoads = kRows / kAtOnce;
  Buffer rows;
  u32 row, k_end;
  U32x4 own[2][kLoads];

  __device__ void load(u32 s, u32 k, u32 i) {
    const u32 lane = lane_in_wave(), chunk = lane % kPairChunks, first = i * kAtOnce;
    const u32 outside = k + chunk * 8 < k_end ? 0 : kOutside;
    own[s][i] =
        load_16<kStreamed>(rows, (lane / kPairChunks * row + chunk * kVecBytes) | outside,
                           (first / kTileRows * kTileStep + first % kTileRows) * row + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* to, u32 i) const {
    const u32 lane = lane_in_wave(), chunk = lane % kPairChunks;
    const u32 at = lds_at(i * kAtOnce + lane / kPairChunks, chunk % kRowChunks);
    *reinterpret_cast<RFOPS_LDS U32x4*>(to + chunk / kRowChunks * (kRows * kRowBytes) + at) =
        own[s][i];
  }
};

// Of an operand that lies as [K, N], in registers as it comes: 32 of K, of which a lane has 8 of
// four neighbours of N.
template <u32 kTiles>
struct TurnedRows {
  const bf16* first;
  u32 bytes, row, k_end;

  __device__ void load(U32x4 (&to)[kTiles], u32 k) const {
    const u32 lane = lane_in_wave(), own = lane % kTileRows, g = lane / kTileRows;
    const Buffer rows = make_buffer(first, k < k_end ? bytes : 0);
#pragma unroll
    for (u32 e = 0; e < 8; ++e) {
      const auto two = load_dwords<2>(rows, g * 8 * row + own * 8, (k + e) * row);
      to[e / 2][e % 2 * 2] = two.dword[0];
      to[e / 2][e % 2 * 2 + 1] = two.dword[1];
    }
  }
  // Every fourth of the rows, from n on, turned round.
  __device__ static U32x4 row_of(const U32x4 (&w)[kTiles], u32 n) {
    U32x4 made;
#pragma unroll
    for (u32 e = 0; e < 8; e += 2) {
      const u32 low = w[e / 2][n / 2], high = w[e / 2][2 + n / 2];
      made[e / 2] = __builtin_amdgcn_perm(high, low, n % 2 ? 0x07060302 : 0x05040100);
    }
    return made;
  }
};

// In scalar registers, where descriptors are to be: else each load is a loop over lanes.
__device__ inline const bf16* scalar_address(const bf16* at) {
  const u64 bits = reinterpret_cast<u64>(at);
  const u32 low = as_scalar(static_cast<u32>(bits)), high = as_scalar(static_cast<u32>(bits >> 32));
  return reinterpret_cast<const bf16*>(u64{high} << 32 | low);
}

}  // namespace rfops
