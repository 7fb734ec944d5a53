// Attention of 32 query rows per wave with MFMAs of 32x32x16 (gfx950): mla_online_softmax.h.
//
// Lane l has row l % 32. Of a tile of 32 tokens it has the scores of tokens 8 i + 4 (l / 32) + 0..3
// in registers 4 i + 0..3; as P they are the operand for V^T, whose tokens are read in that order.
// Its outputs are columns 32 t + 8 i + 4 (l / 32) + 0..3.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_online_softmax.h"
#include "attention/mla_query_gfx950.h"

#if defined(__gfx950__)

namespace rfops {

// Every kParkInterval-th operand of Q is kept in LDS, because registers are too few.
template <bool kQueryFp8, u32 kParkInterval>
class WaveAttention : public RowsOf32x32 {
  static constexpr u32 kSteps = kMlaKey / 16, kValueSteps = kMlaValue / 16;
  static constexpr u32 kPrefetch = 4, kValuePrefetch = 4;  // operands on their way from LDS
  // Step of accumulate_pv() from which the scores are complete, and the steps that scale and mask
  // them.
  static constexpr u32 kSettle = 4, kSettleSteps = 25;
  static constexpr u32 kTiles = kMlaValue / 32;
  static constexpr u32 kParked = kSteps / kParkInterval;
  static constexpr bool is_parked(u32 i) { return i % kParkInterval == kParkInterval - 1; }

 public:
  static constexpr u32 kParkedBytes = kParked * kWaveSize * kVecBytes;
  using Scores = f32[16];
  static constexpr bool kMasksLate = true;  // in the second half of `accumulate_pv`
  static_assert(kParkedBytes >= kQuery32Bytes);

  __device__ void issue_q_loads(const WaveQuery& q) { scale_ = q.scale, q_loads_.issue(q); }
  // `parked` is this wave's LDS for operands of Q. rotate_first_tile() rotates the keys of the
  // first tile, whose loads were issued after those of Q.
  template <class RotateFirst>
  __device__ void finish_q_loads(LdsBytes* parked, RotateFirst rotate_first_tile) {
    begin();
    U32x4 q_chunks[kSteps];
    exchange_query_32<false>(q_chunks, q_loads_, parked);
    sched_barrier();
    rotate_first_tile();
    sched_barrier();
    negate_if(q_chunks, scale_, 0x80008000);
    scale_ = __builtin_fabsf(scale_);
    parked_ = parked + lane_id() * kVecBytes;
    static_for<kSteps>([&](auto i) {
      if constexpr (is_parked(i)) {
        *reinterpret_cast<RFOPS_LDS U32x4*>(parked_ + i / kParkInterval * kWaveSize * kVecBytes) =
            q_chunks[i];
      } else {
        q_[i - i / kParkInterval] = __builtin_bit_cast(Bf16x8, q_chunks[i]);
      }
    });
    const u32 g = lane_id() / 32, c = lane_id() % 32;
    key_ = KvStageLayout::value_offset(c, g);
    rope_ = KvStageLayout::rope_offset(c, g);
    const u32 token = g * 4 + c % 16 / 4, chunk = c / 16 * 2 + c % 4 / 2;
    value_ = KvStageLayout::value_offset(token, chunk) + c % 2 * 8;
    value_8_ = KvStageLayout::value_offset(token + 8, chunk) + c % 2 * 8;
    force_vgpr(key_), force_vgpr(rope_), force_vgpr(value_), force_vgpr(value_8_);
  }

  // Computed once and forced into registers, because the compiler would keep one address per read.
  __device__ void set_key_tile(const LdsBytes* tile) {
    keys_[0] = tile + key_;
    keys_[1] = tile + (key_ ^ 32);
    rope_key_ = lds_address(tile) + rope_;
    force_vgpr(keys_[0]), force_vgpr(keys_[1]), force_vgpr(rope_key_);
  }
  // Starts reading the keys of a tile.
  template <u32 kBegin = 0, u32 kEnd = kPrefetch>
  __device__ void read_keys() {
    static_for<kEnd - kBegin>([&](auto i) { k_[kBegin + i] = key<kBegin + i>(); });
  }

  __device__ void begin() {
    clear_result();
    unclean_ = 0;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) s_[i] = -__builtin_inff();
    tile_max_ = RescaleThreshold::kNothing;
  }

  // Computes the scores of the tile whose keys are being read; meanwhile the scores of the previous
  // tile, in `tile`, become P. loads(step) issues loads.
  template <class Mask, class Loads>
  __device__ void scores(const LdsBytes* tile, Mask, Loads loads) {
    if (RFOPS_UNLIKELY(threshold_.is_over(tile_max_))) update_max();
    static_for<kSteps>([&](auto i) {
      mfma_qk<i>();
      if constexpr (i % 2 == 1) add_weight<i / 2>();
      if constexpr (i == 6 || i == 8 || i == 10) aim_end<i / 2 - 3>();
      if constexpr (i < 3) loads(Number<i>{});
      if constexpr (i % 2 == 1) loads(Number<3 + i / 2>{});
      if constexpr (i % 2 == 0 && i >= 4) loads(Number<kFill + 3 + i / 2>{});
      if constexpr (i == 3) {
        values_[0] = tile + value_, values_[1] = tile + value_8_;
        force_vgpr(values_[0]), force_vgpr(values_[1]);
      }
      if constexpr (i % 2 == 0) exp_scores<i / 2>();
      sched_barrier();
      if constexpr (i % kParkInterval == 0) read_parked<i / kParkInterval>();
      if constexpr (i + kValuePrefetch >= kSteps) {
        constexpr u32 kValue = i + kValuePrefetch - kSteps;
        v_[kValue] = value<kValue>();
      }
      sched_barrier();
    });
  }

  // Accumulates P V of that tile; meanwhile the next tile's scores are scaled and masked.
  // all_read() is called after the last read of V, then reads of the keys of next_tile() begin.
  template <class NextTile, class Loads, class Mask, class AllRead>
  __device__ void accumulate_pv(NextTile next_tile, Loads loads, Mask mask, AllRead all_read) {
    static_for<kValueSteps>([&](auto u) {
      constexpr u32 kHalf = half_of(u) * 4, kNext = u + kValuePrefetch,
                    kStepsLeft = kValueSteps - 1 - u;
      const U32x4 p = {p_[kHalf], p_[kHalf + 1], p_[kHalf + 2], p_[kHalf + 3]};
      asm volatile("v_mfma_f32_32x32x16_bf16 %0, %1, %2, %0"
                   : "+a"(o_[tile_of(u)])
                   : "v"(v_[u % kValuePrefetch]), "v"(p));
      if constexpr (kNext < kValueSteps) v_[u % kValuePrefetch] = value<kNext>();
      loads(u, Number<kValueSteps>{});
      if constexpr (u >= kSettle) {
        static_for<settled_before(u + 1) - settled_before(u)>(
            [&](auto i) { scale_and_mask<settled_before(u) + i>(mask); });
      }
      if constexpr (kStepsLeft == 3) set_key_tile(next_tile());
      sched_barrier();
      if constexpr (kStepsLeft == 2) {
        all_read();
        read_keys<0, 1>();
      }
      if constexpr (kStepsLeft == 1) read_keys<1, 3>();
      if constexpr (kStepsLeft == 0) read_keys<3, kPrefetch>();
      sched_barrier();
    });
  }

  __device__ void finish() { finish_output(o_); }

  // Masks tokens from `kv_end` on; `token_begin` is the tile's. Returns a bit per masked token that
  // has a score which is not finite.
  __device__ static u64 mask(Scores& s, i32 token_begin, const i32 (&kv_end)[kQRowsPerLane]) {
    return tokens_of_lanes<16, 32>(mask_column<16>(s, token_begin, kv_end[0]), column_token);
  }

  // Returns the statistics of the lane's n-th row, over all its lanes.
  __device__ SoftmaxStats totals(u32) const {
    return weights_.totals(reduce_lanes<64, 32>(weights_.sum, [](f32 a, f32 b) { return a + b; }));
  }
  // Returns the lane's i-th quad of 64 output columns from 64 * block on.
  __device__ F32x4 quad(u32 block, u32 i) const { return quad_of(o_[block * 2 + i / 4], i); }

 private:
  static constexpr u32 tile_of(u32 u) { return u / 4 * 2 + u % 2; }
  static constexpr u32 half_of(u32 u) { return u / 2 % 2; }

  template <u32 i>
  __device__ U32x4 key() const {
    if constexpr (i < kMlaValue / 16) return lds_load_b128(keys_[i % 2] + i / 2 * 64);
    if constexpr (i % 4 == 0) return lds_load_b128((const LdsBytes*)rope_key_);
    return lds_load_b128((const LdsBytes*)ends_[i % 4 - 1]);
  }
  template <u32 u>
  __device__ U32x4 value() const {
    const auto read = [](const LdsBytes* lane) {
      return lds_read_transposed<false>(lane + tile_of(u) * 64 +
                                        half_of(u) * 16 * KvStageLayout::kPitch);
    };
    const U32x2 low_tokens = read(values_[0]), high_tokens = read(values_[1]);
    return {low_tokens[0], low_tokens[1], high_tokens[0], high_tokens[1]};
  }

  // Inline assembly, because the compiler would keep the scores in AGPRs, which arithmetic cannot
  // read.
  template <u32 i>
  __device__ void mfma_qk() {
    const U32x4 k = k_[i % kPrefetch];
    Bf16x8 q;
    if constexpr (is_parked(i)) {
      q = read_;
    } else {
      q = q_[i - i / kParkInterval];
    }
    if constexpr (i == 0) {
      asm volatile("v_mfma_f32_32x32x16_bf16 %0, %1, %2, 0" : "=&v"(next_) : "v"(k), "v"(q));
    } else {
      asm volatile("v_mfma_f32_32x32x16_bf16 %0, %1, %2, %0" : "+v"(next_) : "v"(k), "v"(q));
    }
    if constexpr (i + kPrefetch < kSteps) k_[i % kPrefetch] = key<i + kPrefetch>();
  }
  template <u32 i>
  __device__ void read_parked() {
    read_ = *reinterpret_cast<const RFOPS_LDS Bf16x8*>(parked_ + i * kWaveSize * kVecBytes);
  }

  // Step i of scaling scores to powers of two relative to row_max, masking them, and finding the
  // lane's maximum.
  template <u32 i, class Mask>
  __device__ void scale_and_mask(Mask mask) {
    if constexpr (i < 16) s_[i] = __builtin_fmaf(next_[i], scale_, -weights_.row_max);
    if constexpr (i == 16) unclean_ |= mask(s_, Number<1>{});
    if constexpr (i > 16 && i < kSettleSteps) {
      constexpr u32 kPair = i - 17;
      tile_max_ = kPair == 0 ? s_[0] : tile_max_;
      tile_max_ = max_of(tile_max_, s_[2 * kPair], s_[2 * kPair + 1]);
    }
  }
  // Returns how many such steps come before step u: one and two in turn, because loads issue two
  // instructions and one in turn.
  static constexpr u32 settled_before(u32 u) {
    const u32 steps = (u - kSettle) / 2 * 3 + u % 2;
    return steps < kSettleSteps ? steps : kSettleSteps;
  }

  template <u32 i>
  __device__ void add_weight() {
    if constexpr (i < 16) {
      weights_.sum += s_[i];
      force_vgpr(weights_.sum);  // here, not all at the end
    }
  }
  // Sets the address of a key end two steps before the read, because results have latency.
  template <u32 i>
  __device__ void aim_end() {
    ends_[i] = rope_key_ ^ (i + 1) * 32;
    force_vgpr(ends_[i]);
  }

  // Step i of computing P: an exponential takes as long as four other instructions.
  template <u32 i>
  __device__ void exp_scores() {
    if constexpr (i > 0 && i <= 16 && i % 2 == 0) {
      u32& pair = p_[i / 2 - 1];
      pair =
          __builtin_bit_cast(u32, __builtin_convertvector((F32x2{s_[i - 2], s_[i - 1]}), Bf16x2));
      force_vgpr(pair);
    }
    sched_barrier();
    if constexpr (i < 16) {
      s_[i] = __builtin_amdgcn_exp2f(s_[i]);
      force_vgpr(s_[i]);
    }
  }

  __device__ void update_max() {
    f32 max_delta;
    const f32 column_max =
        reduce_lanes<64, 32>(tile_max_, [](f32 a, f32 b) { return max_of(a, b); });
    const f32 rescale_factor = weights_.update_max(column_max, threshold_.is_first(), max_delta);
#pragma unroll
    for (u32 i = 0; i < 16; ++i) s_[i] -= max_delta;
    const u32 was_first = threshold_.leave();
    scale_output(o_, rescale_factor, was_first);
    if (RFOPS_UNLIKELY((was_first & unclean_) != 0)) clear_result();
  }
  // An MFMA zeroes accumulators faster than one register at a time.
  __device__ void clear_result() {
    static_for<kTiles>([&](auto t) {
      const U32x4 zero = {};
      asm volatile("s_nop 1\n\tv_mfma_f32_32x32x16_bf16 %0, %1, %1, 0" : "+a"(o_[t]) : "v"(zero));
    });
  }

  f32 scale_;
  OnlineSoftmax weights_;
  u32 key_, rope_, value_, value_8_, rope_key_, ends_[3];
  const LdsBytes *keys_[2], *values_[2];
  LdsBytes* parked_;
  Bf16x8 q_[kSteps - kParked], read_;
  QueryLoads<kQueryFp8 ? 1 : 2, kQueryFp8 ? 8 : 16> q_loads_;
  U32x4 k_[kPrefetch], v_[kValuePrefetch];
  F32x16 o_[kTiles];
  F32x16 next_;   // scores of the next tile
  Scores s_;      // and of this one
  f32 tile_max_;  // the lane's most of these
  RescaleThreshold threshold_;
  u32 unclean_;  // 1: iteration 0 may have multiplied zeros by values that are not finite
  u32 p_[8];
};

}  // namespace rfops

#endif
