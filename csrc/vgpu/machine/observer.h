// Who watches a launch: counters, checks. Execution knows only this interface, and only one branch
// of it when nobody watches: Wave::observer is null and the runner takes its plain loop.
#pragma once

#include "vgpu/isa/wave.h"
#include "vgpu/machine/memory_access.h"

namespace vgpu {

// One a worker thread and launch.
class Observer {
 public:
  virtual ~Observer() = default;
  // Around a workgroup. Another thread may go on with it in between.
  virtual void begin(Workgroup&) {}
  virtual void end(Workgroup&) {}
  // Around one instruction of one wave. `pc` is the instruction's dword index.
  virtual void before(Wave& wave, const Inst& inst) = 0;
  virtual void after(Wave& wave, const Inst& inst) = 0;
  // A memory access of the instruction that runs, before it takes place.
  virtual void access(Wave& wave, const Inst& inst, const Access& access) = 0;
};

// Two that watch the same launch.
class ObserverPair : public Observer {
 public:
  ObserverPair(Observer& first, Observer& second) : first_(first), second_(second) {}
  void begin(Workgroup& group) override { first_.begin(group), second_.begin(group); }
  void end(Workgroup& group) override { first_.end(group), second_.end(group); }
  void before(Wave& wave, const Inst& inst) override {
    first_.before(wave, inst);
    second_.before(wave, inst);
  }
  void after(Wave& wave, const Inst& inst) override {
    first_.after(wave, inst);
    second_.after(wave, inst);
  }
  void access(Wave& wave, const Inst& inst, const Access& access) override {
    first_.access(wave, inst, access);
    second_.access(wave, inst, access);
  }

 private:
  Observer& first_;
  Observer& second_;
};

}  // namespace vgpu
