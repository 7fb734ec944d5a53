#include "vgpu/timing/timing.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

#include "vgpu/base/json.h"
#include "vgpu/base/log.h"
#include "vgpu/base/report.h"
#include "vgpu/timing/report.h"

namespace vgpu {
namespace {

std::mutex records_mutex;
std::vector<std::string> records;
std::atomic<u64> modelled{0};  // ps

// -------------------------------------------------------------------------------- options

bool read_kind(const std::string& text, TimeKind& kind) {
  static constexpr const char* kNames[] = {"profiler", "event", "graph"};
  for (u32 i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) return kind = static_cast<TimeKind>(i), true;
  }
  return false;
}

// One word, NAME=VALUE. What is no option of timing is a constant's.
bool read_option(const std::string& word, TimingOptions& o, std::string& error) {
  const std::size_t equals = std::min(word.find('='), word.size());
  const std::string name = word.substr(0, equals),
                    value = word.substr(std::min(equals + 1, word.size()));
  const struct {
    const char* name;
    bool* flag;
  } kFlags[] = {{"cold", &o.cold},
                {"results", &o.results},
                {"cold_code", &o.cold_code},
                {"detail", &o.detail}};
  for (const auto& row : kFlags) {
    if (name == row.name) return *row.flag = value != "0", true;
  }
  if (name == "part") {
    if (!find_part(value)) error = "timing: part '" + value + "', expected one of " + part_names();
    return o.part = value, error.empty();
  }
  if (name == "kind") {
    if (read_kind(value, o.kind)) return true;
    error = "timing: kind '" + value + "', expected profiler, event or graph";
    return false;
  }
  if (name == "trace_words") return o.trace_words = std::strtoull(value.c_str(), nullptr, 10), true;
  if (name == "different") return o.different = static_cast<u32>(std::atoi(value.c_str())), true;
  if (name == "events") return o.events = static_cast<u32>(std::atoi(value.c_str())), true;
  o.changes += word + " ";
  Part part;
  return make_part(device_info(Arch::kGfx950), word, part, error);
}

bool read_options(const std::string& text, TimingOptions& options, std::string& error) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!read_option(word, options, error)) return false;
  }
  return true;
}

struct Mode {
  bool on = false;
  bool tells = false;  // a line a launch
  bool keeps = false;  // records, until somebody takes them
  TimingOptions options;
};

// RFOPS_VGPU_TIMING, or what was set since; RFOPS_VGPU_TIMING_SET: options and constants, for those
// who work on the model.
Mode first_mode() {
  const char* on = std::getenv("RFOPS_VGPU_TIMING");
  Mode mode;
  mode.on = mode.tells = on && *on && std::string(on) != "0";
  return mode;
}
std::mutex mode_mutex;
Mode& mode() {
  static Mode now = first_mode();
  return now;
}

Mode mode_now() {
  const std::lock_guard lock(mode_mutex);
  return mode();
}

// Whether a launch like this one was timed before, or as many others.
bool seen(const Launch& launch, const Part& part, u32 most) {
  std::string key = launch.kernel->name + " " + part.device->part;
  for (u32 d = 0; d < 3; ++d) {
    key += " " + std::to_string(launch.grid[d]) + " " + std::to_string(launch.block[d]);
  }
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  return known.size() >= most || !known.insert(key).second;
}

TimingOptions options_of(const Mode& now) {
  TimingOptions options = now.options;
  std::string error;
  const char* set = std::getenv("RFOPS_VGPU_TIMING_SET");
  if (set && !read_options(set, options, error)) log_line(1, "RFOPS_VGPU_TIMING_SET: " + error);
  return options;
}

Part part_for(const Launch& launch, const TimingOptions& options) {
  const Arch arch = launch.kernel->object->arch;
  const DeviceInfo* device = find_part(options.part);
  if (!device || device->arch != arch) device = &device_info(arch);
  Part part;
  std::string error;
  make_part(*device, options.changes, part, error);
  return part;
}

std::string as_line(const Launch& launch, const Part& part, const LaunchTime& time) {
  char text[160];
  std::snprintf(text, sizeof(text),
                ": %.2f us (%.2f to %.2f) on %s at %.2f GHz, bound by %s, estimated", time.us,
                time.low, time.high, part.device->part, time.ghz, time.bound.c_str());
  return "kernel " + launch.kernel->name + text;
}

}  // namespace

bool timing() { return mode_now().on; }
u64 modelled_ps() { return modelled; }

struct LaunchTiming::State {
  const Launch& launch;
  Mode mode;
  TimingOptions options;
  Part part;
  Sample sample;
  std::vector<std::unique_ptr<GroupTrace>> traces;  // of sample.all

  explicit State(const Launch& l)
      : launch(l),
        mode(mode_now()),
        options(options_of(mode)),
        part(part_for(l, options)),
        sample(make_sample(part, l)),
        traces(sample.all.size()) {
    if (!options.different || !seen(l, part, options.different)) return;
    options.detail = false;
    options.events = 0;
  }
};

LaunchTiming::LaunchTiming(const Launch& launch) : state_(std::make_unique<State>(launch)) {}
LaunchTiming::~LaunchTiming() = default;

u64 LaunchTiming::sampled_groups() const { return state_->sample.all.size(); }
bool LaunchTiming::needs_all() const { return state_->options.results; }

// The sample, then the others, each in order: before the i-th of the sample lie all[i] - i others.
u64 LaunchTiming::group(u64 at) const {
  const std::vector<u64>& all = state_->sample.all;
  if (at < all.size()) return all[at];
  const u64 other = at - all.size();
  u64 first = 0, count = all.size();
  while (count) {
    const u64 half = count / 2;
    const bool before = all[first + half] - (first + half) <= other;
    if (before) first += half + 1;
    count = before ? count - half - 1 : half;
  }
  return other + first;
}

GroupTrace* LaunchTiming::begin(u64 flat, u32 waves) {
  const std::vector<u64>& all = state_->sample.all;
  const auto found = std::lower_bound(all.begin(), all.end(), flat);
  if (found == all.end() || *found != flat) return nullptr;
  auto& trace = state_->traces[static_cast<std::size_t>(found - all.begin())];
  trace = std::make_unique<GroupTrace>(flat, waves);
  trace->most = std::max<u64>(1, state_->options.trace_words / all.size() / waves);
  return trace.get();
}

std::unique_ptr<Observer> LaunchTiming::observer() { return make_tracer(); }

void LaunchTiming::finish(u64 number, const std::string& error) {
  State& s = *state_;
  LaunchTime time;
  if (error.empty()) {
    time = time_launch(s.part, *s.launch.kernel->object->program, s.sample, s.traces, s.options);
    modelled += static_cast<u64>(std::llround(time.us * 1e6));
    if (s.mode.tells && !reporting()) log_line(1, as_line(s.launch, s.part, time));
  }
  if (!s.mode.keeps && !reporting()) return;
  std::string record = timing_record(s.launch, s.part, s.sample, s.options, time, error, number);
  report("timed", record);
  if (!s.mode.keeps) return;
  const std::lock_guard lock(records_mutex);
  records.push_back(std::move(record));
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Timing for launches from now on, with options "NAME=VALUE ..."; null turns it off. The text of an
// error, which leaves all as it was, or null. It lives until this thread's next call.
VGPU_EXPORT const char* rfops_vgpu_timing(const char* options) {
  thread_local std::string error;
  error.clear();
  vgpu::Mode wanted = vgpu::first_mode();
  if (options) wanted.on = wanted.keeps = true;
  if (options && !vgpu::read_options(options, wanted.options, error)) return error.c_str();
  const std::lock_guard lock(vgpu::mode_mutex);
  vgpu::mode() = wanted;
  return nullptr;
}

// The records so far as a JSON array, and forgets them. The text lives until this thread's next
// call.
VGPU_EXPORT const char* rfops_vgpu_timing_take() {
  thread_local std::string text;
  const std::lock_guard lock(vgpu::records_mutex);
  text = vgpu::json_array(vgpu::records);
  vgpu::records.clear();
  return text.c_str();
}

VGPU_EXPORT std::uint64_t rfops_vgpu_modelled_ps() { return vgpu::modelled_ps(); }
