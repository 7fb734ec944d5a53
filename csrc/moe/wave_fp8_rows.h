// MFMA operands of FP8 from up to 16 rows of 16-bit elements, which a wave quantises itself, some
// blocks along K at a time (fp8_lane_block.h).
//
// Layout. A load brings kBlocks blocks of as many rows as a wave has lanes for. Payloads and scales
// pass through LDS (rfops/tile/lds_swizzle.h) to the lanes of the row. LDS serves the accesses of
// one wave in order, so no barrier is needed.
#pragma once

#include "moe/fp8_lane_block.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// Payloads and scales equal those of quant_fp8_blockscale bit for bit; of rows beyond the count
// they are what the LDS held, and scales 0. Requires: all lanes active.
template <class Input, u32 kNumBlocks>
class WaveFp8Rows {
 public:
  static constexpr u32 kBlocks = kNumBlocks;

 private:
  static constexpr u32 kLanesPerRow = kBlocks * Fp8LaneBlock::kLanes;
  static constexpr u32 kRowsPerLoad = kWaveSize / kLanesPerRow;
  static constexpr u32 kLoads = kTileRows / kRowsPerLoad, kFirstLoads = kLoads / 2;
  // A tile of 128-byte rows begins at another half of 64 banks than the tile before.
  static constexpr u32 kTileStride = kLdsTile + (kLdsBanks == 64 ? kRowBytes : 0);
  static constexpr u32 kScaleStride = (kTileRows + 1) * sizeof(f32);
  static constexpr u32 kScales = kBlocks * kTileStride;  // where they begin

 public:
  static constexpr u32 kBytes = kScales + kBlocks * kScaleStride;  // of LDS

  // Lane l has the byte offset in the buffer of row l % 16; the first `count` rows are there.
  __device__ WaveFp8Rows(const Buffer& rows, u32 row_offset, u32 count)
      : rows_(rows), count_(count) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      const u32 row = i * kRowsPerLoad + lane / kLanesPerRow;
      const u32 offset = static_cast<u32>(__builtin_amdgcn_ds_bpermute(
          static_cast<i32>(row * sizeof(u32)), static_cast<i32>(row_offset)));
      offset_[i] = row < count ? offset + lane % kLanesPerRow * kVecBytes : kOutOfBounds;
    }
  }
  struct Loaded {
    U32x4 values[kLoads];
  };
  // Loads kBlocks blocks of 128 from `block` on, zeros from block `end` on.
  __device__ void load(Loaded& loaded, u32 block, u32 end) const {
    const u32 lane_block = lane_id() % kLanesPerRow / Fp8LaneBlock::kLanes;
    const u32 oob_bits = block + lane_block < end ? 0 : kOutOfBounds;
    const u32 begin = block * Fp8LaneBlock::kElems * u32{sizeof(Input)};
#pragma unroll
    for (u32 i = 0; i < kFirstLoads; ++i)
      loaded.values[i] = buffer_load_b128(rows_, offset_[i] | oob_bits, begin);
    if (count_ <= kFirstLoads * kRowsPerLoad) return;
#pragma unroll
    for (u32 i = kFirstLoads; i < kLoads; ++i)
      loaded.values[i] = buffer_load_b128(rows_, offset_[i] | oob_bits, begin);
  }
  // Returns the lane's fragments, and the scales of its row.
  __device__ void quantise(const Loaded& loaded, Fragment (&tiles)[kBlocks], f32 (&scales)[kBlocks],
                           LdsBytes* lds) const {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      if (i * kRowsPerLoad < count_) store(loaded.values[i], i, lds);
    }
    between_lanes();
    const LdsFragmentOffsets offsets = lds_fragment_offsets(lane);
    const bool has_row = lane % kTileRows < count_;
#pragma unroll
    for (u32 b = 0; b < kBlocks; ++b) {
      const Fragment fragment = lds_load_fragment(lds + b * kTileStride, offsets);
      const f32 scale = *reinterpret_cast<const RFOPS_LDS f32*>(lds + kScales + b * kScaleStride +
                                                                lane % kTileRows * sizeof(f32));
      tiles[b] = {has_row ? fragment.low : U32x4{}, has_row ? fragment.high : U32x4{}};
      scales[b] = has_row ? scale : 0.0f;
    }
    between_lanes();
  }

 private:
  // Quantises what load `i` brought.
  __device__ static void store(U32x4 loaded, u32 i, LdsBytes* lds) {
    const u32 lane = lane_id(), lane_block = lane % kLanesPerRow / Fp8LaneBlock::kLanes;
    const u32 row = i * kRowsPerLoad + lane / kLanesPerRow, chunk = lane % Fp8LaneBlock::kLanes;
    using Vec = Fp8LaneBlock::InputVec<Input>;
    const auto block = Fp8LaneBlock::quantise(__builtin_bit_cast(Vec, loaded));
    const u32 offset = lane_block * kTileStride + lds_offset(row, chunk / 2) + chunk % 2 * 8;
    *reinterpret_cast<RFOPS_LDS U32x2*>(lds + offset) = block.codes;
    *reinterpret_cast<RFOPS_LDS f32*>(lds + kScales + lane_block * kScaleStride +
                                      row * sizeof(f32)) = block.scale;
  }
  // Keeps the order of this wave's LDS accesses: the compiler assumes that lanes are independent.
  __device__ static void between_lanes() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
  }

  Buffer rows_;
  u32 count_, offset_[kLoads];
};

}  // namespace rfops
