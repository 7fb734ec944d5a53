// One wave per row, 16 bytes a lane and load: a lane has 8 consecutive elements, 16 lanes a group.
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce.h"
using namespace rfops;

extern "C" __global__ void rms_quant(u8* out, f32* scale, const bf16* x, const bf16* w, f32 eps,
                                     u32 m, u32 k) {
  const u32 row = workgroup_id_x() * (RFOPS_THREADS / kWaveSize) + wave_id(), lane = lane_id();
  if (row >= m) return;
  const auto* x8 = reinterpret_cast<const Bf16x8*>(x + u64{row} * k);
  const auto* w8 = reinterpret_cast<const Bf16x8*>(w);
  auto* out8 = reinterpret_cast<U32x2*>(out + u64{row} * k);
  scale += row * (k / 128);
  f32 sum = 0;
  for (u32 i = lane; i < k / 8; i += kWaveSize) {
    const F32x8 v = __builtin_convertvector(x8[i], F32x8);
    for (u32 j = 0; j < 8; ++j) sum += v[j] * v[j];
  }
  const f32 rms = __builtin_amdgcn_rsqf(sum_over_lanes<kWaveSize>(sum) / f32(k) + eps);
  for (u32 i = lane; i < k / 8; i += kWaveSize) {
    const F32x8 y =
        __builtin_convertvector(x8[i], F32x8) * rms * __builtin_convertvector(w8[i], F32x8);
    f32 amax = 1e-10f;
    for (u32 j = 0; j < 8; ++j) amax = __builtin_fmaxf(amax, __builtin_fabsf(y[j]));
    amax = max_over_lanes<16>(amax);
    const Fp8Block block(Fp8Block::magnitude(amax));
    if (lane % 16 == 0) scale[i / 16] = block.scale();
    out8[i] = {block.convert(y[0], y[1], y[2], y[3]), block.convert(y[4], y[5], y[6], y[7])};
  }
}
