// The exponential and what is made of it, to about an ULP of fp32.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr f32 kInfinity = __builtin_inff();
constexpr f32 kLargest = 3.40282347e38f;

// e^x. The product with log2(e) is kept in two parts: its rounding alone would cost |x| ULP. What
// is below the least normal number may become 0; a NaN stays one.
__device__ inline f32 exp_of(f32 x) {
  constexpr f32 kLog2E = 1.44269502f, kLog2ERest = 1.92596303e-8f, kLn2 = 0.693147182f;
  constexpr f32 kLeast = -104.0f, kMost = 88.7228394f;  // 0 and infinity beyond
  const f32 in = x < kLeast ? kLeast : x > kMost ? kMost : x;
  const f32 high = in * kLog2E;
  const f32 low = __builtin_fmaf(in, kLog2ERest, __builtin_fmaf(in, kLog2E, -high));
  const f32 power = __builtin_amdgcn_exp2f(high);
  const f32 whole = __builtin_fmaf(power, low * kLn2, power);
  return x < kLeast ? 0.0f : x > kMost ? kInfinity : whole;
}

__device__ inline f32 sigmoid(f32 x) { return 1.0f / (1.0f + exp_of(-x)); }

// x * sigmoid(x) for results of 16 bits: |x| ULP of fp32, in five instructions.
__device__ inline f32 silu(f32 x) {
  constexpr f32 kLog2E = 1.44269502f;
  return x * __builtin_amdgcn_rcpf(1.0f + __builtin_amdgcn_exp2f(x * -kLog2E));
}

}  // namespace rfops
