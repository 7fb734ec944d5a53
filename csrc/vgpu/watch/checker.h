// The checking mode: reports defects of kernels as the virtual GPU executes them. Turned on by
// RFOPS_VGPU_CHECK or rfops_vgpu_check().
//
// Findings do not stop a launch. Each kind of defect has its own file (check_*.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vgpu/machine/observer.h"
#include "vgpu/object/launch.h"

namespace vgpu {

enum class CheckLevel : u8 {
  kOff,
  kReport,  // log and keep the findings
  kFail,    // also fail launches with findings
};

CheckLevel check_level();
CheckLevel set_check_level(CheckLevel level);  // of later launches; returns the previous one

struct MemoryRange;

// The findings of one launch. Worker threads check independently; the results are merged at the
// end.
class LaunchChecks {
 public:
  // `extra_ranges`: memory that the runner provides (dispatch packet, queue).
  LaunchChecks(const Launch& launch, const std::vector<MemoryRange>& extra_ranges);
  ~LaunchChecks();
  LaunchChecks(const LaunchChecks&) = delete;
  LaunchChecks& operator=(const LaunchChecks&) = delete;

  std::unique_ptr<Observer> observer();  // for one host thread
  void add(Observer& checked);           // merges a thread's findings; the caller serialises
  // Logs the findings and appends them to those that rfops_vgpu_check_take() returns. Returns the
  // error text if the launch has to fail, otherwise an empty one.
  std::string finish();

 private:
  friend class Checker;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vgpu
