// When a wave may issue its next instruction, and what that does to its compute unit.
#include "vgpu/timing/replay.h"

namespace vgpu {
namespace {

constexpr u64 kMostVectorLoads = 63;
constexpr u32 kCodeLineDwords = 16;

}  // namespace

// -------------------------------------------------------------------------------- constraints

Replay::Limit Replay::limit_of(WaveRun& wave, u32 pc, const TimedInst& inst, Clk now) {
  wave.parked = WaveRun::Parked::kNo;
  Limit limit{wave.next, Reason::kIssue};
  if (follow_code_) limit_code(wave, pc, limit);
  limit_registers(wave, inst, limit);
  limit_unit(wave, inst, now, limit);
  if (flags_.any() && limit.at <= now && wave.parked == WaveRun::Parked::kNo) {
    limit_flag(wave, limit);
  }
  return limit;
}

void Replay::limit_registers(const WaveRun& wave, const TimedInst& inst, Limit& limit) const {
  if (wave.latest_vector > limit.at) {
    const auto check = [&](const Registers& range, bool only_matrix) {
      for (u32 r = range.first; r < u32{range.first} + range.count; ++r) {
        if (wave.vector_ready[r] <= limit.at || (only_matrix && !wave.by_matrix[r])) continue;
        limit.need(wave.vector_ready[r],
                   wave.by_matrix[r] ? Reason::kMatrixDependency : Reason::kDependency);
      }
    };
    for (u32 i = 0; i < inst.vreads; ++i) check(inst.vread[i], false);
    if (inst.unit == Unit::kVector) {  // overwrites what a matrix instruction has yet to write
      for (u32 i = 0; i < inst.vwrites; ++i) check(inst.vwrite[i], true);
    }
  }
  if (wave.latest_scalar <= limit.at) return;
  for (u32 i = 0; i < inst.sreads; ++i) {
    for (u32 r = inst.sread[i].first; r < u32{inst.sread[i].first} + inst.sread[i].count; ++r) {
      limit.need(wave.scalar_ready[std::min(r, kTimedScalars - 1)], Reason::kDependency);
    }
  }
}

// A load whose end is not known yet: the pipe wakes the wave.
void Replay::limit_load(WaveRun& wave, Clk done, Reason why, Limit& limit) {
  if (done != kUnknownClk) return limit.need(done, why);
  wave.parked = WaveRun::Parked::kOnLoad;
  limit.why = why;
}

void Replay::limit_wait(WaveRun& wave, const TimedInst& inst, Limit& limit) {
  if (inst.vector_wait != kNoWait) {
    limit_load(wave, wave.vector.until(inst.vector_wait), Reason::kVectorWait, limit);
  }
  if (inst.lgkm_wait == kNoWait) return;
  limit.need(wave.lds.until(inst.lgkm_wait), Reason::kLgkmWait);
  if (inst.lgkm_wait) return;
  limit.need(wave.scalar_done, Reason::kLgkmWait);
  if (wave.last_flat) {
    limit_load(wave, wave.vector.until(wave.vector.issued - wave.last_flat), Reason::kLgkmWait,
               limit);
  }
}

void Replay::limit_unit(WaveRun& wave, const TimedInst& inst, Clk now, Limit& limit) {
  Cu& cu = cus_[wave.cu];
  const Cu::Simd& simd = cu.simds[wave.simd];
  switch (inst.unit) {
    case Unit::kVector:
      limit.need(simd.vector, Reason::kVectorUnit);
      if (inst.packed_f32) limit.need(simd.matrix, Reason::kMatrixUnit);
      break;
    case Unit::kMatrix:
      limit.need(simd.vector, Reason::kVectorUnit);
      limit.need(simd.matrix, Reason::kMatrixUnit);
      break;
    case Unit::kLds:
      limit.need(simd.lds, Reason::kLdsUnit);
      limit.need(cu.lds_free - static_cast<Clk>(k_.lds_fifo_clk), Reason::kLdsUnit);
      break;
    case Unit::kMemory:
      limit.need(simd.memory, Reason::kScalarUnit);
      limit_load(wave, wave.vector.until(kMostVectorLoads - 1), Reason::kVectorWait, limit);
      if (wave.parked == WaveRun::Parked::kNo && limit.at <= now &&
          cu.queue.size() >= static_cast<std::size_t>(k_.vmem_queue)) {
        wave.parked = WaveRun::Parked::kOnQueue;
        limit.why = Reason::kMemoryQueue;
        cu.wait_queue.push_back(&wave);
      }
      break;
    case Unit::kScalar:
    case Unit::kScalarMemory:
    case Unit::kBranch:
      limit.need(simd.scalar, Reason::kScalarUnit);
      break;
    case Unit::kInternal:
      if (inst.internal == Internal::kWait) limit_wait(wave, inst, limit);
      break;
  }
}

void Replay::limit_code(WaveRun& wave, u32 pc, Limit& limit) {
  const u32 line = pc / kCodeLineDwords;
  if (line != wave.code_line) {
    Tags& cache = code_caches_[wave.cu / 2];
    const auto [slot, hit] = cache.find(line, hash_line(line));
    if (!hit) cache.ready(slot) = static_cast<double>(limit.at) + k_.fetch_clk;
    wave.code_line = line;
    wave.code_ready = static_cast<Clk>(cache.ready(slot));
  }
  limit.need(wave.code_ready, Reason::kFetch);
}

// Of a loop that looks at a flag the trace has one turn: the last, when the flag is set.
void Replay::limit_flag(WaveRun& wave, Limit& limit) {
  const u32 count = Head::words(*wave.at);
  const u32 word = wave.at[count];
  if (count < 3 || tag_of(word) != FlagWord::kTag || FlagWord::kind(word) != FlagWord::kPoll)
    return;
  if (flags_.look(wave, flag_name(wave.at[count - 1], word))) return;
  wave.parked = WaveRun::Parked::kOnFlag;
  limit.why = Reason::kFlag;
}

// -------------------------------------------------------------------------------- effects

// The write of an instruction, done at `done`, may be of a flag.
void Replay::write_flag(const WaveRun& wave, const u32* words, u32 count, Clk done) {
  if (count < 3 || tag_of(words[count - 1]) != FlagWord::kTag) return;
  const FlagWord::Kind kind = FlagWord::kind(words[count - 1]);
  if (kind == FlagWord::kPoll) return;
  const u64 name = flag_name(words[count - 2], words[count - 1]);
  for (WaveRun* waiting : flags_.write(*wave.group, name, kind)) push(*waiting, done);
}

void Replay::issue(WaveRun& wave, u32 pc, const TimedInst& inst, Clk now) {
  ++result_.pcs[pc].issued;
  ++result_.instructions;
  if (std::vector<IssueEvent>& events = cus_[wave.cu].events; events.size() < input_.most_events) {
    const Clk stalled = std::max<Clk>(0, now - wave.last - 4);
    events.push_back({now, pc, wave.age, wave.simd, wave.why, static_cast<u32>(stalled)});
  }
  const u32 count = Head::words(*wave.at);
  const u32* const words = wave.at + 1;
  wave.at += 1 + count;
  wave.last = now;
  wave.last_pc = pc;
  wave.charged = std::max(wave.charged, now + 4);
  wave.next = now + inst.spacing;
  wave.why = Reason::kIssue;
  execute(wave, inst, words, count, now);
  if (inst.unit == Unit::kBranch && wave.at != wave.end && Head::pc(*wave.at) != pc + inst.dwords) {
    wave.next = now + static_cast<Clk>(k_.branch_clk);
    charge(wave, pc, Reason::kBranch, wave.next);
  }
  if (inst.internal == Internal::kSleep) charge(wave, pc, Reason::kSleep, wave.next);
  if (inst.internal != Internal::kBarrier) return;
  GroupRun& group = *wave.group;
  wave.at_barrier = true;
  if (++group.waiting == group.alive) release_barrier(group, &wave, now, &wave);
}

void Replay::execute(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk now) {
  Cu& cu = cus_[wave.cu];
  Cu::Simd& simd = cu.simds[wave.simd];
  Clk ready = now + inst.latency;
  switch (inst.unit) {
    case Unit::kVector:
      simd.vector = now + inst.busy;
      cu.busy.vector += inst.busy;
      break;
    case Unit::kMatrix:
      simd.matrix = now + inst.busy;
      simd.vector = now + inst.operand_rows;
      cu.busy.matrix[static_cast<u32>(inst.matrix)] += inst.busy;
      break;
    case Unit::kLds:
      return execute_lds(wave, inst, words, count, now);
    case Unit::kScalarMemory:
      simd.scalar = now + 4;
      return execute_scalar_load(wave, inst, words, count, now);
    case Unit::kMemory:
      simd.memory = now + 4;
      if (inst.flat) wave.last_flat = wave.vector.issued + 1;
      return enqueue(wave, inst, words, count, now);
    case Unit::kScalar:
    case Unit::kBranch:
      simd.scalar = now + 4;
      break;
    case Unit::kInternal:
      if (inst.internal == Internal::kPriority) wave.priority = inst.argument & 3;
      return;
  }
  for (u32 i = 0; i < inst.vwrites; ++i) {
    for (u32 r = inst.vwrite[i].first; r < u32{inst.vwrite[i].first} + inst.vwrite[i].count; ++r) {
      wave.vector_ready[r] = ready;
      wave.by_matrix[r] = inst.unit == Unit::kMatrix;
    }
    wave.latest_vector = std::max(wave.latest_vector, ready);
  }
  for (u32 i = 0; i < inst.swrites; ++i) {
    for (u32 r = inst.swrite[i].first; r < u32{inst.swrite[i].first} + inst.swrite[i].count; ++r) {
      wave.scalar_ready[std::min(r, kTimedScalars - 1)] = ready;
    }
    wave.latest_scalar = std::max(wave.latest_scalar, ready);
  }
}

void Replay::execute_lds(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count,
                         Clk now) {
  Cu& cu = cus_[wave.cu];
  u32 cycles = 0, conflicts = 0;
  bool writes = false;
  for (u32 i = 0; i < count; ++i) {
    if (tag_of(words[i]) != LdsWord::kTag) continue;
    cycles += LdsWord::cycles(words[i]);
    conflicts += LdsWord::conflicts(words[i]);
    writes |= LdsWord::is_write(words[i]);
  }
  cycles = std::max(cycles, writes ? static_cast<u32>(k_.lds_write_clk) : 1u);
  const Clk start = std::max(now, cu.lds_free);
  cu.lds_free = start + cycles;
  cu.busy.lds += cycles;
  cu.busy.lds_conflicts += conflicts;
  cu.simds[wave.simd].lds = now + static_cast<Clk>(inst.width * k_.lds_simd_dword_clk);
  const Clk done = start + cycles + static_cast<Clk>(k_.lds_latency);
  wave.lds.issue(std::max(done, wave.lds.last()));
}

void Replay::execute_scalar_load(WaveRun& wave, const TimedInst&, const u32* words, u32 count,
                                 Clk now) {
  double done = static_cast<double>(now) + k_.k_latency;
  const double at = static_cast<double>(now);
  const u32 lines = count && tag_of(words[0]) == GlobalWord::kTag ? GlobalWord::lines(words[0]) : 0;
  for (u32 i = 1; i <= lines; ++i) {
    const auto [slot, hit] = k_caches_[wave.cu / 2].find(words[i], words[i]);
    double& ready = k_caches_[wave.cu / 2].ready(slot);
    ++memory_.counts.scalar_lines;
    memory_.counts.scalar_hits += hit;
    if (!hit) ready = memory_.read_scalar(at, words[i]);
    done = std::max(done, ready);
  }
  wave.scalar_done = std::max(wave.scalar_done, static_cast<Clk>(done));
  write_flag(wave, words, count, static_cast<Clk>(done));
}

}  // namespace vgpu
