// HIP's __half and __half2, as far as entries to competitions and torch's headers use them; where
// ROCm is not installed. Arithmetic is _Float16's.
#pragma once
#include "../numbers16.h"

struct __half_raw {
  union {
    unsigned short x;
    _Float16 data;
  };
};

struct __half {
  union {
    unsigned short __x;
    _Float16 data;
  };
  __half() = default;
  RFOPS_BOTH __half(const __half_raw& raw) : data(raw.data) {}
  RFOPS_BOTH __half(_Float16 value) : data(value) {}
  RFOPS_BOTH __half(float value) : data(static_cast<_Float16>(value)) {}
  RFOPS_BOTH __half(double value) : data(static_cast<_Float16>(value)) {}
  RFOPS_BOTH __half(int value) : data(static_cast<_Float16>(value)) {}
  RFOPS_BOTH __half(unsigned value) : data(static_cast<_Float16>(value)) {}
  RFOPS_BOTH operator float() const { return data; }
  RFOPS_BOTH operator __half_raw() const {
    __half_raw raw;
    raw.data = data;
    return raw;
  }
};
using half = __half;

#define RFOPS_VALUE(x) (x).data
RFOPS_NUMBER(__half, RFOPS_VALUE)
#undef RFOPS_VALUE

RFOPS_BOTH float __half2float(__half x) { return x; }
RFOPS_BOTH __half __float2half(float x) { return x; }
RFOPS_BOTH __half __float2half_rn(float x) { return x; }
RFOPS_BOTH __half __double2half(double x) { return x; }
RFOPS_BOTH __half __int2half_rn(int x) { return x; }
RFOPS_BOTH int __half2int_rz(__half x) { return static_cast<int>(x.data); }
RFOPS_BOTH unsigned short __half_as_ushort(__half x) { return x.__x; }
RFOPS_BOTH short __half_as_short(__half x) { return static_cast<short>(x.__x); }
RFOPS_BOTH __half __ushort_as_half(unsigned short bits) {
  __half_raw raw;
  raw.x = bits;
  return raw;
}

RFOPS_PAIR(__half2, __half)
using half2 = __half2;

RFOPS_BOTH __half2 __halves2half2(__half x, __half y) { return {x, y}; }
RFOPS_BOTH __half2 make_half2(__half x, __half y) { return {x, y}; }
RFOPS_BOTH __half2 __half2half2(__half x) { return {x, x}; }
RFOPS_BOTH __half2 __float2half2_rn(float x) { return {x, x}; }
RFOPS_BOTH __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
RFOPS_BOTH __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
RFOPS_BOTH float2 __half22float2(__half2 x) { return {x.x, x.y}; }
RFOPS_BOTH __half __low2half(__half2 x) { return x.x; }
RFOPS_BOTH __half __high2half(__half2 x) { return x.y; }
