// The checking mode: says what a kernel does wrong while the virtual GPU runs it, for kernels that
// will meet hardware later. RFOPS_VGPU_CHECK or rfops_vgpu_check() turn it on.
//
// Findings do not stop a launch. Each kind of defect has a file of its own (check_*.cpp).
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
  kFail,    // and let a launch with findings fail
};

CheckLevel check_level();

struct MemoryRange;

// What one launch does wrong. Worker threads check for themselves and are added up at the end.
class LaunchChecks {
 public:
  // `more`: memory that the runner gives to the kernel (dispatch packet, queue).
  LaunchChecks(const Launch& launch, const std::vector<MemoryRange>& more);
  ~LaunchChecks();
  LaunchChecks(const LaunchChecks&) = delete;
  LaunchChecks& operator=(const LaunchChecks&) = delete;

  std::unique_ptr<Observer> observer();  // for one thread
  void add(Observer& checked);           // what that thread found; the caller serialises
  // Logs the findings and appends them to those that rfops_vgpu_check_take() returns. The text with
  // which the launch fails, if it has to.
  std::string finish();

 private:
  friend class Checker;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vgpu
