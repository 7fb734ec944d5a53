// Blocks of 1024 threads with a barrier in every step.
#include "hip_names.h"

__launch_bounds__(1024) KERNEL bitonic_sort(i32* data) {
  __shared__ i32 shared[2048];
  const u32 self = threadIdx.x;
  i32* block = data + blockIdx.x * 2048;
  shared[self] = block[self];
  shared[self + 1024] = block[self + 1024];
  for (u32 size = 2; size <= 2048; size *= 2) {
    for (u32 stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      const u32 low = 2 * self - (self & (stride - 1));
      const bool rising = (low & size) == 0;
      const i32 a = shared[low];
      const i32 b = shared[low + stride];
      if ((a > b) == rising) {
        shared[low] = b;
        shared[low + stride] = a;
      }
    }
  }
  __syncthreads();
  block[self] = shared[self];
  block[self + 1024] = shared[self + 1024];
}

// Rule 110 on a ring of cells: neighbours across waves in every step.
__launch_bounds__(1024) KERNEL automaton(u8* cells, int steps) {
  __shared__ u8 ring[2][1024];
  const u32 self = threadIdx.x;
  ring[0][self] = cells[self];
  for (int step = 0; step < steps; ++step) {
    __syncthreads();
    const u8* now = ring[step & 1];
    const u32 pattern = now[(self + 1023) & 1023] * 4 + now[self] * 2 + now[(self + 1) & 1023];
    ring[(step + 1) & 1][self] = (110 >> pattern) & 1;
  }
  __syncthreads();
  cells[self] = ring[steps & 1][self];
}
