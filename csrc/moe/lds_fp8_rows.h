// Rows of 16-bit elements, quantised by a workgroup to FP8 operand tiles in LDS.
//
// Layout. 16 lanes have a block of 128 of a row (rfops/number/fp8_blockscale.h), 8 elements each.
// Payloads are in an LDS tile per 16 rows and block (rfops/tile/lds_swizzle.h).
#pragma once

#include "moe/fp8_lane_block.h"
#include "rfops/chip/buffer.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// Up to 16 kTiles rows of kBlocks blocks. Payloads and scales equal those of quant_fp8_blockscale
// bit for bit.
template <class Input, u32 kThreads, u32 kTiles, u32 kBlocks>
class LdsFp8Rows {
  // Tiles begin in turn in both halves of 64 banks, and scales of neighbouring blocks in others.
  static constexpr u32 kTileStride = kLdsTile + (kLdsBanks == 64 ? kRowBytes : 0);
  static constexpr u32 kScaleStride = kTileRows + 1;
  // Blocks of a tile; an even number, so that the next tile's rows go on in the other half.
  static constexpr u32 kTileBlocks = kTiles == 1 ? kBlocks : (kBlocks + 1) / 2 * 2;
  static_assert(kBlocks <= kTileRows, "four scales of neighbouring blocks have no bank in common");

 public:
  struct Memory {
    u8 payloads[kTiles * kTileBlocks * kTileStride];
    f32 scales[kTiles * kTileBlocks * kScaleStride];
  };

  __device__ LdsFp8Rows(RFOPS_LDS Memory* memory, const Buffer& rows, u32 count)
      : memory_(memory),
        rows_(rows),
        num_blocks_(count * kBlocks),
        fragment_(lds_fragment_offsets(lane_id())) {}

  // Issues the loads of the first blocks; row_of(i) returns the number in the buffer of row i.
  template <class RowOf>
  __device__ void issue(RowOf row_of) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) loaded_[i] = load(i * kBlocksPerLoad, row_of);
  }
  // Quantises all rows; call all threads, and a barrier afterwards.
  template <class RowOf>
  __device__ void commit(RowOf row_of) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) store(i * kBlocksPerLoad, loaded_[i]);
    for (u32 begin = kLoads * kBlocksPerLoad; begin < num_blocks_; begin += kBlocksPerLoad)
      store(begin, load(begin, row_of));
  }

  // Returns the lane's fragment of 16 rows; of rows beyond the count what the memory held.
  __device__ Fragment fragment(u32 tile, u32 block) const {
    const auto* const payloads = (const LdsBytes*)memory_->payloads;
    return lds_load_fragment(payloads + (tile * kTileBlocks + block) * kTileStride, fragment_);
  }
  // Returns the scale of the lane's row.
  __device__ f32 scale(u32 tile, u32 block) const {
    return memory_->scales[(tile * kTileBlocks + block) * kScaleStride + lane_id() % kTileRows];
  }

 private:
  static constexpr u32 kLanes = Fp8LaneBlock::kLanes;
  static constexpr u32 kBlocksPerLoad = kThreads / kLanes, kLoads = 2;
  using InputVec = Fp8LaneBlock::InputVec<Input>;

  // Block number begin + thread / 16 of all rows.
  template <class RowOf>
  __device__ InputVec load(u32 begin, RowOf row_of) const {
    const u32 number = begin + thread_id() / kLanes;
    u32 offset = kOutOfBounds;
    if (number < num_blocks_) {
      const u32 block = row_of(number / kBlocks) * kBlocks + number % kBlocks;
      offset = (block * kLanes + thread_id() % kLanes) * kVecBytes;
    }
    return __builtin_bit_cast(InputVec, buffer_load_b128(rows_, offset, 0));
  }
  __device__ void store(u32 begin, InputVec values) const {
    const u32 number = begin + thread_id() / kLanes, lane = thread_id() % kLanes;
    const auto quantised = Fp8LaneBlock::quantise(values);
    if (number >= num_blocks_) return;
    const u32 row = number / kBlocks, block = number % kBlocks;
    const u32 tile = row / kTileRows * kTileBlocks + block, tile_row = row % kTileRows;
    const u32 offset = tile * kTileStride + lds_offset(tile_row, lane / 2) + lane % 2 * 8;
    *reinterpret_cast<RFOPS_LDS U32x2*>((LdsBytes*)memory_->payloads + offset) = quantised.codes;
    if (lane == 0) memory_->scales[tile * kScaleStride + tile_row] = quantised.scale;
  }

  RFOPS_LDS Memory* memory_;
  Buffer rows_;
  u32 num_blocks_;
  LdsFragmentOffsets fragment_;
  InputVec loaded_[kLoads];
};

}  // namespace rfops
