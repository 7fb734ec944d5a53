// Rows of x in FP8 with one scale per 128 (rfops/number/fp8_blockscale.h).
//
// Layout. 16 lanes share a block of 128, 8 elements each.
#pragma once

#include "moe/fp8_lane_block.h"
#include "rfops/chip/types.h"

namespace rfops {

// Quantises the kThreads / 16 blocks of workgroup `group`, of m rows by k / 128. Requires: x
// 16-byte aligned; k a multiple of 128.
template <u32 kThreads, class Input>
__device__ inline void quantise_rows(u8* q, f32* scale, const Input* x, u32 m, u32 k, u32 group) {
  using Block = Fp8LaneBlock;
  const u32 thread = thread_id(), lane = thread % Block::kLanes;
  const u64 index = u64{group} * (kThreads / Block::kLanes) + thread / Block::kLanes;
  if (index >= u64{m} * (k / Block::kElems)) return;  // uniform over the lanes of a block
  const u64 offset = index * Block::kElems + lane * Block::kElemsPerLane;
  const auto block = Block::quantise(*reinterpret_cast<const Block::InputVec<Input>*>(x + offset));
  *reinterpret_cast<U32x2*>(q + offset) = block.codes;
  if (lane == 0) scale[index] = block.scale;
}

}  // namespace rfops
