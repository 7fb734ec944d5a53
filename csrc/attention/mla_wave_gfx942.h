// Attention of 32 query rows per wave with the MFMAs of gfx942: mla_online_softmax.h.
//
// Scores use 16x16x16: of a tile of 16 tokens, lane l = 16 g + c has tokens 4 g + 0..3 of rows c
// and 16 + c. The output uses 32x32x8, which needs half as many MFMAs and leaves issue slots after
// each. Its lane l needs P of row l % 32 alone, of tokens 8 (l / 32) + 0..3 and then + 4..7; it has
// one half, lane l ^ 16 the other, and the two exchange. V comes from mla_transpose_v.h. Output
// columns of a lane are 128 b + 32 i + 16 (l / 32) + 4 r + x, in register 4 i + r of tile 4 b + x.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_online_softmax.h"
#include "attention/mla_query_gfx942.h"
#include "attention/mla_transpose_v.h"

#if defined(__gfx942__)

namespace rfops {

template <bool kQueryFp8, u32>
class WaveAttention {
  static constexpr u32 kSteps = kMlaKey / 32, kValueSteps = TransposedValues::kBlocks;
  static constexpr u32 kPrefetch = 3;  // operands on their way from LDS
  static constexpr u32 kTiles = kMlaValue / 32;

 public:
  using Scores = F32x4[2];
  static constexpr u32 kParkedBytes = kQuery16Bytes;
  static constexpr u32 kQRowsPerLane = 2;    // columns of a lane's scores
  static constexpr bool kMasksLate = false;  // in the second half of `accumulate_pv`
  __device__ static u32 column(u32 lane, u32 n) { return n * 16 + lane % 16; }

  __device__ void issue_q_loads(const WaveQuery& q) { scale_ = q.scale, q_loads_.issue(q); }
  // rotate_first_tile() rotates the keys of the first tile, whose loads were issued after those of
  // Q.
  template <class RotateFirst>
  __device__ void finish_q_loads(LdsBytes* parked, RotateFirst rotate_first_tile) {
    begin();
    exchange_query_16(q_, q_loads_, parked);
    sched_barrier();
    rotate_first_tile();
    sched_barrier();
    static_for<kQRowsPerLane>([&](auto n) { negate_if(q_[n], scale_, 0x80008000); });
    scale_ = __builtin_fabsf(scale_);
    const u32 g = lane_id() / 16, c = lane_id() % 16;
    key_ = KvStageLayout::value_offset(c, g);
    rope_ = KvStageLayout::rope_offset(c, g);
    values_.init_offsets();
  }

  __device__ void set_key_tile(const LdsBytes* tile) {
    keys_[0] = tile + key_;
    keys_[1] = tile + (key_ ^ 64);
    rope_key_ = lds_address(tile) + rope_;
    force_vgpr(keys_[0]), force_vgpr(keys_[1]), force_vgpr(rope_key_);
  }
  template <u32 kBegin = 0, u32 kEnd = kPrefetch>
  __device__ void read_keys() {
    static_for<kEnd - kBegin>([&](auto i) { k_[kBegin + i] = key<kBegin + i>(); });
  }

  __device__ void begin() {
    clear_result();
    unclean_ = 0;
    static_for<kQRowsPerLane>([&](auto n) { s_[n] = F32x4{}; });
    tile_max_ = RescaleThreshold::kNothing;
  }

  // Computes the scores of the tile whose keys are being read; meanwhile the scores of the previous
  // tile, in `tile`, become P. loads(step) issues loads.
  template <class Mask, class Loads>
  __device__ void scores(const LdsBytes* tile, Mask mask, Loads loads) {
    if (RFOPS_UNLIKELY(threshold_.is_over(tile_max_))) update_max(mask);
    // An MFMA takes as long as four instructions: three others follow each.
    static_for<kSteps * 4>([&](auto u) {
      constexpr u32 kStep = u / 4, kAim = 52, kRead = kAim + TransposedValues::kPrefetchedReads;
      mfma_qk<u>();
      sched_barrier();
      static_for<IssueSlots::count(u)>([&](auto i) { loads(Number<IssueSlots::fill(u) + i>{}); });
      sched_barrier();
      exp_scores<u>();
      sched_barrier();
      if constexpr (IssueSlots::piece(u) != ~0u) loads(Number<IssueSlots::piece(u)>{});
      if constexpr (u % 4 == 3 && kStep + kPrefetch < kSteps) {
        k_[kStep % kPrefetch] = key<kStep + kPrefetch>();
      }
      if constexpr (u >= kAim && u < kRead) values_.template set_token<u - kAim>(tile);
      if constexpr (u >= kRead && u < 2 * kRead - kAim) values_.template read<u - kRead>();
      if constexpr (u == kSteps * 4 - 2)
        force_vgpr(first_value_ = values_.template transposed<0>());
      sched_barrier();
    });
  }

  // Accumulates P V of that tile; meanwhile the next tile's scores are scaled and masked.
  // all_read() is called after the last read of V, then reads of the keys of next_tile() begin.
  template <class NextTile, class Loads, class Mask, class AllRead>
  __device__ void accumulate_pv(NextTile next_tile, Loads loads, Mask mask, AllRead all_read) {
    Bf16x4 v = first_value_;
    static_for<kValueSteps * 4>([&](auto u) {
      constexpr u32 kStepsLeft = kValueSteps * 4 - 1 - u;
      // Two instructions must come between the last write of an operand and its MFMA.
      Bf16x4 next = v;
      if constexpr (kStepsLeft == 3) mfma_pv<u>(v);  // at once: `all_read` may have waited
      sched_barrier();
      if constexpr (u + 1 < kValueSteps * 4) next = values_.template transposed<u + 1>();
      sched_barrier();
      if constexpr (kStepsLeft != 3) mfma_pv<u>(v);
      sched_barrier();
      scale_and_mask<u>(mask);
      if constexpr (u >= 3 && (u - 3) % 4 < 2) values_.template refill<u - 3>();
      loads(u, Number<kValueSteps * 4>{});
      v = next;
      sched_barrier();
      if constexpr (kStepsLeft == 5) set_key_tile(next_tile());
      if constexpr (kStepsLeft == 4) all_read();
      if constexpr (kStepsLeft >= 1 && kStepsLeft < 4) read_keys<3 - kStepsLeft, 4 - kStepsLeft>();
    });
  }

  __device__ void finish() { finish_output(o_); }

  // Masks tokens from `kv_end` on; `token_begin` is the tile's. Returns a bit per masked token that
  // has a score which is not finite.
  __device__ static u64 mask(Scores& s, i32 token_begin, const i32 (&kv_end)[kQRowsPerLane]) {
    const u32 lane = lane_id_in_vgpr();  // few tiles are masked
    const i32 token = token_begin + static_cast<i32>(lane / 16 * 4);
    u32 not_finite = 0;
#pragma unroll
    for (u32 n = 0; n < kQRowsPerLane; ++n) {
#pragma unroll
      for (i32 r = 0; r < 4; ++r) {
        const bool is_visible = token + r < kv_end[n];
        if (!is_visible && !is_finite(s[n][r])) not_finite |= u32{1} << r;
        s[n][r] = is_visible ? s[n][r] : -__builtin_inff();
      }
    }
    return tokens_of_lanes<4, 16>(not_finite, [](u32 r) { return r; });
  }

  // Returns the statistics of the lane's n-th row, over all its lanes.
  __device__ SoftmaxStats totals(u32 n) const {
    const auto add = [](f32 a, f32 b) { return a + b; };
    return weights_[n].totals(reduce_lanes<64, 16>(weights_[n].sum, add));
  }
  // Selects, of the values of the lane's two score rows, that of its output row.
  __device__ static f32 of_result(const f32 (&row_values)[kQRowsPerLane], u32 lane) {
    f32 low = row_values[0], high = row_values[1];
    force_vgpr(low), force_vgpr(high);  // else the compiler has them in LDS
    return lane & 16 ? high : low;
  }
  // Returns the lane's i-th quad of 64 output columns from 64 * block on, and its column.
  __device__ F32x4 quad(u32 block, u32 i) const {
    const F32x16* const acc_tiles = o_ + block / 2 * 4;
    const u32 reg_idx = block % 2 * 8 + i;
    return {acc_tiles[0][reg_idx], acc_tiles[1][reg_idx], acc_tiles[2][reg_idx],
            acc_tiles[3][reg_idx]};
  }
  __device__ static u32 quad_at(u32 i, u32 lane) { return i / 4 * 32 + lane / 32 * 16 + i % 4 * 4; }

 private:
  template <u32 i>
  __device__ U32x4 key() const {
    if constexpr (i < kMlaValue / 32) return lds_load_b128(keys_[i % 2] + i / 2 * 128);
    return lds_load_b128((const LdsBytes*)rope_key_ + i % 2 * KvStageLayout::kRopeHalf);
  }
  template <u32 u>
  __device__ void mfma_pv(Bf16x4 v) {
    constexpr u32 kBlock = u / 4;
    asm volatile("v_mfma_f32_32x32x8_bf16 %0, %1, %2, %0"
                 : "+a"(o_[kBlock / 2 * 4 + u % 4])
                 : "v"(v), "v"(p_[kBlock % 2]));
  }

  // Inline assembly, because the compiler would keep the scores in AGPRs, which arithmetic cannot
  // read.
  template <u32 u>
  __device__ void mfma_qk() {
    constexpr u32 kStep = u / 4, kColumn = u % 2;
    const U32x4 k = k_[kStep % kPrefetch];
    const Bf16x8 q = q_[kColumn][kStep];
    const U32x2 half = u % 4 < 2 ? U32x2{k[0], k[1]} : U32x2{k[2], k[3]};
    const Bf16x4 q_half = u % 4 < 2 ? low_half(q) : high_half(q);
    if constexpr (u < 2) {
      asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, 0"
                   : "=&v"(next_[kColumn])
                   : "v"(half), "v"(q_half));
    } else {
      asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, %0"
                   : "+v"(next_[kColumn])
                   : "v"(half), "v"(q_half));
    }
  }

  // Step i of scaling scores to powers of two relative to row_max, masking them, and finding the
  // lane's maximum: in steps that read V, not in those that transpose it.
  template <u32 i, class Mask>
  __device__ void scale_and_mask(Mask mask) {
    constexpr u32 kPairStep = (i + 1) / 4 * 2 + (i + 1) % 4;  // of steps 3, 4, 7, 8, 11 ...
    if constexpr ((i + 1) % 4 < 2 && kPairStep >= 2 && kPairStep < 6) {
      constexpr u32 n = (kPairStep - 2) / 2, r = kPairStep % 2 * 2;
      s_[n][r] = __builtin_fmaf(next_[n][r], scale_, -weights_[n].row_max);
      s_[n][r + 1] = __builtin_fmaf(next_[n][r + 1], scale_, -weights_[n].row_max);
    }
    if constexpr (i == 9) unclean_ |= mask(s_, Number<1>{});
    if constexpr (i == 11) tile_max_ = max_of(s_[0][0], s_[0][1], s_[0][2]);
    if constexpr (i == 12) tile_max_ = max_of(tile_max_, s_[0][3], s_[1][0]);
    if constexpr (i == 15) tile_max_ = max_of(tile_max_, s_[1][1], s_[1][2]);
    if constexpr (i == 16) tile_max_ = max_of(tile_max_, tile_max_, s_[1][3]);
    sched_barrier();
    // Here, because reads of V fill the time that an exponential blocks arithmetic and MFMAs.
    constexpr u32 kExp = (i + 1) / 4 * 2 + (i + 1) % 4 - 7;  // of steps 12, 15, 16, 19 ...
    if constexpr ((i + 1) % 4 < 2 && i >= 12 && kExp < 8) {
      s_[kExp / 4][kExp % 4] = __builtin_amdgcn_exp2f(s_[kExp / 4][kExp % 4]);
      force_vgpr(s_[kExp / 4]);
    }
  }

  // Step u of packing P to operands, rounded half up: P is never negative.
  template <u32 u>
  __device__ void exp_scores() {
    constexpr u32 i = u / 4;
    if constexpr (i >= 1 && i < 9 && u % 4 == 1) {
      constexpr u32 kScore = i - 1;
      weights_[kScore / 4].sum += s_[kScore / 4][kScore % 4];
      force_vgpr(weights_[kScore / 4].sum);
    }
    if constexpr (i >= 9 && i < 13) {
      constexpr u32 n = (i - 9) / 2, kPair = (i - 9) % 2, kUpper = 0x07060302;
      f32 low = s_[n][kPair * 2], high = s_[n][kPair * 2 + 1];
      const auto bits = [](f32 value) { return __builtin_bit_cast(u32, value); };
      if constexpr (u % 4 == 1) {
        low = __builtin_bit_cast(f32, bits(low) + 0x8000);
        high = __builtin_bit_cast(f32, bits(high) + 0x8000);
        force_vgpr(low), force_vgpr(high);  // here
        s_[n][kPair * 2] = low, s_[n][kPair * 2 + 1] = high;
      }
      if constexpr (u % 4 == 2) {
        u32 packed;  // by assembly, so that it is here and not where its halves are computed
        asm volatile("v_perm_b32 %0, %1, %2, %3" : "=v"(packed) : "v"(high), "v"(low), "s"(kUpper));
        p_[n][kPair] = packed;
      }
    }
    // Lanes exchange the P of the row that is not their output row.
    const bool is_second = (lane_id() & 16) != 0;
    if constexpr (u == 52) {
      exchanged_ = is_second ? p_[0] : p_[1];
      force_vgpr(exchanged_);
    }
    if constexpr (u == 54) {
      constexpr int kXor16 = 16 << 10 | 31;
      exchanged_ = {
          static_cast<u32>(__builtin_amdgcn_ds_swizzle(static_cast<int>(exchanged_[0]), kXor16)),
          static_cast<u32>(__builtin_amdgcn_ds_swizzle(static_cast<int>(exchanged_[1]), kXor16))};
    }
    if constexpr (u == 66) {
      p_[0] = is_second ? exchanged_ : p_[0];
      force_vgpr(p_[0]);
    }
    if constexpr (u == 69) {
      p_[1] = is_second ? p_[1] : exchanged_;
      force_vgpr(p_[1]);
    }
  }

  template <class Mask>
  __device__ void update_max(Mask mask) {
    f32 rescale_factor[kQRowsPerLane];
    static_for<kQRowsPerLane * 4>([&](auto i) {
      s_[i / 4][i % 4] = __builtin_fmaf(next_[i / 4][i % 4], scale_, -weights_[i / 4].row_max);
    });
    mask(s_, Number<0>{});
#pragma unroll
    for (u32 n = 0; n < kQRowsPerLane; ++n) {
      f32 max_delta, tile_max = max_of(max_of(s_[n][0], s_[n][1], s_[n][2]), s_[n][3]);
      tile_max = reduce_lanes<64, 16>(tile_max, [](f32 a, f32 b) { return max_of(a, b); });
      rescale_factor[n] = weights_[n].update_max(tile_max, threshold_.is_first(), max_delta);
#pragma unroll
      for (u32 r = 0; r < 4; ++r) s_[n][r] = __builtin_amdgcn_exp2f(s_[n][r] - max_delta);
    }
    const u32 was_first = threshold_.leave();
    scale_output(o_, of_result(rescale_factor, lane_id()), was_first);
    if (RFOPS_UNLIKELY((was_first & unclean_) != 0)) clear_result();
  }
  // An MFMA zeroes accumulators faster than one register at a time.
  __device__ void clear_result() {
    static_for<kTiles>([&](auto t) {
      const U32x2 zero = {};
      asm volatile("s_nop 1\n\tv_mfma_f32_32x32x8_bf16 %0, %1, %1, 0" : "+a"(o_[t]) : "v"(zero));
    });
  }

  f32 scale_;
  OnlineSoftmax weights_[kQRowsPerLane];
  u32 key_, rope_, rope_key_;
  const LdsBytes* keys_[2];
  QueryLoads<kQueryFp8 ? 1 : 2, kQueryFp8 ? 8 : 16> q_loads_;
  Bf16x8 q_[kQRowsPerLane][kSteps];
  U32x4 k_[kPrefetch];
  TransposedValues values_;
  Bf16x4 first_value_;
  F32x16 o_[kTiles];
  F32x4 next_[kQRowsPerLane];  // scores of the next tile
  Scores s_;                   // and of this one
  f32 tile_max_;               // the lane's most of these
  RescaleThreshold threshold_;
  u32 unclean_;  // 1: iteration 0 may have multiplied zeros by values that are not finite
  U32x2 p_[2], exchanged_;  // weights of the two columns, then of tokens of the result's
};

}  // namespace rfops

#endif
