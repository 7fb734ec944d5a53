// Replays what the workgroups of one XCD did, in model time.
//
// A queue of events by clk: a wave's next issue, a CU's vector memory pipe. A wave issues in order,
// at the earliest clk that every constraint allows; each wait beyond that is charged to the last
// constraint that held it, by PC.
#pragma once

#include <memory>

#include "vgpu/timing/flags.h"

namespace vgpu {

struct PcStats {
  u64 issued = 0;
  std::array<u64, kReasons> stalls{};
};

struct ReplayInput {
  const Part* part;
  const Program* program;
  std::vector<const GroupTrace*> groups;  // in order of dispatch
  u32 groups_per_cu;
  MemoryState memory;
  bool cold_code = false;
  u32 most_events = 0;  // of a CU
};

struct ReplayResult {
  Clk clocks = 0;  // until the last wave has ended and memory is quiet
  Clk waves_end = 0;
  u64 instructions = 0, wave_clocks = 0;
  UnitCounts busy;
  MemoryCounts memory;
  u64 vmem_count = 0, vmem_clocks = 0;  // instructions of vector memory, issue to done
  double channel_busy = 0, fabric_busy = 0, hbm_busy = 0, port_busy = 0;
  std::vector<PcStats> pcs;
  std::array<u64, kReasons> stalls{}, barrier_because{};
  std::vector<Clk> starts;         // of workgroups
  std::vector<IssueEvent> events;  // of the CU that is done last
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
    bool operator>(const Event& other) const { return key > other.key; }
  };
  struct Limit {
    Clk at;
    Reason why;
    void need(Clk clk, Reason reason) {
      if (clk > at) at = clk, why = reason;
    }
  };

  const ReplayInput& input_;
  const Constants& k_;
  StaticTable& table_;
  XcdMemory memory_;
  Flags flags_;
  std::vector<Cu> cus_;
  std::vector<Tags> k_caches_, code_caches_;  // each of two CUs
  std::vector<std::unique_ptr<WaveRun>> waves_;
  std::vector<WaveRun*> spare_;
  std::deque<GroupRun> groups_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  ReplayResult result_;
  std::size_t next_group_ = 0;
  double dispatch_free_ = 0;
  u32 started_ = 0;
  bool follow_code_ = false;

  // replay.cpp
  void push(WaveRun& wave, Clk at);
  bool comes_first(Clk at) const;
  void push_pipe(u32 cu, Clk at);
  void place(u32 cu, Clk at);
  WaveRun& new_wave();
  void run_wave(WaveRun& wave, Clk now);
  void end_wave(WaveRun& wave, Clk now);
  void charge(WaveRun& wave, u32 pc, Reason why, Clk until);
  void release_barrier(GroupRun& group, const WaveRun* last, Clk at, const WaveRun* running);
  // issue.cpp
  Limit limit_of(WaveRun& wave, u32 pc, const TimedInst& inst, Clk now);
  void limit_registers(const WaveRun& wave, const TimedInst& inst, Limit& limit) const;
  void limit_unit(WaveRun& wave, const TimedInst& inst, Clk now, Limit& limit);
  void limit_wait(WaveRun& wave, const TimedInst& inst, Limit& limit);
  void limit_load(WaveRun& wave, Clk done, Reason why, Limit& limit);
  void limit_code(WaveRun& wave, u32 pc, Limit& limit);
  void limit_flag(WaveRun& wave, Limit& limit);
  void write_flag(const WaveRun& wave, const u32* words, u32 count, Clk done);
  void issue(WaveRun& wave, u32 pc, const TimedInst& inst, Clk now);
  void execute(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk now);
  void execute_lds(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk now);
  void execute_scalar_load(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count,
                           Clk now);
  // vmem.cpp
  void enqueue(WaveRun& wave, const TimedInst& inst, const u32* words, u32 count, Clk now);
  void run_pipe(u32 cu, Clk now);
  void serve(Cu& cu, const Pending& pending, Clk now);
  double serve_lines(Cu& cu, const Pending& pending, Clk now);
  void wake_one(Cu& cu, Clk now);
};

}  // namespace vgpu
