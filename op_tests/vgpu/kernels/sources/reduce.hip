// Reductions: LDS tree, lane exchange by bpermute, DPP rows, 1024-thread blocks.
#include "hip_names.h"

// One partial sum a block.
KERNEL block_sum_tree(int* out, const int* in, int n) {
  __shared__ int partial[256];
  const u32 lane = threadIdx.x;
  int sum = 0;
  for (u32 i = global_id(); i < static_cast<u32>(n); i += global_threads()) sum += in[i];
  partial[lane] = sum;
  __syncthreads();
  for (u32 half = 128; half > 0; half >>= 1) {
    if (lane < half) partial[lane] += partial[lane + half];
    __syncthreads();
  }
  if (lane == 0) out[blockIdx.x] = partial[0];
}

template <class T, class Op>
INLINE __device__ T wave_reduce(T value, Op op) {
  for (int step = 32; step > 0; step >>= 1) value = op(value, __shfl_xor(value, step));
  return value;
}

KERNEL block_max_shuffle(float* out, const float* in, int n) {
  __shared__ float wave_max[16];
  auto larger = [](float a, float b) { return a > b ? a : b; };
  float best = -__builtin_inff();
  for (u32 i = threadIdx.x; i < static_cast<u32>(n); i += blockDim.x) best = larger(best, in[i]);
  best = wave_reduce(best, larger);
  if (lane_id() == 0) wave_max[threadIdx.x / 64] = best;
  __syncthreads();
  if (threadIdx.x < 64) {
    best = threadIdx.x < blockDim.x / 64 ? wave_max[threadIdx.x] : -__builtin_inff();
    best = wave_reduce(best, larger);
    if (threadIdx.x == 0) *out = best;
  }
}

// The largest value and the lowest index that holds it.
KERNEL arg_max(u32* out_index, const float* in, int n) {
  __shared__ u64 best_of_wave[16];
  u64 best = 0;
  for (u32 i = threadIdx.x; i < static_cast<u32>(n); i += blockDim.x) {
    const u32 raw = bits<u32>(in[i]);
    const u32 ordered = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
    const u64 key = static_cast<u64>(ordered) << 32 | ~i;
    if (key > best) best = key;
  }
  best = wave_reduce(best, [](u64 a, u64 b) { return a > b ? a : b; });
  if (lane_id() == 0) best_of_wave[threadIdx.x / 64] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (u32 wave = 1; wave < (blockDim.x + 63) / 64; ++wave) {
      if (best_of_wave[wave] > best) best = best_of_wave[wave];
    }
    *out_index = ~static_cast<u32>(best);
  }
}

template <int Control, int RowMask>
INLINE __device__ int dpp_add(int value) {
  return value + __builtin_amdgcn_update_dpp(0, value, Control, RowMask, 0xf, false);
}
// Row shifts and broadcasts leave the wave's sum in lane 63.
KERNEL wave_sum_dpp(int* out, const int* in) {
  int value = in[global_id()];
  value = dpp_add<0x111, 0xf>(value);  // row_shr:1
  value = dpp_add<0x112, 0xf>(value);  // row_shr:2
  value = dpp_add<0x114, 0xf>(value);  // row_shr:4
  value = dpp_add<0x118, 0xf>(value);  // row_shr:8
  value = dpp_add<0x142, 0xa>(value);  // row_bcast:15 into rows 1 and 3
  value = dpp_add<0x143, 0xc>(value);  // row_bcast:31 into rows 2 and 3
  if (lane_id() == 63) out[global_id() / 64] = value;
}

template <int Control>
INLINE __device__ float dpp_max(float value) {
  const float other =
      bits<float>(__builtin_amdgcn_mov_dpp(bits<int>(value), Control, 0xf, 0xf, true));
  return __builtin_fmaxf(value, other);
}
// Maximum of each 16-lane row, in every lane of it.
KERNEL row_max_dpp(float* out, const float* in) {
  float value = in[global_id()];
  value = dpp_max<0xb1>(value);   // quad_perm [1,0,3,2]
  value = dpp_max<0x4e>(value);   // quad_perm [2,3,0,1]
  value = dpp_max<0x141>(value);  // row_half_mirror
  value = dpp_max<0x140>(value);  // row_mirror
  out[global_id()] = value;
}

__launch_bounds__(1024) KERNEL sum_1024(float* out, const float* in, int n) {
  __shared__ float partial[1024];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 1024) sum += in[i];
  partial[threadIdx.x] = sum;
  for (u32 half = 512; half > 0; half >>= 1) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *out = partial[0];
}
