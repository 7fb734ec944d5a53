// A block of 128 elements of 16 bits that 16 lanes quantise to FP8, 8 elements each
// (rfops/number/fp8_blockscale.h).
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce.h"

namespace rfops {

struct Fp8LaneBlock {
  static constexpr u32 kElems = 128, kElemsPerLane = 8, kLanes = kElems / kElemsPerLane;
  template <class Input>
  using InputVec = Input __attribute__((ext_vector_type(kElemsPerLane)));

  U32x2 codes;  // of the lane's elements
  f32 scale;    // of the block

  template <class Vec>
  __device__ static Fp8LaneBlock quantise(Vec values) {
    f32 v[kElemsPerLane];
    u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
    for (u32 i = 0; i < kElemsPerLane; ++i) {
      v[i] = static_cast<f32>(values[i]);
      amax = Fp8Block::larger(amax, Fp8Block::magnitude(v[i]));
    }
    const Fp8Block block(reduce_lanes<kLanes>(amax, Fp8Block::larger));
    return {{block.convert(v[0], v[1], v[2], v[3]), block.convert(v[4], v[5], v[6], v[7])},
            block.scale()};
  }
};

}  // namespace rfops
