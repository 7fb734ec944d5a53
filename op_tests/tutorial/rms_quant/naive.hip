// One thread per row. Three passes over the row: its sum of squares, then per group of 128 its
// largest magnitude, then the FP8 values.
#include "rfops/chip/types.h"
using namespace rfops;

extern "C" __global__ void rms_quant(u8* out, f32* scale, const bf16* x, const bf16* w, f32 eps,
                                     u32 m, u32 k) {
  const u32 row = workgroup_id_x() * RFOPS_THREADS + thread_id();
  if (row >= m) return;
  x += u64{row} * k;
  out += u64{row} * k;
  scale += row * (k / 128);
  f32 sum = 0;
  for (u32 i = 0; i < k; ++i) {
    sum += f32(x[i]) * f32(x[i]);
  }
  const f32 rms = __builtin_amdgcn_rsqf(sum / f32(k) + eps);
  for (u32 g = 0; g < k; g += 128) {
    f32 amax = 1e-10f;
    for (u32 i = g; i < g + 128; ++i) {
      amax = __builtin_fmaxf(amax, __builtin_fabsf(f32(x[i]) * rms * f32(w[i])));
    }
    scale[g / 128] = amax / 448.0f;
    for (u32 i = g; i < g + 128; ++i) {
      const f32 y = f32(x[i]) * rms * f32(w[i]) * (448.0f / amax);
      out[i] = u8(__builtin_amdgcn_cvt_pk_fp8_f32(y, y, 0, false));
    }
  }
}
