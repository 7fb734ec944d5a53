// Static properties of instructions that the timing model needs, computed once per PC.
#pragma once

#include <vector>

#include "vgpu/isa/program.h"
#include "vgpu/isa/wait_counter.h"
#include "vgpu/timing/gpu_model.h"

namespace vgpu {

// Execution units. A SIMD issues at most one instruction per unit and clk, from different waves.
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

// Instructions of kInternal, by their effect.
enum class Internal : u8 { kNothing, kSleep, kBarrier, kWait, kPriority };

// Classes of matrix instructions that the power model distinguishes (Constants::power_*).
enum class MatrixClass : u8 { kWide16, kWide8, kWide4, kNarrow, kCount };

// Register numbers: vector registers 0..511 with AGPRs from 256; scalar registers 0..127, SCC is
// 128.
inline constexpr u32 kTimedVectors = 512, kTimedScalars = 129;

struct Registers {
  u16 first;
  u16 count;
};

struct TimedInst {
  static constexpr u32 kMaxRanges = 8;
  Unit unit = Unit::kInternal;
  Internal internal = Internal::kNothing;
  MatrixClass matrix = MatrixClass::kNarrow;
  bool is_filled = false;   // this entry has been filled
  bool packed_f32 = false;  // cannot issue while an MFMA occupies the SIMD
  bool dma = false, atomic = false, flat = false;
  u8 dwords = 1;  // of the encoding
  u8 width = 1;   // dwords per lane, for memory and LDS instructions
  u8 vreads = 0, vwrites = 0, sreads = 0, swrites = 0;  // number of register ranges
  u16 busy = 4;                                         // clk for which the unit is occupied
  u16 latency = 4;       // clk until a dependent instruction can issue
  u16 spacing = 4;       // clk until this wave's next instruction can issue
  u16 operand_rows = 4;  // registers of A and B: clk for which an MFMA blocks the VALU
  u32 imm = 0;           // immediate of s_nop, s_sleep, s_setprio
  u32 vector_wait = kNoWait, lgkm_wait = kNoWait;
  Registers vread[kMaxRanges], vwrite[2], sread[kMaxRanges], swrite[4];
};

class StaticTable {
 public:
  StaticTable(const Program& program, const Constants& constants)
      : program_(program), constants_(constants), slots_(program.count) {}
  const TimedInst& lookup(u32 pc) {
    TimedInst& slot = slots_[pc];
    if (!slot.is_filled) [[unlikely]]
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
