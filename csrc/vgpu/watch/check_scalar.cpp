// Undefined bits through scalar instructions.
#include "vgpu/exec/lanes.h"
#include "vgpu/watch/check_registers.h"

namespace vgpu {
namespace {

enum Sop1 : u32 {
  kMov32,
  kMov64,
  kCmov32,
  kCmov64,
  kNot32,
  kNot64,
  kSext8 = 22,
  kSext16 = 23,
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
  kMul = 36,
  kBfeFirst = 37,  // u32, i32, u64, i64
  kBfeLast = 40,
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

// A field moved down; a sign bit goes to all bits above it.
constexpr u64 bit_field(u64 undefined, u32 first, u64 width, bool is_signed) {
  if (!width) return 0;
  const u64 mask = width < 64 ? (u64{1} << width) - 1 : ~u64{0};
  const u64 field = undefined >> first & mask;
  return is_signed && field >> (width < 64 ? width - 1 : 63) & 1 ? field | ~mask : field;
}

// In the order of Sop2 from kAnd32 on, which is that of the saveexec instructions.
u64 bitwise(u32 kind, const Partly& a, const Partly& b) {
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

// Both sources, and whether they are the same register.
struct Sources {
  Partly a, b;
  bool same;
};

u64 sop2_undefined(u32 opcode, const Sources& s) {
  const Partly &a = s.a, &b = s.b;
  const u64 both = a.undefined | b.undefined;
  if (opcode >= kAnd32 && opcode <= kXnor64) {
    const u32 kind = (opcode - kAnd32) / 2;
    const bool cancels = s.same && (kind == 2 || kind == 3 || kind == 4 || kind == 7);
    return cancels ? 0 : bitwise(kind, a, b);
  }
  if (opcode >= kLshl32 && opcode <= kLshr64) {
    const u32 shift = static_cast<u32>(b.value) & (opcode & 1 ? 63 : 31);
    if (b.undefined) return ~u64{0};
    return opcode <= kLshl64 ? a.undefined << shift : a.undefined >> shift;
  }
  if (opcode >= kBfeFirst && opcode <= kBfeLast) {
    const u32 first = static_cast<u32>(b.value) & (opcode >= kBfeFirst + 2 ? 63 : 31);
    if (b.undefined) return ~u64{0};
    return bit_field(a.undefined, first, b.value >> 16 & 127, (opcode - kBfeFirst) & 1);
  }
  if (opcode >= kPackLl && opcode <= kPackHh) {
    const u64 low = opcode == kPackHh ? a.undefined >> 16 & 0xffff : a.undefined & 0xffff;
    const u64 high = opcode == kPackLl ? b.undefined << 16 : b.undefined;
    return low | (high & 0xffff0000);
  }
  if (opcode <= 5 || opcode == kMul) {  // additions and subtractions; x - x is 0
    return s.same && (opcode == 1 || opcode == 3) ? 0 : smear(both);
  }
  return ~u64{0};
}

u64 sop1_undefined(u32 opcode, const Partly& a, u64 exec_mask) {
  const Partly exec = {exec_mask, 0};
  if (opcode == kMov32 || opcode == kMov64 || opcode == kNot32 || opcode == kNot64) {
    return a.undefined;
  }
  if (opcode >= kSaveFirst && opcode <= kSaveLast) return bitwise(opcode - kSaveFirst, a, exec);
  switch (opcode) {
    case kSext8:
      return bit_field(a.undefined, 0, 8, true);
    case kSext16:
      return bit_field(a.undefined, 0, 16, true);
    case kSaveAndn1:
    case kWriteAndn1:
      return and_undefined(~a, exec);
    case kWriteAndn2:
      return and_undefined(a, ~exec);
    case kSaveOrn1:
      return or_undefined(~a, exec);
    case kGetpc:
    case kSwappc:
      return 0;
    default:
      return opcode >= kMovrels32 && opcode <= kMovreld64 ? 0 : ~u64{0};
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
  ScalarBits all;  // everything that is read
  for (const RegRange& range : operands.sreads) {
    const ScalarBits bits = scalar_bits(state, range.first, range.count);
    if (bits.bits && !all.bits) all.origin = bits.origin;
    all.bits |= bits.bits;
  }
  const bool by_scc = operands.reads_scc && state.scc;
  if (by_scc && !all.bits) all.origin = state.scc_origin;
  scc_undefined = all.bits || by_scc;
  if (!scc_undefined) return {};

  const auto part = [&](u32 s) -> Partly {
    return {read_scalar64(wave, inst.src[s]),
            source_bits(state, inst.src[s], dwords_of(inst.src[s].type)).bits};
  };
  const u64 wide = dwords_of(inst.op->dst) == 2 ? ~u64{0} : 0xffffffff;
  u64 undefined = ~u64{0};
  if (inst.format == Format::kSop2) {
    const bool same = inst.src[0].kind == SrcKind::kSgpr && inst.src[1].kind == SrcKind::kSgpr &&
                      inst.src[0].reg == inst.src[1].reg;
    const Sources sources = {part(0), part(1), same};
    const Partly &a = sources.a, &b = sources.b;
    if (opcode == kCselect32 || opcode == kCselect64) {
      undefined = by_scc     ? a.undefined | b.undefined | (a.value ^ b.value)
                  : wave.scc ? a.undefined
                             : b.undefined;
    } else if (!by_scc) {  // else a carry that is undefined
      undefined = sop2_undefined(opcode, sources);
    }
    scc_undefined = undefined & wide;
  } else if (opcode == kCmov32 || opcode == kCmov64) {
    const u64 old = scalar_bits(state, inst.dst, 2).bits;
    if (inst.format == Format::kSop1 && !by_scc) undefined = wave.scc ? part(0).undefined : old;
  } else if (inst.format == Format::kSop1 && opcode >= kBitset0 && opcode <= kBitset3) {
    undefined = scalar_bits(state, inst.dst, 2).bits;
  } else if (inst.format == Format::kSop1) {
    undefined = sop1_undefined(opcode, part(0), wave.exec());
    scc_undefined = undefined & wide;
  } else if (inst.format == Format::kSopk) {
    undefined = opcode == kMovk || opcode == kGetreg || opcode == kCall ? 0 : smear(all.bits);
  }
  return {undefined & wide, all.origin};
}

}  // namespace vgpu
