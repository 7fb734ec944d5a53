// Barrier divergence: waves of a workgroup that meet at different s_barrier instructions, and do
// not pass the same number of them.
//
// Meeting at different instructions alone is no defect of the machine code: a pair of wave groups
// that work in turns (one has a barrier more in front of its loop, the other behind it) is tuned
// that way.
#pragma once

#include <optional>

#include "check_findings.h"

namespace vgpu {

struct BarrierState {
  bool arrived = false;
  u32 index = 0;  // the s_barrier
  u32 count = 0;  // barriers that the wave has reached
};

// The first time that waves of a workgroup have met at different barriers.
struct BarrierMeeting {
  u32 index = 0;
  Finding finding;
};

// Of one thread. A wave that has ended counts as arrived, as on hardware.
class BarrierCheck {
 public:
  BarrierCheck(const Program& program, Findings& findings)
      : program_(program), findings_(findings) {}

  // The waves have met; `state` gives each wave's. `wave` is the first that goes on.
  template <class State>
  void release(std::optional<BarrierMeeting>& meeting, const Wave& wave, u32 count, State state) {
    const BarrierState& own = state(wave.index);
    for (u32 w = 0; w < count && !meeting; ++w) {
      if (state(w).arrived && state(w).index != own.index) meeting = meet(wave, own, w, state(w));
    }
  }

  // All waves have ended.
  template <class State>
  void end(std::optional<BarrierMeeting>& meeting, u32 count, State state) {
    bool same = true;
    for (u32 w = 1; w < count; ++w) same = same && state(w).count == state(0).count;
    if (meeting && !same && !findings_.known(meeting->index, FindingKind::kBarrierDivergence)) {
      findings_.add(meeting->index, FindingKind::kBarrierDivergence, meeting->finding);
    }
    meeting.reset();
  }

 private:
  BarrierMeeting meet(const Wave& wave, const BarrierState& own, u32 other,
                      const BarrierState& others) const {
    Finding finding(wave);
    finding.detail = "wave " + std::to_string(other) + " waits at another one, text offset " +
                     hex(others.index * 4) + " (" + instruction_text(program_, others.index) +
                     "), and waves do not pass the same number of barriers";
    return {own.index, std::move(finding)};
  }

  const Program& program_;
  Findings& findings_;
};

}  // namespace vgpu
