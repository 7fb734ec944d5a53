// Number formats, and arithmetic rules of the ALU that C++ does not have.
#pragma once

#include <cmath>
#include <limits>

#include "vgpu/base/types.h"

#if defined(__F16C__) || defined(__SSE__)
#include <immintrin.h>
#endif

namespace vgpu {

// ---------------------------------------------------------------------- half and bfloat16

constexpr f32 half_to_float(u16 half) {
  const u32 sign = u32{half & 0x8000u} << 16;
  const u32 exponent = half >> 10 & 31;
  u32 fraction = half & 1023;
  if (exponent == 31) {  // infinity, or a NaN, which is made quiet
    return bits<f32>(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
  }
  if (exponent) return bits<f32>(sign | (exponent + 112) << 23 | fraction << 13);
  if (!fraction) return bits<f32>(sign);
  // Moves the leading one to the implicit bit.
  const u32 shift = static_cast<u32>(std::countl_zero(fraction)) - 21;
  fraction = fraction << shift & 1023;
  return bits<f32>(sign | (113 - shift) << 23 | fraction << 13);
}

// Rounds to nearest even. Overflow gives infinity.
constexpr u16 float_to_half(f32 value) {
  const u32 word = bits<u32>(value);
  const u16 sign = static_cast<u16>(word >> 16 & 0x8000);
  const u32 mag = word & 0x7fffffff;
  if (mag > 0x7f800000) return static_cast<u16>(sign | 0x7e00 | (mag >> 13 & 0x3ff));
  if (mag >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
  if (mag < 0x33000001) return sign;            // 2^-25 and less
  const i32 exponent = static_cast<i32>(mag >> 23) - 112;
  if (exponent > 0) {
    const u32 rounded = mag - (112u << 23) + 0xfff + (mag >> 13 & 1);
    return static_cast<u16>(sign | rounded >> 13);
  }
  const u32 fraction = (mag & 0x7fffff) | 0x800000;
  const u32 shift = static_cast<u32>(14 - exponent);
  const u32 half_way = 1u << (shift - 1);
  const u32 truncated = fraction >> shift;
  const u32 remainder = fraction & ((1u << shift) - 1);
  return static_cast<u16>(
      sign | (truncated + (remainder > half_way || (remainder == half_way && (truncated & 1)))));
}

constexpr f32 bf16_to_float(u16 value) { return bits<f32>(u32{value} << 16); }

constexpr u16 float_to_bf16(f32 value) {
  const u32 word = bits<u32>(value);
  if ((word & 0x7fffffff) > 0x7f800000) return static_cast<u16>(word >> 16 | 0x40);
  return static_cast<u16>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// Rounds a double to float with round to odd (an inexact result gets its last bit set), so that a
// later rounding to half is exact: float has more than two extra bits.
inline f32 round_to_odd(f64 value) {
  const f32 nearest = static_cast<f32>(value);
  const f64 round_trip = nearest;
  u32 out = bits<u32>(nearest);
  out -= std::fabs(round_trip) > std::fabs(value);
  return round_trip == value ? nearest : bits<f32>(out | 1);
}

// ---------------------------------------------------------------------- classes of a float

template <class F>
struct FloatBits;
template <>
struct FloatBits<f32> {
  using U = u32;
  static constexpr U kExp = 0x7f800000, kQuiet = 0x400000;
};
template <>
struct FloatBits<f64> {
  using U = u64;
  static constexpr U kExp = 0x7ff0000000000000, kQuiet = 0x8000000000000;
};

template <class F>
constexpr auto magnitude(F x) {
  using U = typename FloatBits<F>::U;
  return static_cast<U>(bits<U>(x) & (~U{0} >> 1));
}
template <class F>
constexpr bool is_nan(F x) {
  return magnitude(x) > FloatBits<F>::kExp;
}
template <class F>
constexpr bool is_inf(F x) {
  return magnitude(x) == FloatBits<F>::kExp;
}
template <class F>
constexpr bool is_signaling(F x) {
  return is_nan(x) && !(bits<typename FloatBits<F>::U>(x) & FloatBits<F>::kQuiet);
}
template <class F>
constexpr F quiet(F x) {
  return bits<F>(static_cast<typename FloatBits<F>::U>(bits<typename FloatBits<F>::U>(x) |
                                                       FloatBits<F>::kQuiet));
}
template <class F>
constexpr bool sign_bit_of(F x) {
  using U = typename FloatBits<F>::U;
  return bits<U>(x) >> (sizeof(F) * 8 - 1);
}

// The ten classes of v_cmp_class: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0,
// +denormal, +normal, +inf (bit 0 to 9).
template <class F>
constexpr u32 float_class(F x) {
  using B = FloatBits<F>;
  const auto mag = magnitude(x);
  if (mag > B::kExp) return is_signaling(x) ? 1 : 2;
  const bool negative = sign_bit_of(x);
  const u32 size = mag == B::kExp ? 3 : mag >= (B::kQuiet << 1) ? 2 : mag ? 1 : 0;
  return negative ? 1u << (5 - size) : 1u << (6 + size);
}

// ---------------------------------------------------------------------- minimum and maximum
// IEEE 754-2008 minNum/maxNum as the ALU does them with MODE.IEEE set (what compute code runs
// with): a quiet NaN gives way to a number, a signalling one wins and becomes quiet, -0 < +0.

template <class F>
constexpr F min_max_nan(F a, F b, F number) {
  if (is_signaling(a)) return quiet(a);
  if (is_signaling(b)) return quiet(b);
  return is_nan(a) ? b : is_nan(b) ? a : number;
}

template <class F>
constexpr F float_min(F a, F b) {
  using U = typename FloatBits<F>::U;
  const F equal = bits<F>(static_cast<U>(bits<U>(a) | bits<U>(b)));
  const F number = a < b ? a : b < a ? b : equal;
  return min_max_nan(a, b, number);
}

template <class F>
constexpr F float_max(F a, F b) {
  using U = typename FloatBits<F>::U;
  const F equal = bits<F>(static_cast<U>(bits<U>(a) & bits<U>(b)));
  const F number = a > b ? a : b > a ? b : equal;
  return min_max_nan(a, b, number);
}

// IEEE 754-2019 minimum/maximum: a NaN wins.
template <class F>
constexpr F float_minimum(F a, F b) {
  return is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : float_min(a, b);
}
template <class F>
constexpr F float_maximum(F a, F b) {
  return is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : float_max(a, b);
}

template <class F>
constexpr F float_med3(F a, F b, F c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return float_min(float_min(a, b), c);
  const F top = float_max(float_max(a, b), c);  // compared as numbers: -0 equals +0
  return top == a ? float_max(b, c) : top == b ? float_max(a, c) : float_max(a, b);
}

// ---------------------------------------------------------------------- conversions to integers
// Saturating; NaN gives 0.

template <class I, class F>
constexpr I saturate(F x) {
  constexpr F min = static_cast<F>(std::numeric_limits<I>::min());
  constexpr F upper_bound = static_cast<F>(std::numeric_limits<I>::max() / 2 + 1) * 2;
  if (is_nan(x)) return 0;
  if (x <= min) return std::numeric_limits<I>::min();
  if (x >= upper_bound) return std::numeric_limits<I>::max();
  return static_cast<I>(x);
}

// ---------------------------------------------------------------------- transcendental functions
// Evaluated in double, so that the result is the nearest float but for rare near-ties; hardware
// promises 1 ulp. Denormal inputs count as zero and denormal results become zero, as LLVM's
// lowering assumes of these instructions whatever MODE says.

constexpr f32 flush(f32 x) {
  return magnitude(x) < 0x800000 ? bits<f32>(bits<u32>(x) & 0x80000000) : x;
}

// Fused if the host has the instruction; otherwise two operations, because the polynomials need
// speed, not one rounding.
inline f64 mul_add(f64 a, f64 b, f64 c) {
#if defined(__FMA__) || defined(__AVX512F__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

constexpr f64 kLn2 = 0.693147180559945309417232121458;

// Approximates 2^x: the nearest integer goes to the exponent; for the remainder r, |r| <= 1/2, a
// polynomial that interpolates 2^r at Chebyshev nodes is accurate to 4e-14.
inline f32 exp2_approx(f32 input) {
  const f32 clamped = input > -200.0f ? input : -200.0f;  // also selected for a NaN
  const f64 x = clamped < 200.0f ? clamped : 200.0f;
  constexpr f64 kShift = 0x1.8p52;  // adding it leaves the integer in the low bits
  const f64 shifted = x + kShift;
  const f64 r = x - (shifted - kShift);
  f64 p = 1.0203121063391729e-07;
  p = mul_add(p, r, 1.3255224878668817e-06);
  p = mul_add(p, r, 1.525268684626772e-05);
  p = mul_add(p, r, 0.00015403455852453838);
  p = mul_add(p, r, 0.0013333558179043112);
  p = mul_add(p, r, 0.009618129159402558);
  p = mul_add(p, r, 0.055504108664760424);
  p = mul_add(p, r, 0.2402265069581299);
  p = mul_add(p, r, 0.6931471805599453);
  p = mul_add(p, r, 1.0);
  const f32 out = flush(static_cast<f32>(bits<f64>(bits<u64>(p) + (bits<u64>(shifted) << 52))));
  return is_nan(input) ? quiet(input) : out;
}

inline f32 log2_approx(f32 input) {
  const f32 x = flush(input);
  const u64 word = bits<u64>(static_cast<f64>(x));
  // Normalises the fraction to [sqrt(1/2), sqrt(2)): the offset moves the split from 1 to
  // sqrt(1/2).
  const u64 shifted = word - 0x3fe6a09e667f3bcdull;
  const i32 exponent = static_cast<i32>(static_cast<i64>(shifted) >> 52);
  const f64 m = bits<f64>((shifted & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  const f64 t = (m - 1) / (m + 1);  // |t| <= 0.172: t^17/17 is below 1e-14
  const f64 s = t * t;
  f64 p = 1.0 / 15;
  p = mul_add(p, s, 1.0 / 13);
  p = mul_add(p, s, 1.0 / 11);
  p = mul_add(p, s, 1.0 / 9);
  p = mul_add(p, s, 1.0 / 7);
  p = mul_add(p, s, 1.0 / 5);
  p = mul_add(p, s, 1.0 / 3);
  p = mul_add(p, s, 1.0);
  const f32 out = static_cast<f32>(exponent + 2 / kLn2 * t * p);
  const f32 infinity = std::numeric_limits<f32>::infinity();
  f32 special = x == 0          ? -infinity
                : x < 0         ? bits<f32>(0xffc00000u)
                : x == infinity ? infinity
                                : out;
  return is_nan(x) ? quiet(x) : special;
}

// Returns sin(2 pi x): the instructions take revolutions.
inline f64 sin_revolutions(f64 x) {
  f64 r = x - __builtin_nearbyint(x);                  // [-1/2, 1/2]
  r = r > 0.25 ? 0.5 - r : r < -0.25 ? -0.5 - r : r;   // sin(pi - y) = sin(y)
  const f64 y = r * 6.283185307179586476925286766559;  // [-pi/2, pi/2]
  const f64 s = y * y;
  f64 p = 1.0 / 355687428096000.0;
  p = mul_add(p, s, -1.0 / 1307674368000.0);
  p = mul_add(p, s, 1.0 / 6227020800.0);
  p = mul_add(p, s, -1.0 / 39916800.0);
  p = mul_add(p, s, 1.0 / 362880.0);
  p = mul_add(p, s, -1.0 / 5040.0);
  p = mul_add(p, s, 1.0 / 120.0);
  p = mul_add(p, s, -1.0 / 6.0);
  return y + y * s * p;
}

// |x| above 256 is outside the instruction's valid input; hardware gives sin 0 and cos 1 there.
inline f32 sin_approx(f32 x) {
  const f32 nan = bits<f32>(0xffc00000u);
  const f32 out = std::fabs(x) > 256 ? 0.0f : static_cast<f32>(sin_revolutions(x));
  return is_nan(x) ? quiet(x) : is_inf(x) ? nan : x == 0 ? x : out;
}
inline f32 cos_approx(f32 x) {
  const f32 nan = bits<f32>(0xffc00000u);
  const f32 out = std::fabs(x) > 256 ? 1.0f : static_cast<f32>(sin_revolutions(f64{x} + 0.25));
  return is_nan(x) ? quiet(x) : is_inf(x) ? nan : out;
}

}  // namespace vgpu
