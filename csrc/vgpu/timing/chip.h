// The time of a launch: which workgroups stand for it, what their replay says, and what the chip
// adds: rounds, the launch itself, clock and power, and how far off that may be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vgpu/object/launch.h"
#include "vgpu/timing/replay.h"

namespace vgpu {

// How a launch would be timed: what is added to what its waves take.
enum class TimeKind : u8 { kProfiler, kEvent, kGraph };

struct TimingOptions {
  std::string part;     // empty: the device's
  std::string changes;  // of constants
  TimeKind kind = TimeKind::kProfiler;
  bool cold = true;                // operands in memory, not in the Infinity Cache
  bool results = true;             // workgroups outside the sample run too
  bool cold_code = false;          // the instruction cache is empty
  bool detail = true;              // the record has stalls by PC
  u32 different = 0;               // only of so many different launches, events too; 0: of all
  u32 events = 0;                  // issues of one CU that the record has
  u64 trace_words = u64{1} << 27;  // that the sample's traces may have, half a gigabyte
};

// Which workgroups of a launch are replayed: of XCD 0 all, or where there are many, the first three
// rounds and the last.
struct Sample {
  u32 xccs = 1, per_round = 1, groups_per_cu = 1;
  u64 groups = 0;              // of the launch
  u64 own = 0;                 // of XCD 0
  u64 left_out = 0;            // of those, in the middle
  std::vector<u64> replayed;   // flat ids
  std::vector<u64> elsewhere;  // of other XCDs: which lines they share
  std::vector<u64> all;        // both, in order
};
Sample make_sample(const Part& part, const Launch& launch);

struct LaunchTime {
  double us = 0, low = 0, high = 0, floor_us = 0, ghz = 0, clocks = 0;
  double sharing = 1, taken = 0, footprint_bytes = 0;
  u64 left_out = 0;   // instructions of the sample that traces have no room for
  double longer = 1;  // by these
  u32 turns = 0;      // of the power model
  std::string bound;
  std::vector<std::pair<const char*, double>> busy;  // share of each unit
  ReplayResult replay;
};

// Pages get numbers in the order in which workgroups touch them, so that nothing depends on where
// the host put memory. Fills what the sample says of sharing.
void number_pages(std::vector<std::unique_ptr<GroupTrace>>& traces, const Sample& sample,
                  LaunchTime& time);

LaunchTime time_launch(const Part& part, const Program& program, const Sample& sample,
                       std::vector<std::unique_ptr<GroupTrace>>& traces,
                       const TimingOptions& options);

}  // namespace vgpu
