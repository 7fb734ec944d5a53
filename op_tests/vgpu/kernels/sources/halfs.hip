// Half precision and bfloat16, scalar and packed.
#include "hip_names.h"
#pragma clang fp contract(off)

KERNEL half_operations(f16* out, const f16* in_a, const f16* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const f16 a = in_a[i];
  const f16 b = in_b[i];
  f16* row = out + 12 * i;
  row[0] = a + b;
  row[1] = a - b;
  row[2] = a * b;
  row[3] = __builtin_elementwise_fma(a, b, f16(0.5));
  row[4] = __builtin_elementwise_min(a, b);
  row[5] = __builtin_elementwise_max(a, b);
  row[6] = __builtin_elementwise_floor(a);
  row[7] = __builtin_elementwise_roundeven(a);
  row[8] = __builtin_elementwise_abs(a);
  row[9] = a < b ? a : -b;
  row[10] = static_cast<f16>(static_cast<i16>(a));
  row[11] = static_cast<f16>(static_cast<u16>(i));
}

// Division and square root of halves round once more: compared within one unit in the last place.
KERNEL half_quotients(f16* quotient, f16* root, const f16* a, const f16* b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  quotient[i] = a[i] / b[i];
  root[i] = __builtin_elementwise_sqrt(__builtin_elementwise_abs(a[i]));
}

KERNEL packed_halves(F16x2* out, const F16x2* in_a, const F16x2* in_b, F16x2 factor, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const F16x2 a = in_a[i];
  const F16x2 b = in_b[i];
  F16x2* row = out + 8 * i;
  row[0] = a + b;
  row[1] = a * b;
  row[2] = __builtin_elementwise_fma(a, b, factor);
  row[3] = __builtin_elementwise_min(a, b);
  row[4] = __builtin_elementwise_max(a, factor.yx);
  row[5] = a.yx - b;
  row[6] = a.xx * -b.yx;
  row[7] = F16x2{b.y, a.x};
}

KERNEL packed_shorts(Vec<i16, 2>* out, const Vec<i16, 2>* in_a, const Vec<i16, 2>* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const Vec<i16, 2> a = in_a[i];
  const Vec<i16, 2> b = in_b[i];
  Vec<i16, 2>* row = out + 10 * i;
  row[0] = a + b;
  row[1] = a - b;
  row[2] = a * b;
  row[3] = __builtin_elementwise_min(a, b);
  row[4] = __builtin_elementwise_max(a, b);
  row[5] = a << (b & i16(15));
  row[6] = a >> (b & i16(15));
  row[7] = a * b + a.yx;
  row[8] = __builtin_elementwise_add_sat(a, b);
  row[9] = __builtin_elementwise_sub_sat(a, b.yx);
}

KERNEL bfloat_operations(bf16* out, const bf16* in_a, const bf16* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const bf16 a = in_a[i];
  const bf16 b = in_b[i];
  bf16* row = out + 5 * i;
  row[0] = a + b;
  row[1] = a * b;
  row[2] = static_cast<bf16>(static_cast<float>(a) * 3.0f + 1.0f);
  row[3] = a > b ? a : b;
  row[4] = -a;
}

KERNEL narrow_and_widen(bf16* brain, f16* half, float* wide, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  brain[i] = static_cast<bf16>(in[i]);
  half[i] = static_cast<f16>(in[i]);
  wide[i] = static_cast<float>(brain[i]) - static_cast<float>(half[i]);
}

// Half inputs, float accumulation: mixed-precision multiply-add.
KERNEL mixed_dot(float* out, const F16x2* a, const F16x2* b, int pairs) {
  float sum = 0;
  for (int i = 0; i < pairs; ++i) {
    const int at = global_id() * pairs + i;
    sum = __builtin_fmaf(a[at].x, b[at].x, sum);
    sum = __builtin_fmaf(a[at].y, b[at].y, sum);
  }
  out[global_id()] = sum;
}
