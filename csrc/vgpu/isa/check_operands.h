// The registers that an instruction reads and writes, and its effect on the wait counters: static
// information for the checks and the timing model.
#pragma once

#include <memory>
#include <vector>

#include "vgpu/isa/isa.h"
#include "vgpu/isa/program.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// The use of a source register. Only uses that decide something (an address, a branch or EXEC,
// stored data) make an undefined value a finding; other uses propagate it.
enum class Role : u8 { kSource, kAddress, kData, kControl };

// Vector registers: 0..255, AGPRs 256..511. Scalar registers: 0..127.
struct RegRange {
  u16 first;
  u8 count;
  Role role;
};

template <u32 kCapacity>
struct RegList {
  RegRange ranges[kCapacity];
  u8 size = 0;
  void add(u32 first, u32 count, Role role = Role::kSource) {
    if (count && size < kCapacity) {
      ranges[size++] = {static_cast<u16>(first), static_cast<u8>(count), role};
    }
  }
  const RegRange* begin() const { return ranges; }
  const RegRange* end() const { return ranges + size; }
};

// A set of registers as a bit mask. Most instructions touch no register that a check has state for;
// overlap tests of two sets take a few host instructions.
template <u32 kCount>
struct RegSet {
  u64 words[kCount / 64] = {};

  void add(u32 reg) { words[reg / 64] |= u64{1} << reg % 64; }
  void remove(u32 reg) { words[reg / 64] &= ~(u64{1} << reg % 64); }
  bool overlaps(const RegSet& rhs) const {
    u64 common = 0;
    for (u32 i = 0; i < kCount / 64; ++i) common |= words[i] & rhs.words[i];
    return common;
  }
};
using VectorSet = RegSet<(kVgprRows + 63) / 64 * 64>;  // by row of the register file
using ScalarSet = RegSet<128>;

struct Operands {
  RegList<6> vreads;
  RegList<2> vwrites;
  RegList<6> sreads;
  RegList<3> swrites;
  Queue queue = Queue::kNone;
  Spread spread = Spread::kAny;
  bool reads_scc = false, writes_scc = false;
  bool writes_exec = false;  // implicitly, not as a named destination
  bool lds_dma = false;      // loads from memory to LDS
  bool atomic = false;
  bool signals = false;    // atomic or volatile: waves may synchronise through it
  bool partial = false;    // VALU: writes only a part of its destination register
  bool exchanges = false;  // an atomic that ignores the old value
  bool typed = false;      // the format in memory differs from that of the registers
  bool dot = false;        // a dot product on the VALU
  VectorSet vectors;       // all registers read or written
  ScalarSet scalars;
};

// Returns the operands. AGPRs follow `accum_offset` rows of the register file.
Operands operands_of(const Inst& inst, u32 accum_offset = 256);

// Returns how many consecutive registers, from Inst::dst, a memory instruction loads.
inline u8 result_dwords(const Operands& operands) {
  const bool scalar = operands.queue == Queue::kScalar;
  const u8 size = scalar ? operands.swrites.size : operands.vwrites.size;
  if (!size) return 0;
  return scalar ? operands.swrites.ranges[0].count : operands.vwrites.ranges[0].count;
}

// Caches the operands of a program's instructions, per index.
class OperandCache {
 public:
  OperandCache(const Program& program, u32 accum_offset)
      : accum_offset_(accum_offset), slots_(program.count) {}
  const Operands& lookup(const Inst& inst) {
    auto& slot = slots_[inst.index];
    if (!slot) [[unlikely]]
      slot = std::make_unique<Operands>(operands_of(inst, accum_offset_));
    return *slot;
  }

 private:
  u32 accum_offset_;
  std::vector<std::unique_ptr<Operands>> slots_;
};

}  // namespace vgpu
