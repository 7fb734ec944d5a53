// Sums in fp32 of tiles whose blocks of K have scales of their own.
//
// A matrix instruction makes the partial sum of a block from zero; then sum += scale * partial on
// the vector ALU. Four tiles form a group, and a group's partials are promoted while the matrix
// cores work on the next one, one or four multiply-adds in the shadow of each instruction: nothing
// waits for a result. The order of the tiles is the order of `sum`.
//
// Each multiply-add is pinned where it stands: the compiler would otherwise keep partials of many
// groups and spill. Build with -fno-slp-vectorize, as packed multiply-adds do not run beside the
// matrix cores.
#pragma once

#include "rfops/matrix.h"
#include "rfops/types.h"
#include "rfops/waits.h"

namespace rfops {

constexpr u32 kGroup = 4;  // tiles

template <u32 kTiles>
struct Promoted {
  static_assert(kTiles % kGroup == 0, "whole groups");
  F32x4 sum[kTiles];
  F32x4 part[kGroup];  // of the group before
  f32 scale[kGroup];

  // Multiplies the tiles from kFirst on, and adds up the group before them, of this K-step or the
  // last. a(t), b(t) and scale_of(t) are of tile kFirst + t.
  template <u32 kFirst, class A, class B, class ScaleOf>
  __device__ void multiply(A a, B b, ScaleOf scale_of) {
    constexpr u32 kBefore = (kFirst + kTiles - kGroup) % kTiles;
    constexpr u32 kAtOnce = 4 / kMatrixSteps;  // elements that an instruction hides
    F32x4 next[kGroup];
#pragma unroll
    for (u32 i = 0; i < kMatrixSteps * kGroup; ++i) {
      const u32 step = i / kGroup, t = i % kGroup;
      next[t] = multiply_step(step, a(t), b(t), step == 0 ? F32x4{} : next[t]);
      const u32 old = i * kAtOnce / 4;
#pragma unroll
      for (u32 e = i * kAtOnce % 4; e < i * kAtOnce % 4 + kAtOnce; ++e) {
        sum[kBefore + old][e] = __builtin_fmaf(part[old][e], scale[old], sum[kBefore + old][e]);
      }
      pin(sum[kBefore + old]);
      keep_order();
    }
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
      part[t] = next[t];
      scale[t] = scale_of(t);
    }
  }

  // After the last K-step: the last group.
  __device__ void drain() {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) pin(sum[t]);  // nothing of the epilogue goes into the loop
    keep_order();
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        F32x4& last = sum[kTiles - kGroup + t];
        last[e] = __builtin_fmaf(part[t][e], scale[t], last[e]);
      }
    }
  }
};

#if defined(__gfx950__)

// The same where all scales are positive powers of two: the matrix cores apply them and sum.
template <u32 kTiles>
struct Exponents {
  struct Scale {
    u32 a, b;
  };
  F32x4 sum[kTiles];

  template <u32 kFirst, class A, class B, class ScaleOf>
  __device__ void multiply(A a, B b, ScaleOf scale_of) {
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
      const Scale scale = scale_of(t);
      F32x4& own = sum[kFirst + t];
      own = multiply_exponents(a(t), scale.a, b(t), scale.b, own);
      keep_order();
    }
  }
  __device__ void drain() {}
};

#endif

}  // namespace rfops
