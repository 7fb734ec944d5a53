// Stores the output of a split of a sequence with many query rows: to `out`, or as a partial.
//
// A block is 64 output columns of each query row. A partial that other workgroups reduce too is
// stored in the workspace, except for the blocks that this workgroup reduces
// (mla_combine_slices.h), which it takes from its registers. Estimated, MI300X, 128 sequences of
// 4,097 tokens, 128 heads: 330k clk if the last workgroup to arrive reduces everything (48k of
// them), 313k clk in slices; MI355X, 16 sequences of 16,384 tokens: 112 us and 80 us.
#pragma once

#include "attention/mla_combine_slices.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_online_softmax.h"

namespace rfops {

// `Attention`: state of a wave. A workgroup spins at most kMaxSpins times for the others.
template <class Attention, u32 kWaves, u32 kMaxSpins>
class MlaResult {
  using Target = SplitOutput<kWaves * kQRowsPerWave>;
  static constexpr u32 kBlocks = Target::kBlocks;
  static constexpr u32 kPieces = 4;  // of a block, where many make the result
  static constexpr u32 kUnits = kBlocks * kPieces;
  // LDS in which a wave transposes 64 output columns: 32 rows of 256 bytes, swizzled.
  static constexpr u32 kTransposeBytes = kQRowsPerWave * 64 * 4,
                       kWeightsAt = kWaves * kTransposeBytes;

 public:
  static constexpr u32 kLds =
      kWeightsAt + details::kWeightPitch<kWaves * kQRowsPerWave> * kMaxShared * 4;

  __device__ MlaResult(const Attention& attention, const Target& target, LdsBytes* lds, u32 lane)
      : attention_(attention),
        target_(target),
        lds_(lds),
        lane_(lane),
        column_(wave_id() * kQRowsPerWave + lane % kQRowsPerWave),
        out_(target.result()) {}

  // Stores the output of a whole sequence, the lane's row scaled by `factor`.
  __device__ void store(f32 factor) const {
#pragma nounroll
    for (u32 block = 0; block < kBlocks; ++block) {
      F32x4 quads[8];
      quads_of(block, quads);
#pragma unroll
      for (F32x4& four : quads) four *= factor;
      store_block(block, quads);
    }
  }

  // Stores a partial, whose statistics are stored already, and reduces this workgroup's slice;
  // `sharers` partials have a slice.
  __device__ void store_partial(const SplitPartials& split_partials, u32 sharers) const {
    const bool is_shared = split_partials.count <= kMaxShared;
    // Few sharers reduce whole blocks and keep their own in registers; with more, each stores its
    // whole partial.
    const bool is_few = is_shared && sharers <= kBlocks;
    const auto slice_of = [&](u32 split_idx) {
      return is_few ? OutputSlice::make<kBlocks>(split_idx, sharers)
                    : OutputSlice::make<kUnits>(split_idx, sharers);
    };
    const auto first_of = [](u64 bits) { return static_cast<u32>(__builtin_ctzll(bits)); };
    OutputSlice slice = slice_of(split_partials.split_idx);
    store_blocks(split_partials, is_few ? slice : OutputSlice{kBlocks, kBlocks}, false);
    CombineBarrier barrier(target_.counter(0, split_partials(0)), split_partials.split_idx,
                           split_partials.count, !slice.is_nothing(),
                           sharers < kUnits ? sharers : kUnits,
                           reinterpret_cast<RFOPS_LDS u64*>(lds_ + kWeightsAt));
    PartialRange range = {0, 1, split_partials.count};
    u64 abandoned = 0;  // whose shares this workgroup makes, too
    if (is_shared) {
      if (!barrier.template arrive_and_wait<kMaxSpins>()) {
        if (slice.is_nothing()) return;
        if (is_few) store_blocks(split_partials, slice, true);
        if (!barrier.abandon()) return;
      }
      abandoned = barrier.abandoned_slices();
      if (slice.is_nothing() && abandoned == 0) return;
    } else {
      // After the tree, the last workgroup to arrive reduces everything.
      workgroup_barrier();
      if (!reduce_upward(target_, split_partials.split_idx, split_partials.count, column_,
                         split_partials, lds_ + kWeightsAt, range))
        return;
      slice = {0, kBlocks};
    }
    const auto partial_of = range.select(split_partials);
    weigh(range.count, partial_of,
          slice.contains(0) || (abandoned != 0 && slice_of(first_of(abandoned)).contains(0)));
    for (u32 own_idx = is_few ? split_partials.split_idx : kNotKept;; own_idx = kNotKept) {
      is_few || !is_shared ? make_slice<true>(slice, range.count, partial_of, own_idx)
                           : make_slice<false>(slice, range.count, partial_of, kNotKept);
      if (abandoned == 0) break;
      slice = slice_of(first_of(abandoned));
      abandoned &= abandoned - 1;
    }
    if (is_shared) barrier.finish();
  }

 private:
  // Inline assembly, because the compiler would move the whole output from AGPRs to VGPRs.
  __device__ void quads_of(u32 block, F32x4 (&quads)[8]) const {
    static_for<kBlocks>([&](auto b) {
      if (block != b) return;
#pragma unroll
      for (u32 i = 0; i < 8; ++i) quads[i] = from_accumulators(attention_.quad(b, i));
    });
  }
  __device__ MlaBlock block_of(u32 block) const {
    F32x4 quads[8];
    quads_of(block, quads);
    return MlaBlock::make(quads);
  }
  // Stores the blocks that are in `slice`, or those that are not.
  __device__ void store_blocks(const SplitPartials& split_partials, const OutputSlice& slice,
                               bool in_slice) const {
#pragma nounroll
    for (u32 block = 0; block < kBlocks; ++block) {
      if (slice.contains(block) != in_slice) continue;
      const MlaBlock packed = block_of(block);
      wait_vmcnt<0>();  // a part at once would keep memory from all other workgroups
      target_.store_partial(split_partials(split_partials.split_idx), block, packed);
    }
  }

  // Stores a block of the output, transposed in LDS: adjacent lanes store adjacent columns of a
  // row.
  __device__ void store_block(u32 block, const F32x4 (&quads)[8]) const {
    LdsBytes* const mine = lds_ + wave_id() * kTransposeBytes;
    const auto lds_ptr = [&](u32 column, u32 d) {
      return reinterpret_cast<RFOPS_LDS F32x4*>(mine + column * 256 + (d / 4 ^ column % 16) * 16);
    };
#pragma unroll
    for (u32 i = 0; i < 8; ++i) *lds_ptr(lane_ % 32, Attention::quad_at(i, lane_)) = quads[i];
    wait_lgkmcnt();
    sched_barrier();
    const u32 lane_row = lane_ / 16, d = lane_ % 16 * 4;
    F32x4 rows[kQRowsPerWave / 4];
#pragma unroll
    for (u32 i = 0; i < kQRowsPerWave / 4; ++i) rows[i] = *lds_ptr(i * 4 + lane_row, d);
    sched_barrier();
#pragma unroll
    for (u32 i = 0; i < kQRowsPerWave / 4; ++i) {
      const u32 column = wave_id() * kQRowsPerWave + i * 4 + lane_row;
      Target::store(out_, rows[i], column, block * 64 + d);
    }
    wait_lgkmcnt();
    sched_barrier();
  }

  __device__ RFOPS_LDS f32* weights() const {
    return reinterpret_cast<RFOPS_LDS f32*>(lds_ + kWeightsAt);
  }
  // Computes the weights of the partials in LDS; stores the rows' lse if `stores_lse`.
  template <class PartialOf>
  __device__ void weigh(u32 count, PartialOf partial_of, bool stores_lse) const {
    details::weigh_columns(target_, count, true, partial_of, weights(),
                           [&](u32 column, SoftmaxStats stats) {
                             if (stores_lse) target_.store_lse(column, stats);
                           });
    workgroup_barrier();
  }
  // Reduces a slice of the output from the partials: blocks, or quarters of blocks.
  template <bool kFullBlocks, class PartialOf>
  __device__ void make_slice(const OutputSlice& slice, u32 count, PartialOf partial_of,
                             u32 own_idx) const {
    constexpr u32 kQuads = kFullBlocks ? 8 : 8 / kPieces;
    constexpr u32 kInFlight =
        kFullBlocks ? 3 : 12;  // parts on their way: as many as registers hold
#pragma nounroll
    for (u32 unit = slice.begin; unit < slice.end; ++unit) {
      const u32 block = kFullBlocks ? unit : unit / kPieces;
      const u32 quad_begin = kFullBlocks ? 0 : unit % kPieces * kQuads;
      F32x4 sums[kQuads];
      details::combine_partials<kInFlight>(sums, target_, {block, quad_begin, column_}, count,
                                           partial_of, weights(), own_idx, [&](auto& own_block) {
                                             if constexpr (kFullBlocks) own_block = block_of(block);
                                           });
      if constexpr (kFullBlocks) {
        store_block(block, sums);
        continue;
      }
#pragma unroll
      for (u32 i = 0; i < kQuads; ++i) {
        const u32 d = block * 64 + Attention::quad_at(quad_begin + i, lane_);
        Target::store(out_, sums[i], column_, d);
      }
    }
  }

  const Attention& attention_;
  const Target& target_;
  LdsBytes* lds_;
  u32 lane_, column_;
  Buffer out_;
};

}  // namespace rfops
