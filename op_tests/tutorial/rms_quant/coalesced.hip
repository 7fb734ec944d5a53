// One workgroup of 128 threads per row: a thread per element of a group, so that the lanes of a
// wave access neighbouring bytes. Threads reduce through LDS.
#include "rfops/chip/types.h"
using namespace rfops;

// Reduces the values of all threads by a tree in LDS, with a barrier per level.
template <class Op>
__device__ f32 reduce_in_lds(f32 value, f32* lds, Op op) {
  lds[thread_id()] = value;
  for (u32 half = RFOPS_THREADS / 2; half > 0; half /= 2) {
    workgroup_barrier();
    if (thread_id() < half) lds[thread_id()] = op(lds[thread_id()], lds[thread_id() + half]);
  }
  workgroup_barrier();
  value = lds[0];
  workgroup_barrier();  // before the next reduction overwrites lds[0]
  return value;
}

extern "C" __global__ void rms_quant(u8* out, f32* scale, const bf16* x, const bf16* w, f32 eps,
                                     u32, u32 k) {
  __shared__ f32 lds[RFOPS_THREADS];
  const u32 row = workgroup_id_x();
  x += u64{row} * k;
  out += u64{row} * k;
  scale += row * (k / 128);
  f32 sum = 0;
  for (u32 i = thread_id(); i < k; i += 128) sum += f32(x[i]) * f32(x[i]);
  sum = reduce_in_lds(sum, lds, [](f32 a, f32 b) { return a + b; });
  const f32 rms = __builtin_amdgcn_rsqf(sum / f32(k) + eps);
  for (u32 g = 0; g < k; g += 128) {
    const u32 i = g + thread_id();
    const f32 y = f32(x[i]) * rms * f32(w[i]);
    const auto larger = [](f32 a, f32 b) { return __builtin_fmaxf(a, b); };
    const f32 amax = reduce_in_lds(__builtin_fmaxf(__builtin_fabsf(y), 1e-10f), lds, larger);
    if (thread_id() == 0) scale[g / 128] = amax / 448.0f;
    const f32 q = y * (448.0f / amax);
    out[i] = u8(__builtin_amdgcn_cvt_pk_fp8_f32(q, q, 0, false));
  }
}
