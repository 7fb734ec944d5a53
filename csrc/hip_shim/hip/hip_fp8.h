// HIP's FP8 types, as far as entries to competitions use them; where ROCm is not installed. Bits
// are converted in plain C++, so that every flavour works on every architecture.
#pragma once
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>

using __hip_fp8_storage_t = unsigned char;
using __hip_fp8x2_storage_t = unsigned short;
using __hip_fp8x4_storage_t = unsigned int;
enum __hip_saturation_t { __HIP_NOSAT = 0, __HIP_SATFINITE = 1 };
enum __hip_fp8_interpretation_t {
  __HIP_E4M3 = 0,
  __HIP_E5M2 = 1,
  __HIP_E4M3_FNUZ = 2,
  __HIP_E5M2_FNUZ = 3
};

namespace rfops_fp8 {

struct Form {
  int mantissa, bias;
  bool fnuz;
};
RFOPS_BOTH constexpr Form form_of(__hip_fp8_interpretation_t kind) {
  const bool wide = kind == __HIP_E5M2 || kind == __HIP_E5M2_FNUZ;
  const bool fnuz = kind == __HIP_E4M3_FNUZ || kind == __HIP_E5M2_FNUZ;
  return {wide ? 2 : 3, (wide ? 15 : 7) + fnuz, fnuz};
}

// The largest finite magnitude's bits: of OCP's E4M3 all ones are NaN, E5M2 has infinities.
RFOPS_BOTH constexpr unsigned most(Form f) { return f.fnuz ? 0x7f : f.mantissa == 3 ? 0x7e : 0x7b; }

RFOPS_BOTH float decode(unsigned char bits, Form f) {
  const unsigned magnitude = bits & 0x7f;
  const bool is_nan = f.fnuz ? bits == 0x80 : magnitude > (f.mantissa == 3 ? 0x7eu : 0x7cu);
  if (is_nan) return __builtin_nanf("");
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (!f.fnuz && f.mantissa == 2 && magnitude == 0x7c) return sign * __builtin_inff();
  const int exponent = static_cast<int>(magnitude >> f.mantissa);
  const int fraction = static_cast<int>(magnitude & ((1u << f.mantissa) - 1));
  const int whole = exponent ? fraction | 1 << f.mantissa : fraction;
  const int power = (exponent ? exponent : 1) - f.bias - f.mantissa;  // -18 or more: exact below
  return sign * static_cast<float>(whole) *
         __builtin_bit_cast(float, static_cast<unsigned>(power + 127) << 23);
}

// To nearest even.
RFOPS_BOTH unsigned char encode(float value, Form f, bool saturates) {
  const unsigned all = __builtin_bit_cast(unsigned, value);
  const unsigned char sign = all >> 31 ? 0x80 : 0;
  const unsigned magnitude = all & 0x7fffffff;
  const unsigned char nan = f.fnuz ? 0x80 : static_cast<unsigned char>(sign | 0x7f);
  if (magnitude > 0x7f800000) return nan;
  const float least = __builtin_bit_cast(float, static_cast<unsigned>(128 - f.bias) << 23);
  unsigned bits;
  if (__builtin_bit_cast(float, magnitude) < least) {  // subnormal: whole steps of the least one
    const int power = f.bias - 1 + f.mantissa;
    const float steps = __builtin_bit_cast(float, magnitude) *
                        __builtin_bit_cast(float, static_cast<unsigned>(power + 127) << 23);
    const unsigned whole = static_cast<unsigned>(steps);
    const float rest = steps - static_cast<float>(whole);
    bits = whole + (rest > 0.5f || (rest == 0.5f && (whole & 1)));
  } else {
    const int shift = 23 - f.mantissa;
    const unsigned rounded = magnitude + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
    bits = (rounded >> shift) - (static_cast<unsigned>(127 - f.bias) << f.mantissa);
  }
  if (bits > most(f)) {
    if (saturates)
      bits = most(f);
    else if (f.fnuz || f.mantissa == 3)
      return nan;
    else
      bits = 0x7c;
  }
  return f.fnuz && bits == 0 ? 0 : static_cast<unsigned char>(sign | bits);
}

}  // namespace rfops_fp8

RFOPS_BOTH __hip_fp8_storage_t __hip_cvt_float_to_fp8(float x, __hip_saturation_t saturation,
                                                      __hip_fp8_interpretation_t kind) {
  return rfops_fp8::encode(x, rfops_fp8::form_of(kind), saturation == __HIP_SATFINITE);
}
RFOPS_BOTH __half_raw __hip_cvt_fp8_to_halfraw(__hip_fp8_storage_t x,
                                               __hip_fp8_interpretation_t kind) {
  return __half(rfops_fp8::decode(x, rfops_fp8::form_of(kind)));
}

template <__hip_fp8_interpretation_t kKind>
struct rfops_fp8_value {
  __hip_fp8_storage_t __x;
  rfops_fp8_value() = default;
  RFOPS_BOTH explicit rfops_fp8_value(float x)
      : __x(rfops_fp8::encode(x, rfops_fp8::form_of(kKind), true)) {}
  RFOPS_BOTH explicit rfops_fp8_value(double x) : rfops_fp8_value(static_cast<float>(x)) {}
  RFOPS_BOTH explicit rfops_fp8_value(int x) : rfops_fp8_value(static_cast<float>(x)) {}
  RFOPS_BOTH explicit rfops_fp8_value(__half x) : rfops_fp8_value(static_cast<float>(x)) {}
  RFOPS_BOTH explicit rfops_fp8_value(__hip_bfloat16 x) : rfops_fp8_value(static_cast<float>(x)) {}
  RFOPS_BOTH operator float() const { return rfops_fp8::decode(__x, rfops_fp8::form_of(kKind)); }
};
using __hip_fp8_e4m3 = rfops_fp8_value<__HIP_E4M3>;
using __hip_fp8_e5m2 = rfops_fp8_value<__HIP_E5M2>;
using __hip_fp8_e4m3_fnuz = rfops_fp8_value<__HIP_E4M3_FNUZ>;
using __hip_fp8_e5m2_fnuz = rfops_fp8_value<__HIP_E5M2_FNUZ>;
