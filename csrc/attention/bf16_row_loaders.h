// Rows of bf16 operands of a product, a step of 128 of K at a time: from memory to registers, of
// some steps, and from there to LDS (lds_swizzle.h), in pieces that the caller has others between.
// Nothing beyond K is touched.
//
// What only kernels of one op pass on lies packed, as matrix cores take it: [K / 32][M /
// 16][64][8].
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

constexpr u32 kPieceOfK = 32, kPieces = 4, kStepOfK = kPieces * kPieceOfK;
constexpr u32 kPairBytes = 2 * kRowBytes, kPairChunks = kPairBytes / kVecBytes;
constexpr u32 kPackedTile = kWaveSize * kVecBytes;  // bytes of a piece of 16 rows
static_assert(kStepOfK * 2 == kPairBytes, "a step is two lines of a row");

// Where 4 neighbours of a row from column k on, a multiple of 4, lie in a packed operand, in bytes.
__device__ inline u32 packed_offset(u32 tiles, u32 row, u32 k) {
  const u32 lane = row % kTileRows + k % kPieceOfK / 8 * kTileRows;
  return (k / kPieceOfK * tiles + row / kTileRows) * kPackedTile + lane * kVecBytes + k % 8 * 2;
}

// 16 kTiles packed rows, straight to operands: for what lies in an L2.
template <u32 kTiles, u32 kPrefetch>
struct PackedRows {
  Buffer rows;
  u32 tiles, k_end;
  U32x4 regs[kPrefetch][kPieces][kTiles];

  // A piece of a tile, of the step from k on.
  __device__ void load(u32 s, u32 k, u32 piece, u32 tile) {
    const u32 k0 = k + piece * kPieceOfK, oob_bits = k0 < k_end ? 0 : kOutOfBounds;
    regs[s][piece][tile] = buffer_load_b128(rows, (lane_id() * kVecBytes) | oob_bits,
                                            (k0 / kPieceOfK * tiles + tile) * kPackedTile);
  }
};

// Of [M, K], those of workgroup `m_idx` along M.
template <u32 kTiles, u32 kPrefetch>
__device__ inline PackedRows<kTiles, kPrefetch> packed_rows(const bf16* x, u32 m, u32 m_idx,
                                                            u32 k) {
  const u32 tiles = (m + kTileRows - 1) / kTileRows, tile_begin = m_idx * kTiles;
  return {make_buffer(x + tile_begin * (kPackedTile / 2),
                      (k / kPieceOfK * tiles - tile_begin) * kPackedTile),
          tiles,
          k,
          {}};
}

// kRows rows of all kThreads threads, 128 bytes each.
template <u32 kRows, u32 kThreads>
struct GroupRows {
  static constexpr u32 kRowsPerLoad = kThreads / kRowChunks,
                       kLoads = (kRows + kRowsPerLoad - 1) / kRowsPerLoad;
  Buffer rows;
  u32 row_bytes, k_end;  // bytes of a row, and elements
  U32x4 regs[2][kLoads];

  __device__ void load(u32 s, u32 k, u32 i) {
    const u32 chunk = thread_id() % kRowChunks, thread_row = thread_id() / kRowChunks;
    const u32 oob_bits = k + chunk * 8 < k_end ? 0 : kOutOfBounds;
    regs[s][i] = buffer_load_b128(rows, (thread_row * row_bytes + chunk * kVecBytes) | oob_bits,
                                  i * kRowsPerLoad * row_bytes + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* lds_dst, u32 i) const {
    const u32 chunk = thread_id() % kRowChunks;
    const u32 lds_row = thread_id() / kRowChunks + i * kRowsPerLoad;
    if (kRows % kRowsPerLoad == 0 || lds_row < kRows) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst + lds_offset(lds_row, chunk)) = regs[s][i];
    }
  }
};

// 16 kTiles rows of one wave, 256 bytes of a row at once, as a row of memory takes time to open; to
// LDS, whose first half has the first lines. Tiles are tile_step rows apart.
template <u32 kTiles, u32 kNumStages>
struct WaveRowLoader {
  static constexpr u32 kRowsPerLoad = kWaveSize / kPairChunks,
                       kLoadsPerTile = kTileRows / kRowsPerLoad;
  static constexpr u32 kLoads = kTiles * kLoadsPerTile, kHalfBytes = kTiles * kLdsTile;
  Buffer rows;
  u32 row_bytes, k_end, tile_step;
  U32x4 regs[kNumStages][kLoads];

  __device__ void load(u32 s, u32 k, u32 i) {
    const u32 lane = lane_id(), chunk = lane % kPairChunks;
    const u32 oob_bits = k + chunk * 8 < k_end ? 0 : kOutOfBounds;
    regs[s][i] = buffer_load_b128<kStreamed>(
        rows, (lane / kPairChunks * row_bytes + chunk * kVecBytes) | oob_bits,
        (i / kLoadsPerTile * tile_step + i % kLoadsPerTile * kRowsPerLoad) * row_bytes + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* lds_dst, u32 i) const {
    const u32 lane = lane_id(), chunk = lane % kPairChunks;
    const u32 offset = lds_offset(i * kRowsPerLoad + lane / kPairChunks, chunk % kRowChunks);
    *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst + chunk / kRowChunks * kHalfBytes + offset) =
        regs[s][i];
  }
};

// In scalar registers, where descriptors are to be: else each load is a loop over lanes.
__device__ inline const bf16* scalar_address(const bf16* ptr) {
  const u64 bits = reinterpret_cast<u64>(ptr);
  const u32 low = readfirstlane(static_cast<u32>(bits)),
            high = readfirstlane(static_cast<u32>(bits >> 32));
  return reinterpret_cast<const bf16*>(u64{high} << 32 | low);
}

}  // namespace rfops
