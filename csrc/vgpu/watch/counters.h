// Counters of launches, for comparing kernels without an AMD GPU: rfops.vgpu.profile().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vgpu/machine/observer.h"
#include "vgpu/object/launch.h"

namespace vgpu {

bool profiling();

// The counters of one launch. Worker threads count independently; the results are added at the end.
class LaunchCounters {
 public:
  explicit LaunchCounters(const Launch& launch);
  LaunchCounters(const LaunchCounters&) = delete;
  LaunchCounters& operator=(const LaunchCounters&) = delete;

  std::unique_ptr<Observer> observer();  // for one host thread
  void add(const Observer& counted);     // adds a thread's counts; the caller serialises
  // Appends the launch's record, a JSON object, to those that rfops_vgpu_profile_take() returns.
  // `number` identifies the launch in all its records.
  void finish(u64 number, double seconds, const std::string& error);

 private:
  const Launch& launch_;
  std::unique_ptr<Observer> totals_;  // of all threads
};

}  // namespace vgpu
