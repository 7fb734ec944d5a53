// LDS races: two waves of a workgroup access a byte, at least one writes, and neither a barrier nor
// a wait orders them.
//
// Every LDS access gets a stamp: its sequence number in the workgroup, and its wave. A cell (a
// dword; a byte after the first access of partial dwords) stores the stamp of its last write and
// the waves that have read it since the last barrier. A wave has a vector clock: up to which number
// the accesses of each other wave happen before its own. Barriers set the clock; atomics, by which
// waves may signal, transfer it from wave to wave. An access still in flight when its wave arrives
// at a barrier (LDS-DMA without s_waitcnt vmcnt) counts as made after it.
#pragma once

#include <deque>
#include <vector>

#include "vgpu/isa/check_operands.h"
#include "vgpu/machine/observer.h"
#include "vgpu/watch/check_findings.h"
#include "vgpu/watch/check_waits.h"

namespace vgpu {

inline constexpr u32 kMaxWaves = 16;  // per workgroup

struct LdsState {
  struct Stamped {  // an access in flight
    u32 stamp = 0;
    u32 queue_number = 0;  // sequence number in the wave's queue: vmcnt for DMA, otherwise lgkmcnt
    u32 index = 0;         // instruction index
    bool is_write = false;
    u32 bytes = 0;
    u64 mask = 0;
    u32 offsets[kLanes];
  };

  u32 wave_count = 0;
  u32 number = 0;            // sequence number of the last access
  u32 epoch = 1;             // number of barriers, modulo 16 bits
  bool has_signal = false;   // an atomic since the last barrier
  u32 shift = 2;             // from offset to cell
  std::vector<u32> writes;   // per cell: stamp of the last write
  std::vector<u32> reads;    // per cell: stamp of the last read
  std::vector<u32> readers;  // per cell: epoch << 16 | waves that read it in that epoch
  u32 clock[kMaxWaves][kMaxWaves] = {};
  u32 sync[kMaxWaves] = {};   // the clock that atomics transfer
  u32 floor[kMaxWaves] = {};  // minimum of a wave's clock over the other waves
  std::deque<Stamped> dma_in_flight[kMaxWaves], in_flight[kMaxWaves];  // in issue order
  std::vector<u32> log;  // instruction indices of the latest accesses, by sequence number
};

// One per host thread.
class LdsCheck {
 public:
  LdsCheck(const Program& program, Findings& findings) : program_(program), findings_(findings) {}

  void begin(LdsState& state, u32 lds_bytes, u32 wave_count);
  // Called when all waves have arrived at a barrier. `waits` returns a wave's wait counters.
  template <class Waits>
  void barrier(LdsState& state, Waits waits) {
    next_epoch(state);
    for (u32 w = 0; w < state.wave_count; ++w) restamp_in_flight(state, w, waits(w));
  }
  void access(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
              const Operands& operands, const Access& access);
  // Called after an access by which waves may synchronise, to LDS or to memory.
  void signal(LdsState& state, u32 wave);
  void after_inst(const LdsState& state, const Wave& wave, const Inst& inst);

 private:
  struct Conflict {
    u32 lane, offset;
    u32 peer_stamp;  // stamp of the other wave's access
    bool is_peer_read;
    u32 bytes;
    u8 old[16];
  };
  struct AccessContext {  // the access under check
    const WaitState& waits;
    const Wave& wave;
    const Inst& inst;
    const Operands& operands;
    const Access& access;
    u32 stamp;
  };
  void next_epoch(LdsState& state);
  void restamp_in_flight(LdsState& state, u32 wave, const WaitState& waits);
  void restamp(LdsState& state, u32 wave, LdsState::Stamped& access);
  u32 next_stamp(LdsState& state, bool is_signal, u32 wave, u32 index);
  void remember(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                const Operands& operands, const Access& access, u32 stamp);
  template <u32 kCount>
  void lanes(LdsState& state, const AccessContext& context);
  void check_own_dma(const LdsState& state, const AccessContext& context, u32 lane, u32 offset);
  void check_read(const LdsState& state, const AccessContext& context, u32 lane, u32 offset);
  static u32 unordered_read(const LdsState& state, u32 wave, bool is_signal, u32 cell);
  void check_write(const LdsState& state, const AccessContext& context, u32 lane, u32 offset);
  void report(const Wave& wave, const Inst& inst, u32 lane, u32 offset, const std::string& detail);
  std::string describe_access(const LdsState& state, u32 stamp) const;

  const Program& program_;
  Findings& findings_;
  std::vector<Conflict> conflicts_;  // of the current write, judged after it
};

}  // namespace vgpu
