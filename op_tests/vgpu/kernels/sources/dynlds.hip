// LDS whose size the launch gives, alone and beside static LDS.
#include "hip_names.h"

KERNEL reverse_block(float* out, const float* in, int n) {
  extern __shared__ float dynamic[];
  const u32 size = blockDim.x;
  dynamic[threadIdx.x] = in[global_id()];
  __syncthreads();
  if (global_id() < static_cast<u32>(n)) out[global_id()] = dynamic[size - 1 - threadIdx.x];
}

// Three arrays of different types are cut from one block.
KERNEL carve(double* out, const u32* in) {
  __shared__ u32 fixed[64];
  extern __shared__ __attribute__((aligned(16))) u8 raw[];
  const u32 size = blockDim.x;
  double* doubles = reinterpret_cast<double*>(raw);
  u32* words = reinterpret_cast<u32*>(doubles + size);
  u8* bytes = reinterpret_cast<u8*>(words + size);
  const u32 self = threadIdx.x;
  const u32 value = in[global_id()];
  doubles[self] = value * 0.5;
  words[self] = value ^ 0xff;
  bytes[self] = static_cast<u8>(value);
  if (self < 64) fixed[self] = self * self;
  __syncthreads();
  const u32 other = (self + 7) % size;
  out[global_id()] = doubles[other] + words[size - 1 - self] + bytes[other] + fixed[other % 64];
}

// Stencil with a halo, whole block of dynamic LDS in use.
KERNEL moving_sum(i32* out, const i32* in, int n, int radius) {
  extern __shared__ i32 window[];
  const int base = static_cast<int>(blockIdx.x * blockDim.x) - radius;
  for (int i = threadIdx.x; i < static_cast<int>(blockDim.x) + 2 * radius; i += blockDim.x) {
    const int at = base + i;
    window[i] = at >= 0 && at < n ? in[at] : 0;
  }
  __syncthreads();
  i32 sum = 0;
  for (int i = 0; i <= 2 * radius; ++i) sum += window[threadIdx.x + i];
  if (global_id() < static_cast<u32>(n)) out[global_id()] = sum;
}
