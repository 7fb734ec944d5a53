// Control flow: divergent loops, breaks, early returns, irreducible-looking nests, long runs.
#include "hip_names.h"

KERNEL collatz(u32* out, const u32* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u64 value = in[i];
  u32 steps = 0;
  while (value != 1) {
    value = value & 1 ? 3 * value + 1 : value / 2;
    ++steps;
  }
  out[i] = steps;
}

KERNEL nested_breaks(i32* out, const i32* in, int n) {
  const i32 i = static_cast<i32>(global_id());
  if (i >= n) return;
  i32 found = -1;
  i32 work = 0;
  for (i32 a = 1; a < 40 && found < 0; ++a) {
    if (a % 3 == i % 3) continue;
    for (i32 b = a; b < 40; ++b) {
      ++work;
      if ((a ^ b) == 7) continue;
      if (a * b > in[i]) break;
      if (a * a + b * b == in[i]) {
        found = a * 100 + b;
        goto done;
      }
    }
    if (work > 500) return;
  }
done:
  out[i] = found * 1000 + work;
}

// Some waves leave before the barrier, lanes of others too.
KERNEL early_return(i32* out, const i32* in, int n) {
  __shared__ i32 shared[256];
  const i32 i = static_cast<i32>(threadIdx.x);
  if (i >= n) return;
  shared[i] = in[i];
  __syncthreads();
  if (in[i] < 0) return;
  out[i] = shared[n - 1 - i];
}

KERNEL gcd(u32* out, const u32* a, const u32* b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u32 x = a[i];
  u32 y = b[i];
  while (y) {
    const u32 rest = x % y;
    x = y;
    y = rest;
  }
  out[i] = x;
}

KERNEL generator(u32* out, u32 seed, int rounds) {
  u32 state = seed + global_id();
  for (int round = 0; round < rounds; ++round) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
  }
  out[global_id()] = state;
}

// Fixed-point Mandelbrot: exact, and every lane leaves at its own time.
KERNEL mandelbrot(u32* out, int width, int height, int limit) {
  const i32 x = static_cast<i32>(blockIdx.x * blockDim.x + threadIdx.x);
  const i32 y = static_cast<i32>(blockIdx.y * blockDim.y + threadIdx.y);
  if (x >= width || y >= height) return;
  const i32 re0 = (x * 3 * 4096) / width - 2 * 4096;
  const i32 im0 = (y * 2 * 4096) / height - 4096;
  i32 re = 0;
  i32 im = 0;
  i32 steps = 0;
  for (; steps < limit; ++steps) {
    const i32 re2 = (re * re) >> 12;
    const i32 im2 = (im * im) >> 12;
    if (re2 + im2 > 4 * 4096) break;
    im = ((re * im) >> 11) + im0;
    re = re2 - im2 + re0;
  }
  out[y * width + x] = steps;
}

// Tiled product of small-integer floats: every order of adding gives the same sum.
KERNEL matmul_tiled(float* out, const float* a, const float* b, int m, int n, int k) {
  __shared__ float tile_a[16][16];
  __shared__ float tile_b[16][17];
  const int row = blockIdx.y * 16 + threadIdx.y;
  const int column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int base = 0; base < k; base += 16) {
    const int ka = base + threadIdx.x;
    const int kb = base + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0;
    tile_b[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[kb * n + column] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) out[row * n + column] = sum;
}

// So many values alive at once that they do not all fit in registers.
__launch_bounds__(1024) KERNEL spill(u32* out, const u32* in, int n) {
  u32 values[160];
#pragma unroll
  for (int i = 0; i < 160; ++i) values[i] = in[(global_id() + i * 7) % n];
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int i = 0; i < 160; ++i) values[i] = values[i] * 33 + values[(i + 1) % 160];
  }
  u32 hash = 0;
#pragma unroll
  for (int i = 0; i < 160; ++i) hash = hash * 31 + values[i];
  out[global_id()] = hash;
}
