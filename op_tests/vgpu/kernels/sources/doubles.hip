// Double precision: division and square root are correctly rounded, so all of it is exact.
#include "hip_names.h"
#pragma clang fp contract(off)

KERNEL double_operations(double* out, const double* in_a, const double* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const double a = in_a[i];
  const double b = in_b[i];
  double* row = out + 16 * i;
  row[0] = a + b;
  row[1] = a - b;
  row[2] = a * b;
  row[3] = a / b;
  row[4] = __builtin_sqrt(__builtin_fabs(a));
  row[5] = __builtin_fma(a, b, 1.0);
  row[6] = __builtin_floor(a);
  row[7] = __builtin_ceil(a);
  row[8] = __builtin_trunc(a);
  row[9] = __builtin_rint(a);
  row[10] = __builtin_fmin(a, b);
  row[11] = __builtin_fmax(a, b);
  row[12] = __builtin_copysign(a, b);
  row[13] = __builtin_ldexp(a, static_cast<int>(i % 41) - 20);
  row[14] = a < b ? -a : __builtin_fabs(b);
  row[15] = 1.0 / b;
}

KERNEL double_conversions(i64* out, float* narrow, const double* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const double a = in[i];
  i64* row = out + 6 * i;
  row[0] = static_cast<i32>(a);
  row[1] = static_cast<u32>(__builtin_fabs(a));
  row[2] = static_cast<i64>(a * 1e6);
  row[3] = static_cast<i64>(static_cast<u64>(__builtin_fabs(a) * 1e9));
  row[4] = bits<i64>(static_cast<double>(static_cast<i64>(a * 1e6)));
  row[5] = bits<i64>(static_cast<double>(static_cast<u32>(__builtin_fabs(a))) +
                     static_cast<double>(static_cast<i32>(a)) +
                     static_cast<double>(static_cast<u64>(__builtin_fabs(a) * 1e9)));
  narrow[i] = static_cast<float>(a);
}

// Newton's method, to convergence: a long dependent loop.
KERNEL cube_root(double* out, const double* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  double root = in[i] > 1 ? in[i] : 1;
  for (int step = 0; step < 200; ++step) {
    const double next = (2 * root + in[i] / (root * root)) / 3;
    if (next >= root) break;
    root = next;
  }
  out[i] = root;
}

KERNEL dot_f64(double* out, const double* a, const double* b, int n) {
  __shared__ double partial[256];
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += 256) sum = __builtin_fma(a[i], b[i], sum);
  partial[threadIdx.x] = sum;
  for (u32 half = 128; half > 0; half >>= 1) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *out = partial[0];
}
