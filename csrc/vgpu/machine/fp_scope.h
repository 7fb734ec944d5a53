// Floating-point state of the host for instructions that ignore MODE.
#pragma once

#include "vgpu/isa/wave.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace vgpu {

// While alive, rounds to nearest and keeps denormals. Matrix instructions and block-scaled
// conversions do so independently of MODE; for other instructions the host's unit follows MODE.
class NearestScope {
 public:
#if defined(__SSE__)
  NearestScope() : saved_(_mm_getcsr()) {
    if ((saved_ & kControl) != kNearestMode) _mm_setcsr(kNearestMode);
  }
  ~NearestScope() {
    if ((saved_ & kControl) != kNearestMode) _mm_setcsr(saved_);
  }
#else
  NearestScope() {}
#endif
  NearestScope(const NearestScope&) = delete;
  NearestScope& operator=(const NearestScope&) = delete;

 private:
  static constexpr u32 kControl = 0xffc0, kNearestMode = 0x1f80;  // MXCSR without its sticky flags
  [[maybe_unused]] u32 saved_ = 0;
};

// Returns whether denormal f32 sources are flushed to zero (MODE bit 4: f32 denormal sources
// allowed).
inline bool flush_float_sources(const Wave& wave) { return !(wave.mode >> 4 & 1); }

}  // namespace vgpu
