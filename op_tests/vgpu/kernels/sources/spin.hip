// Workgroups that wait for each other through memory.
#include "hip_names.h"

INLINE __device__ u32 acquire_load(const u32* at) {
  return __hip_atomic_load(at, __ATOMIC_ACQUIRE, SCOPE_DEVICE);
}
INLINE __device__ void release_store(u32* at, u32 value) {
  __hip_atomic_store(at, value, __ATOMIC_RELEASE, SCOPE_DEVICE);
}

// A ticket lock: state = {next ticket, now serving}. The total is not atomic.
KERNEL ticket_lock(u32* state, u64* total, const u32* in) {
  if (threadIdx.x == 0) {
    const u32 ticket = __hip_atomic_fetch_add(&state[0], 1u, RELAXED, SCOPE_DEVICE);
    while (acquire_load(&state[1]) != ticket) __builtin_amdgcn_s_sleep(1);
    *total = *total * 3 + in[ticket];
    release_store(&state[1], ticket + 1);
  }
}

// Block i starts from block i-1's result: a serial scan over the grid.
KERNEL chained_scan(u32* out, u32* flags, const u32* in) {
  __shared__ u32 before;
  if (threadIdx.x == 0) {
    before = 0;
    if (blockIdx.x > 0) {
      while (acquire_load(&flags[blockIdx.x - 1]) == 0) __builtin_amdgcn_s_sleep(1);
      before = out[blockIdx.x * blockDim.x - 1];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 sum = before;
    for (u32 i = 0; i < blockDim.x; ++i) {
      sum += in[blockIdx.x * blockDim.x + i];
      out[blockIdx.x * blockDim.x + i] = sum;
    }
    __threadfence();
    release_store(&flags[blockIdx.x], 1);
  }
}

// The block that arrives last adds up what all have written.
KERNEL last_block_sums(u64* out, u64* partial, u32* arrived, const u32* in, int n) {
  __shared__ u64 local[256];
  __shared__ bool last;
  u64 sum = 0;
  for (u32 i = global_id(); i < static_cast<u32>(n); i += global_threads()) sum += in[i];
  local[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (u32 i = 0; i < blockDim.x; ++i) sum += local[i];
    partial[blockIdx.x] = sum;
    __threadfence();
    last = __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, SCOPE_DEVICE) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    sum = 0;
    for (u32 i = 0; i < gridDim.x; ++i) sum += reinterpret_cast<volatile u64*>(partial)[i];
    *out = sum;
  }
}

// A barrier over the whole grid: every block must be resident, as on hardware a small grid is.
KERNEL grid_barrier(u32* out, u32* arrived, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) {
      u32 sum = out[round * gridDim.x + blockIdx.x] + 1;
      for (u32 i = 0; i < gridDim.x; ++i) sum += out[round * gridDim.x + i];
      out[(round + 1) * gridDim.x + blockIdx.x] = sum + blockIdx.x;
      __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, SCOPE_DEVICE);
      while (acquire_load(arrived) < gridDim.x * (round + 1)) __builtin_amdgcn_s_sleep(2);
    }
    __syncthreads();
  }
}

// One wave feeds another of the same block through LDS, without a barrier.
KERNEL wave_to_wave(u32* out, const u32* in, int n) {
  __shared__ volatile u32 mailbox;
  __shared__ volatile u32 full;
  if (threadIdx.x == 0) full = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; ++i) {
      while (full) {
      }
      mailbox = in[i];
      __threadfence_block();
      full = 1;
    }
  } else if (threadIdx.x == 64) {
    for (int i = 0; i < n; ++i) {
      while (!full) {
      }
      __threadfence_block();
      out[i] = mailbox * 2 + 1;
      full = 0;
    }
  }
}
