// Loads operand tiles of a single wave from global memory to registers.
//
// Neighbouring lanes of a fragment have different rows, so a direct load touches 64 separate
// 16-byte chunks. Here 8 kLines neighbouring lanes load 128 kLines contiguous bytes of a row, which
// is more efficient for memory, and the wave brings kLines tiles along K into fragment order
// through 2 KiB of its own LDS each. LDS serves the accesses of one wave in order, so no barrier is
// needed. Preshuffled operands are in fragment order already, and few loads complete sooner when
// they are direct (kLines = 0).
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// Reorders loaded data to fragments, through kBytes of LDS that no other wave uses.
template <u32 kLines>
class WaveOrder {
 public:
  static constexpr u32 kTiles = kLines > 0 ? kLines : 1;  // consecutive along K
  static constexpr u32 kLoads = 2 * kTiles;
  static constexpr u32 kLanes = kTiles * kRowChunks;  // lanes per row
  static constexpr u32 kRows = kWaveSize / kLanes;    // rows per load
  static constexpr u32 kBytes = kLines * kLdsTile;
  static_assert(kRows * kLoads == kTileRows, "a load covers 8, 4 or 2 whole rows");

  // `lds_begin` is the offset in `memory` of this wave's LDS, a multiple of kLdsTile.
  __device__ WaveOrder(LdsBytes* memory, u32 lds_begin, u32 lane)
      : memory_(memory),
        lds_dst_(lds_begin + lds_write_offset(0, lane)),
        fragment_(lds_fragment_offsets(lane)) {
    fragment_.low += lds_begin;
    fragment_.high += lds_begin;
  }

  // Turns `tiles`, whose halves hold what the loads brought, into fragments.
  __device__ void arrange(Fragment* tiles) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      constexpr u32 kRowMask = kRowBytes - 1;
      const u32 write_offset = lds_write_offset(i, 0);
      *reinterpret_cast<RFOPS_LDS U32x4*>(memory_ + (write_offset & ~kRowMask) +
                                          (lds_dst_ ^ (write_offset & kRowMask))) =
          i % 2 ? tiles[i / 2].high : tiles[i / 2].low;
    }
    between_lanes();
#pragma unroll
    for (u32 s = 0; s < kTiles; ++s)
      tiles[s] = lds_load_fragment(memory_ + s * kLdsTile, fragment_);
    between_lanes();
  }

  // The chunk of a row, and the row of a load, that a lane loads.
  static constexpr u32 chunk(u32 lane) { return lane % kLanes; }
  static constexpr u32 row(u32 lane) { return lane / kLanes; }
  static constexpr u32 lds_write_offset(u32 load, u32 lane) {
    return chunk(lane) / kRowChunks * kLdsTile +
           lds_offset(load * kRows + row(lane), chunk(lane) % kRowChunks);
  }

 private:
  // Keeps the order of this wave's LDS accesses: the compiler assumes that lanes are independent.
  __device__ static void between_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
  }
  LdsBytes* memory_;
  u32 lds_dst_;
  LdsFragmentOffsets fragment_;
};

template <bool kShuffled, u32 kLines>
class WaveTileLoader {
  static constexpr bool kDirect = kShuffled || kLines == 0;
  using Lanes = WaveOrder<kLines>;

 public:
  using Layout = OperandLayout<kShuffled>;
  static constexpr u32 kKStrideBytes = Layout::kKStrideBytes;
  static constexpr u32 kTiles = Lanes::kTiles;  // consecutive along K

  __device__ WaveTileLoader(const OperandView& rows, u32 lane) : rows_(rows) {
    src_offset_ = kDirect ? Layout::offset(lane % kTileRows, lane / kTileRows, rows.row_bytes)
                          : Layout::offset(Lanes::row(lane), Lanes::chunk(lane), rows.row_bytes);
    block_ = kDirect || kTiles == 1 ? 0 : Lanes::chunk(lane) / kRowChunks;
  }

  // Loads 16 rows from `row` on, a multiple of 16, by kTiles blocks of K from `block` on; zeros
  // from block `end` on. Pass the result to arrange().
  template <CacheHint kHint = kCached>
  __device__ void load(Fragment* tiles, u32 row, u32 block, u32 end) const {
    const u32 scalar_offset = row * rows_.row_bytes + block * kTileK * kKStrideBytes;
    // Masks by lane offsets: another size would need a descriptor, four SGPRs, of its own.
    const Buffer buffer = make_buffer(rows_.base, rows_.bytes);
#pragma unroll
    for (u32 s = 0; s < kTiles; ++s) {
      if constexpr (kDirect) {
        const u32 offset = block + s < end ? src_offset_ : kOutOfBounds;
        const u32 tile_offset = scalar_offset + s * kTileK * kKStrideBytes;
        tiles[s] = {buffer_load_b128<kHint>(buffer, offset, tile_offset),
                    buffer_load_b128<kHint>(buffer, offset, tile_offset + kPieceK * kKStrideBytes)};
      } else {
        const u32 offset = block + block_ < end ? src_offset_ : kOutOfBounds;
        const u32 tile_offset = scalar_offset + 2 * s * Lanes::kRows * rows_.row_bytes;
        tiles[s] = {
            buffer_load_b128<kHint>(buffer, offset, tile_offset),
            buffer_load_b128<kHint>(buffer, offset, tile_offset + Lanes::kRows * rows_.row_bytes)};
      }
    }
  }

  // Converts loaded tiles to fragments.
  __device__ static void arrange(Fragment* tiles, const WaveOrder<kLines>& order) {
    if constexpr (!kDirect) order.arrange(tiles);
  }

 private:
  OperandView rows_;
  u32 src_offset_, block_;
};

namespace details {

template <u32 kLines>
constexpr bool writes_conflict_free() {
  for (u32 i = 0; i < WaveOrder<kLines>::kLoads; ++i) {
    if (!conflict_free(kWritePhases, 32,
                       [i](u32 l) { return WaveOrder<kLines>::lds_write_offset(i, l); })) {
      return false;
    }
    for (u32 lane = 0; lane < kWaveSize; ++lane) {  // the offsets that arrange() computes
      const u32 write_offset = WaveOrder<kLines>::lds_write_offset(i, 0),
                low = write_offset % kRowBytes;
      if ((write_offset - low) + (WaveOrder<kLines>::lds_write_offset(0, lane) ^ low) !=
          WaveOrder<kLines>::lds_write_offset(i, lane)) {
        return false;
      }
    }
  }
  return true;
}
static_assert(writes_conflict_free<1>() && writes_conflict_free<2>() && writes_conflict_free<4>(),
              "writes have no bank conflict");

}  // namespace details

}  // namespace rfops
