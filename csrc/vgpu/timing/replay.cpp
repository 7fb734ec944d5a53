#include "vgpu/timing/replay.h"

namespace vgpu {
namespace {

constexpr u32 kPipe = 1u << 31;  // bit of an event id: the memory pipe of a CU, otherwise a wave
constexpr u32 kOrderBits = 24;   // low bits of an event key: the order of events within one clk
constexpr u32 kAgeMask = (1u << 21) - 1;
constexpr u32 kCodeLine = 64;

}  // namespace

const char* reason_name(Reason reason) {
  static constexpr const char* kNames[] = {
      "issue",      "dependency",        "mfma_dependency",
      "vmcnt",      "lgkmcnt",           "valu_unit",
      "mfma_unit",  "lds_unit",          "salu_unit",
      "vmem_queue", "barrier",           "sleep",
      "branch",     "instruction_cache", "flag",
  };
  static_assert(std::size(kNames) == kReasons);
  return kNames[static_cast<u32>(reason)];
}

Replay::Replay(const ReplayInput& input, StaticTable& table, double ghz)
    : input_(input),
      k_(input.model->constants),
      table_(table),
      memory_(k_, ghz, input.memory),
      flags_(input.groups),
      cus_(std::max(1u, static_cast<u32>(k_.cus / k_.xccs))) {
  const std::size_t pairs = (cus_.size() + 1) / 2;
  for (Cu& cu : cus_) cu.l1.reset(k_.l1_bytes, k_.l1_ways);
  k_caches_.resize(pairs);
  for (Tags& cache : k_caches_) cache.reset(k_.k_bytes, k_.k_ways);
  // Code that fits the instruction cache is resident after the first launch.
  model_icache_ = input.cold_code || u64{table.size()} * 4 > static_cast<u64>(k_.icache_bytes);
  if (model_icache_) {
    code_caches_.resize(pairs);
    for (Tags& cache : code_caches_) cache.reset(k_.icache_bytes, 8, kCodeLine);
  }
  result_.pcs.resize(table.size());
  if (!input.memory.in_l2) return;
  for (const WorkgroupTrace* group : input.groups) {
    for (const std::vector<u32>& wave : group->waves) {
      for_each_line(wave, [this](u32 line) { memory_.preload(line); });
    }
  }
}
Replay::~Replay() = default;

// -------------------------------------------------------------------------------- events

// Schedules a wave. Events of one clk are ordered: memory pipes first, then waves by priority and
// age.
void Replay::push(WaveRun& wave, Clk clk) {
  wave.wait_kind = WaveRun::WaitKind::kRunning;
  const u64 order = 1 + ((3u - wave.priority) << 21 | (wave.age & kAgeMask));
  events_.push({static_cast<u64>(clk) << kOrderBits | order, wave.id});
}
// Returns whether no other event precedes `clk`, so that the wave can continue without the queue.
bool Replay::is_next(Clk clk) const {
  return events_.empty() || static_cast<u64>(clk) < events_.top().key >> kOrderBits;
}
void Replay::push_pipe(u32 cu, Clk clk) {
  cus_[cu].pipe_scheduled = true;
  events_.push({static_cast<u64>(clk) << kOrderBits, cu | kPipe});
}

ReplayResult Replay::run() {
  for (u32 k = 0; k < input_.groups_per_cu; ++k) {
    for (u32 cu = 0; cu < cus_.size(); ++cu) start_workgroup(cu, 0);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    const Clk cur_clk = static_cast<Clk>(event.key >> kOrderBits);
    if (event.id & kPipe)
      run_pipe(event.id & ~kPipe, cur_clk);
    else
      run_wave(*waves_[event.id], cur_clk);
    if (!events_.empty()) continue;
    for (WaveRun* wave : flags_.release_all()) push(*wave, cur_clk);
  }
  for (const Cu& cu : cus_) {
    result_.busy.vector += cu.busy.vector;
    result_.busy.lds += cu.busy.lds;
    result_.busy.lds_conflicts += cu.busy.lds_conflicts;
    result_.busy.memory += cu.busy.memory;
    for (u32 i = 0; i < cu.busy.matrix.size(); ++i) result_.busy.matrix[i] += cu.busy.matrix[i];
  }
  const auto last_cu = std::ranges::max_element(cus_, {}, &Cu::end);
  result_.events = std::move(last_cu->events);
  result_.events_cu = static_cast<u32>(last_cu - cus_.begin());
  result_.memory = memory_.counts;
  result_.channel_busy = memory_.l2().busy();
  result_.fabric_busy = memory_.fabric().busy();
  result_.hbm_busy = memory_.hbm().busy();
  result_.clocks = std::max(result_.waves_end, static_cast<Clk>(memory_.drain_clk()));
  return std::move(result_);
}

// -------------------------------------------------------------------------------- workgroups

WaveRun& Replay::new_wave() {
  if (spare_.empty()) {
    waves_.push_back(std::make_unique<WaveRun>());
    waves_.back()->id = static_cast<u32>(waves_.size() - 1);
    return *waves_.back();
  }
  WaveRun& wave = *spare_.back();
  spare_.pop_back();
  const u32 id = wave.id;
  wave = WaveRun{};
  wave.id = id;
  return wave;
}

void Replay::start_workgroup(u32 cu, Clk clk) {
  if (next_group_ >= input_.groups.size()) return;
  const WorkgroupTrace& trace = *input_.groups[next_group_++];
  const u32 count = static_cast<u32>(trace.waves.size());
  const double dispatched = std::max(static_cast<double>(clk), dispatch_free_);
  // Each XCD scans all workgroups of the launch for those assigned to it.
  const double scan_clk = k_.dispatch_group_clk * std::max(1.0, k_.xccs);
  dispatch_free_ = dispatched + std::max(scan_clk, k_.dispatch_wave_clk * count);
  groups_.push_back({&trace, static_cast<Clk>(dispatched), 0, cu, count, 0, {}});
  WorkgroupRun& group = groups_.back();
  result_.starts.push_back(group.start);
  for (u32 i = 0; i < count; ++i) {
    WaveRun& wave = new_wave();
    wave.trace_pos = trace.waves[i].data();
    wave.trace_end = wave.trace_pos + trace.waves[i].size();
    wave.group = &group;
    wave.cu = cu;
    wave.simd = static_cast<u8>(cus_[cu].next_simd++ % kSimdsPerCu);
    wave.age = num_started_++;
    wave.next_issue = group.start + static_cast<Clk>(k_.wave_start_clk) + i;
    wave.last_issue = wave.next_issue - 4;
    wave.charged_until = wave.next_issue;
    group.waves.push_back(&wave);
    push(wave, wave.next_issue);
  }
}

void Replay::run_wave(WaveRun& wave, Clk cur_clk) {
  while (true) {
    if (wave.trace_pos == wave.trace_end) return end_wave(wave, cur_clk);
    const u32 pc = Head::pc(*wave.trace_pos);
    const TimedInst& inst = table_.lookup(pc);
    charge(wave, pc, wave.reason, cur_clk);  // the reason for which it was waiting
    const Limit limit = issue_limit(wave, pc, inst, cur_clk);
    Clk wake_clk = limit.clk;
    if (wave.wait_kind != WaveRun::WaitKind::kRunning) {
      wave.reason = limit.reason;
      return;
    }
    if (limit.clk > cur_clk) {
      charge(wave, pc, limit.reason, limit.clk);
    } else {
      issue(wave, pc, inst, cur_clk);
      if (wave.at_barrier) return;
      wake_clk = wave.next_issue;
    }
    if (!is_next(wake_clk)) return push(wave, wake_clk);
    cur_clk = wake_clk;
  }
}

// Attributes the stall since the last call to `reason`.
void Replay::charge(WaveRun& wave, u32 pc, Reason reason, Clk end_clk) {
  if (end_clk <= wave.charged_until) return;
  const u64 clk = static_cast<u64>(end_clk - wave.charged_until);
  const u32 reason_idx = static_cast<u32>(reason);
  wave.charged_until = end_clk;
  wave.reason = reason;
  result_.pcs[pc].stalls[reason_idx] += clk;
  result_.stalls[reason_idx] += clk;
  wave.stalls_since_barrier[reason_idx] += clk;
}

void Replay::end_wave(WaveRun& wave, Clk cur_clk) {
  WorkgroupRun& group = *wave.group;
  const Clk stored = wave.vector.last_completion();
  if (stored == kUnknownClk) {  // its last stores are still in the pipe
    wave.wait_kind = WaveRun::WaitKind::kLoad;
    return;
  }
  cus_[wave.cu].end = std::max({cus_[wave.cu].end, wave.last_issue + 4, stored});
  result_.waves_end = std::max(result_.waves_end, cus_[wave.cu].end);
  result_.wave_clocks += static_cast<u64>(wave.last_issue + 4 - group.start);
  group.stores_done = std::max(group.stores_done, stored);
  --group.alive;
  std::erase(group.waves, &wave);
  const u32 cu = wave.cu;
  spare_.push_back(&wave);
  if (!group.alive) {
    start_workgroup(cu, std::max(cur_clk, group.stores_done) + static_cast<Clk>(k_.turnaround_clk));
  } else if (group.waiting == group.alive) {
    release_barrier(group, nullptr, cur_clk, nullptr);
  }
}

// Releases the waves of a workgroup. Their barrier stall is also attributed to what delayed the
// last wave to arrive.
void Replay::release_barrier(WorkgroupRun& group, const WaveRun* last_arrival, Clk clk,
                             const WaveRun* running) {
  const Clk release_clk = clk + static_cast<Clk>(k_.barrier_clk);
  u32 cause = static_cast<u32>(Reason::kIssue);
  for (u32 i = 1; last_arrival && i < kReasons; ++i) {
    if (last_arrival->stalls_since_barrier[i] > last_arrival->stalls_since_barrier[cause])
      cause = i;
  }
  group.waiting = 0;
  for (WaveRun* wave : group.waves) {
    if (!wave->at_barrier) continue;
    result_.barrier_causes[cause] +=
        static_cast<u64>(std::max<Clk>(0, release_clk - wave->last_issue - 4));
    charge(*wave, wave->last_pc, Reason::kBarrier, release_clk);
    wave->at_barrier = false;
    wave->next_issue = release_clk;
    wave->stalls_since_barrier.fill(0);
    if (wave != running) push(*wave, release_clk);
  }
}

}  // namespace vgpu
