// Barrier divergence: a barrier that not all work-items of a workgroup pass.
//
// Hardware counts arrivals, and a wave that has ended counts as arrived. Waves at different
// s_barrier instructions are therefore not an error by themselves: ping-pong schedules (one group
// of waves has an extra barrier before its loop, the other after it) rely on it. It is an error if
// waves pass unequal numbers of barriers until they end, or if lanes that were masked off at a
// barrier access memory after it.
#pragma once

#include <bit>
#include <optional>

#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct BarrierState {
  bool arrived = false, ended = false;
  u32 index = 0;         // instruction index of the s_barrier
  u32 count = 0;         // barriers that the wave has reached
  u64 masked_lanes = 0;  // lanes masked off at the last one
};

// The first time that waves of a workgroup met at different barriers, or some had already ended.
struct BarrierMismatch {
  u32 index = 0;
  Finding finding;
};

// One per host thread.
class BarrierCheck {
 public:
  BarrierCheck(const Program& program, Findings& findings)
      : program_(program), findings_(findings) {}

  void arrive(BarrierState& state, const Wave& wave, const Inst& inst) const {
    const u64 exec = wave.exec();
    state.arrived = true;
    state.index = inst.index;
    ++state.count;
    if (exec) state.masked_lanes = wave.launched_lanes & ~exec;
  }

  // Called for vector memory accesses. Spills of masked lanes to private memory do not count.
  void access_memory(BarrierState& state, const Wave& wave) {
    const u64 lanes = state.masked_lanes & wave.exec();
    if (!lanes) [[likely]]
      return;
    state.masked_lanes = 0;
    if (findings_.contains(state.index, FindingKind::kBarrierDivergence)) return;
    Finding finding(wave, static_cast<u32>(std::countr_zero(lanes)));
    finding.detail =
        "the lane is masked off at the barrier and accesses memory after it, at text offset " +
        hex(wave.current * 4);
    findings_.add(state.index, FindingKind::kBarrierDivergence, std::move(finding));
  }

  // Called when all waves have arrived; `state` returns each wave's state, `wave` is the first to
  // continue.
  template <class State>
  void release(std::optional<BarrierMismatch>& mismatch, const Wave& wave, u32 count, State state) {
    const BarrierState& released = state(wave.index);
    for (u32 w = 0; w < count && !mismatch; ++w) {
      const BarrierState& peer = state(w);
      if (peer.ended) {
        mismatch = make_mismatch(wave, released,
                                 "wave " + std::to_string(w) + " has ended without reaching it");
      } else if (peer.arrived && peer.index != released.index) {
        mismatch =
            make_mismatch(wave, released,
                          "wave " + std::to_string(w) + " waits at another barrier, text offset " +
                              hex(peer.index * 4) + " (" + instruction_text(program_, peer.index) +
                              "), and the waves pass unequal numbers of barriers");
      }
    }
  }

  // Called when the workgroup ends. After a fault, some waves have not ended.
  template <class State>
  void end(std::optional<BarrierMismatch>& mismatch, u32 count, State state) {
    bool all_ended = true, equal_counts = true;
    for (u32 w = 0; w < count; ++w) {
      all_ended = all_ended && state(w).ended;
      equal_counts = equal_counts && state(w).count == state(0).count;
    }
    if (mismatch && all_ended && !equal_counts &&
        !findings_.contains(mismatch->index, FindingKind::kBarrierDivergence)) {
      findings_.add(mismatch->index, FindingKind::kBarrierDivergence, mismatch->finding);
    }
    mismatch.reset();
  }

 private:
  static BarrierMismatch make_mismatch(const Wave& wave, const BarrierState& released,
                                       std::string description) {
    Finding finding(wave);
    finding.detail = std::move(description);
    return {released.index, std::move(finding)};
  }

  const Program& program_;
  Findings& findings_;
};

}  // namespace vgpu
