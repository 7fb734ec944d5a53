// RFOPS_THREADS / 64 waves per row, each with its share of the row in registers. The waves add
// their sums through LDS: one value a wave, one barrier.
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce.h"
using namespace rfops;

constexpr u32 kChunks = RFOPS_K / (8 * RFOPS_THREADS);  // of 8 elements, a lane
constexpr u32 kWaves = RFOPS_THREADS / kWaveSize;

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(RFOPS_THREADS, RFOPS_THREADS)))
    rms_quant(u8* out, f32* scale, const bf16* x, const bf16* w, f32 eps, u32, u32 k) {
  __shared__ f32 sums[kWaves];
  const u32 row = workgroup_id_x();
  const auto* x8 = reinterpret_cast<const Bf16x8*>(x + u64{row} * k);
  const auto* w8 = reinterpret_cast<const Bf16x8*>(w);
  auto* out8 = reinterpret_cast<U32x2*>(out + u64{row} * k);
  scale += row * (k / 128);
  Bf16x8 held[kChunks];
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) held[c] = x8[c * RFOPS_THREADS + thread_id()];
  f32 sum = 0;
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    const F32x8 v = __builtin_convertvector(held[c], F32x8);
    for (u32 j = 0; j < 8; ++j) sum += v[j] * v[j];
  }
  sum = sum_over_lanes<kWaveSize>(sum);
  if (lane_id() == 0) sums[wave_id()] = sum;
  workgroup_barrier();
  sum = 0;
  for (u32 i = 0; i < kWaves; ++i) sum += sums[i];
  const f32 rms = __builtin_amdgcn_rsqf(sum / f32(k) + eps);
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    const u32 i = c * RFOPS_THREADS + thread_id();
    const F32x8 y =
        __builtin_convertvector(held[c], F32x8) * rms * __builtin_convertvector(w8[i], F32x8);
    f32 amax = 1e-10f;
    for (u32 j = 0; j < 8; ++j) amax = __builtin_fmaxf(amax, __builtin_fabsf(y[j]));
    amax = max_over_lanes<16>(amax);
    const Fp8Block block(Fp8Block::magnitude(amax));
    if (thread_id() % 16 == 0) scale[i / 16] = block.scale();
    out8[i] = {block.convert(y[0], y[1], y[2], y[3]), block.convert(y[4], y[5], y[6], y[7])};
  }
}
