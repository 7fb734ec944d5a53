// Timing mode: how long a launch would take on hardware, and why. RFOPS_VGPU_TIMING or
// rfops_vgpu_timing() turn it on. A calibrated model, and an estimate all the same.
#pragma once

#include <memory>
#include <string>

#include "vgpu/timing/chip.h"

namespace vgpu {

bool timing();

// The estimated time of all launches that were timed so far: differences of it are exact.
u64 modelled_ps();

// One launch. The runner asks in which order workgroups go (the sample first), which of them are
// followed, and whether the others have to run at all.
class LaunchTiming {
 public:
  explicit LaunchTiming(const Launch& launch);
  ~LaunchTiming();
  LaunchTiming(const LaunchTiming&) = delete;
  LaunchTiming& operator=(const LaunchTiming&) = delete;

  u64 group(u64 at) const;                 // flat id of the at-th to run
  u64 sampled_groups() const;              // these come first
  bool needs_all() const;                  // or results of the others are not wanted
  GroupTrace* begin(u64 flat, u32 waves);  // null: not of the sample
  std::unique_ptr<Observer> observer();    // for one thread
  // Appends the launch's record to those that rfops_vgpu_timing_take() returns, and adds its time
  // to modelled_ps().
  void finish(u64 number, const std::string& error);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vgpu
