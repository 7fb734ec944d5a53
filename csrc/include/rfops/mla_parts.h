// Partial results of a sequence that several workgroups share, added up as they come.
//
// A workgroup leaves its columns by 512 sums, and each column's maximum and sum of weights, in a
// slot of its own (split_schedule.h). Then a tree: of kFan neighbours the last to come adds all of
// them up, in their order, into the first one's slot, and goes on to the next level; the last of
// all writes the result. Nobody waits for another, and who was last changes no bit.
#pragma once

#include "rfops/bf16_matrix.h"
#include "rfops/lds_tile.h"
#include "rfops/mla_cache.h"
#include "rfops/split_reduce.h"
#include "rfops/types.h"

namespace rfops {

constexpr u32 kFan = 16, kFanLevels = 3;  // 4096 workers
constexpr f32 kLowest = -1e30f;           // a maximum that no score is below, and finite

// Of a column: the maximum, of scores in powers of two, and the sum of weights 2^(score - most).
struct MlaTotals {
  f32 most, sum;
};

// Where kColumns columns of a sequence go, a multiple of 16.
template <u32 kColumns>
struct MlaColumnsTarget {
  bf16* out;    // of these columns
  f32* lse;     // likewise, or null
  f32* parts;   // [slots, kColumns, 512], then [slots, kColumns, 2]
  u32* counts;  // [kFanLevels, slots], zeros
  u32 columns;  // that are there
  u32 slots;
  f32 value_scale;

  __device__ f32* part(u32 slot, u32 column, u32 d) const {
    return parts + (u64{slot} * kColumns + column) * kMlaValue + d;
  }
  __device__ f32* totals(u32 slot, u32 column) const {
    return part(slots, 0, 0) + (u64{slot} * kColumns + column) * 2;
  }
  __device__ void store_part(u32 slot, F32x4 four, u32 column, u32 d) const {
    *reinterpret_cast<F32x4*>(part(slot, column, d)) = four;
  }
  __device__ void store_totals(u32 slot, u32 column, MlaTotals all) const {
    totals(slot, column)[0] = all.most;
    totals(slot, column)[1] = all.sum;
  }
  // What a sum of weighted values is to be multiplied by.
  __device__ f32 factor(MlaTotals all) const {
    return all.sum == 0.0f ? 0.0f : value_scale / all.sum;
  }
  __device__ void store_lse(u32 column, MlaTotals all) const {
    constexpr f32 kLn2 = 0.693147180559945f;
    if (lse == nullptr || column >= columns) return;
    const f32 log = (all.most + __builtin_amdgcn_logf(all.sum)) * kLn2;
    lse[column] = all.sum == 0.0f ? -__builtin_inff() : log;
  }
  __device__ void store(F32x4 four, u32 column, u32 d) const {
    if (column >= columns) return;
    *reinterpret_cast<Bf16x4*>(out + u64{column} * kMlaValue + d) =
        __builtin_convertvector(four, Bf16x4);
  }
};
using MlaTarget = MlaColumnsTarget<kMlaColumns>;

namespace details {

// What `op` makes of the values of 16 lanes in a row, in all of them.
template <class Op>
__device__ inline f32 over_row(f32 value, Op op) {
  constexpr int kRotate = 0x120;
  const auto step = [&](auto turned) { value = op(value, __builtin_bit_cast(f32, turned)); };
  const auto bits = [&] { return __builtin_bit_cast(i32, value); };
  step(__builtin_amdgcn_update_dpp(0, bits(), kRotate + 8, 0xf, 0xf, true));
  step(__builtin_amdgcn_update_dpp(0, bits(), kRotate + 4, 0xf, 0xf, true));
  step(__builtin_amdgcn_update_dpp(0, bits(), kRotate + 2, 0xf, 0xf, true));
  step(__builtin_amdgcn_update_dpp(0, bits(), kRotate + 1, 0xf, 0xf, true));
  return value;
}

// What columns' parts in slots slot_of(0..count - 1), at most kFan, are to be multiplied by, into
// `weights`, [kColumns, kFan]; 16 threads a column. Sums of weights go where the parts' sum will.
template <u32 kColumns, class SlotOf>
__device__ inline void weigh_columns(const MlaColumnsTarget<kColumns>& target, u32 count,
                                     bool is_root, SlotOf slot_of, RFOPS_LDS f32* weights) {
  u32 thread = thread_in_group();
  pin(thread);  // what follows from it is computed here, not kept in registers from the beginning
  const u32 own = thread % kFan;
  MlaTotals ones[kColumns / kFan];
#pragma unroll
  for (u32 g = 0; g < kColumns / kFan; ++g) {
    ones[g] = {kLowest, 0.0f};
    if (own < count) {
      const f32* const from = target.totals(slot_of(own), g * kFan + thread / kFan);
      ones[g] = {from[0], from[1]};
    }
  }
  keep_order();
#pragma unroll
  for (u32 g = 0; g < kColumns / kFan; ++g) {
    MlaTotals all;
    all.most = over_row(ones[g].most, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
    const f32 weight = __builtin_amdgcn_exp2f(ones[g].most - all.most);
    all.sum = over_row(weight * ones[g].sum, [](f32 a, f32 b) { return a + b; });
    const u32 column = g * kFan + thread / kFan;
    weights[column * kFan + own] = is_root ? weight * target.factor(all) : weight;
    if (own == 0) {
      is_root ? target.store_lse(column, all) : target.store_totals(slot_of(0), column, all);
    }
  }
}

// The parts' sum, into the first slot or the result: each wave has four columns of 16, and a KiB
// that lies together at a time. All of a part's loads begin before one is waited for.
template <u32 kColumns, class SlotOf>
__device__ inline void add_columns(const MlaColumnsTarget<kColumns>& target, u32 count,
                                   bool is_root, SlotOf slot_of, const RFOPS_LDS f32* weights) {
  constexpr u32 kLaneColumns = 4, kAtOnce = 4 * kWaveSize, kHalves = kMlaValue / kAtOnce;
  constexpr u32 kOwn = kLaneColumns * kHalves;
  u32 thread = thread_in_group();
  pin(thread);
  const u32 local = thread / kWaveSize * kLaneColumns, at = thread % kWaveSize * 4;
  u32 first = 0;
  do {
    const auto column = [&](u32 s) { return first + local + s / kHalves; };
    const auto d = [&](u32 s) { return s % kHalves * kAtOnce + at; };
    F32x4 sums[kOwn] = {};
    for (u32 i = 0; i < count; ++i) {
      const u32 slot = slot_of(i);
      F32x4 part[kOwn];
#pragma unroll
      for (u32 s = 0; s < kOwn; ++s) {
        part[s] = *reinterpret_cast<const F32x4*>(target.part(slot, column(s), d(s)));
      }
      keep_order();
#pragma unroll
      for (u32 s = 0; s < kOwn; ++s) sums[s] += weights[column(s) * kFan + i] * part[s];
    }
#pragma unroll
    for (u32 s = 0; s < kOwn; ++s) {
      is_root ? target.store(sums[s], column(s), d(s))
              : target.store_part(slot_of(0), sums[s], column(s), d(s));
    }
    first += kFan;
  } while (kColumns > kFan && first < target.columns);
}

}  // namespace details

// This workgroup's slot is written: slot_of(own) of `count` that make up a sequence.
template <u32 kColumns, class SlotOf>
__device__ inline void climb(const MlaColumnsTarget<kColumns>& target, u32 own, u32 count,
                             SlotOf slot_of, LdsBytes* lds) {
  u32 stride = 1;
  for (u32 level = 0;; ++level) {
    const u32 first = own / kFan * kFan, here = count - first < kFan ? count - first : kFan;
    const auto child = [&](u32 i) { return slot_of((first + i) * stride); };
    if (here > 1) {
      auto* const counter = target.counts + level * target.slots + child(0);
      if (!is_last_of(counter, here, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
      auto* const weights = reinterpret_cast<RFOPS_LDS f32*>(lds);
      sync_group();
      details::weigh_columns(target, here, count <= kFan, child, weights);
      sync_group();
      details::add_columns(target, here, count <= kFan, child, weights);
      sync_group();  // LDS is the next level's
    }
    if (count <= kFan) return;
    own /= kFan;
    count = (count + kFan - 1) / kFan;
    stride *= kFan;
  }
}

}  // namespace rfops
