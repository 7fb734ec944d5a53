// sums[m][n] += x[m] . w[n] along K, of one wave by itself: 16 kM rows of x, 16 kN of w, bf16.
//
// No wave waits for another. x lies packed, in an L2; w, from memory, by way of
// LDS that is the wave's own (bf16_row_loaders.h), both kPrefetch steps of 128 of K ahead. Loads
// come back in the order in which they are asked for, so that is the order of their use: of a step
// w, then the first half of x, then the second. While a piece of 32 is multiplied, the next one of
// w is read from LDS; while a step's last one is, w of the next step takes its place there.
#pragma once

#include "attention/bf16_row_loaders.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

namespace details {

// act(i) of the m-th share, of kSlices, of kCount.
template <u32 kCount, u32 kSlices, class Fn>
__device__ inline void for_each_slice(u32 m, Fn fn) {
#pragma unroll
  for (u32 i = m * kCount / kSlices; i < (m + 1) * kCount / kSlices; ++i) fn(i);
}

// Each wave comes first in its turn: else older ones would be done long before the last.
__device__ inline void rotate_priority(u32 step) {
  switch (step % 4) {
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
template <u32 kM, u32 kN, class Issue>
__device__ inline void multiply_piece(F32x4 (&acc)[kM * kN], const U32x4 (&x)[kM],
                                      const U32x4 (&w)[kN], Issue issue) {
#pragma unroll
  for (u32 m = 0; m < kM; ++m) {
    issue(m);
    sched_barrier();
#pragma unroll
    for (u32 n = 0; n < kN; ++n) {
      acc[m * kN + n] = mfma_16x16x32<bf16>(w[n], x[m], acc[m * kN + n]);
    }
  }
}

// Steps from `k_begin` on: kPrefetch of them side by side, the next ones `k_stride` behind, up to
// both ends. `wave_lds`: 2 * WaveRows::kHalfBytes of LDS. also() once, behind the first steps.
template <u32 kM, u32 kN, u32 kPrefetch, class LateLoads>
__device__ inline void multiply_wave(F32x4 (&acc)[kM * kN], WaveRowLoader<kN, kPrefetch>& w,
                                     PackedRows<kM, kPrefetch>& x, u32 k_begin, u32 k_stride,
                                     LdsBytes* wave_lds, LateLoads issue_late_loads) {
  using Weights = WaveRowLoader<kN, kPrefetch>;
  constexpr u32 kLoadsPerHalf = kPieces / 2 * kM, kLoads = Weights::kLoads;
  const LdsFragmentOffsets frag_offsets = lds_fragment_offsets(lane_id());
  U32x4 w_frags[2][kN];
  const auto read = [&](u32 piece, u32 n) {
    w_frags[piece % 2][n] =
        lds_load_b128(wave_lds + piece / 2 * Weights::kHalfBytes + n * kLdsTile +
                      (piece % 2 ? frag_offsets.high : frag_offsets.low));
  };
  // Of the step that comes `step` after the first one from k on.
  const auto k_of_step = [&](u32 k, u32 step) {
    return k + step / kPrefetch * k_stride + step % kPrefetch * kStepOfK;
  };
  const auto load_x = [&](u32 k, u32 step, u32 half, u32 i) {
    x.load(step % kPrefetch, k_of_step(k, step), half * (kPieces / 2) + i / kM, i % kM);
  };
  // Lines of a row that are side by side follow each other.
  const auto load_w = [&](u32 k, u32 i) {
#pragma unroll
    for (u32 s = 0; s < kPrefetch; ++s) w.load(s, k + s * kStepOfK, i);
  };
#pragma unroll
  for (u32 i = 0; i < kLoads; ++i) load_w(k_begin, i);
#pragma unroll
  for (u32 half = 0; half < 2 * kPrefetch - 1; ++half) {
#pragma unroll
    for (u32 i = 0; i < kLoadsPerHalf; ++i) load_x(k_begin, half / 2, half % 2, i);
  }
  sched_barrier();
#pragma unroll
  for (u32 i = 0; i < kLoads; ++i) w.store(0, wave_lds, i);
#pragma unroll
  for (u32 n = 0; n < kN; ++n) read(0, n);
  const auto do_k_step = [&](u32 k, u32 s) {
    const auto piece = [&](u32 p, auto issue) {
      multiply_piece<kM, kN>(acc, x.regs[s][p], w_frags[p % 2], issue);
    };
    piece(0, [&](u32 m) {
      details::for_each_slice<kN, kM>(m, [&](u32 n) { read(1, n); });
      details::for_each_slice<kLoadsPerHalf, kM>(
          m, [&](u32 i) { load_x(k, s + kPrefetch - 1, 1, i); });
    });
    piece(1, [&](u32 m) {
      details::for_each_slice<kN, kM>(m, [&](u32 n) { read(2, n); });
      if (s == kPrefetch - 1) {
        details::for_each_slice<kLoads, kM>(m, [&](u32 i) { load_w(k + k_stride, i); });
      }
    });
    piece(2, [&](u32 m) {
      details::for_each_slice<kN, kM>(m, [&](u32 n) { read(3, n); });
      details::for_each_slice<kLoadsPerHalf, kM>(m, [&](u32 i) { load_x(k, s + kPrefetch, 0, i); });
    });
    piece(3, [&](u32 m) {
      details::for_each_slice<kLoads + kN, kM>(m, [&](u32 i) {
        i < kLoads ? w.store((s + 1) % kPrefetch, wave_lds, i) : read(0, i - kLoads);
      });
    });
  };
  u32 number = wave_id();
  for (u32 k = k_begin; k < w.k_end; k += k_stride) {
    details::rotate_priority(number++);
#pragma unroll
    for (u32 s = 0; s < kPrefetch; ++s) do_k_step(k, s);
    if (k == k_begin) issue_late_loads();
  }
  set_wave_priority<0>();
}

}  // namespace rfops
