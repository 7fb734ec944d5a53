// Attention of 32 query rows per wave with Q, K, V and P in FP8 (gfx950): mla_online_softmax.h with
// MFMAs of 32x32x64, which take as long as 32x32x32 in bf16.
//
// Lane l has row l % 32. Of a tile of 64 tokens it has the scores of tokens 32 h + 8 i + 4 (l / 32)
// + 0..3 in registers 16 h + 4 i + 0..3; as P, one byte each, they are the operand for V^T, whose
// tokens are read in that order. Its outputs are columns 32 t + 8 i + 4 (l / 32) + 0..3.
//
// e4m3 ranges from 2^-9 to 448, so P of a tile is divided by a power of two per row that leaves 2^7
// .. 2^8 for the largest, and the MFMA multiplies by it: a lag of row_max costs no precision.
// row_sum adds P as rounded, so the output of a single token is its value, bit for bit; lse is that
// of the rounded sum.
#pragma once

#include "attention/mla_kv_stage_fp8.h"
#include "attention/mla_online_softmax.h"
#include "attention/mla_query_gfx950.h"

#if defined(__gfx950__)

namespace rfops {

class Fp8WaveAttention : public RowsOf32x32 {
  using Layout = Fp8StageLayout;
  static constexpr u32 kSteps = kMlaKey / 64, kHalves = 2, kValueSteps = kMlaValue / 32;
  static constexpr u32 kPrefetch = 3;    // operands on their way from LDS
  static constexpr i32 kOne = 127;       // as e8m0
  static constexpr f32 kLargest = 8.0f;  // 2^8, of a tile's weights
  static constexpr f32 kFaintest =
      -64.0f;  // the largest of which weights are not lost, at `row_max`

 public:
  static constexpr u32 kParkedBytes = kQuery32Bytes;
  using Scores = F32x16[kHalves];
  static constexpr bool kMasksLate = false;  // in the second half of `accumulate_pv`

  __device__ void issue_q_loads(const WaveQuery& q) { scale_ = q.scale, q_loads_.issue(q); }
  template <class RotateFirst>
  __device__ void finish_q_loads(LdsBytes* lds, RotateFirst rotate_first_tile) {
    begin();
    U32x4 q_chunks[2 * kSteps];
    exchange_query_32<true>(q_chunks, q_loads_, lds);
    sched_barrier();
    rotate_first_tile();
    sched_barrier();
    negate_if(q_chunks, scale_, 0x80808080);
    scale_ = __builtin_fabsf(scale_);
    static_for<kSteps>([&](auto i) { q_[i] = concat(q_chunks[2 * i], q_chunks[2 * i + 1]); });
    const u32 g = lane_id() / 32, c = lane_id() % 32;
    key_ = Layout::value_offset(c, g * 2);
    rope_ = Layout::rope_offset(c, g * 2);
    const u32 l = lane_id() % 16, token = l / 8 * 8 + g * 4 + l / 2 % 4;
    value_ = Layout::value_offset(token, lane_id() / 16 % 2) + l % 2 * 8;
  }

  __device__ void set_key_tile(const LdsBytes* tile) {
    key_at_ = lds_address(tile) + key_;
    rope_at_ = lds_address(tile) + rope_;
    force_vgpr(key_at_), force_vgpr(rope_at_);
  }
  template <u32 kBegin = 0, u32 kEnd = kPrefetch>
  __device__ void read_keys() {
    static_for<kEnd - kBegin>([&](auto i) { k_[kBegin + i] = key<kBegin + i>(); });
  }

  __device__ void begin() {
    clear_result();
    unclean_ = 0;
    static_for<32>([&](auto i) { s_[i] = -__builtin_inff(); });
    tile_max_ = RescaleThreshold::kNothing;
    one_ = kOne;
    force_vgpr(one_);
    next_power_ = offset_ = 0.0f;
  }

  // Computes the scores of the tile whose keys are being read; meanwhile the scores of the previous
  // tile, in `tile`, become P. loads(step) issues loads.
  template <class Mask, class Loads>
  __device__ void scores(const LdsBytes* tile, Mask, Loads loads) {
    if (RFOPS_UNLIKELY(threshold_.is_over(tile_max_))) update_max();
    power_ = static_cast<i32>(next_power_);
    e8m0_ = power_ + kOne;
    force_vgpr(power_), force_vgpr(e8m0_);
    value_at_ = lds_address(tile) + value_;
    force_vgpr(value_at_);
    static_for<kSteps * kHalves>([&](auto i) {
      constexpr u32 kStepsLeft = kSteps * kHalves - i;
      mfma_qk<i>();
      if constexpr (kStepsLeft > kPrefetch) k_[i % kPrefetch] = key<i + kPrefetch>();
      if constexpr (kStepsLeft <= kPrefetch)
        v_[kPrefetch - kStepsLeft] = value<kPrefetch - kStepsLeft>();
      sched_barrier();
      loads(i);
      sched_barrier();
      exp_scores<i>();
      sched_barrier();
    });
  }

  // Accumulates P V of that tile; meanwhile the next tile's scores are scaled and masked.
  // all_read() is called after the last read of V, then reads of the keys of next_tile() begin.
  template <class NextTile, class Loads, class Mask, class AllRead>
  __device__ void accumulate_pv(NextTile next_tile, Loads loads, Mask mask, AllRead all_read) {
    static_for<kValueSteps>([&](auto t) {
      constexpr u32 kStepsLeft = kValueSteps - 1 - t;
      asm volatile(
          "v_mfma_scale_f32_32x32x64_f8f6f4 %0, %1, %2, %0, %3, %4 op_sel:[0,0,0] op_sel_hi:[0,0,0]"
          : "+a"(o_[t])
          : "v"(v_[t % kPrefetch]), "v"(p_), "v"(one_), "v"(e8m0_));
      if constexpr (t + kPrefetch < kValueSteps) v_[t % kPrefetch] = value<t + kPrefetch>();
      sched_barrier();
      loads(t, Number<kValueSteps>{});
      sched_barrier();
      scale_and_mask<t>(mask);
      add_up<t>();
      sched_barrier();
      if constexpr (kStepsLeft == 2) {
        set_key_tile(next_tile());
        all_read();
      }
      if constexpr (kStepsLeft <= 2) read_keys<2 - kStepsLeft, 3 - kStepsLeft>();
      sched_barrier();
    });
  }

  __device__ void finish() { finish_output(o_); }

  // Masks tokens from `kv_end` on; `token_begin` is the tile's. Returns a bit per masked token that
  // has a score which is not finite.
  __device__ static u64 mask(Scores& s, i32 token_begin, const i32 (&kv_end)[kQRowsPerLane]) {
    u64 masked_tokens = 0;
    static_for<kHalves>([&](auto h) {
      const u32 half_bits =
          mask_column<16>(s[h], token_begin + static_cast<i32>(h * 32), kv_end[0]);
      masked_tokens |= tokens_of_lanes<16, 32>(half_bits, column_token) << h * 32;
    });
    return masked_tokens;
  }

  // Returns the statistics of the lane's n-th row, over all its lanes.
  __device__ SoftmaxStats totals(u32) const {
    return weights_.totals(reduce_lanes<64, 32>(weights_.sum, [](f32 a, f32 b) { return a + b; }));
  }
  // Returns the lane's i-th quad of 64 output columns from 64 * block on.
  __device__ F32x4 quad(u32 block, u32 i) const { return quad_of(o_[block * 2 + i / 4], i); }

 private:
  __device__ static U32x8 concat(U32x4 low, U32x4 high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  // K-step i: 64 elements of 32 tokens; a lane reads 32 adjacent ones, as of q.
  template <u32 i>
  __device__ U32x8 key() const {
    constexpr u32 kKStep = i % kSteps, kHalf = i / kSteps * 32;
    constexpr bool kEnd = kKStep == kSteps - 1;
    constexpr u32 kSwizzle = kEnd ? 0 : kKStep % 4 * 64;
    constexpr u32 kOffset =
        kEnd ? kHalf * Layout::kRopePitch : kHalf * Layout::kPitch + kKStep / 4 * 256;
    const u32 lane_offset = kEnd ? rope_at_ : key_at_;
    return concat(lds_load_b128((const LdsBytes*)(lane_offset ^ kSwizzle) + kOffset),
                  lds_load_b128((const LdsBytes*)(lane_offset ^ (kSwizzle ^ kVecBytes)) + kOffset));
  }
  // Reads columns 32 t + 0..31 of all tokens, four times eight of these.
  template <u32 t>
  __device__ U32x8 value() const {
    const LdsBytes* const src = (const LdsBytes*)(value_at_ ^ t % 8 * 32) + t / 8 * 256;
    U32x2 quarter[4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      quarter[j] = lds_read_transposed<true>(src + j * 16 * Layout::kPitch);
    }
    return {quarter[0][0], quarter[0][1], quarter[1][0], quarter[1][1],
            quarter[2][0], quarter[2][1], quarter[3][0], quarter[3][1]};
  }

  // Inline assembly, because the compiler would keep the scores in AGPRs, which arithmetic cannot
  // read.
  template <u32 i>
  __device__ void mfma_qk() {
    F32x16& sum = next_[i / kSteps];
    if constexpr (i % kSteps == 0) {
      asm volatile("v_mfma_f32_32x32x64_f8f6f4 %0, %1, %2, 0"
                   : "=&v"(sum)
                   : "v"(k_[i % kPrefetch]), "v"(q_[i % kSteps]));
    } else {
      asm volatile("v_mfma_f32_32x32x64_f8f6f4 %0, %1, %2, %0"
                   : "+v"(sum)
                   : "v"(k_[i % kPrefetch]), "v"(q_[i % kSteps]));
    }
  }

  // Masks, finds the row's maximum, and scales scores to powers of two relative to row_max and the
  // tile's exponent. The MFMAs have written all scores from step 2 on.
  template <u32 t, class Mask>
  __device__ void scale_and_mask(Mask mask) {
    if constexpr (t == 2) unclean_ |= mask(next_, Number<1>{});
    if constexpr (t >= 2 && t < 6) {
      static_for<4>([&](auto j) {
        constexpr u32 r = (t - 2) * 8 + j * 2;
        const F32x16& half = next_[r / 16];
        tile_max_ = max_of(r == 0 ? half[0] : tile_max_, half[r % 16], half[r % 16 + 1]);
      });
    }
    if constexpr (t == 6) {
      const f32 column_max =
          reduce_lanes<64, 32>(tile_max_, [](f32 a, f32 b) { return max_of(a, b); });
      tile_max_ = __builtin_fmaf(column_max, scale_, offset_);
    }
    if constexpr (t == 7) choose_power();
    if constexpr (t >= 8) static_for<4>([&](auto j) { lower<(t - 8) * 4 + j>(); });
  }
  __device__ void choose_power() {
    next_power_ = max_of(__builtin_ceilf(tile_max_), kFaintest) - kLargest;
    lowered_ = offset_ - next_power_;
  }
  template <u32 r>
  __device__ void lower() {
    s_[r] = __builtin_fmaf(next_[r / 16][r % 16], scale_, lowered_);
  }
  // Step i of computing P: two exponentials, and the previous two converted to a byte each.
  template <u32 i>
  __device__ void exp_scores() {
    if constexpr (i < 16) {
      s_[2 * i] = __builtin_amdgcn_exp2f(s_[2 * i]);
      s_[2 * i + 1] = __builtin_amdgcn_exp2f(s_[2 * i + 1]);
      force_vgpr(s_[2 * i]), force_vgpr(s_[2 * i + 1]);
    }
    if constexpr (i >= 1 && i < 17) {
      constexpr u32 kPair = i - 1;
      const u32 was = kPair % 2 == 0 ? 0 : p_[kPair / 2];
      p_[kPair / 2] = static_cast<u32>(__builtin_amdgcn_cvt_pk_fp8_f32(
          s_[2 * kPair], s_[2 * kPair + 1], static_cast<i32>(was), kPair % 2 == 1));
    }
  }
  template <u32 t>
  __device__ void add_up() {
    const auto pair = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(p_[t / 2]), t % 2 == 1);
    tile_sum_ = t == 0 ? pair[0] : tile_sum_ + pair[0];
    tile_sum_ += pair[1];
    force_vgpr(tile_sum_);  // here, not all at the end
    if constexpr (t + 1 == kValueSteps) weights_.sum += __builtin_ldexpf(tile_sum_, power_);
  }

  __device__ void update_max() {
    f32 max_delta;
    const f32 rescale_factor = weights_.update_max(tile_max_, threshold_.is_first(), max_delta);
    offset_ = -weights_.row_max;
    tile_max_ -= max_delta;
    choose_power();
    static_for<32>([&](auto r) { lower<r>(); });
    const u32 was_first = threshold_.leave();
    scale_output(o_, rescale_factor, was_first);
    if (RFOPS_UNLIKELY((was_first & unclean_) != 0)) clear_result();
  }
  // An MFMA zeroes accumulators faster than one register at a time.
  __device__ void clear_result() {
    static_for<kValueSteps>([&](auto t) {
      const U32x4 zero = {};
      asm volatile("s_nop 1\n\tv_mfma_f32_32x32x16_bf16 %0, %1, %1, 0" : "+a"(o_[t]) : "v"(zero));
    });
  }

  f32 scale_, offset_;  // a score's power of two is score * scale_ + offset_
  f32 next_power_, lowered_, tile_sum_;
  i32 power_, e8m0_, one_;
  OnlineSoftmax weights_;
  u32 key_, rope_, value_, key_at_, rope_at_, value_at_;
  QueryLoads<1, kVecBytes> q_loads_;
  U32x8 q_[kSteps], k_[kPrefetch], v_[kPrefetch], p_;
  F32x16 o_[kValueSteps];
  F32x16 next_[kHalves];  // scores of the next tile
  f32 s_[32];             // and of this one
  f32 tile_max_;          // the most of these
  RescaleThreshold threshold_;
  u32 unclean_;  // 1: iteration 0 may have multiplied zeros by values that are not finite
};

}  // namespace rfops

#endif
