// One thread per output, with fused multiply-adds of the vector unit. A workgroup computes 16 x 16
// outputs; neighbouring lanes have neighbouring columns.
#include "rfops/chip/types.h"
using namespace rfops;

extern "C" __global__ void gemm_tile(bf16* out, const bf16* x, const bf16* w, u32, u32 n, u32 k) {
  const u32 row = workgroup_id_y() * RFOPS_TILE + thread_id() / 16;
  const u32 col = workgroup_id_x() * RFOPS_TILE + thread_id() % 16;
  f32 sum = 0;
  for (u32 i = 0; i < k; ++i) sum += f32(x[u64{row} * k + i]) * f32(w[u64{col} * k + i]);
  out[u64{row} * n + col] = bf16(sum);
}
