// Undefined bits through scalar instructions.
#include "check_registers.h"
#include "lanes.h"

namespace vgpu {
namespace {

enum Sop1 : u32 {
  kMov32,
  kMov64,
  kCmov32,
  kCmov64,
  kNot32,
  kNot64,
  kBitset0 = 24,
  kBitset3 = 27,
  kGetpc = 28,
  kSetpc = 29,
  kSwappc = 30,
  kSaveFirst = 32,
  kSaveLast = 39,
  kMovrels32 = 42,
  kMovreld64 = 45,
  kSaveAndn1 = 51,
  kSaveOrn1 = 52,
  kWriteAndn1 = 53,
  kWriteAndn2 = 54,
};
enum Sop2 : u32 {
  kCselect32 = 10,
  kCselect64 = 11,
  kAnd32 = 12,
  kAnd64,
  kOr32,
  kOr64,
  kXor32,
  kXor64,
  kAndn2_32,
  kAndn2_64,
  kOrn2_32,
  kOrn2_64,
  kNand32,
  kNand64,
  kNor32,
  kNor64,
  kXnor32,
  kXnor64,
  kLshl32,
  kLshl64,
  kLshr32,
  kLshr64,
  kPackLl = 50,
  kPackLh = 51,
  kPackHh = 52,
};
enum Sopk : u32 { kMovk = 0, kCmovk = 1, kMulk = 15, kGetreg = 17, kCall = 21 };

// A value of which some bits are undefined.
struct Partly {
  u64 value, undefined;
  constexpr u64 maybe_one() const { return value | undefined; }
  constexpr u64 maybe_zero() const { return ~value | undefined; }
};

constexpr Partly operator~(const Partly& a) { return {~a.value, a.undefined}; }

// A zero on one side, or a one for or, decides the bit.
constexpr u64 and_undefined(const Partly& a, const Partly& b) {
  return (a.undefined | b.undefined) & a.maybe_one() & b.maybe_one();
}
constexpr u64 or_undefined(const Partly& a, const Partly& b) {
  return (a.undefined | b.undefined) & a.maybe_zero() & b.maybe_zero();
}
// Carries go upwards.
constexpr u64 smear(u64 undefined) { return undefined | (0 - undefined); }

u64 bitwise(u32 kind, const Partly& a,
            const Partly& b) {  // the order of Sop2 from kAnd32, in pairs
  switch (kind) {
    case 0:
    case 5:
      return and_undefined(a, b);  // and, nand
    case 1:
    case 6:
      return or_undefined(a, b);  // or, nor
    case 3:
      return and_undefined(a, ~b);  // andn2
    case 4:
      return or_undefined(a, ~b);  // orn2
    default:
      return a.undefined | b.undefined;  // xor, xnor
  }
}

// The same order as the saveexec instructions: and, or, xor, andn2, orn2, nand, nor, xnor.
u64 save_exec(u32 kind, const Partly& a, const Partly& exec) {
  switch (kind) {
    case 0:
    case 5:
      return and_undefined(a, exec);
    case 1:
    case 6:
      return or_undefined(a, exec);
    case 3:
      return and_undefined(a, ~exec);
    case 4:
      return or_undefined(a, ~exec);
    default:
      return a.undefined | exec.undefined;
  }
}

}  // namespace

void RegisterCheck::scalar(RegisterState& state, const Wave& wave, const Inst& inst,
                           const Operands& operands) {
  bool scc_undefined = false;
  const u32 opcode = inst.op->opcode;
  ScalarBits result = scalar_result(state, wave, inst, operands, scc_undefined);
  const bool saves =
      inst.format == Format::kSop1 && ((opcode >= kSaveFirst && opcode <= kSaveLast) ||
                                       (opcode >= kSaveAndn1 && opcode <= kWriteAndn2));
  if (operands.writes_scc) {
    state.scc = scc_undefined;
    state.scc_origin = result.origin;
    tests_nonzero_ = scc_undefined && inst.format == Format::kSop2 && opcode >= kAnd32;
  }
  if (saves) {
    check_exec(state, wave, inst, result);
    if (opcode < kWriteAndn1) result = {};  // the destination gets EXEC's old value
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

// The undefined bits of the result; for compares and the like only whether SCC is undefined.
ScalarBits RegisterCheck::scalar_result(const RegisterState& state, const Wave& wave,
                                        const Inst& inst, const Operands& operands,
                                        bool& scc_undefined) const {
  const u32 opcode = inst.op->opcode;
  const auto part = [&](u32 s, Origin& origin) -> Partly {
    const ScalarBits bits = source_bits(state, inst.src[s], dwords_of(inst.src[s].type));
    if (bits.bits) origin = bits.origin;
    return {read_scalar64(wave, inst.src[s]), bits.bits};
  };
  ScalarBits all;  // everything that is read
  for (const RegRange& range : operands.sreads) {
    const ScalarBits bits = scalar_bits(state, range.first, range.count);
    if (bits.bits && !all.bits) all.origin = bits.origin;
    all.bits |= bits.bits;
  }
  if (operands.reads_scc && state.scc) {
    if (!all.bits) all.origin = state.scc_origin;
    all.bits |= ~u64{0};
  }
  scc_undefined = all.bits != 0;
  if (!all.bits) return {};
  Origin origin = all.origin;
  const auto result = [&](u64 undefined) { return ScalarBits{undefined, origin}; };

  if (inst.format == Format::kSop2) {
    if (opcode == kCselect32 || opcode == kCselect64) {
      const Partly a = part(0, origin), b = part(1, origin);
      if (!state.scc) return result(wave.scc ? a.undefined : b.undefined);
      return result(a.undefined | b.undefined | (a.value ^ b.value));
    }
    if (opcode >= kAnd32 && opcode <= kXnor64) {
      const bool wide = opcode & 1, same = inst.src[0].kind == SrcKind::kSgpr &&
                                           inst.src[1].kind == SrcKind::kSgpr &&
                                           inst.src[0].reg == inst.src[1].reg;
      const Partly a = part(0, origin), b = part(1, origin);
      const u32 kind = (opcode - kAnd32) / 2;
      const bool cancels = same && (kind == 2 || kind == 3 || kind == 4 || kind == 7);
      const u64 undefined = cancels ? 0 : bitwise(kind, a, b) & (wide ? ~u64{0} : 0xffffffff);
      scc_undefined = undefined != 0;
      return result(undefined);
    }
    if (opcode >= kLshl32 && opcode <= kLshr64) {
      const Partly a = part(0, origin), b = part(1, origin);
      const bool wide = opcode & 1;
      const u32 shift = static_cast<u32>(b.value) & (wide ? 63 : 31);
      if (b.undefined) return result(~u64{0});
      const u64 moved = opcode <= kLshl64 ? a.undefined << shift : a.undefined >> shift;
      scc_undefined = (wide ? moved : moved & 0xffffffff) != 0;
      return result(moved);
    }
    if (opcode >= kPackLl && opcode <= kPackHh) {
      const Partly a = part(0, origin), b = part(1, origin);
      const u64 low = opcode == kPackHh ? a.undefined >> 16 & 0xffff : a.undefined & 0xffff;
      const u64 high = opcode == kPackLl ? b.undefined << 16 : b.undefined & 0xffff0000;
      return result(low | (high & 0xffffffff));
    }
    const bool cancels = opcode <= 3 && inst.src[0].kind == SrcKind::kSgpr &&
                         inst.src[1].kind == SrcKind::kSgpr && inst.src[0].reg == inst.src[1].reg &&
                         (opcode == 1 || opcode == 3);  // s_sub of a register with itself
    if (cancels) scc_undefined = false;
    return result(cancels ? 0 : opcode <= 5 || opcode == 36 ? smear(all.bits) : ~u64{0});
  }
  if (inst.format == Format::kSop1) {
    if (opcode == kMov32 || opcode == kMov64 || opcode == kNot32 || opcode == kNot64) {
      return all;
    }
    if (opcode == kCmov32 || opcode == kCmov64) {
      const ScalarBits old = scalar_bits(state, inst.dst, dwords_of(inst.op->dst));
      const Partly a = part(0, origin);
      if (state.scc) return result(~u64{0});
      return wave.scc ? result(a.undefined) : old;
    }
    if (opcode >= kBitset0 && opcode <= kBitset3) return scalar_bits(state, inst.dst, 2);
    const Partly exec = {wave.exec(), 0};
    if (opcode >= kSaveFirst && opcode <= kSaveLast) {
      const u64 undefined = save_exec(opcode - kSaveFirst, part(0, origin), exec);
      scc_undefined = undefined != 0;
      return result(undefined);
    }
    if (opcode == kSaveAndn1 || opcode == kWriteAndn1) {
      return result(and_undefined(~part(0, origin), exec));
    }
    if (opcode == kWriteAndn2) return result(and_undefined(part(0, origin), ~exec));
    if (opcode == kSaveOrn1) return result(or_undefined(~part(0, origin), exec));
    const bool indirect = opcode >= kMovrels32 && opcode <= kMovreld64;
    if (indirect || opcode == kGetpc || opcode == kSwappc) return {};
    return result(~u64{0});
  }
  if (inst.format == Format::kSopk) {
    if (opcode == kMovk || opcode == kGetreg || opcode == kCall) return {};
    return result(smear(all.bits));
  }
  return result(~u64{0});  // compares: only SCC
}

}  // namespace vgpu
