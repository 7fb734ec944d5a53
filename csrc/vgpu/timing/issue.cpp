// Issue: the earliest clk at which a wave may issue its next instruction, and the effect of the
// issue on the compute unit.
#include "vgpu/timing/replay.h"

namespace vgpu {
namespace {

// Adds the memory accesses of an instruction's payload.
void add_accesses(PcStats& stats, const u32* words, u32 count) {
  for (u32 i = 0; i < count; ++i) {
    if (tag_of(words[i]) == LdsWord::kTag) {
      stats.lds_clk += LdsWord::cycles(words[i]);
      stats.conflict_clk += LdsWord::conflicts(words[i]);
    } else if (tag_of(words[i]) == GlobalWord::kTag) {
      stats.bytes += u64{GlobalWord::bytes(words[i])} * GlobalWord::lanes(words[i]);
      stats.lines += GlobalWord::lines(words[i]);
      i += GlobalWord::lines(words[i]);
    }
  }
}

constexpr u64 kMaxVectorLoads = 63;
constexpr u32 kCodeLineDwords = 16;

}  // namespace

// -------------------------------------------------------------------------------- constraints

Replay::Limit Replay::issue_limit(WaveRun& wave, u32 pc, const TimedInst& inst, Clk cur_clk) {
  wave.wait_kind = WaveRun::WaitKind::kRunning;
  Limit limit{wave.next_issue, Reason::kIssue};
  if (model_icache_) limit_code(wave, pc, limit);
  limit_registers(wave, inst, limit);
  limit_unit(wave, inst, cur_clk, limit);
  if (flags_.empty() && limit.clk <= cur_clk && wave.wait_kind == WaveRun::WaitKind::kRunning) {
    limit_flag(wave, limit);
  }
  return limit;
}

void Replay::limit_registers(const WaveRun& wave, const TimedInst& inst, Limit& limit) const {
  if (wave.latest_vector > limit.clk) {
    const auto check = [&](const Registers& range, bool only_matrix) {
      for (u32 r = range.first; r < u32{range.first} + range.count; ++r) {
        if (wave.vector_ready[r] <= limit.clk || (only_matrix && !wave.written_by_matrix[r]))
          continue;
        limit.require(wave.vector_ready[r],
                      wave.written_by_matrix[r] ? Reason::kMatrixDependency : Reason::kDependency);
      }
    };
    for (u32 i = 0; i < inst.vreads; ++i) check(inst.vread[i], false);
    if (inst.unit == Unit::kVector) {  // write after write: an MFMA result is still pending
      for (u32 i = 0; i < inst.vwrites; ++i) check(inst.vwrite[i], true);
    }
  }
  if (wave.latest_scalar <= limit.clk) return;
  for (u32 i = 0; i < inst.sreads; ++i) {
    for (u32 r = inst.sread[i].first; r < u32{inst.sread[i].first} + inst.sread[i].count; ++r) {
      limit.require(wave.scalar_ready[std::min(r, kTimedScalars - 1)], Reason::kDependency);
    }
  }
}

// Waits for a load. If its completion time is not known yet, the memory pipe wakes the wave.
void Replay::limit_load(WaveRun& wave, Clk done, Reason reason, Limit& limit) {
  if (done != kUnknownClk) return limit.require(done, reason);
  wave.wait_kind = WaveRun::WaitKind::kLoad;
  limit.reason = reason;
}

void Replay::limit_wait(WaveRun& wave, const TimedInst& inst, Limit& limit) {
  if (inst.vector_wait != kNoWait) {
    limit_load(wave, wave.vector.completion(inst.vector_wait), Reason::kVectorWait, limit);
  }
  if (inst.lgkm_wait == kNoWait) return;
  limit.require(wave.lds.completion(inst.lgkm_wait), Reason::kLgkmWait);
  if (inst.lgkm_wait) return;
  limit.require(wave.scalar_done, Reason::kLgkmWait);
  if (wave.last_flat) {
    limit_load(wave, wave.vector.completion(wave.vector.issued - wave.last_flat), Reason::kLgkmWait,
               limit);
  }
}

void Replay::limit_unit(WaveRun& wave, const TimedInst& inst, Clk cur_clk, Limit& limit) {
  Cu& cu = cus_[wave.cu];
  const Cu::Simd& simd = cu.simds[wave.simd];
  switch (inst.unit) {
    case Unit::kVector:
      limit.require(simd.vector, Reason::kVectorUnit);
      if (inst.packed_f32) limit.require(simd.matrix, Reason::kMatrixUnit);
      break;
    case Unit::kMatrix:
      limit.require(simd.vector, Reason::kVectorUnit);
      limit.require(simd.matrix, Reason::kMatrixUnit);
      break;
    case Unit::kLds:
      limit.require(simd.lds, Reason::kLdsUnit);
      limit.require(cu.lds_free - static_cast<Clk>(k_.lds_fifo_clk), Reason::kLdsUnit);
      break;
    case Unit::kMemory:
      limit.require(simd.memory, Reason::kScalarUnit);
      limit_load(wave, wave.vector.completion(kMaxVectorLoads - 1), Reason::kVectorWait, limit);
      if (wave.wait_kind == WaveRun::WaitKind::kRunning && limit.clk <= cur_clk &&
          cu.queue.size() >= static_cast<std::size_t>(k_.vmem_queue)) {
        wave.wait_kind = WaveRun::WaitKind::kQueue;
        limit.reason = Reason::kMemoryQueue;
        cu.wait_queue.push_back(&wave);
      }
      break;
    case Unit::kScalar:
    case Unit::kScalarMemory:
    case Unit::kBranch:
      limit.require(simd.scalar, Reason::kScalarUnit);
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
    if (!hit) cache.ready(slot) = static_cast<double>(limit.clk) + k_.fetch_clk;
    wave.code_line = line;
    wave.code_ready = static_cast<Clk>(cache.ready(slot));
  }
  limit.require(wave.code_ready, Reason::kFetch);
}

// Waits for a spin flag. The trace keeps only the last iteration of a polling loop, in which the
// flag is set.
void Replay::limit_flag(WaveRun& wave, Limit& limit) {
  const u32 count = Head::words(*wave.trace_pos);
  const u32 word = wave.trace_pos[count];
  if (count < 3 || tag_of(word) != FlagWord::kTag || FlagWord::kind(word) != FlagWord::kPoll)
    return;
  if (flags_.poll(wave, flag_id(wave.trace_pos[count - 1], word))) return;
  wave.wait_kind = WaveRun::WaitKind::kFlag;
  limit.reason = Reason::kFlag;
}

// -------------------------------------------------------------------------------- effects

// Reports the write of an instruction, complete at `done`, to the spin flags.
void Replay::write_flag(const WaveRun& wave, const u32* words, u32 count, Clk done) {
  if (count < 3 || tag_of(words[count - 1]) != FlagWord::kTag) return;
  const FlagWord::Kind kind = FlagWord::kind(words[count - 1]);
  if (kind == FlagWord::kPoll) return;
  const u64 name = flag_id(words[count - 2], words[count - 1]);
  for (WaveRun* waiting : flags_.write(*wave.group, name, kind)) push(*waiting, done);
}

void Replay::issue(WaveRun& wave, u32 pc, const TimedInst& inst, Clk cur_clk) {
  ++result_.pcs[pc].issued;
  ++result_.instructions;
  if (std::vector<IssueEvent>& events = cus_[wave.cu].events; events.size() < input_.max_events) {
    const Clk stalled = std::max<Clk>(0, cur_clk - wave.last_issue - 4);
    events.push_back({cur_clk, pc, wave.age, wave.simd, wave.reason, static_cast<u32>(stalled)});
  }
  const u32 count = Head::words(*wave.trace_pos);
  const u32* const payload = wave.trace_pos + 1;
  if (count) add_accesses(result_.pcs[pc], payload, count);
  wave.trace_pos += 1 + count;
  wave.last_issue = cur_clk;
  wave.last_pc = pc;
  wave.charged_until = std::max(wave.charged_until, cur_clk + 4);
  wave.next_issue = cur_clk + inst.spacing;
  wave.reason = Reason::kIssue;
  execute(wave, inst, payload, count, cur_clk);
  if (inst.unit == Unit::kBranch && wave.trace_pos != wave.trace_end &&
      Head::pc(*wave.trace_pos) != pc + inst.dwords) {
    wave.next_issue = cur_clk + static_cast<Clk>(k_.branch_clk);
    charge(wave, pc, Reason::kBranch, wave.next_issue);
  }
  if (inst.internal == Internal::kSleep) charge(wave, pc, Reason::kSleep, wave.next_issue);
  if (inst.internal != Internal::kBarrier) return;
  WorkgroupRun& group = *wave.group;
  wave.at_barrier = true;
  if (++group.waiting == group.alive) release_barrier(group, &wave, cur_clk, &wave);
}

void Replay::execute(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count,
                     Clk cur_clk) {
  Cu& cu = cus_[wave.cu];
  Cu::Simd& simd = cu.simds[wave.simd];
  Clk ready = cur_clk + inst.latency;
  switch (inst.unit) {
    case Unit::kVector:
      simd.vector = cur_clk + inst.busy;
      cu.busy.vector += inst.busy;
      break;
    case Unit::kMatrix:
      simd.matrix = cur_clk + inst.busy;
      simd.vector = cur_clk + inst.operand_rows;
      cu.busy.matrix[static_cast<u32>(inst.matrix)] += inst.busy;
      break;
    case Unit::kLds:
      return execute_lds(wave, inst, words, count, cur_clk);
    case Unit::kScalarMemory:
      simd.scalar = cur_clk + 4;
      return execute_scalar_load(wave, inst, words, count, cur_clk);
    case Unit::kMemory:
      simd.memory = cur_clk + 4;
      if (inst.flat) wave.last_flat = wave.vector.issued + 1;
      return enqueue(wave, inst, words, count, cur_clk);
    case Unit::kScalar:
    case Unit::kBranch:
      simd.scalar = cur_clk + 4;
      break;
    case Unit::kInternal:
      if (inst.internal == Internal::kPriority) wave.priority = inst.imm & 3;
      return;
  }
  for (u32 i = 0; i < inst.vwrites; ++i) {
    for (u32 r = inst.vwrite[i].first; r < u32{inst.vwrite[i].first} + inst.vwrite[i].count; ++r) {
      wave.vector_ready[r] = ready;
      wave.written_by_matrix[r] = inst.unit == Unit::kMatrix;
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
                         Clk cur_clk) {
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
  const Clk start = std::max(cur_clk, cu.lds_free);
  cu.lds_free = start + cycles;
  cu.busy.lds += cycles;
  cu.busy.lds_conflicts += conflicts;
  cu.simds[wave.simd].lds = cur_clk + static_cast<Clk>(inst.width * k_.lds_simd_dword_clk);
  const Clk done = start + cycles + static_cast<Clk>(k_.lds_latency);
  wave.lds.issue(std::max(done, wave.lds.last_completion()));
}

void Replay::execute_scalar_load(WaveRun& wave, const TimedInst&, const u32* words, u32 count,
                                 Clk cur_clk) {
  double done = static_cast<double>(cur_clk) + k_.k_latency;
  const double issue_clk = static_cast<double>(cur_clk);
  const u32 lines = count && tag_of(words[0]) == GlobalWord::kTag ? GlobalWord::lines(words[0]) : 0;
  for (u32 i = 1; i <= lines; ++i) {
    const auto [slot, hit] = k_caches_[wave.cu / 2].find(words[i], words[i]);
    double& ready = k_caches_[wave.cu / 2].ready(slot);
    ++memory_.counts.scalar_lines;
    memory_.counts.scalar_hits += hit;
    if (!hit) ready = memory_.read_scalar(issue_clk, words[i]);
    done = std::max(done, ready);
  }
  wave.scalar_done = std::max(wave.scalar_done, static_cast<Clk>(done));
  write_flag(wave, words, count, static_cast<Clk>(done));
}

}  // namespace vgpu
