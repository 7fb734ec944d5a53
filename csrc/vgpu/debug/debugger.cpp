#include "vgpu/debug/debugger.h"

#include <signal.h>
#include <unistd.h>

#include <optional>
#include <stdexcept>

#include "vgpu/base/json.h"
#include "vgpu/debug/channel.h"
#include "vgpu/debug/state.h"
#include "vgpu/debug/stops.h"
#include "vgpu/watch/check_findings.h"
#include "vgpu/watch/checker.h"

namespace vgpu {
namespace {

constexpr u32 kPollInterval = 1024;  // instructions between looks for an interrupt

std::optional<Goal> goal_named(const std::string& name) {
  struct Row {
    const char* name;
    Goal goal;
  };
  static constexpr Row kGoals[] = {
      {"continue", Goal::kContinue}, {"anywhere", Goal::kAnywhere}, {"inst", Goal::kInst},
      {"step", Goal::kStep},         {"next", Goal::kNext},         {"barrier", Goal::kBarrier},
      {"end", Goal::kEnd},           {"group", Goal::kGroup},
  };
  for (const Row& row : kGoals) {
    if (name == row.name) return row.goal;
  }
  return std::nullopt;
}

}  // namespace

class LaunchDebug::Debugger : public Observer {
 public:
  Debugger(const Launch& launch, u64 number)
      : channel_(Channel::of_this_thread()),
        launch_(launch),
        lines_(*launch.kernel->object),
        breakpoints_(launch.kernel->object->program->count) {
    wait_for_go(describe_launch(launch, number));
    finding_listener() = [this](u32, FindingKind kind, const Finding& finding) {
      stop("finding", [&](Json& json) {
        json.field("detail", std::string(finding_name(kind)) + ": " + finding.detail);
        if (finding.lane != kNoLane) json.field("lane", finding.lane);
        if (finding.has_address) json.field("address", finding.address);
      });
    };
  }
  ~Debugger() override { finding_listener() = nullptr; }

  void before_inst(Wave& wave, const Inst& inst) override {
    wave_ = &wave;
    const std::vector<u32> ids = breakpoints_.hit(wave);
    const bool reached = resume_.is_reached(wave, inst, lines_);
    if (reached || !ids.empty()) {
      stop(!ids.empty()    ? "breakpoint"
           : target_ended_ ? "wave ended"
                           : "step",
           [&](Json& json) {
             json.field("reached", reached);
             json.key("ids");
             json.open('[');
             for (const u32 id : ids) json.number(id);
             json.close(']');
           });
    } else if (++since_poll_ >= kPollInterval && poll_interrupt()) {
      stop("interrupt", [](Json&) {});
    }
  }

  void access(Wave&, const Inst&, const Access& access) override { watch_.access(access); }

  void after_inst(Wave& wave, const Inst&) override {
    if (const auto found = watch_.after_inst()) {
      stop("nan", [&](Json& json) {
        json.field("lane", found->lane);
        json.field("address", found->address);
        json.field("value", found->value);
      });
    }
    // After the wave of a step has ended, the launch stops at the next instruction of any wave.
    if (wave.state == WaveState::kDone && resume_.is_about(wave)) {
      resume_ = {};
      resume_.goal = Goal::kAnywhere;
      target_ended_ = true;
    }
  }

  void fault(const Wave* wave, const std::string& text) {
    wave_ = wave;
    stop("fault", [&](Json& json) { json.field("detail", text); });
  }

  void finish(const std::string& error) {
    wave_ = nullptr;
    wait_for_go(event("end", [&](Json& json) { json.field("error", error); }));
  }

 private:
  template <class Body>
  std::string event(const char* name, Body&& body) const {
    Json json;
    json.open('{');
    json.field("event", name);
    body(json);
    json.close('}');
    return json.take();
  }

  template <class Body>
  void stop(const char* reason, Body&& body) {
    if (!wave_) return;
    wait_for_go(event("stop", [&](Json& json) {
      json.field("reason", reason);
      json.field("workgroup", wave_->group->id);
      json.field("wave", wave_->index);
      json.field("offset", u64{wave_->current} * 4);
      body(json);
    }));
  }

  // Returns whether the prompt wants to stop the launch.
  bool poll_interrupt() {
    since_poll_ = 0;
    const std::string request = channel_.is_readable() ? channel_.receive() : "";
    if (request == "kill") kill_process();
    return request == "interrupt";
  }

  // A process that the debugged one has started is not known to the prompt otherwise.
  static void kill_process() { ::kill(getpid(), SIGKILL); }

  void wait_for_go(const std::string& event) {
    channel_.send(event);
    while (true) {
      const std::string line = channel_.receive();
      if (line.empty()) {  // the prompt has gone: run on without it
        breakpoints_.clear();
        watch_.set(nullptr, 0, 0);
        resume_ = {};
        return;
      }
      std::istringstream words(line);
      std::string name;
      words >> name;
      try {
        if (name == "go") return go(words);
        // Sent before the prompt had received this event: it expects no answer.
        if (name == "interrupt") continue;
        if (name == "kill") kill_process();
        channel_.send(answer(name, words));
      } catch (const std::exception& error) {
        channel_.send(this->event("error", [&](Json& json) { json.field("error", error.what()); }));
      }
    }
  }

  std::string answer(const std::string& name, std::istringstream& words) {
    if (name == "clear") {
      breakpoints_.clear();
    } else if (name == "break") {
      set_breakpoint(words);
    } else if (name == "nan") {
      set_watch(words);
    } else if (name == "check") {
      set_check_level(CheckLevel::kReport);
    } else {
      const std::string state = Stopped{launch_, lines_, wave_}.answer(name, words);
      return state.empty() ? throw std::invalid_argument("unknown request " + name) : state;
    }
    return "{}";
  }

  void set_breakpoint(std::istringstream& words) {
    Breakpoint breakpoint = {};
    breakpoint.id = static_cast<u32>(next_number(words));
    breakpoint.index = static_cast<u32>(next_number(words) / 4);
    breakpoint.wave = next_number(words);
    for (i64& id : breakpoint.group) id = next_number(words);
    if (!breakpoints_.add(breakpoint)) throw std::invalid_argument("offset beyond the text");
  }

  void set_watch(std::istringstream& words) {
    std::string type;
    words >> type;
    if (type == "off") return watch_.set(nullptr, 0, 0);
    const u64 begin = static_cast<u64>(next_number(words));
    watch_.set(float_type(type), begin, static_cast<u64>(next_number(words)));
  }

  void go(std::istringstream& words) {
    std::string name;
    words >> name;
    if (name == "on") return;  // to the goal that it had
    const std::optional<Goal> goal = goal_named(name);
    if (!goal) throw std::invalid_argument("unknown goal " + name);
    Resume resume;
    resume.goal = *goal;
    resume.of_group = wave_ ? wave_->group : nullptr;
    if (*goal == Goal::kGroup) {
      for (u32& id : resume.group) id = static_cast<u32>(next_number(words));
    } else if (*goal >= Goal::kInst) {
      resume.wave = static_cast<u32>(next_number(words));
      if (*goal == Goal::kInst) resume.count = static_cast<u64>(next_number(words));
      const bool by_line = *goal == Goal::kStep || *goal == Goal::kNext;
      if (wave_ && by_line) resume.line = resume.line_at(index_of(resume.wave), lines_);
    }
    resume_ = resume;
    target_ended_ = false;
  }

  // Returns the place of a wave of the stopped workgroup.
  u32 index_of(u32 wave) const {
    if (wave == wave_->index) return wave_->current;
    if (wave >= wave_->group->wave_count) throw std::invalid_argument("no such wave");
    return (wave_ - wave_->index)[wave].pc;
  }

  Channel& channel_;
  const Launch& launch_;
  LineTable lines_;
  Breakpoints breakpoints_;
  NonFiniteWatch watch_;
  Resume resume_;
  bool target_ended_ = false;  // the wave of the last step
  u32 since_poll_ = 0;
  const Wave* wave_ = nullptr;  // of the current instruction
};

LaunchDebug::LaunchDebug(const Launch& launch, u64 number)
    : debugger_(std::make_unique<Debugger>(launch, number)) {}
LaunchDebug::~LaunchDebug() = default;

Observer* LaunchDebug::observer() { return debugger_.get(); }
void LaunchDebug::fault(const Wave* wave, const std::string& text) { debugger_->fault(wave, text); }
void LaunchDebug::finish(const std::string& error) { debugger_->finish(error); }

}  // namespace vgpu
