// Types, vectors, attributes and built-in indices of device code, without any HIP header.
//
// Both compilers of the engine (hipcc -nogpuinc and a plain clang) build kernels that include only
// headers of this repository.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

namespace rfops {

using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;
using f16 = _Float16;
using bf16 = __bf16;

// Vectors of 2, 4, 8 and 16 elements, held by one lane in consecutive registers.
template <class T>
using Vec2 = T __attribute__((ext_vector_type(2)));
template <class T>
using Vec4 = T __attribute__((ext_vector_type(4)));
template <class T>
using Vec8 = T __attribute__((ext_vector_type(8)));
template <class T>
using Vec16 = T __attribute__((ext_vector_type(16)));
using U16x2 = Vec2<u16>;
using F16x2 = Vec2<f16>;
using Bf16x2 = Vec2<bf16>;
using U32x2 = Vec2<u32>;
using I32x2 = Vec2<i32>;
using F32x2 = Vec2<f32>;
using I16x4 = Vec4<short>;
using F16x4 = Vec4<f16>;
using Bf16x4 = Vec4<bf16>;
using U32x4 = Vec4<u32>;
using F32x4 = Vec4<f32>;
using Bf16x8 = Vec8<bf16>;
using U32x8 = Vec8<u32>;
using I32x8 = Vec8<i32>;
using F32x8 = Vec8<f32>;
using F32x16 = Vec16<f32>;

constexpr u32 kWaveSize = 64;  // lanes per wave on gfx9
constexpr u32 kVecBytes = 16;  // widest load or store of one lane

// Indices of the thread in its workgroup (kernels are one-dimensional there) and of the workgroup
// in the grid.
__device__ inline u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
__device__ inline u32 workgroup_id_x() { return __builtin_amdgcn_workgroup_id_x(); }
__device__ inline u32 workgroup_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
__device__ inline u32 workgroup_id_z() { return __builtin_amdgcn_workgroup_id_z(); }

// Returns the wave's index in its workgroup as a scalar, so that addresses computed from it stay in
// SGPRs.
__device__ inline u32 wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / kWaveSize); }
// Moves a value that is equal in all lanes to a scalar register.
__device__ inline u32 readfirstlane(u32 value) {
  return static_cast<u32>(__builtin_amdgcn_readfirstlane(static_cast<i32>(value)));
}
__device__ inline u64 readfirstlane(u64 value) {
  const u32 low = readfirstlane(static_cast<u32>(value));
  return u64{readfirstlane(static_cast<u32>(value >> 32))} << 32 | low;
}
// Moves one lane's value to a scalar register.
__device__ inline u32 readlane(u32 value, u32 lane) {
  return static_cast<u32>(
      __builtin_amdgcn_readlane(static_cast<i32>(value), static_cast<i32>(lane)));
}
// Returns the lane's index in its wave.
__device__ inline u32 lane_id() { return thread_id() % kWaveSize; }

// Waits for all threads of the workgroup; LDS writes before the barrier are visible after it.
__device__ inline void workgroup_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Scheduling barrier: the compiler moves no instruction across this line.
__device__ inline void sched_barrier() { __builtin_amdgcn_sched_barrier(0); }

}  // namespace rfops
