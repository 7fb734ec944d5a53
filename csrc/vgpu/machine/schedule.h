// The order in which waves run and loads complete: as on hardware, or random by a seed, which
// exposes kernels that are correct only by luck.
#pragma once

#include <string>

#include "vgpu/base/types.h"

namespace vgpu {

struct Schedule {
  bool random = false;
  u64 seed = 0;
};

// Schedule of later launches: RFOPS_VGPU_SCHEDULE, or the last set_schedule(). Both return an error
// text if the value is invalid.
std::string current_schedule(Schedule& schedule);
std::string set_schedule(const std::string& text);

// A fast pseudorandom generator (splitmix64).
class Random {
 public:
  explicit Random(u64 seed = 0) : state_(seed) {}
  u64 next() {
    u64 z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  u32 next_below(u32 count) { return static_cast<u32>((next() >> 32) * count >> 32); }

 private:
  u64 state_;
};

// A permutation of 0 .. count - 1: returns the workgroup that starts at rank `index`.
u64 shuffled(u64 index, u64 count, u64 seed);

}  // namespace vgpu
