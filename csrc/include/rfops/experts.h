// The rows of a mixture's experts: how many each has, where they lie, which tiles they make.
//
// Rows of all experts follow each other, expert by expert. A tile is kRows rows of one expert, of
// which the last has fewer, by a tile along N. Tiles of one expert follow each other by n, those of
// one n along its rows: these share weights.
#pragma once

#include "rfops/lanes.h"
#include "rfops/types.h"

namespace rfops {

struct ExpertTile {
  u32 expert, n;
  u32 row, rows;  // of the expert's own; none: there is no such tile
  u32 first;      // row of all experts that the tile begins with
};

// Each lane of a wave has kEach neighbouring experts. All lanes are active.
template <u32 kRows, u32 kEach>
class ExpertRows {
 public:
  // rows_of(e): how many rows an expert has.
  template <class RowsOf>
  __device__ ExpertRows(u32 experts, u32 n_tiles, RowsOf rows_of) : n_tiles_(n_tiles) {
    u32 rows = 0, tiles = 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 e = lane_in_wave() * kEach + i;
      rows_[i] = e < experts ? rows_of(e) : 0;
      rows += rows_[i];
      tiles += tiles_of(i);
    }
    rows_before_ = scan_wave(rows) - rows;
    tiles_before_ = scan_wave(tiles) - tiles;
    all_rows_ = static_cast<u32>(__builtin_amdgcn_readlane(rows_before_ + rows, kWaveSize - 1));
    all_tiles_ = static_cast<u32>(__builtin_amdgcn_readlane(tiles_before_ + tiles, kWaveSize - 1));
    tiles_ = tiles;
  }
  __device__ u32 tiles() const { return all_tiles_; }

  // Calls store(e, first row of e) for the lane's experts, and once for the end of all.
  template <class Store>
  __device__ void offsets(u32 experts, Store store) const {
    u32 first = rows_before_;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 e = lane_in_wave() * kEach + i;
      if (e < experts) store(e, first);
      first += rows_[i];
    }
    if (lane_in_wave() == 0) store(experts, all_rows_);
  }

  __device__ ExpertTile tile(u32 number) const {
    const bool is_own = number >= tiles_before_ && number - tiles_before_ < tiles_;
    const u64 owners = __builtin_amdgcn_ballot_w64(is_own);
    if (owners == 0) return {};
    const int owner = __builtin_ctzll(owners);
    u32 in_lane = number - tiles_before_, first = rows_before_;
    ExpertTile found = {};
    bool is_found = false;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 m_tiles = (rows_[i] + kRows - 1) / kRows, tiles = m_tiles * n_tiles_;
      if (!is_found && in_lane < tiles) {
        is_found = true;
        const u32 row = in_lane % m_tiles * kRows, left = rows_[i] - row;
        found = {lane_in_wave() * kEach + i, in_lane / m_tiles, row, left < kRows ? left : kRows,
                 first + row};
      }
      in_lane -= tiles;
      first += rows_[i];
    }
    const auto of_owner = [&](u32 value) {
      return static_cast<u32>(__builtin_amdgcn_readlane(static_cast<int>(value), owner));
    };
    return {of_owner(found.expert), of_owner(found.n), of_owner(found.row), of_owner(found.rows),
            of_owner(found.first)};
  }

 private:
  __device__ u32 tiles_of(u32 i) const { return (rows_[i] + kRows - 1) / kRows * n_tiles_; }
  u32 rows_[kEach];
  u32 n_tiles_, rows_before_, tiles_before_, tiles_, all_rows_, all_tiles_;
};

}  // namespace rfops
