// What a wave of mxfp4_skew.hip does between multiplications: K-steps go through registers to LDS
// and from there to operands, scales to registers. Waves are 2 along M and 2 along N; a part has 32
// rows of x of each wave. Loads are for two steps on, those of scales for one (gfx950).
#pragma once

#include "gemm/mxfp4_skewed_schedule.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

template <u32 kCount, class Act>
__device__ inline void each(Act act) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) act(i);
}

// T: constants, and where a buffer of x and of w lies in LDS.
template <class T>
class PartSteps {
 public:
  static constexpr u32 kMTiles = T::kM / 2 / kTileRows, kNTiles = T::kN / 2 / kTileRows;
  static constexpr u32 kTiles = kMTiles * kNTiles;
  static_assert(kMTiles == 2 * kParts, "a piece of 32 rows is a part's");

  // What a step loads: operands two steps on, scales one step on. How much further than the old
  // tile's the rows of parts lie of which the kernel cannot say whether they have begun then: all
  // by `later`, the first by `first` more.
  struct Ahead {
    u32 k, scale_k, later, first;
  };

  __device__ explicit PartSteps(const Fp4Args& args)
      : m(wave_id() / 2 * (T::kM / 2)),
        n(wave_id() % 2 * (T::kN / 2)),
        x_(args.x_row),
        w_(args.w_row),
        x_scale_(args.x_scale_row),
        w_scale_(args.w_scale_row),
        at_{lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows),
            lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows + 4)} {}

  const u32 m, n;  // its first row of x and of w in the workgroup

  // The first step of a run to LDS, the second on its way: of x the first part. `meanwhile` is
  // done before they are waited for.
  template <class Act>
  __device__ void start(const Source<T>& source, Act meanwhile) {
    X x = x_;
    W w = w_;
    load_all(x, w, source, 0);
    x_scale_.aim_inside(0, 0);
    w_scale_.aim_inside(0, 0);
    each<kScales>([&](u32 i) { load_scale<kParts>(i, source, 0); });
    load_all(x_, w_, source, kStepK);
    sched_barrier();
    meanwhile();
    sched_barrier();
    each<X::kCount>([&](u32 i) {
      if (kFirstPart.have(i % kParts)) x.put(i, T::x(0));
    });
    each<W::kCount>([&](u32 i) { w.put(i, T::w(0)); });
    wait_lgkmcnt();
    s_barrier();
    each<kReads>([&](u32 i) { read<kFirstPart>(i, 0, 0); });
  }

  // After multiplication q of a half: what else is done there.
  template <u32 kStage, u32 kHalf, PairSchedule kPair>
  __device__ void between(u32 q, const Source<T>& source, const Ahead& ahead) {
    constexpr u32 kPart = kPair.begins;
    constexpr Parts kBehind = kStage == 0 ? kPair.own : kPair.next;  // who works a step on
    if (q % At::kPitch == 0 && q / At::kPitch < kReads) {
      constexpr Parts kReadBy = kHalf == 0 ? kPair.own : kBehind;
      read<kReadBy>(q / At::kPitch, 1 - kHalf, kHalf == 0 ? kStage : 1 - kStage);
    }
    if (kHalf == 0) {
      each<kPieces>([&](u32 i) {
        if (q == At::lds_write_offset(i)) put<kBehind>(i, 1 - kStage);
      });
    }
    const u32 at = kHalf * kTiles + q;  // in the step
    if (at == At::before(At::load_at(0))) {
      x_.aim_inside(ahead.k, kTogether<kStage, kPart> ? ahead.later : 0);
    }
    if (at == At::before(At::load_at(X::kCount))) w_.aim_inside(ahead.k, 0);
    each<kPieces>([&](u32 i) {
      if (at == At::load_at(i)) load<kStage, kPart, kPair.next>(i, source, ahead.first);
    });
    if (at == At::before(At::scale_at(0))) {
      x_scale_.aim_inside(ahead.scale_k, kPart >= kParts - 1 ? source.scale_further : 0);
    }
    if (at == At::before(At::scale_at(kParts))) w_scale_.aim_inside(ahead.scale_k, 0);
    each<kScales>([&](u32 i) {
      if (at == At::scale_at(i)) load_scale<kPart>(i, source, 1 - kStage);
    });
  }

  // sum += tile (kI, kJ) of half kHalf of the step in buffer kStage; with kFresh from zero.
  template <u32 kStage, u32 kHalf, u32 kI, u32 kJ, bool kFresh>
  __device__ void multiply(F32x4& sum) const {
    const Operands& own = operands_[kHalf];
    multiply_in_place<kJ % 2 + 2 * kHalf, kI % 2 + 2 * kHalf, kFresh>(
        sum, own.w[kJ], w_scale_.of(kStage, kJ), own.x[kI], x_scale_.of(kStage, kI));
  }

 private:
  using X = StepLoader<T::kM, T::kXShuffled, false>;
  using W = StepLoader<T::kN, T::kShuffled, false>;
  static constexpr u32 kPieces = X::kCount + W::kCount;
  static constexpr u32 kReads = kMTiles + kNTiles, kScales = kReads / 2;
  using At = IssueSchedule<kTiles, kReads, kPieces, kScales>;

  struct Operands {
    U32x4 x[kMTiles], w[kNTiles];
  };

  __device__ static void load_all(X& x, W& w, const Source<T>& source, u32 k) {
    x.aim_inside(k, 0);
    w.aim_inside(k, 0);
    each<X::kCount>([&](u32 i) { kFirstPart.have(i % kParts) ? x.load(source.x, i) : x.pass(); });
    each<W::kCount>([&](u32 i) { w.load(source.w, i); });
    sched_barrier();
  }

  // Whether all parts but the first are on the same side when they are loaded in this step.
  template <u32 kStage, u32 kPart>
  static constexpr bool kTogether = kPart + (kStage == 0) >= kParts - (kStage == 1);
  template <u32 kStage, u32 kPart, Parts kOf>
  __device__ void load(u32 i, const Source<T>& from, u32 first) {
    if (i >= X::kCount) return w_.load(from.w, i - X::kCount);
    const u32 part = i % kParts;
    if (!kOf.have(part)) return x_.pass();
    if constexpr (kTogether<kStage, kPart>) {
      x_.load(from.x, i, kStage == 0 && part == 0 ? first : 0);
    } else {
      x_.load(from.x, i, part <= kPart + (kStage == 0) ? from.further : 0);
    }
  }
  template <u32 kPart>
  __device__ void load_scale(u32 i, const Source<T>& from, u32 stage) {
    if (i >= kParts) return w_scale_.load(from.w_scale, i - kParts, stage);
    x_scale_.load(from.x_scale, i, stage,
                  kPart < kParts - 1 && i <= kPart ? from.scale_further : 0);
  }
  template <Parts kOf>
  __device__ void put(u32 i, u32 buffer) const {
    if (i >= X::kCount) return w_.put(i - X::kCount, T::w(buffer));
    if (kOf.have(i % kParts)) x_.put(i, T::x(buffer));
  }
  // Operand i of a half: first one of each, then those of w, then of x, as they are used.
  template <Parts kOf>
  __device__ void read(u32 i, u32 half, u32 buffer) {
    const u32 at = half == 0 ? at_.low : at_.high;
    const LdsBytes* const x = T::x(buffer) + m * kRowBytes + at;
    const LdsBytes* const w = T::w(buffer) + n * kRowBytes + at;
    if (i >= 1 && i <= kNTiles) {
      operands_[half].w[i - 1] = lds_load_b128(w + (i - 1) * kLdsTile);
    } else {
      const u32 tile = i == 0 ? 0 : i - kNTiles;
      if (kOf.have(tile / 2)) operands_[half].x[tile] = lds_load_b128(x + tile * kLdsTile);
    }
  }

  X x_;
  W w_;
  Scales<kMTiles, false> x_scale_;
  Scales<kNTiles, false> w_scale_;
  LdsFragmentOffsets at_;
  Operands operands_[2];
};

}  // namespace rfops
