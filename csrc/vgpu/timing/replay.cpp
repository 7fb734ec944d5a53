#include "vgpu/timing/replay.h"

namespace vgpu {
namespace {

constexpr u32 kPipe = 1u << 31;  // an event's id: a CU's pipe, or a wave
constexpr u32 kOrderBits = 24;   // of a key: whose turn it is in one clk
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
      k_(input.part->constants),
      table_(table),
      memory_(k_, ghz, input.memory),
      flags_(input.groups),
      cus_(std::max(1u, static_cast<u32>(k_.cus / k_.xccs))) {
  const std::size_t pairs = (cus_.size() + 1) / 2;
  for (Cu& cu : cus_) cu.l1.reset(k_.l1_bytes, k_.l1_ways);
  k_caches_.resize(pairs);
  for (Tags& cache : k_caches_) cache.reset(k_.k_bytes, k_.k_ways);
  // Code that fits is there after the first launch.
  follow_code_ = input.cold_code || u64{table.size()} * 4 > static_cast<u64>(k_.icache_bytes);
  if (follow_code_) {
    code_caches_.resize(pairs);
    for (Tags& cache : code_caches_) cache.reset(k_.icache_bytes, 8, kCodeLine);
  }
  result_.pcs.resize(table.size());
  if (!input.memory.in_l2) return;
  for (const GroupTrace* group : input.groups) {
    for (const std::vector<u32>& wave : group->waves) {
      for_each_line(wave, [this](u32 line) { memory_.keep(line); });
    }
  }
}
Replay::~Replay() = default;

// -------------------------------------------------------------------------------- events

// In one clk: pipes, then waves by priority, then by age.
void Replay::push(WaveRun& wave, Clk at) {
  wave.parked = WaveRun::Parked::kNo;
  const u64 order = 1 + ((3u - wave.priority) << 21 | (wave.age & kAgeMask));
  events_.push({static_cast<u64>(at) << kOrderBits | order, wave.id});
}
// Whether a wave can go on at that clk with nothing before it.
bool Replay::comes_first(Clk at) const {
  return events_.empty() || static_cast<u64>(at) < events_.top().key >> kOrderBits;
}
void Replay::push_pipe(u32 cu, Clk at) {
  cus_[cu].pipe_scheduled = true;
  events_.push({static_cast<u64>(at) << kOrderBits, cu | kPipe});
}

ReplayResult Replay::run() {
  for (u32 k = 0; k < input_.groups_per_cu; ++k) {
    for (u32 cu = 0; cu < cus_.size(); ++cu) place(cu, 0);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    const Clk now = static_cast<Clk>(event.key >> kOrderBits);
    if (event.id & kPipe)
      run_pipe(event.id & ~kPipe, now);
    else
      run_wave(*waves_[event.id], now);
    if (!events_.empty()) continue;
    for (WaveRun* wave : flags_.give_up()) push(*wave, now);
  }
  for (const Cu& cu : cus_) {
    result_.busy.vector += cu.busy.vector;
    result_.busy.lds += cu.busy.lds;
    result_.busy.lds_conflicts += cu.busy.lds_conflicts;
    result_.busy.memory += cu.busy.memory;
    for (u32 i = 0; i < cu.busy.matrix.size(); ++i) result_.busy.matrix[i] += cu.busy.matrix[i];
  }
  const auto last = std::ranges::max_element(cus_, {}, &Cu::end);
  result_.events = std::move(last->events);
  result_.events_cu = static_cast<u32>(last - cus_.begin());
  result_.memory = memory_.counts;
  result_.channel_busy = memory_.l2().busy();
  result_.fabric_busy = memory_.fabric().busy();
  result_.hbm_busy = memory_.hbm().busy();
  result_.clocks = std::max(result_.waves_end, static_cast<Clk>(memory_.drained()));
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

void Replay::place(u32 cu, Clk at) {
  if (next_group_ >= input_.groups.size()) return;
  const GroupTrace& trace = *input_.groups[next_group_++];
  const u32 count = static_cast<u32>(trace.waves.size());
  const double dispatched = std::max(static_cast<double>(at), dispatch_free_);
  // Each XCD goes through all workgroups of the launch to find its own.
  const double found = k_.dispatch_group_clk * std::max(1.0, k_.xccs);
  dispatch_free_ = dispatched + std::max(found, k_.dispatch_wave_clk * count);
  groups_.push_back({&trace, static_cast<Clk>(dispatched), 0, cu, count, 0, {}});
  GroupRun& group = groups_.back();
  result_.starts.push_back(group.start);
  for (u32 i = 0; i < count; ++i) {
    WaveRun& wave = new_wave();
    wave.at = trace.waves[i].data();
    wave.end = wave.at + trace.waves[i].size();
    wave.group = &group;
    wave.cu = cu;
    wave.simd = static_cast<u8>(cus_[cu].next_simd++ % kSimdsPerCu);
    wave.age = started_++;
    wave.next = group.start + static_cast<Clk>(k_.wave_start_clk) + i;
    wave.last = wave.next - 4;
    wave.charged = wave.next;
    group.waves.push_back(&wave);
    push(wave, wave.next);
  }
}

void Replay::run_wave(WaveRun& wave, Clk now) {
  while (true) {
    if (wave.at == wave.end) return end_wave(wave, now);
    const u32 pc = Head::pc(*wave.at);
    const TimedInst& inst = table_.at(pc);
    charge(wave, pc, wave.why, now);  // it was parked for that
    const Limit limit = limit_of(wave, pc, inst, now);
    Clk at = limit.at;
    if (wave.parked != WaveRun::Parked::kNo) {
      wave.why = limit.why;
      return;
    }
    if (limit.at > now) {
      charge(wave, pc, limit.why, limit.at);
    } else {
      issue(wave, pc, inst, now);
      if (wave.at_barrier) return;
      at = wave.next;
    }
    if (!comes_first(at)) return push(wave, at);
    now = at;
  }
}

// What it waited since it was charged last.
void Replay::charge(WaveRun& wave, u32 pc, Reason why, Clk until) {
  if (until <= wave.charged) return;
  const u64 clk = static_cast<u64>(until - wave.charged);
  const u32 reason = static_cast<u32>(why);
  wave.charged = until;
  wave.why = why;
  result_.pcs[pc].stalls[reason] += clk;
  result_.stalls[reason] += clk;
  wave.since_barrier[reason] += clk;
}

void Replay::end_wave(WaveRun& wave, Clk now) {
  GroupRun& group = *wave.group;
  const Clk stored = wave.vector.last();
  if (stored == kUnknownClk) {  // its last stores have not left yet
    wave.parked = WaveRun::Parked::kOnLoad;
    return;
  }
  cus_[wave.cu].end = std::max({cus_[wave.cu].end, wave.last + 4, stored});
  result_.waves_end = std::max(result_.waves_end, cus_[wave.cu].end);
  result_.wave_clocks += static_cast<u64>(wave.last + 4 - group.start);
  group.stored = std::max(group.stored, stored);
  --group.alive;
  std::erase(group.waves, &wave);
  const u32 cu = wave.cu;
  spare_.push_back(&wave);
  if (!group.alive) {
    place(cu, std::max(now, group.stored) + static_cast<Clk>(k_.turnaround_clk));
  } else if (group.waiting == group.alive) {
    release_barrier(group, nullptr, now, nullptr);
  }
}

// The wait of those who came first is also charged to what held the last one up.
void Replay::release_barrier(GroupRun& group, const WaveRun* last, Clk at, const WaveRun* running) {
  const Clk go = at + static_cast<Clk>(k_.barrier_clk);
  u32 because = static_cast<u32>(Reason::kIssue);
  for (u32 i = 1; last && i < kReasons; ++i) {
    if (last->since_barrier[i] > last->since_barrier[because]) because = i;
  }
  group.waiting = 0;
  for (WaveRun* wave : group.waves) {
    if (!wave->at_barrier) continue;
    result_.barrier_because[because] += static_cast<u64>(std::max<Clk>(0, go - wave->last - 4));
    charge(*wave, wave->last_pc, Reason::kBarrier, go);
    wave->at_barrier = false;
    wave->next = go;
    wave->since_barrier.fill(0);
    if (wave != running) push(*wave, go);
  }
}

}  // namespace vgpu
