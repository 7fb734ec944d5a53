// Partial results of a sequence that several workgroups share.
//
// A workgroup leaves its columns by 512 sums, and each column's maximum and sum of weights, in a
// slot of its own (work_partition.h), the sums as its lanes have them. Up to kMostShared share the
// result out (mla_combine_slices.h). Of more there is a tree: of kFanIn neighbours, or of all where
// no more than kMostFan are left, the last to come adds all up, in their order, into the first
// one's slot, and goes on to the next level; the last of all makes the result. Who was last changes
// no bit.
#pragma once

#include "attention/mfma_bf16.h"
#include "attention/mla_kv_cache.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/wave/reduce.h"

namespace rfops {

constexpr u32 kFanIn = 4, kMostFan = 8, kFanLevels = 6;  // 4096 workers
constexpr u32 kMostShared = 40;
constexpr u32 kNotKept = ~0u;
constexpr f32 kMinScore = -1e30f;  // a maximum that no score is below, and finite

__device__ inline f32 max_of(f32 a, f32 b) { return __builtin_fmaxf(a, b); }

// Of a column: the maximum, of scores in powers of two, and the sum of weights 2^(score - most).
struct SoftmaxStats {
  f32 most, sum;
};

// A lane's 32 sums of a block as a part has them in memory: fp16, of a power of two that brings the
// largest of them to 2^14 .. 2^15. So each has eleven bits but those below 2^-28 of the largest, a
// relative error of 2^-12; and parts of 38 compute units are still in their L2 when they are read,
// which those of 24 bits were not. (No sum is infinite alone: values are keys, too.)
template <u32 kQuads>
struct MlaQuads {
  Vec4<f16> quads[kQuads];
  f32 unit;

  __device__ static MlaQuads of(const F32x4 (&sums)[kQuads]) {
    f32 most = 0.0f;
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
      most = most_size_of(most, sums[i][0], sums[i][1]);
      most = most_size_of(most, sums[i][2], sums[i][3]);
    }
    const i32 bits = __builtin_amdgcn_frexp_expf(most), up = 15 - (bits > kLeast ? bits : kLeast);
    const f32 factor = __builtin_ldexpf(1.0f, up);
    MlaQuads made;
    made.unit = __builtin_ldexpf(1.0f, -up);
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
      made.quads[i] = __builtin_convertvector(sums[i] * factor, Vec4<f16>);
    }
    return made;
  }
  __device__ void add_to(F32x4 (&sums)[kQuads], f32 weight) const {
    const f32 by = weight * unit;
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        sums[i][e] = __builtin_fmaf(static_cast<f32>(quads[i][e]), by, sums[i][e]);
      }
    }
  }

 private:
  static constexpr i32 kLeast = -100;  // 2^(15 - kLeast) is a number
  __device__ static f32 most_size_of(f32 most, f32 a, f32 b) {
    asm("v_max3_f32 %0, %0, |%1|, |%2|" : "+v"(most) : "v"(a), "v"(b));
    return most;
  }
};
using MlaBlock = MlaQuads<8>;

// Where kColumns columns of a sequence go, a multiple of 16. Of their sums each lane has a column,
// in quads: four neighbours along 512, eight quads to a block.
template <u32 kColumns>
struct SplitOutput {
  static constexpr u32 kBlocks = kColumns / 16;  // of a lane

  bf16* out;    // of these columns
  f32* lse;     // likewise, or null
  f32* parts;   // [slots][4 waves, kBlocks] MlaBlock of lanes, then [slots, kColumns, 2]
  u32* counts;  // [kFanLevels, slots] of 64 bits, zeros
  u32 columns;  // that are there
  u32 slots;
  f32 value_scale;

  // Of a block, all lanes' quads, one after the other, then their units.
  static constexpr u32 kQuads = 8, kQuadsBytes = kQuads * kWaveSize * 8;
  static constexpr u32 kBlockBytes = kQuadsBytes + kWaveSize * 4;
  static constexpr u32 kPart = 4 * kBlocks * kBlockBytes / 4;  // words of a slot
  __device__ u8* part(u32 slot, u32 block) const {
    return reinterpret_cast<u8*>(parts + u64{slot} * kPart) +
           (wave_id() * kBlocks + block) * kBlockBytes;
  }
  __device__ f32* totals(u32 slot, u32 column) const {
    return parts + (u64{slots} * kPart + (u64{slot} * kColumns + column) * 2);
  }
  __device__ u64* counter(u32 level, u32 slot) const {
    return reinterpret_cast<u64*>(counts) + (level * slots + slot);
  }
  __device__ void store_part(u32 slot, u32 block, const MlaBlock& own) const {
    auto* const to = reinterpret_cast<Vec4<f16>*>(part(slot, block)) + lane_id();
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) to[i * kWaveSize] = own.quads[i];
    reinterpret_cast<f32*>(part(slot, block) + kQuadsBytes)[lane_id()] = own.unit;
  }
  // Some of a block's, from quad `first` on.
  template <u32 kSome>
  __device__ void load_part(u32 slot, u32 block, u32 first, MlaQuads<kSome>& own) const {
    const u8* const begin = part(slot, block);
    const auto* const from = reinterpret_cast<const Vec4<f16>*>(begin) + first * kWaveSize;
#pragma unroll
    for (u32 i = 0; i < kSome; ++i) own.quads[i] = from[i * kWaveSize + lane_id()];
    own.unit = reinterpret_cast<const f32*>(begin + kQuadsBytes)[lane_id()];
  }
  __device__ void store_totals(u32 slot, u32 column, SoftmaxStats all) const {
    totals(slot, column)[0] = all.most;
    totals(slot, column)[1] = all.sum;
  }
  // What a sum of weighted values is to be multiplied by.
  __device__ f32 factor(SoftmaxStats all) const {
    return all.sum == 0.0f ? 0.0f : value_scale / all.sum;
  }
  __device__ void store_lse(u32 column, SoftmaxStats all) const {
    constexpr f32 kLn2 = 0.693147180559945f;
    if (lse == nullptr || column >= columns) return;
    const f32 log = (all.most + __builtin_amdgcn_logf(all.sum)) * kLn2;
    lse[column] = all.sum == 0.0f ? -__builtin_inff() : log;
  }
  __device__ static void store(F32x4 four, bf16* to) {
    *reinterpret_cast<Bf16x4*>(to) = details::Bf16Rounding<4>::narrow_rounded(four);
  }
  __device__ void store(F32x4 four, u32 column, u32 d) const {
    if (column < columns) store(four, out + u64{column} * kMlaValue + d);
  }
  // The same where columns are known in scalars: a store to one that is not there does nothing.
  __device__ Buffer result() const {
    const u32 there = columns < kColumns ? columns : kColumns;
    return make_buffer(out, there * kMlaValue * 2);
  }
  __device__ static void store(const Buffer& result, F32x4 four, u32 column, u32 d) {
    const auto narrow = __builtin_bit_cast(U32x2, details::Bf16Rounding<4>::narrow_rounded(four));
    __builtin_amdgcn_raw_buffer_store_b64(narrow, result.rsrc, (column * kMlaValue + d) * 2, 0, 0);
  }
};
using MlaTarget = SplitOutput<kQRowsPerTile>;

namespace details {

// Where the weight of part i of a column is: what is written and read together is in banks apart.
constexpr u32 kWeighers = 8;  // threads of a column
template <u32 kColumns>
constexpr u32 kWeightPitch = kColumns + kLdsBanks / kWeighers;
template <u32 kColumns>
constexpr u32 weight_at(u32 i, u32 column) {
  return i * kWeightPitch<kColumns> + column;
}

// What columns' parts in slots slot_of(0..count - 1), at most kMostShared, are to be multiplied by,
// into `weights`. `is_root`: for the result. leave(column, totals) once.
template <u32 kColumns, class SlotOf, class Leave>
__device__ inline void weigh_columns(const SplitOutput<kColumns>& target, u32 count, bool is_root,
                                     SlotOf slot_of, RFOPS_LDS f32* weights, Leave leave) {
  constexpr u32 kAtOnce = 4 * kWaveSize / kWeighers, kSteps = kColumns / kAtOnce;
  constexpr u32 kTurns = kMostShared / kWeighers;
  u32 thread = thread_id();
  force_vgpr(
      thread);  // what follows from it is computed here, not kept in registers from the beginning
  const u32 own = thread % kWeighers, first = thread / kWeighers;
  SoftmaxStats ones[kTurns][kSteps];
#pragma unroll
  for (u32 t = 0; t < kTurns; ++t) {
    if (t > 0 && t * kWeighers >= count) break;
    const u32 i = t * kWeighers + own;
    const f32* const from = target.totals(slot_of(i < count ? i : 0), first);
#pragma unroll
    for (u32 g = 0; g < kSteps; ++g) {
      ones[t][g] = {from[g * kAtOnce * 2], from[g * kAtOnce * 2 + 1]};
    }
  }
  sched_barrier();
#pragma unroll
  for (u32 g = 0; g < kSteps; ++g) {
    const u32 column = g * kAtOnce + first;
    SoftmaxStats all = {kMinScore, 0.0f};
#pragma unroll
    for (u32 t = 0; t < kTurns; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      if (t * kWeighers + own >= count) ones[t][g] = {kMinScore, 0.0f};
      all.most = max_of(all.most, ones[t][g].most);
    }
    all.most = max_over_lanes<kWeighers>(all.most);
#pragma unroll
    for (u32 t = 0; t < kTurns; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      ones[t][g].most = __builtin_amdgcn_exp2f(ones[t][g].most - all.most);
      all.sum += ones[t][g].most * ones[t][g].sum;
    }
    all.sum = sum_over_lanes<kWeighers>(all.sum);
    const f32 times = is_root ? target.factor(all) : 1.0f;
#pragma unroll
    for (u32 t = 0; t < kTurns; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      weights[weight_at<kColumns>(t * kWeighers + own, column)] = ones[t][g].most * times;
    }
    if (own == 0) leave(column, all);
  }
}

// Quads from `first` on of a block of which a part is added: which, and where.
struct PartPlace {
  u32 block, first, column;  // the column is this lane's
};

// Sums of `count` parts, in their order, kAtOnce of them on their way at a time. Part `kept`, if
// there is one, is what own(part) makes meanwhile; the others are in memory.
template <u32 kAtOnce, u32 kQuads, u32 kColumns, class SlotOf, class Own>
__device__ inline void add_parts(F32x4 (&sums)[kQuads], const SplitOutput<kColumns>& target,
                                 const PartPlace& at, u32 count, SlotOf slot_of,
                                 const RFOPS_LDS f32* weights, u32 kept, Own own) {
  const auto weight_of = [&](u32 i) { return weights[weight_at<kColumns>(i, at.column)]; };
  const u32 others = count - (kept < count ? 1 : 0);
  MlaQuads<kQuads> mine, part[kAtOnce];
#pragma unroll
  for (F32x4& sum : sums) sum = F32x4{};
#pragma nounroll
  for (u32 i = 0; i < others; i += kAtOnce) {
    const auto other = [&](u32 n) { return i + n + (i + n >= kept ? 1 : 0); };
#pragma unroll
    for (u32 n = 0; n < kAtOnce; ++n) {
      if (i + n < others) target.load_part(slot_of(other(n)), at.block, at.first, part[n]);
    }
    sched_barrier();
    if (i == 0 && kept < count) own(mine);
    sched_barrier();
#pragma unroll
    for (u32 n = 0; n < kAtOnce; ++n) {
      if (i + n >= others) continue;
      if (i + n == kept) mine.add_to(sums, weight_of(kept));
      part[n].add_to(sums, weight_of(other(n)));
    }
  }
  if (kept == others) mine.add_to(sums, weight_of(kept));
}

}  // namespace details

// Of a sequence's parts those that slots_of(i) has, in the order of `stride` slots.
struct MlaParts {
  u32 first, stride, count;

  template <class SlotOf>
  __device__ auto of(const SlotOf& slot_of) const {
    return [=, *this](u32 i) { return slot_of((first + i) * stride); };
  }
};

// This workgroup's part is written, to slot_of(own) of `count` that make up a sequence. Whether it
// makes the result, of `parts`.
template <u32 kColumns, class SlotOf>
__device__ inline bool reduce_upward(const SplitOutput<kColumns>& target, u32 own, u32 count,
                                     u32 column, SlotOf slot_of, LdsBytes* lds, MlaParts& parts) {
  auto* const weights = reinterpret_cast<RFOPS_LDS f32*>(lds);
  parts = {0, 1, 0};
  for (u32 level = 0;; ++level) {
    const bool is_root = count <= kMostFan;
    const u32 first = is_root ? 0 : own / kFanIn * kFanIn;
    const u32 here = is_root || count - first < kFanIn ? count - first : kFanIn;
    parts = {first, parts.stride, readfirstlane(here)};
    const auto child = parts.of(slot_of);
    if (here > 1) {
      auto* const counter = reinterpret_cast<u32*>(target.counter(level, child(0)));
      if (!arrive_is_last(counter, here, reinterpret_cast<RFOPS_LDS u32*>(lds))) return false;
      workgroup_barrier();
      if (is_root) return true;
      details::weigh_columns(
          target, here, false, child, weights,
          [&](u32 column, SoftmaxStats all) { target.store_totals(child(0), column, all); });
      workgroup_barrier();
#pragma nounroll
      for (u32 block = 0; block < target.kBlocks; ++block) {
        F32x4 sums[8];
        details::add_parts<kFanIn>(sums, target, {block, 0, column}, here, child, weights, kNotKept,
                                   [](auto&) {});
        target.store_part(child(0), block, MlaBlock::of(sums));
      }
      workgroup_barrier();  // LDS is the next level's
    }
    own /= kFanIn;
    count = (count + kFanIn - 1) / kFanIn;
    parts.stride *= kFanIn;
  }
}

}  // namespace rfops
