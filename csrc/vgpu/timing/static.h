// What the model knows of an instruction without running it: once a PC.
#pragma once

#include <vector>

#include "vgpu/isa/program.h"
#include "vgpu/isa/wait_counter.h"
#include "vgpu/timing/parts.h"

namespace vgpu {

// Who executes it: of each, a SIMD issues at most one at a time, from different waves.
enum class Unit : u8 {
  kScalar,
  kScalarMemory,
  kVector,
  kMatrix,
  kLds,
  kMemory,
  kBranch,
  kInternal
};

// What an instruction of kInternal does.
enum class Internal : u8 { kNothing, kSleep, kBarrier, kWait, kPriority };

// What the power model tells apart of matrix instructions (MatrixPower of Constants).
enum class MatrixClass : u8 { kWide16, kWide8, kWide4, kNarrow, kCount };

// Vector registers 0..511, AGPRs from 256; scalar registers 0..127, SCC is 128.
inline constexpr u32 kTimedVectors = 512, kTimedScalars = 129;

struct Registers {
  u16 first;
  u16 count;
};

struct TimedInst {
  static constexpr u32 kMostRanges = 8;
  Unit unit = Unit::kInternal;
  Internal internal = Internal::kNothing;
  MatrixClass matrix = MatrixClass::kNarrow;
  bool known = false;       // the slot has been filled
  bool packed_f32 = false;  // has no place beside a matrix instruction
  bool dma = false, atomic = false, flat = false;
  u8 dwords = 1;  // of the encoding
  u8 width = 1;   // dwords a lane of memory and LDS instructions
  u8 vreads = 0, vwrites = 0, sreads = 0, swrites = 0;  // ranges
  u16 busy = 4;                                         // clk of the unit
  u16 latency = 4;                                      // clk until a dependent instruction
  u16 spacing = 4;                                      // clk until this wave's next instruction
  u16 operand_rows = 4;  // registers of A and B: how long a matrix instruction keeps VALU away
  u32 argument = 0;      // of s_nop, s_sleep, s_setprio
  u32 vector_wait = kNoWait, lgkm_wait = kNoWait;
  Registers vread[kMostRanges], vwrite[2], sread[kMostRanges], swrite[4];
};

class StaticTable {
 public:
  StaticTable(const Program& program, const Constants& constants)
      : program_(program), constants_(constants), slots_(program.count) {}
  const TimedInst& at(u32 pc) {
    TimedInst& slot = slots_[pc];
    if (!slot.known) [[unlikely]]
      fill(pc, slot);
    return slot;
  }
  u32 size() const { return static_cast<u32>(slots_.size()); }

 private:
  const Program& program_;
  const Constants& constants_;
  std::vector<TimedInst> slots_;
  void fill(u32 pc, TimedInst& slot);
};

}  // namespace vgpu
