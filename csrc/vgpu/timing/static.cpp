#include "vgpu/timing/static.h"

#include <algorithm>

#include "vgpu/isa/check_operands.h"
#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

Unit unit_of(Category category) {
  switch (category) {
    case Category::kSalu:
      return Unit::kScalar;
    case Category::kSmem:
      return Unit::kScalarMemory;
    case Category::kValu:
    case Category::kTrans:
    case Category::kPacked:
    case Category::kQuarter:
      return Unit::kVector;
    case Category::kMfma:
      return Unit::kMatrix;
    case Category::kLds:
    case Category::kGws:
      return Unit::kLds;
    case Category::kVmemLoad:
    case Category::kVmemStore:
    case Category::kVmemAtomic:
    case Category::kLdsDma:
    case Category::kVmemCache:
      return Unit::kMemory;
    case Category::kBranch:
      return Unit::kBranch;
    default:
      return Unit::kInternal;
  }
}

// Fills the times of a VALU instruction: the occupancy of the unit, and the issue interval of a
// single wave, which may be longer.
void vector_times(const Inst& inst, Category category, const Constants& k, TimedInst& t) {
  const bool doubled = inst.op->dst == Type::kF64 || inst.op->src[0] == Type::kF64;
  const bool halves = inst.format == Format::kVop3p && category == Category::kValu;
  double busy = 4, single_wave_clk = doubled || halves ? k.wide_valu_clk : 4;
  if (category == Category::kTrans) busy = k.trans_clk * (doubled ? 2 : 1);
  if (category == Category::kQuarter) busy = k.quarter_clk;
  t.packed_f32 = category == Category::kPacked;
  if (t.packed_f32) single_wave_clk = k.packed_f32_clk;
  t.busy = static_cast<u16>(busy);
  t.latency = static_cast<u16>(busy + k.valu_latency - 4);
  t.spacing = static_cast<u16>(single_wave_clk);
}

// A full-rate shape of gfx950 computes 8192 / (bits of an operand) products per clk and SIMD.
MatrixClass matrix_class(const MatrixShape& shape, const Inst& inst, u32 cycles) {
  const u32 bits =
      std::max(bits_of(matrix_elem(shape, inst, 0)), bits_of(matrix_elem(shape, inst, 1)));
  if (shape.macs() * bits < 8192 * cycles) return MatrixClass::kNarrow;
  return bits <= 6 ? MatrixClass::kWide4 : bits == 8 ? MatrixClass::kWide8 : MatrixClass::kWide16;
}

void matrix_times(const Inst& inst, Arch arch, const Constants& k, TimedInst& t) {
  const MatrixShape& shape = *matrix_shape(inst);
  const u32 cycles = matrix_passes(shape, inst, arch) * 4;
  t.busy = static_cast<u16>(cycles);
  t.latency = static_cast<u16>(cycles + static_cast<u32>(k.matrix_latency));
  t.matrix = matrix_class(shape, inst, cycles);
  const u32 rows = matrix_dwords(shape, inst, 0) + matrix_dwords(shape, inst, 1);
  t.operand_rows = static_cast<u16>(std::max(4u, rows));
}

// Returns the dwords that a memory instruction moves per lane.
u8 memory_width(const OpInfo& op) {
  const u32 stored = dwords_of(op.src[1]) + dwords_of(op.src[2]);
  return static_cast<u8>(std::clamp(std::max(dwords_of(op.dst), stored), 1u, 4u));
}

void internal_times(const Inst& inst, Category category, const Constants& k, TimedInst& t) {
  t.imm = static_cast<u32>(inst.imm);
  switch (category) {
    case Category::kNop:
      t.spacing = static_cast<u16>(4 * ((t.imm & 15) + 1));
      break;
    case Category::kSleep:
      t.internal = Internal::kSleep;
      t.spacing = static_cast<u16>(std::max(4.0, k.sleep_clk * (t.imm & 127)));
      break;
    case Category::kBarrier:
      t.internal = Internal::kBarrier;
      break;
    case Category::kWait:
      t.internal = Internal::kWait;
      t.vector_wait = vector_wait(t.imm);
      t.lgkm_wait = lgkm_wait(t.imm);
      break;
    case Category::kPriority:
      t.internal = Internal::kPriority;
      break;
    default:
      break;
  }
}

template <class List, u32 kCapacity>
u8 copy_ranges(const List& src, Registers (&dst)[kCapacity], u32 limit) {
  u8 count = 0;
  for (const RegRange& range : src) {
    if (count == kCapacity || range.first >= limit) continue;
    dst[count++] = {range.first, static_cast<u16>(std::min<u32>(range.count, limit - range.first))};
  }
  return count;
}

template <u32 kCapacity>
void add_range(Registers (&dst)[kCapacity], u8& count, Registers range) {
  if (count < kCapacity) dst[count++] = range;
}

void fill_registers(const Inst& inst, TimedInst& t) {
  const Operands operands = operands_of(inst);
  t.vreads = copy_ranges(operands.vreads, t.vread, kTimedVectors);
  t.vwrites = copy_ranges(operands.vwrites, t.vwrite, kTimedVectors);
  t.sreads = copy_ranges(operands.sreads, t.sread, 128);
  t.swrites = copy_ranges(operands.swrites, t.swrite, 128);
  if (operands.reads_scc) add_range(t.sread, t.sreads, {128, 1});
  if (operands.writes_scc) add_range(t.swrite, t.swrites, {128, 1});
  if (operands.writes_exec) add_range(t.swrite, t.swrites, {kExecLo, 2});
  t.dma = operands.lds_dma;
  t.atomic = operands.atomic;
  t.flat = operands.queue == Queue::kFlat;
}

}  // namespace

void StaticTable::fill(u32 pc, TimedInst& slot) {
  Inst inst;
  decode(program_.arch, program_.words, program_.count, pc, inst);
  slot.is_filled = true;
  slot.dwords = inst.dwords;
  if (!inst.op) return;
  const Category category = category_of(inst);
  slot.unit = unit_of(category);
  if (slot.unit == Unit::kVector) vector_times(inst, category, constants_, slot);
  if (slot.unit == Unit::kMatrix) matrix_times(inst, program_.arch, constants_, slot);
  if (slot.unit == Unit::kInternal) internal_times(inst, category, constants_, slot);
  if (slot.unit == Unit::kLds || slot.unit == Unit::kMemory) slot.width = memory_width(*inst.op);
  fill_registers(inst, slot);
}

}  // namespace vgpu
