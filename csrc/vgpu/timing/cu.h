// State of one compute unit, its waves and workgroups during a replay.
#pragma once

#include <array>
#include <bitset>
#include <deque>
#include <limits>
#include <queue>
#include <vector>

#include "vgpu/timing/memory.h"
#include "vgpu/timing/static.h"
#include "vgpu/timing/trace.h"

namespace vgpu {

using Clk = i64;
inline constexpr Clk kUnknownClk = std::numeric_limits<Clk>::max();

// Stall reasons: why a wave did not issue.
enum class Reason : u8 {
  kIssue,
  kDependency,
  kMatrixDependency,
  kVectorWait,
  kLgkmWait,
  kVectorUnit,
  kMatrixUnit,
  kLdsUnit,
  kScalarUnit,
  kMemoryQueue,
  kBarrier,
  kSleep,
  kBranch,
  kFetch,
  kFlag,
  kCount,
};
inline constexpr u32 kReasons = static_cast<u32>(Reason::kCount);
const char* reason_name(Reason reason);

// Completion times of a wave's memory instructions by sequence number, for as many as a wait
// counter can count.
class Completions {
 public:
  u64 issued = 0;
  void issue(Clk done) { done_[issued++ % kCapacity] = done; }
  void set(u64 number, Clk done) { done_[number % kCapacity] = done; }
  // Returns the clk at which at most `max_in_flight` instructions are in flight, 0 if that holds
  // already.
  Clk completion(u64 max_in_flight) const {
    return issued > max_in_flight ? done_[(issued - 1 - max_in_flight) % kCapacity] : 0;
  }
  Clk last_completion() const { return completion(0); }

 private:
  static constexpr u32 kCapacity = 128;
  std::array<Clk, kCapacity> done_{};
};

struct WorkgroupRun;

struct WaveRun {
  const u32 *trace_pos = nullptr, *trace_end = nullptr;  // position in the wave's trace
  WorkgroupRun* group = nullptr;
  Clk next_issue = 0;              // earliest clk of the next issue
  Clk last_issue = 0;              // clk of the last issue
  Clk charged_until = 0;           // stalls before this clk are already attributed to a reason
  Reason reason = Reason::kIssue;  // of the latest stall
  u32 last_pc = 0;
  enum class WaitKind : u8 { kRunning, kLoad, kQueue, kFlag } wait_kind = WaitKind::kRunning;
  u8 simd = 0, priority = 0;
  bool at_barrier = false;
  u32 cu = 0, age = 0, id = 0;
  u32 code_line = ~0u;
  Clk code_ready = 0;
  Completions vector, lds;
  u64 vector_served = 0, last_flat = 0;
  Clk scalar_done = 0;
  Clk latest_vector = 0, latest_scalar = 0;  // maximum over the entries of the arrays below
  std::array<Clk, kTimedVectors> vector_ready{};
  std::array<Clk, kTimedScalars> scalar_ready{};
  std::bitset<kTimedVectors> written_by_matrix;
  std::array<u64, kReasons> stalls_since_barrier{};  // stall clk per reason
};

struct WorkgroupRun {
  const WorkgroupTrace* trace = nullptr;
  Clk start = 0, stores_done = 0;
  u32 cu = 0, alive = 0, waiting = 0;
  std::vector<WaveRun*> waves;
};

// A vector memory instruction in the queue in front of the memory pipe.
struct VmemRequest {
  WaveRun* wave;
  const TimedInst* inst;
  const u32* words;  // payload of the trace record
  u32 count;
  u64 vmem_index;  // sequence number among the wave's vector memory instructions
  Clk issued;
};

struct InFlight {
  Clk done;
  u32 bytes;
  bool operator>(const InFlight& rhs) const { return done > rhs.done; }
};

struct UnitCounts {
  u64 vector = 0, lds = 0, lds_conflicts = 0, memory = 0;  // clk in which the unit was busy
  std::array<u64, static_cast<u32>(MatrixClass::kCount)> matrix{};
};

// One instruction issue, recorded for the CU that finishes last.
struct IssueEvent {
  Clk clk;
  u32 pc;
  u32 wave;  // in order of dispatch
  u8 simd;
  Reason reason;
  u32 stalled;
};

struct Cu {
  struct Simd {
    Clk vector = 0, matrix = 0, lds = 0, scalar = 0, memory = 0;  // clk at which each unit is free
  };
  std::array<Simd, kSimdsPerCu> simds;
  Clk lds_free = 0, pipe_free = 0;
  bool pipe_scheduled = false;
  u32 next_simd = 0;
  double port_free = 0, write_port_free = 0;  // L1's read and write port to L2
  u64 bytes_in_flight = 0;
  std::deque<VmemRequest> queue;
  std::vector<WaveRun*> wait_queue;  // waves waiting for a free entry of `queue`
  std::priority_queue<InFlight, std::vector<InFlight>, std::greater<>> in_flight;
  Tags l1;
  UnitCounts busy;
  Clk end = 0;  // clk at which the last wave has ended
  std::vector<IssueEvent> events;
};

}  // namespace vgpu
