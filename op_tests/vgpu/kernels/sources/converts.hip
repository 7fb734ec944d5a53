// Conversions between formats, the saturating ones by the instruction itself.
#include "hip_names.h"

#define CONVERT(mnemonic, result, argument)                  \
  INLINE __device__ result mnemonic(argument value) {        \
    result converted;                                        \
    asm(#mnemonic " %0, %1" : "=v"(converted) : "v"(value)); \
    return converted;                                        \
  }
CONVERT(v_cvt_i32_f32, i32, float)
CONVERT(v_cvt_u32_f32, u32, float)
CONVERT(v_cvt_rpi_i32_f32, i32, float)
CONVERT(v_cvt_flr_i32_f32, i32, float)
CONVERT(v_cvt_i32_f64, i32, double)
CONVERT(v_cvt_u32_f64, u32, double)

KERNEL saturate(i32* out, const float* in, const double* wide, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  out[6 * i] = v_cvt_i32_f32(in[i]);
  out[6 * i + 1] = static_cast<i32>(v_cvt_u32_f32(in[i]));
  out[6 * i + 2] = v_cvt_flr_i32_f32(in[i]);
  out[6 * i + 3] = v_cvt_rpi_i32_f32(in[i]);
  out[6 * i + 4] = v_cvt_i32_f64(wide[i]);
  out[6 * i + 5] = static_cast<i32>(v_cvt_u32_f64(wide[i]));
}

KERNEL from_integers(float* out, double* wide, const i64* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const i64 a = in[i];
  float* row = out + 8 * i;
  row[0] = static_cast<float>(static_cast<i32>(a));
  row[1] = static_cast<float>(static_cast<u32>(a));
  row[2] = static_cast<float>(a);
  row[3] = static_cast<float>(static_cast<u64>(a));
  row[4] = static_cast<float>(static_cast<u8>(a));
  row[5] = static_cast<float>(static_cast<u8>(a >> 8));
  row[6] = static_cast<float>(static_cast<u8>(a >> 16));
  row[7] = static_cast<float>(static_cast<i16>(a));
  wide[2 * i] = static_cast<double>(a);
  wide[2 * i + 1] = static_cast<double>(static_cast<u64>(a));
}

KERNEL to_integers(i64* out, const float* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in[i];
  out[5 * i] = static_cast<i64>(a);
  out[5 * i + 1] = static_cast<i64>(static_cast<u64>(__builtin_fabsf(a)));
  out[5 * i + 2] = static_cast<i32>(a / 1e6f);
  out[5 * i + 3] = static_cast<i16>(a / 1e9f);
  out[5 * i + 4] = static_cast<u8>(__builtin_fabsf(a) / 1e11f);
}

KERNEL pack(u32* out, const float* in_a, const float* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in_a[i];
  const float b = in_b[i];
  u32* row = out + 7 * i;
  row[0] = bits<u32>(__builtin_amdgcn_cvt_pkrtz(a, b));
  row[1] = bits<u32>(__builtin_amdgcn_cvt_pknorm_i16(a, b));
  row[2] = bits<u32>(__builtin_amdgcn_cvt_pknorm_u16(a, b));
  row[3] = bits<u32>(__builtin_amdgcn_cvt_pk_i16(static_cast<i32>(a * 1e4f), static_cast<i32>(b)));
  row[4] = bits<u32>(__builtin_amdgcn_cvt_pk_u16(static_cast<u32>(__builtin_fabsf(a) * 1e5f), i));
  row[5] = __builtin_amdgcn_cvt_pk_u8_f32(__builtin_truncf(a), 2, 0x11223344u);
  row[6] = __builtin_amdgcn_cvt_pk_u8_f32(__builtin_truncf(b * 300.0f), 0, 0xffffffffu);
}

KERNEL narrow_signed(i8* bytes, i16* shorts, u16* halves, const i32* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const i32 a = in[i];
  bytes[i] = static_cast<i8>(a < -128 ? -128 : (a > 127 ? 127 : a));
  shorts[i] = static_cast<i16>(a >> 3);
  halves[i] = bits<u16>(static_cast<f16>(static_cast<i16>(a)));
}
