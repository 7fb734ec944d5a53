// Races in LDS: two waves of a workgroup access a byte, one of them writes, and neither a barrier
// nor a wait orders them.
//
// Every access of LDS gets a stamp, its number in the workgroup with its wave. A cell (a dword; a
// byte from the first access on that is no whole dwords) remembers the stamp of its last write and
// the waves that read it since the last barrier. A wave's clock says up to which number the
// accesses of each other wave lie behind it: barriers set it, and atomics, by which waves may
// signal to one another, carry it from wave to wave. An access that still is on its way when its
// wave arrives at a barrier (LDS-DMA without s_waitcnt vmcnt) counts as made after it.
#pragma once

#include <deque>
#include <vector>

#include "vgpu/isa/check_operands.h"
#include "vgpu/machine/observer.h"
#include "vgpu/watch/check_findings.h"
#include "vgpu/watch/check_waits.h"

namespace vgpu {

inline constexpr u32 kMostWaves = 16;  // of a workgroup

struct LdsState {
  struct Stamped {  // an access that is on its way
    u32 stamp = 0;
    u32 queued = 0;  // its number in the wave's queue: the vector one for DMA, else that of LDS
    u32 index = 0;   // the instruction
    bool is_write = false;
    u32 bytes = 0;
    u64 mask = 0;
    u32 at[kLanes];
  };

  u32 wave_count = 0;
  u32 number = 0;            // of the last access
  u32 epoch = 1;             // barriers so far; 16 bits
  bool signalled = false;    // by an atomic, since the last barrier
  u32 shift = 2;             // of an offset, to its cell
  std::vector<u32> writes;   // a cell: the stamp of the last write
  std::vector<u32> reads;    // a cell: the stamp of the last read
  std::vector<u32> readers;  // a cell: epoch << 16 | waves that read it in that epoch
  u32 clock[kMostWaves][kMostWaves] = {};
  u32 sync[kMostWaves] = {};   // the clock that atomics carry
  u32 floor[kMostWaves] = {};  // the least of a wave's clock over the others
  std::deque<Stamped> dma_on_way[kMostWaves], on_way[kMostWaves];  // in order
  std::vector<u32> log;  // instructions of the latest accesses, by number
};

// Of one thread.
class LdsCheck {
 public:
  LdsCheck(const Program& program, Findings& findings) : program_(program), findings_(findings) {}

  void begin(LdsState& state, u32 lds_bytes, u32 wave_count);
  // All waves have arrived at a barrier. `waits` gives a wave's counters.
  template <class Waits>
  void barrier(LdsState& state, Waits waits) {
    next_epoch(state);
    for (u32 w = 0; w < state.wave_count; ++w) carry_over(state, w, waits(w));
  }
  void access(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
              const Operands& operands, const Access& access);
  // An access by which waves may wait for one another has happened, to LDS or to memory.
  void signal(LdsState& state, u32 wave);
  void after(const LdsState& state, const Wave& wave, const Inst& inst);

 private:
  struct Conflict {
    u32 lane, offset;
    u32 other;  // the stamp of the other wave's access
    bool other_reads;
    u32 bytes;
    u8 old[16];
  };
  struct Running {  // the access that is checked
    const WaitState& waits;
    const Wave& wave;
    const Inst& inst;
    const Operands& operands;
    const Access& access;
    u32 stamp;
  };
  void next_epoch(LdsState& state);
  void carry_over(LdsState& state, u32 wave, const WaitState& waits);
  void restamp(LdsState& state, u32 wave, LdsState::Stamped& access);
  u32 next_stamp(LdsState& state, bool signals, u32 wave, u32 index);
  void remember(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                const Operands& operands, const Access& access, u32 stamp);
  template <u32 kCount>
  void lanes(LdsState& state, const Running& now);
  void check_own_dma(const LdsState& state, const Running& now, u32 lane, u32 offset);
  void check_read(const LdsState& state, const Running& now, u32 lane, u32 offset);
  static u32 unordered_read(const LdsState& state, u32 wave, bool signals, u32 cell);
  void check_write(const LdsState& state, const Running& now, u32 lane, u32 offset);
  void report(const Wave& wave, const Inst& inst, u32 lane, u32 offset, const std::string& detail);
  std::string who(const LdsState& state, u32 stamp) const;

  const Program& program_;
  Findings& findings_;
  std::vector<Conflict> conflicts_;  // of the running write: judged by what it writes
};

}  // namespace vgpu
