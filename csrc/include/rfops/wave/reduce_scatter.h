// Reductions of many values over the lanes of a wave, in a fixed order (gfx950: permlane swaps).
//
// reduce_scatter sums many values at once. Each level halves the number of values that a lane
// holds: lanes whose bit kBit is 0 keep the even values, lanes whose bit is 1 the odd ones, and
// each adds its partner's share of the kept value. n values take about 2 n instructions; one sum
// after the other would take n * log2(lanes).
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

namespace details {

// Returns the value of the partner lane within a row of 16 lanes. Partners differ in bit kBit; the
// mirror for bit 4 also flips bits 2 and 1, over which later levels sum anyway.
template <u32 kBit>
__device__ inline f32 partner(f32 value) {
  static_assert(kBit == 1 || kBit == 2 || kBit == 4 || kBit == 8, "DPP stays in a row of 16");
  constexpr int kQuadSwap1 = 0xb1, kQuadSwap2 = 0x4e, kHalfMirror = 0x141, kRotate8 = 0x128;
  constexpr int kControl = kBit == 1   ? kQuadSwap1
                           : kBit == 2 ? kQuadSwap2
                           : kBit == 4 ? kHalfMirror
                                       : kRotate8;
  const int bits = __builtin_bit_cast(int, value);
  return __builtin_bit_cast(f32, __builtin_amdgcn_update_dpp(0, bits, kControl, 0xf, 0xf, true));
}

struct Swapped {
  u32 low, high;
};

// Exchanges the values of `a` in lanes with kBit for the values of `b` in lanes without it. NOTE:
// elements are copied out before any bit cast, because clang 22 reads element 0 when
// __builtin_bit_cast is given another element of a vector.
template <u32 kBit>
__device__ inline Swapped swap_halves(u32 a, u32 b) {
  static_assert(kBit == 16 || kBit == 32, "kBit is 16 or 32");
  if constexpr (kBit == 32) {
    const auto swapped = __builtin_amdgcn_permlane32_swap(a, b, false, false);
    return {swapped[0], swapped[1]};
  } else {
    const auto swapped = __builtin_amdgcn_permlane16_swap(a, b, false, false);
    return {swapped[0], swapped[1]};
  }
}

// Returns in lanes without kBit the sum of `even` over both partners, in lanes with it that of
// `odd`.
template <u32 kBit>
__device__ inline f32 fold_pair(f32 even, f32 odd, u32 lane) {
  if constexpr (kBit >= 16) {
    const u32 a = __builtin_bit_cast(u32, even);
    const u32 b = __builtin_bit_cast(u32, odd);
    const auto [low, high] = swap_halves<kBit>(a, b);
    return __builtin_bit_cast(f32, low) + __builtin_bit_cast(f32, high);
  } else {
    const bool upper = (lane & kBit) != 0;
    return (upper ? odd : even) + partner<kBit>(upper ? even : odd);
  }
}

// As fold_pair, for a single value that both partners keep.
template <u32 kBit>
__device__ inline f32 fold_single(f32 value, u32 lane) {
  if constexpr (kBit >= 16) {
    return fold_pair<kBit>(value, value, lane);
  } else {
    return value + partner<kBit>(value);
  }
}

}  // namespace details

// Sums values[0..kCount) over each kLanes lanes. Afterwards values[p] of a lane is the sum of value
// number scattered_index<kLanes>(lane) + p * kLanes, if that is below kCount.
template <u32 kLanes, u32 kCount>
__device__ inline void reduce_scatter(f32* values, u32 lane) {
  if constexpr (kLanes > 1) {
    constexpr u32 kBit = kLanes / 2;
#pragma unroll
    for (u32 i = 0; i < kCount / 2; ++i) {
      values[i] = details::fold_pair<kBit>(values[2 * i], values[2 * i + 1], lane);
    }
    if constexpr (kCount % 2 == 1) {
      values[kCount / 2] = details::fold_single<kBit>(values[kCount - 1], lane);
    }
    reduce_scatter<kLanes / 2, (kCount + 1) / 2>(values, lane);
  }
}

// Returns the index of the first value that a lane holds after reduce_scatter: the lane bits
// reversed, because the highest lane bit selects first.
template <u32 kLanes>
__device__ inline u32 scattered_index(u32 lane) {
  constexpr u32 kBits = __builtin_ctz(kLanes);
  if constexpr (kBits == 0) {
    return 0;
  } else {
    return __builtin_bitreverse32(lane) >> (32 - kBits);
  }
}

}  // namespace rfops
