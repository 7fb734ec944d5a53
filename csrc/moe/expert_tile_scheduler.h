// The rows of a mixture's experts: how many each has, where they lie, which tiles they make.
//
// Rows of all experts follow each other, expert by expert, each beginning at a multiple of kAlign.
// A tile is up to kRows rows of one expert by a tile along N. An expert has as few tiles as it may,
// so that all together have kMaxExtraRows rows at most beyond kRows - kMaxExtraRows each; their
// heights are multiples of kRowGranularity, but for the last one's, and differ by kRowGranularity
// at most. Tiles of one expert follow each other by n, those of one n along its rows: these share
// weights.
#pragma once

#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

struct ExpertTile {
  u32 expert, n;
  u32 row, rows;  // of the expert's own; none: there is no such tile
  u32 first;      // row of all experts that the tile begins with
};

// Numbers of experts in memory; 0 of those that are not there. No branch: a lane's loads go
// together.
class ExpertArray {
 public:
  __device__ ExpertArray(const u32* of, u32 experts)
      : all_(make_buffer(of, experts * sizeof(u32))) {}
  __device__ u32 operator()(u32 expert) const {
    return buffer_load_dwords<1>(all_, expert * sizeof(u32), 0).dword[0];
  }

 private:
  Buffer all_;
};

// Each lane of a wave has kEach neighbouring experts. All lanes are active.
template <u32 kRows, u32 kEach, u32 kRowGranularity = kRows, u32 kAlign = 1, u32 kMaxExtraRows = 0>
class ExpertTileScheduler {
  static_assert(kRows % kRowGranularity == 0, "then the last tile of an expert has a row too");
  static_assert(kMaxExtraRows <= kRowGranularity && kMaxExtraRows < kRows, "one tile has it");

 public:
  // rows_of(e): how many rows an expert has, for any e. Counts of a call that was aborted may say
  // anything: an expert has `most` rows at most, and all together have `most_in_all`, or none.
  template <class RowsOf>
  __device__ ExpertTileScheduler(u32 experts, u32 n_tiles, u32 most, u32 most_in_all,
                                 RowsOf rows_of)
      : n_tiles_(n_tiles) {
    u32 rows = 0, places = 0, tiles = 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) rows_[i] = rows_of(lane_id() * kEach + i);
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      rows_[i] = lane_id() * kEach + i < experts ? least(rows_[i], most) : 0;
      rows += rows_[i], places += aligned(i), tiles += tiles_of(i);
    }
    // Three chains side by side take as long as one.
    const u32 last_row = inclusive_scan(rows), last_place = inclusive_scan(places);
    const u32 last_tile = inclusive_scan(tiles);
    const u32 there = readlane(last_row, kWaveSize - 1) <= most_in_all ? ~0u : 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) rows_[i] &= there;
    rows_before_ = (last_place - places) & there, tiles_before_ = (last_tile - tiles) & there;
    all_rows_ = readlane(last_place, kWaveSize - 1) & there;
    all_tiles_ = readlane(last_tile, kWaveSize - 1) & there;
    tiles_ = tiles & there;
  }
  __device__ u32 tiles() const { return all_tiles_; }
  // Those of the experts before this one.
  __device__ u32 tiles_before(u32 expert) const {
    u32 tiles = tiles_before_;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      if (i < expert % kEach) tiles += tiles_of(i);
    }
    const u32 before = readlane(tiles, expert / kEach % kWaveSize);
    return expert < kWaveSize * kEach ? before : all_tiles_;
  }

  // Calls store(e, first row of e) for the lane's experts, and once for the end of all.
  template <class Store>
  __device__ void offsets(u32 experts, Store store) const {
    u32 first = rows_before_;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 e = lane_id() * kEach + i;
      if (e < experts) store(e, first);
      first += aligned(i);
    }
    if (lane_id() == 0) store(experts, all_rows_);
  }
  // Calls store(e, rows of e) for the lane's experts.
  template <class Store>
  __device__ void counts(u32 experts, Store store) const {
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 e = lane_id() * kEach + i;
      if (e < experts) store(e, rows_[i]);
    }
  }

  // Calls store(number, tile) for the tiles of the lane's experts, of one along N.
  template <class Store>
  __device__ void tiles(Store store) const {
    u32 number = tiles_before_, first = rows_before_;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 m_tiles = m_tiles_of(rows_[i]);
      for (u32 m = 0; m < m_tiles; ++m) {
        store(number++, part(lane_id() * kEach + i, 0, m, rows_[i], m_tiles, first));
      }
      first += aligned(i);
    }
  }

  __device__ ExpertTile tile(u32 number) const {
    const u64 owners = __builtin_amdgcn_ballot_w64(number - tiles_before_ < tiles_);
    if (owners == 0) return {};
    const u32 owner = static_cast<u32>(__builtin_ctzll(owners));
    u32 in_lane = number - tiles_before_, first_row = rows_before_;
    u32 index = 0, expert_rows = 0, in_expert = 0, first = 0;  // of the lane's one that has it
    bool is_found = false;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      u32 rows = rows_[i];
      force_vgpr(rows);  // what follows is computed here: it would fill registers
      const u32 tiles = m_tiles_of(rows) * n_tiles_;
      if (!is_found && in_lane < tiles) {
        is_found = true;
        index = i, expert_rows = rows, in_expert = in_lane, first = first_row;
      }
      in_lane -= tiles;
      first_row += (rows + kAlign - 1) / kAlign * kAlign;
    }
    const u32 expert = owner * kEach + readlane(index, owner), at = readlane(in_expert, owner);
    const u32 rows = readlane(expert_rows, owner), m_tiles = m_tiles_of(rows);
    first = readlane(first, owner);
    if (m_tiles == 1) return {expert, at, 0, rows, first};  // without three divisions
    return part(expert, at / m_tiles, at % m_tiles, rows, m_tiles, first);
  }

 private:
  __device__ static u32 least(u32 a, u32 b) { return a < b ? a : b; }
  __device__ u32 aligned(u32 i) const { return (rows_[i] + kAlign - 1) / kAlign * kAlign; }
  __device__ static u32 m_tiles_of(u32 rows) {
    constexpr u32 kUsual = kRows - kMaxExtraRows;
    return rows > kMaxExtraRows ? (rows - kMaxExtraRows + kUsual - 1) / kUsual : rows > 0;
  }
  // Tile m of an expert whose rows begin at `first`.
  __device__ static ExpertTile part(u32 expert, u32 n, u32 m, u32 rows, u32 m_tiles, u32 first) {
    const u32 units = (rows + kRowGranularity - 1) / kRowGranularity, lower = units / m_tiles;
    const u32 higher = units % m_tiles;  // so many have one more
    const u32 row = (m * lower + least(m, higher)) * kRowGranularity, left = rows - row;
    const u32 height = (lower + (m < higher ? 1 : 0)) * kRowGranularity;
    return {expert, n, row, least(left, height), first + row};
  }
  __device__ u32 tiles_of(u32 i) const { return m_tiles_of(rows_[i]) * n_tiles_; }
  u32 rows_[kEach];
  u32 n_tiles_, rows_before_, tiles_before_, tiles_, all_rows_, all_tiles_;
};

// The same in LDS, for kernels that want their registers for others.
template <class Rows>
class KeptRows {
 public:
  // All waves of the workgroup call it.
  __device__ void keep(const Rows& rows) {
    if (wave_id() == 0) {
      const Words own = __builtin_bit_cast(Words, rows);
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) of_[i][lane_id()] = own.word[i];
    }
    workgroup_barrier();
  }
  __device__ Rows rows() const {
    Words own;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) own.word[i] = of_[i][lane_id()];
    return __builtin_bit_cast(Rows, own);
  }

 private:
  static constexpr u32 kWords = sizeof(Rows) / sizeof(u32);
  struct Words {
    u32 word[kWords];
  };
  u32 of_[kWords][kWaveSize];
};

// How many rows an expert has: in stage 1 by its count, of shared ones all, then by first rows.
template <u32 kStage>
class RowsOfExpert {
 public:
  __device__ RowsOfExpert(const u32* counts, const u32* offsets, u32 m, u32 routed, u32 experts)
      : from_(kStage == 1 ? counts : offsets, kStage == 1 ? routed : experts + 1),
        m_(m),
        routed_(routed) {}
  __device__ u32 operator()(u32 expert) const {
    if constexpr (kStage == 2) return from_(expert + 1) - from_(expert);
    const u32 count = from_(expert);
    return expert < routed_ ? count : m_;
  }

 private:
  ExpertArray from_;
  u32 m_, routed_;
};

// What the first wave of all leaves for others: stage 1 the first row of each expert, stage 2
// counts of 0 for the next call.
template <u32 kStage, class Rows>
__device__ inline void publish_offsets(const Rows& all, u32* counts, u32* offsets, u32 routed,
                                       u32 experts) {
  if (workgroup_id_x() != 0 || wave_id() != 0) return;
  if constexpr (kStage == 1) {
    all.offsets(experts, [&](u32 e, u32 row) { offsets[e] = row; });
  } else {
    for (u32 e = lane_id(); e < routed; e += kWaveSize) counts[e] = 0;
  }
}

// Calls make(tile) for the tiles of this one of `groups` workgroups, a multiple of kXcds. Tiles of
// an XCD are neighbours, and as many are of shared experts, from `routed` on, whose tiles have the
// same weights, as on the next XCD: all read as much (512 tokens, 33 experts: 40.1 -> 36.2 us).
template <class Rows, class Make>
__device__ inline void for_each_tile(const Rows& all, u32 routed, u32 groups, Make make) {
  const u32 xcd = workgroup_id_x() % kXcds, own = all.tiles_before(routed),
            others = all.tiles() - own;
  u32 from = own * xcd / kXcds, of_own = own * (xcd + 1) / kXcds - from;
  u32 further = own + others * xcd / kXcds - of_own;  // of shared experts, from there on
  u32 count = own + others * (xcd + 1) / kXcds - further;
  u32 workers = groups / kXcds;
  // Scalar registers are too few.
  force_vgpr(from), force_vgpr(of_own), force_vgpr(further), force_vgpr(count), force_vgpr(workers);
  for (u32 at = workgroup_id_x() / kXcds; at < readfirstlane(count); at += readfirstlane(workers)) {
    make(all.tile(at + readfirstlane(at < readfirstlane(of_own) ? from : further)));
  }
}

// The same, but tiles of a last round are shared out by kRowGranularity rows. tile_of(number): a
// tile.
template <u32 kRowGranularity, class Rows, class TileOf, class Make>
__device__ inline void for_each_row_slice(const Rows& all, u32 routed, u32 groups, TileOf tile_of,
                                          Make make) {
  constexpr u32 kMostParts = 4;
  const u32 xcd = workgroup_id_x() % kXcds, workers = groups / kXcds;
  const u32 own = all.tiles_before(routed), others = all.tiles() - own;
  const u32 from = own * xcd / kXcds, until = own * (xcd + 1) / kXcds;
  const u32 shared = own + others * xcd / kXcds, end = own + others * (xcd + 1) / kXcds;
  const u32 count = until - from + end - shared, last = count % workers, whole = count - last;
  const u32 parts = last > 0 && workers / last < kMostParts ? workers / last : kMostParts;
  for (u32 at = workgroup_id_x() / kXcds; at < whole + last * parts; at += workers) {
    const bool is_whole = at < whole;
    const u32 number = is_whole ? at : whole + (at - whole) / parts, of_own = until - from;
    ExpertTile tile = tile_of(number < of_own ? from + number : shared + number - of_own);
    if (!is_whole) {
      const u32 units = (tile.rows + kRowGranularity - 1) / kRowGranularity,
                part = (at - whole) % parts;
      const u32 begin = units * part / parts * kRowGranularity,
                stop = units * (part + 1) / parts * kRowGranularity;
      tile.rows = (stop < tile.rows ? stop : tile.rows) - begin;
      if (begin >= stop) continue;
      tile.row += begin, tile.first += begin;
    }
    make(tile);
  }
}

// A part of a tile: of its columns, in `kUnits` units, `columns` from `column` on.
struct RowSlice {
  ExpertTile tile;  // of no rows: there is none
  u32 column, columns;
};

// As for_each_row_slice, for waves that go through the parts at different speeds; tiles of a last
// round are shared out by units of columns first, then by rows. `all` is of an XCD's own tiles
// along N, every kXcds-th one: whatever rows the experts have, XCDs have the same to do, and read
// as much.
template <class Rows, u32 kUnits, u32 kRowGranularity>
class ExpertParts {
 public:
  __device__ ExpertParts(const Rows& all, u32 groups)
      : all_(all), workers_(groups / kXcds), at_(workgroup_id_x() / kXcds) {
    const u32 count = all.tiles();
    const u32 last = count % workers_, parts = last > 0 ? workers_ / last : 1;
    whole_ = count - last;
    by_columns_ = parts < kUnits ? parts : kUnits;
    by_rows_ = parts / by_columns_ < kMostByRows ? parts / by_columns_ : kMostByRows;
    end_ = whole_ + last * by_columns_ * by_rows_;
  }
  // All of it is scalar, which loops of several exits hide from the compiler.
  __device__ RowSlice next() {
    const RowSlice part = find();
    const ExpertTile& tile = part.tile;
    return {{readfirstlane(tile.expert), readfirstlane(tile.n), readfirstlane(tile.row),
             readfirstlane(tile.rows), readfirstlane(tile.first)},
            readfirstlane(part.column),
            readfirstlane(part.columns)};
  }

 private:
  static constexpr u32 kMostByRows = 4;
  __device__ RowSlice find() {
    while (at_ < end_) {
      const u32 at = at_, part = at - whole_, of_tile = by_columns_ * by_rows_;
      at_ += workers_;
      if (at < whole_) return {tile(at), 0, kUnits};
      RowSlice made = {tile(whole_ + part / of_tile), 0, 0};
      const u32 column = part % by_columns_, row = part % of_tile / by_columns_;
      made.column = kUnits * column / by_columns_;
      made.columns = kUnits * (column + 1) / by_columns_ - made.column;
      ExpertTile& tile = made.tile;
      const u32 units = (tile.rows + kRowGranularity - 1) / kRowGranularity;
      const u32 begin = units * row / by_rows_ * kRowGranularity,
                stop = units * (row + 1) / by_rows_ * kRowGranularity;
      if (begin >= stop) continue;
      tile.rows = (stop < tile.rows ? stop : tile.rows) - begin;
      tile.row += begin, tile.first += begin;
      return made;
    }
    return {};
  }

  __device__ ExpertTile tile(u32 number) const {
    // From the middle of all on: shared experts, whose tiles read weights together, then come while
    // others keep memory busy, not last (gate and up of 33 experts, 512 tokens: 118 -> 115 us).
    const u32 count = all_.tiles(), turned = number + count / 2;
    ExpertTile tile = all_.tile(turned < count ? turned : turned - count);
    tile.n = tile.n * kXcds + workgroup_id_x() % kXcds;
    return tile;
  }
  Rows all_;
  u32 workers_, at_, whole_, by_columns_, by_rows_, end_;
};

}  // namespace rfops
