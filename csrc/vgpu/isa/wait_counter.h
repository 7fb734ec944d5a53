// s_waitcnt and its counters: memory instructions in flight.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

inline constexpr u32 kMaxVector = 63, kMaxLgkm = 15;  // maxima of vmcnt and lgkmcnt
inline constexpr u32 kNoWait = ~u32{0};

// Returns how many instructions of a queue s_waitcnt leaves in flight. The maximum of a counter
// means no wait, because a wave whose counter is full does not issue.
constexpr u32 vector_wait(u32 code) {
  const u32 limit = (code & 15) | (code >> 14 & 3) << 4;
  return limit < kMaxVector ? limit : kNoWait;
}
constexpr u32 lgkm_wait(u32 code) {
  const u32 limit = code >> 8 & 15;
  return limit < kMaxLgkm ? limit : kNoWait;
}

// Memory instructions of a queue, numbered from 1; those up to `done` have completed.
struct WaitCounter {
  u32 issued = 0, done = 0;
  void issue(u32 limit) {
    ++issued;
    wait(limit);
  }
  bool is_idle() const { return issued == done; }
  void wait(u32 limit) {
    if (issued > limit && issued - limit > done) done = issued - limit;
  }
};

}  // namespace vgpu
