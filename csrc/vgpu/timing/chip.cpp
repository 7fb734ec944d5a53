#include "vgpu/timing/chip.h"

#include <algorithm>
#include <cmath>

namespace vgpu {
namespace {

constexpr u64 kWholeRounds = 5;  // up to so many nothing is left out
constexpr u64 kFirstRounds = 3;  // else these and the last
constexpr u64 kElsewhere = 3;    // workgroups of each other XCD that are looked at
constexpr u32 kMostTurns = 4;    // of the power model
constexpr double kSameClock = 0.01, kNearClock = 0.05;
constexpr double kSmallUs = 15;  // below, published times of one kernel differ by 20 to 30 %

// -------------------------------------------------------------------------------- power

// The clock at which matrix cores that are busy for that share can be kept.
double sustained_clock(const Constants& k, const ReplayResult& r) {
  const double limits[] = {k.power_wide16, k.power_wide8, k.power_wide4, k.power_narrow};
  const double available = static_cast<double>(r.clocks) * k.cus / k.xccs * kSimdsPerCu;
  double load = 0;
  for (u32 i = 0; i < std::size(limits); ++i) {
    load += static_cast<double>(r.busy.matrix[i]) / available / limits[i];
  }
  return load > 0 ? std::min(k.clock, std::cbrt(1 / load)) : k.clock;
}

// A short launch between gaps is over before the clock has come down.
double mean_clock(const Constants& k, double sustained, double us) {
  if (k.power_settle_us <= 0 || us <= 0) return sustained;
  const double x = us / k.power_settle_us;
  return sustained + (k.clock - sustained) * (1 - std::exp(-x)) / x;
}

// A replay at one clock, and the clock that its load can be kept at.
struct Turn {
  double ghz, wanted, clocks;
};

// Where both are the same, by the line through two turns; where it is no line, the clock
// that the second wanted.
Turn meet(const Turn& a, const Turn& b, double most) {
  constexpr double kSteepest = 0.8;
  const double wanted = (b.wanted - a.wanted) / (b.ghz - a.ghz);
  const double clocks = (b.clocks - a.clocks) / (b.ghz - a.ghz);
  const double found = (b.wanted - wanted * b.ghz) / (1 - wanted);
  const double ghz = wanted < kSteepest ? std::min(most, found) : b.wanted;
  return {ghz, ghz, b.clocks + clocks * (ghz - b.ghz)};
}

// -------------------------------------------------------------------------------- shares, bound

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
  const auto most =
      std::max_element(time.busy.begin(), time.busy.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  time.bound = time.floor_us > time.us / 2 ? "launch"
               : most->second > kBusy      ? most->first
                                           : "latency";
}

// What holds 80 to 90 % of the published times that each kind was scored on: more is known of what
// compute units do than of what memory does, less of what earlier launches leave behind.
double relative_error(const LaunchTime& time, bool warm) {
  constexpr double kTaken = 0.2;  // share of writes of lines that another XCD has had
  if (warm) return 0.30;
  const bool by_memory = time.bound == "hbm" || time.bound == "fabric" || time.taken > kTaken;
  return by_memory ? 0.25 : 0.15;
}

void fill_band(const Part& part, bool warm, LaunchTime& time) {
  const bool small = time.us < kSmallUs;
  double error = small ? 0.25 * time.us + 2 : relative_error(time, warm) * time.us;
  if (!part.has_rows) error *= 2;
  if (time.left_out) error *= 2;
  time.low = std::max(time.floor_us / 2, time.us - error);
  time.high = time.us + error;
}

double floor_of(const Constants& k, TimeKind kind) {
  const double floors[] = {k.floor_profiler, k.floor_event, k.floor_graph};
  return floors[static_cast<u32>(kind)];
}

// What the traces have no room for goes on as before.
void fill_left_out(const std::vector<std::unique_ptr<GroupTrace>>& traces, LaunchTime& time) {
  u64 all = 0;
  for (const auto& trace : traces) {
    if (trace) all += trace->instructions, time.left_out += trace->left_out;
  }
  if (time.left_out)
    time.longer = static_cast<double>(all) / static_cast<double>(all - time.left_out);
}

// clk of the rounds that were left out, at the rate from the middle of the second on: before, what
// lies behind the compute units has not filled up. No faster than memory could serve them.
double left_out_clocks(const Sample& sample, const ReplayResult& r) {
  const u64 first = sample.per_round * 3 / 2, last = first + 2 * u64{sample.per_round};
  if (!sample.left_out || r.starts.size() <= last) return 0;
  const double groups = static_cast<double>(last - first);
  const double seen = static_cast<double>(r.starts[last] - r.starts[first]) / groups;
  const double least =
      std::max(r.fabric_busy, r.hbm_busy) / static_cast<double>(sample.replayed.size());
  return std::max(seen, least) * static_cast<double>(sample.left_out);
}

}  // namespace

Sample make_sample(const Part& part, const Launch& launch) {
  const Constants& k = part.constants;
  const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
  Sample s;
  s.xccs = std::max(1u, static_cast<u32>(k.xccs));
  s.groups = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  s.own = (s.groups + s.xccs - 1) / s.xccs;
  s.groups_per_cu = std::max(
      1u, workgroups_per_cu(*part.device, launch.kernel->vgpr_rows,
                            launch.kernel->group_segment_bytes + launch.dynamic_lds, threads));
  s.per_round = s.groups_per_cu * std::max(1u, static_cast<u32>(k.cus / k.xccs));
  const u64 head = kFirstRounds * s.per_round, tail = s.per_round + s.own % s.per_round;
  if (s.own > kWholeRounds * s.per_round) s.left_out = s.own - head - tail;
  std::vector<u64> indices;  // within an XCD
  for (u64 i = 0; i < s.own; ++i) {
    if (s.left_out && i == head) i += s.left_out;
    indices.push_back(i);
    s.replayed.push_back(i * s.xccs);
  }
  for (u64 xcc = 1; xcc < s.xccs; ++xcc) {
    for (u64 j = 0; j < std::min<u64>(kElsewhere, indices.size()); ++j) {
      const u64 at = (indices.size() * (2 * j + 1) / (2 * kElsewhere) + 7 * xcc) % indices.size();
      const u64 flat = indices[at] * s.xccs + xcc;
      if (flat < s.groups) s.elsewhere.push_back(flat);
    }
  }
  s.all = s.replayed;
  s.all.insert(s.all.end(), s.elsewhere.begin(), s.elsewhere.end());
  std::sort(s.all.begin(), s.all.end());
  s.all.erase(std::unique(s.all.begin(), s.all.end()), s.all.end());
  return s;
}

LaunchTime time_launch(const Part& part, const Program& program, const Sample& sample,
                       std::vector<std::unique_ptr<GroupTrace>>& traces,
                       const TimingOptions& options) {
  const Constants& k = part.constants;
  LaunchTime time;
  number_pages(traces, sample, time);
  ReplayInput input{&part,         &program, {}, sample.groups_per_cu, {}, options.cold_code,
                    options.events};
  for (const auto& trace : traces) {
    if (trace && trace->flat % sample.xccs == 0) input.groups.push_back(trace.get());
  }
  const bool fits = time.footprint_bytes <= k.mall_mib * 1048576;
  const bool warm = !options.cold && fits;
  input.memory = {time.sharing, time.taken, warm, warm && !sample.left_out};
  time.floor_us = floor_of(k, options.kind);
  fill_left_out(traces, time);
  StaticTable table(program, k);
  Turn now{k.clock, 0, 0}, before{};  // until two are so near that a line is as good as a replay
  while (true) {
    time.replay = Replay(input, table, now.ghz).run();
    now.clocks = static_cast<double>(time.replay.clocks) + left_out_clocks(sample, time.replay);
    now.clocks *= time.longer;
    now.wanted = mean_clock(k, sustained_clock(k, time.replay), now.clocks / now.ghz / 1e3);
    ++time.turns;
    if (time.turns == kMostTurns || std::abs(now.wanted / now.ghz - 1) < kSameClock) break;
    const Turn next = time.turns > 1 ? meet(before, now, k.clock) : Turn{now.wanted, 0, 0};
    before = now;
    now = next;
    if (time.turns > 1 && std::abs(now.ghz / before.ghz - 1) < kNearClock) break;
  }
  time.ghz = now.ghz;
  time.clocks = now.clocks;
  time.us = time.floor_us + time.clocks / time.ghz / 1e3;
  fill_busy(k, time);
  fill_bound(time);
  fill_band(part, !options.cold, time);
  return time;
}

}  // namespace vgpu
