// The tiles of a mixture's experts (expert_tile_scheduler.h) as a table in LDS, for kernels in
// which every workgroup processes all tiles: computing a tile takes a wave longer than multiplying
// it.
#pragma once

#include "moe/expert_tile_scheduler.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

using TileWords = U32x4;
class TileTable {
 public:
  // The order starts with tile `first_tile` and wraps around.
  __device__ TileTable(RFOPS_LDS TileWords* words, u32 tiles, u32 first_tile)
      : words_(words), tiles_(tiles), first_tile_(first_tile) {}

  // Writes the table; called by one wave.
  template <class Experts>
  __device__ void fill(const Experts& scheduler) const {
    const auto write = [&](u32 number, const ExpertTile& tile) {
      words_[number] = TileWords{tile.expert, tile.row, tile.rows, tile.global_row};
    };
    scheduler.tiles(write);
    if (lane_id() == 0) write(tiles_, {});
  }
  // Returns tile `number` of the order; beyond the last, a tile without rows.
  __device__ TileWords words(u32 number) const {
    const u32 rotated =
        number + first_tile_ < tiles_ ? number + first_tile_ : number + first_tile_ - tiles_;
    return words_[number < tiles_ ? rotated : tiles_];
  }
  __device__ static ExpertTile tile(TileWords words) {
    return {readfirstlane(words[0]), 0, readfirstlane(words[1]), readfirstlane(words[2]),
            readfirstlane(words[3])};
  }

 private:
  RFOPS_LDS TileWords* words_;
  u32 tiles_, first_tile_;
};

// One of the items into which a tile's K is cut.
struct TileItem {
  ExpertTile tile;
  u32 number;
};

// Iterates over the items of all tiles; the read of the next tile is in flight.
template <u32 kItems>
class TileCursor {
 public:
  // Starts at the first item of tile `tile`.
  __device__ TileCursor(const TileTable& table, u32 tile)
      : table_(table), tile_(tile), current_{TileTable::tile(table.words(tile)), 0} {
    next_ = table.words(tile + 1);
  }
  __device__ const TileItem& current() const { return current_; }
  __device__ void advance() {
    if (++current_.number < kItems) return;
    current_ = {TileTable::tile(next_), 0};
    next_ = table_.words(++tile_ + 1);
  }

 private:
  const TileTable& table_;
  u32 tile_;
  TileItem current_;
  TileWords next_;
};

}  // namespace rfops
