// LDS layout of one bf16 KV tile, shared by all waves of a workgroup.
//
// 1 KiB of values per token, a row every kPitch bytes, then the last 64 elements of the keys.
// Chunks of 16 bytes are swizzled by the row: reads of K (16 bytes) and of V (8 bytes, transposed
// on gfx950) have no bank conflict.
#pragma once

#include "attention/mfma_bf16.h"
#include "attention/mla_kv_cache.h"
#include "rfops/chip/static_for.h"
#include "rfops/chip/sync.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

struct KvStageLayout {
#if defined(__gfx950__)
  static constexpr u32 kTokens = 32, kPitch = 1024 + 64, kRopePitch = 128;
  static constexpr u32 swizzle(u32 row) { return row / 4 % 4; }
#else
  static constexpr u32 kTokens = 16, kPitch = 1024, kRopePitch = 128 + 16;
  static constexpr u32 swizzle(u32 row) { return row % 8; }
#endif
  static constexpr u32 kRope = kTokens * kPitch, kBytes = kRope + kTokens * kRopePitch;
  static constexpr u32 value_offset(u32 row, u32 chunk) {
    return row * kPitch + (chunk ^ swizzle(row)) * kVecBytes;
  }
  // Offset of the keys' last elements. On gfx950 a row is contiguous; on gfx942 the halves of four
  // rows are, as loads of 4 bytes per lane write them, 64 bytes apart so that the halves of a row
  // are in different banks.
  static constexpr u32 kRopeHalf = 256 + 64;  // of gfx942: chunks 4 to 7 are behind 0 to 3
#if defined(__gfx950__)
  static constexpr u32 rope_chunk(u32 row, u32 chunk) { return chunk ^ row / 2 % 8; }
  static constexpr u32 rope_offset(u32 row, u32 chunk) {
    return kRope + row * 128 + rope_chunk(row, chunk) * kVecBytes;
  }
#else
  static constexpr u32 rope_chunk(u32 row, u32 chunk) { return chunk ^ row / 2 % 4; }
  static constexpr u32 rope_offset(u32 row, u32 chunk) {
    return kRope + row / 4 * 4 * kRopePitch + chunk / 4 * kRopeHalf + row % 4 * 64 +
           rope_chunk(row, chunk % 4) * kVecBytes;
  }
#endif
};

// Rows of a tile that a wave loads: kRowsPerWave, kLanes lanes per row. Tiles are counted from the
// current iteration's.
template <bool kPaged>
class StageRows {
 protected:
  static constexpr u32 kRowsPerWave = KvStageLayout::kTokens / 4,
                       kLanes = kWaveSize / kRowsPerWave;  // of a row

  __device__ StageRows(const KvPageTable<kPaged>& tokens, u32 begin)
      : tokens_(tokens),
        own_row_(wave_id() * kRowsPerWave),
        token_(begin + own_row_ + lane_id() / kLanes) {}

  __device__ const i32* entry(u32 tile) const {
    return tokens_.entry(token_ + tile * KvStageLayout::kTokens);
  }
  __device__ u32 row_of(u32 page, u32 tile) const {
    return tokens_.row(page, token_ + tile * KvStageLayout::kTokens);
  }
  __device__ void advance() {
    token_ += KvStageLayout::kTokens;
    force_vgpr(token_);  // here, and no second copy that counts along
  }
  // Returns the value of the i-th of the wave's rows, uniformly.
  __device__ static u32 row_at(u32 rows, u32 i) {
    const i32 row = __builtin_amdgcn_readlane(static_cast<i32>(rows), static_cast<i32>(i * kLanes));
    return static_cast<u32>(row);
  }

  KvPageTable<kPaged> tokens_;
  u32 own_row_, token_;
};

}  // namespace rfops
