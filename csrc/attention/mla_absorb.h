// What q of an MLA layer wants behind q_up (mla_layer_decode_query.hip): RoPE of its last 64
// columns, and the product of the others, nope, with kv_up, for which nope goes through LDS as
// matrix cores leave it.
#pragma once

#include "attention/producer_loader.h"
#include "attention/rope.h"
#include "rfops/matrix/mfma_f16.h"

namespace rfops {

constexpr u32 kNope = 128, kRoped = 192, kLatent = 512, kCacheRow = 576;
constexpr u32 kOwnLatent = kLatent / 4, kUpRow = kLatent * 2, kUpRows = 256;
constexpr u32 kNopeTiles = kNope / kTileRows, kFragment = kWaveSize * 8;

// nope in LDS: of each tile of its columns, and of kMTiles of its rows, 8 bytes a lane.
template <u32 kMTiles>
struct Nope {
  static constexpr u32 kBytes = kNopeTiles * kMTiles * kFragment;
  LdsBytes* lds;

  __device__ RFOPS_LDS U32x2* chunk_ptr(u32 tile, u32 m) const {
    const u32 offset = (tile * kMTiles + m) * kFragment + lane_id() * 8;
    return reinterpret_cast<RFOPS_LDS U32x2*>(lds + offset);
  }
  __device__ void store(u32 tile, u32 m, F32x4 acc) const {
    *chunk_ptr(tile, m) = __builtin_bit_cast(U32x2, details::Bf16Rounding<4>::narrow_rounded(acc));
  }
  // A piece of K: a lane has 4 neighbours of each of two tiles.
  __device__ U32x4 piece(u32 p, u32 m) const {
    const U32x2 low = *chunk_ptr(2 * p, m), high = *chunk_ptr(2 * p + 1, m);
    return {low[0], low[1], high[0], high[1]};
  }
};

// A head's rows of kv_up, 128 of K, by 128 columns of this wave.
struct Absorbed {
  static constexpr u32 kLoads = 8;  // a piece of K
  U32x4 row[kPieces][kLoads];

  // A lane of group g has rows 4 g + e of two tiles of nope.
  __device__ void load(const bf16* rows_begin) {
    const u32 lane = lane_id(), lane_col = lane % kTileRows, g = lane / kTileRows;
    const Buffer rows = make_buffer(rows_begin, kNope * kUpRow - (kLatent - kOwnLatent) * 2);
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
#pragma unroll
      for (u32 e = 0; e < kLoads; ++e) {
        row[p][e] = buffer_load_b128(rows, g * 4 * kUpRow + lane_col * 16,
                                     (p * kPieceOfK + e / 4 * kTileRows + e % 4) * kUpRow);
      }
    }
  }
  // A piece, so that its j-th tile is every eighth of the columns, from j on.
  __device__ void transpose(u32 p) {
    U32x4 transposed[kLoads];
#pragma unroll
    for (u32 j = 0; j < kLoads; ++j) {
#pragma unroll
      for (u32 e = 0; e < kLoads; e += 2) {
        transposed[j][e / 2] = __builtin_amdgcn_perm(row[p][e + 1][j / 2], row[p][e][j / 2],
                                                     j % 2 ? 0x07060302 : 0x05040100);
      }
    }
    for_each(kLoads, [&](u32 j) { row[p][j] = transposed[j]; });
  }
};

// Of four pairs.
struct Angles {
  Bf16x4 cos, sin;
  __device__ void load(const Buffer& rows, u32 offset) {
    cos = __builtin_bit_cast(Bf16x4, buffer_load_dwords<2>(rows, offset, 0));
    sin = __builtin_bit_cast(Bf16x4, buffer_load_dwords<2>(rows, offset, kRopePairs * 2));
  }
};

// 16 pairs of a head's last 64 columns: turned after the product has been rounded.
__device__ inline void store_rotated(bf16* dst, const F32x4* acc, const Angles& angles) {
  using T = details::Bf16Rounding<4>;
  auto low = T::rounded(acc[0]), high = T::rounded(acc[1]);
  rotate<4>(low, high, T::widen(angles.cos), T::widen(angles.sin));
  *reinterpret_cast<Bf16x4*>(dst) = T::narrow(low);
  *reinterpret_cast<Bf16x4*>(dst + kRopePairs) = T::narrow(high);
}

// This wave's 128 columns of nope . kv_up, to q's rows from `dst` on, of one tile of rows after the
// other: the first are on their way to memory while others are multiplied.
template <u32 kMTiles>
__device__ inline void absorb(const Absorbed& up, const Nope<kMTiles>& nope, bf16* dst, u32 rows,
                              u64 row_of_q) {
  constexpr u32 kTiles = Absorbed::kLoads;
  const u32 lane = lane_id(), lane_row = lane / kTileRows * 4;
#pragma unroll
  for (u32 m = 0; m < kMTiles; ++m) {
    F32x4 acc[kTiles] = {};
#pragma unroll
    for (u32 p = 0; p < kPieces; ++p) {
      const U32x4 x = nope.piece(p, m);
      for_each(kTiles, [&](u32 j) { acc[j] = mfma_16x16x32<bf16>(x, up.row[p][j], acc[j]); });
    }
#pragma unroll
    for (u32 e = 0; e < 4; ++e) {
      const u32 row = m * kTileRows + lane_row + e;
      if (row >= rows) continue;
      details::Bf16Rounding<8>::Floats row_values;
      for_each(kTiles, [&](u32 j) { row_values[j] = acc[j][e]; });
      *reinterpret_cast<Bf16x8*>(dst + row * row_of_q + lane % kTileRows * 8) =
          details::Bf16Rounding<8>::narrow_rounded(row_values);
    }
  }
}

}  // namespace rfops
