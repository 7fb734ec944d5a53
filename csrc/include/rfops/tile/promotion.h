// fp32 accumulators of tiles whose blocks of K have their own scales (promotion).
//
// An MFMA computes the partial sum of one scale block from zero; then acc += scale * partial on the
// vector ALU. kGroup tiles, or as many as a kernel says, form a group. The partials of a group are
// promoted while the MFMAs of the next group run, one or four multiply-adds per MFMA, so no
// instruction waits for a result. The tiles are in the order of `sum`.
//
// Each multiply-add is forced to its position: otherwise the compiler keeps the partials of many
// groups and spills. Build with -fno-slp-vectorize, because packed multiply-adds do not issue
// beside MFMAs.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr u32 kGroup = 4;  // tiles per group

// Issues nothing between MFMAs.
struct Idle {
  __device__ void operator()(u32) const {}
};

// Accumulators with promotion on the vector ALU, for scales of any value.
template <u32 kTiles, u32 kGroupTiles = kGroup>
struct PromotedAcc {
  static_assert(kTiles % kGroupTiles == 0, "a whole number of groups");
  F32x4 sum[kTiles];
  F32x4 partial[kGroupTiles];  // of the previous group
  f32 scale[kGroupTiles];

  // A tile's scale is make_scale of one factor of x and one of w. Both are materialised where these
  // functions are called.
  using Factor = f32;
  using Scale = f32;
  __device__ static Factor make_factor(f32 scale) { return scale; }
  __device__ static Scale make_scale(Factor x, Factor w) {
    f32 product = x * w;
    force_vgpr(product);
    return product;
  }

  // Multiplies the group of tiles from kTileBegin on, and promotes the group from kPrevTile on, by
  // default the one before it in cyclic order. a(t), b(t) and scale_of(t) belong to tile kTileBegin
  // + t. interleave(i) is called before the i-th MFMA.
  template <u32 kTileBegin, u32 kPrevTile = (kTileBegin + kTiles - kGroupTiles) % kTiles, class A,
            class B, class MakeScale, class Interleave = Idle>
  __device__ void multiply(A a, B b, MakeScale make_scale, Interleave interleave = {}) {
    constexpr u32 kElemsPerMfma = 4 / kMatrixSteps;  // elements promoted per MFMA
    F32x4 next[kGroupTiles];
#pragma unroll
    for (u32 i = 0; i < kMatrixSteps * kGroupTiles; ++i) {
      const u32 step = i / kGroupTiles, t = i % kGroupTiles;
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
      force_vgpr(next[t]);  // otherwise the compiler may sink it past a barrier to its use
      sched_barrier();
    }
#pragma unroll
    for (u32 t = 0; t < kGroupTiles; ++t) {
      partial[t] = next[t];
      scale[t] = make_scale(t);
    }
  }

  // Promotes the group that was multiplied last. Call it after the last K-step.
  template <u32 kPendingTile = kTiles - kGroupTiles>
  __device__ void drain() {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t)
      force_vgpr(sum[t]);  // keeps the epilogue's instructions out of the loop
    sched_barrier();
#pragma unroll
    for (u32 t = 0; t < kGroupTiles; ++t) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        F32x4& acc = sum[kPendingTile + t];
        acc[e] = __builtin_fmaf(partial[t][e], scale[t], acc[e]);
      }
    }
  }
};

#if defined(__gfx950__)

// As PromotedAcc, for scales that are positive powers of two: the MFMA applies the scales and
// accumulates.
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

// Accumulators for block scales: kPow2 promises that all scales are positive powers of two.
template <bool kPow2, u32 kTiles>
using BlockScaledAcc = details::BlockScaledAcc<kPow2, kTiles>::Type;

#endif

}  // namespace rfops
