// Floating-point atomics: as a compare-and-swap loop where memory may be fine-grained, as one
// instruction where the source says that it is not.
#include "hip_names.h"

#define COARSE [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]]

KERNEL add_loop(float* sum, double* wide, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  __hip_atomic_fetch_add(sum, in[i], RELAXED, SCOPE_SYSTEM);
  __hip_atomic_fetch_add(wide, static_cast<double>(in[i]), RELAXED, SCOPE_SYSTEM);
}

KERNEL add_instruction(float* sum, double* wide, float* old, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  COARSE {
    __hip_atomic_fetch_add(sum, in[i], RELAXED, SCOPE_DEVICE);
    __hip_atomic_fetch_add(wide, static_cast<double>(in[i]), RELAXED, SCOPE_DEVICE);
    old[i] = __hip_atomic_fetch_add(sum + 1, 1.0f, RELAXED, SCOPE_DEVICE);
    __hip_atomic_fetch_min(wide + 1, static_cast<double>(in[i]), RELAXED, SCOPE_DEVICE);
    __hip_atomic_fetch_max(wide + 2, static_cast<double>(in[i]), RELAXED, SCOPE_DEVICE);
    __hip_atomic_fetch_min(sum + 2, in[i], RELAXED, SCOPE_DEVICE);
    __hip_atomic_fetch_max(sum + 3, in[i], RELAXED, SCOPE_DEVICE);
  }
}

KERNEL add_lds(float* sum, double* wide, const float* in, int n) {
  __shared__ float local;
  __shared__ double local_wide;
  if (threadIdx.x == 0) local = 0, local_wide = 0;
  __syncthreads();
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) {
    __hip_atomic_fetch_add(&local, in[i], RELAXED, SCOPE_BLOCK);
    __hip_atomic_fetch_add(&local_wide, static_cast<double>(in[i]), RELAXED, SCOPE_BLOCK);
  }
  __syncthreads();
  if (threadIdx.x == 0) COARSE {
      __hip_atomic_fetch_add(sum, local, RELAXED, SCOPE_DEVICE);
      __hip_atomic_fetch_add(wide, local_wide, RELAXED, SCOPE_DEVICE);
    }
}

using GlobalHalves = __attribute__((address_space(1))) F16x2*;
using GlobalBrains = __attribute__((address_space(1))) Vec<i16, 2>*;
using LocalHalves = __attribute__((address_space(3))) F16x2*;
KERNEL add_packed(F16x2* halves, BF16x2* brains, const F16x2* in, int n) {
  __shared__ F16x2 local;
  if (threadIdx.x == 0) local = F16x2{};
  __syncthreads();
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) {
    const F16x2 value = in[i];
    __builtin_amdgcn_global_atomic_fadd_v2f16((GlobalHalves)halves, value);
    __builtin_amdgcn_ds_atomic_fadd_v2f16((LocalHalves)&local, value);
    const BF16x2 brain = {static_cast<bf16>(static_cast<float>(value.x)),
                          static_cast<bf16>(static_cast<float>(value.y))};
    __builtin_amdgcn_global_atomic_fadd_v2bf16((GlobalBrains)brains, bits<Vec<i16, 2>>(brain));
  }
  __syncthreads();
  if (threadIdx.x == 0)
    __builtin_amdgcn_global_atomic_fadd_v2f16((GlobalHalves)(halves + 1), local);
}
