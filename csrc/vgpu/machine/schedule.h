// In which order waves run and loads land: as hardware has it, or at random by a seed, so that a
// kernel that is right by luck is found.
#pragma once

#include <string>

#include "vgpu/base/types.h"

namespace vgpu {

struct Schedule {
  bool random = false;
  u64 seed = 0;
};

// Of launches from now on: RFOPS_VGPU_SCHEDULE, or what set_schedule() has set. The text of an
// error, if the variable is wrong.
std::string current_schedule(Schedule& schedule);
std::string set_schedule(const std::string& text);

// A generator that costs nothing (splitmix64).
class Random {
 public:
  explicit Random(u64 seed = 0) : state_(seed) {}
  u64 next() {
    u64 z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  u32 below(u32 count) { return static_cast<u32>((next() >> 32) * count >> 32); }

 private:
  u64 state_;
};

// A permutation of 0 .. count - 1: which workgroup is started as the `at`-th.
u64 shuffled(u64 at, u64 count, u64 seed);

}  // namespace vgpu
