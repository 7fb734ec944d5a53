// Rows of x in FP8 with one scale per 128 (rfops/number/fp8_blockscale.h).
//
// Layout. 16 lanes share a block of 128, 8 elements each.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Quantises the kThreads / 16 blocks of workgroup `group`, of m rows by k / 128. Requires: x
// 16-byte aligned; k a multiple of 128.
template <u32 kThreads, class Input>
__device__ inline void quantise_rows(u8* q, f32* scale, const Input* x, u32 m, u32 k, u32 group) {
  constexpr u32 kBlock = 128, kElemsPerLane = 8, kLanes = kBlock / kElemsPerLane;
  using InputVec = Input __attribute__((ext_vector_type(kElemsPerLane)));
  const u32 thread = thread_id(), lane = thread % kLanes;
  const u64 index = u64{group} * (kThreads / kLanes) + thread / kLanes;
  if (index >= u64{m} * (k / kBlock)) return;  // uniform over the lanes of a block
  const u64 offset = index * kBlock + lane * kElemsPerLane;
  const InputVec values = *reinterpret_cast<const InputVec*>(x + offset);
  f32 v[kElemsPerLane];
  u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
  for (u32 i = 0; i < kElemsPerLane; ++i) {
    v[i] = static_cast<f32>(values[i]);
    amax = Fp8Block::larger(amax, Fp8Block::magnitude(v[i]));
  }
  const Fp8Block block(reduce_lanes<kLanes>(amax, Fp8Block::larger));
  *reinterpret_cast<U32x2*>(q + offset) =
      U32x2{block.convert(v[0], v[1], v[2], v[3]), block.convert(v[4], v[5], v[6], v[7])};
  if (lane == 0) scale[index] = block.scale();
}

}  // namespace rfops
