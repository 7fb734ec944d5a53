#include "vgpu/watch/checker.h"

#include <atomic>
#include <mutex>

#include "vgpu/base/json.h"
#include "vgpu/base/log.h"
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

// What the checks know of a workgroup that runs. It stays with the group when another thread goes
// on with it.
struct GroupWatch {
  struct WaveWatch {
    WaitState waits;
    BarrierState barrier;
    RegisterState registers;
    HazardState hazards;
    SpacingState spacing;
  };
  std::vector<WaveWatch> waves;
  std::optional<BarrierMeeting> meeting;
  LdsState lds;
  std::vector<u8> lds_written;  // a byte for each of LDS, 1 where it was written
};

struct LaunchChecks::State {
  State(const Launch& l, const std::vector<MemoryRange>& more)
      : launch(l), program(*l.kernel->object->program), memory(l, more) {}

  GroupWatch* borrow() {
    const std::lock_guard lock(mutex);
    if (free.empty()) {
      all.push_back(std::make_unique<GroupWatch>());
      return all.back().get();
    }
    GroupWatch* watch = free.back();
    free.pop_back();
    return watch;
  }
  void give_back(GroupWatch* watch) {
    const std::lock_guard lock(mutex);
    free.push_back(watch);
  }

  const Launch& launch;
  const Program& program;
  const KnownMemory memory;
  Findings findings;

 private:
  std::mutex mutex;
  std::vector<std::unique_ptr<GroupWatch>> all;
  std::vector<GroupWatch*> free;
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
    GroupWatch* watch = state_.borrow();
    watch->waves.assign(group.wave_count, {});
    watch->meeting.reset();
    lds_.begin(watch->lds, group.lds_bytes, group.wave_count);
    watch->lds_written.assign(group.lds_bytes, 0);
    group.watch = watch;
  }
  void end(Workgroup& group) override {
    GroupWatch& watch = *group.watch;
    barriers_.end(watch.meeting, static_cast<u32>(watch.waves.size()),
                  [&](u32 w) -> BarrierState& { return watch.waves[w].barrier; });
    state_.give_back(group.watch);
    group.watch = nullptr;
  }

  void before(Wave& wave, const Inst& inst) override {
    current_ = nullptr;
    if (!inst.op) return;
    current_ = &operands(wave, inst);
    GroupWatch& watch = *wave.group->watch;
    GroupWatch::WaveWatch& own = watch.waves[wave.index];
    if (own.barrier.arrived) release(watch, wave);
    waits_.before(own.waits, wave, inst, *current_);
    registers_.before(own.registers, wave, inst, *current_);
    hazards_.before(own.hazards, wave, inst, *current_);
    spacing_.before(own.spacing, wave, inst, *current_);
  }

  void access(Wave& wave, const Inst& inst, const Access& access) override {
    GroupWatch& watch = *wave.group->watch;
    GroupWatch::WaveWatch& own = watch.waves[wave.index];
    waits_.access(access);
    registers_.access(own.registers, watch.lds_written, wave, inst, *current_, access);
    if (access.space != Space::kScratch && inst.format != Format::kSmem) {
      barriers_.work(own.barrier, wave);
    }
    if (access.space == Space::kGlobal) {
      if (!registers_.address_undefined()) memory_.access(wave, inst, access);
      if (current_->atomic || current_->signals) lds_.signal(watch.lds, wave.index);
    } else if (access.space == Space::kLds) {
      if (!registers_.address_undefined()) memory_.lds(wave, inst, access, current_->lds_dma);
      lds_.access(watch.lds, own.waits, wave, inst, *current_, access);
    }
  }

  void after(Wave& wave, const Inst& inst) override {
    if (!current_) return;
    GroupWatch& watch = *wave.group->watch;
    GroupWatch::WaveWatch& own = watch.waves[wave.index];
    waits_.after(own.waits, inst, *current_);
    registers_.after(own.registers, wave, inst, *current_);
    if (current_->queue != Queue::kNone) lds_.after(watch.lds, wave, inst);
    if (wave.state == WaveState::kAtBarrier) barriers_.arrive(own.barrier, wave, inst);
    if (wave.state == WaveState::kDone) own.barrier.ended = true;
  }

  Findings findings;

 private:
  // Instructions that VGPR indexing has changed are not those of the program.
  const Operands& operands(const Wave& wave, const Inst& inst) {
    if (!(wave.slow & kIndexed)) return operands_.of(inst);
    indexed_ = operands_of(inst, state_.launch.kernel->accum_offset);
    return indexed_;
  }

  // The first wave goes on behind a barrier: all had arrived.
  void release(GroupWatch& watch, const Wave& wave) {
    const u32 count = static_cast<u32>(watch.waves.size());
    const auto barrier = [&](u32 w) -> BarrierState& { return watch.waves[w].barrier; };
    barriers_.release(watch.meeting, wave, count, barrier);
    lds_.barrier(watch.lds, [&](u32 w) -> const WaitState& { return watch.waves[w].waits; });
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
  static std::atomic<CheckLevel> now = [] {
    if (settings().check) follow_writes(true);
    return static_cast<CheckLevel>(settings().check);
  }();
  return now;
}

std::mutex finding_records_mutex;
std::vector<std::string> finding_records;  // a JSON object a finding

// A finding with the names of what it is about.
struct Named {
  const Finding& finding;
  std::string kind, kernel, instruction, file;
  u32 offset, line;
};

Named name_finding(const Launch& launch, const DebugLines& lines, const Findings::Key& key,
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
          source ? source->line : 0};
}

std::string as_text(const Named& n) {
  const Finding& f = n.finding;
  std::string text = "check: " + n.kind + ": kernel " + n.kernel + ", text offset " +
                     hex(n.offset) + " (" + n.instruction + ")";
  if (n.line) text += ", " + n.file + ":" + std::to_string(n.line);
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

std::string as_json(const Named& n) {
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

LaunchChecks::LaunchChecks(const Launch& launch, const std::vector<MemoryRange>& more)
    : state_(std::make_unique<State>(launch, more)) {}
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
    const Named named = name_finding(state_->launch, lines, key, finding);
    const std::string text = as_text(named);
    if (first.empty()) first = text;
    log_line(1, text);
    json.push_back(as_json(named));
    report("finding", json.back());
  }
  {
    const std::lock_guard lock(finding_records_mutex);
    finding_records.insert(finding_records.end(), json.begin(), json.end());
  }
  if (check_level() != CheckLevel::kFail) return "";
  return std::to_string(json.size()) + " findings of the checking mode; " + first;
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Checking for launches from now on: 0 off, 1 report, 2 report and fail. Returns what it was.
VGPU_EXPORT int rfops_vgpu_check(int on) {
  const auto wanted = static_cast<vgpu::CheckLevel>(on < 0 ? 0 : on > 2 ? 2 : on);
  vgpu::follow_writes(wanted != vgpu::CheckLevel::kOff);
  return static_cast<int>(vgpu::level().exchange(wanted));
}

// The findings so far as a JSON array, and forgets them. The text lives until this thread's next
// call.
VGPU_EXPORT const char* rfops_vgpu_check_take() {
  thread_local std::string text;
  const std::lock_guard lock(vgpu::finding_records_mutex);
  text = vgpu::json_array(vgpu::finding_records);
  vgpu::finding_records.clear();
  return text.c_str();
}
