#include "vgpu/run/waves.h"

#include <algorithm>

#include "vgpu/exec/landing.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/isa/program.h"
#include "vgpu/machine/observer.h"

namespace vgpu {
namespace {

constexpr u64 kTurn = 4;           // instructions of a wave before its neighbours run
constexpr u64 kLoneTurn = 20'000;  // where no neighbour can run
constexpr u32 kRandomTurns = 13;   // random turns have 1, 2, 4 ... 4096 instructions

// -------------------------------------------------------------------------------- the slow path

// VGPR indexing: M0 shifts the register numbers of vector instructions.
Inst indexed(const Wave& w, const Inst& plain) {
  Inst inst = plain;
  const u32 m0 = w.sgpr[kM0], index = m0 & 0xff, which = m0 >> 12 & 15;
  for (u32 s = 0; s < 3; ++s) {
    if (which >> s & 1 && inst.src[s].kind == SrcKind::kVgpr)
      inst.src[s].reg = (inst.src[s].reg + index) & 0xff;
  }
  if (which & 8) inst.dst = (inst.dst + index) & 0xff;
  return inst;
}

// While some load is on its way, its neighbours of the queues count, and waits let it land.
void execute_counted(Wave& w, const Inst& inst) {
  const bool load = inst.result && (w.slow & kLate || w.landing->overlaps(inst));
  load ? w.landing->run(w, inst) : inst.exec(w, inst);
  if (w.state == WaveState::kDone) w.landing->all(w);
}

template <bool kObserved>
void slow_step(Wave& w, const Inst& inst) {
  if (w.slow & kSkipping && is_vector(inst.format) && inst.op) return;  // not issued
  const bool counts = w.slow & (kHolding | kFollowed | kLate);
  if (counts) w.landing->before(w, inst);
  if constexpr (kObserved) w.observer->before(w, inst);
  counts ? execute_counted(w, inst) : inst.exec(w, inst);
  if constexpr (kObserved) w.observer->after(w, inst);
}

// -------------------------------------------------------------------------------- the loop

// Up to `budget` instructions of one wave. The plain loop, and the one that an observer follows.
template <bool kObserved>
u64 advance(Wave& w, Program& program, u64 budget) {
  const Inst* const insts = program.insts;
  const u32 count = program.count;
  u64 done = 0;
  do {
    const u32 pc = w.pc;
    if (pc >= count) throw Fault("execution ran past the end of the code object's text");
    const Inst& inst = insts[pc];
    const ExecFn exec = __atomic_load_n(&inst.exec, __ATOMIC_ACQUIRE);
    if (!exec) [[unlikely]] {
      program.decode_slot(pc);
      continue;
    }
    w.current = pc;
    w.pc = pc + inst.dwords;
    ++done;
    if (w.slow) [[unlikely]] {
      const bool shifts = w.slow & kIndexed && is_valu(inst.format);
      shifts ? slow_step<kObserved>(w, indexed(w, inst)) : slow_step<kObserved>(w, inst);
    } else {
      if constexpr (kObserved) w.observer->before(w, inst);
      exec(w, inst);
      if constexpr (kObserved) w.observer->after(w, inst);
    }
    if (!w.runs()) break;
  } while (done < budget);
  return done;
}

// A wave that has ended counts as arrived at the barrier.
void release(const Turns& turns) {
  for (u32 i = 0; i < turns.count; ++i) {
    if (turns.waves[i].state == WaveState::kAtBarrier) turns.waves[i].run();
  }
}

// Those that slept when the workgroup was set aside.
void wake(const Turns& turns) {
  for (u32 i = 0; i < turns.count; ++i) {
    if (turns.waves[i].state == WaveState::kAsleep) turns.waves[i].run();
  }
}

// Of `running` waves, the `which`-th.
Wave& runnable(const Turns& turns, u32 which) {
  Wave* wave = turns.waves;
  while (true) {
    if (wave->runs() && !which--) return *wave;
    ++wave;
  }
}

struct States {
  u32 running = 0, asleep = 0, ended = 0;
};
States states(const Turns& turns) {
  States found;
  for (u32 i = 0; i < turns.count; ++i) {
    found.running += turns.waves[i].runs();
    found.asleep += turns.waves[i].state == WaveState::kAsleep;
    found.ended += turns.waves[i].state == WaveState::kDone;
  }
  return found;
}

// A wave's turn.
template <bool kObserved>
void turn(Wave& w, u64 budget, u64& instructions, u32& mode, const Wave* volatile& running) {
  running = &w;
  if (w.mode != mode) enter_fp_mode(w);
  instructions += advance<kObserved>(w, *w.program, budget);
  mode = w.mode;
}

template <bool kObserved>
bool run_turns(const Turns& turns, u64 slice, u64& instructions, const Wave* volatile& running) {
  const u64 until = instructions + slice;
  wake(turns);
  u32 mode = 0;  // the host's floating-point mode is that of this
  for (u32 i = 0; i < turns.count; ++i) {
    enter_fp_mode(turns.waves[i]);
    mode = turns.waves[i].mode;
  }
  while (instructions < until) {
    const States now = states(turns);
    if (now.ended == turns.count) return true;
    if (!now.running) {
      if (now.asleep) return false;
      release(turns);
      continue;
    }
    if (turns.random) {
      Wave& w = runnable(turns, turns.random->below(now.running));
      const u64 budget = u64{1} << turns.random->below(kRandomTurns);
      turn<kObserved>(w, std::min(budget, slice), instructions, mode, running);
      continue;
    }
    const u64 budget = std::min(now.running == 1 ? kLoneTurn : kTurn, slice);
    for (u32 i = 0; i < turns.count; ++i) {
      Wave& w = turns.waves[i];
      if (w.runs()) turn<kObserved>(w, budget, instructions, mode, running);
    }
  }
  return states(turns).ended == turns.count;
}

}  // namespace

bool take_turns(const Turns& turns, u64 slice, u64& instructions, const Wave* volatile& running) {
  return turns.waves[0].observer ? run_turns<true>(turns, slice, instructions, running)
                                 : run_turns<false>(turns, slice, instructions, running);
}

}  // namespace vgpu
