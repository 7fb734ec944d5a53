// FP8 with one fp32 scale per block of 128: scale = amax / kMaxFp8, payload = fp8(x * (kMaxFp8 /
// amax)).
//
// amax is the largest magnitude of the block, at least 2^-100. A block with an infinity or a NaN
// becomes NaN, scale and payload. amax is kept as the bits of the magnitude, which order as
// magnitudes do, with NaN above all. Division is correctly rounded; conversion rounds to nearest
// even.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// Quantises the elements of one block, given its amax.
class Fp8Block {
 public:
#if defined(__gfx950__)
  static constexpr f32 kMaxFp8 = 448.0f;  // e4m3
#else
  static constexpr f32 kMaxFp8 = 240.0f;  // e4m3fnuz
#endif
  static constexpr u32 kMinAmaxBits = 0x0d800000;  // 2^-100

  static __device__ u32 magnitude(f32 x) { return __builtin_bit_cast(u32, x) & 0x7fffffff; }
  static __device__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

  // Takes the maximum of kMinAmaxBits and all magnitudes of the block.
  __device__ explicit Fp8Block(u32 amax)
      : amax_(__builtin_bit_cast(f32, amax)),
        factor_(kMaxFp8 / amax_),
        is_nan_(amax >= kInfinityBits) {}

  // Returns the scale; NaN if the block has an infinity or a NaN.
  __device__ f32 scale() const { return is_nan_ ? __builtin_nanf("") : amax_ / kMaxFp8; }
  // Returns four payloads, packed.
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
  static constexpr u32 kInfinityBits = 0x7f800000;  // bits from here on are infinity or NaN
  f32 amax_, factor_;
  bool is_nan_;
};

// Returns four payloads, packed, of values that are divided by a scale already: saturated, NaN
// stays NaN.
__device__ inline u32 fp8_saturated(f32 a, f32 b, f32 c, f32 d) {
  const auto clamp = [](f32 x) {
    const f32 bounded = __builtin_amdgcn_fmed3f(x, -Fp8Block::kMaxFp8, Fp8Block::kMaxFp8);
    return x != x ? x : bounded;
  };
  u32 packed = 0;
  packed = __builtin_amdgcn_cvt_pk_fp8_f32(clamp(a), clamp(b), packed, false);
  packed = __builtin_amdgcn_cvt_pk_fp8_f32(clamp(c), clamp(d), packed, true);
  return packed;
}

}  // namespace rfops
