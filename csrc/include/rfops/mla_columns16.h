// 32 columns of a wave by matrix instructions of 16 x 16 (gfx942): mla_columns.h.
//
// Lane l = 16 g + c has columns c and 16 + c. Of a tile of 16 tokens it has scores 4 g + 0..3 of
// both: as weights they are the other operand of V^T as they are. Of V it reads tokens 4 g + 0..3
// of four elements, 64 b + 4 c + 0..3, turned round in registers: of the result it has elements d
// of 64 b + 16 g + 4 r + x, in value r of tile 4 b + x.
#pragma once

#include "rfops/mla_columns.h"

#if defined(__gfx942__)

namespace rfops {

template <bool kQueryFp8, u32>
class MlaColumns {
  static constexpr u32 kSteps = kMlaKey / 32, kValueSteps = kMlaValue / 64;
  static constexpr u32 kAhead = 2, kValuesAhead = 2;  // operands on their way from LDS
  static constexpr u32 kTiles = kMlaValue / 16;

 public:
  using Scores = F32x4[2];
  static constexpr u32 kParkedBytes = 0;
  static constexpr u32 kOwn = 2;  // columns of a lane
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
    each_number<4>([&](auto e) {
      value_[e] = MlaSlot::value_at(4 * g + e, c / 2) + c % 2 * 8;
      pin(value_[e]);
    });
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
    each_number<4>([&](auto e) {
      values_[e] = tile + value_[e];
      pin(values_[e]);
    });
    // Between two instructions of the matrix cores, which last as long as four, three others.
    each_number<kSteps * 4>([&](auto u) {
      constexpr u32 kStep = u / 4;
      multiply<u>();
      if constexpr (u % 2 == 0) loads(Number<u / 2>{});
      if constexpr (u % 4 == 3 && kStep + kAhead < kSteps) {
        k_[kStep % kAhead] = key<kStep + kAhead>();
      }
      if constexpr (kStep + kValuesAhead >= kSteps) {
        constexpr u32 kBlock = kStep + kValuesAhead - kSteps;
        v_[kBlock][u % 4] =
            *reinterpret_cast<const RFOPS_LDS U32x2*>(values_[u % 4] + kBlock * 128);
      }
      soften<u>();
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
      constexpr u32 kBlock = u / 4;
      // Two instructions must lie between an operand's last part and the matrix instruction.
      Bf16x4 next = v;
      if constexpr (u + 1 < kValueSteps * 4) next = turned<u + 1>();
      keep_order();
      add<u, 0>(v);
      settle<u>(mask);
      if constexpr (u >= 3) refill<u - 3>();
      keep_order();
      add<u, 1>(v);
      v = next;
      keep_order();
      if constexpr (u == kValueSteps * 4 - 3) {
        all_read();
        aim_keys(behind);
        read_keys();
      }
      if constexpr (u % 4 == 3) loads(Number<kBlock>{}, Number<kValueSteps>{});
    });
  }

  // The last tile's values are added: from here on the compiler may look at the result.
  __device__ void end() {
    asm volatile("s_nop 15");
    each_number<kTiles * kOwn>([&](auto t) { keep_whole(o_[t % kOwn][t / kOwn]); });
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
  // Of 64 elements of the result, from 64 * block on: act(four, n, d) of the lane's n-th column.
  template <class Act>
  __device__ void each_quad(u32 block, u32 lane, Act act) const {
    const u32 g = lane / 16;
#pragma unroll
    for (u32 n = 0; n < kOwn; ++n) {
      const F32x4* const from = o_[n] + block * 4;
#pragma unroll
      for (u32 r = 0; r < 4; ++r) {
        act(F32x4{from[0][r], from[1][r], from[2][r], from[3][r]}, n, 16 * g + 4 * r);
      }
    }
  }

 private:
  template <u32 i>
  __device__ U32x4 key() const {
    if constexpr (i < kMlaValue / 32) return lds_load_16(keys_[i % 2] + i / 2 * 128);
    return lds_load_16((const LdsBytes*)rope_key_ + i % 2 * MlaSlot::kRopeHalf);
  }
  // Of the block kValuesAhead on, as the registers of one are free: half of it, then the rest.
  template <u32 u>
  __device__ void refill() {
    constexpr u32 kBlock = u / 4, kNext = kBlock + kValuesAhead;
    if constexpr (kNext < kValueSteps && u % 4 < 2) {
      each_number<2>([&](auto e) {
        constexpr u32 kAt = u % 4 * 2 + e;
        v_[kBlock % kValuesAhead][kAt] =
            *reinterpret_cast<const RFOPS_LDS U32x2*>(values_[kAt] + kNext * 128);
      });
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
  template <u32 u, u32 n>
  __device__ void add(Bf16x4 v) {
    asm volatile("v_mfma_f32_16x16x16_bf16 %0, %1, %2, %0" : "+a"(o_[n][u]) : "v"(v), "v"(p_[n]));
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
  // there, and the lane's most of them.
  template <u32 i, class Mask>
  __device__ void settle(Mask mask) {
    if constexpr (i >= 2 && i < 10) {
      constexpr u32 n = (i - 2) / 4, r = (i - 2) % 4;
      s_[n][r] = __builtin_fmaf(next_[n][r], scale_, -weights_[n].most);
    }
    if constexpr (i == 10) mask(s_);
    if constexpr (i == 11) found_ = max_of(s_[0][0], s_[0][1], s_[0][2]);
    if constexpr (i == 12) found_ = max_of(found_, s_[0][3], s_[1][0]);
    if constexpr (i == 13) found_ = max_of(found_, s_[1][1], s_[1][2]);
    if constexpr (i == 14) found_ = max_of(found_, found_, s_[1][3]);
  }

  // Step u of making scores weights. They are rounded half up: none is negative.
  template <u32 u>
  __device__ void soften() {
    constexpr u32 kEach = 4, i = u / kEach;  // a value's turn
    if constexpr (i < 8 && u % kEach == 1) {
      f32 weight = __builtin_amdgcn_exp2f(s_[i / 4][i % 4]);
      pin(weight);  // here, not all at the beginning
      s_[i / 4][i % 4] = weight;
    }
    if constexpr (i >= 1 && i < 9 && u % kEach == 3) {
      constexpr u32 kAt = i - 1;
      weights_[kAt / 4].sum += s_[kAt / 4][kAt % 4];
      pin(weights_[kAt / 4].sum);
    }
    if constexpr (i >= 9 && i < 13 && u % kEach == 1) {
      constexpr u32 kAt = i - 9, n = kAt / 2, kPair = kAt % 2;
      const f32 low = s_[n][kPair * 2], high = s_[n][kPair * 2 + 1];
      p_[n][kPair] = upper_halves(__builtin_bit_cast(u32, low) + 0x8000,
                                  __builtin_bit_cast(u32, high) + 0x8000);
      pin(p_[n]);
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
    each_number<kOwn * kTiles>([&](auto t) {
      F32x4 four = o_[t % kOwn][t / kOwn];
      keep_whole(four);
      f32 own[4] = {four[0], four[1], four[2], four[3]};
      scale_accumulators(own, decay[t % kOwn]);
      four = F32x4{own[0], own[1], own[2], own[3]};
      keep_whole(four);
      o_[t % kOwn][t / kOwn] = four;
    });
  }
  // Else the compiler has a register by itself for each of the four.
  __device__ static void keep_whole(F32x4& four) { asm volatile("" : "+a"(four)); }

  f32 scale_;
  MlaWeights weights_[kOwn];
  u32 key_, rope_, value_[4], rope_key_;
  const LdsBytes *keys_[2], *values_[4];
  Bf16x8 q_[kOwn][kSteps];
  U32x4 k_[kAhead];
  U32x2 v_[kValuesAhead][4];
  F32x4 o_[kOwn][kTiles];
  F32x4 next_[kOwn];  // scores of the next tile
  Scores s_;          // and of this one
  f32 found_;         // the lane's most of these
  MlaRoom room_;
  U32x2 p_[kOwn];
};

}  // namespace rfops

#endif
