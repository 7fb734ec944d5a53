// Reads V^T of a tile in LDS (mla_kv_stage.h) as operand of 32x32x8 MFMAs, transposed in registers
// (gfx942).
//
// A lane reads 8 tokens, 8 (l / 32) + 0..7, of four elements, 128 b + 4 (l % 32) + 0..3, in two
// blocks of four tokens; a block is one operand for each of its four elements.
#pragma once

#include "attention/mla_kv_stage.h"

#if defined(__gfx942__)

namespace rfops {

class TransposedValues {
  static constexpr u32 kPrefetch = 2;  // blocks on their way from LDS

 public:
  static constexpr u32 kBlocks = kMlaValue / 64, kPrefetchedReads = kPrefetch * 4;

  __device__ void init_offsets() {
    const u32 g = lane_id() / 16, d = lane_id() % 32;
    value_ = KvStageLayout::value_offset(g / 2 * 8, d / 2) + d % 2 * 8;
  }

  // Sets the address of a lane's i-th token; rows differ in their swizzle.
  template <u32 i>
  __device__ void set_token(const LdsBytes* tile) {
    tokens_[i] = i == 0 ? lds_address(tile) + value_ : tokens_[0] ^ i * kVecBytes;
    force_vgpr(tokens_[i]);
  }
  // Reads row i % 4 of block i / 4: elements 128 (i / 8) + 0..127 of the first or last four tokens.
  template <u32 i>
  __device__ void read() {
    constexpr u32 kBlock = i / 4, kRow = kBlock % 2 * 4 + i % 4;
    v_[kBlock % kPrefetch][i % 4] = *reinterpret_cast<const RFOPS_LDS U32x2*>(
        (const LdsBytes*)tokens_[kRow] + kRow * KvStageLayout::kPitch + kBlock / 2 * 256);
  }
  // Refills the registers of a block with the one kPrefetch later, half at a time.
  template <u32 u>
  __device__ void refill() {
    constexpr u32 kNext = u / 4 + kPrefetch;
    if constexpr (kNext < kBlocks) {
      read<kNext * 4 + u % 4 * 2>();
      read<kNext * 4 + u % 4 * 2 + 1>();
    }
  }
  // Returns element u % 4 of four tokens.
  template <u32 u>
  __device__ Bf16x4 transposed() const {
    return transposed_bf16(v_[u / 4 % kPrefetch], u % 4);
  }

 private:
  u32 value_, tokens_[8];
  U32x2 v_[kPrefetch][4];
};

}  // namespace rfops

#endif
