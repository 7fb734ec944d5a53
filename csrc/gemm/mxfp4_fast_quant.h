// Quantises one lane's MX block of 32 elements to e2m1 like mxfp4.h, with fewer instructions
// (gfx950): the largest magnitude by v_pk_maximum3_f16, which handles both magnitudes of a pair.
//
// The bits of bf16 order like f16 up to the infinity of f16; above, they are NaN in either type. A
// block with such an element, which is rare except for infinities and NaN, is quantised by mxfp4.h.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/mxfp4.h"

namespace rfops {

namespace details {

constexpr u32 kHalfInfinity = 0x7c00;

// Returns a value above kHalfInfinity if one element is NaN as f16.
__device__ inline u32 max_as_halves(const u32 (&words)[16]) {
  constexpr u32 kChains = 2;  // more chains lead to more instructions
  F16x2 max_halves[kChains];
#pragma unroll
  for (u32 i = 0; i < 16; ++i) {
    F16x2& chain = max_halves[i % kChains];
    const F16x2 pair = __builtin_bit_cast(F16x2, words[i]);
    chain = i < kChains
                ? __builtin_bit_cast(F16x2, words[i] & 0x7fff7fff)
                : __builtin_elementwise_maximum(__builtin_elementwise_maximum(chain, -pair), pair);
  }
  const F16x2 pair_max = __builtin_elementwise_maximum(max_halves[0], max_halves[1]);
  const U16x2 pair = __builtin_bit_cast(U16x2, pair_max);
  return __builtin_elementwise_max(pair[0], pair[1]);
}

}  // namespace details

// Quantises a block of 16 pairs of bf16 or f16.
template <class Input, class Rounding>
__device__ inline Mxfp4Block quant_block_fast(const u32 (&words)[16]) {
  const u32 amax_bits = details::max_as_halves(words);
  Mxfp4Block block;
  block.scale = Mxfp4Float<Input>::template scale<Rounding>(
      amax_bits < details::kHalfInfinity ? amax_bits : 0);
  if (__builtin_expect(amax_bits >= details::kHalfInfinity, 0)) {
    block.scale = Mxfp4Float<Input>::template scale<Rounding>(Mxfp4Float<Input>::amax_bits(words));
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 v8[4] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    block.codes[i] = quant_x8<Input>(v8, block.scale);
  }
  return block;
}

}  // namespace rfops
