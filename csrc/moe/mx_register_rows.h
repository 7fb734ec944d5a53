// Rows of h that one wave multiplies, all of K in its registers, and lines of them that workgroups
// of an XCD ask for together (gfx950). h lies by tiles of 16 rows (mx_silu_requant.h).
#pragma once

#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// h of all experts, `rows` rows at most.
template <class Format, u32 kSteps, u32 kChunk>
struct TiledRows {
  using Places = ScaleLayout<Format, kChunk>;
  using Scales = LaneScales<Places>;
  static constexpr u32 kChunks = kSteps / kChunk;
  static constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * Places::kStepBlocks;
  const u8 *payload, *scales;
  u32 rows;
};

// Asks for a line a lane of a tile's rows, up to kRows: workgroup `group` for its share of them, of
// `groups`. What comes goes to 256 bytes of LDS that nobody reads.
template <class All, u32 kRows>
class L2Prefetcher {
  static constexpr u32 kLine = 128, kLines = kRows * (All::kRowSize + All::kRowScales) / kLine;

 public:
  __device__ L2Prefetcher(const All& all, u32 group, u32 groups, u32 unread)
      : payload_(make_buffer_words(all.payload, all.rows * All::kRowSize)),
        scales_(make_buffer_words(all.scales, all.rows * All::kRowScales)),
        group_(group),
        groups_(groups),
        unread_(unread) {}

  __device__ void touch(const ExpertTile& tile) const {
    const u32 rows = (tile.rows + kTileRows - 1) / kTileRows * kTileRows;
    for (u32 i = group_; i * kWaveSize < kLines; i += groups_) {
      const u32 at = (i * kWaveSize + lane_id()) * kLine;
      ask(payload_, tile.first * All::kRowSize, at, rows * All::kRowSize);
      ask(scales_, tile.first * All::kRowScales, at - kRows * All::kRowSize,
          rows * All::kRowScales);
    }
  }

 private:
  __device__ void ask(U32x4 from, u32 first, u32 at, u32 bytes) const {
    buffer_load_lds_b32<kWaveSize>(from, at < bytes ? at : kOutOfBounds, first, unread_);
  }
  U32x4 payload_, scales_;
  u32 group_, groups_, unread_;
};

// kOwn times 16 rows of a tile, a row a lane of sixteen; those of kWaves waves in turn.
template <class All, u32 kOwn, u32 kSteps, u32 kWaves>
class RegisterRows {
  using Scales = All::Scales;

 public:
  struct OwnScales {
    Scales of[kOwn][All::kChunks];
  };
  U32x4 x[kOwn][kSteps][2];

  __device__ explicit RegisterRows(const All& all)
      : payload_(make_buffer(all.payload, all.rows * All::kRowSize)),
        scales_(make_buffer(all.scales, all.rows * All::kRowScales)) {}

  // The tile's row that the wave's `i`th sixteen begin with.
  __device__ static u32 first(u32 i) { return (wave_id() + i * kWaves) * kTileRows; }

  // Steps kFrom .. kTo - 1, on their way. Of the first sixteen the same loads whatever there is, so
  // that the compiler knows how many are; loads of others that are not there would take a
  // tenth of the memory pipe's time (6 waves, 33 experts, 512 tokens, 8 steps: 81.1 -> 74.6 us).
  template <u32 kFrom, u32 kTo>
  __device__ void load(const ExpertTile& tile) {
    constexpr u32 kPiece = kWaveSize * kVecBytes;
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      if (i > 0 && first(i) >= tile.rows) continue;
#pragma unroll
      for (u32 s = 2 * kFrom; s < 2 * kTo; ++s) {
        x[i][s / 2][s % 2] = buffer_load_b128(payload_, lane_id() * kVecBytes | outside(tile, i),
                                              (tile.first + first(i)) * All::kRowSize + s * kPiece);
      }
    }
    sched_barrier();
  }
  __device__ OwnScales load_scales(const ExpertTile& tile) const {
    const u32 lane = lane_id(), quarter = lane / kTileRows;
    OwnScales own;
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
#pragma unroll
      for (u32 c = 0; c < All::kChunks; ++c) {
        const u32 at = lane % kTileRows * All::kRowScales + c * All::Places::kBlocks +
                       quarter * All::Places::kScalesPerLane;
        own.of[i][c] =
            Scales::from(scales_, at | outside(tile, i), (tile.first + first(i)) * All::kRowScales);
      }
    }
    sched_barrier();
    return own;
  }

 private:
  __device__ static u32 outside(const ExpertTile& tile, u32 i) {
    return first(i) + lane_id() % kTileRows < tile.rows ? 0 : kOutOfBounds;
  }
  Buffer payload_, scales_;
};

}  // namespace rfops
