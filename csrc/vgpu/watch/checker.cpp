#include "vgpu/watch/checker.h"

#include <atomic>
#include <mutex>

#include "vgpu/base/log.h"
#include "vgpu/base/records.h"
#include "vgpu/base/report.h"
#include "vgpu/base/settings.h"
#include "vgpu/exec/memory.h"
#include "vgpu/object/debug_lines.h"
#include "vgpu/watch/check_barriers.h"
#include "vgpu/watch/check_hazards.h"
#include "vgpu/watch/check_lds.h"
#include "vgpu/watch/check_memory.h"
#include "vgpu/watch/check_registers.h"
#include "vgpu/watch/check_spacing.h"
#include "vgpu/watch/check_waits.h"
#include "vgpu/watch/check_written.h"

namespace vgpu {

// Check state of a running workgroup; it moves with the workgroup between host threads.
struct WorkgroupCheckState {
  struct WaveWatch {
    WaitState waits;
    BarrierState barrier;
    RegisterState registers;
    HazardState hazards;
    SpacingState spacing;
  };
  std::vector<WaveWatch> waves;
  std::optional<BarrierMismatch> mismatch;
  LdsState lds;
  std::vector<u8> lds_written;  // per byte of LDS 1 if it was written
};

struct LaunchChecks::State {
  State(const Launch& l, const std::vector<MemoryRange>& extra_ranges)
      : launch(l), program(*l.kernel->object->program), memory(l, extra_ranges) {}

  WorkgroupCheckState* acquire() {
    const std::lock_guard lock(mutex);
    if (free_watches.empty()) {
      watches.push_back(std::make_unique<WorkgroupCheckState>());
      return watches.back().get();
    }
    WorkgroupCheckState* check_state = free_watches.back();
    free_watches.pop_back();
    return check_state;
  }
  void release_watch(WorkgroupCheckState* check_state) {
    const std::lock_guard lock(mutex);
    free_watches.push_back(check_state);
  }

  const Launch& launch;
  const Program& program;
  const KnownMemory memory;
  Findings findings;

 private:
  std::mutex mutex;
  std::vector<std::unique_ptr<WorkgroupCheckState>> watches;
  std::vector<WorkgroupCheckState*> free_watches;
};

// -------------------------------------------------------------------------------- one thread

class Checker : public Observer {
 public:
  explicit Checker(LaunchChecks::State& state)
      : state_(state),
        operands_(state.program, state.launch.kernel->accum_offset),
        memory_(state.memory, findings),
        waits_(state.program, state.launch.kernel->accum_offset, findings),
        lds_(state.program, findings),
        barriers_(state.program, findings),
        registers_(state.program, *state.launch.kernel, state.memory, findings),
        hazards_(state.program, state.launch.kernel->accum_offset, findings),
        spacing_(state.program, state.launch.kernel->accum_offset, findings) {}

  void begin(Workgroup& group) override {
    WorkgroupCheckState* check_state = state_.acquire();
    check_state->waves.assign(group.wave_count, {});
    check_state->mismatch.reset();
    lds_.begin(check_state->lds, group.lds_bytes, group.wave_count);
    check_state->lds_written.assign(group.lds_bytes, 0);
    group.check_state = check_state;
  }
  void end(Workgroup& group) override {
    WorkgroupCheckState& check_state = *group.check_state;
    barriers_.end(check_state.mismatch, static_cast<u32>(check_state.waves.size()),
                  [&](u32 w) -> BarrierState& { return check_state.waves[w].barrier; });
    state_.release_watch(group.check_state);
    group.check_state = nullptr;
  }

  void before_inst(Wave& wave, const Inst& inst) override {
    current_ = nullptr;
    if (!inst.op) return;
    current_ = &operands(wave, inst);
    WorkgroupCheckState& check_state = *wave.group->check_state;
    WorkgroupCheckState::WaveWatch& wave_watch = check_state.waves[wave.index];
    if (wave_watch.barrier.arrived) release(check_state, wave);
    waits_.before_inst(wave_watch.waits, wave, inst, *current_);
    registers_.before_inst(wave_watch.registers, wave, inst, *current_);
    hazards_.before_inst(wave_watch.hazards, wave, inst, *current_);
    spacing_.before_inst(wave_watch.spacing, wave, inst, *current_);
  }

  void access(Wave& wave, const Inst& inst, const Access& access) override {
    WorkgroupCheckState& check_state = *wave.group->check_state;
    WorkgroupCheckState::WaveWatch& wave_watch = check_state.waves[wave.index];
    waits_.access(access);
    registers_.access(wave_watch.registers, check_state.lds_written, wave, inst, *current_, access);
    if (access.space != Space::kScratch && inst.format != Format::kSmem) {
      barriers_.access_memory(wave_watch.barrier, wave);
    }
    if (access.space == Space::kGlobal) {
      if (!registers_.address_undefined()) memory_.access(wave, inst, access);
      if (current_->atomic || current_->signals) lds_.signal(check_state.lds, wave.index);
    } else if (access.space == Space::kLds) {
      if (!registers_.address_undefined()) memory_.lds(wave, inst, access, current_->lds_dma);
      lds_.access(check_state.lds, wave_watch.waits, wave, inst, *current_, access);
    }
  }

  void after_inst(Wave& wave, const Inst& inst) override {
    if (!current_) return;
    WorkgroupCheckState& check_state = *wave.group->check_state;
    WorkgroupCheckState::WaveWatch& wave_watch = check_state.waves[wave.index];
    waits_.after_inst(wave_watch.waits, inst, *current_);
    registers_.after_inst(wave_watch.registers, wave, inst, *current_);
    if (current_->queue != Queue::kNone) lds_.after_inst(check_state.lds, wave, inst);
    if (wave.state == WaveState::kAtBarrier) barriers_.arrive(wave_watch.barrier, wave, inst);
    if (wave.state == WaveState::kDone) wave_watch.barrier.ended = true;
  }

  Findings findings;

 private:
  // Instructions changed by VGPR indexing differ from those of the program, so they are not cached.
  const Operands& operands(const Wave& wave, const Inst& inst) {
    if (!(wave.slow & kIndexed)) return operands_.lookup(inst);
    indexed_ = operands_of(inst, state_.launch.kernel->accum_offset);
    return indexed_;
  }

  // Called when the first wave continues after a barrier: all have arrived.
  void release(WorkgroupCheckState& check_state, const Wave& wave) {
    const u32 count = static_cast<u32>(check_state.waves.size());
    const auto barrier = [&](u32 w) -> BarrierState& { return check_state.waves[w].barrier; };
    barriers_.release(check_state.mismatch, wave, count, barrier);
    lds_.barrier(check_state.lds,
                 [&](u32 w) -> const WaitState& { return check_state.waves[w].waits; });
    for (u32 w = 0; w < count; ++w) barrier(w).arrived = false;
  }

  LaunchChecks::State& state_;
  OperandCache operands_;
  Operands indexed_;
  const Operands* current_ = nullptr;
  MemoryCheck memory_;
  WaitCheck waits_;
  LdsCheck lds_;
  BarrierCheck barriers_;
  RegisterCheck registers_;
  HazardCheck hazards_;
  SpacingCheck spacing_;
};

// -------------------------------------------------------------------------------- a launch

namespace {

std::atomic<CheckLevel>& level() {
  static std::atomic<CheckLevel> level = [] {
    if (settings().check) track_writes(true);
    return static_cast<CheckLevel>(settings().check);
  }();
  return level;
}

Records finding_records;  // one JSON object per finding

// A finding with the names to report.
struct NamedFinding {
  const Finding& finding;
  std::string kind, kernel, instruction, file;
  u32 offset, line;
  std::vector<SourceLine> callers;  // of an inlined function, the innermost first
};

NamedFinding name_finding(const Launch& launch, const DebugLines& lines, const Findings::Key& key,
                          const Finding& finding) {
  const CodeObject& object = *launch.kernel->object;
  const Program& program = *object.program;
  const u64 address = program.address - host_address(object.image) + object.base_address;
  const auto source = lines.find(address + u64{key.first} * 4);
  return {finding,
          finding_name(key.second),
          launch.kernel->name,
          instruction_text(program, key.first),
          source ? source->file : "",
          key.first * 4,
          source ? source->line : 0,
          lines.callers(address + u64{key.first} * 4)};
}

std::string as_text(const NamedFinding& n) {
  const Finding& f = n.finding;
  std::string text = "check: " + n.kind + ": kernel " + n.kernel + ", text offset " +
                     hex(n.offset) + " (" + n.instruction + ")";
  if (n.line) text += ", " + n.file + ":" + std::to_string(n.line);
  for (const SourceLine& caller : n.callers) text += " from " + caller.text();
  text += ": ";
  if (f.has_address) text += "address " + hex(f.address) + ": ";
  text += f.detail + " [workgroup " + std::to_string(f.group[0]) + "," +
          std::to_string(f.group[1]) + "," + std::to_string(f.group[2]) + " wave " +
          std::to_string(f.wave);
  if (f.lane != kNoLane) text += " lane " + std::to_string(f.lane);
  text += "]";
  if (f.count > 1) text += ", " + std::to_string(f.count) + " times";
  return text;
}

std::string as_json(const NamedFinding& n) {
  const Finding& f = n.finding;
  Json json;
  json.open('{');
  json.field("kind", n.kind);
  json.field("kernel", n.kernel);
  json.field("instruction", n.instruction);
  json.field("offset", n.offset);
  if (n.line) {
    json.field("file", n.file);
    json.field("line", n.line);
    json.key("callers");
    json.open('[');
    for (const SourceLine& caller : n.callers) json.string(caller.text());
    json.close(']');
  }
  json.field("workgroup", f.group);
  json.field("wave", f.wave);
  if (f.lane != kNoLane) json.field("lane", f.lane);
  if (f.has_address) json.field("address", f.address);
  json.field("detail", f.detail);
  json.field("count", f.count);
  json.close('}');
  return json.take();
}

}  // namespace

CheckLevel check_level() { return level(); }

CheckLevel set_check_level(CheckLevel requested) {
  track_writes(requested != CheckLevel::kOff);
  return level().exchange(requested);
}

LaunchChecks::LaunchChecks(const Launch& launch, const std::vector<MemoryRange>& extra_ranges)
    : state_(std::make_unique<State>(launch, extra_ranges)) {}
LaunchChecks::~LaunchChecks() = default;

std::unique_ptr<Observer> LaunchChecks::observer() { return std::make_unique<Checker>(*state_); }

void LaunchChecks::add(Observer& checked) {
  state_->findings.merge(std::move(static_cast<Checker&>(checked).findings));
}

std::string LaunchChecks::finish() {
  if (state_->findings.empty()) return "";
  const CodeObject& object = *state_->launch.kernel->object;
  const DebugLines lines({object.file.data(), object.file.size()});
  std::vector<std::string> json;
  std::string first;
  for (const auto& [key, finding] : state_->findings.entries()) {
    const NamedFinding finding_record = name_finding(state_->launch, lines, key, finding);
    const std::string text = as_text(finding_record);
    if (first.empty()) first = text;
    log_line(1, text);
    json.push_back(as_json(finding_record));
    report("finding", json.back());
  }
  finding_records.add(json);
  if (check_level() != CheckLevel::kFail) return "";
  return std::to_string(json.size()) + " findings of the checking mode; " + first;
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Sets checking of later launches: 0 off, 1 report, 2 report and fail. Returns the previous level.
VGPU_EXPORT int rfops_vgpu_check(int requested) {
  const int level = requested < 0 ? 0 : requested > 2 ? 2 : requested;
  return static_cast<int>(vgpu::set_check_level(static_cast<vgpu::CheckLevel>(level)));
}

// Returns the pending findings as a JSON array and clears them. The text is valid until this
// thread's next call.
VGPU_EXPORT const char* rfops_vgpu_check_take() {
  thread_local std::string text;
  return vgpu::finding_records.take(text);
}
