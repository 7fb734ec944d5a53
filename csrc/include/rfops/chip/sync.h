// Waits, meetings and order, said by the kernel where the compiler would guess.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

namespace details {

// gfx9's s_waitcnt: loads and stores in flight, the exports, LDS and scalar loads in flight.
constexpr int waitcnt(u32 vector, u32 lds) {
  return static_cast<int>((vector & 15) | (vector >> 4) << 14 | 7 << 4 | lds << 8);
}
constexpr u32 kAnyVector = 63, kAnyLds = 15;

}  // namespace details

// Until at most kCount vector memory instructions of this wave are in flight: they end in order.
template <u32 kCount>
__device__ inline void wait_vmcnt() {
  static_assert(kCount <= details::kAnyVector, "vmcnt counts at most 63");
  __builtin_amdgcn_s_waitcnt(details::waitcnt(kCount, details::kAnyLds));
}

// Until at most `count` times kEach loads are on their way, of kMost.
template <u32 kLoadsPerStep, u32 kMaxCount>
__device__ inline void wait_vmcnt_dynamic(u32 count) {
  if constexpr (kMaxCount > 0) {
    if (count < kMaxCount) return wait_vmcnt_dynamic<kLoadsPerStep, kMaxCount - 1>(count);
  }
  wait_vmcnt<(kMaxCount * kLoadsPerStep < 63 ? kMaxCount * kLoadsPerStep : 63)>();
}

// Until all of this wave's LDS and scalar accesses are done.
__device__ inline void wait_lgkmcnt() {
  __builtin_amdgcn_s_waitcnt(details::waitcnt(details::kAnyVector, 0));
}

// All waves of the workgroup meet. It waits for no memory, and the compiler moves nothing across.
__device__ inline void s_barrier() {
  sched_barrier();
  __builtin_amdgcn_s_barrier();
  sched_barrier();
}

// A wave's priority over others of its SIMD, 0 to 3.
template <u32 kLevel>
__device__ inline void set_wave_priority() {
  __builtin_amdgcn_s_setprio(kLevel);
}

// Computed here, in an architectural VGPR, and not sunk to where it is used. No instruction.
template <class T>
__device__ inline void force_vgpr(T& value) {
  asm volatile("" : "+v"(value));
}

// Nothing is computed from this scalar before this line. No instruction.
__device__ inline void force_sgpr(u32& scalar) { asm volatile("" : "+s"(scalar)); }

// A pointer to memory in VGPRs, for kernels that want their scalar registers for others.
template <class T>
__device__ inline T* pointer_in_vgpr(T* pointer) {
  auto* global = (__attribute__((address_space(1))) T*)pointer;
  asm volatile("" : "+v"(global));
  return (T*)global;
}

}  // namespace rfops
