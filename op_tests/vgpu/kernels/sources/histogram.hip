// Histograms: LDS atomics a block, then global atomics.
#include "hip_names.h"

KERNEL histogram_bytes(u32* bins, const u8* in, int n) {
  __shared__ u32 local[256];
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (u32 i = global_id(); i < static_cast<u32>(n); i += global_threads()) {
    __hip_atomic_fetch_add(&local[in[i]], 1u, RELAXED, SCOPE_BLOCK);
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
    if (local[i]) atomicAdd(&bins[i], local[i]);
  }
}

// Sums by key: 64-bit LDS and global atomics.
KERNEL sum_by_key(u64* sums, const u32* keys, const u32* values, int n) {
  __shared__ u64 local[32];
  if (threadIdx.x < 32) local[threadIdx.x] = 0;
  __syncthreads();
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) {
    __hip_atomic_fetch_add(&local[keys[i] & 31], static_cast<u64>(values[i]) << 8, RELAXED,
                           SCOPE_BLOCK);
  }
  __syncthreads();
  if (threadIdx.x < 32) atomicAdd(&sums[threadIdx.x], local[threadIdx.x]);
}
