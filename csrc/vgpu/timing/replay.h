// Replays the traces of one XCD's workgroups in model time.
//
// Event-driven: an event is a wave's next issue or a CU's vector memory pipe. A wave issues in
// order, at the earliest clk that every constraint allows; the stall is attributed, by PC, to the
// last constraint that was met.
#pragma once

#include <memory>

#include "vgpu/timing/spin_flags.h"

namespace vgpu {

struct PcStats {
  u64 issued = 0;
  u64 lds_clk = 0, conflict_clk = 0;  // of the LDS banks, and how many of them conflicts cost
  u64 bytes = 0, lines = 0;           // that lanes access in global memory; lines touched
  std::array<u64, kReasons> stalls{};
};

struct ReplayInput {
  const GpuModel* model;
  const Program* program;
  std::vector<const WorkgroupTrace*> groups;  // in dispatch order
  u32 groups_per_cu;
  MemoryState memory;
  bool cold_code = false;
  u32 max_events = 0;  // recorded per CU
};

struct ReplayResult {
  Clk clocks = 0;  // until the last wave has ended and all writes have drained
  Clk waves_end = 0;
  u64 instructions = 0, wave_clocks = 0;
  UnitCounts busy;
  MemoryCounts memory;
  u64 vmem_count = 0,
      vmem_clocks = 0;  // vector memory instructions, and the sum of their latencies
  double channel_busy = 0, fabric_busy = 0, hbm_busy = 0, port_busy = 0;
  std::vector<PcStats> pcs;
  std::array<u64, kReasons> stalls{}, barrier_causes{};
  std::vector<Clk> starts;         // dispatch clk of each workgroup
  std::vector<IssueEvent> events;  // issues of the CU that finishes last
  u32 events_cu = 0;
};

class Replay {
 public:
  Replay(const ReplayInput& input, StaticTable& table, double ghz);
  ~Replay();
  ReplayResult run();

 private:
  struct Event {
    u64 key;
    u32 id;
    bool operator>(const Event& rhs) const { return key > rhs.key; }
  };
  struct Limit {
    Clk clk;
    Reason reason;
    void require(Clk min_clk, Reason stall) {
      if (min_clk > clk) clk = min_clk, reason = stall;
    }
  };

  const ReplayInput& input_;
  const Constants& k_;
  StaticTable& table_;
  XcdMemory memory_;
  SpinFlags flags_;
  std::vector<Cu> cus_;
  std::vector<Tags> k_caches_, code_caches_;  // shared by two CUs
  std::vector<std::unique_ptr<WaveRun>> waves_;
  std::vector<WaveRun*> spare_;
  std::deque<WorkgroupRun> groups_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  ReplayResult result_;
  std::size_t next_group_ = 0;
  double dispatch_free_ = 0;
  u32 num_started_ = 0;
  bool model_icache_ = false;

  // Implemented in replay.cpp.
  void push(WaveRun& wave, Clk clk);
  bool is_next(Clk clk) const;
  void push_pipe(u32 cu, Clk clk);
  void start_workgroup(u32 cu, Clk clk);
  WaveRun& new_wave();
  void run_wave(WaveRun& wave, Clk cur_clk);
  void end_wave(WaveRun& wave, Clk cur_clk);
  void charge(WaveRun& wave, u32 pc, Reason reason, Clk end_clk);
  void release_barrier(WorkgroupRun& group, const WaveRun* last_arrival, Clk clk,
                       const WaveRun* running);
  // Implemented in issue.cpp.
  Limit issue_limit(WaveRun& wave, u32 pc, const TimedInst& inst, Clk cur_clk);
  void limit_registers(const WaveRun& wave, const TimedInst& inst, Limit& limit) const;
  void limit_unit(WaveRun& wave, const TimedInst& inst, Clk cur_clk, Limit& limit);
  void limit_wait(WaveRun& wave, const TimedInst& inst, Limit& limit);
  void limit_load(WaveRun& wave, Clk done, Reason reason, Limit& limit);
  void limit_code(WaveRun& wave, u32 pc, Limit& limit);
  void limit_flag(WaveRun& wave, Limit& limit);
  void write_flag(const WaveRun& wave, const u32* words, u32 count, Clk done);
  void issue(WaveRun& wave, u32 pc, const TimedInst& inst, Clk cur_clk);
  void execute(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk cur_clk);
  void execute_lds(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk cur_clk);
  void execute_scalar_load(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count,
                           Clk cur_clk);
  // Implemented in vmem.cpp.
  void enqueue(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk cur_clk);
  void run_pipe(u32 cu, Clk cur_clk);
  void serve(Cu& cu, const VmemRequest& request, Clk cur_clk);
  double serve_lines(Cu& cu, const VmemRequest& request, Clk cur_clk);
  void wake_next(Cu& cu, Clk cur_clk);
};

}  // namespace vgpu
