// OCP MX-FP8 in registers: e4m3 payloads and e8m0 scales (gfx950).
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kMxBlock = 32;    // elements per e8m0 scale
constexpr i32 kE8m0Bias = 127;  // byte b means 2^(b - 127)
constexpr u32 kE8m0Nan = 255;
constexpr u32 kE4m3Nans = 0x7f7f7f7fu;  // four e4m3 NaNs

// 16 consecutive e4m3 elements as f16, which represents every e4m3 value exactly, as a normal
// number.
struct Half16 {
  F16x2 pair[8];
};

// Converts 16 e4m3 elements to f16.
__device__ inline Half16 widen_e4m3(U32x4 payload) {
  constexpr f32 kNoScale = 1.0f;
  Half16 halves;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    halves.pair[2 * i] = __builtin_amdgcn_cvt_scalef32_pk_f16_fp8(payload[i], kNoScale, false);
    halves.pair[2 * i + 1] = __builtin_amdgcn_cvt_scalef32_pk_f16_fp8(payload[i], kNoScale, true);
  }
  return halves;
}

// Makes a block with a NaN scale NaN: the payload gets a NaN, because multiplication by a power of
// two cannot produce it.
__device__ inline U32x4 apply_nan_scale(U32x4 payload, u32 scale) {
  payload[0] = scale == kE8m0Nan ? kE4m3Nans : payload[0];
  return payload;
}

// Returns sum_i a[i] * b[i]: exact products, summed in fp32 in the order of i.
__device__ inline f32 dot_16(const Half16& a, const Half16& b) {
  f32 sum = 0.0f;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) sum = __builtin_amdgcn_fdot2(a.pair[i], b.pair[i], sum, false);
  return sum;
}

}  // namespace rfops
