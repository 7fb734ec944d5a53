// Maps a workgroup id to an output tile so that the workgroups of one XCD share operands in its L2.
//
// The hardware assigns workgroup ids to XCDs round-robin. Here the workgroups of one XCD take
// neighbouring tiles: raster groups of kGroupM tiles along M, walked along M first. With kSplit
// splits of K, the workgroups of one tile are neighbours too. Any number of tiles; each tile has
// one workgroup per split.
#pragma once

#include "rfops/chip/arch.h"
#include "rfops/chip/types.h"

namespace rfops {

// An output tile and a split of its K.
struct TileCoord {
  u32 m, n;   // tile index along M and N
  u32 split;  // split of K
};

// Returns the position of workgroup `id` of `count` in the order in which each XCD gets a
// contiguous range.
constexpr u32 xcd_remap(u32 id, u32 count) {
  const u32 xcd = id % kXcds, ids_per_xcd = count / kXcds, remainder = count % kXcds;
  return xcd * ids_per_xcd + (xcd < remainder ? xcd : remainder) + id / kXcds;
}

// Returns the tile of workgroup `id` among m_tiles x n_tiles tiles.
template <u32 kGroupM, u32 kSplit>
constexpr TileCoord tile_coord(u32 id, u32 m_tiles, u32 n_tiles) {
  const u32 order = xcd_remap(id, m_tiles * n_tiles * kSplit);
  const u32 tile = order / kSplit;
  const u32 group = tile / (kGroupM * n_tiles), index_in_group = tile % (kGroupM * n_tiles);
  const u32 remaining = m_tiles - group * kGroupM, rows = remaining < kGroupM ? remaining : kGroupM;
  return {group * kGroupM + index_in_group % rows, index_in_group / rows, order % kSplit};
}

// Returns this workgroup's tile in scalars: the divisions leave their results in VGPRs.
template <u32 kGroupM, u32 kSplit>
__device__ inline TileCoord this_tile(u32 m_tiles, u32 n_tiles) {
  const TileCoord coord = tile_coord<kGroupM, kSplit>(workgroup_id_x(), m_tiles, n_tiles);
  return {readfirstlane(coord.m), readfirstlane(coord.n), readfirstlane(coord.split)};
}

namespace details {

// Returns whether each split of each tile has exactly one workgroup, for at most 64 workgroups.
template <u32 kGroupM, u32 kSplit>
constexpr bool is_whole(u32 m_tiles, u32 n_tiles) {
  u64 covered = 0;
  for (u32 id = 0; id < m_tiles * n_tiles * kSplit; ++id) {
    const TileCoord b = tile_coord<kGroupM, kSplit>(id, m_tiles, n_tiles);
    if (b.m >= m_tiles || b.n >= n_tiles || b.split >= kSplit) return false;
    covered |= u64{1} << ((b.m * n_tiles + b.n) * kSplit + b.split);
  }
  return covered == (u64{2} << (m_tiles * n_tiles * kSplit - 1)) - 1;
}
static_assert(is_whole<4, 1>(7, 9) && is_whole<4, 3>(5, 3) && is_whole<1, 1>(1, 1) &&
                  is_whole<8, 2>(3, 10),
              "each split of each tile has one workgroup");

}  // namespace details

}  // namespace rfops
