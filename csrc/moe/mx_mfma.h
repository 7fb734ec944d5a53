// Products of weights (mx_weight_loader.h) by rows with scales as mx_format.h has them (gfx950):
// weights are operand A, rows operand B, so that a lane gets 4 neighbours of a row of the result.
#pragma once

#include "moe/mx_format.h"
#include "moe/mx_weight_loader.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

namespace details {

// As narrow as what is loaded: to widen it waits for it, which the compiler does where loops begin.
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

// A lane's scales of a chunk of one row.
template <class Places>
struct LaneScales {
  static constexpr u32 kWords = (Places::kScalesPerLane + 3) / 4;
  typename details::ScaleWord<Places::kScalesPerLane>::Type word[kWords];

  __device__ static LaneScales from(const LdsBytes* at) {
    LaneScales found = {};
    if constexpr (Places::kScalesPerLane == 1) {
      found.word[0] = *at;
    } else if constexpr (Places::kScalesPerLane == 2) {
      found.word[0] = *reinterpret_cast<const RFOPS_LDS u16*>(at);
    } else {
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) {
        found.word[i] = reinterpret_cast<const RFOPS_LDS u32*>(at)[i];
      }
    }
    return found;
  }
  // From memory, at `scalar + at`.
  __device__ static LaneScales from(const Buffer& buffer, u32 at, u32 scalar) {
    LaneScales found;
    if constexpr (Places::kScalesPerLane == 1) {
      found.word[0] = buffer_load_u8(buffer, at, scalar);
    } else if constexpr (Places::kScalesPerLane == 2) {
      found.word[0] = __builtin_amdgcn_raw_buffer_load_b16(buffer.rsrc, at, scalar, kCached);
    } else {
      const auto got = buffer_load_dwords<kWords>(buffer, at, scalar);
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) found.word[i] = got.dword[i];
    }
    return found;
  }
};

template <class Weights, u32 kT, u32 kH, u32 kByte>
__device__ inline void multiply_tile(F32x4& sum, const typename Weights::Held& w,
                                     const U32x4 (&x)[2], u32 x_scale) {
  constexpr bool kIsFp4 = Weights::kIsFp4;
  const Fragment a = {w.piece[kT][kIsFp4 ? kH : 0], w.piece[kT][kIsFp4 ? kH : 1]};
  const Fragment b = {x[kIsFp4 ? kH : 0], x[kIsFp4 ? kH : 1]};
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
      concat(a), concat(b), sum, Weights::kFormat, Weights::kFormat, Weights::byte(kT, kH),
      static_cast<i32>(w.scale[Weights::word(kT, kH)]), kByte % 4, static_cast<i32>(x_scale));
}

// All tiles of weights of step kS of a chunk by 16 rows, `x` of a lane.
template <class Weights, u32 kS, u32 kT = 0, u32 kTiles, class Scales>
__device__ inline void multiply_tiles(F32x4 (&sums)[kTiles], const typename Weights::Held& w,
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

// The same with beside<i>() issued before product i of kProducts, in whose shadow it then is: a
// wave that is alone on its SIMD has nothing else to hide loads behind.
template <class Weights, u32 kTiles>
constexpr u32 kProducts = Weights::kIsFp4 ? 2 * kTiles : kTiles;
template <class Weights, u32 kS, u32 kI = 0, u32 kTiles, class Scales, class Beside>
__device__ inline void mfma_interleaved(F32x4 (&sums)[kTiles], const typename Weights::Held& w,
                                        const U32x4 (&x)[2], const Scales& scales,
                                        const Beside& beside) {
  if constexpr (kI < kProducts<Weights, kTiles>) {
    constexpr u32 kT = kI % kTiles, kH = kI / kTiles;
    constexpr u32 kByte = kS * (Weights::kStepBlocks / 4) + kH;
    beside.template operator()<kI>();
    sched_barrier();
    multiply_tile<Weights, kT, kH, kByte>(sums[kT], w, x, scales.word[kByte / 4]);
    sched_barrier();
    mfma_interleaved<Weights, kS, kI + 1>(sums, w, x, scales, beside);
  }
}

// The same of MXFP4, half kH of the step alone: the other half's registers are free meanwhile.
template <class Weights, u32 kS, u32 kH, u32 kT = 0, u32 kTiles, class Scales>
__device__ inline void multiply_half(F32x4 (&sums)[kTiles], const typename Weights::Held& w,
                                     const U32x4 (&x)[2], const Scales& scales) {
  static_assert(Weights::kIsFp4, "a half is an operand");
  if constexpr (kT < kTiles) {
    constexpr u32 kByte = kS * (Weights::kStepBlocks / 4) + kH;
    multiply_tile<Weights, kT, kH, kByte>(sums[kT], w, x, scales.word[kByte / 4]);
    multiply_half<Weights, kS, kH, kT + 1>(sums, w, x, scales);
  }
}

}  // namespace rfops
