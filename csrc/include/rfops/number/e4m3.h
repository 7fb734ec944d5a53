// Conversion of floats to OCP e4m3 on both architectures.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

#if defined(__gfx950__)
constexpr f32 kE4m3Half = 1.0f;
#else
// e4m3fnuz encodes half the value with the same code, because its exponent bias is one larger.
constexpr f32 kE4m3Half = 0.5f;
#endif

// Returns the codes of a[0..3], one per byte, rounded to nearest even. Requires: |a[i]| <= 448
// kE4m3Half, that is values multiplied by kE4m3Half.
__device__ inline u32 e4m3_of_four(const f32 (&a)[4]) {
  u32 codes = 0;
  codes = __builtin_amdgcn_cvt_pk_fp8_f32(a[0], a[1], codes, false);
  codes = __builtin_amdgcn_cvt_pk_fp8_f32(a[2], a[3], codes, true);
#if !defined(__gfx950__)
  // e4m3fnuz has no negative zero: all signs are set again, from the highest byte of each float.
  const auto bits = [&](u32 i) { return __builtin_bit_cast(u32, a[i]); };
  const u32 low = __builtin_amdgcn_perm(bits(1), bits(0), 0x0c0c0703u);
  const u32 high = __builtin_amdgcn_perm(bits(3), bits(2), 0x07030c0cu);
  codes |= (low | high) & 0x80808080u;
#endif
  return codes;
}

}  // namespace rfops
