// Combines many partials of a sequence (16 query rows) in a tree of fan-in 4, until
// mla_combine_all.h can combine the rest.
//
// A workgroup stores the upper 24 bits of each sum, in lane order, and the softmax statistics. Each
// wave works alone on its quarter of the sums: the last of four neighbours to arrive loads all four
// partials, combines them in order, and stores the result as one of the next four. No wave spins.
// The fan-in is four because one CU reads all of them.
#pragma once

#include "attention/mla_combine_waves.h"

namespace rfops {

// Partials in the workspace and their arrival counters.
struct PartialStore {
  static constexpr u32 kLevels = 6;                                             // 4096 workers
  static constexpr u32 kWords = 3;                                              // of a quad
  static constexpr u32 kPartialWords = kQRowsPerTile * kMlaValue / 4 * kWords;  // words of a slot
  static constexpr u32 kTotals = kMlaWaves * kQRowsPerTile;                     // of a slot
  f32* partials;  // [slots, 4 waves, 8, 64 lanes, kWords], then [slots, 4 waves, kQRowsPerTile, 2]
  u64* counts;    // [kLevels, slots, 4 waves], zeros
  u32 num_partials;
  u32 wave, lane;  // of their own, such that nothing is kept of them since the kernel began

  // Loads the first counter of `partial_idx`, so that it is in L2 when it is incremented: the
  // atomic then takes 220 to 1,020 clk, otherwise 850 to 1,680.
  __device__ u32 prefetch_count(u32 partial_idx) const { return *low(counter(0, partial_idx)); }

  // Stores a partial: three words per four sums.
  __device__ void store(u32 partial_idx, const Partial& partial) const {
    u32* const dst = partial_ptr(partial_idx);
    u32 low = 0x05030201, middle = 0x06050302, high = 0x07060503;
    force_vgpr(low), force_vgpr(middle), force_vgpr(high);  // scalar registers are few
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      const U32x4 four = __builtin_bit_cast(U32x4, partial.quads[i]);
      u32* const words = dst + i * kWaveSize * kWords;
      words[0] = __builtin_amdgcn_perm(four[1], four[0], low);
      words[1] = __builtin_amdgcn_perm(four[2], four[1], middle);
      words[2] = __builtin_amdgcn_perm(four[3], four[2], high);
    }
    if (lane < kQRowsPerTile) totals(partial_idx)[lane] = partial.stats;
  }

 protected:
  // Counter of this wave.
  __device__ u64* counter(u32 level, u32 partial_idx) const {
    return counts + ((level * num_partials + partial_idx) * kMlaWaves + wave);
  }
  __device__ static u32* low(u64* count) { return reinterpret_cast<u32*>(count); }
  __device__ u32* partial_ptr(u32 partial_idx) const {
    const u32 offset = (wave * 8 * kWaveSize + lane) * kWords;
    return reinterpret_cast<u32*>(partials) + (u64{partial_idx} * kPartialWords + offset);
  }
  __device__ SoftmaxStats* totals(u32 partial_idx) const {
    auto* const stats =
        reinterpret_cast<SoftmaxStats*>(partials + u64{num_partials} * kPartialWords);
    return stats + (partial_idx * kTotals + wave * kQRowsPerTile);
  }

  __device__ static F32x4 widened(const u32 (&words)[kWords], u32 second = 0x0504030c,
                                  u32 third = 0x0403020c) {
    return __builtin_bit_cast(
        F32x4, U32x4{words[0] << 8, __builtin_amdgcn_perm(words[1], words[0], second),
                     __builtin_amdgcn_perm(words[2], words[1], third), words[2] & ~0xffu});
  }
};

// Partial `split_idx` of `count` at a tree level; partials of a level are `stride` indices apart.
struct TreeNode {
  u32 split_idx, count, stride, level;
};

struct CombineTree : PartialStore {
  static constexpr u32 kFanIn = 4;

  // Returns the first of the partials that are combined with partial `split_idx`.
  __device__ static u32 first_sibling(u32 split_idx) { return split_idx / kFanIn * kFanIn; }

  // Combines until at most kMaxSplits partials are left. This workgroup has stored partial
  // `node.split_idx` of `node.count`. Returns whether it still holds one.
  template <u32 kMaxSplits, class PartialOf>
  __device__ bool reduce_upward(TreeNode& node, PartialOf partial_of) const {
    while (node.count > kMaxSplits) {
      node.split_idx = readfirstlane(node.split_idx),
      node.count = readfirstlane(node.count);  // which the compiler cannot know
      const u32 begin = first_sibling(node.split_idx);
      const u32 fan_in = node.count - begin < kFanIn ? node.count - begin : kFanIn;
      const auto child = [&](u32 i) { return partial_of((begin + i) * node.stride); };
      if (fan_in > 1) {
        if (!arrive_is_last_wave(low(counter(node.level, child(0))), fan_in, lane)) return false;
        store(child(0), combine(fan_in, child));
      }
      node = {node.split_idx / kFanIn, (node.count + kFanIn - 1) / kFanIn, node.stride * kFanIn,
              node.level + 1};
    }
    return true;
  }

 private:
  template <class Child>
  __device__ Partial combine(u32 count, Child child) const {
    SoftmaxStats stats[kFanIn];
    u32 words[kFanIn][8][kWords];
#pragma unroll
    for (u32 i = 0; i < kFanIn; ++i) {
      const u32 partial_idx = child(i < count ? i : 0);
      stats[i] = totals(partial_idx)[lane % kQRowsPerTile];
      if (i >= count) stats[i] = {kMinScore, 0.0f};
      const u32* const src = partial_ptr(partial_idx);
#pragma unroll
      for (u32 x = 0; x < 8; ++x) {
        __builtin_memcpy(words[i][x], src + x * kWaveSize * kWords, sizeof(words[i][x]));
      }
    }
    sched_barrier();  // all of it is on its way before the first is waited for
    Partial sum = {{kMinScore, 0.0f}, {}};
#pragma unroll
    for (const SoftmaxStats& split_stats : stats)
      sum.stats.row_max = max_of(sum.stats.row_max, split_stats.row_max);
    u32 second = 0x0504030c, third = 0x0403020c;
    force_vgpr(second), force_vgpr(third);
#pragma unroll
    for (u32 i = 0; i < kFanIn; ++i) {
      const f32 weight = __builtin_amdgcn_exp2f(stats[i].row_max - sum.stats.row_max);
      sum.stats.sum += weight * stats[i].sum;
#pragma unroll
      for (u32 x = 0; x < 8; ++x) sum.quads[x] += weight * widened(words[i][x], second, third);
    }
    return sum;
  }
};

}  // namespace rfops
