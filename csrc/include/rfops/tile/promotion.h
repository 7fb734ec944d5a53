// Sums in fp32 of tiles whose blocks of K have scales of their acc.
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

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr u32 kGroup = 4;  // tiles

// Nothing else to do beside the matrix cores.
struct Idle {
  __device__ void operator()(u32) const {}
};

template <u32 kTiles>
struct PromotedAcc {
  static_assert(kTiles % kGroup == 0, "whole groups");
  F32x4 sum[kTiles];
  F32x4 partial[kGroup];  // of the group before
  f32 scale[kGroup];

  // What of x's and w's scales a tile's scale is made from, and that: computed where this is
  // called.
  using Factor = f32;
  using Scale = f32;
  __device__ static Factor make_factor(f32 scale) { return scale; }
  __device__ static Scale make_scale(Factor x, Factor w) {
    f32 product = x * w;
    force_vgpr(product);
    return product;
  }

  // Multiplies the tiles from kFirst on, and adds up the group that was multiplied before them, by
  // default that in front or the last. a(t), b(t) and scale_of(t) are of tile kFirst + t;
  // beside(i) comes before the i-th instruction of the matrix cores.
  template <u32 kTileBegin, u32 kPrevTile = (kTileBegin + kTiles - kGroup) % kTiles, class A,
            class B, class MakeScale, class Interleave = Idle>
  __device__ void multiply(A a, B b, MakeScale make_scale, Interleave interleave = {}) {
    constexpr u32 kElemsPerMfma = 4 / kMatrixSteps;  // elements that an instruction hides
    F32x4 next[kGroup];
#pragma unroll
    for (u32 i = 0; i < kMatrixSteps * kGroup; ++i) {
      const u32 step = i / kGroup, t = i % kGroup;
      const u32 old = i * kElemsPerMfma / 4;
#pragma unroll
      for (u32 e = i * kElemsPerMfma % 4; e < i * kElemsPerMfma % 4 + kElemsPerMfma; ++e) {
        sum[kPrevTile + old][e] =
            __builtin_fmaf(partial[old][e], scale[old], sum[kPrevTile + old][e]);
      }
      force_vgpr(sum[kPrevTile + old]);
      interleave(i);
      sched_barrier();
      next[t] = mfma_fp8_step(step, a(t), b(t), step == 0 ? F32x4{} : next[t]);
      force_vgpr(next[t]);  // or the compiler may sink it to its use, past a barrier
      sched_barrier();
    }
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
      partial[t] = next[t];
      scale[t] = make_scale(t);
    }
  }

  // After the last K-step: the group that was multiplied last.
  template <u32 kPendingTile = kTiles - kGroup>
  __device__ void drain() {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t)
      force_vgpr(sum[t]);  // nothing of the epilogue goes into the loop
    sched_barrier();
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        F32x4& acc = sum[kPendingTile + t];
        acc[e] = __builtin_fmaf(partial[t][e], scale[t], acc[e]);
      }
    }
  }
};

#if defined(__gfx950__)

// The same where all scales are positive powers of two: the matrix cores apply them and sum.
template <u32 kTiles>
struct ScaledMfmaAcc {
  F32x4 sum[kTiles];

  using Factor = u32;
  struct Scale {
    u32 a, b;
  };
  __device__ static Factor make_factor(f32 scale) {
    constexpr u32 kMantissaBits = 23;
    u32 exponent = __builtin_bit_cast(u32, scale) >> kMantissaBits;
    force_vgpr(exponent);
    return exponent;
  }
  __device__ static Scale make_scale(Factor x, Factor w) { return {w, x}; }

  template <u32 kTileBegin, u32 = 0, class A, class B, class MakeScale>
  __device__ void multiply(A a, B b, MakeScale make_scale) {
#pragma unroll
    for (u32 t = 0; t < kGroup; ++t) {
      const Scale scale = make_scale(t);
      F32x4& acc = sum[kTileBegin + t];
      acc = mfma_mxfp8_16x16x128(a(t), scale.a, b(t), scale.b, acc);
      force_vgpr(acc);
      sched_barrier();
    }
  }
  template <u32 = 0>
  __device__ void drain() {}
};

namespace details {

template <bool kPow2, u32 kTiles>
struct BlockScaledAcc {
  using Type = PromotedAcc<kTiles>;
};
template <u32 kTiles>
struct BlockScaledAcc<true, kTiles> {
  using Type = ScaledMfmaAcc<kTiles>;
};

}  // namespace details

template <bool kPow2, u32 kTiles>
using BlockScaledAcc = details::BlockScaledAcc<kPow2, kTiles>::Type;

#endif

}  // namespace rfops
