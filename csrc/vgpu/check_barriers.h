// Barrier divergence: waves of a workgroup that meet at different s_barrier instructions.
#pragma once

#include "check_findings.h"

namespace vgpu {

struct BarrierState {
  bool arrived = false;
  u32 index = 0;  // the s_barrier
};

// Of one thread. A wave that has ended counts as arrived, as on hardware.
class BarrierCheck {
 public:
  BarrierCheck(const Program& program, Findings& findings)
      : program_(program), findings_(findings) {}

  // The waves have met; `state` gives each wave's. `wave` is the first that goes on.
  template <class State>
  void release(const Wave& wave, u32 count, State state) {
    const BarrierState& own = state(wave.index);
    for (u32 w = 0; w < count; ++w) {
      if (state(w).arrived && state(w).index != own.index)
        report(wave, own.index, w, state(w).index);
    }
  }

 private:
  void report(const Wave& wave, u32 index, u32 other_wave, u32 other_index) {
    if (findings_.known(index, FindingKind::kBarrierDivergence)) return;
    Finding finding;
    finding.detail = "wave " + std::to_string(other_wave) + " waits at another one, text offset " +
                     hex(other_index * 4) + " (" + instruction_text(program_, other_index) + ")";
    findings_.add(index, FindingKind::kBarrierDivergence, wave, std::move(finding));
  }

  const Program& program_;
  Findings& findings_;
};

}  // namespace vgpu
