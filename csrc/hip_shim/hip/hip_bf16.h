// HIP's __hip_bfloat16 and __hip_bfloat162, as far as entries to competitions and torch's headers
// use them; where ROCm is not installed. Arithmetic is fp32's, rounded to nearest even.
#pragma once
#include "../numbers16.h"

struct __hip_bfloat16_raw {
  unsigned short x;
};

struct __hip_bfloat16 {
  unsigned short __x;
  __hip_bfloat16() = default;
  RFOPS_BOTH __hip_bfloat16(__hip_bfloat16_raw raw) : __x(raw.x) {}
  RFOPS_BOTH __hip_bfloat16(float value) : __x(rounded(value)) {}
  RFOPS_BOTH __hip_bfloat16(double value) : __x(rounded(static_cast<float>(value))) {}
  RFOPS_BOTH __hip_bfloat16(int value) : __x(rounded(static_cast<float>(value))) {}
  RFOPS_BOTH __hip_bfloat16(unsigned value) : __x(rounded(static_cast<float>(value))) {}
  RFOPS_BOTH operator float() const {
    return __builtin_bit_cast(float, static_cast<unsigned>(__x) << 16);
  }
  RFOPS_BOTH operator __hip_bfloat16_raw() const { return {__x}; }
  RFOPS_BOTH static unsigned short rounded(float value) {
    const unsigned bits = __builtin_bit_cast(unsigned, value);
    if (value != value) return static_cast<unsigned short>(bits >> 16 | 0x40);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};
using __nv_bfloat16 = __hip_bfloat16;

RFOPS_NUMBER(__hip_bfloat16, static_cast<float>)

RFOPS_BOTH float __bfloat162float(__hip_bfloat16 x) { return x; }
RFOPS_BOTH __hip_bfloat16 __float2bfloat16(float x) { return x; }
RFOPS_BOTH __hip_bfloat16 __float2bfloat16_rn(float x) { return x; }
RFOPS_BOTH __hip_bfloat16 __double2bfloat16(double x) { return x; }
RFOPS_BOTH unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.__x; }
RFOPS_BOTH short __bfloat16_as_short(__hip_bfloat16 x) { return static_cast<short>(x.__x); }
RFOPS_BOTH __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __hip_bfloat16_raw{x}; }

RFOPS_PAIR(__hip_bfloat162, __hip_bfloat16)
using __nv_bfloat162 = __hip_bfloat162;

RFOPS_BOTH __hip_bfloat162 make_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
RFOPS_BOTH __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
RFOPS_BOTH __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 x) { return {x, x}; }
RFOPS_BOTH __hip_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
RFOPS_BOTH float2 __bfloat1622float2(__hip_bfloat162 x) { return {x.x, x.y}; }
RFOPS_BOTH __hip_bfloat16 __low2bfloat16(__hip_bfloat162 x) { return x.x; }
RFOPS_BOTH __hip_bfloat16 __high2bfloat16(__hip_bfloat162 x) { return x.y; }
