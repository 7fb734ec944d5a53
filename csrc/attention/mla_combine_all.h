// Combines up to 32 partials of a sequence (16 query rows); each workgroup that made one reduces an
// output slice.
//
// A workgroup stores its partial (mla_combine_tree.h), increments the arrival counter and spins
// until all have arrived. Then each wave reads an equal slice of its quarter of every partial and
// stores that slice of the output. Each CU reads as much as it wrote: estimated, MI355X, 4
// sequences of 1,024 tokens, 16 splits each: two-level tree 12.2 us, this scheme 10.0 us.
//
// The spin is bounded, because the other workgroups may not be resident while another kernel holds
// their CUs: a workgroup that exceeds kMaxSpins sets its bit in the counter and moves on, as does
// one that has more splits to compute. The last workgroup to arrive also reduces the slices of
// those that left, with the same sums.
//
// Layout. A piece is one quad of each of 64, 32 or 16 lanes, for up to 8, 16 or 32 partials; then
// 1, 2 or 4 groups of a wave's lanes read eight partials each.
#pragma once

#include "attention/mla_combine_tree.h"

namespace rfops {

struct CombineAll : PartialStore, ArrivalWord {
  static constexpr u32 kMaxSplits = 32;
  static constexpr u32 kQuads = 8;  // of a lane

  // Partial `node.split_idx` of `node.count` is stored. Calls make(totals, x, lane, quad) for each
  // quad of this wave's slice, scaled by factor(totals): it is the x-th quad of `lane`. Spins at
  // most kMaxSpins times, and not at all if `has_more`.
  template <u32 kMaxSpins, class PartialOf, class Factor, class Make>
  __device__ void combine(const TreeNode& node, bool has_more, PartialOf partial_of, Factor factor,
                          Make make) const {
    const auto run = [&](auto slice) {
      arrive_and_combine<kMaxSpins>(node, has_more, partial_of(0), slice, factor, make);
    };
    const u32 count = readfirstlane(node.count);
    if (count <= 4) return run(Slice<4, 1>{});
    if (count <= 8) return run(Slice<8, 1>{});
    if (count <= 16) return run(Slice<8, 2>{});
    run(Slice<8, 4>{});
  }

 private:
  static_assert(kMaxSplits < kCountRange && kMaxSplits <= 32);

  // Adds to a word and returns its old value, in lane 0.
  __device__ u64 add_once(u64* word, u64 increment) const {
    u64 old_word = 0;
    if (lane == 0) old_word = add(word, increment);
    return old_word;
  }

  // Pieces piece_begin .. piece_end - 1 of a wave, the slice of one split, and this lane's pointers
  // to them in the partials. kGroups groups of lanes read kSplits partials each.
  template <u32 kSplits, u32 kGroups>
  struct Slice {
    static constexpr u32 kLanes = kWaveSize / kGroups, kPiecesInFlight = 2 * kQuads / kSplits;
    u32 piece_begin, piece_end, split_begin;  // the first part of this lane's
    const SoftmaxStats* totals[kSplits];
    const u32* words[kSplits];

    // Slice of split `split_idx`; lanes beyond the last partial read the last one again. Partials
    // are two indices apart, but the second of a sequence follows its first, `partial_idx`.
    __device__ void init_pointers(const CombineAll& store, const TreeNode& node, u32 split_idx,
                                  u32 partial_idx) {
      // Pieces / splits, rounded down; half a piece is added because then no quotient is near an
      // integer.
      const f32 pieces_per_split =
          __builtin_amdgcn_rcpf(static_cast<f32>(node.count)) * (kGroups * kQuads);
      const f32 half = pieces_per_split / (2 * kGroups * kQuads);
      piece_begin =
          static_cast<u32>(__builtin_fmaf(static_cast<f32>(split_idx), pieces_per_split, half));
      piece_end =
          static_cast<u32>(__builtin_fmaf(static_cast<f32>(split_idx + 1), pieces_per_split, half));
      split_begin = kGroups == 1 ? 0 : store.lane / kLanes * kSplits;
      const u32 begin = split_begin < node.count ? split_begin : node.count - 1;
      const u32 begin_slot = partial_idx + (begin == 0 ? 0 : 2 * begin * node.stride - 1);
      totals[0] = store.totals(begin_slot) + store.lane % kQRowsPerTile;
      words[0] =
          store.partial_ptr(begin_slot) - store.lane * kWords + lane_quad(store.lane, 0) * kWords;
#pragma unroll
      for (u32 i = 1; i < kSplits; ++i) {
        u32 num_splits = node.count;
        force_vgpr(num_splits);  // no mask is kept
        const u32 step = 2 * node.stride - (i == 1 && split_begin == 0 ? 1 : 0);
        totals[i] = totals[i - 1] + (split_begin + i < num_splits ? step * kTotals : 0);
        words[i] = words[i - 1] + (split_begin + i < num_splits ? step * kPartialWords : 0);
      }
      // Computed while the stores are in flight, not where the pointers are used.
#pragma unroll
      for (u32 i = 0; i < kSplits; ++i) {
        totals[i] = pointer_in_vgpr(totals[i]);
        words[i] = pointer_in_vgpr(words[i]);
      }
    }
    // Loaded statistics and pieces of this lane's partials.
    struct Partials {
      SoftmaxStats stats[kSplits];
      u32 words[kSplits][kPiecesInFlight][kWords];
    };
    __device__ u32 pieces() const { return readfirstlane(piece_end - piece_begin); }
    __device__ void read(Partials& partials) const {
#pragma unroll
      for (u32 i = 0; i < kSplits; ++i) partials.stats[i] = *totals[i];
#pragma unroll
      for (u32 q = 0; q < kPiecesInFlight; ++q) {
        if (q >= pieces()) continue;
#pragma unroll
        for (u32 i = 0; i < kSplits; ++i) {
          __builtin_memcpy(partials.words[i][q], words[i] + q * (kLanes * kWords), 4 * kWords);
        }
      }
      sched_barrier();  // all of it is on its way before the first is waited for
    }
    // Index of this lane's quad of piece q among the quads of a partial.
    __device__ u32 lane_quad(u32 lane, u32 q) const {
      return (piece_begin + q) * kLanes + lane % kLanes;
    }
  };

  // Counts the stored partial as arrived; then reduces this slice and the abandoned ones.
  template <u32 kMaxSpins, class AnyShare, class Factor, class Make>
  __device__ void arrive_and_combine(const TreeNode& node, bool has_more, u32 partial_idx,
                                     AnyShare slice, Factor factor, Make make) const {
    u64* const word = counter(node.level, partial_idx);
    const u64 abandon = (kAbandoned << node.split_idx) + kFinished;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    u64 old_word = add_once(word, has_more ? kArrived + abandon : kArrived);
    sched_barrier();
    slice.init_pointers(*this, node, node.split_idx, partial_idx);
    sched_barrier();  // what is found is so while the count is on its way
    old_word = readfirstlane(old_word);
    const auto is_all = [&](u32 counts) {
      return arrived(readfirstlane(counts)) == readfirstlane(node.count);
    };
    const bool is_last = arrived(old_word) + 1 == readfirstlane(node.count);
    u32 abandoned = is_last ? static_cast<u32>(old_word / kAbandoned) : 0;
    bool has_left = has_more;
    if (has_more) {
      if (!is_last) return;
    } else if (!is_last && !spin_until<kMaxSpins>(word, is_all)) {
      old_word = readfirstlane(add_once(word, abandon));
      if (arrived(old_word) != readfirstlane(node.count))
        return;  // else the last one did not see that
      has_left = true;
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    typename AnyShare::Partials partials;
    slice.read(partials);
    if (!has_left) old_word = add_once(word, kFinished);
    const bool is_out = finished(readfirstlane(old_word)) + 1 == readfirstlane(node.count);
    while (true) {
      combine_slice(slice, partials, node.count, factor, make);
      if (abandoned == 0) break;
      slice.init_pointers(*this, node, static_cast<u32>(__builtin_ctz(abandoned)), partial_idx);
      slice.read(partials);
      abandoned &= abandoned - 1;
    }
    if (is_out && lane == 0) reset(word);
  }

  template <u32 kSplits, u32 kGroups, class Partials, class Factor, class Make>
  __device__ void combine_slice(const Slice<kSplits, kGroups>& slice, const Partials& partials,
                                u32 count, Factor factor, Make make) const {
    constexpr u32 kLanes = Slice<kSplits, kGroups>::kLanes;
    const u32 pieces = slice.pieces();
    SoftmaxStats sum = {kMinScore, 0.0f};
#pragma unroll
    for (const SoftmaxStats& split_stats : partials.stats)
      sum.row_max = max_of(sum.row_max, split_stats.row_max);
    sum.row_max = max_over_row_lanes<kLanes>(sum.row_max);
    f32 weights[kSplits];
#pragma unroll
    for (u32 i = 0; i < kSplits; ++i) {
      u32 num_splits = count;
      force_vgpr(num_splits);  // no mask is kept
      weights[i] = slice.split_begin + i < num_splits
                       ? __builtin_amdgcn_exp2f(partials.stats[i].row_max - sum.row_max)
                       : 0.0f;
      sum.sum += weights[i] * partials.stats[i].sum;
    }
    sum.sum = sum_over_row_lanes<kLanes>(sum.sum);
    const f32 times = factor(sum);
#pragma unroll
    for (u32 q = 0; q < Slice<kSplits, kGroups>::kPiecesInFlight; ++q) {
      if (q >= pieces) continue;
      F32x4 quad = {};
#pragma unroll
      for (u32 i = 0; i < kSplits; ++i) quad += weights[i] * widened(partials.words[i][q]);
#pragma unroll
      for (u32 r = 0; r < 4; ++r) quad[r] = sum_over_row_lanes<kLanes>(quad[r]) * times;
      const u32 src_idx = slice.lane_quad(lane, q);
      if (lane < kLanes) make(sum, src_idx / kWaveSize, src_idx % kWaveSize, quad);
    }
  }
};

}  // namespace rfops
