// Dot products of packed small integers and halves.
#include "hip_names.h"

KERNEL dot_bytes(i32* out, const u32* in_a, const u32* in_b, const i32* in_c, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u32 a = in_a[i];
  const u32 b = in_b[i];
  const i32 c = in_c[i];
  i32* row = out + 5 * i;
  row[0] = __builtin_amdgcn_sdot4(a, b, c, false);
  row[1] = __builtin_amdgcn_udot4(a, b, c, false);
  row[2] = __builtin_amdgcn_sdot8(a, b, c, false);
  row[3] = __builtin_amdgcn_udot8(a, b, c, false);
  row[4] = __builtin_amdgcn_sdot2(bits<Vec<i16, 2>>(a), bits<Vec<i16, 2>>(b), c, false);
}

KERNEL dot_saturated(i32* out, const u32* in_a, const u32* in_b, const i32* in_c, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  out[2 * i] = __builtin_amdgcn_sdot4(in_a[i], in_b[i], in_c[i], true);
  out[2 * i + 1] = __builtin_amdgcn_udot4(in_a[i], in_b[i], in_c[i], true);
}

// int8 matrix product, four products an instruction: out[m][n] = sum over k of a[m][k] b[n][k].
KERNEL gemm_i8(i32* out, const u32* a, const u32* b, int rows, int columns, int words) {
  const u32 column = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= static_cast<u32>(rows) || column >= static_cast<u32>(columns)) return;
  i32 sum = 0;
  for (int k = 0; k < words; ++k) {
    sum = __builtin_amdgcn_sdot4(a[row * words + k], b[column * words + k], sum, false);
  }
  out[row * columns + column] = sum;
}

KERNEL dot_halves(float* out, const F16x2* a, const F16x2* b, int pairs) {
  float sum = 0;
  for (int i = 0; i < pairs; ++i) {
    const int at = global_id() * pairs + i;
    sum = __builtin_amdgcn_fdot2(a[at], b[at], sum, false);
  }
  out[global_id()] = sum;
}
