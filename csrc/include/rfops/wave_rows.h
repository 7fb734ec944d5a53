// Tiles of an operand that a wave loads for itself, from memory to registers.
//
// Neighbouring lanes of an operand have different rows, so that a load straight to them asks for 64
// pieces of memory of 16 bytes each. Here 8 neighbours load 128 bytes of a row, 8 pieces of 128
// bytes in all, and the wave puts a tile into the operand's order through 2 KB of LDS of its own.
// LDS takes a wave's instructions in their order, so nothing else is waited for. Shuffled operands
// lie in that order already; and where loads are few, straight ones are there sooner (kLines).
#pragma once

#include "rfops/lds_tile.h"
#include "rfops/loader.h"
#include "rfops/matrix.h"
#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

// The order of operands, by way of `own`: kLdsTile bytes that no other wave uses.
class WaveOrder {
 public:
  __device__ WaveOrder(LdsBytes* own, u32 lane)
      : low_(own + lds_at(lane / kRowChunks, lane % kRowChunks)),
        high_(own + lds_at(kTileRows / 2 + lane / kRowChunks, lane % kRowChunks)),
        own_(own),
        pieces_(lds_pieces(lane)) {}

  __device__ void arrange(Tile& tile) const {
    *reinterpret_cast<RFOPS_LDS U32x4*>(low_) = tile.low;
    *reinterpret_cast<RFOPS_LDS U32x4*>(high_) = tile.high;
    between_lanes();
    tile = lds_tile(own_, pieces_);
    between_lanes();
  }

 private:
  // The compiler takes lanes for independent; the wave's order of instructions is what is wanted.
  __device__ static void between_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
  }
  LdsBytes *low_, *high_;
  const LdsBytes* own_;
  LdsPieces pieces_;
};

template <bool kShuffled, bool kLines>
class WaveRows {
  static constexpr bool kStraight = kShuffled || !kLines;

 public:
  using Order = MemoryOrder<kShuffled>;
  static constexpr u32 kUnit = Order::kUnit;

  __device__ WaveRows(const OperandRows& rows, u32 lane) : rows_(rows) {
    from_ = kStraight ? Order::place(lane % kTileRows, lane / kTileRows, rows.row_bytes)
                      : Order::place(lane / kRowChunks, lane % kRowChunks, rows.row_bytes);
  }

  // What `arrange` takes of 16 rows from `row` on, a multiple of 16; of K from `k` on.
  template <CacheHint kHint = kCached>
  __device__ Tile load(u32 row, u32 k, bool is_there) const {
    const Buffer buffer = make_buffer(rows_.first, is_there ? rows_.bytes : 0);
    const u32 at = row * rows_.row_bytes + k * kUnit;
    const u32 further = kStraight ? kPieceK * kUnit : kTileRows / 2 * rows_.row_bytes;
    return {load_16<kHint>(buffer, from_, at), load_16<kHint>(buffer, from_, at + further)};
  }

  // A tile that was loaded, as matrix cores take it.
  __device__ static void arrange(Tile& tile, const WaveOrder& order) {
    if constexpr (!kStraight) order.arrange(tile);
  }

 private:
  OperandRows rows_;
  u32 from_;
};

static_assert(details::are_apart(details::kWritePhases, 32,
                                 [](u32 l) { return lds_at(8 + l / 8, l % 8); }),
              "writes of the other 8 rows have no bank conflict either");

}  // namespace rfops
