#include "vgpu/watch/check_hazards.h"

#include <algorithm>

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

using Unit = HazardState::Unit;
using Matrix = HazardState::Matrix;

constexpr u64 kMaxDistance = 20;  // longest required distance
constexpr u32 kFromVector = 2;    // VALU result to matrix instruction
constexpr u32 kFromExec = 4;      // EXEC written by v_cmpx, to matrix instruction
constexpr u32 kDoubleToFma = 2;   // f64 matrix instruction to v_fma_f64, independent of registers
// LLVM looks back no farther, although gfx950 needs up to 20.
constexpr u32 kMaxDistanceOfLlvm = 19;
constexpr u32 kShortPasses = 2;  // of the 4 x 4 shapes

bool is_memory(const Inst& inst) { return inst.format >= Format::kDs; }

// Results need one more wait state on some architectures, except for the shortest shapes.
bool needs_extra_state(const Matrix& m, Arch arch) {
  return arch_traits(arch).late_matrix && m.passes != kShortPasses;
}

// Returns the distance from a result to its use by a vector or memory instruction, or as A or B.
u32 read_distance(const Matrix& m, Arch arch, bool memory) {
  switch (m.unit) {
    case Unit::kXdl:
      return std::min(m.passes + 3 + needs_extra_state(m, arch), kMaxDistanceOfLlvm);
    case Unit::kSingle:
      return m.passes + 2;
    default:
      if (m.small) return memory ? 9 : 6;
      return memory ? 18 : arch_traits(arch).f64_to_vector;
  }
}

u32 overwrite_distance(const Matrix& m, Arch arch) {
  if (m.unit == Unit::kDouble) return m.small ? 6 : 11;
  return read_distance(m, arch, false);
}

// A matrix instruction that accumulates in the whole result follows without a gap, except after the
// shortest shapes.
u32 whole_addend_distance(const Matrix& m, const Matrix& next) {
  if (m.small_double() && next.small_double()) return 4;
  return m.passes == kShortPasses ? 2 : 0;
}

u32 partial_addend_distance(const Matrix& m, const Matrix& next, Arch arch) {
  const bool xdl = next.unit == Unit::kXdl;
  switch (m.unit) {
    case Unit::kXdl:
      return m.passes + 1 + (xdl ? arch_traits(arch).late_matrix : needs_extra_state(m, arch));
    case Unit::kSingle:
      return xdl ? 0 : m.passes;
    default:
      if (xdl) return 0;
      return m.small ? 4 : arch_traits(arch).f64_to_partial;
  }
}

Unit matrix_unit(const MatrixShape& shape) {
  return shape.a == Elem::kF64 ? Unit::kDouble : shape.a == Elem::kF32 ? Unit::kSingle : Unit::kXdl;
}

}  // namespace

void HazardCheck::before_inst(HazardState& state, const Wave& wave, const Inst& inst,
                              const Operands& operands) {
  ++state.clock;
  if (inst.format < Format::kVop1) {
    if (inst.op->category == Category::kNop) state.clock += static_cast<u32>(inst.imm) & 15;
    return;
  }
  if (operands.spread == Spread::kMatrix) return issue_matrix(state, wave, inst, operands);
  if (state.matrix_count) check_vector(state, wave, inst, operands);
  if (is_memory(inst)) return;
  if (operands.writes_exec) state.exec_write = {state.clock, inst.index, {}};
  if (operands.dot) return;  // hardware stalls matrix instructions for these
  for (const RegRange& range : operands.vwrites) {
    state.vectors[state.vector_count++ % HazardState::kVectors] = {state.clock, inst.index,
                                                                   rows(range.first, range.count)};
  }
}

// Returns the last matrix instruction that wrote these rows, null if it is too far back.
const Matrix* HazardCheck::writer(const HazardState& state, const Rows& rows) const {
  const u32 count = state.matrix_count;
  for (u32 age = 1; age <= count && age <= HazardState::kMatrices; ++age) {
    const Matrix& m = state.matrices[(count - age) % HazardState::kMatrices];
    if (state.clock - m.time > kMaxDistance) return nullptr;
    if (m.result.overlaps(rows)) return &m;
  }
  return nullptr;
}

void HazardCheck::check_vector(const HazardState& state, const Wave& wave, const Inst& inst,
                               const Operands& operands) {
  const Arch arch = wave.group->arch;
  const Matrix& latest = state.matrices[(state.matrix_count - 1) % HazardState::kMatrices];
  if (latest.unit == Unit::kDouble && inst.op->flags & kDoubleFma) {
    require(state, wave, inst, "follows", latest.time, latest.index, kDoubleToFma);
  }
  for (const RegRange& range : operands.vreads) {
    if (const Matrix* m = writer(state, rows(range.first, range.count))) {
      require(state, wave, inst, "reads the result of", m->time, m->index,
              read_distance(*m, arch, is_memory(inst)));
    }
  }
  for (const RegRange& range : operands.vwrites) {
    const Rows written = rows(range.first, range.count);
    if (const Matrix* m = writer(state, written)) {
      require(state, wave, inst, "overwrites the result of", m->time, m->index,
              overwrite_distance(*m, arch));
    }
    const u32 count = is_memory(inst) ? 0 : state.matrix_count;  // loaded data arrives later
    for (u32 age = 1; age <= count && age <= HazardState::kMatrices; ++age) {
      const Matrix& m = state.matrices[(count - age) % HazardState::kMatrices];
      if (state.clock - m.time > kMaxDistance) break;
      if (m.unit != Unit::kXdl || !m.addend.overlaps(written)) continue;
      require(state, wave, inst, "overwrites the addend of", m.time, m.index, m.passes - 1);
    }
  }
}

void HazardCheck::issue_matrix(HazardState& state, const Wave& wave, const Inst& inst,
                               const Operands& operands) {
  // The matrix core accepts one instruction at a time.
  if (state.clock < state.matrix_free) state.clock = state.matrix_free;
  const MatrixShape& shape = *matrix_shape(inst);
  const auto is_addend = [&](const RegRange& range) {
    return shape.sparse ? range.first == inst.dst
                        : inst.src[2].kind == SrcKind::kVgpr && range.first == inst.src[2].reg &&
                              range.count == matrix_dwords(shape, inst, 2);
  };
  Matrix next = {state.clock,
                 inst.index,
                 matrix_passes(shape, inst, wave.group->arch),
                 matrix_unit(shape),
                 shape.dim == 4,
                 rows(inst.dst, matrix_dwords(shape, inst, 3)),
                 {}};
  require(state, wave, inst, "runs with the EXEC of", state.exec_write.time, state.exec_write.index,
          kFromExec);
  for (const RegRange& range : operands.vreads) {
    const Rows read = rows(range.first, range.count);
    check_vectors(state, wave, inst, read);
    if (is_addend(range)) {
      next.addend = read;
      check_addend(state, wave, inst, read, next);
    } else {
      check_input(state, wave, inst, read);
    }
  }
  state.matrix_free = state.clock + next.passes;
  state.matrices[state.matrix_count++ % HazardState::kMatrices] = next;
}

void HazardCheck::check_vectors(const HazardState& state, const Wave& wave, const Inst& inst,
                                const Rows& rows) {
  for (const HazardState::Vector& v : state.vectors) {
    if (!v.result.overlaps(rows)) continue;
    require(state, wave, inst, "reads the result of", v.time, v.index, kFromVector);
  }
}

void HazardCheck::check_input(const HazardState& state, const Wave& wave, const Inst& inst,
                              const Rows& rows) {
  if (const Matrix* m = writer(state, rows)) {
    require(state, wave, inst, "reads the result of", m->time, m->index,
            read_distance(*m, wave.group->arch, false));
  }
}

void HazardCheck::check_addend(const HazardState& state, const Wave& wave, const Inst& inst,
                               const Rows& rows, const Matrix& next) {
  const Matrix* m = writer(state, rows);
  if (!m) return;
  if (m->result.equals(rows)) {
    require(state, wave, inst, "adds to the result of", m->time, m->index,
            whole_addend_distance(*m, next));
  } else {
    require(state, wave, inst, "adds to a part of the result of", m->time, m->index,
            partial_addend_distance(*m, next, wave.group->arch));
  }
}

void HazardCheck::require(const HazardState& state, const Wave& wave, const Inst& inst,
                          const char* description, u64 time, u32 index, u32 distance) {
  const u64 num_states = state.clock - time - 1;
  if (num_states >= distance || findings_.contains(inst.index, FindingKind::kMatrixHazard)) return;
  Finding finding(wave);
  finding.detail = std::string(description) + " the instruction at text offset " + hex(index * 4) +
                   " (" + instruction_text(program_, index) + ") after " +
                   std::to_string(num_states) + " wait states, it needs " +
                   std::to_string(distance);
  findings_.add(inst.index, FindingKind::kMatrixHazard, std::move(finding));
}

}  // namespace vgpu
