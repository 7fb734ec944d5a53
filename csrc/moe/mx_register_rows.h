// Rows of h that one wave multiplies, held in registers for all of K, and a prefetcher of them to
// L2 that the workgroups of an XCD share (gfx950). h is stored in tiles of 16 rows
// (mx_silu_requant.h).
#pragma once

#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// h of all experts, at most `rows` rows.
template <class Format, u32 kSteps, u32 kChunk>
struct TiledRows {
  using Layout = ScaleLayout<Format, kChunk>;
  using Scales = LaneScales<Layout>;
  static constexpr u32 kChunks = kSteps / kChunk;
  static constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * Layout::kStepBlocks;
  const u8 *payload, *scales;
  u32 rows;
};

// Prefetches a tile's rows, up to kRows, to L2, one cache line per lane: workgroup `group` loads
// its share among `groups`. The data goes to 256 bytes of LDS that are not read.
template <class HRows, u32 kRows>
class L2Prefetcher {
  static constexpr u32 kLine = 128, kLines = kRows * (HRows::kRowSize + HRows::kRowScales) / kLine;

 public:
  __device__ L2Prefetcher(const HRows& h, u32 group, u32 groups, u32 unread)
      : payload_(make_buffer_words(h.payload, h.rows * HRows::kRowSize)),
        scales_(make_buffer_words(h.scales, h.rows * HRows::kRowScales)),
        group_(group),
        groups_(groups),
        unread_(unread) {}

  __device__ void prefetch(const ExpertTile& tile) const {
    const u32 rows = (tile.rows + kTileRows - 1) / kTileRows * kTileRows;
    for (u32 i = group_; i * kWaveSize < kLines; i += groups_) {
      const u32 offset = (i * kWaveSize + lane_id()) * kLine;
      prefetch_line(payload_, tile.global_row * HRows::kRowSize, offset, rows * HRows::kRowSize);
      prefetch_line(scales_, tile.global_row * HRows::kRowScales, offset - kRows * HRows::kRowSize,
                    rows * HRows::kRowScales);
    }
  }

 private:
  __device__ void prefetch_line(U32x4 buffer, u32 base, u32 offset, u32 bytes) const {
    buffer_load_lds_b32<kWaveSize>(buffer, offset < bytes ? offset : kOutOfBounds, base, unread_);
  }
  U32x4 payload_, scales_;
  u32 group_, groups_, unread_;
};

// kRowTiles tiles of 16 rows of a tile, one row per lane of sixteen; the 16-row tiles are
// interleaved over kWaves waves.
template <class HRows, u32 kRowTiles, u32 kSteps, u32 kWaves>
class RegisterRows {
  using Scales = HRows::Scales;

 public:
  struct TileScales {
    Scales chunk[kRowTiles][HRows::kChunks];
  };
  U32x4 x[kRowTiles][kSteps][2];

  __device__ explicit RegisterRows(const HRows& h)
      : payload_(make_buffer(h.payload, h.rows * HRows::kRowSize)),
        scales_(make_buffer(h.scales, h.rows * HRows::kRowScales)) {}

  // Returns the first row, within the tile, of the wave's 16-row tile `i`.
  __device__ static u32 tile_row(u32 i) { return (wave_id() + i * kWaves) * kTileRows; }

  // Issues the loads of K-steps kStepBegin .. kStepEnd - 1. The first 16-row tile always issues the
  // same number of loads, so that the compiler knows the wait count; further tiles that are out of
  // range are skipped, because their loads would take a tenth of the memory pipe's time. Estimated,
  // gfx950, 6 waves, 33 experts, 512 tokens, 8 K-steps: 81.1 -> 74.6 us.
  template <u32 kStepBegin, u32 kStepEnd>
  __device__ void load(const ExpertTile& tile) {
    constexpr u32 kPiece = kWaveSize * kVecBytes;
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      if (i > 0 && tile_row(i) >= tile.rows) continue;
#pragma unroll
      for (u32 s = 2 * kStepBegin; s < 2 * kStepEnd; ++s) {
        x[i][s / 2][s % 2] =
            buffer_load_b128(payload_, lane_id() * kVecBytes | oob_bits(tile, i),
                             (tile.global_row + tile_row(i)) * HRows::kRowSize + s * kPiece);
      }
    }
    sched_barrier();
  }
  __device__ TileScales load_scales(const ExpertTile& tile) const {
    const u32 lane = lane_id(), quarter = lane / kTileRows;
    TileScales scales;
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (u32 c = 0; c < HRows::kChunks; ++c) {
        const u32 offset = lane % kTileRows * HRows::kRowScales + c * HRows::Layout::kBlocks +
                           quarter * HRows::Layout::kScalesPerLane;
        scales.chunk[i][c] = Scales::load(scales_, offset | oob_bits(tile, i),
                                          (tile.global_row + tile_row(i)) * HRows::kRowScales);
      }
    }
    sched_barrier();
    return scales;
  }

 private:
  __device__ static u32 oob_bits(const ExpertTile& tile, u32 i) {
    return tile_row(i) + lane_id() % kTileRows < tile.rows ? 0 : kOutOfBounds;
  }
  Buffer payload_, scales_;
};

}  // namespace rfops
