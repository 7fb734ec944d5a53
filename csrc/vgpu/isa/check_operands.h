// Which registers an instruction reads and writes, and what it does to the wait counters: what the
// checks need to know of an instruction without running it.
#pragma once

#include <memory>
#include <vector>

#include "vgpu/isa/isa.h"
#include "vgpu/isa/program.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// What a register is read for. Only the uses that decide something (where, whether, what leaves the
// chip) make an undefined value a finding; the others pass it on.
enum class Role : u8 { kSource, kAddress, kData, kControl };

// Vector registers: 0..255, AGPRs 256..511. Scalar registers: 0..127.
struct RegRange {
  u16 first;
  u8 count;
  Role role;
};

template <u32 kMost>
struct RegList {
  RegRange ranges[kMost];
  u8 size = 0;
  void add(u32 first, u32 count, Role role = Role::kSource) {
    if (count && size < kMost) {
      ranges[size++] = {static_cast<u16>(first), static_cast<u8>(count), role};
    }
  }
  const RegRange* begin() const { return ranges; }
  const RegRange* end() const { return ranges + size; }
};

// A set of registers. Few instructions of a kernel touch one that a check has anything to say of,
// and whether two sets meet is known in a handful of the host's instructions.
template <u32 kCount>
struct RegSet {
  u64 words[kCount / 64] = {};

  void add(u32 reg) { words[reg / 64] |= u64{1} << reg % 64; }
  void remove(u32 reg) { words[reg / 64] &= ~(u64{1} << reg % 64); }
  bool meets(const RegSet& other) const {
    u64 any = 0;
    for (u32 i = 0; i < kCount / 64; ++i) any |= words[i] & other.words[i];
    return any;
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
  bool writes_exec = false;  // other than as a named destination
  bool lds_dma = false;      // brings memory to LDS
  bool atomic = false;
  bool signals = false;    // atomic or volatile: waves may wait for one another by it
  bool partial = false;    // VALU: writes a part of its destination register
  bool exchanges = false;  // an atomic that takes no regard to the old value
  bool typed = false;      // the format in memory is not that of the registers
  bool dot = false;        // a dot product of the vector ALU
  VectorSet vectors;       // all that it reads or writes
  ScalarSet scalars;
};

// AGPRs lie behind the `accum_offset` first rows of the register file.
Operands operands_of(const Inst& inst, u32 accum_offset = 256);

// Registers that a memory instruction brings something to; they lie together, from Inst::dst.
inline u8 result_dwords(const Operands& operands) {
  const bool scalar = operands.queue == Queue::kScalar;
  const u8 size = scalar ? operands.swrites.size : operands.vwrites.size;
  if (!size) return 0;
  return scalar ? operands.swrites.ranges[0].count : operands.vwrites.ranges[0].count;
}

// The operands of a program's instructions, found once each.
class OperandCache {
 public:
  OperandCache(const Program& program, u32 accum_offset)
      : accum_offset_(accum_offset), slots_(program.count) {}
  const Operands& of(const Inst& inst) {
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
