// exp, sigmoid and SiLU, accurate to about one ULP of fp32.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr f32 kInfinity = __builtin_inff();
constexpr f32 kLargest = 3.40282347e38f;

// e^x. The product with log2(e) is kept in two parts, because its rounding alone would cost |x|
// ULP. Subnormal results may become 0; NaN stays NaN.
__device__ inline f32 exp_of(f32 x) {
  constexpr f32 kLog2E = 1.44269502f, kLog2ERest = 1.92596303e-8f, kLn2 = 0.693147182f;
  constexpr f32 kMinArg = -104.0f, kMaxArg = 88.7228394f;  // results beyond are 0 and infinity
  const f32 arg = x < kMinArg ? kMinArg : x > kMaxArg ? kMaxArg : x;
  const f32 high = arg * kLog2E;
  const f32 low = __builtin_fmaf(arg, kLog2ERest, __builtin_fmaf(arg, kLog2E, -high));
  const f32 power = __builtin_amdgcn_exp2f(high);
  const f32 result = __builtin_fmaf(power, low * kLn2, power);
  return x < kMinArg ? 0.0f : x > kMaxArg ? kInfinity : result;
}

__device__ inline f32 sigmoid(f32 x) { return 1.0f / (1.0f + exp_of(-x)); }

// x * sigmoid(x) for 16-bit results: within |x| ULP of fp32, five instructions.
__device__ inline f32 silu(f32 x) {
  constexpr f32 kLog2E = 1.44269502f;
  return x * __builtin_amdgcn_rcpf(1.0f + __builtin_amdgcn_exp2f(x * -kLog2E));
}

}  // namespace rfops
