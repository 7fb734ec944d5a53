// Wait counts, barriers, wave priority and constraints on the compiler's instruction order.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

namespace details {

// Returns the immediate of gfx9's s_waitcnt: vmcnt, expcnt (always 7: no wait) and lgkmcnt.
constexpr int waitcnt(u32 vector, u32 lds) {
  return static_cast<int>((vector & 15) | (vector >> 4) << 14 | 7 << 4 | lds << 8);
}
constexpr u32 kAnyVector = 63, kAnyLds = 15;

// Of a value no wider than a register: the constraint takes no vector of one element.
template <class Bits, class T>
__device__ inline void force_vgpr_of_bits(T& value) {
  u32 word = __builtin_bit_cast(Bits, value);
  asm volatile("" : "+v"(word));
  value = __builtin_bit_cast(T, static_cast<Bits>(word));
}

}  // namespace details

// Waits until at most kCount vector memory instructions of this wave are in flight; they complete
// in order.
template <u32 kCount>
__device__ inline void wait_vmcnt() {
  static_assert(kCount <= details::kAnyVector, "vmcnt counts at most 63");
  __builtin_amdgcn_s_waitcnt(details::waitcnt(kCount, details::kAnyLds));
}

// Waits until at most count * kLoadsPerStep loads are in flight, with `count` uniform and at most
// kMaxCount: one s_waitcnt per value of count, chosen by branches.
template <u32 kLoadsPerStep, u32 kMaxCount>
__device__ inline void wait_vmcnt_dynamic(u32 count) {
  if constexpr (kMaxCount > 0) {
    if (count < kMaxCount) return wait_vmcnt_dynamic<kLoadsPerStep, kMaxCount - 1>(count);
  }
  wait_vmcnt<(kMaxCount * kLoadsPerStep < 63 ? kMaxCount * kLoadsPerStep : 63)>();
}

// Waits until all LDS and scalar memory accesses of this wave are complete.
__device__ inline void wait_lgkmcnt() {
  __builtin_amdgcn_s_waitcnt(details::waitcnt(details::kAnyVector, 0));
}

// Workgroup barrier without a memory wait. The compiler moves no instruction across it.
__device__ inline void s_barrier() {
  sched_barrier();
  __builtin_amdgcn_s_barrier();
  sched_barrier();
}

// Sets this wave's issue priority among the waves of its SIMD: 0 (lowest) to 3.
template <u32 kLevel>
__device__ inline void set_wave_priority() {
  __builtin_amdgcn_s_setprio(kLevel);
}

// Materialises `value` in an architectural VGPR at this point, so that the compiler cannot sink its
// computation to the use. Emits no instruction.
template <class T>
__device__ inline void force_vgpr(T& value) {
  if constexpr (sizeof(T) == sizeof(u8)) {
    details::force_vgpr_of_bits<u8>(value);
  } else if constexpr (sizeof(T) == sizeof(u16)) {
    details::force_vgpr_of_bits<u16>(value);
  } else if constexpr (sizeof(T) == sizeof(u32)) {
    details::force_vgpr_of_bits<u32>(value);
  } else {
    asm volatile("" : "+v"(value));
  }
}

// Loads *ptr and issues the load at this point, without a wait: the compiler would move it to the
// first use, behind waits for other loads.
template <class T>
__device__ inline T load_here(const T* ptr) {
  const T value = __hip_atomic_load(ptr, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WAVEFRONT);
  sched_barrier();
  return value;
}

// Keeps the compiler from computing anything from this scalar before this line. Emits no
// instruction.
__device__ inline void force_sgpr(u32& scalar) { asm volatile("" : "+s"(scalar)); }

// Waits for kernel arguments here, where other loads are in flight anyway: the compiler would load
// those that are not preloaded where they are used. Emits no instruction but the wait.
template <class... Args>
__device__ inline void wait_arguments(Args... args) {
  (([](auto arg) { asm volatile("" : : "s"(arg)); })(args), ...);
}

// Returns a pointer to global memory held in VGPRs, for kernels that run out of SGPRs.
template <class T>
__device__ inline T* pointer_in_vgpr(T* pointer) {
  auto* global = (__attribute__((address_space(1))) T*)pointer;
  asm volatile("" : "+v"(global));
  return (T*)global;
}

}  // namespace rfops
