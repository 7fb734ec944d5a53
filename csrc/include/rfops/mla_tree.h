// A sequence's parts of 16 columns (mla_parts.h), added up four at a time as they come.
//
// A workgroup leaves its part: of each sum the upper 24 bits, in the order in which its lanes have
// them, and each column's totals. Each wave goes its own way with its quarter of the sums. Of four
// neighbours the last to come, which has its own still, asks for the others at once and adds all
// up, in their order, in registers; then it leaves that, as one of the next four, and so on; the
// last of all has the result. Four, as it is one compute unit that reads them: parts of 16
// workgroups are added up sooner in two steps of four than in one.
#pragma once

#include "rfops/mla_meet.h"

namespace rfops {

// What a lane has of a part: a column's totals, and eight quads of its sums.
struct MlaNode {
  MlaTotals all;
  F32x4 quads[8];

  // To what the others will read.
  __device__ void narrow() {
#pragma unroll
    for (F32x4& four : quads) {
      four = __builtin_bit_cast(F32x4, __builtin_bit_cast(U32x4, four) & 0xffffff00u);
    }
  }
};

struct MlaTree {
  static constexpr u32 kFan = 4, kLevels = 6;  // 4096 workers
  static constexpr u32 kWords = 3;             // of a quad
  f32* parts;   // [slots, 4 waves, 8, 64 lanes, kWords], then [slots, 4 waves, kMlaColumns, 2]
  u32* counts;  // [kLevels, slots, 4 waves], zeros
  u32 slots;

  // What the first count of part `own` is. Asked for early it is near when it is counted up, which
  // then takes 220 to 1,020 clk, and 850 to 1,680 else.
  template <class SlotOf>
  __device__ u32 ask(u32 own, SlotOf slot_of) const {
    return *counter(0, slot_of(own / kFan * kFan));
  }

  // Leaves this workgroup's part, which is in `slot_of(own)` of `count` that make up a sequence.
  // Whether it has all of it then, in `node`, with its sums times `factor(totals)`.
  template <class SlotOf, class Factor>
  __device__ bool climb(MlaNode& node, u32 own, u32 count, SlotOf slot_of, Factor factor) const {
    node.narrow();
    for (u32 level = 0, stride = 1;; ++level, stride *= kFan) {
      own = as_scalar(own), count = as_scalar(count);  // which the compiler cannot know
      const u32 first = own / kFan * kFan, here = count - first < kFan ? count - first : kFan;
      const auto child = [&](u32 i) { return slot_of((first + i) * stride); };
      if (here > 1) {
        store(child(own - first), node);
        if (!is_last_wave_of(counter(level, child(0)), here)) return false;
        const bool is_root = count <= kFan;
        add(node, own - first, here, child,
            [&](const MlaTotals& all) { return is_root ? factor(all) : 1.0f; });
        if (is_root) return true;
        node.narrow();
      }
      own /= kFan;
      count = (count + kFan - 1) / kFan;
    }
  }

 private:
  using Words = u32[8][kWords];
  static constexpr u32 kWaves = kMlaWaves;

  // Of this wave.
  __device__ u32* counter(u32 level, u32 slot) const {
    return counts + ((level * slots + slot) * kWaves + wave_in_group());
  }
  __device__ u32* part(u32 slot) const {
    const u32 at = (wave_in_group() * 8 * kWaveSize + lane_in_wave()) * kWords;
    return reinterpret_cast<u32*>(parts) +
           (u64{slot} * (kMlaColumns * kMlaValue / 4 * kWords) + at);
  }
  __device__ MlaTotals* totals(u32 slot) const {
    const u64 behind = u64{slots} * (kMlaColumns * kMlaValue / 4 * kWords);
    return reinterpret_cast<MlaTotals*>(parts + behind) +
           (slot * kWaves + wave_in_group()) * kMlaColumns;
  }

  // Of four sums three words.
  __device__ void store(u32 slot, const MlaNode& node) const {
    u32* const to = part(slot);
    u32 low = 0x05030201, middle = 0x06050302, high = 0x07060503;
    pin(low), pin(middle), pin(high);  // scalar registers are few
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      const U32x4 four = __builtin_bit_cast(U32x4, node.quads[i]);
      u32* const words = to + i * kWaveSize * kWords;
      words[0] = __builtin_amdgcn_perm(four[1], four[0], low);
      words[1] = __builtin_amdgcn_perm(four[2], four[1], middle);
      words[2] = __builtin_amdgcn_perm(four[3], four[2], high);
    }
    if (lane_in_wave() < kMlaColumns) totals(slot)[lane_in_wave()] = node.all;
  }
  __device__ static F32x4 widened(const u32 (&words)[kWords], u32 second, u32 third) {
    return __builtin_bit_cast(
        F32x4, U32x4{words[0] << 8, __builtin_amdgcn_perm(words[1], words[0], second),
                     __builtin_amdgcn_perm(words[2], words[1], third), words[2] & ~0xffu});
  }

  // All of them: `node` is number `kept` of `count`.
  template <class Child, class Factor>
  __device__ void add(MlaNode& node, u32 kept, u32 count, Child child, Factor factor) const {
    MlaTotals all[kFan];
    Words words[kFan];
#pragma unroll
    for (u32 i = 0; i < kFan; ++i) {
      all[i] = totals(child(i < count ? i : 0))[lane_in_wave() % kMlaColumns];
      if (i >= count) all[i] = {kLowest, 0.0f};
    }
#pragma unroll
    for (u32 i = 0; i < kFan; ++i) {
      if (i >= count || i == kept) continue;
      const u32* const from = part(child(i));
#pragma unroll
      for (u32 x = 0; x < 8; ++x) {
        __builtin_memcpy(words[i][x], from + x * kWaveSize * kWords, sizeof(words[i][x]));
      }
    }
    keep_order();  // all of it is on its way before the first is waited for
    MlaTotals sum = {kLowest, 0.0f};
#pragma unroll
    for (const MlaTotals& one : all) sum.most = __builtin_fmaxf(sum.most, one.most);
    f32 weights[kFan];
#pragma unroll
    for (u32 i = 0; i < kFan; ++i) {
      weights[i] = __builtin_amdgcn_exp2f(all[i].most - sum.most);
      sum.sum += weights[i] * all[i].sum;
    }
    const f32 times = factor(sum);
    u32 second = 0x0504030c, third = 0x0403020c;
    pin(second), pin(third);
    F32x4 sums[8] = {};
#pragma unroll
    for (u32 i = 0; i < kFan; ++i) {
      const f32 weight = weights[i] * times;
      if (i == kept) {
#pragma unroll
        for (u32 x = 0; x < 8; ++x) sums[x] += weight * node.quads[x];
      } else if (i < count) {
#pragma unroll
        for (u32 x = 0; x < 8; ++x) sums[x] += weight * widened(words[i][x], second, third);
      }
    }
    node.all = sum;
    __builtin_memcpy(node.quads, sums, sizeof(sums));
  }
};

}  // namespace rfops
