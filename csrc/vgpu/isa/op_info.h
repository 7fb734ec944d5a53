// One row of an opcode table: the properties of an opcode that do not depend on its operands.
//
// A row is a line: number, mnemonic, operand types, traits, operation. The macro of a table sets
// the traits that its rows share; a row that differs adds its own with |.
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

// The type of an operand: decides width, inline constants and neg/abs bits.
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

// Properties of the operands.
enum OpFlag : u32 {
  kReadsDst = 1 << 0,         // the destination is also an input (fmac, swap, *_sr_*, bitset)
  kDstIsSource = 1 << 1,      // SOPK: the destination's field names an input (compares, setreg)
  kMerges = 1 << 2,           // writes only a part of the destination; implies kReadsDst
  kKeepHigh = 1 << 3,         // a 16-bit result keeps the other half of the register
  kScalarDst = 1 << 4,        // a VALU op that writes an SGPR (readlane, readfirstlane)
  kCarryIn = 1 << 5,          // reads VCC (VOP2) or src2 (VOP3) as a mask
  kCarryOut = 1 << 6,         // writes VCC (VOP2) or sdst (VOP3) as a mask
  kInlineK = 1 << 7,          // always followed by a 32-bit literal (fmamk, fmaak, setreg_imm32)
  kSignedLiteral = 1 << 8,    // a literal of a 64-bit operand is sign-extended
  kNoVop3 = 1 << 9,           // has no VOP3 encoding
  kMatrix = 1 << 10,          // encoded like MFMA and SMFMAC: operands may be AGPRs
  kAccDst = 1 << 11,          // v_accvgpr_*: the AGPR is implied by the opcode
  kAccSrc = 1 << 12,          //
  kDot = 1 << 13,             // a dot product on the VALU
  kDoubleFma = 1 << 14,       // needs wait states after f64 matrix instructions
  kAtomic = 1 << 15,          // read-modify-write of memory
  kExchanges = 1 << 16,       // an atomic that ignores the old value
  kTyped = 1 << 17,           // the format in memory differs from that of the registers
  kSavesExec = 1 << 18,       // writes the result to EXEC and EXEC's old value to the destination
  kTestsResult = 1 << 19,     // SCC = result is not 0
  kDynamicOperands = 1 << 20  // the registers it accesses are known only at run time
};

// Registers read or written implicitly. (VCC of a carry or a compare is an operand, sdst, that VOP2
// and VOPC fix.)
enum Effect : u16 {
  kReadsScc = 1 << 0,
  kWritesScc = 1 << 1,
  kReadsVcc = 1 << 2,
  kWritesVcc = 1 << 3,
  kReadsExec = 1 << 4,  // as the mask of active lanes, for most
  kWritesExec = 1 << 5,
  kReadsM0 = 1 << 6,
  kWritesM0 = 1 << 7,
  kWritesMode = 1 << 8,
};

// The unit that issues the instruction, and its rate. A buffer load with the `lds` bit is kLdsDma
// (category_of).
enum class Category : u8 {
  kNone,
  kSalu,
  kSmem,
  kValu,
  kTrans,    // quarter rate: reciprocals, roots, exp, log, sin, cos
  kPacked,   // two floats per lane, one after the other
  kQuarter,  // quarter rate: 32-bit integer products, sums over bytes
  kMfma,
  kLds,
  kGws,
  kVmemLoad,
  kVmemStore,
  kVmemAtomic,
  kLdsDma,     // memory to LDS
  kVmemCache,  // write-back and invalidation
  kBranch,
  kMessage,  // to the host, the trace or the debugger; instruction cache
  kWait,     // s_waitcnt
  kNop,
  kSleep,
  kBarrier,
  kPriority,
  kInternal,  // the wave's own state: halt, wake-up
};

// Control flow after the instruction.
enum class Flow : u8 {
  kNext,
  kJump,      // to an offset
  kBranch,    // to an offset or the next instruction
  kCall,      // to an offset; the destination gets the return address
  kIndirect,  // to an address in a register
  kBarrier,   // to the next, together with the workgroup
  kEnd,
  kTrap,  // ends the launch
};

// Assembler syntax that differs from the format's default.
enum class Syntax : u8 {
  kDefault,
  kBare,              // SOPP: no operand
  kHex,               // SOPP: the operand is printed in hexadecimal
  kIndexMode,         // gpr_idx(SRC0,DST): in SOPC's second field, SOPP's operand
  kHardwareRegister,  // hwreg(MODE, 0, 4)
  kConstantSecond,    // v_fmamk: the literal is the second of three sources
  kMixed,             // op_sel_hi selects halves; default none
  kByFormat,          // CBSZ and BLGP decide the number of registers of A and B
  kNegated,           // the BLGP field negates A, B and C
  kTwoOffsets,        // DS: offset0 and offset1
};

// How undefined bits propagate from the sources to the result.
enum class Spread : u8 {
  kAny,  // any undefined source bit makes the whole result undefined
  kNothing,
  // Vector instructions, lane by lane.
  kSelect,       // v_cndmask, s_cselect
  kCancels,      // x ^ x, x - x are 0
  kRows,         // each register separately: v_mov_b64
  kPair,         // packed 32-bit: op_sel selects a register of each pair
  kTowardsHigh,  // 64-bit integers: the low result depends on low words only; scalar: carries
  kTowardsLow,   // right shifts: the high result depends on high words only
  kBytes,        // v_perm: the selector picks the source byte
  kReadLane,
  kReadFirst,
  kWriteLane,
  kSwap,
  kPermlane,
  kMatrix,
  kCrossbar,    // ds_bpermute and similar: between lanes
  kTransposed,  // within each group of 16 lanes
  // Scalar instructions, bit by bit; with one source, EXEC is the other.
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
  kConditional,  // the source or the old destination
  kBitset,
};

// Floating-point operations per lane; a fused multiply-add counts two.
enum Flops : u8 { kFlops1 = 1, kFlops2 = 2, kFlops4 = 4 };

struct Traits {
  u32 flags = 0;    // an OpFlag mask
  u16 effects = 0;  // an Effect mask
  u8 archs = 0;     // an ArchMask; 0: all
  u8 flops = 0;
  Category category = Category::kNone;
  Flow flow = Flow::kNext;
  Syntax syntax = Syntax::kDefault;
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

// Joins traits: masks are or-ed; of the other members, b's value wins if set.
template <std::convertible_to<Traits> A, std::convertible_to<Traits> B>
constexpr Traits operator|(A first, B second) {
  Traits combined = first;
  const Traits b = second;
  combined.flags |= b.flags;
  combined.effects |= b.effects;
  combined.archs |= b.archs;
  if (b.flops) combined.flops = b.flops;
  if (b.category != Category::kNone) combined.category = b.category;
  if (b.flow != Flow::kNext) combined.flow = b.flow;
  if (b.syntax != Syntax::kDefault) combined.syntax = b.syntax;
  if (b.spread != Spread::kAny) combined.spread = b.spread;
  return combined;
}

inline constexpr Traits kNoTraits;
inline constexpr Traits kVector = Category::kValu | kReadsExec;  // traits of most VALU rows

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

  constexpr bool exists_on(Arch arch) const { return !archs || includes(archs, arch); }
};

struct OpTable {
  Format format;
  const OpInfo* rows;
  u32 count;
};

}  // namespace vgpu
