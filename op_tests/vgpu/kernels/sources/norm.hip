// Layer norm and RMS norm, one wave or one block a row.
#include "hip_names.h"

INLINE __device__ float wave_sum(float value) {
  for (int step = 32; step > 0; step >>= 1) value += __shfl_xor(value, step);
  return value;
}

// One wave a row, four rows a block.
KERNEL layer_norm_rows(float* out, const float* in, const float* gain, const float* bias, int rows,
                       int n, float epsilon) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const float* from = in + static_cast<i64>(row) * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 64) sum += from[i];
  const float mean = wave_sum(sum) / n;
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += 64) squares += (from[i] - mean) * (from[i] - mean);
  const float scale = 1.0f / __builtin_sqrtf(wave_sum(squares) / n + epsilon);
  for (int i = threadIdx.x; i < n; i += 64) {
    out[static_cast<i64>(row) * n + i] = (from[i] - mean) * scale * gain[i] + bias[i];
  }
}

// bfloat16 in and out, two elements a load.
KERNEL rms_norm_bf16(BF16x2* out, const BF16x2* in, const BF16x2* gain, int pairs, float epsilon) {
  const i64 base = static_cast<i64>(blockIdx.x) * pairs;
  float squares = 0;
  for (int i = threadIdx.x; i < pairs; i += 64) {
    const float a = in[base + i].x;
    const float b = in[base + i].y;
    squares += a * a + b * b;
  }
  const float scale = __builtin_amdgcn_rsqf(wave_sum(squares) / (2 * pairs) + epsilon);
  for (int i = threadIdx.x; i < pairs; i += 64) {
    const float a = in[base + i].x;
    const float b = in[base + i].y;
    const BF16x2 g = gain[i];
    out[base + i] = BF16x2{static_cast<bf16>(a * scale * static_cast<float>(g.x)),
                           static_cast<bf16>(b * scale * static_cast<float>(g.y))};
  }
}
