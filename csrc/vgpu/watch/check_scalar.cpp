// Propagates undefined bits through scalar instructions.
#include "vgpu/exec/lanes.h"
#include "vgpu/watch/check_registers.h"

namespace vgpu {
namespace {

// A value with some undefined bits.
struct PartialBits {
  u64 value, undefined;
  constexpr u64 maybe_one() const { return value | undefined; }
  constexpr u64 maybe_zero() const { return ~value | undefined; }
};

constexpr PartialBits operator~(const PartialBits& a) { return {~a.value, a.undefined}; }

// A defined 0 (for or: 1) on either side decides the bit.
constexpr u64 and_undefined(const PartialBits& a, const PartialBits& b) {
  return (a.undefined | b.undefined) & a.maybe_one() & b.maybe_one();
}
constexpr u64 or_undefined(const PartialBits& a, const PartialBits& b) {
  return (a.undefined | b.undefined) & a.maybe_zero() & b.maybe_zero();
}
// Carries propagate towards higher bits.
constexpr u64 smear(u64 undefined) { return undefined | (0 - undefined); }

// Moves a bit field to bit 0; a sign bit is copied to all higher bits.
constexpr u64 bit_field(u64 undefined, u32 first, u64 width, bool is_signed) {
  if (!width) return 0;
  const u64 mask = width < 64 ? (u64{1} << width) - 1 : ~u64{0};
  const u64 field = undefined >> first & mask;
  return is_signed && field >> (width < 64 ? width - 1 : 63) & 1 ? field | ~mask : field;
}

// Two sources; `bits` is the width of the instruction.
struct Sources {
  PartialBits a, b;
  u32 bits;
  bool same_sources;
};

u64 logic_undefined(Spread spread, const Sources& s) {
  const PartialBits &a = s.a, &b = s.b;
  switch (spread) {
    case Spread::kAnd:
      return and_undefined(a, b);
    case Spread::kOr:
      return or_undefined(a, b);
    case Spread::kAndNot:
      return s.same_sources ? 0 : and_undefined(a, ~b);
    case Spread::kOrNot:
      return s.same_sources ? 0 : or_undefined(a, ~b);
    case Spread::kNotAnd:
      return and_undefined(~a, b);
    case Spread::kNotOr:
      return or_undefined(~a, b);
    default:  // kXor
      return s.same_sources ? 0 : a.undefined | b.undefined;
  }
}

// The second source gives shift amount, offset or width.
u64 field_undefined(Spread spread, const Sources& s) {
  const u32 first = static_cast<u32>(s.b.value) & (s.bits - 1);
  if (s.b.undefined) return ~u64{0};
  if (spread == Spread::kShiftLeft) return s.a.undefined << first;
  if (spread == Spread::kShiftRight) return s.a.undefined >> first;
  return bit_field(s.a.undefined, first, s.b.value >> 16 & 127, spread == Spread::kSignedField);
}

u64 packed_undefined(Spread spread, const Sources& s) {
  const u64 a = s.a.undefined, b = s.b.undefined;
  const u64 low = spread == Spread::kPackHighHigh ? a >> 16 & 0xffff : a & 0xffff;
  const u64 high = spread == Spread::kPackLowLow ? b << 16 : b;
  return low | (high & 0xffff0000);
}

u64 undefined_bits(Spread spread, const Sources& s) {
  switch (spread) {
    case Spread::kNothing:
      return 0;
    case Spread::kCopy:
      return s.a.undefined;
    case Spread::kAnd:
    case Spread::kOr:
    case Spread::kXor:
    case Spread::kAndNot:
    case Spread::kOrNot:
    case Spread::kNotAnd:
    case Spread::kNotOr:
      return logic_undefined(spread, s);
    case Spread::kShiftLeft:
    case Spread::kShiftRight:
    case Spread::kField:
    case Spread::kSignedField:
      return field_undefined(spread, s);
    case Spread::kPackLowLow:
    case Spread::kPackLowHigh:
    case Spread::kPackHighHigh:
      return packed_undefined(spread, s);
    case Spread::kTowardsHigh:
      return smear(s.a.undefined | s.b.undefined);
    case Spread::kDifference:  // x - x is 0
      return s.same_sources ? 0 : smear(s.a.undefined | s.b.undefined);
    case Spread::kByte:
      return bit_field(s.a.undefined, 0, 8, true);
    case Spread::kHalf:
      return bit_field(s.a.undefined, 0, 16, true);
    default:
      return ~u64{0};
  }
}

bool same_register(const Inst& inst) {
  return inst.src[0].kind == SrcKind::kSgpr && inst.src[1].kind == SrcKind::kSgpr &&
         inst.src[0].reg == inst.src[1].reg;
}

}  // namespace

void RegisterCheck::scalar(RegisterState& state, const Wave& wave, const Inst& inst,
                           const Operands& operands) {
  const OpInfo& op = *inst.op;
  bool scc_undefined = false;
  ScalarBits result = scalar_result(state, wave, inst, operands, scc_undefined);
  if (operands.writes_scc) {
    state.scc = scc_undefined;
    state.scc_origin = result.origin;
    tests_result_ = scc_undefined && op.flags & kTestsResult;
  }
  if (operands.writes_exec) {
    check_exec(state, wave, inst, result);
    if (op.flags & kSavesExec) result = {};  // the destination receives EXEC's old value
  }
  for (const RegRange& range : operands.swrites) {
    if ((range.first & ~1u) == kExecLo) {
      result.bits <<= range.first == kExecHi ? 32 : 0;
      check_exec(state, wave, inst, result);
    } else {
      set_bits(state, range.first, range.count, result);
    }
  }
}

// Returns the undefined bits of the result; for compares and similar only whether SCC is undefined.
ScalarBits RegisterCheck::scalar_result(const RegisterState& state, const Wave& wave,
                                        const Inst& inst, const Operands& operands,
                                        bool& scc_undefined) const {
  ScalarBits all_sources;  // union of all sources
  for (const RegRange& range : operands.sreads) {
    const ScalarBits bits = scalar_bits(state, range.first, range.count);
    if (bits.bits && !all_sources.bits) all_sources.origin = bits.origin;
    all_sources.bits |= bits.bits;
  }
  const bool scc = operands.reads_scc && state.scc;
  if (scc && !all_sources.bits) all_sources.origin = state.scc_origin;
  scc_undefined = all_sources.bits || scc;
  if (!scc_undefined) return {};

  const auto partial_source = [&](u32 s) -> PartialBits {
    return {read_scalar64(wave, inst.src[s]),
            source_bits(state, inst.src[s], dwords_of(inst.src[s].type)).bits};
  };
  const Spread spread = operands.spread;
  const u32 dwords = dwords_of(inst.op->dst);
  const u64 wide = dwords == 2 ? ~u64{0} : 0xffffffff;
  const u64 old = scalar_bits(state, inst.dst, 2).bits;
  const bool is_sop1 = inst.format == Format::kSop1;
  const PartialBits a = partial_source(0);
  const PartialBits b = is_sop1 ? PartialBits{wave.exec(), 0} : partial_source(1);
  const bool by_scc = inst.op->effects & kReadsScc && state.scc;  // carry or condition
  u64 undefined = ~u64{0};
  if (spread == Spread::kSelect) {
    undefined = by_scc     ? a.undefined | b.undefined | (a.value ^ b.value)
                : wave.scc ? a.undefined
                           : b.undefined;
  } else if (spread == Spread::kConditional) {
    if (!by_scc) undefined = wave.scc ? a.undefined : old;
  } else if (spread == Spread::kBitset) {
    undefined = old;
  } else if (inst.format == Format::kSopk) {
    undefined = spread == Spread::kNothing ? 0 : smear(all_sources.bits);
  } else if (!by_scc) {
    undefined = undefined_bits(spread, {a, b, 32 * dwords, same_register(inst)});
  }
  const bool compares = inst.format == Format::kSopc || inst.format == Format::kSopk;
  if (!compares) scc_undefined = undefined & wide;
  return {undefined & wide, all_sources.origin};
}

}  // namespace vgpu
