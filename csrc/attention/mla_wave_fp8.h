// 32 columns of a wave in FP8 (gfx950): mla_online_softmax.h. Q, K, V and the weights are operands
// of matrix instructions of 32 x 32 x 64, which take as long as those of 32 x 32 x 32 in bf16.
//
// Lane l has column l % 32. Of a tile of 64 tokens it has scores 32 h + 8 i + 4 (l / 32) + 0..3, in
// values 16 h + 4 i + 0..3: as weights, a byte each, they are the other operand of V^T as they are,
// whose tokens are read in that order. Of the result it has elements d of 32 t + 8 i + 4 (l / 32) +
// 0..3.
//
// e4m3 has 448 at most and 2^-9 at least. So a column's weights of a tile are divided by a power of
// two, which leaves 2^7 .. 2^8 of the largest, and which matrix instructions multiply them by: that
// `most` is far from the scores costs nothing. The sum is of weights as they were rounded: of one
// token alone the result is its value, every bit. A column's lse is of that sum.
#pragma once

#include "attention/mla_kv_stage_fp8.h"
#include "attention/mla_online_softmax.h"
#include "attention/mla_query_gfx950.h"

#if defined(__gfx950__)

namespace rfops {

class MlaFp8Columns {
  using Slot = MlaFp8Slot;
  static constexpr u32 kSteps = kMlaKey / 64, kHalves = 2, kValueSteps = kMlaValue / 32;
  static constexpr u32 kAhead = 3;          // operands on their way from LDS
  static constexpr i32 kOne = 127;          // as e8m0
  static constexpr f32 kLargest = 8.0f;     // 2^8, of a tile's weights
  static constexpr f32 kFaintest = -64.0f;  // the largest of which weights are not lost, at `most`

 public:
  static constexpr u32 kParkedBytes = kQuery32Bytes;
  using Scores = F32x16[kHalves];
  static constexpr u32 kOwn = 1;             // columns of a lane
  static constexpr bool kMasksLate = false;  // in the second half of `accumulate_pv`
  __device__ static u32 column(u32 lane, u32) { return lane % 32; }

  __device__ void issue_q_loads(const WaveQuery& q) { scale_ = q.scale, asked_.ask(q); }
  template <class TurnFirst>
  __device__ void finish_q_loads(LdsBytes* lds, TurnFirst rotate_first_tile) {
    begin();
    U32x4 all[2 * kSteps];
    exchange_query_32<true>(all, asked_, lds);
    sched_barrier();
    rotate_first_tile();
    sched_barrier();
    negate_if(all, scale_, 0x80808080);
    scale_ = __builtin_fabsf(scale_);
    static_for<kSteps>([&](auto i) { q_[i] = concat(all[2 * i], all[2 * i + 1]); });
    const u32 g = lane_id() / 32, c = lane_id() % 32;
    key_ = Slot::value_at(c, g * 2);
    rope_ = Slot::rope_at(c, g * 2);
    const u32 l = lane_id() % 16, token = l / 8 * 8 + g * 4 + l / 2 % 4;
    value_ = Slot::value_at(token, lane_id() / 16 % 2) + l % 2 * 8;
  }

  __device__ void set_key_tile(const LdsBytes* tile) {
    key_at_ = lds_address(tile) + key_;
    rope_at_ = lds_address(tile) + rope_;
    force_vgpr(key_at_), force_vgpr(rope_at_);
  }
  template <u32 kFirst = 0, u32 kEnd = kAhead>
  __device__ void read_keys() {
    static_for<kEnd - kFirst>([&](auto i) { k_[kFirst + i] = key<kFirst + i>(); });
  }

  __device__ void begin() {
    clear_result();
    unclean_ = 0;
    static_for<32>([&](auto i) { s_[i] = -__builtin_inff(); });
    found_ = RescaleThreshold::kNothing;
    one_ = kOne;
    force_vgpr(one_);
    next_power_ = offset_ = 0.0f;
  }

  // Scores of the tile whose keys are being read; meanwhile those of the one before, which is in
  // `tile`, become weights. loads(step) may load.
  template <class Mask, class Loads>
  __device__ void scores(const LdsBytes* tile, Mask, Loads loads) {
    if (RFOPS_UNLIKELY(room_.is_over(found_))) raise();
    power_ = static_cast<i32>(next_power_);
    e8m0_ = power_ + kOne;
    force_vgpr(power_), force_vgpr(e8m0_);
    value_at_ = lds_address(tile) + value_;
    force_vgpr(value_at_);
    static_for<kSteps * kHalves>([&](auto i) {
      constexpr u32 kLeft = kSteps * kHalves - i;
      multiply<i>();
      if constexpr (kLeft > kAhead) k_[i % kAhead] = key<i + kAhead>();
      if constexpr (kLeft <= kAhead) v_[kAhead - kLeft] = value<kAhead - kLeft>();
      sched_barrier();
      loads(i);
      sched_barrier();
      exp_scores<i>();
      sched_barrier();
    });
  }

  // Values of that tile; meanwhile the scores of the next one are made ready, and the one behind
  // it, `behind`, begins to be read. Before, `all_read()`: nothing more of the values is.
  template <class Behind, class Loads, class Mask, class AllRead>
  __device__ void accumulate_pv(Behind behind, Loads loads, Mask mask, AllRead all_read) {
    static_for<kValueSteps>([&](auto t) {
      constexpr u32 kLeft = kValueSteps - 1 - t;
      asm volatile(
          "v_mfma_scale_f32_32x32x64_f8f6f4 %0, %1, %2, %0, %3, %4 op_sel:[0,0,0] op_sel_hi:[0,0,0]"
          : "+a"(o_[t])
          : "v"(v_[t % kAhead]), "v"(p_), "v"(one_), "v"(e8m0_));
      if constexpr (t + kAhead < kValueSteps) v_[t % kAhead] = value<t + kAhead>();
      sched_barrier();
      loads(t, Number<kValueSteps>{});
      sched_barrier();
      scale_and_mask<t>(mask);
      add_up<t>();
      sched_barrier();
      if constexpr (kLeft == 2) {
        set_key_tile(behind());
        all_read();
      }
      if constexpr (kLeft <= 2) read_keys<2 - kLeft, 3 - kLeft>();
      sched_barrier();
    });
  }

  __device__ void end() { end_result(o_); }

  // Tokens from `seen` on are masked; `first` is the tile's. Returns those of them, by bits, that
  // have a score which is not finite.
  __device__ static u64 mask(Scores& s, i32 first, const i32 (&seen)[kOwn]) {
    u64 found = 0;
    static_for<kHalves>([&](auto h) {
      const u32 own = mask_column<16>(s[h], first + static_cast<i32>(h * 32), seen[0]);
      found |= tokens_of_lanes<16, 32>(own, column_token) << h * 32;
    });
    return found;
  }

  // Of the lane's n-th column, over all of its lanes.
  __device__ SoftmaxStats totals(u32) const {
    return weights_.totals(reduce_lanes<64, 32>(weights_.sum, [](f32 a, f32 b) { return a + b; }));
  }
  __device__ static f32 of_result(const f32 (&one)[kOwn], u32) { return one[0]; }
  // Of 64 elements of the result, from 64 * block on, the lane's i-th four, and where they are.
  __device__ F32x4 quad(u32 block, u32 i) const {
    const F32x16& from = o_[block * 2 + i / 4];
    const u32 r = i % 4 * 4;
    return {from[r], from[r + 1], from[r + 2], from[r + 3]};
  }
  __device__ static u32 quad_at(u32 i, u32 lane) { return i * 8 + lane / 32 * 4; }

 private:
  __device__ static U32x8 concat(U32x4 low, U32x4 high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  // Step i: 64 elements along K of 32 tokens; a lane's are 32 neighbours, as q's.
  template <u32 i>
  __device__ U32x8 key() const {
    constexpr u32 kPart = i % kSteps, kHalf = i / kSteps * 32;
    constexpr bool kEnd = kPart == kSteps - 1;
    constexpr u32 kTurn = kEnd ? 0 : kPart % 4 * 64;
    constexpr u32 kMore = kEnd ? kHalf * Slot::kRopePitch : kHalf * Slot::kPitch + kPart / 4 * 256;
    const u32 at = kEnd ? rope_at_ : key_at_;
    return concat(lds_load_b128((const LdsBytes*)(at ^ kTurn) + kMore),
                  lds_load_b128((const LdsBytes*)(at ^ (kTurn ^ kVecBytes)) + kMore));
  }
  // Elements 32 t + 0..31 of all tokens, four times eight of these.
  template <u32 t>
  __device__ U32x8 value() const {
    const LdsBytes* const at = (const LdsBytes*)(value_at_ ^ t % 8 * 32) + t / 8 * 256;
    U32x2 part[4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      part[j] = __builtin_bit_cast(U32x2, __builtin_amdgcn_ds_read_tr8_b64_v2i32(
                                              (RFOPS_LDS I32x2*)(at + j * 16 * Slot::kPitch)));
    }
    return {part[0][0], part[0][1], part[1][0], part[1][1],
            part[2][0], part[2][1], part[3][0], part[3][1]};
  }

  // By assembly: the compiler would have scores where it has the result, in registers that
  // arithmetic cannot read.
  template <u32 i>
  __device__ void multiply() {
    F32x16& sum = next_[i / kSteps];
    if constexpr (i % kSteps == 0) {
      asm volatile("v_mfma_f32_32x32x64_f8f6f4 %0, %1, %2, 0"
                   : "=&v"(sum)
                   : "v"(k_[i % kAhead]), "v"(q_[i % kSteps]));
    } else {
      asm volatile("v_mfma_f32_32x32x64_f8f6f4 %0, %1, %2, %0"
                   : "+v"(sum)
                   : "v"(k_[i % kAhead]), "v"(q_[i % kSteps]));
    }
  }

  // Without tokens that are not there, a column's most of the scores; then these as powers of two
  // above `most` and the tile's own. From the third step on the matrix cores have written them all.
  template <u32 t, class Mask>
  __device__ void scale_and_mask(Mask mask) {
    if constexpr (t == 2) unclean_ |= mask(next_, Number<1>{});
    if constexpr (t >= 2 && t < 6) {
      static_for<4>([&](auto j) {
        constexpr u32 r = (t - 2) * 8 + j * 2;
        const F32x16& half = next_[r / 16];
        found_ = max_of(r == 0 ? half[0] : found_, half[r % 16], half[r % 16 + 1]);
      });
    }
    if constexpr (t == 6) {
      const f32 all = reduce_lanes<64, 32>(found_, [](f32 a, f32 b) { return max_of(a, b); });
      found_ = __builtin_fmaf(all, scale_, offset_);
    }
    if constexpr (t == 7) choose_power();
    if constexpr (t >= 8) static_for<4>([&](auto j) { lower<(t - 8) * 4 + j>(); });
  }
  __device__ void choose_power() {
    next_power_ = max_of(__builtin_ceilf(found_), kFaintest) - kLargest;
    lowered_ = offset_ - next_power_;
  }
  template <u32 r>
  __device__ void lower() {
    s_[r] = __builtin_fmaf(next_[r / 16][r % 16], scale_, lowered_);
  }
  // Step i of making scores weights: two of them, and the two before to a byte each.
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

  __device__ void raise() {
    f32 max_delta;
    const f32 rescale_factor = weights_.raise(found_, room_.is_first(), max_delta);
    offset_ = -weights_.most;
    found_ -= max_delta;
    choose_power();
    static_for<32>([&](auto r) { lower<r>(); });
    const u32 was_first = room_.leave();
    scale_result(o_, rescale_factor, was_first);
    if (RFOPS_UNLIKELY((was_first & unclean_) != 0)) clear_result();
  }
  // Matrix instructions make zeros faster than one register at a time.
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
  QueryLoads<1, kVecBytes> asked_;
  U32x8 q_[kSteps], k_[kAhead], v_[kAhead], p_;
  F32x16 o_[kValueSteps];
  F32x16 next_[kHalves];  // scores of the next tile
  f32 s_[32];             // and of this one
  f32 found_;             // the most of these
  RescaleThreshold room_;
  u32 unclean_;  // 1: turn 0 may have multiplied zeros by values that are not finite
};

}  // namespace rfops

#endif
