// Scaled MFMA on MXFP4 (gfx950): v_mfma_scale_f32_16x16x128_f8f6f4 with e2m1 operands.
//
// An operand tile is 16 rows by 128 of K, 16 bytes per lane: lane l holds the 32 elements of row l
// % 16 from k = 32 * (l / 16) on, the even one of a pair in the low nibble. That is exactly one MX
// block, whose e8m0 scale the same lane supplies, so a lane can quantise what it holds by itself.
// The layout of D is that of mfma_fp8.h.
//
// Scales are row-major or preshuffled. Preshuffled scales are padded to 256 rows and 8 columns; for
// each 32 rows by 256 of K, lane l's dword holds the scales of two 16-row tiles and two tiles along
// K: byte 2 * (half of K) + half of the rows.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr u32 kFp4Block = 32;  // elements per scale
constexpr u32 kFp4TileBlocks = kTileK / kFp4Block;

// Codes of the operand formats in the MFMA instruction.
enum MatrixFormat : int { kE4m3 = 0, kE2m1 = 4 };

// Returns c + 2^(a_scale + b_scale - 254) * a * b^T with e2m1 a. Byte kAByte of a's scale and byte
// kBByte of b's are used.
template <MatrixFormat kB = kE2m1, int kBByte = 0, int kAByte = 0>
__device__ inline F32x4 mfma_mxfp4_16x16x128(U32x4 a, u32 a_scale, const Fragment& b, u32 b_scale,
                                             F32x4 c) {
  const Fragment low = {a, a};  // the instruction ignores the upper 16 bytes of e2m1
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(concat(low), concat(b), c, kE2m1, kB,
                                                          kAByte, static_cast<i32>(a_scale), kBByte,
                                                          static_cast<i32>(b_scale));
}

// sum += a * b^T with `sum` in AGPRs and bytes kA and kB of the scales; with kFresh sum = a * b^T.
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

// Materialises `sum` in AGPRs at this point. Emits no instruction.
__device__ inline void force_agpr(F32x4& sum) { asm volatile("" : "+a"(sum)); }

// Addresses of the scales of one operand tile. `rows16` and `k128` count tiles from the operand's
// origin and are scalars.
template <bool kShuffled>
struct MxScaleLayout {
  // Takes as row_bytes the bytes between rows, or of preshuffled scales the columns: bytes per row
  // of a 32-row block.
  __device__ static u32 lane_offset(u32 lane, u32 row_bytes) {
    return kShuffled ? lane * 4 : lane % kTileRows * row_bytes + lane / kTileRows;
  }
  // Returns the scalar offset of a tile's scales.
  __device__ static u32 tile_offset(u32 rows16, u32 k128, u32 row_bytes) {
    if constexpr (kShuffled) {
      return rows16 / 2 * 32 * row_bytes + k128 / 2 * 256;
    } else {
      return rows16 * kTileRows * row_bytes + k128 * kFp4TileBlocks;
    }
  }
  // Loads a lane's scale of a tile: one byte, or the dword of four preshuffled tiles.
  __device__ static u32 load(const Buffer& buffer, u32 lane, u32 tile) {
    return kShuffled ? buffer_load_dwords<1>(buffer, lane, tile).dword[0]
                     : buffer_load_u8(buffer, lane, tile);
  }
  // Shifts the scale of one tile to the lowest byte of the loaded word.
  __device__ static u32 select_byte(u32 loaded, u32 rows16, u32 k128) {
    return kShuffled ? loaded >> (rows16 % 2 + k128 % 2 * 2) * 8 : loaded;
  }
};

}  // namespace rfops
