// A row of an opcode table: all that holds for an opcode whatever its operands.
//
// A row is a line: number, mnemonic, operand types, traits, meaning. The macros of a table set the
// traits that its rows have in common; a row that differs joins its own to them with |.
#pragma once

#include <array>
#include <concepts>

#include "vgpu/base/arch.h"

namespace vgpu {

struct Wave;
struct Inst;

using ExecFn = void (*)(Wave&, const Inst&);

enum class Format : u8 {
  kSop1,
  kSop2,
  kSopc,
  kSopk,
  kSopp,
  kSmem,
  kVop1,
  kVop2,
  kVopc,
  kVop3,
  kVop3p,
  kVop3px2,
  kDs,
  kFlat,
  kGlobal,
  kScratch,
  kMubuf,
  kMtbuf,
  kCount,
};

// What an operand holds: decides its width, its inline constants and its neg/abs bits.
enum class Type : u8 {
  kNone,
  kB16,   // 16-bit integer or raw bits, low or high half by op_sel
  kF16,   // half precision
  kBf16,  // bfloat16
  kB32,   // 32-bit integer or raw bits
  kF32,
  kB64,  // 64-bit integer or raw bits
  kF64,
  kPkB16,  // two 16-bit integers in one register
  kPkF16,  // two halves in one register
  kPkBf16,
  kPkF32,  // two floats in a register pair
  kPkB32,  // two raw dwords in a register pair (v_pk_mov_b32)
  kB96,
  kB128,
  kB192,
  kB256,
  kB512,
  kB1024,  // register tuples (MFMA, wide conversions, memory)
};

constexpr u32 dwords_of(Type type) {
  switch (type) {
    case Type::kNone:
      return 0;
    case Type::kB64:
    case Type::kF64:
    case Type::kPkF32:
    case Type::kPkB32:
      return 2;
    case Type::kB96:
      return 3;
    case Type::kB128:
      return 4;
    case Type::kB192:
      return 6;
    case Type::kB256:
      return 8;
    case Type::kB512:
      return 16;
    case Type::kB1024:
      return 32;
    default:
      return 1;
  }
}

// -------------------------------------------------------------------------------- traits

// What its operands are.
enum OpFlag : u32 {
  kReadsDst = 1 << 0,        // the destination is also an input (fmac, swap, *_sr_*, bitset)
  kDstIsSource = 1 << 1,     // SOPK: the destination's field names an input (compares, setreg)
  kMerges = 1 << 2,          // replaces a part of the destination, which kReadsDst says
  kKeepHigh = 1 << 3,        // a 16-bit result leaves the other half of the register alone
  kScalarDst = 1 << 4,       // a VALU op that writes an SGPR (readlane, readfirstlane)
  kCarryIn = 1 << 5,         // reads VCC (VOP2) or src2 (VOP3) as a mask
  kCarryOut = 1 << 6,        // writes VCC (VOP2) or sdst (VOP3) as a mask
  kInlineK = 1 << 7,         // always followed by a 32-bit constant (fmamk, fmaak, setreg_imm32)
  kSignedLiteral = 1 << 8,   // a literal of 64 bits is sign-extended
  kNoVop3 = 1 << 9,          // has no VOP3 encoding
  kMatrix = 1 << 10,         // encoded as MFMA and SMFMAC are: operands may be AGPRs
  kAccDst = 1 << 11,         // v_accvgpr_*: what an AGPR is, the encoding does not say
  kAccSrc = 1 << 12,         //
  kDot = 1 << 13,            // a dot product of the vector ALU
  kDoubleFma = 1 << 14,      // must not follow f64 matrix instructions at once
  kAtomic = 1 << 15,         // memory read, changed, and written in one
  kExchanges = 1 << 16,      // an atomic that takes no regard to the old value
  kTyped = 1 << 17,          // the format in memory is not that of the registers
  kSavesExec = 1 << 18,      // the result goes to EXEC, EXEC's old value to the destination
  kTestsResult = 1 << 19,    // SCC says whether the destination gets something other than 0
  kKnownAtRunTime = 1 << 20  // which registers it or what follows touches
};

// Registers that it reads or writes though no operand names them. (VCC of a carry or a compare is
// an operand, sdst, that VOP2 and VOPC fix.)
enum Effect : u16 {
  kReadsScc = 1 << 0,
  kWritesScc = 1 << 1,
  kReadsVcc = 1 << 2,
  kWritesVcc = 1 << 3,
  kReadsExec = 1 << 4,  // the lanes that take part, for most
  kWritesExec = 1 << 5,
  kReadsM0 = 1 << 6,
  kWritesM0 = 1 << 7,
  kWritesMode = 1 << 8,
};

// What issues it, and at which rate. A buffer load with `lds` is kLdsDma (category_of).
enum class Category : u8 {
  kNone,
  kSalu,
  kSmem,
  kValu,
  kTrans,    // a quarter of the rate: reciprocals, roots, exp, log, sin, cos
  kPacked,   // two floats a lane, one after the other
  kQuarter,  // a quarter of the rate: products of 32-bit integers, sums over bytes
  kMfma,
  kLds,
  kGws,
  kVmemLoad,
  kVmemStore,
  kVmemAtomic,
  kLdsDma,     // memory to LDS
  kVmemCache,  // write-back and invalidation
  kBranch,
  kMessage,  // to the host, the trace, the debugger; instruction cache
  kWait,     // s_waitcnt
  kNop,
  kSleep,
  kBarrier,
  kPriority,
  kInternal,  // the wave's own state: halt, wake-up
};

// Where the wave goes on.
enum class Flow : u8 {
  kNext,
  kJump,      // to the offset
  kBranch,    // there, or to the next
  kCall,      // there; the destination gets the place behind it
  kIndirect,  // to what a register says
  kBarrier,   // to the next, with the whole workgroup
  kEnd,
  kTrap,  // the launch ends
};

// Assembler text where it is not the format's usual one.
enum class Syntax : u8 {
  kUsual,
  kBare,              // SOPP: no operand
  kHex,               // SOPP: the operand is a set of bits
  kIndexMode,         // gpr_idx(SRC0,DST): in SOPC's second field, SOPP's operand
  kHardwareRegister,  // hwreg(MODE, 0, 4)
  kConstantSecond,    // v_fmamk: the constant is the second of three sources
  kMixed,             // op_sel_hi names halves; usual are none
  kByFormat,          // A and B have as many registers as CBSZ and BLGP say
  kNegated,           // the field of BLGP negates A, B and C
  kTwoOffsets,        // DS: offset0 and offset1
};

// How what is undefined in the sources comes to the result.
enum class Spread : u8 {
  kAny,  // any undefined source makes all of it undefined
  kNothing,
  // Vector instructions, lane by lane.
  kSelect,     // v_cndmask, s_cselect
  kCancels,    // x ^ x, x - x are 0
  kRows,       // register by register: v_mov_b64
  kPair,       // packed 32-bit: op_sel names a register of each pair
  kUpwards,    // 64-bit integers: the low result depends on low words only; scalars: carries
  kDownwards,  // shifts to the right: the high result on high words only
  kBytes,      // v_perm: the selector says which source
  kReadLane,
  kReadFirst,
  kWriteLane,
  kSwap,
  kPermlane,
  kMatrix,
  kCrossbar,    // ds_bpermute and the like: lanes from lanes
  kTransposed,  // what 16 lanes read goes to these 16 lanes
  // Scalar instructions, bit by bit; where there is one source, EXEC is the other.
  kCopy,
  kAnd,
  kOr,
  kXor,
  kAndNot,  // a & ~b
  kOrNot,   // a | ~b
  kNotAnd,  // ~a & b
  kNotOr,   // ~a | b
  kDifference,
  kShiftLeft,
  kShiftRight,
  kField,
  kSignedField,
  kByte,  // sign-extended
  kHalf,  // sign-extended
  kPackLowLow,
  kPackLowHigh,
  kPackHighHigh,
  kConditional,  // the source or the old value
  kBitset,
};

// Floating-point operations of a lane: a fused multiply-add is two.
enum Flops : u8 { kFlops1 = 1, kFlops2 = 2, kFlops4 = 4 };

struct Traits {
  u32 flags = 0;    // of OpFlag
  u16 effects = 0;  // of Effect
  u8 archs = 0;     // of ArchMask; 0: all
  u8 flops = 0;
  Category category = Category::kNone;
  Flow flow = Flow::kNext;
  Syntax syntax = Syntax::kUsual;
  Spread spread = Spread::kAny;

  constexpr Traits() = default;
  constexpr Traits(OpFlag x) : flags(x) {}
  constexpr Traits(Effect x) : effects(x) {}
  constexpr Traits(ArchMask x) : archs(x) {}
  constexpr Traits(Flops x) : flops(x) {}
  constexpr Traits(Category x) : category(x) {}
  constexpr Traits(Flow x) : flow(x) {}
  constexpr Traits(Syntax x) : syntax(x) {}
  constexpr Traits(Spread x) : spread(x) {}
};

// Both: bits add up, of the others that of `b` stays where it has one.
template <std::convertible_to<Traits> A, std::convertible_to<Traits> B>
constexpr Traits operator|(A first, B second) {
  Traits all = first;
  const Traits b = second;
  all.flags |= b.flags;
  all.effects |= b.effects;
  all.archs |= b.archs;
  if (b.flops) all.flops = b.flops;
  if (b.category != Category::kNone) all.category = b.category;
  if (b.flow != Flow::kNext) all.flow = b.flow;
  if (b.syntax != Syntax::kUsual) all.syntax = b.syntax;
  if (b.spread != Spread::kAny) all.spread = b.spread;
  return all;
}

inline constexpr Traits kNoTraits;
inline constexpr Traits kVector = Category::kValu | kReadsExec;  // what most VALU rows have

struct OpInfo : Traits {
  u16 opcode = 0;
  const char* name = nullptr;
  ExecFn exec = nullptr;
  Type dst = Type::kNone;
  std::array<Type, 3> src{};

  constexpr OpInfo() = default;
  constexpr OpInfo(u32 number, const char* mnemonic, ExecFn run, Type result,
                   std::array<Type, 3> sources, Traits traits)
      : Traits(traits),
        opcode(static_cast<u16>(number)),
        name(mnemonic),
        exec(run),
        dst(result),
        src(sources) {}

  constexpr bool exists_on(Arch arch) const { return !archs || has(archs, arch); }
};

struct OpTable {
  Format format;
  const OpInfo* rows;
  u32 count;
};

}  // namespace vgpu
