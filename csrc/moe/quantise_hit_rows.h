// MFMA operands of FP8 from rows of 16-bit elements, of which a wave needs few: those of the tokens
// that chose its expert. The wave quantises them itself (rfops/number/fp8_blockscale.h).
//
// Layout. A load brings four blocks of 128 of one row, 8 elements per lane and 16 lanes per block.
// Payloads pass through an LDS tile per block (rfops/tile/lds_swizzle.h) to the lanes of the row;
// all other lanes have zeros. LDS serves the accesses of one wave in order, so no barrier is
// needed.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/wave/mx_block_amax.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Quantises rows of one operand tile of 16 rows. Payloads and scales equal those of
// quant_fp8_blockscale bit for bit. Requires: all lanes active.
template <class Input>
class HitRows {
 public:
  static constexpr u32 kBlocks = 4;  // neighbouring ones along K that are quantised together
  // A tile of 128-byte rows begins at another half of 64 banks than the tile before.
  static constexpr u32 kTileStride = kLdsTile + (kLdsBanks == 64 ? kRowBytes : 0);
  static constexpr u32 kBytes = kBlocks * kTileStride;  // of LDS, which no other wave uses

  // `rows` has a bit for each of the first 16 rows of the buffer that is needed; they are
  // `row_bytes` apart.
  __device__ HitRows(const Buffer& buffer, u32 row_bytes, u32 rows)
      : buffer_(buffer), row_bytes_(row_bytes), rows_(rows) {}

  // Loads the first rows: kBlocks blocks of 128 from `block` on, zeros from block `end` on.
  __device__ void load(u32 block, u32 end) {
    remaining_ = rows_;
    load_more(block, end);
  }
  // Quantises all rows, of which it loads those beyond the first; returns the lane's fragments and
  // the scales of its row.
  __device__ void quantise(Fragment (&tiles)[kBlocks], f32 (&scales)[kBlocks], LdsBytes* lds,
                           u32 block, u32 end) {
    const u32 lane = lane_id(), lane_row = lane % kTileRows;
#pragma unroll
    for (u32 b = 0; b < kBlocks; ++b) scales[b] = 0.0f;
    if (rows_ != 0) {
      for (;;) {
#pragma unroll
        for (u32 r = 0; r < kRowsAtOnce; ++r) {
          if (remaining_ != 0) {
            const u32 row = static_cast<u32>(__builtin_ctz(remaining_));
            remaining_ &= remaining_ - 1;
            const f32 scale = store_row(lds, row, loaded_[r]);
#pragma unroll
            for (u32 b = 0; b < kBlocks; ++b) {
              const f32 of_block = __builtin_bit_cast(
                  f32, readlane(__builtin_bit_cast(u32, scale), b * kLanesPerBlock));
              scales[b] = lane_row == row ? of_block : scales[b];
            }
          }
        }
        if (remaining_ == 0) break;
        load_more(block, end);
      }
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
  static constexpr u32 kRowsAtOnce = 4;
  static_assert(kBlocks * kLanesPerBlock == kWaveSize, "a load covers the blocks of a row");

  __device__ void load_more(u32 block, u32 end) {
    const u32 lane = lane_id(), bytes = u32{sizeof(Input)};
    const bool in_bounds = block + lane / kLanesPerBlock < end;
    u32 remaining = remaining_;
#pragma unroll
    for (u32 r = 0; r < kRowsAtOnce; ++r) {
      const u32 row = remaining != 0 ? static_cast<u32>(__builtin_ctz(remaining)) : 0;
      const u32 offset = remaining != 0 && in_bounds ? lane * kVecBytes : kOutOfBounds;
      loaded_[r] = buffer_load_b128(buffer_, offset, row * row_bytes_ + block * kTileK * bytes);
      remaining &= remaining - 1;
    }
  }
  // Stores the lane's payloads of a row; returns the scale of its block.
  __device__ static f32 store_row(LdsBytes* lds, u32 row, U32x4 loaded) {
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
    const u32 lane = lane_id(), chunk = lane % kLanesPerBlock / 2;
    const u32 offset = lane / kLanesPerBlock * kTileStride + lds_offset(row, chunk) + lane % 2 * 8;
    *reinterpret_cast<RFOPS_LDS U32x2*>(lds + offset) = U32x2{payloads(0), payloads(4)};
    return block.scale();
  }
  // Keeps the order of this wave's LDS accesses: the compiler assumes that lanes are independent.
  __device__ static void between_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
  }

  Buffer buffer_;
  u32 row_bytes_, rows_, remaining_ = 0;
  U32x4 loaded_[kRowsAtOnce];
};

}  // namespace rfops
