// 8-bit floats: gfx942 has the FNUZ formats, gfx950 the OCP ones, under the same mnemonics.
#include "hip_names.h"

KERNEL widen_all(float* fp8, float* bf8, F32x2* pairs) {
  const u32 code = threadIdx.x;
  const u32 word = code | (255 - code) << 8 | (code ^ 0x55) << 16 | (code ^ 0x80) << 24;
  fp8[4 * code] = __builtin_amdgcn_cvt_f32_fp8(word, 0);
  fp8[4 * code + 1] = __builtin_amdgcn_cvt_f32_fp8(word, 1);
  fp8[4 * code + 2] = __builtin_amdgcn_cvt_f32_fp8(word, 2);
  fp8[4 * code + 3] = __builtin_amdgcn_cvt_f32_fp8(word, 3);
  bf8[4 * code] = __builtin_amdgcn_cvt_f32_bf8(word, 0);
  bf8[4 * code + 1] = __builtin_amdgcn_cvt_f32_bf8(word, 1);
  bf8[4 * code + 2] = __builtin_amdgcn_cvt_f32_bf8(word, 2);
  bf8[4 * code + 3] = __builtin_amdgcn_cvt_f32_bf8(word, 3);
  pairs[4 * code] = __builtin_amdgcn_cvt_pk_f32_fp8(word, false);
  pairs[4 * code + 1] = __builtin_amdgcn_cvt_pk_f32_fp8(word, true);
  pairs[4 * code + 2] = __builtin_amdgcn_cvt_pk_f32_bf8(word, false);
  pairs[4 * code + 3] = __builtin_amdgcn_cvt_pk_f32_bf8(word, true);
}

// Rounding to nearest even; magnitudes stay inside the format's range.
KERNEL narrow(u32* fp8, u32* bf8, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float* four = in + 4 * i;
  int low = __builtin_amdgcn_cvt_pk_fp8_f32(four[0], four[1], 0, false);
  fp8[i] = __builtin_amdgcn_cvt_pk_fp8_f32(four[2], four[3], low, true);
  low = __builtin_amdgcn_cvt_pk_bf8_f32(four[0], four[1], 0, false);
  bf8[i] = __builtin_amdgcn_cvt_pk_bf8_f32(four[2], four[3], low, true);
}

// Stochastic rounding: the random word is given, so the result lies on one of two neighbours.
KERNEL narrow_stochastic(u32* fp8, u32* bf8, const float* in, const u32* random, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  fp8[i] = __builtin_amdgcn_cvt_sr_fp8_f32(in[i], random[i], 0x01020304, 2);
  bf8[i] = __builtin_amdgcn_cvt_sr_bf8_f32(in[i], random[i], 0x01020304, 0);
}
