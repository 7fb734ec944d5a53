// OCP MXFP4 in registers: blocks of 32 elements as e2m1 codes, two per byte, low nibble first, and
// one e8m0 scale.
//
//     byte  = exponent field of (|x|max + kBump) - 2, at least 0     (as fp32 bits)
//     code  = e2m1(x / 2^(byte - 127))                               to nearest even, saturated
//
// kBump rounds the block's largest magnitude up to the next power of two if its mantissa exceeds a
// bound: Even from 1.75 on, Up above 1.5, Down never. A block with an infinity or a NaN gets byte
// 255, which is NaN, and undefined codes.
//
// v_mfma_scale_f32_16x16x128 takes fp4 operands such that a lane holds a whole block (row l % 16, k
// from 32 (l / 16) on). quant_block quantises it without other lanes: 54 vector instructions on
// gfx950 with Even.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/wave/mx_block_amax.h"

namespace rfops {

constexpr u32 kFp4Emax = 2;  // 6 = 1.5 * 2^2 is the largest e2m1
constexpr u32 kE8m0NanByte = 255;

// Rounding of the scale: what is added to the bits of the largest magnitude (fp32).
struct Even {
  static constexpr u32 kBump = 0x200000;
};
struct Up {
  static constexpr u32 kBump = 0x3fffff;
};
struct Down {
  static constexpr u32 kBump = 0;
};

namespace details {

// Returns the scale of a block with this largest magnitude, given as bits whose exponent field
// begins at bit kExponentShift.
template <class Rounding, u32 kExponentShift>
__device__ inline u32 scale_of_bits(u32 amax_bits) {
  constexpr u32 kInfinity = 255u << kExponentShift;
  const u32 bumped = amax_bits + (Rounding::kBump >> (23 - kExponentShift));
  const u32 byte = __builtin_elementwise_sub_sat(bumped >> kExponentShift, kFp4Emax);
  return amax_bits >= kInfinity ? kE8m0NanByte : byte;
}

// Returns the code of a scaled magnitude, for architectures without the instruction. Ties go to the
// even code; values above 5 become 7.
__device__ inline u32 fp4_code(f32 scaled) {
  const f32 magnitude = __builtin_fabsf(scaled);
  u32 code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f);
  code += (magnitude >= 1.75f) + (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
  return code | (__builtin_bit_cast(u32, scaled) >> 31 << 3);
}

}  // namespace details

// How elements of type Input are read from words, and the scale of a block of them.
template <class Input>
struct Mxfp4Float : MxFloat<Input> {
  template <class Rounding>
  __device__ static u32 scale(u32 amax_bits) {
    if constexpr (__is_same(Input, bf16)) return details::scale_of_bits<Rounding, 7>(amax_bits);
    return details::scale_of_bits<Rounding, 23>(
        __builtin_bit_cast(u32, MxFloat<Input>::amax_value(amax_bits)));
  }
};

// Returns the codes of 8 elements divided by the scale with this byte.
template <class Input>
__device__ inline u32 quant_x8(const u32 (&words)[Mxfp4Float<Input>::kWordsPerEight], u32 byte) {
#if defined(__gfx950__)
  const f32 scale = __builtin_bit_cast(f32, byte << 23);  // the instructions use only the exponent
  u32 codes;                                              // each instruction writes one byte
  asm(""
      : "=v"(codes)
      : "v"(words[0]));  // reserves a register per 8 elements without initialising it
  if constexpr (__is_same(Input, bf16)) {
    const auto pair = [&](u32 i) { return __builtin_bit_cast(Bf16x2, words[i]); };
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes, pair(0), scale, 0);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes, pair(1), scale, 1);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes, pair(2), scale, 2);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_bf16(codes, pair(3), scale, 3);
  } else if constexpr (__is_same(Input, f16)) {
    const auto pair = [&](u32 i) { return __builtin_bit_cast(F16x2, words[i]); };
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f16(codes, pair(0), scale, 0);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f16(codes, pair(1), scale, 1);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f16(codes, pair(2), scale, 2);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f16(codes, pair(3), scale, 3);
  } else {
    const auto element = [&](u32 i) { return __builtin_bit_cast(f32, words[i]); };
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(codes, element(0), element(1), scale, 0);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(codes, element(2), element(3), scale, 1);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(codes, element(4), element(5), scale, 2);
    codes = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(codes, element(6), element(7), scale, 3);
  }
  return codes;
#else
  const i32 power = 127 - static_cast<i32>(byte);
  u32 codes = 0;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    f32 value;
    if constexpr (__is_same(Input, f32)) {
      value = __builtin_bit_cast(f32, words[i]);
    } else {
      value = i % 2 ? Mxfp4Float<Input>::odd_element(words[i / 2])
                    : Mxfp4Float<Input>::even_element(words[i / 2]);
    }
    codes |= details::fp4_code(__builtin_ldexpf(value, power)) << (4 * i);
  }
  return codes;
#endif
}

// A quantised block of 32 elements that one lane holds.
struct Mxfp4Block {
  U32x4 codes;
  u32 scale;  // e8m0 byte
};

// Quantises a block of kWords words in the order of k: 16 pairs of bf16 or f16, or 32 fp32.
template <class Input, class Rounding, u32 kWords>
__device__ inline Mxfp4Block quant_block(const u32 (&words)[kWords]) {
  constexpr u32 kWords8 = Mxfp4Float<Input>::kWordsPerEight;
  static_assert(kWords == 4 * kWords8, "a block of 32 elements");
  Mxfp4Block block;
  block.scale = Mxfp4Float<Input>::template scale<Rounding>(Mxfp4Float<Input>::amax_bits(words));
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    u32 v8[kWords8];
#pragma unroll
    for (u32 j = 0; j < kWords8; ++j) v8[j] = words[i * kWords8 + j];
    block.codes[i] = quant_x8<Input>(v8, block.scale);
  }
  return block;
}

}  // namespace rfops
