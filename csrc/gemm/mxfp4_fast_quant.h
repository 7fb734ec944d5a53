// A lane's MX block of 32 elements to e2m1 and its scale, as mxfp4.h has it, in fewer instructions
// (gfx950): the largest magnitude by v_pk_maximum3_f16, which takes a pair's two magnitudes at
// once.
//
// The bits of bf16 are in order as f16 up to f16's infinity; beyond it they are NaN, of either
// type. A block with such an element, rare but for infinities and NaN, takes mxfp4.h's way.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/mxfp4.h"

namespace rfops {

namespace details {

constexpr u32 kHalfInfinity = 0x7c00;

// Above kHalfInfinity where one is NaN.
__device__ inline u32 most_as_halves(const u32 (&words)[16]) {
  constexpr u32 kChains = 2;  // of more the compiler makes more instructions
  F16x2 most[kChains];
#pragma unroll
  for (u32 i = 0; i < 16; ++i) {
    F16x2& own = most[i % kChains];
    const F16x2 pair = __builtin_bit_cast(F16x2, words[i]);
    own = i < kChains
              ? __builtin_bit_cast(F16x2, words[i] & 0x7fff7fff)
              : __builtin_elementwise_maximum(__builtin_elementwise_maximum(own, -pair), pair);
  }
  const F16x2 both = __builtin_elementwise_maximum(most[0], most[1]);
  const U16x2 pair = __builtin_bit_cast(U16x2, both);
  return __builtin_elementwise_max(pair[0], pair[1]);
}

}  // namespace details

// 16 pairs of bf16 or f16.
template <class In, class Rounding>
__device__ inline Mxfp4Block quant_block_quickly(const u32 (&words)[16]) {
  const u32 most = details::most_as_halves(words);
  Mxfp4Block block;
  block.scale = Mxfp4From<In>::template scale<Rounding>(most < details::kHalfInfinity ? most : 0);
  if (__builtin_expect(most >= details::kHalfInfinity, 0)) {
    block.scale = Mxfp4From<In>::template scale<Rounding>(Mxfp4From<In>::most(words));
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 eight[4] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    block.codes[i] = quant_x8<In>(eight, block.scale);
  }
  return block;
}

}  // namespace rfops
