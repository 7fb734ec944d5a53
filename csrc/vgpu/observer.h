// Who watches a launch: counters. Execution knows only this interface, and only one branch of it
// when nobody watches: Wave::observer is null and the runner takes its plain loop.
#pragma once

#include "memory_access.h"
#include "wave.h"

namespace vgpu {

// One a worker thread and launch.
class Observer {
 public:
  virtual ~Observer() = default;
  // Around one instruction of one wave. `pc` is the instruction's dword index.
  virtual void before(Wave& wave, const Inst& inst) = 0;
  virtual void after(Wave& wave, const Inst& inst) = 0;
  // A memory access of the instruction that runs, before it takes place.
  virtual void access(Wave& wave, const Inst& inst, const Access& access) = 0;
};

}  // namespace vgpu
