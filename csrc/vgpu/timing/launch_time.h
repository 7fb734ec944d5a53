// Estimates the time of a launch: selects the sample of workgroups, replays it, and adds what the
// replay does not cover (skipped rounds, launch overhead, sustained clock) and an error interval.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vgpu/object/launch.h"
#include "vgpu/timing/replay.h"

namespace vgpu {

// The measurement that the estimate imitates; it selects the launch overhead.
enum class Measurement : u8 { kProfiler, kEvent, kGraph };

struct TimingOptions {
  std::string model;    // GPU model; empty: the current device's
  std::string changes;  // "NAME=VALUE ..." overrides of model constants
  Measurement kind = Measurement::kProfiler;
  bool cold = true;        // operands are in HBM, not in the Infinity Cache
  bool results = true;     // also execute workgroups outside the sample
  bool cold_code = false;  // the instruction cache starts empty
  bool detail = true;      // record stalls per PC
  u32 max_detailed = 0;    // record details of at most this many distinct launches; 0: of all
  u32 events = 0;          // maximum number of issue events recorded for one CU
  u64 trace_words = u64{1} << 27;  // limit of the sample's traces: half a gigabyte
};

// The workgroups of a launch that are replayed: all of XCD 0, or, if there are many, its first
// three rounds and its last.
struct Sample {
  u32 xccs = 1, per_round = 1, groups_per_cu = 1;
  u64 groups = 0;             // workgroups of the launch
  u64 num_local = 0;          // workgroups of XCD 0
  u64 num_skipped = 0;        // workgroups of XCD 0 that are not replayed, between head and tail
  std::vector<u64> replayed;  // flat workgroup ids
  std::vector<u64> remote;  // flat ids of workgroups of other XCDs, traced for the lines they share
  std::vector<u64> sampled;  // replayed and remote, in ascending order
};
Sample make_sample(const GpuModel& model, const Launch& launch);

struct LaunchTime {
  double us = 0, low = 0, high = 0, overhead_us = 0, ghz = 0, clocks = 0;
  double sharing = 1, contended = 0, footprint_bytes = 0;
  u64 untraced = 0;          // instructions of the sample beyond the trace limit
  double extrapolation = 1;  // factor on the clocks for untraced instructions
  u32 iterations = 0;        // replays until the clock converged
  std::string bound;
  std::vector<std::pair<const char*, double>> busy;  // utilisation per unit, 0 to 1
  ReplayResult replay;
};

// Replaces page numbers by their order of first use, so that the estimate does not depend on where
// the host allocated memory. Fills the sharing statistics of `time`.
void number_pages(std::vector<std::unique_ptr<WorkgroupTrace>>& traces, const Sample& sample,
                  LaunchTime& time);

LaunchTime time_launch(const GpuModel& model, const Program& program, const Sample& sample,
                       std::vector<std::unique_ptr<WorkgroupTrace>>& traces,
                       const TimingOptions& options);

}  // namespace vgpu
