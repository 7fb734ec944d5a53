// HIP's __hip_bfloat16 and __hip_bfloat162, as far as entries to competitions and torch's headers
// use them; where ROCm is not installed. Arithmetic is fp32's, rounded to nearest even.
#pragma once
#include <hip/hip_runtime.h>

#define RFOPS_BOTH __host__ __device__ inline

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
  RFOPS_BOTH __hip_bfloat16& operator+=(float other) { return *this = *this + other; }
  RFOPS_BOTH __hip_bfloat16& operator-=(float other) { return *this = *this - other; }
  RFOPS_BOTH __hip_bfloat16& operator*=(float other) { return *this = *this * other; }
  RFOPS_BOTH __hip_bfloat16& operator/=(float other) { return *this = *this / other; }
  RFOPS_BOTH static unsigned short rounded(float value) {
    const unsigned bits = __builtin_bit_cast(unsigned, value);
    if (value != value) return static_cast<unsigned short>(bits >> 16 | 0x40);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};
using __nv_bfloat16 = __hip_bfloat16;

#define RFOPS_OPERATOR(sign, name)                                              \
  RFOPS_BOTH __hip_bfloat16 operator sign(__hip_bfloat16 x, __hip_bfloat16 y) { \
    return static_cast<float>(x) sign static_cast<float>(y);                    \
  }                                                                             \
  RFOPS_BOTH __hip_bfloat16 name(__hip_bfloat16 x, __hip_bfloat16 y) { return x sign y; }
#define RFOPS_COMPARE(sign, name)                                     \
  RFOPS_BOTH bool operator sign(__hip_bfloat16 x, __hip_bfloat16 y) { \
    return static_cast<float>(x) sign static_cast<float>(y);          \
  }                                                                   \
  RFOPS_BOTH bool name(__hip_bfloat16 x, __hip_bfloat16 y) { return x sign y; }
RFOPS_OPERATOR(+, __hadd)
RFOPS_OPERATOR(-, __hsub)
RFOPS_OPERATOR(*, __hmul)
RFOPS_OPERATOR(/, __hdiv)
RFOPS_COMPARE(==, __heq)
RFOPS_COMPARE(!=, __hne)
RFOPS_COMPARE(<, __hlt)
RFOPS_COMPARE(<=, __hle)
RFOPS_COMPARE(>, __hgt)
RFOPS_COMPARE(>=, __hge)
#undef RFOPS_OPERATOR
#undef RFOPS_COMPARE
RFOPS_BOTH __hip_bfloat16 operator-(__hip_bfloat16 x) { return -static_cast<float>(x); }
RFOPS_BOTH __hip_bfloat16 __hmax(__hip_bfloat16 x, __hip_bfloat16 y) { return x > y ? x : y; }
RFOPS_BOTH __hip_bfloat16 __hmin(__hip_bfloat16 x, __hip_bfloat16 y) { return x < y ? x : y; }
RFOPS_BOTH __hip_bfloat16 __hfma(__hip_bfloat16 x, __hip_bfloat16 y, __hip_bfloat16 z) {
  return static_cast<float>(x) * static_cast<float>(y) + static_cast<float>(z);
}
RFOPS_BOTH float __bfloat162float(__hip_bfloat16 x) { return x; }
RFOPS_BOTH __hip_bfloat16 __float2bfloat16(float x) { return x; }
RFOPS_BOTH __hip_bfloat16 __float2bfloat16_rn(float x) { return x; }
RFOPS_BOTH __hip_bfloat16 __double2bfloat16(double x) { return x; }
RFOPS_BOTH unsigned short __bfloat16_as_ushort(__hip_bfloat16 x) { return x.__x; }
RFOPS_BOTH short __bfloat16_as_short(__hip_bfloat16 x) { return static_cast<short>(x.__x); }
RFOPS_BOTH __hip_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __hip_bfloat16_raw{x}; }
__device__ inline __hip_bfloat16 hexp(__hip_bfloat16 x) { return expf(x); }

struct __hip_bfloat162_raw {
  unsigned short x, y;
};
struct __attribute__((aligned(4))) __hip_bfloat162 {
  __hip_bfloat16 x, y;
  __hip_bfloat162() = default;
  RFOPS_BOTH __hip_bfloat162(__hip_bfloat16 first, __hip_bfloat16 second) : x(first), y(second) {}
};
using __nv_bfloat162 = __hip_bfloat162;

RFOPS_BOTH __hip_bfloat162 make_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
RFOPS_BOTH __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) { return {x, y}; }
RFOPS_BOTH __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 x) { return {x, x}; }
RFOPS_BOTH __hip_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
RFOPS_BOTH float2 __bfloat1622float2(__hip_bfloat162 x) { return {x.x, x.y}; }
RFOPS_BOTH __hip_bfloat16 __low2bfloat16(__hip_bfloat162 x) { return x.x; }
RFOPS_BOTH __hip_bfloat16 __high2bfloat16(__hip_bfloat162 x) { return x.y; }
RFOPS_BOTH float __low2float(__hip_bfloat162 x) { return x.x; }
RFOPS_BOTH float __high2float(__hip_bfloat162 x) { return x.y; }
RFOPS_BOTH __hip_bfloat162 __hadd2(__hip_bfloat162 x, __hip_bfloat162 y) {
  return {x.x + y.x, x.y + y.y};
}
RFOPS_BOTH __hip_bfloat162 __hmul2(__hip_bfloat162 x, __hip_bfloat162 y) {
  return {x.x * y.x, x.y * y.y};
}

#undef RFOPS_BOTH
