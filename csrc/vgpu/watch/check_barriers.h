// Barrier divergence: a barrier that not all work-items of a workgroup pass.
//
// Hardware counts arrivals, and a wave that has ended counts as arrived. Waves that wait at
// different s_barrier instructions are therefore no defect by themselves: pairs of wave groups that
// work in turns (one has a barrier more in front of its loop, the other behind it) are tuned that
// way. It is one where waves do not pass the same number of barriers until they end, or where lanes
// that were masked off at a barrier access memory behind it.
#pragma once

#include <bit>
#include <optional>

#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct BarrierState {
  bool arrived = false, ended = false;
  u32 index = 0;      // the s_barrier
  u32 count = 0;      // barriers that the wave has reached
  u64 passed_by = 0;  // lanes that were masked off at one
};

// The first time that waves of a workgroup have met at different barriers, or some had ended.
struct BarrierMeeting {
  u32 index = 0;
  Finding finding;
};

// Of one thread.
class BarrierCheck {
 public:
  BarrierCheck(const Program& program, Findings& findings)
      : program_(program), findings_(findings) {}

  void arrive(BarrierState& state, const Wave& wave, const Inst& inst) const {
    const u64 exec = wave.exec();
    state.arrived = true;
    state.index = inst.index;
    ++state.count;
    if (exec) state.passed_by = wave.launched & ~exec;
  }

  // A vector instruction accesses memory. (That compilers spill registers of masked lanes, to
  // private memory, is no work.)
  void work(BarrierState& state, const Wave& wave) {
    const u64 lanes = state.passed_by & wave.exec();
    if (!lanes) [[likely]]
      return;
    state.passed_by = 0;
    if (findings_.known(state.index, FindingKind::kBarrierDivergence)) return;
    Finding finding(wave, static_cast<u32>(std::countr_zero(lanes)));
    finding.detail =
        "the lane passes it by: it is masked off there, and works on behind it, at text "
        "offset " +
        hex(wave.current * 4);
    findings_.add(state.index, FindingKind::kBarrierDivergence, std::move(finding));
  }

  // The waves have met; `state` gives each wave's. `wave` is the first that goes on.
  template <class State>
  void release(std::optional<BarrierMeeting>& meeting, const Wave& wave, u32 count, State state) {
    const BarrierState& own = state(wave.index);
    for (u32 w = 0; w < count && !meeting; ++w) {
      const BarrierState& other = state(w);
      if (other.ended) {
        meeting = meet(wave, own, "wave " + std::to_string(w) + " has ended without it");
      } else if (other.arrived && other.index != own.index) {
        meeting = meet(wave, own,
                       "wave " + std::to_string(w) + " waits at another one, text offset " +
                           hex(other.index * 4) + " (" + instruction_text(program_, other.index) +
                           "), and waves do not pass the same number of barriers");
      }
    }
  }

  // The workgroup runs no more. Where a fault has stopped it, waves have not ended.
  template <class State>
  void end(std::optional<BarrierMeeting>& meeting, u32 count, State state) {
    bool all = true, same = true;
    for (u32 w = 0; w < count; ++w) {
      all = all && state(w).ended;
      same = same && state(w).count == state(0).count;
    }
    if (meeting && all && !same &&
        !findings_.known(meeting->index, FindingKind::kBarrierDivergence)) {
      findings_.add(meeting->index, FindingKind::kBarrierDivergence, meeting->finding);
    }
    meeting.reset();
  }

 private:
  static BarrierMeeting meet(const Wave& wave, const BarrierState& own, std::string what) {
    Finding finding(wave);
    finding.detail = std::move(what);
    return {own.index, std::move(finding)};
  }

  const Program& program_;
  Findings& findings_;
};

}  // namespace vgpu
