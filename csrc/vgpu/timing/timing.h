// Timing mode: estimates the time of a launch on hardware and attributes it to stall reasons.
// Turned on by RFOPS_VGPU_TIMING or rfops_vgpu_timing(). The model is calibrated against published
// times; its results are estimates, not measurements.
#pragma once

#include <memory>
#include <string>

#include "vgpu/timing/launch_time.h"

namespace vgpu {

bool timing();

// Sum of all estimates so far, in picoseconds; differences are exact.
u64 modelled_ps();

// The timing of one launch. The runner asks for the order of workgroups (the sample first), which
// of them to trace, and whether the others have to run.
class LaunchTiming {
 public:
  explicit LaunchTiming(const Launch& launch);
  ~LaunchTiming();
  LaunchTiming(const LaunchTiming&) = delete;
  LaunchTiming& operator=(const LaunchTiming&) = delete;

  u64 group(u64 order) const;                  // flat id of the workgroup that runs at this rank
  u64 sampled_groups() const;                  // the first ones in that order
  bool needs_all() const;                      // false: results of the others are not needed
  WorkgroupTrace* begin(u64 flat, u32 waves);  // null: not in the sample
  std::unique_ptr<Observer> observer();        // for one host thread
  // Appends the launch's record to those that rfops_vgpu_timing_take() returns, and adds its
  // estimate to modelled_ps().
  void finish(u64 number, const std::string& error);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vgpu
