#include "vgpu/timing/launch_time.h"

#include <algorithm>
#include <cmath>

namespace vgpu {
namespace {

constexpr u64 kWholeRounds = 5;    // a launch of at most this many rounds is replayed whole
constexpr u64 kFirstRounds = 3;    // rounds replayed of a longer launch, besides the last
constexpr u64 kRemoteGroups = 3;   // workgroups traced of every other XCD
constexpr u32 kMaxIterations = 4;  // of the search for the sustained clock
constexpr double kSameClock = 0.01, kNearClock = 0.05;
constexpr double kSmallUs = 15;  // published times below this differ by 20 to 30 % for one kernel

// -------------------------------------------------------------------------------- power

// Returns the clock (GHz) that power allows at the MFMA utilisation of the replay.
double sustained_clock(const Constants& k, const ReplayResult& r) {
  const double limits[] = {k.power_wide16, k.power_wide8, k.power_wide4, k.power_narrow};
  const double available = static_cast<double>(r.clocks) * k.cus / k.xccs * kSimdsPerCu;
  double load = 0;
  for (u32 i = 0; i < std::size(limits); ++i) {
    load += static_cast<double>(r.busy.matrix[i]) / available / limits[i];
  }
  return load > 0 ? std::min(k.clock, std::cbrt(1 / load)) : k.clock;
}

// Returns the mean clock of a launch of `us` microseconds. A short launch between idle gaps ends
// before power management has lowered the clock.
double mean_clock(const Constants& k, double sustained, double us) {
  if (k.power_settle_us <= 0 || us <= 0) return sustained;
  const double x = us / k.power_settle_us;
  return sustained + (k.clock - sustained) * (1 - std::exp(-x)) / x;
}

// One replay: its clock, the clock sustainable at its load, and its clocks.
struct ClockPoint {
  double ghz, sustained_ghz, clocks;
};

// Extrapolates two replays linearly to the clock that equals the sustainable clock. If the slope is
// too steep for a line, returns the second replay's sustainable clock.
ClockPoint fixed_point(const ClockPoint& a, const ClockPoint& b, double max_ghz) {
  constexpr double kMaxSlope = 0.8;
  const double slope = (b.sustained_ghz - a.sustained_ghz) / (b.ghz - a.ghz);
  const double clocks_slope = (b.clocks - a.clocks) / (b.ghz - a.ghz);
  const double crossing_ghz = (b.sustained_ghz - slope * b.ghz) / (1 - slope);
  const double ghz = slope < kMaxSlope ? std::min(max_ghz, crossing_ghz) : b.sustained_ghz;
  return {ghz, ghz, b.clocks + clocks_slope * (ghz - b.ghz)};
}

// -------------------------------------------------------------------------------- utilisation,
// bound

void fill_busy(const Constants& k, LaunchTime& time) {
  const ReplayResult& r = time.replay;
  const double cus = k.cus / k.xccs, clocks = std::max<double>(1, static_cast<double>(r.clocks));
  const double simds = clocks * cus * kSimdsPerCu;
  u64 matrix = 0;
  for (const u64 busy : r.busy.matrix) matrix += busy;
  time.busy = {
      {"valu", static_cast<double>(r.busy.vector) / simds},
      {"mfma", static_cast<double>(matrix) / simds},
      {"lds", static_cast<double>(r.busy.lds) / (clocks * cus)},
      {"vmem", static_cast<double>(r.busy.memory) / (clocks * cus)},
      {"l2_port", r.port_busy / (clocks * cus)},
      {"l2", r.channel_busy / clocks},
      {"fabric", r.fabric_busy / clocks},
      {"hbm", r.hbm_busy / clocks},
  };
}

void fill_bound(LaunchTime& time) {
  constexpr double kBusy = 0.6;
  const auto busiest =
      std::max_element(time.busy.begin(), time.busy.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  time.bound = time.overhead_us > time.us / 2 ? "launch"
               : busiest->second > kBusy      ? busiest->first
                                              : "latency";
}

// Returns the relative error that covers 80 to 90 % of the scored published times of each kind. The
// model knows compute units better than memory, and memory better than the cache contents that
// earlier launches leave.
double relative_error(const LaunchTime& time, bool warm) {
  // Fraction of writes to lines that another XCD has written.
  constexpr double kManyContended = 0.2;
  if (warm) return 0.30;
  const bool memory_bound =
      time.bound == "hbm" || time.bound == "fabric" || time.contended > kManyContended;
  return memory_bound ? 0.25 : 0.15;
}

void fill_interval(const GpuModel& model, bool warm, LaunchTime& time) {
  const bool small = time.us < kSmallUs;
  double error = small ? 0.25 * time.us + 2 : relative_error(time, warm) * time.us;
  if (!model.is_validated) error *= 2;
  if (time.untraced) error *= 2;
  time.low = std::max(time.overhead_us / 2, time.us - error);
  time.high = time.us + error;
}

double launch_overhead_us(const Constants& k, Measurement kind) {
  const double overheads[] = {k.floor_profiler, k.floor_event, k.floor_graph};
  return overheads[static_cast<u32>(kind)];
}

// Instructions beyond the trace limit are assumed to run at the average rate of the traced ones.
void fill_extrapolation(const std::vector<std::unique_ptr<WorkgroupTrace>>& traces,
                        LaunchTime& time) {
  u64 total = 0;
  for (const auto& trace : traces) {
    if (trace) total += trace->instructions, time.untraced += trace->untraced;
  }
  if (time.untraced)
    time.extrapolation = static_cast<double>(total) / static_cast<double>(total - time.untraced);
}

// Returns the clocks of the rounds that the sample skips, at the rate measured from the middle of
// the second round (earlier, queues behind the compute units are not yet full), but no faster than
// the memory bandwidth allows.
double skipped_clocks(const Sample& sample, const ReplayResult& r) {
  const u64 begin = sample.per_round * 3 / 2, end = begin + 2 * u64{sample.per_round};
  if (!sample.num_skipped || r.starts.size() <= end) return 0;
  const double groups = static_cast<double>(end - begin);
  const double observed = static_cast<double>(r.starts[end] - r.starts[begin]) / groups;
  const double memory_bound =
      std::max(r.fabric_busy, r.hbm_busy) / static_cast<double>(sample.replayed.size());
  return std::max(observed, memory_bound) * static_cast<double>(sample.num_skipped);
}

}  // namespace

Sample make_sample(const GpuModel& model, const Launch& launch) {
  const Constants& k = model.constants;
  const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
  Sample s;
  s.xccs = std::max(1u, static_cast<u32>(k.xccs));
  s.groups = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  s.num_local = (s.groups + s.xccs - 1) / s.xccs;
  s.groups_per_cu = std::max(
      1u, workgroups_per_cu(*model.device, launch.kernel->vgpr_rows,
                            launch.kernel->group_segment_bytes + launch.dynamic_lds, threads));
  s.per_round = s.groups_per_cu * std::max(1u, static_cast<u32>(k.cus / k.xccs));
  const u64 head = kFirstRounds * s.per_round, tail = s.per_round + s.num_local % s.per_round;
  if (s.num_local > kWholeRounds * s.per_round) s.num_skipped = s.num_local - head - tail;
  std::vector<u64> indices;  // of workgroups within an XCD
  for (u64 i = 0; i < s.num_local; ++i) {
    if (s.num_skipped && i == head) i += s.num_skipped;
    indices.push_back(i);
    s.replayed.push_back(i * s.xccs);
  }
  for (u64 xcc = 1; xcc < s.xccs; ++xcc) {
    for (u64 j = 0; j < std::min<u64>(kRemoteGroups, indices.size()); ++j) {
      const u64 position =
          (indices.size() * (2 * j + 1) / (2 * kRemoteGroups) + 7 * xcc) % indices.size();
      const u64 flat = indices[position] * s.xccs + xcc;
      if (flat < s.groups) s.remote.push_back(flat);
    }
  }
  s.sampled = s.replayed;
  s.sampled.insert(s.sampled.end(), s.remote.begin(), s.remote.end());
  std::sort(s.sampled.begin(), s.sampled.end());
  s.sampled.erase(std::unique(s.sampled.begin(), s.sampled.end()), s.sampled.end());
  return s;
}

LaunchTime time_launch(const GpuModel& model, const Program& program, const Sample& sample,
                       std::vector<std::unique_ptr<WorkgroupTrace>>& traces,
                       const TimingOptions& options) {
  const Constants& k = model.constants;
  LaunchTime time;
  number_pages(traces, sample, time);
  ReplayInput input{&model,        &program, {}, sample.groups_per_cu, {}, options.cold_code,
                    options.events};
  for (const auto& trace : traces) {
    if (trace && trace->flat % sample.xccs == 0) input.groups.push_back(trace.get());
  }
  const bool fits = time.footprint_bytes <= k.mall_mib * 1048576;
  const bool warm = !options.cold && fits;
  input.memory = {time.sharing, time.contended, warm, warm && !sample.num_skipped};
  time.overhead_us = launch_overhead_us(k, options.kind);
  fill_extrapolation(traces, time);
  StaticTable table(program, k);
  ClockPoint point{k.clock, 0, 0},
      prev_point{};  // iterates until two clocks are close enough for linear interpolation
  while (true) {
    time.replay = Replay(input, table, point.ghz).run();
    point.clocks = static_cast<double>(time.replay.clocks) + skipped_clocks(sample, time.replay);
    point.clocks *= time.extrapolation;
    point.sustained_ghz =
        mean_clock(k, sustained_clock(k, time.replay), point.clocks / point.ghz / 1e3);
    ++time.iterations;
    if (time.iterations == kMaxIterations ||
        std::abs(point.sustained_ghz / point.ghz - 1) < kSameClock)
      break;
    const ClockPoint next_point = time.iterations > 1 ? fixed_point(prev_point, point, k.clock)
                                                      : ClockPoint{point.sustained_ghz, 0, 0};
    prev_point = point;
    point = next_point;
    if (time.iterations > 1 && std::abs(point.ghz / prev_point.ghz - 1) < kNearClock) break;
  }
  time.ghz = point.ghz;
  time.clocks = point.clocks;
  time.us = time.overhead_us + time.clocks / time.ghz / 1e3;
  fill_busy(k, time);
  fill_bound(time);
  fill_interval(model, !options.cold, time);
  return time;
}

}  // namespace vgpu
