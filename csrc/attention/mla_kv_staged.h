// Loads KV tiles (mla_kv_cache.h) through registers (gfx942). K is loaded straight to MFMA
// fragments; values are also written to LDS of the wave, read back 4 or 8 elements per lane for
// tokens 4 g + 0..3, and transposed in registers.
//
// The load of a chunk of the next tile is issued as soon as the same chunk has been multiplied. LDS
// chunks of 16 bytes are swizzled by the row: writes and reads have no bank conflict.
#pragma once

#include "attention/mla_masked.h"

namespace rfops {

template <bool kFp8, bool kPaged, bool kRope>
class StagedTiles {
  using Row = MlaRow<kFp8>;
  static constexpr u32 kChunks = Row::kBytes / 64;  // 16 bytes a lane of a row each
  static constexpr u32 kGroup = kFp8 ? 8 : 4;       // elements that a lane reads of a row
  static constexpr u32 kBlocks = kMlaValue / 16 / kGroup;

 public:
  static constexpr u32 kLds = Row::kTokens * Row::kValueBytes;  // of a wave
  // A path without a next tile would double the loop and exceed the registers; the last row is
  // loaded again instead.
  static constexpr bool kKnowsLast = false;
  // gfx942 has no 16-byte direct-to-LDS loads, so nothing is prefetched.
  static constexpr bool kPrefetchesPages = false;
  static constexpr bool kSharesValues = false;

  __device__ StagedTiles(LdsBytes* wave_lds, KvPageTable<kPaged> tokens, u32 token_begin, u32 step)
      : wave_lds_(wave_lds), tokens_(tokens), token_begin_(token_begin), step_(step) {}

  __device__ void prime() {
    load_entries(0);
    set_rows(0);
#pragma unroll
    for (u32 i = 0; i < kChunks; ++i) {
#pragma unroll
      for (u32 h = 0; h < Row::kHalves; ++h) load(i, h);
    }
    load_entries(1);
    if constexpr (kRope) angles_ = tokens_.angles_of(lane_token(0, 0));
  }

  __device__ u32 first_token(u32 tile) const { return token_begin_ + tile * step_; }

  template <bool>
  __device__ void scores(u32 tile, const MlaQuery& q, F32x4 (&s)[Row::kHalves]) {
    const u32 lane = lane_id(), g = lane / 16, c = lane % 16;
    set_rows(tile + 1);
    F32x4 acc[Row::kHalves][2] = {};
#pragma unroll
    for (u32 i = 0; i < kChunks; ++i) {
#pragma unroll
      for (u32 h = 0; h < Row::kHalves; ++h) {
        if (kRope && i == Row::kValueBytes / 64)
          rotate(key_chunks_[i][h], key_chunks_[i + 1][h], angles_);
        const U32x4 k = key_chunks_[i][h];
        if (i < Row::kValueBytes / 64) {
          const u32 chunk = (i * 4 + g) ^ (c % 8);
          *reinterpret_cast<RFOPS_LDS U32x4*>(wave_lds_ + (h * 16 + c) * Row::kValueBytes +
                                              chunk * 16) = k;
        }
        if constexpr (kFp8) {
          acc[h][0] = mfma_bf16_16x16x32(fp8x8_to_bf16x8(k[0], k[1]), q[2 * i], acc[h][0]);
          acc[h][1] = mfma_bf16_16x16x32(fp8x8_to_bf16x8(k[2], k[3]), q[2 * i + 1], acc[h][1]);
        } else {
          acc[h][i % 2] = mfma_bf16_16x16x32(__builtin_bit_cast(Bf16x8, k), q[i], acc[h][i % 2]);
        }
        load(i, h);
      }
      sched_barrier();
    }
    load_entries(tile + 2);
    if constexpr (kRope) angles_ = tokens_.angles_of(lane_token(tile + 1, 0));
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) s[h] = acc[h][0] + acc[h][1];
  }

  // Replaces NaN and inf of masked tokens' values in the last tile.
  __device__ void mask_values(u32 tokens) const {
    make_values_finite<kFp8>(tokens,
                             [&](u32 token) { return wave_lds_ + token * Row::kValueBytes; });
  }

  __device__ void accumulate_pv(const Bf16x4 (&p)[Row::kHalves], MlaSums& o) {
    const u32 lane = lane_id(), g = lane / 16, c = lane % 16;
#pragma unroll
    for (u32 d = 0; d < kBlocks; ++d) {
#pragma unroll
      for (u32 h = 0; h < Row::kHalves; ++h) {
        U32x2 v[4];
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          const u32 token = 4 * g + e, chunk = (d * 8 + c / 2) ^ (token % 8);
          v[e] = *reinterpret_cast<const RFOPS_LDS U32x2*>(
              wave_lds_ + (h * 16 + token) * Row::kValueBytes + chunk * 16 + c % 2 * 8);
        }
#pragma unroll
        for (u32 x = 0; x < kGroup; ++x) {
          F32x4& sum = o[d * kGroup + x];
          sum = mfma_bf16_16x16x16(transposed<kFp8>(v, x), p[h], sum);
        }
      }
    }
  }

  // Calls fn(x, quad) for the eight quads of a lane in a slice of 128 output columns.
  template <class Act>
  __device__ static void each_quad(const MlaSums& o, u32 slice, Act act) {
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const F32x4* const four = o + slice * 8 + half * 4;
        act(r * 2 + half, F32x4{four[0][r], four[1][r], four[2][r], four[3][r]});
      }
    }
  }
  // Returns the first column of the x-th quad.
  __device__ static u32 quad_at(u32 x, u32 lane) {
    const u32 row = 4 * (lane / 16) + x / 2;
    return kFp8 ? row * 8 + x % 2 * 4 : x % 2 * 64 + row * 4;
  }

 private:
  __device__ void load_entries(u32 tile) {
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) {
      pages_[h] = static_cast<u32>(*tokens_.entry(lane_token(tile, h)));
    }
  }
  __device__ void set_rows(u32 tile) {
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) {
      const u32 row = tokens_.row(pages_[h], lane_token(tile, h));
      rows_[h] = tokens_.kv + (u64{row} * Row::kBytes + lane_id() / 16 * kVecBytes);
    }
  }
  __device__ u32 lane_token(u32 tile, u32 h) const {
    return first_token(tile) + h * 16 + lane_id() % 16;
  }
  __device__ void load(u32 i, u32 h) {
    key_chunks_[i][h] = *reinterpret_cast<const U32x4*>(rows_[h] + i * 64);
  }

  LdsBytes* wave_lds_;
  KvPageTable<kPaged> tokens_;
  u32 token_begin_, step_;
  u32 pages_[Row::kHalves];
  const u8* rows_[Row::kHalves];
  U32x4 key_chunks_[kChunks][Row::kHalves];
  RopeAngles angles_;
};

}  // namespace rfops
