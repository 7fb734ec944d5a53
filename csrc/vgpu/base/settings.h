// Settings from the environment, read once. (jit/settings.py declares them for jit/SETTINGS.md.)
#pragma once

#include <string>

#include "vgpu/base/types.h"

namespace vgpu {

struct Settings {
  u32 threads;    // RFOPS_VGPU_THREADS: host threads a launch may use; 0 or unset: all cores
  u64 max_steps;  // RFOPS_VGPU_MAX_STEPS: wave-instructions a launch may execute; 0: no limit
  u32 check;      // RFOPS_VGPU_CHECK: 0 off, 1 report findings, 2 or "error": fail the launch too
  std::string schedule;  // RFOPS_VGPU_SCHEDULE: hardware, or random:SEED; parsed by schedule.h
};

const Settings& settings();

}  // namespace vgpu
