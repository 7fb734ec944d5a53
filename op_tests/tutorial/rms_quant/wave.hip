// One wave per row; the lanes of a wave exchange values through DPP (rfops/wave/reduce.h), so there
// is no LDS and no barrier. A lane has elements i and i + 64 of a group.
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"
using namespace rfops;

extern "C" __global__ void rms_quant(u8* out, f32* scale, const bf16* x, const bf16* w, f32 eps,
                                     u32 m, u32 k) {
  const u32 row = workgroup_id_x() * (RFOPS_THREADS / kWaveSize) + wave_id(), lane = lane_id();
  if (row >= m) return;
  x += u64{row} * k;
  out += u64{row} * k;
  scale += row * (k / 128);
  f32 sum = 0;
  for (u32 i = lane; i < k; i += kWaveSize) sum += f32(x[i]) * f32(x[i]);
  const f32 rms = __builtin_amdgcn_rsqf(sum_over_lanes<kWaveSize>(sum) / f32(k) + eps);
  for (u32 i = lane; i < k; i += 128) {
    const f32 y0 = f32(x[i]) * rms * f32(w[i]), y1 = f32(x[i + 64]) * rms * f32(w[i + 64]);
    const f32 larger = __builtin_fmaxf(__builtin_fabsf(y0), __builtin_fabsf(y1));
    const f32 amax = max_over_lanes<kWaveSize>(__builtin_fmaxf(larger, 1e-10f));
    if (lane == 0) scale[i / 128] = amax / 448.0f;
    const u32 q =
        __builtin_amdgcn_cvt_pk_fp8_f32(y0 * (448.0f / amax), y1 * (448.0f / amax), 0, false);
    out[i] = u8(q);
    out[i + 64] = u8(q >> 8);
  }
}
