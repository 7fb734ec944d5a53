// Row-wise softmax and log-sum-exp, one block a row.
#include "hip_names.h"

template <class Op>
INLINE __device__ float block_reduce(float value, float neutral, Op op) {
  __shared__ float of_wave[16];
  for (int step = 32; step > 0; step >>= 1) value = op(value, __shfl_xor(value, step));
  __syncthreads();
  if (lane_id() == 0) of_wave[threadIdx.x / 64] = value;
  __syncthreads();
  value = lane_id() < (blockDim.x + 63) / 64 ? of_wave[lane_id()] : neutral;
  for (int step = 8; step > 0; step >>= 1) value = op(value, __shfl_xor(value, step));
  return __shfl(value, 0);
}
INLINE __device__ float row_max(const float* row, int n) {
  float best = -__builtin_inff();
  for (int i = threadIdx.x; i < n; i += blockDim.x) best = __builtin_fmaxf(best, row[i]);
  return block_reduce(best, -__builtin_inff(),
                      [](float a, float b) { return __builtin_fmaxf(a, b); });
}
INLINE __device__ float row_exp_sum(const float* row, int n, float shift) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __builtin_expf(row[i] - shift);
  return block_reduce(sum, 0.0f, [](float a, float b) { return a + b; });
}

KERNEL softmax_rows(float* out, const float* in, int n) {
  const float* row = in + static_cast<i64>(blockIdx.x) * n;
  const float shift = row_max(row, n);
  const float sum = row_exp_sum(row, n, shift);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    out[static_cast<i64>(blockIdx.x) * n + i] = __builtin_expf(row[i] - shift) / sum;
  }
}

KERNEL log_sum_exp_rows(float* out, const float* in, int n) {
  const float* row = in + static_cast<i64>(blockIdx.x) * n;
  const float shift = row_max(row, n);
  const float sum = row_exp_sum(row, n, shift);
  if (threadIdx.x == 0) out[blockIdx.x] = shift + __builtin_logf(sum);
}
