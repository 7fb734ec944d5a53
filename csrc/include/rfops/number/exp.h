// exp, sigmoid and SiLU, accurate to about one ULP of fp32.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr f32 kInfinity = __builtin_inff();
constexpr f32 kLargest = 3.40282347e38f;

constexpr f32 kMinExpArg = -104.0f, kMaxExpArg = 88.7228394f;  // e^x beyond is 0 and infinity

// e^x for x from kMinExpArg to kMaxExpArg. The product with log2(e) is kept in two parts, because
// its rounding alone would cost |x| ULP. Subnormal results may become 0.
__device__ inline f32 exp_in_range(f32 x) {
  constexpr f32 kLog2E = 1.44269502f, kLog2ERest = 1.92596303e-8f, kLn2 = 0.693147182f;
  const f32 high = x * kLog2E;
  const f32 low = __builtin_fmaf(x, kLog2ERest, __builtin_fmaf(x, kLog2E, -high));
  const f32 power = __builtin_amdgcn_exp2f(high);
  return __builtin_fmaf(power, low * kLn2, power);
}

// e^x of any x; NaN stays NaN.
__device__ inline f32 exp_of(f32 x) {
  const f32 result = exp_in_range(x < kMinExpArg ? kMinExpArg : x > kMaxExpArg ? kMaxExpArg : x);
  return x < kMinExpArg ? 0.0f : x > kMaxExpArg ? kInfinity : result;
}

__device__ inline f32 sigmoid(f32 x) { return 1.0f / (1.0f + exp_of(-x)); }

// The same for 16-bit results: within |x| ULP of fp32, four instructions.
__device__ inline f32 quick_sigmoid(f32 x) {
  constexpr f32 kLog2E = 1.44269502f;
  return __builtin_amdgcn_rcpf(1.0f + __builtin_amdgcn_exp2f(x * -kLog2E));
}

// x * sigmoid(x) for 16-bit results.
__device__ inline f32 silu(f32 x) { return x * quick_sigmoid(x); }

}  // namespace rfops
