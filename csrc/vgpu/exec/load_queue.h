// Deferred load completion. On hardware a load's registers keep their old values until the load
// completes, and LDS-DMA leaves LDS unchanged until then. Hand-written code reads the old values in
// between, and some of it omits an s_waitcnt if enough time passes.
//
// A load is executed at issue, but its result is kept here until about its latency on hardware has
// passed, at the latest until a wait covers it. Compiled code never accesses the registers of a
// pending load, so its loads need no deferral: load_visibility.h finds the loads whose completion
// time is observable. LDS-DMA is always deferred.
#pragma once

#include <deque>
#include <list>
#include <vector>

#include "vgpu/exec/memory.h"
#include "vgpu/isa/wait_counter.h"
#include "vgpu/machine/schedule.h"

namespace vgpu {

// Pending LDS-DMA transfers of a workgroup. They complete in issue order across waves, because a
// compute unit returns loads in order.
class LdsDmaQueue {
 public:
  struct DmaTransfer {
    LaneAddresses dst;
    alignas(64) u32 rows[4 * kLanes];  // one register each
    u64 mask;
    u32 dwords;
  };
  void clear();
  DmaTransfer& next();        // the transfer to fill in, before
  u64 send();                 // send() puts it in flight and returns its number
  void complete(u64 number);  // completes this transfer and all earlier ones

 private:
  std::list<DmaTransfer> in_flight_, unused_;
  u64 num_completed_ = 0, last_number_ = 0;  // sequence numbers
};

// The pending loads of one wave.
class LoadQueue {
 public:
  // Called at wave start. `seed`: for random completion times.
  void begin(Wave& wave, u64 seed);

  // Called before each instruction while loads are pending or every load is deferred.
  void before_inst(Wave& wave, const Inst& inst);
  // Returns whether `inst` must be deferred because a pending load has the same destination.
  bool overlaps(const Inst& inst) const;

  // Executes a load and defers its result.
  void run(Wave& wave, const Inst& inst);
  // Defers an LDS-DMA transfer.
  void hold(Wave& wave, u64 dma_number);
  void complete_all(Wave& wave);  // at wave end

 private:
  enum class DstFile : u8 { kVector, kScalar, kLds };
  struct PendingLoad {
    DstFile dst_file;
    u8 count;       // registers
    u16 first;      // register
    u32 number[3];  // sequence numbers for vmcnt, in-order lgkmcnt and scalar loads; 0: not in that
                    // queue
    u64 due_clk;    // cycle of completion
    u64 mask;       // lanes
    u64 dma_number;  // kLds
    alignas(64) u32 data[4 * kLanes];
  };

  // A queue of memory instructions, and the completion times of those in flight.
  struct OrderedQueue {
    WaitCounter count;
    u64 due_clk[64];
    u64& due_clk_of(u32 number) { return due_clk[number % 64]; }
  };

  void stall(const Wave& wave, const Inst& inst);
  bool wait(u32 code);
  bool issue(OrderedQueue& queue, u64 latency, u32 max_in_flight);
  bool wait(OrderedQueue& queue, u32 num_left);
  void issue(Wave& wave, Queue queue);
  void start(Wave& wave, Queue queue);
  void number(Wave& wave, const Inst& inst, PendingLoad& load);
  void number(Wave& wave, PendingLoad& load, bool vector, bool lds);
  PendingLoad& add(Wave& wave, Queue queue);
  u64 latency(const Wave& wave, u64 default_latency);
  bool is_complete(const PendingLoad& load) const;
  void complete(Wave& wave, const PendingLoad& load);
  void complete_waited(Wave& wave);
  void complete_due(Wave& wave);

  OrderedQueue vector_, lds_;
  WaitCounter scalar_;      // completes in any order
  u64 scalar_due_clk_ = 0;  // when all have completed
  u64 clock_ = 0;           // cycles of this wave, while loads are tracked
  u64 matrix_free_ = 0;     // when the matrix core can accept an instruction
  u64 next_due_clk_ = 0;
  Random random_;
  std::deque<PendingLoad> pool_;  // reused, never shrinks
  std::vector<u32> pending_;      // pool indices in issue order
  std::vector<u32> unused_;       // free pool indices
};

// Executes an instruction that load_visibility.h has marked (Inst::exec).
void run_delayed(Wave& wave, const Inst& inst);

}  // namespace vgpu
