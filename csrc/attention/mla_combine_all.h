// A sequence's few parts of 16 columns, added up by those who made them, a share of the sums each.
//
// A workgroup leaves its part (mla_combine_tree.h), counts up, and waits until all have: then each
// wave has of its quarter of the sums as much as the others, reads it of all parts, and makes that
// much of the result. One step, and each compute unit reads as much as it left: 4 sequences of
// 1,024 tokens, 16 parts each, took 12.2 us with two steps of a tree, and 10.0 so (estimated,
// MI355X).
//
// Who waits too long goes, and says so: others may not be resident, as where another kernel has
// their compute units. The last to come makes the shares of those who have gone; who has more
// sequences to work on goes at once. So nobody waits for ever, and whoever makes a share, its sums
// are the same.
//
// Layout. A piece is a quad of each of 64, 32 or 16 lanes, for up to 8, 16 or 32 parts: 1, 2 or 4
// groups of a wave's lanes read it of eight parts each.
#pragma once

#include "attention/mla_combine_tree.h"
#include "attention/work_partition.h"
#include "rfops/wave/reduce.h"

namespace rfops {

struct CombineAll : PartialStore {
  static constexpr u32 kMost = 32;  // parts
  static constexpr u32 kQuads = 8;  // of a lane

  // Part `at.own` of `at.count`, which is left. Calls make(totals, x, lane, quad) for what it has
  // of the result: what `lane` has as its x-th quad, times factor(totals). It waits for kTurns
  // turns at most, and not at all if it `has_more`.
  template <u32 kTurns, class SlotOf, class Factor, class Make>
  __device__ void gather(const MlaPlace& at, bool has_more, SlotOf slot_of, Factor factor,
                         Make make) const {
    const auto s_barrier = [&](auto share) {
      meet_others<kTurns>(at, has_more, slot_of(0), share, factor, make);
    };
    const u32 count = readfirstlane(at.count);
    if (count <= 4) return s_barrier(Share<4, 1>{});
    if (count <= 8) return s_barrier(Share<8, 1>{});
    if (count <= 16) return s_barrier(Share<8, 2>{});
    s_barrier(Share<8, 4>{});
  }

 private:
  // In a word: how many came, how many look no more, and a bit for each who left its share.
  static constexpr u32 kMostCounted = 64;
  static constexpr u64 kCame = 1, kLeft = kMostCounted, kGone = kMostCounted * kMostCounted;
  static_assert(kMost < kMostCounted && kMost <= 32);

  __device__ static u32 came(u64 word) { return static_cast<u32>(word) % kMostCounted; }
  __device__ static u32 left(u64 word) { return static_cast<u32>(word / kLeft) % kMostCounted; }
  __device__ static u64 scalar(u64 word) {
    return readfirstlane(static_cast<u32>(word)) | u64{readfirstlane(static_cast<u32>(word >> 32))}
                                                       << 32;
  }
  // Adds to a word, which gives what it was before, in the first lane.
  __device__ u64 add(u64* word, u64 what) const {
    u64 before = 0;
    if (lane == 0) {
      before = __hip_atomic_fetch_add(word, what, __ATOMIC_RELAXED, kAgentScope);
    }
    return before;
  }
  // Whether all have come.
  template <u32 kTurns>
  __device__ static bool waits(u64* word, u32 count) {
#pragma nounroll
    for (u32 turn = 0; turn < kTurns; ++turn) {
      const u32 now = __hip_atomic_load(low(word), __ATOMIC_RELAXED, kAgentScope);
      if (came(readfirstlane(now)) == readfirstlane(count)) return true;
      __builtin_amdgcn_s_sleep(1);
    }
    return false;
  }

  // Pieces of a wave, from .. to - 1, that one part makes, and where this lane has its parts of
  // them. kGroups groups of lanes read kParts parts each.
  template <u32 kParts, u32 kGroups>
  struct Share {
    static constexpr u32 kLanes = kWaveSize / kGroups, kAtOnce = 2 * kQuads / kParts;
    u32 from, to, first;  // the first part of this lane's
    const SoftmaxStats* totals[kParts];
    const u32* words[kParts];

    // Of part `own`; where there are fewer parts the last one again. Slots are two apart, but the
    // second one of a sequence follows its first, `slot`.
    __device__ void find(const CombineAll& all, const MlaPlace& at, u32 own, u32 slot) {
      // Of pieces by parts, rounded down: with a half more no quotient is near a whole number.
      const f32 each = __builtin_amdgcn_rcpf(static_cast<f32>(at.count)) * (kGroups * kQuads);
      const f32 half = each / (2 * kGroups * kQuads);
      from = static_cast<u32>(__builtin_fmaf(static_cast<f32>(own), each, half));
      to = static_cast<u32>(__builtin_fmaf(static_cast<f32>(own + 1), each, half));
      first = kGroups == 1 ? 0 : all.lane / kLanes * kParts;
      const u32 begin = first < at.count ? first : at.count - 1;
      const u32 begin_slot = slot + (begin == 0 ? 0 : 2 * begin * at.stride - 1);
      totals[0] = all.totals(begin_slot) + all.lane % kQRowsPerTile;
      words[0] = all.part(begin_slot) - all.lane * kWords + place(all.lane, 0) * kWords;
#pragma unroll
      for (u32 i = 1; i < kParts; ++i) {
        u32 there = at.count;
        force_vgpr(there);  // no mask is kept
        const u32 step = 2 * at.stride - (i == 1 && first == 0 ? 1 : 0);
        totals[i] = totals[i - 1] + (first + i < there ? step * kTotals : 0);
        words[i] = words[i - 1] + (first + i < there ? step * kPart : 0);
      }
      // While stores are on their way, and not where they are wanted.
#pragma unroll
      for (u32 i = 0; i < kParts; ++i) {
        totals[i] = pointer_in_vgpr(totals[i]);
        words[i] = pointer_in_vgpr(words[i]);
      }
    }
    // What this lane has of them, and has to add up.
    struct Parts {
      SoftmaxStats all[kParts];
      u32 words[kParts][kAtOnce][kWords];
    };
    __device__ u32 pieces() const { return readfirstlane(to - from); }
    __device__ void read(Parts& parts) const {
#pragma unroll
      for (u32 i = 0; i < kParts; ++i) parts.all[i] = *totals[i];
#pragma unroll
      for (u32 q = 0; q < kAtOnce; ++q) {
        if (q >= pieces()) continue;
#pragma unroll
        for (u32 i = 0; i < kParts; ++i) {
          __builtin_memcpy(parts.words[i][q], words[i] + q * (kLanes * kWords), 4 * kWords);
        }
      }
      sched_barrier();  // all of it is on its way before the first is waited for
    }
    // The q-th piece's, as one lane after the other has them in a part.
    __device__ u32 place(u32 lane, u32 q) const { return (from + q) * kLanes + lane % kLanes; }
  };

  // Counts this part, which is written, and makes what is to be made here.
  template <u32 kTurns, class AnyShare, class Factor, class Make>
  __device__ void meet_others(const MlaPlace& at, bool has_more, u32 slot, AnyShare share,
                              Factor factor, Make make) const {
    u64* const word = counter(at.level, slot);
    const u64 goes = (kGone << at.own) + kLeft;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    u64 before = add(word, has_more ? kCame + goes : kCame);
    sched_barrier();
    share.find(*this, at, at.own, slot);
    sched_barrier();  // what is found is so while the count is on its way
    before = scalar(before);
    const bool is_last = came(before) + 1 == readfirstlane(at.count);
    u32 others = is_last ? static_cast<u32>(before / kGone) : 0;
    bool has_left = has_more;
    if (has_more) {
      if (!is_last) return;
    } else if (!is_last && !waits<kTurns>(word, at.count)) {
      before = scalar(add(word, goes));
      if (came(before) != readfirstlane(at.count)) return;  // else the last one did not see that
      has_left = true;
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    typename AnyShare::Parts parts;
    share.read(parts);
    if (!has_left) before = add(word, kLeft);
    const bool is_out = left(scalar(before)) + 1 == readfirstlane(at.count);
    while (true) {
      make_share(share, parts, at.count, factor, make);
      if (others == 0) break;
      share.find(*this, at, static_cast<u32>(__builtin_ctz(others)), slot);
      share.read(parts);
      others &= others - 1;
    }
    // Nobody looks at it any more: zero, for the next launch.
    if (is_out && lane == 0) {
      __hip_atomic_fetch_and(word, u64{0}, __ATOMIC_RELAXED, kAgentScope);
    }
  }

  template <u32 kParts, u32 kGroups, class Factor, class Make>
  __device__ void make_share(const Share<kParts, kGroups>& share,
                             const typename Share<kParts, kGroups>::Parts& parts, u32 count,
                             Factor factor, Make make) const {
    using Own = Share<kParts, kGroups>;
    constexpr u32 kAtOnce = Own::kAtOnce, kLanes = Own::kLanes;
    const u32 pieces = share.pieces();
    const auto over_groups = [](f32 value, auto op) {
      return reduce_lanes<kWaveSize, kLanes>(value, op);
    };
    const auto sum_of = [](f32 a, f32 b) { return a + b; };
    SoftmaxStats sum = {kMinScore, 0.0f};
#pragma unroll
    for (const SoftmaxStats& one : parts.all) sum.most = __builtin_fmaxf(sum.most, one.most);
    sum.most = over_groups(sum.most, [](f32 a, f32 b) { return __builtin_fmaxf(a, b); });
    f32 weights[kParts];
#pragma unroll
    for (u32 i = 0; i < kParts; ++i) {
      u32 there = count;
      force_vgpr(there);  // no mask is kept
      weights[i] =
          share.first + i < there ? __builtin_amdgcn_exp2f(parts.all[i].most - sum.most) : 0.0f;
      sum.sum += weights[i] * parts.all[i].sum;
    }
    sum.sum = over_groups(sum.sum, sum_of);
    const f32 times = factor(sum);
#pragma unroll
    for (u32 q = 0; q < kAtOnce; ++q) {
      if (q >= pieces) continue;
      F32x4 quad = {};
#pragma unroll
      for (u32 i = 0; i < kParts; ++i) quad += weights[i] * widened(parts.words[i][q]);
#pragma unroll
      for (u32 r = 0; r < 4; ++r) quad[r] = over_groups(quad[r], sum_of) * times;
      const u32 at = share.place(lane, q);
      if (lane < kLanes) make(sum, at / kWaveSize, at % kWaveSize, quad);
    }
  }
};

}  // namespace rfops
