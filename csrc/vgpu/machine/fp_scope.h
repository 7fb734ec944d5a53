// The host's floating-point state where MODE does not count.
#pragma once

#include "vgpu/isa/wave.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace vgpu {

// Matrix instructions and block-scaled conversions round to nearest and keep denormals whatever
// MODE says; elsewhere the host's floating-point unit follows MODE.
class NearestScope {
 public:
#if defined(__SSE__)
  NearestScope() : saved_(_mm_getcsr()) {
    if ((saved_ & kControl) != kWanted) _mm_setcsr(kWanted);
  }
  ~NearestScope() {
    if ((saved_ & kControl) != kWanted) _mm_setcsr(saved_);
  }
#else
  NearestScope() {}
#endif
  NearestScope(const NearestScope&) = delete;
  NearestScope& operator=(const NearestScope&) = delete;

 private:
  static constexpr u32 kControl = 0xffc0, kWanted = 0x1f80;  // MXCSR without its sticky flags
  [[maybe_unused]] u32 saved_ = 0;
};

// Whether f32 sources that are denormal count as zero (MODE bit 4: f32 denormal sources allowed).
inline bool flush_float_sources(const Wave& wave) { return !(wave.mode >> 4 & 1); }

}  // namespace vgpu
