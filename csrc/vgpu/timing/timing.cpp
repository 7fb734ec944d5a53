#include "vgpu/timing/timing.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

#include "vgpu/base/log.h"
#include "vgpu/base/records.h"
#include "vgpu/base/report.h"
#include "vgpu/timing/report.h"

namespace vgpu {
namespace {

Records pending_records;
std::atomic<u64> modelled{0};  // total of all estimates, ps

// -------------------------------------------------------------------------------- options

bool read_kind(const std::string& text, Measurement& kind) {
  static constexpr const char* kNames[] = {"profiler", "event", "graph"};
  for (u32 i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) return kind = static_cast<Measurement>(i), true;
  }
  return false;
}

// Parses one "NAME=VALUE". A name that is no timing option must be a model constant.
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
    if (!find_model(value))
      error = "timing: part '" + value + "', expected one of " + model_names();
    return o.model = value, error.empty();
  }
  if (name == "kind") {
    if (read_kind(value, o.kind)) return true;
    error = "timing: kind '" + value + "', expected profiler, event or graph";
    return false;
  }
  if (name == "trace_words") return o.trace_words = std::strtoull(value.c_str(), nullptr, 10), true;
  if (name == "different") return o.max_detailed = static_cast<u32>(std::atoi(value.c_str())), true;
  if (name == "events") return o.events = static_cast<u32>(std::atoi(value.c_str())), true;
  o.changes += word + " ";
  GpuModel model;
  return make_model(device_info(Arch::kGfx950), word, model, error);
}

bool read_options(const std::string& text, TimingOptions& options, std::string& error) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!read_option(word, options, error)) return false;
  }
  return true;
}

struct Mode {
  bool enabled = false;
  bool prints = false;   // print a line per launch
  bool records = false;  // keep records until rfops_vgpu_timing_take()
  TimingOptions options;
};

// The initial mode, from RFOPS_VGPU_TIMING. RFOPS_VGPU_TIMING_SET has options and constants for
// work on the model itself.
Mode initial_mode() {
  const char* value = std::getenv("RFOPS_VGPU_TIMING");
  Mode mode;
  mode.enabled = mode.prints = value && *value && std::string(value) != "0";
  return mode;
}
std::mutex mode_mutex;
Mode& mode() {
  static Mode current = initial_mode();
  return current;
}

Mode current_mode() {
  const std::lock_guard lock(mode_mutex);
  return mode();
}

// Returns whether a launch of this kernel and shape was timed before, or `max_distinct` others
// were.
bool was_timed(const Launch& launch, const GpuModel& model, u32 max_distinct) {
  std::string key = launch.kernel->name + " " + model.device->model;
  for (u32 d = 0; d < 3; ++d) {
    key += " " + std::to_string(launch.grid[d]) + " " + std::to_string(launch.block[d]);
  }
  static std::mutex mutex;
  static std::set<std::string> timed_keys;
  const std::lock_guard lock(mutex);
  return timed_keys.size() >= max_distinct || !timed_keys.insert(key).second;
}

TimingOptions options_with_overrides(const Mode& mode) {
  TimingOptions options = mode.options;
  std::string error;
  const char* set = std::getenv("RFOPS_VGPU_TIMING_SET");
  if (set && !read_options(set, options, error)) log_line(1, "RFOPS_VGPU_TIMING_SET: " + error);
  return options;
}

GpuModel model_for(const Launch& launch, const TimingOptions& options) {
  const Arch arch = launch.kernel->object->arch;
  const DeviceInfo* device = find_model(options.model);
  if (!device || device->arch != arch) device = &device_info(arch);
  GpuModel model;
  std::string error;
  make_model(*device, options.changes, model, error);
  return model;
}

std::string summary_line(const Launch& launch, const GpuModel& model, const LaunchTime& time) {
  char text[160];
  std::snprintf(text, sizeof(text),
                ": %.2f us (%.2f to %.2f) on %s at %.2f GHz, bound by %s, estimated", time.us,
                time.low, time.high, model.device->model, time.ghz, time.bound.c_str());
  return "kernel " + launch.kernel->name + text;
}

}  // namespace

bool timing() { return current_mode().enabled; }
u64 modelled_ps() { return modelled; }

struct LaunchTiming::State {
  const Launch& launch;
  Mode mode;
  TimingOptions options;
  GpuModel model;
  Sample sample;
  std::vector<std::unique_ptr<WorkgroupTrace>> traces;  // parallel to sample.sampled

  explicit State(const Launch& l)
      : launch(l),
        mode(current_mode()),
        options(options_with_overrides(mode)),
        model(model_for(l, options)),
        sample(make_sample(model, l)),
        traces(sample.sampled.size()) {
    if (!options.max_detailed || !was_timed(l, model, options.max_detailed)) return;
    options.detail = false;
    options.events = 0;
  }
};

LaunchTiming::LaunchTiming(const Launch& launch) : state_(std::make_unique<State>(launch)) {}
LaunchTiming::~LaunchTiming() = default;

u64 LaunchTiming::sampled_groups() const { return state_->sample.sampled.size(); }
bool LaunchTiming::needs_all() const { return state_->options.results; }

// The sample runs first, then the other workgroups, each in ascending order. sampled[i] - i other
// workgroups precede the i-th sampled one, so a binary search finds the other workgroup of a given
// rank.
u64 LaunchTiming::group(u64 order) const {
  const std::vector<u64>& sampled = state_->sample.sampled;
  if (order < sampled.size()) return sampled[order];
  const u64 rest_index = order - sampled.size();
  u64 first = 0, count = sampled.size();
  while (count) {
    const u64 half = count / 2;
    const bool go_right = sampled[first + half] - (first + half) <= rest_index;
    if (go_right) first += half + 1;
    count = go_right ? count - half - 1 : half;
  }
  return rest_index + first;
}

WorkgroupTrace* LaunchTiming::begin(u64 flat, u32 waves) {
  const std::vector<u64>& sampled = state_->sample.sampled;
  const auto it = std::lower_bound(sampled.begin(), sampled.end(), flat);
  if (it == sampled.end() || *it != flat) return nullptr;
  auto& trace = state_->traces[static_cast<std::size_t>(it - sampled.begin())];
  trace = std::make_unique<WorkgroupTrace>(flat, waves);
  trace->max_words = std::max<u64>(1, state_->options.trace_words / sampled.size() / waves);
  return trace.get();
}

std::unique_ptr<Observer> LaunchTiming::observer() { return make_tracer(); }

void LaunchTiming::finish(u64 number, const std::string& error) {
  State& s = *state_;
  LaunchTime time;
  if (error.empty()) {
    time = time_launch(s.model, *s.launch.kernel->object->program, s.sample, s.traces, s.options);
    modelled += static_cast<u64>(std::llround(time.us * 1e6));
    if (s.mode.prints && !reporting()) log_line(1, summary_line(s.launch, s.model, time));
  }
  if (!s.mode.records && !reporting()) return;
  std::string record = timing_record(s.launch, s.model, s.sample, s.options, time, error, number);
  report("timed", record);
  if (!s.mode.records) return;
  pending_records.add(std::move(record));
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Turns timing on for later launches, with options "NAME=VALUE ...", or off for null. Returns null,
// or an error text that is valid until this thread's next call; after an error nothing has changed.
VGPU_EXPORT const char* rfops_vgpu_timing(const char* options) {
  thread_local std::string error;
  error.clear();
  vgpu::Mode mode = vgpu::initial_mode();
  if (options) mode.enabled = mode.records = true;
  if (options && !vgpu::read_options(options, mode.options, error)) return error.c_str();
  const std::lock_guard lock(vgpu::mode_mutex);
  vgpu::mode() = mode;
  return nullptr;
}

// Returns the pending records as a JSON array and clears them. The text is valid until this
// thread's next call.
VGPU_EXPORT const char* rfops_vgpu_timing_take() {
  thread_local std::string text;
  return vgpu::pending_records.take(text);
}

VGPU_EXPORT std::uint64_t rfops_vgpu_modelled_ps() { return vgpu::modelled_ps(); }
