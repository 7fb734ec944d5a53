// Counts what launches do, for comparing kernels where no AMD GPU is at hand: rfops.vgpu.profile().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vgpu/machine/observer.h"
#include "vgpu/object/launch.h"

namespace vgpu {

bool profiling();

// What one launch did. Worker threads count for themselves and are added up at the end.
class LaunchCounters {
 public:
  explicit LaunchCounters(const Launch& launch);
  LaunchCounters(const LaunchCounters&) = delete;
  LaunchCounters& operator=(const LaunchCounters&) = delete;

  std::unique_ptr<Observer> observer();  // for one thread
  void add(const Observer& counted);     // what that thread saw; the caller serialises
  // Appends the launch's record, a JSON object, to those that rfops_vgpu_profile_take() returns.
  // `number` is the launch's, which its other records have too.
  void finish(u64 number, double seconds, const std::string& error);

 private:
  const Launch& launch_;
  std::unique_ptr<Observer> totals_;  // of all threads
};

}  // namespace vgpu
