// Where what a workgroup has of a sequence's many columns goes: to the result, or to others.
//
// A block is 64 elements of each column. A part that others share is left in memory but for the
// blocks that this workgroup makes (mla_combine_slices.h); it adds those of all parts up, its own
// from its registers. 128 sequences of 4,097 tokens and 128 heads, MI300X: 330k clk where the last
// one to come made all of the result, 48k of them for it, 313k so; 16 of 16,384 MI355X 112 and 80
// us (estimated).
#pragma once

#include "attention/mla_combine_slices.h"
#include "attention/mla_kv_splits.h"
#include "attention/mla_online_softmax.h"

namespace rfops {

// Columns: of a wave. It waits kTurns turns for others, at most.
template <class Columns, u32 kWaves, u32 kTurns>
class MlaResult {
  using Target = SplitOutput<kWaves * kQRowsPerWave>;
  static constexpr u32 kBlocks = Target::kBlocks;
  static constexpr u32 kPieces = 4;  // of a block, where many make the result
  static constexpr u32 kUnits = kBlocks * kPieces;
  // Where a wave turns 64 elements of its result round: 32 columns of 256 bytes, permuted.
  static constexpr u32 kTurnBytes = kQRowsPerWave * 64 * 4, kWeightsAt = kWaves * kTurnBytes;

 public:
  static constexpr u32 kLds =
      kWeightsAt + details::kWeightPitch<kWaves * kQRowsPerWave> * kMostShared * 4;

  __device__ MlaResult(const Columns& own, const Target& target, LdsBytes* lds, u32 lane)
      : own_(own),
        target_(target),
        lds_(lds),
        lane_(lane),
        column_(wave_id() * kQRowsPerWave + lane % kQRowsPerWave),
        out_(target.result()) {}

  // All of a sequence, of a lane's column times `factor`.
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

  // A part of a sequence, of which `sharers` parts may make something. Its totals are written.
  __device__ void share(const SplitPartials& slots, u32 sharers) const {
    const bool is_shared = slots.count <= kMostShared;
    // A few make whole blocks, and keep these; of more each leaves all it has.
    const bool is_few = is_shared && sharers <= kBlocks;
    const auto share_of = [&](u32 part) {
      return is_few ? MlaShare::of<kBlocks>(part, sharers) : MlaShare::of<kUnits>(part, sharers);
    };
    const auto first_of = [](u64 bits) { return static_cast<u32>(__builtin_ctzll(bits)); };
    MlaShare share = share_of(slots.own);
    leave(slots, is_few ? share : MlaShare{kBlocks, kBlocks}, false);
    CombineBarrier meeting(target_.counter(0, slots(0)), slots.own, slots.count,
                           !share.is_nothing(), sharers < kUnits ? sharers : kUnits,
                           reinterpret_cast<RFOPS_LDS u64*>(lds_ + kWeightsAt));
    MlaParts parts = {0, 1, slots.count};
    u64 others = 0;  // whose shares this workgroup makes, too
    if (is_shared) {
      if (!meeting.template s_barrier<kTurns>()) {
        if (share.is_nothing()) return;
        if (is_few) leave(slots, share, true);
        if (!meeting.go()) return;
      }
      others = meeting.abandoned_slices();
      if (share.is_nothing() && others == 0) return;
    } else {
      // The last one to come, after a tree, makes all of it.
      workgroup_barrier();
      if (!reduce_upward(target_, slots.own, slots.count, column_, slots, lds_ + kWeightsAt, parts))
        return;
      share = {0, kBlocks};
    }
    const auto part = parts.of(slots);
    weigh(parts.count, part, share.has(0) || (others != 0 && share_of(first_of(others)).has(0)));
    for (u32 kept = is_few ? slots.own : kNotKept;; kept = kNotKept) {
      is_few || !is_shared ? make<true>(share, parts.count, part, kept)
                           : make<false>(share, parts.count, part, kNotKept);
      if (others == 0) break;
      share = share_of(first_of(others));
      others &= others - 1;
    }
    if (is_shared) meeting.end();
  }

 private:
  // By assembly, as the compiler would have all of the result where arithmetic has its registers.
  __device__ void quads_of(u32 block, F32x4 (&quads)[8]) const {
    static_for<kBlocks>([&](auto b) {
      if (block != b) return;
#pragma unroll
      for (u32 i = 0; i < 8; ++i) quads[i] = from_accumulators(own_.quad(b, i));
    });
  }
  __device__ MlaBlock block_of(u32 block) const {
    F32x4 quads[8];
    quads_of(block, quads);
    return MlaBlock::of(quads);
  }
  // The blocks that are, or are not, of `share`.
  __device__ void leave(const SplitPartials& slots, const MlaShare& share, bool are) const {
#pragma nounroll
    for (u32 block = 0; block < kBlocks; ++block) {
      if (share.has(block) != are) continue;
      const MlaBlock made = block_of(block);
      wait_vmcnt<0>();  // a part at once would keep memory from all other workgroups
      target_.store_part(slots(slots.own), block, made);
    }
  }

  // A block of the result, turned round in LDS: lanes side by side write a column's elements.
  __device__ void store_block(u32 block, const F32x4 (&quads)[8]) const {
    LdsBytes* const mine = lds_ + wave_id() * kTurnBytes;
    const auto place = [&](u32 column, u32 d) {
      return reinterpret_cast<RFOPS_LDS F32x4*>(mine + column * 256 + (d / 4 ^ column % 16) * 16);
    };
#pragma unroll
    for (u32 i = 0; i < 8; ++i) *place(lane_ % 32, Columns::quad_at(i, lane_)) = quads[i];
    wait_lgkmcnt();
    sched_barrier();
    const u32 first = lane_ / 16, d = lane_ % 16 * 4;
    F32x4 turned[kQRowsPerWave / 4];
#pragma unroll
    for (u32 i = 0; i < kQRowsPerWave / 4; ++i) turned[i] = *place(i * 4 + first, d);
    sched_barrier();
#pragma unroll
    for (u32 i = 0; i < kQRowsPerWave / 4; ++i) {
      const u32 column = wave_id() * kQRowsPerWave + i * 4 + first;
      Target::store(out_, turned[i], column, block * 64 + d);
    }
    wait_lgkmcnt();
    sched_barrier();
  }

  __device__ RFOPS_LDS f32* weights() const {
    return reinterpret_cast<RFOPS_LDS f32*>(lds_ + kWeightsAt);
  }
  // What parts that are there count, into LDS; the columns' lse where `says` so.
  template <class Part>
  __device__ void weigh(u32 count, Part part, bool says) const {
    details::weigh_columns(target_, count, true, part, weights(),
                           [&](u32 column, SoftmaxStats all) {
                             if (says) target_.store_lse(column, all);
                           });
    workgroup_barrier();
  }
  // Some of the result from parts that are there: blocks, or pieces of them.
  template <bool kWhole, class Part>
  __device__ void make(const MlaShare& share, u32 count, Part part, u32 kept) const {
    constexpr u32 kQuads = kWhole ? 8 : 8 / kPieces;
    constexpr u32 kAtOnce = kWhole ? 3 : 12;  // parts on their way: as many as registers hold
#pragma nounroll
    for (u32 unit = share.from; unit < share.to; ++unit) {
      const u32 block = kWhole ? unit : unit / kPieces;
      const u32 first = kWhole ? 0 : unit % kPieces * kQuads;
      F32x4 sums[kQuads];
      details::add_parts<kAtOnce>(sums, target_, {block, first, column_}, count, part, weights(),
                                  kept, [&](auto& made) {
                                    if constexpr (kWhole) made = block_of(block);
                                  });
      if constexpr (kWhole) {
        store_block(block, sums);
        continue;
      }
#pragma unroll
      for (u32 i = 0; i < kQuads; ++i) {
        const u32 d = block * 64 + Columns::quad_at(first + i, lane_);
        Target::store(out_, sums[i], column_, d);
      }
    }
  }

  const Columns& own_;
  const Target& target_;
  LdsBytes* lds_;
  u32 lane_, column_;
  Buffer out_;
};

}  // namespace rfops
