// Single precision: exact operations, NaN and signed-zero handling, comparisons, classes.
#include "hip_names.h"
#pragma clang fp contract(off)

KERNEL float_operations(float* out, const float* in_a, const float* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in_a[i];
  const float b = in_b[i];
  float* row = out + 16 * i;
  row[0] = a + b;
  row[1] = a - b;
  row[2] = a * b;
  row[3] = __builtin_fmaf(a, b, -a);
  row[4] = a * b + 1.0f;
  row[5] = __builtin_floorf(a);
  row[6] = __builtin_ceilf(a);
  row[7] = __builtin_truncf(a);
  row[8] = __builtin_rintf(a);
  row[9] = __builtin_roundf(a);
  row[10] = __builtin_fabsf(a) - -b;
  row[11] = __builtin_copysignf(a, b);
  row[12] = a - __builtin_floorf(a);
  row[13] = 2.0f * (a + b);
  row[14] = __builtin_fminf(__builtin_fmaxf(a, 0.0f), 1.0f);
  row[15] = __builtin_fminf(__builtin_fmaxf(a, -b), 3.5f);
}

KERNEL float_quotients(float* out, const float* in_a, const float* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  out[3 * i] = in_a[i] / in_b[i];
  out[3 * i + 1] = __builtin_sqrtf(__builtin_fabsf(in_a[i]));
  out[3 * i + 2] = 1.0f / in_b[i];
}

KERNEL min_max(float* out, const float* in_a, const float* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in_a[i];
  const float b = in_b[i];
  out[5 * i] = __builtin_fminf(a, b);
  out[5 * i + 1] = __builtin_fmaxf(a, b);
  out[5 * i + 2] = a < b ? a : b;
  out[5 * i + 3] = a > b ? a : b;
  out[5 * i + 4] = __builtin_amdgcn_fmed3f(a, b, 0.25f);
}

// A bit for each comparison, ordered and unordered.
template <class T>
INLINE __device__ u32 compare(T a, T b) {
  u32 seen = 0;
  seen |= (a < b) << 0;
  seen |= (a <= b) << 1;
  seen |= (a > b) << 2;
  seen |= (a >= b) << 3;
  seen |= (a == b) << 4;
  seen |= (a != b) << 5;
  seen |= !(a < b) << 6;
  seen |= !(a <= b) << 7;
  seen |= !(a > b) << 8;
  seen |= !(a >= b) << 9;
  seen |= static_cast<u32>(__builtin_isunordered(a, b)) << 10;
  seen |= static_cast<u32>(__builtin_islessgreater(a, b)) << 11;
  seen |= static_cast<u32>(__builtin_isnan(a)) << 12;
  seen |= static_cast<u32>(__builtin_isinf(b)) << 13;
  seen |= static_cast<u32>(__builtin_isfinite(a)) << 14;
  seen |= static_cast<u32>(__builtin_isnormal(b)) << 15;
  seen |= static_cast<u32>(__builtin_signbit(a) != 0) << 16;
  return seen;
}
KERNEL compare_f32(u32* out, const float* a, const float* b, int n) {
  if (global_id() < static_cast<u32>(n)) out[global_id()] = compare(a[global_id()], b[global_id()]);
}
KERNEL compare_f64(u32* out, const double* a, const double* b, int n) {
  if (global_id() < static_cast<u32>(n)) out[global_id()] = compare(a[global_id()], b[global_id()]);
}
KERNEL compare_f16(u32* out, const f16* a, const f16* b, int n) {
  if (global_id() < static_cast<u32>(n)) out[global_id()] = compare(a[global_id()], b[global_id()]);
}

KERNEL scale_and_split(float* mantissa, i32* exponent, float* scaled, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  mantissa[i] = __builtin_amdgcn_frexp_mantf(in[i]);
  exponent[i] = __builtin_amdgcn_frexp_expf(in[i]);
  scaled[i] = __builtin_ldexpf(in[i], static_cast<i32>(i % 31) - 15);
}

// Approximate by the instruction's own error bound.
KERNEL transcendental(float* out, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in[i];
  float* row = out + 9 * i;
  row[0] = __builtin_expf(a);
  row[1] = __builtin_exp2f(a);
  row[2] = __builtin_logf(__builtin_fabsf(a));
  row[3] = __builtin_log2f(__builtin_fabsf(a));
  row[4] = __builtin_log10f(__builtin_fabsf(a));
  row[5] = __builtin_sinf(a);
  row[6] = __builtin_cosf(a);
  row[7] = __builtin_amdgcn_rcpf(a);
  row[8] = __builtin_amdgcn_rsqf(__builtin_fabsf(a));
}

// Two floats an instruction.
KERNEL packed_floats(F32x2* out, const F32x2* in_a, const F32x2* in_b, F32x2 factor, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const F32x2 a = in_a[i];
  const F32x2 b = in_b[i];
  F32x2* row = out + 6 * i;
  row[0] = a + b;
  row[1] = a * b;
  row[2] = __builtin_elementwise_fma(a, b, factor);
  row[3] = a * factor.yx;
  row[4] = -a - b.xx;
  row[5] = __builtin_elementwise_fma(a.yx, factor.xx, b);
}
