// Element-wise kernels: odd sizes, grid strides, narrow and wide elements.
#include "hip_names.h"

KERNEL vector_add(float* out, const float* a, const float* b, int n) {
  const int i = static_cast<int>(global_id());
  if (i < n) out[i] = a[i] + b[i];
}

KERNEL saxpy_grid_stride(float* y, const float* x, float scale, int n) {
  for (u32 i = global_id(); i < static_cast<u32>(n); i += global_threads()) {
    y[i] = __builtin_fmaf(scale, x[i], y[i]);
  }
}

KERNEL add_bytes(u8* out, const u8* a, const u8* b, int n) {
  const int i = static_cast<int>(global_id());
  if (i < n) out[i] = a[i] + b[i];
}

KERNEL average_shorts(i16* out, const i16* a, const i16* b, int n) {
  const int i = static_cast<int>(global_id());
  if (i < n) out[i] = static_cast<i16>((a[i] + b[i]) >> 1);
}

// 16-byte accesses for the body, scalar ones for the tail.
KERNEL scale_by_four(float* out, const float* in, float factor, u64 n) {
  const u64 at = 4 * static_cast<u64>(global_id());
  if (at + 4 <= n) {
    *reinterpret_cast<F32x4*>(out + at) = factor * *reinterpret_cast<const F32x4*>(in + at);
  } else {
    for (u64 i = at; i < n; ++i) out[i] = factor * in[i];
  }
}

KERNEL axpby_f64(double* out, const double* x, const double* y, double a, double b, i64 n) {
  const i64 i = global_id();
  if (i < n) out[i] = __builtin_fma(a, x[i], b * y[i]);
}

// Pointers may be null: nothing is read then.
KERNEL optional_bias(float* out, const float* in, const float* bias, int n) {
  const int i = static_cast<int>(global_id());
  if (i < n) out[i] = in[i] + (bias ? bias[i] : 0.0f);
}
