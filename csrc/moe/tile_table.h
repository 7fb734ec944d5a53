// Tiles of a mixture's experts (expert_tile_scheduler.h) in LDS, for kernels that go through all of
// them: to find one takes a wave longer than to multiply it.
#pragma once

#include "moe/expert_tile_scheduler.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

using TileWords = U32x4;
class TileTable {
 public:
  // Tile `first` is number 0.
  __device__ TileTable(RFOPS_LDS TileWords* at, u32 tiles, u32 first)
      : at_(at), tiles_(tiles), first_(first) {}

  // By one wave.
  template <class Experts>
  __device__ void fill(const Experts& all) const {
    const auto put = [&](u32 number, const ExpertTile& tile) {
      at_[number] = TileWords{tile.expert, tile.row, tile.rows, tile.first};
    };
    all.tiles(put);
    if (lane_id() == 0) put(tiles_, {});
  }
  // None, beyond the last.
  __device__ TileWords words(u32 number) const {
    const u32 turned = number + first_ < tiles_ ? number + first_ : number + first_ - tiles_;
    return at_[number < tiles_ ? turned : tiles_];
  }
  __device__ static ExpertTile tile(TileWords words) {
    return {readfirstlane(words[0]), 0, readfirstlane(words[1]), readfirstlane(words[2]),
            readfirstlane(words[3])};
  }

 private:
  RFOPS_LDS TileWords* at_;
  u32 tiles_, first_;
};

// An item of a workgroup's work: tile after tile, and of each all of K.
struct TileItem {
  ExpertTile tile;
  u32 number;
};

// Goes through them; the tile after this one is on its way.
template <u32 kItems>
class TileCursor {
 public:
  // From tile `tile` on.
  __device__ TileCursor(const TileTable& all, u32 tile)
      : all_(all), tile_(tile), here_{TileTable::tile(all.words(tile)), 0} {
    next_ = all.words(tile + 1);
  }
  __device__ const TileItem& here() const { return here_; }
  __device__ void advance() {
    if (++here_.number < kItems) return;
    here_ = {TileTable::tile(next_), 0};
    next_ = all_.words(++tile_ + 1);
  }

 private:
  const TileTable& all_;
  u32 tile_;
  TileItem here_;
  TileWords next_;
};

}  // namespace rfops
