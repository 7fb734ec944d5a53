// sums[m][n] += x[m] . w[n] along K, of one wave by itself: 16 kM rows of x, 16 kN of w, bf16.
//
// No wave waits for another. x lies packed, in an L2; w, from memory, by way of
// LDS that is the wave's own (bf16_row_loaders.h), both kAhead steps of 128 of K ahead. Loads come
// back in the order in which they are asked for, so that is the order of their use: of a step w,
// then the first half of x, then the second. While a piece of 32 is multiplied, the next one of w
// is read from LDS; while a step's last one is, w of the next step takes its place there.
#pragma once

#include "attention/bf16_row_loaders.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

namespace details {

// act(i) of the m-th share, of kShares, of kCount.
template <u32 kCount, u32 kShares, class Act>
__device__ inline void each_of_share(u32 m, Act act) {
#pragma unroll
  for (u32 i = m * kCount / kShares; i < (m + 1) * kCount / kShares; ++i) act(i);
}

// Each wave comes first in its turn: else older ones would be done long before the last.
__device__ inline void rotate_priority(u32 turn) {
  switch (turn % 4) {
    case 0:
      return set_wave_priority<0>();
    case 1:
      return set_wave_priority<1>();
    case 2:
      return set_wave_priority<2>();
    default:
      return set_wave_priority<3>();
  }
}

}  // namespace details

// between(m) before the instructions of each m: what lies there hides behind them.
template <u32 kM, u32 kN, class Between>
__device__ inline void multiply_piece(F32x4 (&sums)[kM * kN], const U32x4 (&x)[kM],
                                      const U32x4 (&w)[kN], Between between) {
#pragma unroll
  for (u32 m = 0; m < kM; ++m) {
    between(m);
    sched_barrier();
#pragma unroll
    for (u32 n = 0; n < kN; ++n) {
      sums[m * kN + n] = mfma_16x16x32<bf16>(w[n], x[m], sums[m * kN + n]);
    }
  }
}

// Steps from `first` on: kAhead of them side by side, the next ones `turn` behind, up to both ends.
// `own`: 2 * WaveRows::kHalfBytes of LDS. also() once, behind the first steps.
template <u32 kM, u32 kN, u32 kAhead, class Also>
__device__ inline void multiply_wave(F32x4 (&sums)[kM * kN], WaveRowLoader<kN, kAhead>& w,
                                     PackedRows<kM, kAhead>& x, u32 first, u32 turn, LdsBytes* own,
                                     Also also) {
  using Weights = WaveRowLoader<kN, kAhead>;
  constexpr u32 kOfHalf = kPieces / 2 * kM, kLoads = Weights::kLoads;
  const LdsFragmentOffsets places = lds_fragment_offsets(lane_id());
  U32x4 of_w[2][kN];
  const auto read = [&](u32 piece, u32 n) {
    of_w[piece % 2][n] = lds_load_b128(own + piece / 2 * Weights::kHalfBytes + n * kLdsTile +
                                       (piece % 2 ? places.high : places.low));
  };
  // Of the step that comes `step` after the first one from k on.
  const auto begin = [&](u32 k, u32 step) {
    return k + step / kAhead * turn + step % kAhead * kStepOfK;
  };
  const auto load_x = [&](u32 k, u32 step, u32 half, u32 i) {
    x.load(step % kAhead, begin(k, step), half * (kPieces / 2) + i / kM, i % kM);
  };
  // Lines of a row that are side by side follow each other.
  const auto load_w = [&](u32 k, u32 i) {
#pragma unroll
    for (u32 s = 0; s < kAhead; ++s) w.load(s, k + s * kStepOfK, i);
  };
#pragma unroll
  for (u32 i = 0; i < kLoads; ++i) load_w(first, i);
#pragma unroll
  for (u32 half = 0; half < 2 * kAhead - 1; ++half) {
#pragma unroll
    for (u32 i = 0; i < kOfHalf; ++i) load_x(first, half / 2, half % 2, i);
  }
  sched_barrier();
#pragma unroll
  for (u32 i = 0; i < kLoads; ++i) w.store(0, own, i);
#pragma unroll
  for (u32 n = 0; n < kN; ++n) read(0, n);
  const auto take = [&](u32 k, u32 s) {
    const auto piece = [&](u32 p, auto between) {
      multiply_piece<kM, kN>(sums, x.own[s][p], of_w[p % 2], between);
    };
    piece(0, [&](u32 m) {
      details::each_of_share<kN, kM>(m, [&](u32 n) { read(1, n); });
      details::each_of_share<kOfHalf, kM>(m, [&](u32 i) { load_x(k, s + kAhead - 1, 1, i); });
    });
    piece(1, [&](u32 m) {
      details::each_of_share<kN, kM>(m, [&](u32 n) { read(2, n); });
      if (s == kAhead - 1) {
        details::each_of_share<kLoads, kM>(m, [&](u32 i) { load_w(k + turn, i); });
      }
    });
    piece(2, [&](u32 m) {
      details::each_of_share<kN, kM>(m, [&](u32 n) { read(3, n); });
      details::each_of_share<kOfHalf, kM>(m, [&](u32 i) { load_x(k, s + kAhead, 0, i); });
    });
    piece(3, [&](u32 m) {
      details::each_of_share<kLoads + kN, kM>(
          m, [&](u32 i) { i < kLoads ? w.store((s + 1) % kAhead, own, i) : read(0, i - kLoads); });
    });
  };
  u32 number = wave_id();
  for (u32 k = first; k < w.k_end; k += turn) {
    details::rotate_priority(number++);
#pragma unroll
    for (u32 s = 0; s < kAhead; ++s) take(k, s);
    if (k == first) also();
  }
  set_wave_priority<0>();
}

}  // namespace rfops
