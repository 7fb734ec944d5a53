// Clocks, hardware registers, hints: nothing exact, but what must hold holds.
#include "hip_names.h"

// out: {clock before, after}, {real time before, after}.
KERNEL clocks_advance(u64* out, u32* sink) {
  const u64 cycles = __builtin_readcyclecounter();
  const u64 real = __builtin_amdgcn_s_memrealtime();
  u32 state = threadIdx.x + 1;
  for (int i = 0; i < 2000; ++i) state = state * 1664525u + 1013904223u;
  sink[threadIdx.x] = state;
  __builtin_amdgcn_s_sleep(2);
  const u64 cycles_after = __builtin_amdgcn_s_memtime();
  const u64 real_after = __builtin_amdgcn_s_memrealtime();
  if (threadIdx.x == 0) {
    out[0] = cycles;
    out[1] = cycles_after;
    out[2] = real;
    out[3] = real_after;
  }
}

// The MODE register: float rounding and denormals as the descriptor set them.
KERNEL read_mode(u32* out) {
  const u32 mode = __builtin_amdgcn_s_getreg(1 | (0 << 6) | (31 << 11));
  out[threadIdx.x] = mode & 0xff;
}

// Rounding toward zero and back, by writing MODE.
KERNEL set_rounding(float* out, const float* a, const float* b) {
  const u32 i = threadIdx.x;
  const float x = a[i];
  const float y = b[i];
  float toward_zero, nearest;
  asm volatile(
      "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3\n\tv_add_f32 %0, %1, %2\n\t"
      "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0"
      : "=v"(toward_zero)
      : "v"(x), "v"(y));
  asm volatile("v_add_f32 %0, %1, %2" : "=v"(nearest) : "v"(x), "v"(y));
  out[2 * i] = toward_zero;
  out[2 * i + 1] = nearest;
}

KERNEL hints(u32* out) {
  __builtin_amdgcn_s_setprio(2);
  __builtin_amdgcn_sched_barrier(0);
  __builtin_amdgcn_s_sleep(1);
  asm volatile("s_icache_inv");
  __builtin_amdgcn_s_dcache_inv();
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_s_setprio(0);
  out[global_id()] = global_id() + 1;
}
