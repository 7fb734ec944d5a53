// MXFP4 and MX-FP8 as the experts of a mixture have them (gfx950): steps along K of 128 bytes of a
// row, how 16-bit values become them, and where the scales of x lie.
//
// A step is 256 elements of MXFP4 or 128 of MX-FP8, two pieces of 16 bytes a lane (mfma_mxfp4.h,
// mfma_mxfp8.h), so elements move alike. Scales of a row lie chunk by chunk of kChunk steps; in a
// chunk those of blocks b % 4 == 0 first, which are one lane's of 16, in the order of b; then b % 4
// == 1, and so on. A lane so has all its scales of a chunk side by side.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/number/mxfp4.h"
#include "rfops/number/mxfp8.h"
#include "rfops/wave/reduce_scatter.h"

namespace rfops {

namespace details {

// The e8m0 byte of a block whose largest magnitude has these bits, of bf16 or f16.
template <class In>
__device__ inline u32 mx_scale(u32 most, u32 bump, u32 emax) {
  u32 bits = most << 16;
  if constexpr (!__is_same(In, bf16)) {
    const f32 wide = static_cast<f32>(__builtin_bit_cast(f16, static_cast<u16>(most)));
    bits = __builtin_bit_cast(u32, wide);
  }
  const u32 byte = __builtin_elementwise_sub_sat((bits + bump) >> 23, emax);
  return bits >= 255u << 23 ? kE8m0Nan : byte;
}

}  // namespace details

// How blocks of 16-bit values become elements. kBump is added to the bits of the largest magnitude
// in fp32 before its exponent is taken (mxfp4.py and mxfp8.py say which words that is).
template <u32 kBump>
struct Mxfp4 {
  static constexpr MatrixFormat kFormat = kE2m1;
  static constexpr u32 kStepK = 256;
  using Eight = u32;  // eight elements

  template <class In>
  __device__ static u32 scale(u32 most) {
    return details::mx_scale<In>(most, kBump, 2);
  }
  template <class In>
  __device__ static Eight eight(const u32 (&pairs)[4], u32 byte) {
    const u32 codes = quant_x8<In>(pairs, byte);
    return byte == kE8m0Nan ? 0 : codes;
  }
};

template <u32 kBump>
struct Mxfp8 {
  static constexpr MatrixFormat kFormat = kE4m3;
  static constexpr u32 kStepK = 128;
  using Eight = U32x2;

  template <class In>
  __device__ static u32 scale(u32 most) {
    return details::mx_scale<In>(most, kBump, 8);
  }
  template <class In>
  __device__ static Eight eight(const u32 (&pairs)[4], u32 byte) {
    const f32 inverse = __builtin_bit_cast(f32, (2 * kE8m0Bias - byte) << 23);
    const auto scaled = [&](f32 value) {  // a scale that was rounded down leaves more than 448
      return __builtin_amdgcn_fmed3f(value * inverse, -448.0f, 448.0f);
    };
    Eight codes;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      u32 four = 0;
      const u32 a = pairs[2 * i], b = pairs[2 * i + 1];
      using From = Mxfp4Float<In>;
      four = __builtin_amdgcn_cvt_pk_fp8_f32(scaled(From::even_element(a)),
                                             scaled(From::odd_element(a)), four, false);
      four = __builtin_amdgcn_cvt_pk_fp8_f32(scaled(From::even_element(b)),
                                             scaled(From::odd_element(b)), four, true);
      codes[i] = byte == kE8m0Nan ? kE4m3Nans : four;
    }
    return codes;
  }
};

// Of a block of 32, lane l has elements 4 q .. 4 q + 3 and as many from 16 + 4 q on, q = l / 16.
// Lanes 16 apart exchange, so that each has eight neighbours, from this one on.
__device__ inline u32 first_of_exchanged(u32 q) { return q % 2 * 16 + q / 2 * 8; }
__device__ inline u32 exchange(u32 eight) {
  const auto [even, odd] = details::swap_halves<16>(eight, eight);
  const bool is_odd = lane_id() / 16 % 2 == 1;
  return __builtin_amdgcn_perm(odd, even, is_odd ? 0x07060302 : 0x05040100);
}
__device__ inline U32x2 exchange(U32x2 eight) {
  const auto [even_low, odd_low] = details::swap_halves<16>(eight[0], eight[0]);
  const auto [even_high, odd_high] = details::swap_halves<16>(eight[1], eight[1]);
  const bool is_odd = lane_id() / 16 % 2 == 1;
  return {is_odd ? even_high : even_low, is_odd ? odd_high : odd_low};
}
__device__ inline void store_eight(u32 eight, const Buffer& to, u32 at) {
  __builtin_amdgcn_raw_buffer_store_b32(eight, to.rsrc, at, 0, 0);
}
__device__ inline void store_eight(U32x2 eight, const Buffer& to, u32 at) {
  __builtin_amdgcn_raw_buffer_store_b64(eight, to.rsrc, at, 0, 0);
}

template <class Format, u32 kChunk>
struct ScaleLayout {
  static constexpr u32 kStepBlocks = Format::kStepK / kMxBlock;
  static constexpr u32 kScalesPerLane =
      kChunk * kStepBlocks / 4;                       // scales of a chunk and row that it has
  static constexpr u32 kBlocks = 4 * kScalesPerLane;  // of a chunk and row

  // Of a row's block.
  __device__ static u32 at(u32 block) {
    return block / kBlocks * kBlocks + block % 4 * kScalesPerLane + block % kBlocks / 4;
  }

  // Of x chunks of one step are not row by row but side by side, all rows of one: of the 16 that a
  // line has an expert wants several (512 tokens, 33 experts: a fifth less from L2).
  static constexpr bool kXByChunks = kChunk == 1;
  // Of a block of one of `rows` rows of x, `steps` steps each.
  __device__ static u64 at_of_x(u32 block, u32 row, u32 rows, u32 steps) {
    if constexpr (kXByChunks)
      return (u64{block / kBlocks} * rows + row) * kBlocks + at(block % kBlocks);
    return u64{row} * (steps * kStepBlocks) + at(block);
  }
};

}  // namespace rfops
