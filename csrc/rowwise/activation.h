// Activations of gated linear units: an activation of gate, times up, in fp32.
//
//     silu       gate * sigmoid(gate) * up
//     gelu       gate * Phi(gate) * up,  Phi(g) = erfc(-g / sqrt(2)) / 2
//     gelu_tanh  gate * sigmoid(2 sqrt(2 / pi) (gate + 0.044715 gate^3)) * up
//     swiglu     g * sigmoid(alpha * g) * (u + beta),  g = min(gate, limit), u = up within +-limit
//
// 0.5 (1 + tanh(v)) is sigmoid(2 v), which loses nothing where tanh is near -1, as erfc of a
// positive argument loses nothing where erf is near -1. The relative error is within (4 + |gate|)
// ULP of fp32 but for gelu, within 2^-19: results of 16 bits do not see it.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/number/exp.h"

namespace rfops {

enum class Activation { kSilu, kGelu, kGeluTanh, kSwiglu };

// erfc(z), z >= 0: Chebyshev approximation of fractional error 1.2e-7 (Press et al., Numerical
// Recipes, 6.2).
__device__ inline f32 erfc_of_positive(f32 z) {
  constexpr f32 kCoefficients[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f,
                                   0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                                   1.00002368f, -1.26551223f};
  const f32 t = __builtin_amdgcn_rcpf(1.0f + 0.5f * z);
  f32 exponent = kCoefficients[0];
#pragma unroll
  for (u32 i = 1; i < 10; ++i) exponent = __builtin_fmaf(exponent, t, kCoefficients[i]);
  return t * exp_of(__builtin_fmaf(-z, z, exponent));
}

// The cumulative distribution of a normal variable.
__device__ inline f32 normal_cdf(f32 x) {
  constexpr f32 kRootHalf = 0.707106781f;
  const f32 tail = 0.5f * erfc_of_positive(__builtin_fabsf(x) * kRootHalf);
  return x < 0.0f ? tail : 1.0f - tail;
}

// What swiglu clamps and scales by.
struct Swiglu {
  f32 alpha, limit, beta;
};

template <Activation kActivation>
__device__ inline f32 gated(f32 gate, f32 up, const Swiglu& swiglu) {
  if constexpr (kActivation == Activation::kSilu) {
    return silu(gate) * up;
  } else if constexpr (kActivation == Activation::kGelu) {
    return gate * normal_cdf(gate) * up;
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    constexpr f32 kTwiceRoot = 1.59576912f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
    return gate * quick_sigmoid(kTwiceRoot * __builtin_fmaf(kCube * gate * gate, gate, gate)) * up;
  } else {
    // A comparison that is false keeps the value, so a NaN stays one.
    const f32 g = gate > swiglu.limit ? swiglu.limit : gate;
    const f32 capped = up > swiglu.limit ? swiglu.limit : up;
    const f32 u = capped < -swiglu.limit ? -swiglu.limit : capped;
    return g * quick_sigmoid(swiglu.alpha * g) * (u + swiglu.beta);
  }
}

}  // namespace rfops
