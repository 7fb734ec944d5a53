// The state of a compute unit, of its waves and workgroups while a trace is replayed.
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

// Why a wave did not issue.
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

// When each memory instruction of a wave is done, by its number; as many as counters can count.
class Completions {
 public:
  u64 issued = 0;
  void issue(Clk done) { done_[issued++ % kRoom] = done; }
  void set(u64 number, Clk done) { done_[number % kRoom] = done; }
  // When at most `left` are on their way: 0 when that is so already.
  Clk until(u64 left) const { return issued > left ? done_[(issued - 1 - left) % kRoom] : 0; }
  Clk last() const { return until(0); }

 private:
  static constexpr u32 kRoom = 128;
  std::array<Clk, kRoom> done_{};
};

struct GroupRun;

struct WaveRun {
  const u32 *at = nullptr, *end = nullptr;  // of its trace
  GroupRun* group = nullptr;
  Clk next = 0;                 // no issue before
  Clk last = 0;                 // issue
  Clk charged = 0;              // waits up to there have been charged to a reason
  Reason why = Reason::kIssue;  // of the latest wait
  u32 last_pc = 0;
  enum class Parked : u8 { kNo, kOnLoad, kOnQueue, kOnFlag } parked = Parked::kNo;
  u8 simd = 0, priority = 0;
  bool at_barrier = false;
  u32 cu = 0, age = 0, id = 0;
  u32 code_line = ~0u;
  Clk code_ready = 0;
  Completions vector, lds;
  u64 vector_served = 0, last_flat = 0;
  Clk scalar_done = 0;
  Clk latest_vector = 0, latest_scalar = 0;  // of all that follow
  std::array<Clk, kTimedVectors> vector_ready{};
  std::array<Clk, kTimedScalars> scalar_ready{};
  std::bitset<kTimedVectors> by_matrix;
  std::array<u64, kReasons> since_barrier{};  // stalls
};

struct GroupRun {
  const GroupTrace* trace = nullptr;
  Clk start = 0, stored = 0;
  u32 cu = 0, alive = 0, waiting = 0;
  std::vector<WaveRun*> waves;
};

// A vector memory instruction between its issue and the pipe.
struct Pending {
  WaveRun* wave;
  const TimedInst* inst;
  const u32* words;  // of the trace, behind the head
  u32 count;
  u64 number;  // of the wave's
  Clk issued;
};

struct InFlight {
  Clk done;
  u32 bytes;
  bool operator>(const InFlight& other) const { return done > other.done; }
};

struct UnitCounts {
  u64 vector = 0, lds = 0, lds_conflicts = 0, memory = 0;  // busy clk
  std::array<u64, static_cast<u32>(MatrixClass::kCount)> matrix{};
};

// An issue on a compute unit that may be the one to be shown.
struct IssueEvent {
  Clk at;
  u32 pc;
  u32 wave;  // in order of start
  u8 simd;
  Reason why;
  u32 stalled;
};

struct Cu {
  struct Simd {
    Clk vector = 0, matrix = 0, lds = 0, scalar = 0, memory = 0;  // free at
  };
  std::array<Simd, kSimdsPerCu> simds;
  Clk lds_free = 0, pipe_free = 0;
  bool pipe_scheduled = false;
  u32 next_simd = 0;
  double port_free = 0, write_port_free = 0;  // to L1, from it
  u64 bytes_in_flight = 0;
  std::deque<Pending> queue;
  std::vector<WaveRun*> wait_queue;  // for room in it
  std::priority_queue<InFlight, std::vector<InFlight>, std::greater<>> in_flight;
  Tags l1;
  UnitCounts busy;
  Clk end = 0;  // of its last wave
  std::vector<IssueEvent> events;
};

}  // namespace vgpu
