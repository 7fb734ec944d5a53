// Floating-point formats of 16 bits and fewer: decoding to float, and encoding with one rounding.
//
// Both directions are branch-free integer code, so that the compiler vectorises loops over 64
// lanes.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

// The meaning of codes beyond the finite range.
enum class Specials : u8 {
  kIeee,     // the top exponent holds infinity and NaNs
  kNanOnly,  // all ones is NaN, no infinity (OCP e4m3)
  kFnuz,     // minus zero is the only NaN, no infinity (gfx942)
  kFinite,   // no NaN and no infinity (6- and 4-bit)
};

struct SmallFloat {
  u32 exponent, mantissa;  // widths in bits
  u32 bias;
  Specials specials;

  constexpr u32 bits() const { return 1 + exponent + mantissa; }
  constexpr u32 sign() const { return 1u << (exponent + mantissa); }
  constexpr u32 magnitudes() const { return sign() - 1; }
  constexpr u32 max_finite() const {
    switch (specials) {
      case Specials::kIeee:
        return (((1u << exponent) - 1) << mantissa) - 1;
      case Specials::kNanOnly:
        return magnitudes() - 1;
      default:
        return magnitudes();
    }
  }
  // Returns the code of a NaN; overflow() that of a magnitude beyond the range.
  constexpr u32 nan(u32 sign_bit) const {
    switch (specials) {
      case Specials::kFnuz:
        return sign();
      case Specials::kFinite:
        return sign_bit | max_finite();
      default:
        return sign_bit | magnitudes();
    }
  }
  constexpr u32 overflow(u32 sign_bit) const {
    return specials == Specials::kIeee ? sign_bit | (max_finite() + 1) : nan(sign_bit);
  }
};

inline constexpr SmallFloat kHalf{5, 10, 15, Specials::kIeee};
inline constexpr SmallFloat kBfloat{8, 7, 127, Specials::kIeee};
inline constexpr SmallFloat kE4m3{4, 3, 7, Specials::kNanOnly};
inline constexpr SmallFloat kE5m2{5, 2, 15, Specials::kIeee};
inline constexpr SmallFloat kE4m3Fnuz{4, 3, 8, Specials::kFnuz};
inline constexpr SmallFloat kE5m2Fnuz{5, 2, 16, Specials::kFnuz};
inline constexpr SmallFloat kE2m3{2, 3, 1, Specials::kFinite};
inline constexpr SmallFloat kE3m2{3, 2, 3, Specials::kFinite};
inline constexpr SmallFloat kE2m1{2, 1, 1, Specials::kFinite};

inline constexpr u32 kFloatInf = 0x7f800000, kFloatNan = 0x7fc00000;

// 2^n for n in [-127, 127], the range of a block scale.
constexpr f32 power_of_two(i32 n) {
  return bits<f32>(n < -126 ? 0x00400000u : static_cast<u32>(n + 127) << 23);
}

// Returns the value of a code as a float; always exact. Higher bits of `code` are ignored.
template <SmallFloat kFmt>
constexpr f32 decode_small(u32 code) {
  const u32 magnitude = code & kFmt.magnitudes();
  const u32 normal = (magnitude << (23 - kFmt.mantissa)) + ((127 - kFmt.bias) << 23);
  constexpr i32 kUnit = 1 - static_cast<i32>(kFmt.bias + kFmt.mantissa);
  const f32 subnormal = static_cast<f32>(static_cast<i32>(magnitude)) * power_of_two(kUnit);
  u32 out = magnitude < 1u << kFmt.mantissa ? bits<u32>(subnormal) : normal;
  if constexpr (kFmt.specials == Specials::kIeee) {
    const u32 payload = magnitude << (23 - kFmt.mantissa) & 0x7fffff;
    const u32 special = kFloatInf | payload | (payload ? 0x400000u : 0u);
    out = magnitude > kFmt.max_finite() ? special : out;
  } else if constexpr (kFmt.specials == Specials::kNanOnly) {
    out = magnitude == kFmt.magnitudes() ? kFloatNan : out;
  }
  const u32 sign = (code & kFmt.sign()) << (32 - kFmt.bits());
  if constexpr (kFmt.specials == Specials::kFnuz) {
    return bits<f32>((code & (2 * kFmt.sign() - 1)) == kFmt.sign() ? kFloatNan : out | sign);
  }
  return bits<f32>(out | sign);
}

// Rounding of a float to a small format.
struct Rounding {
  bool stochastic = false;
  u32 seed = 0;  // stochastic: its high bits are added below the last bit of the result
  // Magnitudes beyond the range, also infinity, become the largest finite value.
  bool saturate = false;
};

// Encodes a float with one rounding, to nearest even or stochastic. Denormals are kept. Stochastic
// rounding first aligns a value below the normal range and drops the bits that are shifted out.
template <SmallFloat kFmt>
constexpr u32 encode_small(f32 value, const Rounding& rounding = {}) {
  constexpr u32 kDroppedBits = 23 - kFmt.mantissa;  // float bits below the last bit of the result
  constexpr i32 kMinNormal = 128 - static_cast<i32>(kFmt.bias);  // biased float exponent
  const u32 word = bits<u32>(value);
  const u32 mag = word & 0x7fffffff;
  const u32 sign = word >> 31 ? kFmt.sign() : 0u;
  const i32 field = static_cast<i32>(mag >> 23);
  const i32 exponent = field ? field : 1;
  const u32 significand = (mag & 0x7fffff) | (field ? 0x800000u : 0u);
  const i32 denormal_shift = exponent < kMinNormal ? kMinNormal - exponent : 0;
  u32 code = 0;
  if (rounding.stochastic) {
    const u32 aligned = significand >> (denormal_shift < 31 ? denormal_shift : 31);
    code = (aligned + (rounding.seed >> (32 - kDroppedBits))) >> kDroppedBits;
  } else {
    const u32 dropped_bits = kDroppedBits + static_cast<u32>(denormal_shift);
    const u32 shift = dropped_bits < 31 ? dropped_bits : 31;
    code = (significand + (1u << (shift - 1)) - 1 + (significand >> shift & 1)) >> shift;
  }
  code += exponent > kMinNormal ? static_cast<u32>(exponent - kMinNormal) << kFmt.mantissa : 0u;
  const u32 limit = rounding.saturate || kFmt.specials == Specials::kFinite
                        ? sign | kFmt.max_finite()
                        : kFmt.overflow(sign);
  const u32 signed_code = kFmt.specials == Specials::kFnuz && code == 0 ? 0u : code | sign;
  const u32 number = code > kFmt.max_finite() ? limit : signed_code;
  return mag > kFloatInf ? kFmt.nan(sign) : number;
}

// v_prng_b32: returns the next state of a linear feedback shift register.
constexpr u32 next_random(u32 state) { return state << 1 ^ (state >> 31 ? 0xc5u : 0u); }

}  // namespace vgpu
