// MXFP4 and MX-FP8 operands of a mixture's experts (gfx950): K-steps of 128 bytes of a row, the
// quantisation of 16-bit values, and the layout of the scales of x.
//
// A K-step is 256 elements of MXFP4 or 128 of MX-FP8, two 16-byte pieces per lane (mfma_mxfp4.h,
// mfma_mxfp8.h), so both formats move alike. The scales of a row are stored chunk by chunk of
// kChunk K-steps; within a chunk those of blocks b % 4 == 0 come first, in the order of b, which
// one lane of 16 needs; then those of b % 4 == 1, and so on. So all scales of a chunk that a lane
// needs are contiguous.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/number/mxfp4.h"
#include "rfops/number/mxfp8.h"
#include "rfops/wave/reduce_scatter.h"

namespace rfops {

namespace details {

// Returns the e8m0 byte of a block; amax is the bits of its largest magnitude in bf16 or f16.
template <class Input>
__device__ inline u32 mx_scale(u32 amax, u32 bump, u32 emax) {
  u32 bits = amax << 16;
  if constexpr (!__is_same(Input, bf16)) {
    const f32 value = static_cast<f32>(__builtin_bit_cast(f16, static_cast<u16>(amax)));
    bits = __builtin_bit_cast(u32, value);
  }
  const u32 byte = __builtin_elementwise_sub_sat((bits + bump) >> 23, emax);
  return bits >= 255u << 23 ? kE8m0Nan : byte;
}

}  // namespace details

// Quantisation of blocks of 16-bit values. kBump is added to the fp32 bits of the largest magnitude
// before its exponent is taken; mxfp4.py and mxfp8.py list the rounding modes that this selects.
template <u32 kBump>
struct Mxfp4 {
  static constexpr MatrixFormat kFormat = kE2m1;
  static constexpr u32 kStepK = 256;
  using Payload8 = u32;  // eight elements

  template <class Input>
  __device__ static u32 scale(u32 amax) {
    return details::mx_scale<Input>(amax, kBump, 2);
  }
  template <class Input>
  __device__ static Payload8 quantise8(const u32 (&pairs)[4], u32 byte) {
    const u32 codes = quant_x8<Input>(pairs, byte);
    return byte == kE8m0Nan ? 0 : codes;
  }
};

template <u32 kBump>
struct Mxfp8 {
  static constexpr MatrixFormat kFormat = kE4m3;
  static constexpr u32 kStepK = 128;
  using Payload8 = U32x2;

  template <class Input>
  __device__ static u32 scale(u32 amax) {
    return details::mx_scale<Input>(amax, kBump, 8);
  }
  template <class Input>
  __device__ static Payload8 quantise8(const u32 (&pairs)[4], u32 byte) {
    const f32 inverse = __builtin_bit_cast(f32, (2 * kE8m0Bias - byte) << 23);
    const auto scaled = [&](f32 value) {  // clamped, because a scale may have been rounded down
      return __builtin_amdgcn_fmed3f(value * inverse, -448.0f, 448.0f);
    };
    Payload8 codes;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      u32 word = 0;
      const u32 a = pairs[2 * i], b = pairs[2 * i + 1];
      using ToFloat = Mxfp4Float<Input>;
      word = __builtin_amdgcn_cvt_pk_fp8_f32(scaled(ToFloat::even_element(a)),
                                             scaled(ToFloat::odd_element(a)), word, false);
      word = __builtin_amdgcn_cvt_pk_fp8_f32(scaled(ToFloat::even_element(b)),
                                             scaled(ToFloat::odd_element(b)), word, true);
      codes[i] = byte == kE8m0Nan ? kE4m3Nans : word;
    }
    return codes;
  }
};

// Of a block of 32, lane l holds elements 4 q .. 4 q + 3 and 16 + 4 q .. 16 + 4 q + 3, q = l / 16.
// `exchange` swaps between lanes 16 apart, so that each holds eight adjacent elements;
// exchanged_begin returns the first.
__device__ inline u32 exchanged_begin(u32 q) { return q % 2 * 16 + q / 2 * 8; }
__device__ inline u32 exchange(u32 payload) {
  const auto [even, odd] = details::swap_halves<16>(payload, payload);
  const bool is_odd = lane_id() / 16 % 2 == 1;
  return __builtin_amdgcn_perm(odd, even, is_odd ? 0x07060302 : 0x05040100);
}
__device__ inline U32x2 exchange(U32x2 payload) {
  const auto [even_low, odd_low] = details::swap_halves<16>(payload[0], payload[0]);
  const auto [even_high, odd_high] = details::swap_halves<16>(payload[1], payload[1]);
  const bool is_odd = lane_id() / 16 % 2 == 1;
  return {is_odd ? even_high : even_low, is_odd ? odd_high : odd_low};
}
__device__ inline void store_payload8(u32 payload, const Buffer& buffer, u32 offset) {
  __builtin_amdgcn_raw_buffer_store_b32(payload, buffer.rsrc, offset, 0, 0);
}
__device__ inline void store_payload8(U32x2 payload, const Buffer& buffer, u32 offset) {
  __builtin_amdgcn_raw_buffer_store_b64(payload, buffer.rsrc, offset, 0, 0);
}

template <class Format, u32 kChunk>
struct ScaleLayout {
  static constexpr u32 kStepBlocks = Format::kStepK / kMxBlock;
  static constexpr u32 kScalesPerLane = kChunk * kStepBlocks / 4;  // per chunk and row
  static constexpr u32 kBlocks = 4 * kScalesPerLane;               // per chunk and row

  // Returns the offset of a block's scale in its row.
  __device__ static u32 offset(u32 block) {
    return block / kBlocks * kBlocks + block % 4 * kScalesPerLane + block % kBlocks / 4;
  }

  // Scales of x with chunks of one K-step are stored chunk by chunk, the rows of a chunk adjacent,
  // because an expert reads several of the 16 rows in a cache line (512 tokens, 33 experts: a fifth
  // less traffic from L2).
  static constexpr bool kXByChunks = kChunk == 1;
  // Returns the offset of a block's scale for one of `rows` rows of x of `steps` K-steps.
  __device__ static u64 x_offset(u32 block, u32 row, u32 rows, u32 steps) {
    if constexpr (kXByChunks)
      return (u64{block / kBlocks} * rows + row) * kBlocks + offset(block % kBlocks);
    return u64{row} * (steps * kStepBlocks) + offset(block);
  }
};

}  // namespace rfops
