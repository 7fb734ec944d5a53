#include "vgpu/run/waves.h"

#include <algorithm>

#include "vgpu/exec/lanes.h"
#include "vgpu/exec/load_queue.h"
#include "vgpu/isa/program.h"
#include "vgpu/machine/observer.h"

namespace vgpu {
namespace {

constexpr u64 kWaveSlice = 4;           // instructions per wave before the next wave runs
constexpr u64 kLoneWaveSlice = 20'000;  // if no other wave can run
constexpr u32 kRandomSlices = 13;       // random slices have 1, 2, 4 ... 4096 instructions

// -------------------------------------------------------------------------------- the slow path

// VGPR indexing: adds M0 to the register numbers of vector instructions.
Inst indexed(const Wave& w, const Inst& plain) {
  Inst inst = plain;
  const u32 m0 = w.sgpr[kM0], index = m0 & 0xff, operand_mask = m0 >> 12 & 15;
  for (u32 s = 0; s < 3; ++s) {
    if (operand_mask >> s & 1 && inst.src[s].kind == SrcKind::kVgpr)
      inst.src[s].reg = (inst.src[s].reg + index) & 0xff;
  }
  if (operand_mask & 8) inst.dst = (inst.dst + index) & 0xff;
  return inst;
}

// Executes an instruction while loads are tracked: the wait counters advance, and waits complete
// loads.
void execute_tracked(Wave& w, const Inst& inst) {
  const bool load = inst.result && (w.slow & kRandomCompletion || w.load_queue->overlaps(inst));
  load ? w.load_queue->run(w, inst) : inst.exec(w, inst);
  if (w.state == WaveState::kDone) w.load_queue->complete_all(w);
}

template <bool kObserved>
void slow_step(Wave& w, const Inst& inst) {
  if (w.slow & kSkipping && is_vector(inst.format) && inst.op) return;  // skipped
  const bool tracks = w.slow & (kLoadsInFlight | kTrackLoads | kRandomCompletion);
  if (tracks) w.load_queue->before_inst(w, inst);
  if constexpr (kObserved) w.observer->before_inst(w, inst);
  tracks ? execute_tracked(w, inst) : inst.exec(w, inst);
  if constexpr (kObserved) w.observer->after_inst(w, inst);
}

// -------------------------------------------------------------------------------- the loop

// Runs at most `budget` instructions of one wave, with or without an observer.
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
      const bool is_indexed = w.slow & kIndexed && is_valu(inst.format);
      is_indexed ? slow_step<kObserved>(w, indexed(w, inst)) : slow_step<kObserved>(w, inst);
    } else {
      if constexpr (kObserved) w.observer->before_inst(w, inst);
      exec(w, inst);
      if constexpr (kObserved) w.observer->after_inst(w, inst);
    }
    if (!w.is_running()) break;
  } while (done < budget);
  return done;
}

// Releases the barrier. A wave that has ended counts as arrived.
void release(const WaveSet& group) {
  for (u32 i = 0; i < group.count; ++i) {
    if (group.waves[i].state == WaveState::kAtBarrier) group.waves[i].run();
  }
}

// Wakes waves that slept when the workgroup was suspended.
void wake(const WaveSet& group) {
  for (u32 i = 0; i < group.count; ++i) {
    if (group.waves[i].state == WaveState::kAsleep) group.waves[i].run();
  }
}

// Returns the runnable wave at this position.
Wave& runnable(const WaveSet& group, u32 position) {
  Wave* wave = group.waves;
  while (true) {
    if (wave->is_running() && !position--) return *wave;
    ++wave;
  }
}

struct StateCounts {
  u32 running = 0, asleep = 0, ended = 0;
};
StateCounts count_states(const WaveSet& group) {
  StateCounts counts;
  for (u32 i = 0; i < group.count; ++i) {
    counts.running += group.waves[i].is_running();
    counts.asleep += group.waves[i].state == WaveState::kAsleep;
    counts.ended += group.waves[i].state == WaveState::kDone;
  }
  return counts;
}

// Runs one slice of a wave.
template <bool kObserved>
void run_wave_slice(Wave& w, u64 budget, u64& instructions, u32& mode,
                    const Wave* volatile& running) {
  running = &w;
  if (w.mode != mode) enter_fp_mode(w);
  instructions += advance<kObserved>(w, *w.program, budget);
  mode = w.mode;
}

template <bool kObserved>
bool run_slices(const WaveSet& group, u64 slice, u64& instructions, const Wave* volatile& running) {
  const u64 end_instructions = instructions + slice;
  wake(group);
  u32 mode = 0;  // MODE that the host's floating-point unit follows
  for (u32 i = 0; i < group.count; ++i) {
    enter_fp_mode(group.waves[i]);
    mode = group.waves[i].mode;
  }
  while (instructions < end_instructions) {
    const StateCounts counts = count_states(group);
    if (counts.ended == group.count) return true;
    if (!counts.running) {
      if (counts.asleep) return false;
      release(group);
      continue;
    }
    if (group.random) {
      Wave& w = runnable(group, group.random->next_below(counts.running));
      const u64 budget = u64{1} << group.random->next_below(kRandomSlices);
      run_wave_slice<kObserved>(w, std::min(budget, slice), instructions, mode, running);
      continue;
    }
    const u64 budget = std::min(counts.running == 1 ? kLoneWaveSlice : kWaveSlice, slice);
    for (u32 i = 0; i < group.count; ++i) {
      Wave& w = group.waves[i];
      if (w.is_running()) run_wave_slice<kObserved>(w, budget, instructions, mode, running);
    }
  }
  return count_states(group).ended == group.count;
}

}  // namespace

bool run_waves(const WaveSet& group, u64 slice, u64& instructions, const Wave* volatile& running) {
  return group.waves[0].observer ? run_slices<true>(group, slice, instructions, running)
                                 : run_slices<false>(group, slice, instructions, running);
}

}  // namespace vgpu
