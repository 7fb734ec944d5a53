// MFMA operands of FP8 from rows of 16-bit elements, of which a wave needs few: those of the tokens
// that chose its expert. The wave quantises them itself (rfops/number/fp8_blockscale.h).
//
// Layout. A load brings kBlocks blocks of 128, of as many rows as a wave has lanes for: 8 elements
// per lane and 16 lanes per block. Payloads pass through an LDS tile per block
// (rfops/tile/lds_swizzle.h) to the lanes of the row; all other lanes have zeros. LDS serves the
// accesses of one wave in order, so no barrier is needed.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/wave/mx_block_amax.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Quantises rows of one operand tile of 16 rows, kNumBlocks neighbouring blocks of K at a time.
// Payloads and scales equal those of quant_fp8_blockscale bit for bit. Requires: all lanes active.
template <class Input, u32 kNumBlocks, u32 kLoadsAtOnce = 4>
class HitRows {
 public:
  static constexpr u32 kBlocks = kNumBlocks;
  // A tile of 128-byte rows begins at another half of 64 banks than the tile before.
  static constexpr u32 kTileStride = kLdsTile + (kLdsBanks == 64 ? kRowBytes : 0);
  static constexpr u32 kBytes = kBlocks * kTileStride;  // of LDS, which no other wave uses

  __device__ HitRows() {}
  // `rows` has a bit for each of the 16 rows that is needed; lane l has the byte offset in the
  // buffer of row l % 16.
  __device__ HitRows(const Buffer& buffer, u32 row_offset, u32 rows)
      : buffer_(buffer), row_offset_(row_offset), rows_(rows) {}

  // Loads the first rows: kBlocks blocks of 128 from `block` on, zeros from block `end` on.
  __device__ void load(u32 block, u32 end) {
    remaining_ = rows_;
    load_more(block, end);
    between_lanes();  // or the compiler moves the loads to their use, behind later ones
  }
  // Quantises all rows, of which it loads those beyond the first; returns the lane's fragments and
  // the scales of its row.
  __device__ void quantise(Fragment (&tiles)[kBlocks], f32 (&scales)[kBlocks], LdsBytes* lds,
                           u32 block, u32 end) {
    const u32 lane = lane_id(), lane_row = lane % kTileRows;
#pragma unroll
    for (u32 b = 0; b < kBlocks; ++b) scales[b] = 0.0f;
    const auto store_loaded = [&] {
#pragma unroll
      for (u32 i = 0; i < kLoadsAtOnce; ++i) {
        if (remaining_ == 0) return;
        const LoadRows rows(remaining_);
        const f32 scale = store_rows(lds, rows, loaded_[i]);
#pragma unroll
        for (u32 r = 0; r < kRowsPerLoad; ++r) {
#pragma unroll
          for (u32 b = 0; b < kBlocks; ++b) {
            const u32 scale_lane = (r * kBlocks + b) * kLanesPerBlock;
            const f32 of_block =
                __builtin_bit_cast(f32, readlane(__builtin_bit_cast(u32, scale), scale_lane));
            scales[b] = lane_row == rows.index[r] ? of_block : scales[b];
          }
        }
      }
    };
    // The first rows wait for their own loads alone; the loop leaves none of its own in flight, so
    // that the compiler does not wait for all where paths meet.
    store_loaded();
    while (remaining_ != 0) {
      load_more(block, end);
      wait_vmcnt<0>();
      store_loaded();
    }
    between_lanes();
    const LdsFragmentOffsets offsets = lds_fragment_offsets(lane);
    const bool has_row = rows_ >> lane_row & 1;
#pragma unroll
    for (u32 b = 0; b < kBlocks; ++b) {
      const Fragment loaded = lds_load_fragment(lds + b * kTileStride, offsets);
      tiles[b] = {has_row ? loaded.low : U32x4{}, has_row ? loaded.high : U32x4{}};
    }
    between_lanes();
  }

 private:
  static constexpr u32 kElemsPerLane = 8, kLanesPerBlock = kTileK / kElemsPerLane;
  static constexpr u32 kLanesPerRow = kBlocks * kLanesPerBlock;
  static constexpr u32 kRowsPerLoad = kWaveSize / kLanesPerRow;
  static_assert(kBlocks == 2 || kBlocks == 4, "lanes of a bank conflict have rows of their own");

  // The rows of one load, which are taken from `remaining`; kNone where there are no more.
  struct LoadRows {
    static constexpr u32 kNone = ~0u;
    u32 index[kRowsPerLoad];

    __device__ explicit LoadRows(u32& remaining) {
#pragma unroll
      for (u32 r = 0; r < kRowsPerLoad; ++r) {
        index[r] = remaining != 0 ? static_cast<u32>(__builtin_ctz(remaining)) : kNone;
        remaining &= remaining - 1;
      }
    }
    // Returns the row of a lane.
    __device__ u32 row_of(u32 lane) const {
      u32 row = index[0];
#pragma unroll
      for (u32 r = 1; r < kRowsPerLoad; ++r) row = lane / kLanesPerRow == r ? index[r] : row;
      return row;
    }
  };

  __device__ void load_more(u32 block, u32 end) {
    const u32 lane = lane_id(), bytes = u32{sizeof(Input)};
    const u32 lane_block = lane % kLanesPerRow / kLanesPerBlock;
    const bool in_bounds = block + lane_block < end;
    u32 remaining = remaining_;
#pragma unroll
    for (u32 i = 0; i < kLoadsAtOnce; ++i) {
      const LoadRows rows(remaining);
      u32 offset = lane % kLanesPerRow * kVecBytes;
      offset = rows.row_of(lane) != LoadRows::kNone && in_bounds ? offset : kOutOfBounds;
      u32 row_offset = 0;
      if constexpr (kRowsPerLoad == 1) {
        row_offset = readlane(row_offset_, rows.index[0] % kWaveSize);
      } else {
#pragma unroll
        for (u32 r = 0; r < kRowsPerLoad; ++r) {
          const u32 begin = readlane(row_offset_, rows.index[r] % kWaveSize);
          offset += lane / kLanesPerRow == r ? begin : 0;
        }
      }
      loaded_[i] = buffer_load_b128(buffer_, offset, row_offset + block * kTileK * bytes);
    }
  }
  // Stores the lane's payloads of its row; returns the scale of its block.
  __device__ static f32 store_rows(LdsBytes* lds, const LoadRows& rows, U32x4 loaded) {
    Eight<Input> elems;
#pragma unroll
    for (u32 i = 0; i < elems.kWords; ++i) elems.words[i] = loaded[i];
    using Element = MxFloat<Input>;
    const u32 amax = __builtin_bit_cast(u32, Element::amax_value(Element::amax_bits(elems.words)));
    const Fp8Block block(reduce_lanes<kLanesPerBlock>(
        Fp8Block::larger(amax, Fp8Block::kMinAmaxBits), Fp8Block::larger));
    const auto payloads = [&](u32 i) {
      return block.convert(elems.element(i), elems.element(i + 1), elems.element(i + 2),
                           elems.element(i + 3));
    };
    const u32 lane = lane_id(), row = rows.row_of(lane), chunk = lane % kLanesPerBlock / 2;
    const u32 lane_block = lane % kLanesPerRow / kLanesPerBlock;
    const u32 offset = lane_block * kTileStride + lds_offset(row, chunk) + lane % 2 * 8;
    const U32x2 codes = {payloads(0), payloads(4)};
    if (kRowsPerLoad == 1 || row != LoadRows::kNone)
      *reinterpret_cast<RFOPS_LDS U32x2*>(lds + offset) = codes;
    return block.scale();
  }
  // Keeps the order of this wave's LDS accesses: the compiler assumes that lanes are independent.
  __device__ static void between_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
  }

  Buffer buffer_;
  u32 row_offset_, rows_, remaining_ = 0;
  U32x4 loaded_[kLoadsAtOnce];
};

}  // namespace rfops
