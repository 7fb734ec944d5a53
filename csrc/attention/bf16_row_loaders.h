// Loaders of bf16 operand rows, one K-step of 128 at a time: from memory to registers, for some
// steps, and from there to LDS (lds_swizzle.h), one load or store per call, so that the caller can
// interleave them. Nothing beyond K is read.
//
// Operands that only kernels of one op exchange are packed in MFMA order: [K / 32][M / 16][64][8].
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

constexpr u32 kPieceOfK = 32, kPieces = 4, kStepOfK = kPieces * kPieceOfK;
constexpr u32 kPairBytes = 2 * kRowBytes, kPairChunks = kPairBytes / kVecBytes;
constexpr u32 kPackedTile = kWaveSize * kVecBytes;  // bytes of 16 rows by 32 along K
static_assert(kStepOfK * 2 == kPairBytes, "a step is two lines of a row");

// Returns the byte offset, in a packed operand, of 4 adjacent elements of a row from k on; k is a
// multiple of 4.
__device__ inline u32 packed_offset(u32 tiles, u32 row, u32 k) {
  const u32 lane = row % kTileRows + k % kPieceOfK / 8 * kTileRows;
  return (k / kPieceOfK * tiles + row / kTileRows) * kPackedTile + lane * kVecBytes + k % 8 * 2;
}

// Loads 16 kTiles packed rows straight to fragments; for operands that are in L2.
template <u32 kTiles, u32 kPrefetch>
struct PackedRows {
  Buffer rows;
  u32 tiles, k_end;
  U32x4 regs[kPrefetch][kPieces][kTiles];

  // Loads a piece of a tile, of the K-step that begins at k.
  __device__ void load(u32 s, u32 k, u32 piece, u32 tile) {
    const u32 k0 = k + piece * kPieceOfK, oob_bits = k0 < k_end ? 0 : kOutOfBounds;
    regs[s][piece][tile] = buffer_load_b128(rows, (lane_id() * kVecBytes) | oob_bits,
                                            (k0 / kPieceOfK * tiles + tile) * kPackedTile);
  }
};

// Returns the loader of the rows of workgroup `m_idx` along M, of a packed [M, K].
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

// Loads kRows rows with all kThreads threads, 128 bytes of a row at a time.
template <u32 kRows, u32 kThreads>
struct GroupRows {
  static constexpr u32 kRowsPerLoad = kThreads / kRowChunks,
                       kLoads = (kRows + kRowsPerLoad - 1) / kRowsPerLoad;
  Buffer rows;
  u32 row_bytes, k_end;  // row stride in bytes; end of K in elements
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

// Loads 16 kTiles rows with one wave, 256 bytes of a row per load, because opening a DRAM row takes
// time. The first 128 bytes of each row go to the first half of the LDS, the others to the second.
// Tiles are tile_step rows apart.
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

// Returns the pointer in SGPRs, because a descriptor in VGPRs makes each load a loop over lanes.
__device__ inline const bf16* scalar_address(const bf16* ptr) {
  return reinterpret_cast<const bf16*>(readfirstlane(reinterpret_cast<u64>(ptr)));
}

}  // namespace rfops
