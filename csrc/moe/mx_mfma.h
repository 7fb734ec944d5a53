// MFMAs of weights (mx_weight_loader.h) by rows with scales in the layout of mx_format.h (gfx950).
// Weights are operand A and rows operand B, so that a lane gets 4 adjacent columns of a row.
#pragma once

#include "moe/mx_format.h"
#include "moe/mx_weight_loader.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

namespace details {

// Type of a scale word, as narrow as the load: the compiler would widen a narrower value, and wait
// for its load, where a loop begins.
template <u32 kBytes>
struct ScaleWord {
  using Type = u32;
};
template <>
struct ScaleWord<1> {
  using Type = u8;
};
template <>
struct ScaleWord<2> {
  using Type = u16;
};

}  // namespace details

// A lane's scales of one row's chunk.
template <class Layout>
struct LaneScales {
  static constexpr u32 kWords = (Layout::kScalesPerLane + 3) / 4;
  typename details::ScaleWord<Layout::kScalesPerLane>::Type word[kWords];

  __device__ static LaneScales load(const LdsBytes* src) {
    LaneScales scales = {};
    if constexpr (Layout::kScalesPerLane == 1) {
      scales.word[0] = *src;
    } else if constexpr (Layout::kScalesPerLane == 2) {
      scales.word[0] = *reinterpret_cast<const RFOPS_LDS u16*>(src);
    } else {
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) {
        scales.word[i] = reinterpret_cast<const RFOPS_LDS u32*>(src)[i];
      }
    }
    return scales;
  }
  // Loads from memory at lane_offset + scalar_offset.
  __device__ static LaneScales load(const Buffer& buffer, u32 lane_offset, u32 scalar_offset) {
    LaneScales scales;
    if constexpr (Layout::kScalesPerLane == 1) {
      scales.word[0] = buffer_load_u8(buffer, lane_offset, scalar_offset);
    } else if constexpr (Layout::kScalesPerLane == 2) {
      scales.word[0] =
          __builtin_amdgcn_raw_buffer_load_b16(buffer.rsrc, lane_offset, scalar_offset, kCached);
    } else {
      const auto loaded = buffer_load_dwords<kWords>(buffer, lane_offset, scalar_offset);
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) scales.word[i] = loaded.dword[i];
    }
    return scales;
  }
};

template <class Weights, u32 kT, u32 kH, u32 kByte>
__device__ inline void multiply_tile(F32x4& sum, const typename Weights::Fragments& w,
                                     const U32x4 (&x)[2], u32 x_scale) {
  constexpr bool kIsFp4 = Weights::kIsFp4;
  const Fragment a = {w.piece[kT][kIsFp4 ? kH : 0], w.piece[kT][kIsFp4 ? kH : 1]};
  const Fragment b = {x[kIsFp4 ? kH : 0], x[kIsFp4 ? kH : 1]};
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
      concat(a), concat(b), sum, Weights::kFormat, Weights::kFormat, Weights::byte(kT, kH),
      static_cast<i32>(w.scale[Weights::word(kT, kH)]), kByte % 4, static_cast<i32>(x_scale));
}

// Multiplies all weight tiles of K-step kS of a chunk by 16 rows; x is the lane's fragment.
template <class Weights, u32 kS, u32 kT = 0, u32 kTiles, class Scales>
__device__ inline void multiply_tiles(F32x4 (&sums)[kTiles], const typename Weights::Fragments& w,
                                      const U32x4 (&x)[2], const Scales& scales) {
  if constexpr (kT < kTiles) {
    constexpr u32 kByte = kS * (Weights::kStepBlocks / 4);
    multiply_tile<Weights, kT, 0, kByte>(sums[kT], w, x, scales.word[kByte / 4]);
    if constexpr (Weights::kIsFp4) {
      multiply_tile<Weights, kT, 1, kByte + 1>(sums[kT], w, x, scales.word[(kByte + 1) / 4]);
    }
    multiply_tiles<Weights, kS, kT + 1>(sums, w, x, scales);
  }
}

// Like multiply_tiles, but calls issue<i>() before MFMA i of kMfmas, so that what it issues
// overlaps with the MFMA: a wave that is alone on its SIMD has nothing else to hide loads behind.
template <class Weights, u32 kTiles>
constexpr u32 kMfmas = Weights::kIsFp4 ? 2 * kTiles : kTiles;
template <class Weights, u32 kS, u32 kI = 0, u32 kTiles, class Scales, class Issue>
__device__ inline void mfma_interleaved(F32x4 (&sums)[kTiles], const typename Weights::Fragments& w,
                                        const U32x4 (&x)[2], const Scales& scales,
                                        const Issue& issue) {
  if constexpr (kI < kMfmas<Weights, kTiles>) {
    constexpr u32 kT = kI % kTiles, kH = kI / kTiles;
    constexpr u32 kByte = kS * (Weights::kStepBlocks / 4) + kH;
    issue.template operator()<kI>();
    sched_barrier();
    multiply_tile<Weights, kT, kH, kByte>(sums[kT], w, x, scales.word[kByte / 4]);
    sched_barrier();
    mfma_interleaved<Weights, kS, kI + 1>(sums, w, x, scales, issue);
  }
}

// Like multiply_tiles for half kH of an MXFP4 K-step; the registers of the other half are free.
template <class Weights, u32 kS, u32 kH, u32 kT = 0, u32 kTiles, class Scales>
__device__ inline void multiply_half(F32x4 (&sums)[kTiles], const typename Weights::Fragments& w,
                                     const U32x4 (&x)[2], const Scales& scales) {
  static_assert(Weights::kIsFp4, "half a K-step must be an operand");
  if constexpr (kT < kTiles) {
    constexpr u32 kByte = kS * (Weights::kStepBlocks / 4) + kH;
    multiply_tile<Weights, kT, kH, kByte>(sums[kT], w, x, scales.word[kByte / 4]);
    multiply_half<Weights, kS, kH, kT + 1>(sums, w, x, scales);
  }
}

}  // namespace rfops
