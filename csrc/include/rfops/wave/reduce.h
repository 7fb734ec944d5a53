// Reductions over neighbouring lanes of a wave; all of these lanes get the result (both
// architectures).
//
// A butterfly from the lowest lane bit up: step b combines a lane's value with that of a lane that
// differs in bit b, and possibly in lower bits, over which values are already equal. So the order
// of a sum is fixed and all lanes get the same bits.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/wave/reduce_scatter.h"

namespace rfops {

namespace details {

// Combines a value with that of the partner lane of one butterfly step.
template <u32 kBit, class T, class Op>
__device__ inline T butterfly_step(T value, Op op) {
  const u32 bits = __builtin_bit_cast(u32, value);
  if constexpr (kBit < 16) {
    return op(value, __builtin_bit_cast(T, partner<kBit>(__builtin_bit_cast(f32, value))));
  } else {
#if defined(__gfx950__)
    const auto [low, high] = swap_halves<kBit>(bits, bits);
    return op(__builtin_bit_cast(T, low), __builtin_bit_cast(T, high));
#else
    constexpr int kXor16 = 16 << 10 | 31;  // ds_swizzle mask: lane ^ 16 within 32 lanes
    const int value_bits = static_cast<int>(bits);
    const int partner_bits = kBit == 16 ? __builtin_amdgcn_ds_swizzle(value_bits, kXor16)
                                        : __builtin_amdgcn_ds_bpermute(
                                              static_cast<int>((lane_id() ^ 32) * 4), value_bits);
    return op(value, __builtin_bit_cast(T, partner_bits));
#endif
  }
}

}  // namespace details

// Reduces over each kLanes neighbouring lanes. Requires: op commutative, T of 32 bits, all lanes
// active.
template <u32 kLanes, u32 kBit = 1, class T, class Op>
__device__ inline T reduce_lanes(T value, Op op) {
  static_assert(sizeof(T) == 4 && (kLanes & (kLanes - 1)) == 0 && kLanes <= kWaveSize);
  if constexpr (kBit < kLanes) {
    return reduce_lanes<kLanes, 2 * kBit>(details::butterfly_step<kBit>(value, op), op);
  } else {
    return value;
  }
}

// Maximum, minimum and sum over each kLanes neighbouring lanes.
template <u32 kLanes>
__device__ inline f32 max_over_lanes(f32 value) {
  return reduce_lanes<kLanes>(value, [](f32 a, f32 b) { return a > b ? a : b; });
}
template <u32 kLanes>
__device__ inline u32 max_over_lanes(u32 value) {
  return reduce_lanes<kLanes>(value, [](u32 a, u32 b) { return a > b ? a : b; });
}
template <u32 kLanes>
__device__ inline u32 min_over_lanes(u32 value) {
  return reduce_lanes<kLanes>(value, [](u32 a, u32 b) { return a < b ? a : b; });
}
template <u32 kLanes>
__device__ inline f32 sum_over_lanes(f32 value) {
  return reduce_lanes<kLanes>(value, [](f32 a, f32 b) { return a + b; });
}

namespace details {

// Moves values between lanes by a DPP control; lanes without a source, and rows of 16 outside the
// mask kRows, get 0.
template <int kControl, int kRows, bool kBoundCtrl>
__device__ inline u32 shift_by_dpp(u32 value) {
  const int moved =
      __builtin_amdgcn_update_dpp(0, static_cast<int>(value), kControl, kRows, 0xf, kBoundCtrl);
  return static_cast<u32>(moved);
}

}  // namespace details

namespace details {

__device__ inline i32 larger(i32 a, i32 b) { return a > b ? a : b; }
__device__ inline i32 smaller(i32 a, i32 b) { return a < b ? a : b; }

// Applies op to a value and that of the partner lane: within a row of 16 lanes (partner), or with
// bit 16 and 32 of the last lane of a lower row. Rows without one keep kNeutral op value: the
// compiler makes one instruction of move and operation, for each operation on its own.
template <u32 kBit, i32 kNeutral, class Op>
__device__ inline i32 with_partner(i32 value, Op op) {
  if constexpr (kBit < 16) {
    return op(__builtin_bit_cast(i32, partner<kBit>(__builtin_bit_cast(f32, value))), value);
  } else {
    constexpr int kEnd15 = 0x142, kEnd31 = 0x143;  // DPP row_bcast15, row_bcast31
    constexpr int kControl = kBit == 16 ? kEnd15 : kEnd31, kRows = kBit == 16 ? 0xa : 0xc;
    return op(__builtin_amdgcn_update_dpp(kNeutral, value, kControl, kRows, 0xf, false), value);
  }
}
constexpr i32 kLargestInt = 0x7fffffff, kLowestInt = -kLargestInt - 1;

}  // namespace details

// Returns the maximum over a wave, in a scalar register: no LDS, a chain of six moves, each part of
// its maximum. Requires: all lanes active.
template <u32 kBit = 1>
__device__ inline i32 max_of_wave(i32 value) {
  using namespace details;
  if constexpr (kBit < kWaveSize) {
    return max_of_wave<2 * kBit>(with_partner<kBit, kLowestInt>(value, larger));
  } else {
    return __builtin_amdgcn_readlane(value, kWaveSize - 1);
  }
}

struct BestTwo {
  i32 best, runner_up;
};

// Returns the two largest of all values of a wave's lanes, in scalar registers. Requires: best >=
// runner_up in each lane; all lanes active.
template <u32 kBit = 1>
__device__ inline BestTwo best_two_of_wave(i32 best, i32 runner_up) {
  using namespace details;
  if constexpr (kBit < kWaveSize) {
    // In rows without a partner `lesser` is wrong: they have no part in the last lane's results.
    const i32 lesser = with_partner<kBit, kLargestInt>(best, smaller);
    runner_up = with_partner<kBit, kLowestInt>(runner_up, larger);
    best = with_partner<kBit, kLowestInt>(best, larger);
    return best_two_of_wave<2 * kBit>(best, larger(runner_up, lesser));
  } else {
    return {__builtin_amdgcn_readlane(best, kWaveSize - 1),
            __builtin_amdgcn_readlane(runner_up, kWaveSize - 1)};
  }
}

// Returns the sum over this lane and all lower lanes. Requires: all lanes active. Without
// kBoundCtrl the compiler may fold each move into its addition; which of the two schedules better
// depends on the kernel.
template <bool kBoundCtrl = true>
__device__ inline u32 inclusive_scan(u32 value) {
  constexpr int kShift = 0x110, kEnd15 = 0x142,
                kEnd31 = 0x143;  // DPP row_shr, row_bcast15, row_bcast31
  value += details::shift_by_dpp<kShift + 1, 0xf, kBoundCtrl>(value);
  value += details::shift_by_dpp<kShift + 2, 0xf, kBoundCtrl>(value);
  value += details::shift_by_dpp<kShift + 4, 0xf, kBoundCtrl>(value);
  value += details::shift_by_dpp<kShift + 8, 0xf, kBoundCtrl>(value);
  value += details::shift_by_dpp<kEnd15, 0xa, kBoundCtrl>(value);
  value += details::shift_by_dpp<kEnd31, 0xc, kBoundCtrl>(value);
  return value;
}

}  // namespace rfops
