// Interface of the observers of a launch: counters, checks, traces. Execution knows only this
// interface. Without an observer Wave::observer is null and the runner uses a loop without calls.
#pragma once

#include "vgpu/isa/wave.h"
#include "vgpu/machine/memory_access.h"

namespace vgpu {

// One per worker thread and launch.
class Observer {
 public:
  virtual ~Observer() = default;
  // Called around a workgroup; between the two calls the workgroup may move to another thread.
  virtual void begin(Workgroup&) {}
  virtual void end(Workgroup&) {}
  // Called around each instruction of each wave.
  virtual void before_inst(Wave& wave, const Inst& inst) = 0;
  virtual void after_inst(Wave& wave, const Inst& inst) = 0;
  // Called before a memory access of the running instruction.
  virtual void access(Wave& wave, const Inst& inst, const Access& access) = 0;
};

// Forwards to two observers of the same launch.
class ObserverPair : public Observer {
 public:
  ObserverPair(Observer& first, Observer& second) : first_(first), second_(second) {}
  void begin(Workgroup& group) override { first_.begin(group), second_.begin(group); }
  void end(Workgroup& group) override { first_.end(group), second_.end(group); }
  void before_inst(Wave& wave, const Inst& inst) override {
    first_.before_inst(wave, inst);
    second_.before_inst(wave, inst);
  }
  void after_inst(Wave& wave, const Inst& inst) override {
    first_.after_inst(wave, inst);
    second_.after_inst(wave, inst);
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
