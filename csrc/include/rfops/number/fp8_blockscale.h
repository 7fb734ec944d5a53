// FP8 with fp32 scales of blocks of 128: scale = amax / kMost, payload = fp8(x * (kMost / amax)).
//
// amax is the largest magnitude of a block, 2^-100 at least; a block with an infinity or a NaN
// becomes NaN, scale and payload. Bits of magnitudes order as these do, NaN above all: amax is kept
// as such. Division is correctly rounded, conversion rounds to nearest even.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

class Fp8Block {
 public:
#if defined(__gfx950__)
  static constexpr f32 kMaxFp8 = 448.0f;  // of e4m3
#else
  static constexpr f32 kMaxFp8 = 240.0f;  // of e4m3fnuz
#endif
  static constexpr u32 kMinAmaxBits = 0x0d800000;  // the bits of 2^-100

  static __device__ u32 magnitude(f32 x) { return __builtin_bit_cast(u32, x) & 0x7fffffff; }
  static __device__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

  // Of all magnitudes of the block, and kLeast, the largest.
  __device__ explicit Fp8Block(u32 amax)
      : amax_(__builtin_bit_cast(f32, amax)),
        factor_(kMaxFp8 / amax_),
        is_nan_(amax >= kInfinityBits) {}

  __device__ f32 scale() const { return is_nan_ ? __builtin_nanf("") : amax_ / kMaxFp8; }
  // Four payloads.
  __device__ u32 convert(f32 a, f32 b, f32 c, f32 d) const {
    u32 packed = 0;
    packed = __builtin_amdgcn_cvt_pk_fp8_f32(a * factor_, b * factor_, packed, false);
    packed = __builtin_amdgcn_cvt_pk_fp8_f32(c * factor_, d * factor_, packed, true);
    return is_nan_ ? kNans : packed;
  }

 private:
#if defined(__gfx950__)
  static constexpr u32 kNans = 0x7f7f7f7f;
#else
  static constexpr u32 kNans = 0x80808080;
#endif
  static constexpr u32 kInfinityBits = 0x7f800000;  // magnitudes from here on are no numbers
  f32 amax_, factor_;
  bool is_nan_;
};

}  // namespace rfops
