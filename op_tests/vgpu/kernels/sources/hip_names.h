// HIP's names for what a kernel uses (indices, fences, lane operations, atomics), made of the
// compilers' builtins, so that the test kernels read as HIP and need no HIP header.
#pragma once

#include "rfops/chip/types.h"

#define __constant__ __attribute__((constant))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
#define NOINLINE __attribute__((noinline))
#define INLINE inline __attribute__((always_inline))
#define KERNEL extern "C" __global__ void

using namespace rfops;
using i8 = signed char;
using i16 = short;
using i64 = long long;
using f16 = _Float16;

template <class T, int N>
using Vec = T __attribute__((ext_vector_type(N)));
using F32x2 = Vec<float, 2>;
using F32x4 = Vec<float, 4>;
using U32x2 = Vec<u32, 2>;
using U32x3 = Vec<u32, 3>;
using BF16x2 = Vec<bf16, 2>;

// threadIdx and its like are objects whose members are read by calls.
#define RFOPS_INDEX(Type, name, at_x, at_y, at_z) \
  struct Type {                                   \
    __device__ u32 get_x() const { return at_x; } \
    __device__ u32 get_y() const { return at_y; } \
    __device__ u32 get_z() const { return at_z; } \
    __declspec(property(get = get_x)) u32 x;      \
    __declspec(property(get = get_y)) u32 y;      \
    __declspec(property(get = get_z)) u32 z;      \
  };                                              \
  extern const __device__ __attribute__((weak)) Type name

// Block counts stand first in the hidden arguments (code object v5 and v6).
inline __device__ u32 hidden_block_count(int axis) {
  return ((const __attribute__((address_space(4))) u32*)__builtin_amdgcn_implicitarg_ptr())[axis];
}

RFOPS_INDEX(ThreadIdx, threadIdx, __builtin_amdgcn_workitem_id_x(),
            __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z());
RFOPS_INDEX(BlockIdx, blockIdx, __builtin_amdgcn_workgroup_id_x(),
            __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z());
RFOPS_INDEX(BlockDim, blockDim, __builtin_amdgcn_workgroup_size_x(),
            __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z());
RFOPS_INDEX(GridDim, gridDim, hidden_block_count(0), hidden_block_count(1), hidden_block_count(2));

inline __device__ u32 global_id() { return blockIdx.x * blockDim.x + threadIdx.x; }
inline __device__ u32 global_threads() { return gridDim.x * blockDim.x; }

INLINE __device__ void __syncthreads() { workgroup_barrier(); }
INLINE __device__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
INLINE __device__ void __threadfence_block() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}

template <class To, class From>
INLINE __device__ To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  return __builtin_bit_cast(To, from);
}

inline __device__ u32 lane_in_wave() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
// One dword from another lane; wider types go dword by dword.
inline __device__ int from_lane(int value, u32 lane) {
  return __builtin_amdgcn_ds_bpermute(static_cast<int>(lane * 4), value);
}
template <class T>
inline __device__ T shfl(T value, u32 lane) {
  int words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = from_lane(word, lane & 63);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
// As HIP's: lanes form groups of `width`; a source outside the group is the lane itself.
template <class T>
inline __device__ T __shfl(T value, int source, int width = 64) {
  return shfl(value, (lane_in_wave() & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
inline __device__ T __shfl_xor(T value, int mask, int width = 64) {
  const u32 self = lane_in_wave();
  const u32 other = self ^ mask;
  return shfl(value, other >= ((self + width) & ~(width - 1)) ? self : other);
}
template <class T>
inline __device__ T __shfl_up(T value, u32 delta, int width = 64) {
  const int self = static_cast<int>(lane_in_wave());
  const int other = self - static_cast<int>(delta);
  return shfl(value, other < (self & ~(width - 1)) ? self : other);
}
template <class T>
inline __device__ T __shfl_down(T value, u32 delta, int width = 64) {
  const int self = static_cast<int>(lane_in_wave());
  const int other = self + static_cast<int>(delta);
  return shfl(value, (self & (width - 1)) + static_cast<int>(delta) >= width ? self : other);
}
INLINE __device__ u64 __ballot(bool condition) { return __builtin_amdgcn_ballot_w64(condition); }
INLINE __device__ bool __any(bool condition) { return __ballot(condition) != 0; }
INLINE __device__ bool __all(bool condition) { return __ballot(!condition) == 0; }

#define SCOPE_BLOCK __HIP_MEMORY_SCOPE_WORKGROUP
#define SCOPE_DEVICE __HIP_MEMORY_SCOPE_AGENT
#define SCOPE_SYSTEM __HIP_MEMORY_SCOPE_SYSTEM
#define RELAXED __ATOMIC_RELAXED
template <class T>
INLINE __device__ T atomicAdd(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, RELAXED, SCOPE_DEVICE);
}
