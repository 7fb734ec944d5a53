// MFMA on FP8 without scales: e4m3fnuz on gfx942, OCP e4m3 on gfx950. D = A * B^T + C.
//
// An operand tile is 16 rows by 128 of K, 32 bytes per lane: lane l holds the 16 bytes of row l %
// 16 from k = 16 * (l / 16) on and the 16 bytes from k = 64 + 16 * (l / 16) on. Lane l holds rows 4
// * (l / 16) + 0..3 of column l % 16 of D. These four elements are neighbours along A's rows, so A
// should be the operand whose rows run along a row of the output.
//
// gfx950 multiplies a tile with one instruction. gfx942 takes four, with 8 bytes per lane each;
// each sums 32 other k than the instruction defines, the same ones for A and B, which does not
// change the sum.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kTileRows = 16;  // rows of an operand tile; also rows and columns of the output tile
constexpr u32 kTileK = 128;    // bytes of K in an operand tile
constexpr u32 kPieceK = kTileK / 2;  // distance between the two 16-byte chunks of a lane

// What one lane holds of an operand tile.
struct Fragment {
  U32x4 low, high;
};

// Returns both chunks as the eight registers of an MFMA operand.
__device__ inline I32x8 concat(const Fragment& t) {
  return __builtin_bit_cast(I32x8, __builtin_shufflevector(t.low, t.high, 0, 1, 2, 3, 4, 5, 6, 7));
}

// Returns the offset of a lane's first chunk in a tile whose rows are `row_bytes` apart.
__device__ inline u32 fragment_offset(u32 lane, u32 row_bytes) {
  return lane % kTileRows * row_bytes + lane / kTileRows * kVecBytes;
}

// Loads both chunks of a lane from lane + scalar on. `lane`, the range-checked offset, may be
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

// Returns c plus the products of instruction `step` of kMatrixSteps.
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
// Returns c + 2^(a_scale + b_scale - 254) * a * b^T. Byte kByte of each scale is used; the others
// may hold anything.
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
