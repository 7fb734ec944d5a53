// Scaled matrix cores on MXFP4 (gfx950): v_mfma_scale_f32_16x16x128_f8f6f4 with e2m1 operands.
//
// A tile is 16 rows by 128 of K, 16 bytes a lane: lane l holds, of row l % 16, the 32 elements from
// k = 32 * (l / 16), the even one of two in the low nibble: exactly one MX block, and supplies its
// e8m0 scale. So a lane quantises what it holds by itself. D is as mfma_fp8.h has it.
//
// Scales lie row by row, or shuffled: padded to rows of 256 and columns of 8, a dword of lane l of
// 32 rows by 256 of K holds the bytes of 16 rows and 128 of K each: byte 2 * (K's half) + rows'
// half.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr u32 kFp4Block = 32;  // elements of one scale
constexpr u32 kFp4TileBlocks = kTileK / kFp4Block;

// What the matrix cores call the formats of operands.
enum MatrixFormat : int { kE4m3 = 0, kE2m1 = 4 };

// c + 2^(a_scale + b_scale - 254) * a * b^T, of e2m1 a. Byte kAByte of a's scale counts, kBByte of
// b's.
template <MatrixFormat kB = kE2m1, int kBByte = 0, int kAByte = 0>
__device__ inline F32x4 mfma_mxfp4_16x16x128(U32x4 a, u32 a_scale, const Fragment& b, u32 b_scale,
                                             F32x4 c) {
  const Fragment low = {a, a};  // what lies above 16 bytes is not looked at
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(concat(low), concat(b), c, kE2m1, kB,
                                                          kAByte, static_cast<i32>(a_scale), kBByte,
                                                          static_cast<i32>(b_scale));
}

// sum += a * b^T in accumulation registers, with bytes kA and kB of the scales;
// with kFresh from zero.
template <u32 kA, u32 kB, bool kFresh>
__device__ inline void mfma_mxfp4_in_place(F32x4& sum, U32x4 a, u32 a_scale, U32x4 b, u32 b_scale) {
  if constexpr (kFresh) {
    asm volatile(
        "v_mfma_scale_f32_16x16x128_f8f6f4 %0, %1, %2, 0, %3, %4 op_sel:[%5,%6,0] "
        "op_sel_hi:[%7,%8,0] cbsz:4 blgp:4"
        : "=a"(sum)
        : "v"(a), "v"(b), "v"(a_scale), "v"(b_scale), "n"(kA % 2), "n"(kB % 2), "n"(kA / 2),
          "n"(kB / 2));
    return;
  }
  asm volatile(
      "v_mfma_scale_f32_16x16x128_f8f6f4 %0, %1, %2, %0, %3, %4 op_sel:[%5,%6,0] "
      "op_sel_hi:[%7,%8,0] cbsz:4 blgp:4"
      : "+a"(sum)
      : "v"(a), "v"(b), "v"(a_scale), "v"(b_scale), "n"(kA % 2), "n"(kB % 2), "n"(kA / 2),
        "n"(kB / 2));
}

// In accumulation registers here. No instruction.
__device__ inline void force_agpr(F32x4& sum) { asm volatile("" : "+a"(sum)); }

// Where a lane's scale of 16 rows and 128 of K lies: `rows16` and `k128` count from the operand's
// first, in scalars.
template <bool kShuffled>
struct MxScaleLayout {
  // Bytes of the scales of 32 rows by their row, or of all K of 32 rows.
  __device__ static u32 lane_offset(u32 lane, u32 row_bytes) {
    return kShuffled ? lane * 4 : lane % kTileRows * row_bytes + lane / kTileRows;
  }
  __device__ static u32 tile_offset(u32 rows16, u32 k128, u32 row_bytes) {
    if constexpr (kShuffled) {
      return rows16 / 2 * 32 * row_bytes + k128 / 2 * 256;
    } else {
      return rows16 * kTileRows * row_bytes + k128 * kFp4TileBlocks;
    }
  }
  __device__ static u32 load(const Buffer& buffer, u32 lane, u32 tile) {
    return kShuffled ? buffer_load_dwords<1>(buffer, lane, tile).dword[0]
                     : buffer_load_u8(buffer, lane, tile);
  }
  // The scale in the lowest byte.
  __device__ static u32 select_byte(u32 loaded, u32 rows16, u32 k128) {
    return kShuffled ? loaded >> (rows16 % 2 + k128 % 2 * 2) * 8 : loaded;
  }
};

}  // namespace rfops
