// A launch under `rfops debug`: an observer that stops the launch and, while it is stopped, answers
// requests for its state. RFOPS_VGPU_DEBUG turns it on.
//
// The prompt is another process, `rfops debug`, because a program need not be one of Python. It
// knows the user's commands, names of sources and types; this side knows waves, memory and when to
// stop, so that a step of a thousand instructions is one request. Requests are words; events and
// answers are lines of JSON. A debugged launch uses one host thread, so its order is always the
// same.
#pragma once

#include <memory>
#include <string>

#include "vgpu/debug/channel.h"
#include "vgpu/machine/observer.h"
#include "vgpu/object/launch.h"

namespace vgpu {

class LaunchDebug {
 public:
  // Announces the launch, and waits until it may go on.
  LaunchDebug(const Launch& launch, u64 number);
  ~LaunchDebug();
  LaunchDebug(const LaunchDebug&) = delete;
  LaunchDebug& operator=(const LaunchDebug&) = delete;

  Observer* observer();
  void fault(const Wave* wave, const std::string& text);  // stops where the launch fails
  void finish(const std::string& error);                  // announces its end

 private:
  class Debugger;
  std::unique_ptr<Debugger> debugger_;
};

}  // namespace vgpu
