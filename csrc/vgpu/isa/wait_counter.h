// s_waitcnt and what it counts: memory instructions that are on their way.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

inline constexpr u32 kMostVector = 63, kMostLgkm = 15;  // what vmcnt and lgkmcnt count to
inline constexpr u32 kNoWait = ~u32{0};

// How many of a queue s_waitcnt lets be on their way. A counter's most is no wait: a wave whose
// counter is full does not issue.
constexpr u32 vector_wait(u32 code) {
  const u32 left = (code & 15) | (code >> 14 & 3) << 4;
  return left < kMostVector ? left : kNoWait;
}
constexpr u32 lgkm_wait(u32 code) {
  const u32 left = code >> 8 & 15;
  return left < kMostLgkm ? left : kNoWait;
}

// Memory instructions of a queue, numbered from 1; those up to `done` are over.
struct WaitCounter {
  u32 issued = 0, done = 0;
  void issue(u32 limit) {
    ++issued;
    wait(limit);
  }
  bool none() const { return issued == done; }
  void wait(u32 left) {
    if (issued > left && issued - left > done) done = issued - left;
  }
};

}  // namespace vgpu
