// Slices of a mixture's tiles (expert_tile_scheduler.h), for waves of a workgroup that load and
// waves that multiply.
#pragma once

#include "moe/expert_tile_scheduler.h"

namespace rfops {

// Like for_each_row_slice of expert_tile_scheduler.h, for waves that advance through the slices at
// different speeds. Tiles of the last round are cut by column units first, then by rows. Where the
// tiles along N are a multiple of kXcds, an XCD gets every kXcds-th of them, which balances work
// and reads over the XCDs for any rows per expert; else it gets consecutive tiles of all, and its
// share of the tiles of shared experts (from `routed` on).
template <class Rows, u32 kUnits, u32 kRowGranularity>
class TileShareScheduler {
 public:
  __device__ static bool is_by_columns(u32 n_tiles) { return n_tiles % kXcds == 0; }
  // Returns the tiles along N that `scheduler` covers.
  __device__ static u32 scheduled_n_tiles(u32 n_tiles) {
    return is_by_columns(n_tiles) ? n_tiles / kXcds : n_tiles;
  }
  __device__ TileShareScheduler(const Rows& scheduler, u32 n_tiles, u32 routed, u32 groups)
      : scheduler_(scheduler),
        is_by_columns_(is_by_columns(n_tiles)),
        workgroups_(groups / kXcds),
        item_(workgroup_id_x() / kXcds),
        step_(workgroups_) {
    const u32 xcd = workgroup_id_x() % kXcds, routed_tiles = scheduler.tiles_before(routed),
              shared_tiles = scheduler.tiles() - routed_tiles;
    routed_begin_ = routed_tiles * xcd / kXcds;
    routed_count_ = routed_tiles * (xcd + 1) / kXcds - routed_begin_;
    shared_offset_ = routed_tiles + shared_tiles * xcd / kXcds - routed_count_;
    const u32 consecutive = routed_tiles + shared_tiles * (xcd + 1) / kXcds - shared_offset_;
    const u32 count = is_by_columns_ ? scheduler.tiles() : consecutive;
    const u32 tail_tiles = count % workgroups_,
              slices = tail_tiles > 0 ? workgroups_ / tail_tiles : 1;
    full_tiles_ = count - tail_tiles;
    column_slices_ = slices < kUnits ? slices : kUnits;
    row_slices_ = slices / column_slices_ < kMaxRowSlices ? slices / column_slices_ : kMaxRowSlices;
    end_ = full_tiles_ + tail_tiles * column_slices_ * row_slices_;
    // Half of the workgroups take their slices in reverse order, the short ones of the last round
    // first: so not all of them compute h at once, when none loads weights. Estimated, gfx950, gate
    // and up of 33 experts, 512 tokens, I 2048: 110.4 -> 106.5 us.
    if (item_ >= workgroups_ / 2 && item_ < end_) {
      step_ = 0 - workgroups_;
      item_ += (end_ - item_ - 1) / workgroups_ * workgroups_;
    }
  }
  // Returns the next slice in scalar registers: the compiler cannot prove values uniform after a
  // loop with several exits.
  __device__ TileSlice next() {
    const TileSlice slice = find();
    const ExpertTile& tile = slice.tile;
    return {{readfirstlane(tile.expert), readfirstlane(tile.n), readfirstlane(tile.row),
             readfirstlane(tile.rows), readfirstlane(tile.global_row)},
            readfirstlane(slice.column),
            readfirstlane(slice.columns)};
  }

 private:
  static constexpr u32 kMaxRowSlices = 4;
  __device__ TileSlice find() {
    while (item_ < end_) {
      const u32 item = item_, slice_idx = item - full_tiles_,
                slices_per_tile = column_slices_ * row_slices_;
      item_ += step_;
      if (item < full_tiles_) return {tile(item), 0, kUnits};
      TileSlice slice = {tile(full_tiles_ + slice_idx / slices_per_tile), 0, 0};
      const u32 column_slice = slice_idx % column_slices_,
                row_slice = slice_idx % slices_per_tile / column_slices_;
      slice.column = kUnits * column_slice / column_slices_;
      slice.columns = kUnits * (column_slice + 1) / column_slices_ - slice.column;
      ExpertTile& tile = slice.tile;
      const u32 units = (tile.rows + kRowGranularity - 1) / kRowGranularity;
      const u32 begin = units * row_slice / row_slices_ * kRowGranularity,
                end = units * (row_slice + 1) / row_slices_ * kRowGranularity;
      if (begin >= end) continue;
      tile.rows = (end < tile.rows ? end : tile.rows) - begin;
      tile.row += begin, tile.global_row += begin;
      return slice;
    }
    return {};
  }

  __device__ ExpertTile tile(u32 number) const {
    if (!is_by_columns_) {
      return scheduler_.tile(number + (number < routed_count_ ? routed_begin_ : shared_offset_));
    }
    // The order starts in the middle of all tiles. Tiles of shared experts read the same weights;
    // so they run while other tiles keep the memory busy, and not at the end. Estimated, gfx950,
    // gate and up of 33 experts, 512 tokens: 118 -> 115 us.
    const u32 count = scheduler_.tiles(), rotated = number + count / 2;
    ExpertTile tile = scheduler_.tile(rotated < count ? rotated : rotated - count);
    tile.n = tile.n * kXcds + workgroup_id_x() % kXcds;
    return tile;
  }
  Rows scheduler_;
  bool is_by_columns_;
  u32 routed_begin_, routed_count_, shared_offset_;  // of an XCD's consecutive tiles
  u32 workgroups_, item_, step_, full_tiles_, column_slices_, row_slices_, end_;
};

}  // namespace rfops
