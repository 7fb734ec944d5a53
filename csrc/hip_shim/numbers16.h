// What HIP has alike for its two numbers of 16 bits, and for pairs of them: RFOPS_NUMBER and
// RFOPS_PAIR declare it. `value(x)` is what arithmetic is done with; its result is rounded to T.
#pragma once
#include <hip/hip_runtime.h>

#define RFOPS_BOTH __host__ __device__ inline

#define RFOPS_OPERATOR(T, value, sign, name)                                 \
  RFOPS_BOTH T operator sign(T x, T y) { return T(value(x) sign value(y)); } \
  RFOPS_BOTH T& operator sign## = (T & x, T y) { return x = x sign y; }      \
  RFOPS_BOTH T name(T x, T y) { return x sign y; }

#define RFOPS_COMPARE(T, value, sign, name)                                  \
  RFOPS_BOTH bool operator sign(T x, T y) { return value(x) sign value(y); } \
  RFOPS_BOTH bool name(T x, T y) { return x sign y; }

#define RFOPS_NUMBER(T, value)                                                       \
  RFOPS_OPERATOR(T, value, +, __hadd)                                                \
  RFOPS_OPERATOR(T, value, -, __hsub)                                                \
  RFOPS_OPERATOR(T, value, *, __hmul)                                                \
  RFOPS_OPERATOR(T, value, /, __hdiv)                                                \
  RFOPS_COMPARE(T, value, ==, __heq)                                                 \
  RFOPS_COMPARE(T, value, !=, __hne)                                                 \
  RFOPS_COMPARE(T, value, <, __hlt)                                                  \
  RFOPS_COMPARE(T, value, <=, __hle)                                                 \
  RFOPS_COMPARE(T, value, >, __hgt)                                                  \
  RFOPS_COMPARE(T, value, >=, __hge)                                                 \
  RFOPS_BOTH T operator-(T x) { return T(-value(x)); }                               \
  RFOPS_BOTH T __hneg(T x) { return -x; }                                            \
  RFOPS_BOTH T __hmax(T x, T y) { return x > y ? x : y; }                            \
  RFOPS_BOTH T __hmin(T x, T y) { return x < y ? x : y; }                            \
  RFOPS_BOTH T __habs(T x) { return value(x) < 0 ? -x : x; }                         \
  RFOPS_BOTH bool __hisnan(T x) { return x != x; }                                   \
  RFOPS_BOTH T __hfma(T x, T y, T z) {                                               \
    return T(static_cast<float>(x) * static_cast<float>(y) + static_cast<float>(z)); \
  }                                                                                  \
  __device__ inline T hexp(T x) { return T(expf(x)); }                               \
  __device__ inline T hexp2(T x) { return T(exp2f(x)); }                             \
  __device__ inline T hlog(T x) { return T(logf(x)); }                               \
  __device__ inline T hsqrt(T x) { return T(sqrtf(x)); }                             \
  __device__ inline T hrsqrt(T x) { return T(rsqrtf(x)); }                           \
  __device__ inline T hrcp(T x) { return T(1.0f / static_cast<float>(x)); }

#define RFOPS_PAIR(T2, T)                                              \
  struct T2##_raw {                                                    \
    unsigned short x, y;                                               \
  };                                                                   \
  struct __attribute__((aligned(4))) T2 {                              \
    T x, y;                                                            \
    T2() = default;                                                    \
    RFOPS_BOTH T2(T first, T second) : x(first), y(second) {}          \
  };                                                                   \
  RFOPS_BOTH float __low2float(T2 x) { return x.x; }                   \
  RFOPS_BOTH float __high2float(T2 x) { return x.y; }                  \
  RFOPS_BOTH T2 __hadd2(T2 x, T2 y) { return {x.x + y.x, x.y + y.y}; } \
  RFOPS_BOTH T2 __hsub2(T2 x, T2 y) { return {x.x - y.x, x.y - y.y}; } \
  RFOPS_BOTH T2 __hmul2(T2 x, T2 y) { return {x.x * y.x, x.y * y.y}; } \
  RFOPS_BOTH T2 __hfma2(T2 x, T2 y, T2 z) {                            \
    return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)};             \
  }                                                                    \
  RFOPS_BOTH T2 operator+(T2 x, T2 y) { return __hadd2(x, y); }        \
  RFOPS_BOTH T2 operator-(T2 x, T2 y) { return __hsub2(x, y); }        \
  RFOPS_BOTH T2 operator*(T2 x, T2 y) { return __hmul2(x, y); }
