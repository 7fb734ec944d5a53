#include "vgpu/watch/check_waits.h"

namespace vgpu {
namespace {

void retire(WaitState& state, u32 code) {
  const u32 lgkm = lgkm_wait(code);
  state.vector.wait(vector_wait(code));
  state.lds.wait(lgkm);
  if (!lgkm) state.scalar.wait(0);  // scalar loads complete in any order
  if (state.vector.is_idle() && state.lds.is_idle()) state.loading = {};
}

// Loads of one queue complete in order, so a later one may overwrite an earlier one's register.
bool in_order(const WaitState& state, const WaitState::Pending& pending, Queue queue) {
  const bool by_vector = pending.vector > state.vector.done, by_lds = pending.lds > state.lds.done;
  if (queue == Queue::kVector || queue == Queue::kFlat) return !by_lds;
  return queue == Queue::kLds && !by_vector;
}

}  // namespace

void WaitCheck::wait(WaitState& state, const Inst& inst) {
  if (inst.op->category == Category::kWait) retire(state, static_cast<u32>(inst.imm));
}

void WaitCheck::issue(WaitState& state, const Wave& wave, const Operands& operands) {
  spaces_ = 0;
  exec_ = wave.exec();
  if (operands.queue == Queue::kVector || operands.queue == Queue::kFlat) {
    state.vector.issue(kMaxVector);
  }
  if (operands.queue == Queue::kLds || operands.queue == Queue::kFlat) state.lds.issue(kMaxLgkm);
  if (operands.queue == Queue::kScalar) ++state.scalar.issued;
}

void WaitCheck::check_vector(WaitState& state, const Wave& wave, const Inst& inst,
                             const Operands& operands) {
  for (const RegRange& range : operands.vreads) {
    for (u32 r = 0; r < range.count; ++r) {
      WaitState::Pending& pending = state.vgpr[row(range.first + r)];
      const bool waits = state.waits(pending);
      state.loading.remove(row(range.first + r));
      if (!waits) continue;
      report(state, wave, inst, vector_register(range.first + r), pending, false, false);
      pending = {};
    }
  }
  for (const RegRange& range : operands.vwrites) {
    for (u32 r = 0; r < range.count; ++r) {
      WaitState::Pending& pending = state.vgpr[row(range.first + r)];
      const bool waits = state.waits(pending);
      if (waits && in_order(state, pending, operands.queue)) continue;
      state.loading.remove(row(range.first + r));
      if (!waits) continue;
      report(state, wave, inst, vector_register(range.first + r), pending, false, true);
      pending = {};
    }
  }
}

void WaitCheck::check_scalar(WaitState& state, const Wave& wave, const Inst& inst,
                             const Operands& operands) {
  const auto check = [&](const RegRange& range, bool writes) {
    for (u32 r = 0; r < range.count; ++r) {
      WaitState::Pending& pending = state.sgpr[(range.first + r) & 127];
      if (!state.scalar_waits(pending)) continue;
      report(state, wave, inst, scalar_register(range.first + r), pending, true, writes);
      pending = {};
    }
  };
  for (const RegRange& range : operands.sreads) check(range, false);
  for (const RegRange& range : operands.swrites) check(range, true);
}

void WaitCheck::note_loads(WaitState& state, const Inst& inst, const Operands& operands) {
  if (operands.queue == Queue::kScalar) {
    for (const RegRange& range : operands.swrites) {
      for (u32 r = 0; r < range.count; ++r) {
        state.sgpr[(range.first + r) & 127] = {state.scalar.issued, 0, inst.index};
      }
    }
    return;
  }
  if (!exec_ || !operands.vwrites.size) return;  // without active lanes nothing is loaded
  // A FLAT load completes with the queue of the memory that its lanes access.
  const bool from_lds = spaces_ & 1u << static_cast<u32>(Space::kLds);
  const bool from_memory = spaces_ & ~(1u << static_cast<u32>(Space::kLds));
  const bool flat = operands.queue == Queue::kFlat;
  const bool by_vector = operands.queue == Queue::kVector || (flat && from_memory);
  const bool by_lds = operands.queue == Queue::kLds || (flat && from_lds);
  const WaitState::Pending pending = {by_vector ? state.vector.issued : 0,
                                      by_lds ? state.lds.issued : 0, inst.index};
  for (const RegRange& range : operands.vwrites) {
    for (u32 r = 0; r < range.count; ++r) {
      state.vgpr[row(range.first + r)] = pending;
      state.loading.add(row(range.first + r));
    }
  }
}

void WaitCheck::report(const WaitState& state, const Wave& wave, const Inst& inst,
                       const std::string& reg, const WaitState::Pending& pending, bool scalar,
                       bool writes) {
  if (findings_.contains(inst.index, FindingKind::kMissingWait)) return;
  std::string wait;
  if (scalar) {
    wait = " lgkmcnt(0)";
  } else {
    if (pending.vector > state.vector.done) {
      wait += " vmcnt(" + std::to_string(state.vector.issued - pending.vector) + ")";
    }
    if (pending.lds > state.lds.done) {
      wait += " lgkmcnt(" + std::to_string(state.lds.issued - pending.lds) + ")";
    }
  }
  Finding finding(wave);
  finding.detail = std::string(writes ? "overwrites " : "reads ") + reg +
                   ", which the load at text offset " + hex(pending.index * 4) + " (" +
                   instruction_text(program_, pending.index) + ") may still write: no s_waitcnt" +
                   wait + " between them";
  findings_.add(inst.index, FindingKind::kMissingWait, std::move(finding));
}

}  // namespace vgpu
