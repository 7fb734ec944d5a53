// 32 columns of a wave by the matrix instructions of gfx942: mla_columns.h.
//
// Scores are made 16 x 16: of a tile of 16 tokens lane l = 16 g + c has 4 g + 0..3 of columns c and
// 16 + c. The result is made 32 x 32, 8 tokens at a time: half as many instructions, with room for
// others behind them. So lane l wants weights of column l % 32 alone: tokens 8 (l / 32) + 0..3, and
// then + 4..7, of which it has one half and the lane beside it, l ^ 16, the other; they exchange.
// Of V it reads these tokens of four elements, 128 b + 4 (l % 32) + 0..3, turned round in
// registers: of the result it has elements 128 b + 32 i + 16 (l / 32) + 4 r + x, in value 4 i + r
// of tile 4 b + x.
#pragma once

#include "rfops/mla_columns.h"

#if defined(__gfx942__)

namespace rfops {

template <bool kQueryFp8, u32>
class MlaColumns {
  static constexpr u32 kSteps = kMlaKey / 32, kValueSteps = kMlaValue / 64;
  static constexpr u32 kAhead = 2, kValuesAhead = 2;  // operands on their way from LDS
  static constexpr u32 kTiles = kMlaValue / 32;
  using F32x16 = f32 __attribute__((ext_vector_type(16)));

 public:
  using Scores = F32x4[2];
  static constexpr u32 kParkedBytes = 0;
  static constexpr u32 kOwn = 2;  // columns of a lane's scores
  __device__ static u32 column(u32 lane, u32 n) { return n * 16 + lane % 16; }

  __device__ void load_query(const void* q, const u64 (&rows)[kOwn], f32 scale, LdsBytes*) {
    scale_ = __builtin_fabsf(scale);
    const u32 g = lane_in_wave() / 16, c = lane_in_wave() % 16;
    each_number<kSteps * kOwn>([&](auto i) {
      const u64 at = rows[i % kOwn] * kMlaKey + i / kOwn * 32 + g * 8;
      q_[i % kOwn][i / kOwn] = query_at<kQueryFp8>(q, at, scale < 0.0f);
    });
    each_number<kSteps * kOwn>([&](auto i) { pin(q_[i % kOwn][i / kOwn]); });
    key_ = MlaSlot::value_at(c, g);
    rope_ = MlaSlot::rope_at(c, g);
    const u32 d = lane_in_wave() % 32;
    value_ = MlaSlot::value_at(g / 2 * 8, d / 2) + d % 2 * 8;
  }

  __device__ void aim_keys(const LdsBytes* tile) {
    keys_[0] = tile + key_;
    keys_[1] = tile + (key_ ^ 64);
    rope_key_ = lds_address(tile) + rope_;
    pin(keys_[0]), pin(keys_[1]), pin(rope_key_);
  }
  __device__ void read_keys() {
    each_number<kAhead>([&](auto i) { k_[i] = key<i>(); });
  }

  // Before the first turn. The result is whatever registers hold, until `raise` clears it: to make
  // zeros here costs the compiler a copy of all of it.
  __device__ void begin() {
#pragma unroll
    for (u32 n = 0; n < kOwn; ++n) {
      s_[n] = -__builtin_inff();
    }
    found_ = MlaRoom::kNothing;
  }

  // Scores of the tile whose keys are being read; meanwhile those of the one before, which is in
  // `tile`, become weights. loads(step, steps) may load.
  template <class Loads>
  __device__ void scores(const LdsBytes* tile, Loads loads) {
    if (RFOPS_SELDOM(room_.is_over(found_))) raise();
    // Between two instructions of the matrix cores, which last as long as four, three others.
    each_number<kSteps * 4>([&](auto u) {
      constexpr u32 kStep = u / 4, kAhead4 = kValuesAhead * 4;
      multiply<u>();
      keep_order();
      soften<u>();
      keep_order();
      if constexpr (u % 4 != 3) loads(Number<u / 4 * 3 + u % 4>{});
      if constexpr (u % 4 == 3 && kStep + kAhead < kSteps) {
        k_[kStep % kAhead] = key<kStep + kAhead>();
      }
      if constexpr (u + kAhead4 * 2 >= kSteps * 4 && u + kAhead4 < kSteps * 4) {
        aim_value<u + kAhead4 * 2 - kSteps * 4>(tile);
      }
      if constexpr (u + kAhead4 >= kSteps * 4) read_value<u + kAhead4 - kSteps * 4>();
      keep_order();
    });
  }

  // Values of that tile; meanwhile the scores of the next one are made ready, and the one behind
  // it, `behind`, begins to be read. Before, `all_read()`: nothing more of the values is.
  template <class Loads, class Mask, class AllRead>
  __device__ void add_values(const LdsBytes* behind, Loads loads, Mask mask, AllRead all_read) {
    Bf16x4 v = turned<0>();
    asm volatile("s_nop 1" : "+v"(v));
    each_number<kValueSteps * 4>([&](auto u) {
      constexpr u32 kLeft = kValueSteps * 4 - 1 - u;
      // Two instructions must lie between an operand's last part and the matrix instruction.
      Bf16x4 next = v;
      if constexpr (u + 1 < kValueSteps * 4) next = turned<u + 1>();
      keep_order();
      add<u>(v);
      settle<u>(mask);
      if constexpr (u >= 3 && (u - 3) % 4 < 2) refill<u - 3>();
      loads(u, Number<kValueSteps * 4>{});
      v = next;
      keep_order();
      if constexpr (kLeft == 3) aim_keys(behind);
      if constexpr (kLeft == 2) {
        all_read();
        read_keys();
      }
    });
  }

  // The last tile's values are added: from here on the compiler may look at the result.
  __device__ void end() {
    asm volatile("s_nop 15\n\ts_nop 3");
    each_number<kTiles>([&](auto t) { asm volatile("" : "+a"(o_[t])); });
  }

  // Tokens from `seen` on are not there; `first` is the tile's.
  __device__ static void mask(Scores& s, i32 first, const i32 (&seen)[kOwn]) {
    const i32 token = first + static_cast<i32>(lane_in_wave() / 16 * 4);
#pragma unroll
    for (u32 n = 0; n < kOwn; ++n) {
#pragma unroll
      for (i32 r = 0; r < 4; ++r) s[n][r] = token + r < seen[n] ? s[n][r] : -__builtin_inff();
    }
  }

  // Of the lane's n-th column, over all of its lanes.
  __device__ MlaTotals totals(u32 n) const {
    const auto add = [](f32 a, f32 b) { return a + b; };
    return weights_[n].totals(reduce_lanes<64, 16>(weights_[n].sum, add));
  }
  // Of two values for a lane's columns, the one for its column of the result.
  __device__ static f32 of_result(const f32 (&both)[kOwn], u32 lane) {
    f32 low = both[0], high = both[1];
    pin(low), pin(high);  // else the compiler has them in LDS
    return lane & 16 ? high : low;
  }
  // Of 64 elements of the result, from 64 * block on: act(four, d).
  template <class Act>
  __device__ void each_quad(u32 block, u32 lane, Act act) const {
    const F32x16* const from = o_ + block / 2 * 4;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      const u32 at = block % 2 * 8 + i;
      act(F32x4{from[0][at], from[1][at], from[2][at], from[3][at]},
          i / 4 * 32 + lane / 32 * 16 + i % 4 * 4);
    }
  }

 private:
  template <u32 i>
  __device__ U32x4 key() const {
    if constexpr (i < kMlaValue / 32) return lds_load_16(keys_[i % 2] + i / 2 * 128);
    return lds_load_16((const LdsBytes*)rope_key_ + i % 2 * MlaSlot::kRopeHalf);
  }
  // Block b of values is elements 128 (b / 2) + 0..127 of four tokens of each half of the wave, of
  // b % 2 of these. Rows that differ in their last bits differ in their swizzle.
  template <u32 i>
  __device__ void aim_value(const LdsBytes* tile) {
    if constexpr (i == 0) value_base_ = lds_address(tile) + value_;
    values_[i] = (const LdsBytes*)(value_base_ ^ i * kVecBytes);
    pin(values_[i]);
  }
  template <u32 i>
  __device__ void read_value() {
    constexpr u32 kBlock = i / 4, kRow = kBlock % 2 * 4 + i % 4;
    v_[kBlock % kValuesAhead][i % 4] = *reinterpret_cast<const RFOPS_LDS U32x2*>(
        values_[kRow] + kRow * MlaSlot::kPitch + kBlock / 2 * 256);
  }
  // Of the block kValuesAhead on, as the registers of one are free: half of it, then the rest.
  template <u32 u>
  __device__ void refill() {
    constexpr u32 kNext = u / 4 + kValuesAhead;
    if constexpr (kNext < kValueSteps) {
      read_value<kNext * 4 + u % 4 * 2>();
      read_value<kNext * 4 + u % 4 * 2 + 1>();
    }
  }
  // Element u % 4 of four, of four tokens.
  template <u32 u>
  __device__ Bf16x4 turned() const {
    constexpr u32 kHalves = u % 2 ? 0x07060302 : 0x05040100, kWord = u % 4 / 2;
    const U32x2(&v)[4] = v_[u / 4 % kValuesAhead];
    return __builtin_bit_cast(Bf16x4,
                              U32x2{__builtin_amdgcn_perm(v[1][kWord], v[0][kWord], kHalves),
                                    __builtin_amdgcn_perm(v[3][kWord], v[2][kWord], kHalves)});
  }
  template <u32 u>
  __device__ void add(Bf16x4 v) {
    constexpr u32 kBlock = u / 4;
    asm volatile("v_mfma_f32_32x32x8_bf16 %0, %1, %2, %0"
                 : "+a"(o_[kBlock / 2 * 4 + u % 4])
                 : "v"(v), "v"(p_[kBlock % 2]));
  }

  // By assembly: the compiler would have scores where it has the result, in registers that
  // arithmetic cannot read.
  template <u32 u>
  __device__ void multiply() {
    constexpr u32 kStep = u / 4, kColumn = u % 2;
    const U32x4 k = k_[kStep % kAhead];
    const Bf16x8 q = q_[kColumn][kStep];
    const U32x2 half = u % 4 < 2 ? U32x2{k[0], k[1]} : U32x2{k[2], k[3]};
    const Bf16x4 part = u % 4 < 2 ? low_half(q) : high_half(q);
    if constexpr (u < 2) {
      asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, 0"
                   : "=&v"(next_[kColumn])
                   : "v"(half), "v"(part));
    } else {
      asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, %0"
                   : "+v"(next_[kColumn])
                   : "v"(half), "v"(part));
    }
  }

  // Step i of 4 * kValueSteps: scores as powers of two, above `most`, without tokens that are not
  // there, and the lane's most of them. Where values are read, not where keys are turned.
  template <u32 i, class Mask>
  __device__ void settle(Mask mask) {
    constexpr u32 kTurn = (i + 1) / 4 * 2 + (i + 1) % 4;  // of steps 3, 4, 7, 8, 11 ...
    if constexpr ((i + 1) % 4 < 2 && kTurn >= 2 && kTurn < 6) {
      constexpr u32 n = (kTurn - 2) / 2, r = kTurn % 2 * 2;
      s_[n][r] = __builtin_fmaf(next_[n][r], scale_, -weights_[n].most);
      s_[n][r + 1] = __builtin_fmaf(next_[n][r + 1], scale_, -weights_[n].most);
    }
    if constexpr (i == 9) mask(s_);
    if constexpr (i == 11) found_ = max_of(s_[0][0], s_[0][1], s_[0][2]);
    if constexpr (i == 12) found_ = max_of(found_, s_[0][3], s_[1][0]);
    if constexpr (i == 15) found_ = max_of(found_, s_[1][1], s_[1][2]);
    if constexpr (i == 16) found_ = max_of(found_, found_, s_[1][3]);
  }

  // Step u of making scores weights. They are rounded half up: none is negative. An exponential
  // keeps arithmetic, matrices' too, from a wave's next three instructions: those are reads.
  template <u32 u>
  __device__ void soften() {
    constexpr u32 i = u / 4;
    if constexpr (i < 8 && u % 4 == 3) {
      f32 weight = __builtin_amdgcn_exp2f(s_[i / 4][i % 4]);
      pin(weight);  // here, not all at the beginning
      s_[i / 4][i % 4] = weight;
    }
    if constexpr (i >= 1 && i < 9 && u % 4 == 1) {
      constexpr u32 kAt = i - 1;
      weights_[kAt / 4].sum += s_[kAt / 4][kAt % 4];
      pin(weights_[kAt / 4].sum);
    }
    if constexpr (i >= 9 && i < 13 && u % 4 == 1) {
      constexpr u32 kAt = i - 9, n = kAt / 2, kPair = kAt % 2;
      f32 low = s_[n][kPair * 2], high = s_[n][kPair * 2 + 1];
      pin(low), pin(high);  // here
      p_[n][kPair] = upper_halves(__builtin_bit_cast(u32, low) + 0x8000,
                                  __builtin_bit_cast(u32, high) + 0x8000);
      pin(p_[n]);
    }
    // Lanes exchange weights of columns that are not theirs in the result.
    const bool is_second = (lane_in_wave() & 16) != 0;
    if constexpr (u == 50) {
      other_ = is_second ? p_[0] : p_[1];
      pin(other_);
    }
    if constexpr (u == 53) {
      constexpr int kXor16 = 16 << 10 | 31;
      other_ = {static_cast<u32>(__builtin_amdgcn_ds_swizzle(static_cast<int>(other_[0]), kXor16)),
                static_cast<u32>(__builtin_amdgcn_ds_swizzle(static_cast<int>(other_[1]), kXor16))};
    }
    if constexpr (u == 66) {
      p_[0] = is_second ? other_ : p_[0];
      pin(p_[0]);
    }
    if constexpr (u == 69) {
      p_[1] = is_second ? p_[1] : other_;
      pin(p_[1]);
    }
  }

  __device__ void raise() {
    f32 decay[kOwn];
#pragma unroll
    for (u32 n = 0; n < kOwn; ++n) {
      f32 rise, found = max_of(max_of(s_[n][0], s_[n][1], s_[n][2]), s_[n][3]);
      found = reduce_lanes<64, 16>(found, [](f32 a, f32 b) { return max_of(a, b); });
      decay[n] = weights_[n].raise(found, room_.is_first(), rise);
      s_[n] -= rise;
    }
    room_.leave();
    const f32 own = of_result(decay, lane_in_wave());
    each_number<kTiles * 4>([&](auto i) {
      F32x16& tile = o_[i / 4];
      constexpr u32 kFirst = i % 4 * 4;
      f32 four[4] = {tile[kFirst], tile[kFirst + 1], tile[kFirst + 2], tile[kFirst + 3]};
      scale_accumulators(four, own);
      tile[kFirst] = four[0], tile[kFirst + 1] = four[1];
      tile[kFirst + 2] = four[2], tile[kFirst + 3] = four[3];
    });
  }

  f32 scale_;
  MlaWeights weights_[kOwn];
  u32 key_, rope_, value_, rope_key_, value_base_;
  const LdsBytes *keys_[2], *values_[8];
  Bf16x8 q_[kOwn][kSteps];
  U32x4 k_[kAhead];
  U32x2 v_[kValuesAhead][4];
  F32x16 o_[kTiles];
  F32x4 next_[kOwn];  // scores of the next tile
  Scores s_;          // and of this one
  f32 found_;         // the lane's most of these
  MlaRoom room_;
  U32x2 p_[2], other_;  // weights of the two columns, then of tokens of the result's
};

}  // namespace rfops

#endif
