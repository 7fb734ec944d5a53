// Loops whose index is a constant of the type system.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// An integral constant that converts to u32.
template <u32 kValue>
struct Number {
  __device__ constexpr operator u32() const { return kValue; }
};

// Calls fn(Number<kBegin>{}) .. fn(Number<kEnd - 1>{}).
template <u32 kEnd, u32 kBegin = 0, class Fn>
__device__ inline void static_for(Fn fn) {
  if constexpr (kBegin < kEnd) {
    fn(Number<kBegin>{});
    static_for<kEnd, kBegin + 1>(fn);
  }
}

}  // namespace rfops
