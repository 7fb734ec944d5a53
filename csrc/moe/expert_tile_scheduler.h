// Tile scheduler of a mixture's experts: rows per expert, where they start, and the tiles they
// form.
//
// The rows of all experts are contiguous, expert by expert; an expert starts at a multiple of
// kAlign. A tile is up to kRows rows of one expert by one tile along N. An expert is cut into as
// few tiles as possible: the usual height is kRows - kMaxExtraRows, and kMaxExtraRows more rows
// need no further tile. Heights of an expert's tiles are multiples of kRowGranularity, except the
// last tile's, and differ by at most kRowGranularity. Tiles of an expert are ordered by n, then by
// row; consecutive tiles with the same n share weights.
#pragma once

#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

struct ExpertTile {
  u32 expert, n;
  u32 row, rows;   // first row within the expert, and how many; 0 rows: no such tile
  u32 global_row;  // first row, counted over all experts
};

// An array with one value per expert in memory; out-of-range experts read 0. It has no branch, so
// that the loads of a lane are in flight together.
class ExpertArray {
 public:
  __device__ ExpertArray(const u32* values, u32 experts)
      : buffer_(make_buffer(values, experts * sizeof(u32))) {}
  __device__ u32 operator()(u32 expert) const {
    return buffer_load_dwords<1>(buffer_, expert * sizeof(u32), 0).dword[0];
  }

 private:
  Buffer buffer_;
};

// Each lane of a wave has kExpertsPerLane consecutive experts. All lanes must be active.
template <u32 kRows, u32 kExpertsPerLane, u32 kRowGranularity = kRows, u32 kAlign = 1,
          u32 kMaxExtraRows = 0>
class ExpertTileScheduler {
  static_assert(kRows % kRowGranularity == 0, "the last tile of an expert must not be empty");
  static_assert(kMaxExtraRows <= kRowGranularity && kMaxExtraRows < kRows,
                "one tile of an expert takes the extra rows");

 public:
  // rows_of(e) returns the rows of any expert e. Counts that an aborted call left may be arbitrary,
  // so an expert's rows are limited to max_rows, and if they exceed max_total_rows in all, every
  // expert has none.
  template <class RowsOf>
  __device__ ExpertTileScheduler(u32 experts, u32 n_tiles, u32 max_rows, u32 max_total_rows,
                                 RowsOf rows_of)
      : n_tiles_(n_tiles) {
    u32 rows = 0, aligned_rows = 0, tiles = 0;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) rows_[i] = rows_of(lane_id() * kExpertsPerLane + i);
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      rows_[i] = lane_id() * kExpertsPerLane + i < experts ? smaller(rows_[i], max_rows) : 0;
      rows += rows_[i], aligned_rows += aligned(i), tiles += tiles_of(i);
    }
    // Three independent scans take as long as one.
    const u32 row_end = inclusive_scan(rows), aligned_end = inclusive_scan(aligned_rows);
    const u32 tile_end = inclusive_scan(tiles);
    const u32 valid_mask = readlane(row_end, kWaveSize - 1) <= max_total_rows ? ~0u : 0;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) rows_[i] &= valid_mask;
    rows_before_ = (aligned_end - aligned_rows) & valid_mask,
    tiles_before_ = (tile_end - tiles) & valid_mask;
    total_rows_ = readlane(aligned_end, kWaveSize - 1) & valid_mask;
    total_tiles_ = readlane(tile_end, kWaveSize - 1) & valid_mask;
    tiles_ = tiles & valid_mask;
  }
  __device__ u32 tiles() const { return total_tiles_; }
  // Returns how many tiles belong to the experts before this one.
  __device__ u32 tiles_before(u32 expert) const {
    u32 tiles = tiles_before_;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      if (i < expert % kExpertsPerLane) tiles += tiles_of(i);
    }
    const u32 count = readlane(tiles, expert / kExpertsPerLane % kWaveSize);
    return expert < kWaveSize * kExpertsPerLane ? count : total_tiles_;
  }

  // Calls store(e, first row of e) for the lane's experts, and store(experts, rows in all) once.
  template <class Store>
  __device__ void offsets(u32 experts, Store store) const {
    u32 row = rows_before_;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      const u32 e = lane_id() * kExpertsPerLane + i;
      if (e < experts) store(e, row);
      row += aligned(i);
    }
    if (lane_id() == 0) store(experts, total_rows_);
  }
  // Calls store(e, rows of e) for the lane's experts.
  template <class Store>
  __device__ void counts(u32 experts, Store store) const {
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      const u32 e = lane_id() * kExpertsPerLane + i;
      if (e < experts) store(e, rows_[i]);
    }
  }

  // Calls store(number, tile) for all tiles of the lane's experts, with a single tile along N.
  template <class Store>
  __device__ void tiles(Store store) const {
    u32 number = tiles_before_, row = rows_before_;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      const u32 m_tiles = m_tiles_of(rows_[i]);
      for (u32 m = 0; m < m_tiles; ++m) {
        store(number++, m_tile(lane_id() * kExpertsPerLane + i, 0, m, rows_[i], m_tiles, row));
      }
      row += aligned(i);
    }
  }

  __device__ ExpertTile tile(u32 number) const {
    const u64 owners = __builtin_amdgcn_ballot_w64(number - tiles_before_ < tiles_);
    if (owners == 0) return {};
    const u32 owner = static_cast<u32>(__builtin_ctzll(owners));
    u32 lane_tile = number - tiles_before_, row = rows_before_;
    u32 index = 0, expert_rows = 0, expert_tile = 0,
        row_begin = 0;  // of the lane's matching expert
    bool is_found = false;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      u32 rows = rows_[i];
      force_vgpr(rows);  // computed here, because hoisting it out of the tile loop needs registers
      const u32 tiles = m_tiles_of(rows) * n_tiles_;
      if (!is_found && lane_tile < tiles) {
        is_found = true;
        index = i, expert_rows = rows, expert_tile = lane_tile, row_begin = row;
      }
      lane_tile -= tiles;
      row += (rows + kAlign - 1) / kAlign * kAlign;
    }
    const u32 expert = owner * kExpertsPerLane + readlane(index, owner),
              tile_idx = readlane(expert_tile, owner);
    const u32 rows = readlane(expert_rows, owner), m_tiles = m_tiles_of(rows);
    row_begin = readlane(row_begin, owner);
    if (m_tiles == 1) return {expert, tile_idx, 0, rows, row_begin};  // avoids three divisions
    return m_tile(expert, tile_idx / m_tiles, tile_idx % m_tiles, rows, m_tiles, row_begin);
  }

 private:
  __device__ static u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
  __device__ u32 aligned(u32 i) const { return (rows_[i] + kAlign - 1) / kAlign * kAlign; }
  __device__ static u32 m_tiles_of(u32 rows) {
    constexpr u32 kUsual = kRows - kMaxExtraRows;
    return rows > kMaxExtraRows ? (rows - kMaxExtraRows + kUsual - 1) / kUsual : rows > 0;
  }
  // Tile m of an expert whose rows start at `row_begin`.
  __device__ static ExpertTile m_tile(u32 expert, u32 n, u32 m, u32 rows, u32 m_tiles,
                                      u32 row_begin) {
    const u32 units = (rows + kRowGranularity - 1) / kRowGranularity, lower = units / m_tiles;
    const u32 higher = units % m_tiles;  // tiles with one more unit
    const u32 row = (m * lower + smaller(m, higher)) * kRowGranularity, remaining = rows - row;
    const u32 height = (lower + (m < higher ? 1 : 0)) * kRowGranularity;
    return {expert, n, row, smaller(remaining, height), row_begin + row};
  }
  __device__ u32 tiles_of(u32 i) const { return m_tiles_of(rows_[i]) * n_tiles_; }
  u32 rows_[kExpertsPerLane];
  u32 n_tiles_, rows_before_, tiles_before_, tiles_, total_rows_, total_tiles_;
};

// A scheduler stored in LDS, for kernels that need the registers.
template <class Rows>
class LdsScheduler {
 public:
  // Called by all waves of the workgroup.
  __device__ void save(const Rows& scheduler) {
    if (wave_id() == 0) {
      const Words registers = __builtin_bit_cast(Words, scheduler);
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) words_[i][lane_id()] = registers.word[i];
    }
    workgroup_barrier();
  }
  __device__ Rows load() const {
    Words registers;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) registers.word[i] = words_[i][lane_id()];
    return __builtin_bit_cast(Rows, registers);
  }

 private:
  static constexpr u32 kWords = sizeof(Rows) / sizeof(u32);
  struct Words {
    u32 word[kWords];
  };
  u32 words_[kWords][kWaveSize];
};

// Rows per expert. Stage 1: routed experts by their count, shared experts all m tokens. Stage 2: by
// the experts' offsets.
template <u32 kStage>
class RowsOfExpert {
 public:
  __device__ RowsOfExpert(const u32* counts, const u32* offsets, u32 m, u32 routed, u32 experts)
      : values_(kStage == 1 ? counts : offsets, kStage == 1 ? routed : experts + 1),
        m_(m),
        routed_(routed) {}
  __device__ u32 operator()(u32 expert) const {
    if constexpr (kStage == 2) return values_(expert + 1) - values_(expert);
    const u32 count = values_(expert);
    return expert < routed_ ? count : m_;
  }

 private:
  ExpertArray values_;
  u32 m_, routed_;
};

// Writes what later launches read, by the first wave of the grid: stage 1 the first row of each
// expert, stage 2 counts of 0 for the next call.
template <u32 kStage, class Rows>
__device__ inline void publish_offsets(const Rows& scheduler, u32* counts, u32* offsets, u32 routed,
                                       u32 experts) {
  if (workgroup_id_x() != 0 || wave_id() != 0) return;
  if constexpr (kStage == 1) {
    scheduler.offsets(experts, [&](u32 e, u32 row) { offsets[e] = row; });
  } else {
    for (u32 e = lane_id(); e < routed; e += kWaveSize) counts[e] = 0;
  }
}

// Calls compute(tile) for the tiles of this one of `groups` workgroups, a multiple of kXcds. An XCD
// gets consecutive tiles, and its share of the tiles of shared experts (from `routed` on), which
// all read the same weights: this balances the reads over the XCDs. Estimated, gfx950, 512 tokens,
// 33 experts: 40.1 -> 36.2 us.
template <class Rows, class Compute>
__device__ inline void for_each_tile(const Rows& scheduler, u32 routed, u32 groups,
                                     Compute compute) {
  const u32 xcd = workgroup_id_x() % kXcds, routed_tiles = scheduler.tiles_before(routed),
            shared_tiles = scheduler.tiles() - routed_tiles;
  u32 routed_begin = routed_tiles * xcd / kXcds,
      routed_count = routed_tiles * (xcd + 1) / kXcds - routed_begin;
  u32 shared_offset =
      routed_tiles + shared_tiles * xcd / kXcds - routed_count;  // of tiles of shared experts
  u32 count = routed_tiles + shared_tiles * (xcd + 1) / kXcds - shared_offset;
  u32 workgroups = groups / kXcds;
  // VGPRs, because scalar registers are too few.
  force_vgpr(routed_begin), force_vgpr(routed_count), force_vgpr(shared_offset), force_vgpr(count),
      force_vgpr(workgroups);
  for (u32 i = workgroup_id_x() / kXcds; i < readfirstlane(count); i += readfirstlane(workgroups)) {
    compute(scheduler.tile(
        i + readfirstlane(i < readfirstlane(routed_count) ? routed_begin : shared_offset)));
  }
}

// Like for_each_tile, but the tiles of the last, partial round are cut into slices of whole
// kRowGranularity rows, so that more workgroups take part. tile_of(number) returns a tile.
template <u32 kRowGranularity, class Rows, class TileOf, class Compute>
__device__ inline void for_each_row_slice(const Rows& scheduler, u32 routed, u32 groups,
                                          TileOf tile_of, Compute compute) {
  constexpr u32 kMaxSlices = 4;
  const u32 xcd = workgroup_id_x() % kXcds, workgroups = groups / kXcds;
  const u32 routed_tiles = scheduler.tiles_before(routed),
            shared_tiles = scheduler.tiles() - routed_tiles;
  const u32 routed_begin = routed_tiles * xcd / kXcds,
            routed_end = routed_tiles * (xcd + 1) / kXcds;
  const u32 shared_begin = routed_tiles + shared_tiles * xcd / kXcds,
            shared_end = routed_tiles + shared_tiles * (xcd + 1) / kXcds;
  const u32 count = routed_end - routed_begin + shared_end - shared_begin,
            tail_tiles = count % workgroups, full_tiles = count - tail_tiles;
  const u32 slices =
      tail_tiles > 0 && workgroups / tail_tiles < kMaxSlices ? workgroups / tail_tiles : kMaxSlices;
  for (u32 item = workgroup_id_x() / kXcds; item < full_tiles + tail_tiles * slices;
       item += workgroups) {
    const bool is_full = item < full_tiles;
    const u32 number = is_full ? item : full_tiles + (item - full_tiles) / slices,
              routed_count = routed_end - routed_begin;
    ExpertTile tile = tile_of(number < routed_count ? routed_begin + number
                                                    : shared_begin + number - routed_count);
    if (!is_full) {
      const u32 units = (tile.rows + kRowGranularity - 1) / kRowGranularity,
                slice = (item - full_tiles) % slices;
      const u32 begin = units * slice / slices * kRowGranularity,
                end = units * (slice + 1) / slices * kRowGranularity;
      tile.rows = (end < tile.rows ? end : tile.rows) - begin;
      if (begin >= end) continue;
      tile.row += begin, tile.global_row += begin;
    }
    compute(tile);
  }
}

// A slice of a tile: `columns` of its kUnits column units, from unit `column` on.
struct TileSlice {
  ExpertTile tile;  // 0 rows: no slice left
  u32 column, columns;
};

// Like for_each_row_slice, for waves that advance through the slices at different speeds. Tiles of
// the last round are cut by column units first, then by rows. `scheduler` covers the tiles along N
// of one XCD, every kXcds-th: this balances work and reads over the XCDs for any rows per expert.
template <class Rows, u32 kUnits, u32 kRowGranularity>
class TileSliceScheduler {
 public:
  __device__ TileSliceScheduler(const Rows& scheduler, u32 groups)
      : scheduler_(scheduler), workgroups_(groups / kXcds), item_(workgroup_id_x() / kXcds) {
    const u32 count = scheduler.tiles();
    const u32 tail_tiles = count % workgroups_,
              slices = tail_tiles > 0 ? workgroups_ / tail_tiles : 1;
    full_tiles_ = count - tail_tiles;
    column_slices_ = slices < kUnits ? slices : kUnits;
    row_slices_ = slices / column_slices_ < kMaxRowSlices ? slices / column_slices_ : kMaxRowSlices;
    end_ = full_tiles_ + tail_tiles * column_slices_ * row_slices_;
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
      item_ += workgroups_;
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
    // The order starts in the middle of all tiles. Tiles of shared experts read the same weights;
    // so they run while other tiles keep the memory busy, and not at the end. Estimated, gfx950,
    // gate and up of 33 experts, 512 tokens: 118 -> 115 us.
    const u32 count = scheduler_.tiles(), rotated = number + count / 2;
    ExpertTile tile = scheduler_.tile(rotated < count ? rotated : rotated - count);
    tile.n = tile.n * kXcds + workgroup_id_x() % kXcds;
    return tile;
  }
  Rows scheduler_;
  u32 workgroups_, item_, full_tiles_, column_slices_, row_slices_, end_;
};

}  // namespace rfops
