// Kernels that do wrong. What the launch must say of each is in test_vgpu_faults.py.
#include "hip_names.h"

KERNEL plain(int* out) { out[threadIdx.x] = 3; }

// ------------------------------------------------------------------------------ addresses

KERNEL store_to(int* at) {
  if (threadIdx.x == 3) *at = 1;
}
KERNEL load_from(int* out, const int* in, i64 index) { out[threadIdx.x] = in[index + threadIdx.x]; }
KERNEL scalar_load_from(int* out, const int* in) { out[threadIdx.x] = *in; }
KERNEL atomic_at(int* at) { atomicAdd(at, 1); }
NOINLINE __device__ int dereference(const int* at) { return *at; }
KERNEL flat_load_from(int* out, const int* in) {
  __shared__ int shared;
  if (threadIdx.x == 0) shared = 1;
  __syncthreads();
  out[threadIdx.x] = dereference(threadIdx.x == 9 ? in : &shared);
}
KERNEL buffer_load_from(int* out, int* in) {
  const auto source = __builtin_amdgcn_make_buffer_rsrc(in, 0, 0x7fffffff, 0x00027000);
  out[threadIdx.x] = __builtin_amdgcn_raw_buffer_load_b32(source, threadIdx.x * 4, 0, 0);
}
// One lane of one workgroup of many.
KERNEL store_from_one(int* out, int* at, u32 block, u32 thread) {
  out[threadIdx.x] = 3;
  if (blockIdx.x == block && threadIdx.x == thread) *at = 1;
}

// ------------------------------------------------------------------------------ alignment

KERNEL misaligned_global(char* at) { atomicAdd(reinterpret_cast<int*>(at + 1), 1); }
KERNEL misaligned_wide(char* at) { atomicAdd(reinterpret_cast<u64*>(at + 4), u64{1}); }
KERNEL misaligned_lds(int* out, u32 offset) {
  __shared__ u32 shared[64];
  shared[threadIdx.x] = 0;
  __syncthreads();
  u32* at = reinterpret_cast<u32*>(reinterpret_cast<char*>(shared) + offset);
  __hip_atomic_fetch_add(at, 1u, RELAXED, SCOPE_BLOCK);
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x];
}

// ------------------------------------------------------------------------------ control

KERNEL trap(int* out) {
  if (out[0] == 0) __builtin_trap();
  out[1] = 5;
}
KERNEL halt(int* out) {
  asm volatile("s_sethalt 1");
  out[threadIdx.x] = 5;
}
KERNEL no_such_branch(int* out) {
  asm volatile(".long 0xbfff0000");  // SOPP has no operation 127
  out[threadIdx.x] = 5;
}
KERNEL no_such_family(int* out) {
  asm volatile(".long 0xf0000000, 0");  // image instructions: these chips have none
  out[threadIdx.x] = 5;
}
KERNEL gfx950_instruction(int* out) {
  asm volatile(".long 0x7e00b501" ::: "v0", "v1");  // v_permlane32_swap_b32 v0, v1
  out[threadIdx.x] = 3;
}
KERNEL unknown_in_dead_code(int* out, int n) {
  if (n > 0) asm volatile(".long 0xbfff0000");
  out[threadIdx.x] = 3;
}
KERNEL branch_out(int* out) {
  asm volatile("s_branch 0x7fff");
  out[threadIdx.x] = 5;
}
using Function = void (*)(int*);
KERNEL call_address(int* out, Function function) { function(out); }
NOINLINE __device__ int descend(int n) {
  volatile int frame[16];
  frame[n & 15] = n;
  return n < 0 ? 0 : descend(n + 1) + frame[n & 15];
}
KERNEL stack_overflow(int* out) { out[0] = descend(out[0]); }

// ------------------------------------------------------------------------------ no end

KERNEL endless_loop(volatile int* out) {
  while (out[0] == 0) {
  }
}
KERNEL endless_barriers(volatile int* out) {
  while (out[0] == 0) __syncthreads();
}
// The second wave never comes to the barrier of the first.
KERNEL deadlock(int* out) {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    while (__hip_atomic_load(out, RELAXED, SCOPE_DEVICE) == 0) __builtin_amdgcn_s_sleep(10);
  }
}
// Each workgroup waits for the next one: nobody starts.
KERNEL wait_in_circle(int* out) {
  int* next = out + (blockIdx.x + 1) % gridDim.x;
  while (__hip_atomic_load(next, RELAXED, SCOPE_DEVICE) == 0) __builtin_amdgcn_s_sleep(1);
  out[blockIdx.x] = 1;
}

// Each workgroup waits for all others, and its waves meet at barriers meanwhile: this one ends.
KERNEL meet_at_barriers(int* out) {
  __shared__ int seen;
  if (threadIdx.x == 0) atomicAdd(out, 1);
  do {
    __syncthreads();
    if (threadIdx.x == 0) seen = __hip_atomic_load(out, RELAXED, SCOPE_DEVICE);
    __syncthreads();
  } while (seen != static_cast<int>(gridDim.x));
}

// Each workgroup has a way to go, then looks a few times whether all others are there, and sleeps
// between: they go on meanwhile.
KERNEL look_a_few_times(int* out) {
  for (volatile int i = 0; i < 3000; i = i + 1) {
  }
  if (threadIdx.x == 0) atomicAdd(out, 1);
  for (unsigned turn = 0; turn < gridDim.x + 20; ++turn) {
    if (__hip_atomic_load(out, RELAXED, SCOPE_DEVICE) == static_cast<int>(gridDim.x)) return;
    __builtin_amdgcn_s_sleep(1);
  }
  __builtin_trap();
}

// ------------------------------------------------------------------------------ no fault

KERNEL lds_outside(int* out, int at) {
  __shared__ int shared[16];
  shared[threadIdx.x & 15] = 7;
  __syncthreads();
  shared[at] = 9;
  __syncthreads();
  out[threadIdx.x] = shared[at] + 2 * shared[threadIdx.x & 15];
}
KERNEL divide_by_zero(int* out) { out[1] = 7 / out[0]; }
