// One wave per 16 x 16 outputs, by matrix instructions (rfops/matrix/mfma_f16.h). A lane loads 16
// bytes of row l % 16 of each operand, from k = 8 * (l / 16) on, straight from global memory.
#include "rfops/chip/buffer.h"
#include "rfops/matrix/mfma_f16.h"
using namespace rfops;

extern "C" __global__ void gemm_tile(bf16* out, const bf16* x, const bf16* w, u32, u32 n, u32 k) {
  const u32 lane = lane_id(), row = workgroup_id_y() * RFOPS_TILE,
            col = workgroup_id_x() * RFOPS_TILE;
  const u32 row_bytes = k * 2, offset = lane % 16 * row_bytes + lane / 16 * kVecBytes;
  const Buffer x_rows = make_buffer(x + u64{row} * k, 16 * row_bytes);
  const Buffer w_rows = make_buffer(w + u64{col} * k, 16 * row_bytes);
  F32x4 sum = {};
  for (u32 i = 0; i < row_bytes; i += 64) {  // 32 elements of K
    const U32x4 w_part = buffer_load_b128(w_rows, offset, i);
    const U32x4 x_part = buffer_load_b128(x_rows, offset, i);
    sum = mfma_16x16x32<bf16>(w_part, x_part, sum);
  }
  // w is operand A: a lane has 4 neighbours of row l % 16 of out.
  out += u64{row + lane % 16} * n + col + lane / 16 * 4;
  *reinterpret_cast<Bf16x4*>(out) = __builtin_convertvector(sum, Bf16x4);
}
