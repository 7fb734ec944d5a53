#include "vgpu/watch/check_spacing.h"

namespace vgpu {
namespace {

constexpr u32 kAfterDot = 3;
constexpr u32 kAfterStore = 2;

bool is_vector(const Inst& inst) {
  return inst.format >= Format::kVop1 && inst.format <= Format::kVop3px2;
}

// Stores of more than 64 bits read their data while the next instructions run; LDS stores do not. A
// buffer store with an SGPR offset finishes one step earlier (measured on gfx950, LLVM pull request
// 197267).
u32 store_distance(const Inst& inst, const Operands& operands) {
  if (operands.queue != Queue::kVector && operands.queue != Queue::kFlat) return 0;
  if (operands.vwrites.size || operands.atomic || dwords_of(inst.op->src[1]) <= 2) return 0;
  const bool buffer = inst.format == Format::kMubuf || inst.format == Format::kMtbuf;
  return buffer && inst.src[0].kind == SrcKind::kSgpr ? kAfterStore - 1 : kAfterStore;
}

}  // namespace

void SpacingCheck::before_inst(SpacingState& state, const Wave& wave, const Inst& inst,
                               const Operands& operands) {
  ++state.clock;
  if (inst.op->category == Category::kNop) state.clock += static_cast<u32>(inst.imm) & 15;
  if (inst.format < Format::kVop1 || operands.spread == Spread::kMatrix) return;
  if (state.clock <= state.end_time) check(state, wave, inst, operands);
  if (const u32 distance = store_distance(inst, operands)) {
    note(state, state.stores, inst, inst.data0, dwords_of(inst.op->src[1]), distance);
  } else if (operands.dot) {
    note(state, state.dots, inst, inst.dst, 1, kAfterDot);
  }
}

void SpacingCheck::check(const SpacingState& state, const Wave& wave, const Inst& inst,
                         const Operands& operands) {
  for (const RegRange& range : operands.vwrites) {
    const u32 first = row(range.first);
    for (const Entry& store : state.stores) {
      if (state.clock > store.end_time || !is_vector(inst) || !store.overlaps(first, range.count))
        continue;
      report(state, wave, inst, "overwrites the data of", store);
    }
    for (const Entry& dot : state.dots) {
      if (state.clock > dot.end_time || dot.op == inst.op || !dot.overlaps(first, range.count))
        continue;
      report(state, wave, inst, "overwrites the result of", dot);
    }
  }
  for (const RegRange& range : operands.vreads) {
    for (const Entry& dot : state.dots) {
      if (state.clock > dot.end_time || !dot.overlaps(row(range.first), range.count)) continue;
      const bool adds =
          dot.op == inst.op &&
          (inst.op->flags & kReadsDst ? range.first == inst.dst : range.first == inst.src[2].reg);
      if (!adds) report(state, wave, inst, "reads the result of", dot);
    }
  }
}

void SpacingCheck::note(SpacingState& state, Entry (&list)[SpacingState::kEntries],
                        const Inst& inst, u32 reg, u32 count, u32 distance) {
  state.end_time = state.clock + distance;
  list[state.clock % SpacingState::kEntries] = {state.end_time, inst.index, row(reg), count,
                                                inst.op};
}

void SpacingCheck::report(const SpacingState& state, const Wave& wave, const Inst& inst,
                          const char* description, const Entry& entry) {
  if (findings_.contains(inst.index, FindingKind::kHazard)) return;
  Finding finding(wave);
  finding.detail = std::string(description) + " the instruction at text offset " +
                   hex(entry.index * 4) + " (" + instruction_text(program_, entry.index) + "), " +
                   std::to_string(entry.end_time + 1 - state.clock) + " wait states too early";
  findings_.add(inst.index, FindingKind::kHazard, std::move(finding));
}

}  // namespace vgpu
