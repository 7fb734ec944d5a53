// What clang's own headers for HIP bring before a source is read, for a clang without them:
// included first by `rfops eval` where it builds an entry's HIP sources. The HIP language's macros
// are in HIP's own headers; here are device forms of the C library's functions of mathematics.
//
// Those that compile to an instruction or to LLVM's own expansion are builtins; the others are
// ROCm's device library (ocml), whose bitcode is linked in.
#pragma once
#define __CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__ 1
#define __CLANG_HIP_LIBDEVICE_DECLARES_H__ 1
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))

#define RFOPS_DEVICE static __attribute__((device)) inline __attribute__((always_inline, unused))

#if defined(__HIP_DEVICE_COMPILE__)
// How ocml is to compute: as hipcc says by default.
#define RFOPS_OCLC(type, name, value) \
  extern "C" __attribute__((constant, visibility("hidden"), used)) const type name = value;
RFOPS_OCLC(unsigned char, __oclc_finite_only_opt, 0)
RFOPS_OCLC(unsigned char, __oclc_unsafe_math_opt, 0)
RFOPS_OCLC(unsigned char, __oclc_daz_opt, 0)
RFOPS_OCLC(unsigned char, __oclc_correctly_rounded_sqrt32, 1)
RFOPS_OCLC(unsigned char, __oclc_wavefrontsize64, 1)
#if defined(__gfx950__)
RFOPS_OCLC(unsigned, __oclc_ISA_version, 9500)
#else
RFOPS_OCLC(unsigned, __oclc_ISA_version, 9402)
#endif
RFOPS_OCLC(unsigned, __oclc_ABI_version, 600)
#undef RFOPS_OCLC
#endif

// name(float) and namef(float), name(double), by a builtin of clang or a function of ocml.
#define RFOPS_BUILTIN(name)                                              \
  RFOPS_DEVICE float name##f(float x) { return __builtin_##name##f(x); } \
  RFOPS_DEVICE double name(double x) { return __builtin_##name(x); }
#define RFOPS_OCML(name)                                                        \
  extern "C" __attribute__((device, const)) float __ocml_##name##_f32(float);   \
  extern "C" __attribute__((device, const)) double __ocml_##name##_f64(double); \
  RFOPS_DEVICE float name##f(float x) { return __ocml_##name##_f32(x); }        \
  RFOPS_DEVICE double name(double x) { return __ocml_##name##_f64(x); }
#define RFOPS_OCML2(name)                                                               \
  extern "C" __attribute__((device, const)) float __ocml_##name##_f32(float, float);    \
  extern "C" __attribute__((device, const)) double __ocml_##name##_f64(double, double); \
  RFOPS_DEVICE float name##f(float x, float y) { return __ocml_##name##_f32(x, y); }    \
  RFOPS_DEVICE double name(double x, double y) { return __ocml_##name##_f64(x, y); }

RFOPS_BUILTIN(fabs)
RFOPS_BUILTIN(floor)
RFOPS_BUILTIN(ceil)
RFOPS_BUILTIN(trunc)
RFOPS_BUILTIN(rint)
RFOPS_BUILTIN(nearbyint)
RFOPS_BUILTIN(sqrt)
RFOPS_OCML(round)
RFOPS_OCML(exp)
RFOPS_OCML(exp2)
RFOPS_OCML(exp10)
RFOPS_OCML(expm1)
RFOPS_OCML(log)
RFOPS_OCML(log2)
RFOPS_OCML(log10)
RFOPS_OCML(log1p)
RFOPS_OCML(sin)
RFOPS_OCML(cos)
RFOPS_OCML(tan)
RFOPS_OCML(tanh)
RFOPS_OCML(erf)
RFOPS_OCML(erfc)
RFOPS_OCML(rsqrt)
RFOPS_OCML2(pow)
RFOPS_OCML2(fmod)
RFOPS_OCML2(atan2)

RFOPS_DEVICE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
RFOPS_DEVICE double fmax(double x, double y) { return __builtin_fmax(x, y); }
RFOPS_DEVICE float fminf(float x, float y) { return __builtin_fminf(x, y); }
RFOPS_DEVICE double fmin(double x, double y) { return __builtin_fmin(x, y); }
RFOPS_DEVICE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
RFOPS_DEVICE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
RFOPS_DEVICE int abs(int x) { return __builtin_abs(x); }
RFOPS_DEVICE long abs(long x) { return __builtin_labs(x); }
RFOPS_DEVICE float abs(float x) { return __builtin_fabsf(x); }
RFOPS_DEVICE double abs(double x) { return __builtin_fabs(x); }
RFOPS_DEVICE float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
RFOPS_DEVICE float ldexpf(float x, int e) { return __builtin_amdgcn_ldexpf(x, e); }

// HIP's intrinsics: less exact, quicker.
RFOPS_DEVICE float __expf(float x) { return __builtin_amdgcn_exp2f(1.44269504f * x); }
RFOPS_DEVICE float __exp2f(float x) { return __builtin_amdgcn_exp2f(x); }
RFOPS_DEVICE float __logf(float x) { return 0.693147181f * __builtin_amdgcn_logf(x); }
RFOPS_DEVICE float __log2f(float x) { return __builtin_amdgcn_logf(x); }
RFOPS_DEVICE float __fdividef(float x, float y) { return x / y; }
RFOPS_DEVICE float __frcp_rn(float x) { return 1.0f / x; }
RFOPS_DEVICE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
RFOPS_DEVICE float __frsqrt_rn(float x) { return __builtin_amdgcn_rsqf(x); }
RFOPS_DEVICE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
RFOPS_DEVICE float __fmul_rn(float x, float y) { return x * y; }
RFOPS_DEVICE float __fadd_rn(float x, float y) { return x + y; }
RFOPS_DEVICE float __powf(float x, float y) { return powf(x, y); }
RFOPS_DEVICE float __sinf(float x) { return sinf(x); }
RFOPS_DEVICE float __cosf(float x) { return cosf(x); }
RFOPS_DEVICE float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
RFOPS_DEVICE void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
RFOPS_DEVICE void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }

#define RFOPS_MINMAX(type)                                        \
  RFOPS_DEVICE type min(type x, type y) { return x < y ? x : y; } \
  RFOPS_DEVICE type max(type x, type y) { return x < y ? y : x; }
RFOPS_MINMAX(int)
RFOPS_MINMAX(unsigned)
RFOPS_MINMAX(long)
RFOPS_MINMAX(unsigned long)
RFOPS_MINMAX(long long)
RFOPS_MINMAX(unsigned long long)
#undef RFOPS_MINMAX
RFOPS_DEVICE float min(float x, float y) { return __builtin_fminf(x, y); }
RFOPS_DEVICE float max(float x, float y) { return __builtin_fmaxf(x, y); }
RFOPS_DEVICE double min(double x, double y) { return __builtin_fmin(x, y); }
RFOPS_DEVICE double max(double x, double y) { return __builtin_fmax(x, y); }
// Which of these a host function means: the C++ library's.
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

#undef RFOPS_BUILTIN
#undef RFOPS_OCML
#undef RFOPS_OCML2
#undef RFOPS_DEVICE
