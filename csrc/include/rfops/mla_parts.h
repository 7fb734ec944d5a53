// Partial results of a sequence that several workgroups share, added up as they come.
//
// A workgroup leaves its columns by 512 sums, and each column's maximum and sum of weights, in a
// slot of its own (split_schedule.h), the sums as its lanes have them. Then a tree: of kFan
// neighbours, or of all where no more than kMostFan are left, the last to come, which has its own
// sums still, adds those of all up, in their order, into the first one's slot, and goes on to the
// next level; the last of all makes the result. Nobody waits for another, and who was last changes
// no bit. One compute unit reads what it adds, so 16 at once take longer than 4 of 4: 16 sequences
// of 4,096 tokens of 128 heads MI300X 132 us, 89 so, MI355X 77 and 58, estimated.
#pragma once

#include "rfops/arch.h"
#include "rfops/bf16_matrix.h"
#include "rfops/lanes.h"
#include "rfops/lds_tile.h"
#include "rfops/memory.h"
#include "rfops/mla_cache.h"
#include "rfops/split_reduce.h"
#include "rfops/types.h"

namespace rfops {

constexpr u32 kFan = 4, kMostFan = 8, kFanLevels = 6;  // 4096 workers
constexpr u32 kNotKept = ~0u;
constexpr f32 kLowest = -1e30f;  // a maximum that no score is below, and finite

// Of a column: the maximum, of scores in powers of two, and the sum of weights 2^(score - most).
struct MlaTotals {
  f32 most, sum;
};

// Four sums as a part has them in memory.
template <bool kShort>
struct MlaQuad {
  F32x4 own;

  __device__ static MlaQuad of(F32x4 four) { return {four}; }
  __device__ F32x4 sums() const { return own; }
  __device__ static F32x4 as_stored(F32x4 four) { return four; }
};
// Without their last eight bits, of a relative error below 2^-15: where memory has the most to do.
template <>
struct MlaQuad<true> {
  u32 low, middle, high;

  __device__ static MlaQuad of(F32x4 four) {
    const U32x4 bits = __builtin_bit_cast(U32x4, four);
    return {__builtin_amdgcn_perm(bits[1], bits[0], 0x05030201),
            __builtin_amdgcn_perm(bits[2], bits[1], 0x06050302),
            __builtin_amdgcn_perm(bits[3], bits[2], 0x07060503)};
  }
  __device__ F32x4 sums() const {
    return __builtin_bit_cast(
        F32x4, U32x4{low << 8,  // 0x0c is a byte of zeros
                     __builtin_amdgcn_perm(middle, low, 0x0504030c),
                     __builtin_amdgcn_perm(high, middle, 0x0403020c), high & 0xffffff00});
  }
  __device__ static F32x4 as_stored(F32x4 four) {
    return __builtin_bit_cast(F32x4, __builtin_bit_cast(U32x4, four) & 0xffffff00u);
  }
};

// Where kColumns columns of a sequence go, a multiple of 16. Of their sums each lane has a column,
// in quads: four neighbours along 512, eight quads to a block.
template <u32 kColumns>
struct MlaColumnsTarget {
  static constexpr u32 kBlocks = kColumns / 16;  // of a lane
  using Quad = MlaQuad<(kBlocks > 1)>;
  bf16* out;    // of these columns
  f32* lse;     // likewise, or null
  f32* parts;   // [slots][4 waves, kBlocks, 8, 64 lanes] Quad, then [slots, kColumns, 2]
  u32* counts;  // [kFanLevels, slots], zeros
  u32 columns;  // that are there
  u32 slots;
  f32 value_scale;

  // The first of this lane's quads of a block; the others are kWaveSize apart.
  __device__ Quad* part(u32 slot, u32 block) const {
    return reinterpret_cast<Quad*>(parts + u64{slot} * (kColumns * kMlaValue)) +
           ((wave_in_group() * kBlocks + block) * (8 * kWaveSize) + lane_in_wave());
  }
  __device__ f32* totals(u32 slot, u32 column) const {
    return parts + (u64{slots} * (kColumns * kMlaValue) + (u64{slot} * kColumns + column) * 2);
  }
  __device__ void store_part(u32 slot, u32 block, const F32x4 (&quads)[8]) const {
    Quad* const to = part(slot, block);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) to[i * kWaveSize] = Quad::of(quads[i]);
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
  __device__ static void store(F32x4 four, bf16* to) {
    *reinterpret_cast<Bf16x4*>(to) = details::Turned<4>::narrow_rounded(four);
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
    const auto narrow = __builtin_bit_cast(U32x2, details::Turned<4>::narrow_rounded(four));
    __builtin_amdgcn_raw_buffer_store_b64(narrow, result.rsrc, (column * kMlaValue + d) * 2, 0, 0);
  }
};
using MlaTarget = MlaColumnsTarget<kMlaColumns>;

namespace details {

// Where the weight of part i of a column is: what is written and read together is in banks apart.
template <u32 kColumns>
constexpr u32 kWeightPitch = kColumns + kLdsBanks / kMostFan;
template <u32 kColumns>
constexpr u32 weight_at(u32 i, u32 column) {
  return i * kWeightPitch<kColumns> + column;
}

// What columns' parts in slots slot_of(0..count - 1), at most kMostFan, are to be multiplied by,
// into `weights`; as many threads a column. Sums of weights go where the parts' sum will.
template <u32 kColumns, class SlotOf>
__device__ inline void weigh_columns(const MlaColumnsTarget<kColumns>& target, u32 count,
                                     bool is_root, SlotOf slot_of, RFOPS_LDS f32* weights) {
  constexpr u32 kAtOnce = 4 * kWaveSize / kMostFan, kSteps = kColumns / kAtOnce;
  u32 thread = thread_in_group();
  pin(thread);  // what follows from it is computed here, not kept in registers from the beginning
  const u32 own = thread % kMostFan, first = thread / kMostFan;
  const f32* const from = target.totals(slot_of(own < count ? own : 0), first);
  MlaTotals ones[kSteps];
#pragma unroll
  for (u32 g = 0; g < kSteps; ++g) ones[g] = {from[g * kAtOnce * 2], from[g * kAtOnce * 2 + 1]};
  keep_order();
#pragma unroll
  for (u32 g = 0; g < kSteps; ++g) {
    const u32 column = g * kAtOnce + first;
    const f32 most = own < count ? ones[g].most : kLowest, sum = own < count ? ones[g].sum : 0.0f;
    MlaTotals all;
    all.most = most_of_lanes<kMostFan>(most);
    const f32 weight = __builtin_amdgcn_exp2f(most - all.most);
    all.sum = sum_of_lanes<kMostFan>(weight * sum);
    weights[weight_at<kColumns>(own, column)] = is_root ? weight * target.factor(all) : weight;
    if (own == 0) {
      is_root ? target.store_lse(column, all) : target.store_totals(slot_of(0), column, all);
    }
  }
}

// The sum of `count` parts' quads, one at least, of blocks from `block` on, of a lane with that
// column. `kept` is the part that own(quads) gives, not memory.
template <u32 kQuads, u32 kColumns, class SlotOf, class Own>
__device__ inline void add_parts(F32x4 (&sums)[kQuads], const MlaColumnsTarget<kColumns>& target,
                                 u32 block, u32 column, u32 count, u32 kept, SlotOf slot_of,
                                 const RFOPS_LDS f32* weights, Own own) {
#pragma unroll
  for (u32 i = 0; i < kQuads; ++i) sums[i] = F32x4{};
  u32 at = 0;
#pragma nounroll
  do {
    using Quad = typename MlaColumnsTarget<kColumns>::Quad;
    const f32 weight = weights[weight_at<kColumns>(at, column)];
    if (at == kept) {
      F32x4 quads[kQuads];
      own(quads);
#pragma unroll
      for (u32 i = 0; i < kQuads; ++i) sums[i] += weight * Quad::as_stored(quads[i]);
    } else {
      Quad part[kQuads];
      const Quad* const from = target.part(slot_of(at), block);
#pragma unroll
      for (u32 i = 0; i < kQuads; ++i) part[i] = from[i * kWaveSize];
      keep_order();  // all of them are on their way before one is waited for
#pragma unroll
      for (u32 i = 0; i < kQuads; ++i) sums[i] += weight * part[i].sums();
    }
  } while (++at < count);
}

}  // namespace details

// Some of the parts of a sequence: `count` of them, of which a workgroup has number `kept` itself.
struct MlaParts {
  u32 first, stride, count, kept;

  template <class SlotOf>
  __device__ auto of(const SlotOf& slot_of) const {
    return [=, *this](u32 i) { return slot_of((first + i) * stride); };
  }
};

// Whether a sequence's other parts, of `count`, are all written: then nobody will read this one,
// which its workgroup has. Waves may get different answers; `climb` finds the same as the first.
template <u32 kColumns, class SlotOf>
__device__ inline bool is_alone(const MlaColumnsTarget<kColumns>& target, u32 count,
                                SlotOf slot_of) {
  if (count > kMostFan) return false;
  const u32 come = __hip_atomic_load(target.counts + slot_of(0), __ATOMIC_RELAXED, kAgentScope);
  return as_scalar(come) == count - 1;
}

// This workgroup's part is written, to slot_of(own) of `count` that make up a sequence. Whether it
// makes the result, of what `parts` then says by weights that are in `lds`.
template <u32 kColumns, class SlotOf>
__device__ inline bool climb(const MlaColumnsTarget<kColumns>& target, u32 own, u32 count,
                             u32 column, SlotOf slot_of, LdsBytes* lds, MlaParts& parts) {
  auto* const weights = reinterpret_cast<RFOPS_LDS f32*>(lds);
  parts = {0, 1, 0, 0};
  for (u32 level = 0;; ++level) {
    const bool is_root = count <= kMostFan;
    const u32 first = is_root ? 0 : own / kFan * kFan;
    const u32 here = is_root || count - first < kFan ? count - first : kFan;
    const u32 kept = level == 0 ? own - first : kNotKept;
    parts = {first, parts.stride, as_scalar(here), as_scalar(kept)};
    const auto child = parts.of(slot_of);
    if (here > 1) {
      auto* const counter = target.counts + level * target.slots + child(0);
      if (!is_last_of(counter, here, reinterpret_cast<RFOPS_LDS u32*>(lds))) return false;
      sync_group();
      details::weigh_columns(target, here, is_root, child, weights);
      sync_group();
      if (is_root) return true;
#pragma nounroll
      for (u32 block = 0; block < target.kBlocks; ++block) {
        F32x4 sums[8];
        details::add_parts(sums, target, block, column, here, kNotKept, child, weights,
                           [](auto&) {});
        target.store_part(child(0), block, sums);
      }
      sync_group();  // LDS is the next level's
    }
    own /= kFan;
    count = (count + kFan - 1) / kFan;
    parts.stride *= kFan;
  }
}

}  // namespace rfops
