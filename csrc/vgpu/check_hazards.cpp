#include "check_hazards.h"

#include "mfma.h"

namespace vgpu {
namespace {

using Unit = HazardState::Unit;
using Matrix = HazardState::Matrix;

constexpr u32 kNopOpcode = 0;
constexpr u64 kFarthest = 20;   // no distance is longer
constexpr u32 kFromVector = 2;  // a vector instruction's result to a matrix instruction

bool is_memory(const Inst& inst) { return inst.format >= Format::kDs; }

// The result's use by a vector or memory instruction, or as A or B of a matrix instruction.
u32 read_distance(const Matrix& m, Arch arch, bool memory) {
  switch (m.unit) {
    case Unit::kXdl:
      return m.passes + 3 + (arch == Arch::kGfx950 && m.passes > 2);
    case Unit::kSingle:
      return m.passes + 2;
    default:
      if (memory) return m.passes <= 4 ? 9 : 18;
      return m.passes <= 4 ? 6 : 11;
  }
}

u32 overwrite_distance(const Matrix& m) {
  switch (m.unit) {
    case Unit::kXdl:
      return m.passes + 3;
    case Unit::kSingle:
      return m.passes + 2;
    default:
      return m.passes <= 4 ? 6 : 11;
  }
}

// The next matrix instruction that adds to the whole result follows without a gap, except behind
// the shortest ones; one that adds to a part of it does not.
u32 addend_distance(const Matrix& m, Unit unit, bool whole) {
  if (m.unit == Unit::kDouble) return 0;
  if (whole) return m.passes == 2 ? 2 : 0;
  if (m.unit == Unit::kXdl) return m.passes + 1;
  return unit == Unit::kXdl ? 0 : m.passes;
}

Unit unit_of(const MatrixShape& shape) {
  return shape.a == Elem::kF64 ? Unit::kDouble : shape.a == Elem::kF32 ? Unit::kSingle : Unit::kXdl;
}

}  // namespace

void HazardCheck::before(HazardState& state, const Wave& wave, const Inst& inst,
                         const Operands& operands) {
  ++state.now;
  if (inst.format < Format::kVop1) {
    if (inst.format == Format::kSopp && inst.op->opcode == kNopOpcode) {
      state.now += static_cast<u32>(inst.imm) & 15;
    }
    return;
  }
  if (operands.flow == Flow::kMatrix) return issue_matrix(state, wave, inst, operands);
  if (state.matrix_count) check_vector(state, wave, inst, operands);
  if (is_memory(inst)) return;
  for (const RegRange& range : operands.vwrites) {
    state.vectors[state.vector_count++ % HazardState::kVectors] = {state.now, inst.index,
                                                                   rows(range.first, range.count)};
  }
}

// The matrix instruction that wrote these rows last, if it is near.
const Matrix* HazardCheck::writer(const HazardState& state, const Rows& rows) const {
  const u32 count = state.matrix_count;
  for (u32 back = 1; back <= count && back <= HazardState::kMatrices; ++back) {
    const Matrix& m = state.matrices[(count - back) % HazardState::kMatrices];
    if (state.now - m.time > kFarthest) return nullptr;
    if (m.result.overlaps(rows)) return &m;
  }
  return nullptr;
}

void HazardCheck::check_vector(const HazardState& state, const Wave& wave, const Inst& inst,
                               const Operands& operands) {
  const Arch arch = wave.group->arch;
  for (const RegRange& range : operands.vreads) {
    if (const Matrix* m = writer(state, rows(range.first, range.count))) {
      need(state, wave, inst, "reads the result of", m->time, m->index,
           read_distance(*m, arch, is_memory(inst)));
    }
  }
  for (const RegRange& range : operands.vwrites) {
    const Rows written = rows(range.first, range.count);
    if (const Matrix* m = writer(state, written)) {
      need(state, wave, inst, "overwrites the result of", m->time, m->index,
           overwrite_distance(*m));
    }
    const u32 count = state.matrix_count;
    for (u32 back = 1; back <= count && back <= HazardState::kMatrices; ++back) {
      const Matrix& m = state.matrices[(count - back) % HazardState::kMatrices];
      if (state.now - m.time > kFarthest) break;
      if (m.unit != Unit::kXdl || !m.addend.overlaps(written)) continue;
      need(state, wave, inst, "overwrites the addend of", m.time, m.index, m.passes - 1);
    }
  }
}

void HazardCheck::issue_matrix(HazardState& state, const Wave& wave, const Inst& inst,
                               const Operands& operands) {
  // The matrix core takes one instruction at a time.
  if (state.now < state.matrix_free) state.now = state.matrix_free;
  const MatrixShape& shape = *matrix_shape(inst);
  const Unit unit = unit_of(shape);
  const auto is_addend = [&](const RegRange& range) {
    return shape.sparse ? range.first == inst.dst
                        : inst.src[2].kind == SrcKind::kVgpr && range.first == inst.src[2].reg &&
                              range.count == matrix_dwords(shape, inst, 2);
  };
  Rows addend;
  for (const RegRange& range : operands.vreads) {
    const Rows read = rows(range.first, range.count);
    for (const HazardState::Vector& v : state.vectors) {
      if (v.time && v.result.overlaps(read)) {
        need(state, wave, inst, "reads the result of", v.time, v.index, kFromVector);
      }
    }
    if (is_addend(range)) {
      addend = read;
      check_addend(state, wave, inst, read, unit);
    } else {
      check_input(state, wave, inst, read);
    }
  }
  const u32 passes = matrix_passes(shape, inst, wave.group->arch);
  state.matrix_free = state.now + passes;
  state.matrices[state.matrix_count++ % HazardState::kMatrices] = {
      state.now, inst.index, passes, unit, rows(inst.dst, matrix_dwords(shape, inst, 3)), addend};
}

void HazardCheck::check_input(const HazardState& state, const Wave& wave, const Inst& inst,
                              const Rows& rows) {
  if (const Matrix* m = writer(state, rows)) {
    need(state, wave, inst, "reads the result of", m->time, m->index,
         read_distance(*m, wave.group->arch, false));
  }
}

void HazardCheck::check_addend(const HazardState& state, const Wave& wave, const Inst& inst,
                               const Rows& rows, HazardState::Unit unit) {
  if (const Matrix* m = writer(state, rows)) {
    need(state, wave, inst, "adds to a part of the result of", m->time, m->index,
         addend_distance(*m, unit, m->result.same(rows)));
  }
}

void HazardCheck::need(const HazardState& state, const Wave& wave, const Inst& inst,
                       const char* what, u64 time, u32 index, u32 distance) {
  const u64 between = state.now - time - 1;
  if (between >= distance || findings_.known(inst.index, FindingKind::kMatrixHazard)) return;
  Finding finding(wave);
  finding.detail = std::string(what) + " the instruction at text offset " + hex(index * 4) + " (" +
                   instruction_text(program_, index) + ") after " + std::to_string(between) +
                   " wait states, it needs " + std::to_string(distance);
  findings_.add(inst.index, FindingKind::kMatrixHazard, std::move(finding));
}

}  // namespace vgpu
