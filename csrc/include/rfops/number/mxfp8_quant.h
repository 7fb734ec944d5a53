// OCP MX-FP8 from floats in registers (both architectures): blocks of 32 elements as e4m3 codes and
// one e8m0 scale.
//
//     byte  = exponent field of (|x|max + kBump) - 8, at least 0     (as fp32 bits)
//     code  = e4m3(x / 2^(byte - 127))                               to nearest even, saturated
//
// A block with an infinity or a NaN gets byte 255 and codes 0x7f, both NaN.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/e4m3.h"
#include "rfops/wave/mx_block_amax.h"

namespace rfops {

// Quantises elements of one block, whose largest magnitude has these bits as Input.
template <class Input, u32 kBump>
class Mxfp8Block {
 public:
  __device__ explicit Mxfp8Block(u32 amax_bits) {
    const u32 bits = __builtin_bit_cast(u32, MxFloat<Input>::amax_value(amax_bits));
    byte_ = __builtin_elementwise_sub_sat((bits + kBump) >> 23, kEmax);
    is_nan_ = bits >= kInfinity;
    // 2^(127 - byte): byte is at most 247 if the block is finite.
    inverse_ = __builtin_bit_cast(f32, (254 - byte_) << 23) * kE4m3Half;
  }

  __device__ u8 scale() const { return static_cast<u8>(is_nan_ ? kNanByte : byte_); }
  // Returns the codes of eight elements, one per byte.
  __device__ U32x2 convert(const Eight<Input>& elems) const {
    return {convert_four(elems, 0), convert_four(elems, 4)};
  }

 private:
  static constexpr u32 kEmax = 8;  // 448 = 1.75 * 2^8 is the largest e4m3
  static constexpr f32 kMaxE4m3 = 448.0f * kE4m3Half;
  static constexpr u32 kInfinity = 0x7f800000, kNanByte = 255, kFourNans = 0x7f7f7f7f;

  __device__ u32 convert_four(const Eight<Input>& elems, u32 begin) const {
    f32 scaled[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const f32 value = elems.element(begin + i) * inverse_;
      scaled[i] = __builtin_fminf(__builtin_fmaxf(value, -kMaxE4m3), kMaxE4m3);
    }
    return is_nan_ ? kFourNans : e4m3_of_four(scaled);
  }

  u32 byte_;
  bool is_nan_;
  f32 inverse_;
};

}  // namespace rfops
