// Matrix cores on FP8 without scales: e4m3fnuz on gfx942, OCP e4m3 on gfx950.
//
// A tile is 16 rows by 128 of K, 32 bytes a lane: lane l holds, of row l % 16, the 16 bytes from
// k = 16 * (l / 16) and those from k = 64 + 16 * (l / 16). D = A * B^T + C, of which lane l holds
// rows 4 * (l / 16) + 0..3 of column l % 16. A lane's four values are neighbours along A's rows, so
// let A be the operand whose rows run along the row of the output.
//
// gfx950 multiplies a tile at once. gfx942 takes four steps of 8 bytes a lane; each sums 32
// products that lie elsewhere along K than the instruction means, the same for A and B, which a sum
// allows.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kTileRows = 16;        // rows of an operand, and of the result either way
constexpr u32 kTileK = 128;          // bytes of K in an operand
constexpr u32 kPieceK = kTileK / 2;  // a lane's second piece lies this far from its first

// What a lane holds of an operand.
struct Fragment {
  U32x4 low, high;
};

__device__ inline I32x8 concat(const Fragment& t) {
  return __builtin_bit_cast(I32x8, __builtin_shufflevector(t.low, t.high, 0, 1, 2, 3, 4, 5, 6, 7));
}

// A lane's first piece within a tile of rows `row_bytes` apart.
__device__ inline u32 fragment_offset(u32 lane, u32 row_bytes) {
  return lane % kTileRows * row_bytes + lane / kTileRows * kVecBytes;
}

// Both pieces, from `lane + scalar` on. The offset that is range-checked, `lane`, may be
// kOutOfBounds.
template <CacheHint kHint = kCached>
__device__ inline Fragment load_fragment(const Buffer& buffer, u32 lane, u32 scalar) {
  return {buffer_load_b128<kHint>(buffer, lane, scalar),
          buffer_load_b128<kHint>(buffer, lane + kPieceK, scalar)};
}

#if defined(__gfx950__)
constexpr u32 kMatrixSteps = 1;
#else
constexpr u32 kMatrixSteps = 4;
#endif

// c + the products of step `step` of kMatrixSteps.
__device__ inline F32x4 mfma_fp8_step([[maybe_unused]] u32 step, const Fragment& a,
                                      const Fragment& b, F32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(concat(a), concat(b), c, 0, 0, 0, 0, 0,
                                                          0);
#else
  const auto k8_operand = [&](const Fragment& t) {
    const U32x4 half = step < 2 ? t.low : t.high;
    const u32 low = half[step % 2 * 2], high = half[step % 2 * 2 + 1];
    return static_cast<long>(u64{low} | u64{high} << 32);
  };
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(k8_operand(a), k8_operand(b), c, 0, 0, 0);
#endif
}

#if defined(__gfx950__)
// c + 2^(a_scale + b_scale - 254) * the products of a tile. Byte kByte of each scale counts, the
// others may be anything.
template <int kByte = 0>
__device__ inline F32x4 mfma_mxfp8_16x16x128(const Fragment& a, u32 a_scale, const Fragment& b,
                                             u32 b_scale, F32x4 c) {
  constexpr int kE4m3 = 0;
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(concat(a), concat(b), c, kE4m3, kE4m3,
                                                          kByte, static_cast<int>(a_scale), kByte,
                                                          static_cast<int>(b_scale));
}
#endif

}  // namespace rfops
