// Loads that land late. On hardware a load's registers keep their old values until it has come, and
// LDS-DMA leaves LDS alone until then: hand-written code reads them in between, and some of it has
// no s_waitcnt where the time that passes is enough.
//
// A load runs when it is issued, but what it brings is held aside here until about the time that it
// takes on hardware, at the latest until a wait covers it. Compilers touch no register that is
// waited for, so for their loads nothing of this is needed: landing_scan.h finds those whose
// landing can be seen. LDS-DMA is always held.
#pragma once

#include <deque>
#include <list>
#include <vector>

#include "vgpu/exec/memory.h"
#include "vgpu/isa/wait_counter.h"
#include "vgpu/machine/schedule.h"

namespace vgpu {

// What LDS-DMA brings to a workgroup. It arrives in the order of issue, whichever wave waits for
// it: a compute unit's loads come in order.
class Arrivals {
 public:
  struct Piece {
    LaneAddresses to;
    alignas(64) u32 rows[4 * kLanes];  // one register each
    u64 mask;
    u32 dwords;
  };
  void clear();
  Piece& next();            // to be filled, and then
  u64 send();               // put on its way; returns its number
  void arrive(u64 number);  // with all before it

 private:
  std::list<Piece> on_way_, unused_;
  u64 arrived_ = 0, last_ = 0;  // numbers
};

// The loads of one wave.
class Landing {
 public:
  // Of the wave's life. `seed`: when loads land in a random schedule.
  void begin(Wave& wave, u64 seed);

  // In front of each instruction, while something is held or every load is.
  void before(Wave& wave, const Inst& inst);
  // Whether `inst` must be held because what is on its way goes to the same registers.
  bool overlaps(const Inst& inst) const;

  // Runs a load and holds what it brings.
  void run(Wave& wave, const Inst& inst);
  // Holds a piece that LDS-DMA brings.
  void hold(Wave& wave, u64 arrival);
  void all(Wave& wave);  // the wave has ended

 private:
  enum class Place : u8 { kVector, kScalar, kLds };
  struct Held {
    Place place;
    u8 count;       // registers
    u16 first;      // register
    u32 number[3];  // in the queues of vmcnt, of lgkmcnt in order and of scalar loads; 0: not in it
    u64 due;        // cycle
    u64 mask;       // lanes
    u64 arrival;    // kLds
    alignas(64) u32 data[4 * kLanes];
  };

  // Memory instructions of a queue, and when those on their way come.
  struct InOrder {
    WaitCounter count;
    u64 due[64];
    u64& due_of(u32 number) { return due[number % 64]; }
  };

  void stall(const Wave& wave, const Inst& inst);
  bool wait(u32 code);
  bool issue(InOrder& queue, u64 latency, u32 most);
  bool wait(InOrder& queue, u32 left);
  void issue(Wave& wave, Queue queue);
  void start(Wave& wave, Queue queue);
  void number(Wave& wave, const Inst& inst, Held& held);
  void number(Wave& wave, Held& held, bool vector, bool lds);
  Held& add(Wave& wave, Queue queue);
  u64 latency(const Wave& wave, u64 usual);
  bool over(const Held& held) const;
  void land(Wave& wave, const Held& held);
  void land_those_over(Wave& wave);
  void land_those_due(Wave& wave);

  InOrder vector_, lds_;
  WaitCounter scalar_;   // these come in any order
  u64 scalar_due_ = 0;   // when all have come
  u64 clock_ = 0;        // cycles of this wave, while it is followed
  u64 matrix_free_ = 0;  // when the matrix core takes the next instruction
  u64 next_due_ = 0;
  Random random_;
  std::deque<Held> pool_;    // keeps its memory
  std::vector<u32> held_;    // places in the pool, in order of issue
  std::vector<u32> unused_;  // places in the pool
};

// Runs an instruction that landing_scan.h has found (Inst::exec).
void run_late(Wave& wave, const Inst& inst);

}  // namespace vgpu
