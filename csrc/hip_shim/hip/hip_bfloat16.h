// HIP's older hip_bfloat16: the newer one's value under the names of its members.
#pragma once
#include <hip/hip_bf16.h>

struct hip_bfloat16 {
  unsigned short data;
  hip_bfloat16() = default;
  __host__ __device__ explicit hip_bfloat16(float value) : data(__hip_bfloat16(value).__x) {}
  __host__ __device__ operator float() const { return __hip_bfloat16(__hip_bfloat16_raw{data}); }
  __host__ __device__ static hip_bfloat16 round_to_bfloat16(float value) {
    return hip_bfloat16(value);
  }
};
