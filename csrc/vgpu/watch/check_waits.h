// Missing s_waitcnt: a load's destination is invalid until a wait on its counter covers it.
#pragma once

#include "vgpu/isa/check_operands.h"
#include "vgpu/isa/wait_counter.h"
#include "vgpu/machine/observer.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {

// The wait counters of a wave, and the pending load of each register.
struct WaitState {
  WaitCounter vector, lds, scalar;

  struct Pending {
    u32 vector = 0, lds = 0;  // the load's sequence numbers in its queues
    u32 index = 0;            // instruction index
  };
  Pending vgpr[kVgprRows];
  VectorSet loading;  // rows with a load in flight
  Pending sgpr[128];  // `vector` is the number in the scalar queue

  bool waits(const Pending& p) const { return p.vector > vector.done || p.lds > lds.done; }
  bool scalar_waits(const Pending& p) const { return p.vector > scalar.done; }
};

// One per host thread.
class WaitCheck {
 public:
  WaitCheck(const Program& program, u32 accum_offset, Findings& findings)
      : program_(program), accum_offset_(accum_offset), findings_(findings) {}

  void before_inst(WaitState& state, const Wave& wave, const Inst& inst, const Operands& operands) {
    if (inst.format == Format::kSopp) return wait(state, inst);
    if (state.loading.overlaps(operands.vectors)) check_vector(state, wave, inst, operands);
    if (!state.scalar.is_idle()) check_scalar(state, wave, inst, operands);
    if (operands.queue != Queue::kNone) issue(state, wave, operands);
  }
  void access(const Access& access) { spaces_ |= 1u << static_cast<u32>(access.space); }
  void after_inst(WaitState& state, const Inst& inst, const Operands& operands) {
    if (operands.queue != Queue::kNone) note_loads(state, inst, operands);
  }

 private:
  static void wait(WaitState& state, const Inst& inst);
  void issue(WaitState& state, const Wave& wave, const Operands& operands);
  void note_loads(WaitState& state, const Inst& inst, const Operands& operands);
  u32 row(u32 reg) const { return reg < 256 ? reg : accum_offset_ + reg - 256; }
  void check_vector(WaitState& state, const Wave& wave, const Inst& inst, const Operands& operands);
  void check_scalar(WaitState& state, const Wave& wave, const Inst& inst, const Operands& operands);
  void report(const WaitState& state, const Wave& wave, const Inst& inst, const std::string& reg,
              const WaitState::Pending& pending, bool scalar, bool writes);

  const Program& program_;
  u32 accum_offset_;
  Findings& findings_;
  u32 spaces_ = 0;  // accessed by the running instruction
  u64 exec_ = 0;
};

}  // namespace vgpu
