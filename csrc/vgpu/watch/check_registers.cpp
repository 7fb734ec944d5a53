#include "vgpu/watch/check_registers.h"

#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

constexpr u16 kScalarOrigin = 1000;  // Origin::reg of s0

constexpr u64 low_bits(u32 dwords) { return dwords >= 2 ? ~u64{0} : 0xffffffff; }

}  // namespace

RegisterCheck::RegisterCheck(const Program& program, const Kernel& kernel,
                             const KnownMemory& memory, Findings& findings)
    : program_(program),
      memory_(memory),
      findings_(findings),
      accum_offset_(kernel.accum_offset),
      flags_(kVgprRows * kLanes) {
  shadow_.vgpr = shadow_.acc = flags_.data();
}

// Registers not set by the runner are undefined; they hold the poison word.
void RegisterCheck::start(RegisterState& state, const Wave& wave) {
  state.started = true;
  for (u32 r = 0; r < kVgprRows; ++r) {
    state.vgpr[r] = ~u64{0};
    state.vgpr_origin[r].reg = static_cast<u16>(r < accum_offset_ ? r : 256 + r - accum_offset_);
    if (r) state.vectors.add(r);
  }
  state.vgpr[0] = 0;  // work-item id
  for (u32 r = 0; r < 128; ++r) {
    state.sgpr[r] = wave.sgpr[r] == kPoisonWord ? ~u32{0} : 0;
    state.sgpr_origin[r].reg = static_cast<u16>(kScalarOrigin + r);
    if (state.sgpr[r]) state.scalars.add(r);
  }
  state.scc = true;
  state.scc_origin.reg = kScalarOrigin + kScc;
  state.scratch.assign(u64{wave.scratch_bytes} * kLanes, 0);
}

void RegisterCheck::follow(RegisterState& state, Wave& wave, const Inst& inst,
                           const Operands& operands) {
  if (!state.started) start(state, wave);
  exec_ = wave.exec();
  tests_result_ = false;
  switch (inst.format) {
    case Format::kSopp:
      return check_branch(state, wave, inst);
    case Format::kSop1:
    case Format::kSop2:
    case Format::kSopc:
    case Format::kSopk:
      check_addresses(state, wave, inst, operands);
      return scalar(state, wave, inst, operands);
    case Format::kSmem:
    case Format::kDs:
    case Format::kFlat:
    case Format::kGlobal:
    case Format::kScratch:
    case Format::kMubuf:
    case Format::kMtbuf:
      next_row_ = 0;
      for (LaneBits& lanes : loaded_) lanes.lanes = 0;
      return check_addresses(state, wave, inst, operands);
    default:
      return vector(state, wave, inst, operands);
  }
}

void RegisterCheck::finish(RegisterState& state, const Wave& wave, const Inst& inst,
                           const Operands& operands) {
  if (tests_result_) {  // one defined bit that is set decides the branch
    const ScalarBits bad = scalar_bits(state, inst.dst, dwords_of(inst.op->dst));
    const u64 value = wave.sgpr64(inst.dst) & low_bits(dwords_of(inst.op->dst));
    if (value & ~bad.bits) state.scc = false;
  }
  if (operands.queue == Queue::kNone) return;
  if (inst.format == Format::kSmem) {
    for (const RegRange& range : operands.swrites) {
      for (u32 r = 0; r < range.count; ++r) {
        const LaneBits& loaded = loaded_[r % 32];
        set_bits(state, range.first + r, 1, {loaded.lanes ? 0xffffffff : 0, loaded.origin});
      }
    }
    return;
  }
  if (operands.spread == Spread::kCrossbar) {
    if (!operands.vwrites.size) return;
    const LaneBits result = crossbar(state, const_cast<Wave&>(wave), inst, operands);
    return set_lanes(state, inst.dst, result, exec_);
  }
  for (const RegRange& range : operands.vwrites) {
    for (u32 r = 0; r < range.count; ++r) set_lanes(state, range.first + r, loaded_[r % 32], exec_);
  }
}

// -------------------------------------------------------------------------------- the state

LaneBits RegisterCheck::register_lanes(const RegisterState& state, u32 reg) const {
  const u32 row_idx = row(reg);
  return {state.vgpr[row_idx], state.vgpr_origin[row_idx]};
}

LaneBits RegisterCheck::lanes_of(const RegisterState& state, const RegRange& range) const {
  LaneBits merged;
  for (u32 r = 0; r < range.count; ++r) {
    const u32 row_idx = row(range.first + r);
    if (state.vgpr[row_idx] & ~merged.lanes && !merged.lanes)
      merged.origin = state.vgpr_origin[row_idx];
    merged.lanes |= state.vgpr[row_idx];
  }
  return merged;
}

ScalarBits RegisterCheck::scalar_bits(const RegisterState& state, u32 reg, u32 dwords) const {
  ScalarBits merged;
  for (u32 r = 0; r < dwords && r < 2; ++r) {
    const u32 bits = state.sgpr[(reg + r) & 127];
    if (bits && !merged.bits) merged.origin = state.sgpr_origin[(reg + r) & 127];
    merged.bits |= u64{bits} << (32 * r);
  }
  return merged;
}

ScalarBits RegisterCheck::source_bits(const RegisterState& state, const Src& src,
                                      u32 dwords) const {
  if (src.kind == SrcKind::kSgpr) return scalar_bits(state, src.reg, dwords);
  if (src.kind == SrcKind::kSpecial && src.reg == kScc) {
    return {state.scc ? u64{1} : 0, state.scc_origin};
  }
  return {};
}

// Returns the undefined lanes of a source; an undefined scalar makes all lanes undefined.
LaneBits RegisterCheck::source_lanes(const RegisterState& state, const Src& src, u32 dwords) const {
  if (src.kind == SrcKind::kVgpr) {
    return lanes_of(state, {src.reg, static_cast<u8>(dwords), Role::kSource});
  }
  const ScalarBits bits = source_bits(state, src, dwords);
  return {bits.bits & low_bits(dwords) ? ~u64{0} : 0, bits.origin};
}

void RegisterCheck::set_lanes(RegisterState& state, u32 reg, const LaneBits& value, u64 mask) {
  const u32 row_idx = row(reg);
  state.vgpr[row_idx] = (state.vgpr[row_idx] & ~mask) | (value.lanes & mask);
  if (value.lanes & mask) state.vgpr_origin[row_idx] = value.origin;
  state.vgpr[row_idx] ? state.vectors.add(row_idx) : state.vectors.remove(row_idx);
}

void RegisterCheck::set_bits(RegisterState& state, u32 reg, u32 dwords, const ScalarBits& value) {
  for (u32 r = 0; r < dwords; ++r) {
    const u32 bits = r < 2 ? static_cast<u32>(value.bits >> (32 * r)) : 0;
    const u32 row_idx = (reg + r) & 127;
    state.sgpr[row_idx] = bits;
    if (bits) state.sgpr_origin[row_idx] = value.origin;
    bits ? state.scalars.add(row_idx) : state.scalars.remove(row_idx);
  }
}

// -------------------------------------------------------------------------------- deciding uses

// Checks addresses, descriptors, jump targets and lane numbers.
void RegisterCheck::check_addresses(RegisterState& state, const Wave& wave, const Inst& inst,
                                    const Operands& operands) {
  address_undefined_ = false;
  for (const RegRange& range : operands.vreads) {
    if (range.role != Role::kAddress) continue;
    const LaneBits bad = lanes_of(state, range);
    if (!(bad.lanes & exec_)) continue;
    report(wave, inst, static_cast<u32>(std::countr_zero(bad.lanes & exec_)),
           "the address in " + vector_register(range.first), bad.origin);
    address_undefined_ = true;
    for (u32 r = 0; r < range.count; ++r) set_lanes(state, range.first + r, {}, exec_);
  }
  const bool never_written =
      !exec_ && operands.queue != Queue::kNone && inst.format != Format::kSmem;
  if (never_written) return;
  for (const RegRange& range : operands.sreads) {
    if (range.role != Role::kAddress) continue;
    for (u32 r = 0; r < range.count; ++r) {
      const ScalarBits bad = scalar_bits(state, range.first + r, 1);
      if (!bad.bits) continue;
      report(wave, inst, kNoLane, "the address in " + scalar_register(range.first + r), bad.origin);
      address_undefined_ = true;
      set_bits(state, range.first, range.count, {});
      break;
    }
  }
}

// A VCC branch is defined as soon as one defined bit is set.
void RegisterCheck::check_branch(RegisterState& state, const Wave& wave, const Inst& inst) {
  const u32 reads = inst.op->flow == Flow::kBranch ? inst.op->effects : 0;
  if (reads & kReadsScc && state.scc) {
    report(wave, inst, kNoLane, "the condition in scc", state.scc_origin);
    state.scc = false;
  }
  if (!(reads & kReadsVcc)) return;
  const ScalarBits bad = scalar_bits(state, kVccLo, 2);
  if (!bad.bits || wave.vcc() & ~bad.bits) return;
  report(wave, inst, kNoLane, "the condition in vcc", bad.origin);
  set_bits(state, kVccLo, 2, {});
}

void RegisterCheck::check_exec(RegisterState& state, const Wave& wave, const Inst& inst,
                               const ScalarBits& undefined) {
  const u64 bad = undefined.bits & wave.launched_lanes;
  if (bad) {
    report(wave, inst, static_cast<u32>(std::countr_zero(bad)), "a bit of exec", undefined.origin);
  }
  set_bits(state, kExecLo, 2, {});
}

std::string RegisterCheck::origin_text(const Origin& origin) const {
  if (origin.kind == Origin::kRegister) {
    if (origin.reg == kScalarOrigin + kScc) return "scc was never written";
    return (origin.reg >= kScalarOrigin
                ? scalar_register(static_cast<u32>(origin.reg - kScalarOrigin))
                : vector_register(origin.reg)) +
           " was never written";
  }
  static constexpr const char* kOriginNames[] = {"", "LDS", "private memory", "global memory"};
  return std::string("it was read from ") + kOriginNames[origin.kind] +
         " that was never written, at text offset " + hex(origin.index * 4) + " (" +
         instruction_text(program_, origin.index) + ")";
}

void RegisterCheck::report(const Wave& wave, const Inst& inst, u32 lane,
                           const std::string& description, const Origin& origin,
                           const u64* address) {
  if (findings_.contains(inst.index, FindingKind::kUninitialised)) return;
  Finding finding(wave, lane);
  if (address) finding.with_address(*address);
  finding.detail = description + " is undefined: " + origin_text(origin);
  findings_.add(inst.index, FindingKind::kUninitialised, std::move(finding));
}

void RegisterCheck::report_memory(const Wave& wave, const Inst& inst, u32 lane, u64 address,
                                  const std::string& detail) {
  findings_.report(inst.index, FindingKind::kUninitialised,
                   Finding(wave, lane).with_address(address), detail);
}

}  // namespace vgpu
