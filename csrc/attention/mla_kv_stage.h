// How a tile of a latent cache lies in LDS, bf16, for all waves of a workgroup.
//
// Of a token 1 KiB of values, a row every kPitch bytes, and behind all of them the keys' last 64
// elements. 16-byte chunks are permuted by the row: neither K's reads (16 bytes) nor V's (8 bytes,
// on gfx950 transposed) have a bank conflict.
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
  // Where keys' last elements are: on gfx950 a row's together, on gfx942 halves of four rows, as
  // loads of 4 bytes a lane leave them; 64 bytes lie between, for a row's halves in other banks.
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

// What loaders share: of a tile each wave has kRowsPerWave rows, and a lane the place of one of
// them. Tiles are counted from the turn's.
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
  // The i-th of the wave's rows, of what each lane has.
  __device__ static u32 row_at(u32 rows, u32 i) {
    const i32 row = __builtin_amdgcn_readlane(static_cast<i32>(rows), static_cast<i32>(i * kLanes));
    return static_cast<u32>(row);
  }

  KvPageTable<kPaged> tokens_;
  u32 own_row_, token_;
};

}  // namespace rfops
