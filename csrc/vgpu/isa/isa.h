// Decoded instructions: the formats of CDNA3 and CDNA4, operands, and the row of an opcode table.
//
// Every opcode stands in exactly one table row (tables of ops_*.cpp): number, mnemonic, operand
// types, architectures and the function that executes it. The decoder is driven by these rows.
#pragma once

#include "vgpu/base/types.h"

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

enum OpFlags : u16 {
  kNoFlags = 0,
  kOnlyGfx942 = 1 << 0,
  kOnlyGfx950 = 1 << 1,
  kReadsDst = 1 << 2,   // the destination is also an input (fmac, swap, d16, *_sr_*)
  kScalarDst = 1 << 3,  // a VALU op that writes an SGPR (readlane, readfirstlane)
  kCarryIn = 1 << 4,    // reads VCC (VOP2) or src2 (VOP3) as a mask
  kCarryOut = 1 << 5,   // writes VCC (VOP2) or sdst (VOP3) as a mask
  kKeepHigh = 1 << 6,   // a 16-bit result leaves the other half of the register alone
  kInlineK = 1 << 7,    // always followed by a 32-bit constant (fmamk, fmaak, setreg_imm32)
  kNoVop3 = 1 << 8,     // has no VOP3 encoding
  kMatrix = 1 << 9,     // MFMA or SMFMAC: operands may be AGPRs, EXEC is ignored
};

// What an instruction is counted as.
enum class Kind : u8 {
  kSalu,
  kSmem,
  kValu,
  kTrans,
  kMfma,
  kLds,
  kVmem,
  kBranch,
  kWait,
  kBarrier,
  kOther
};

// Which queue of the memory pipeline an instruction joins (reference: waits).
enum class Queue : u8 {
  kNone,
  kVector,  // vmcnt
  kFlat,    // vmcnt and lgkmcnt
  kLds,     // lgkmcnt, in order
  kScalar,  // lgkmcnt, out of order
};

struct OpInfo {
  u16 opcode;
  const char* name;
  ExecFn exec;
  Type dst;
  Type src[3];
  u16 flags;
  Kind kind;
};

struct OpTable {
  Format format;
  const OpInfo* rows;
  u32 count;
};

// Scalar register numbers as they are encoded; all of 0..127 live in Wave::sgpr.
enum SReg : u16 {
  kFlatScratchLo = 102,
  kXnackMaskLo = 104,
  kVccLo = 106,
  kVccHi = 107,
  kTtmp0 = 108,
  kM0 = 124,
  kExecLo = 126,
  kExecHi = 127,
};

enum class SrcKind : u8 { kNone, kVgpr, kSgpr, kConst, kSpecial };

// Source encodings that are neither a register nor a constant.
enum SpecialSrc : u16 {
  kSharedBase = 235,
  kSharedLimit = 236,
  kPrivateBase = 237,
  kPrivateLimit = 238,
  kVccz = 251,
  kExecz = 252,
  kScc = 253,
  kLdsDirect = 254,
};

struct Src {
  SrcKind kind = SrcKind::kNone;
  Type type = Type::kNone;
  u16 reg = 0;    // kVgpr: 0..255, AGPRs 256..511; kSgpr: 0..127; otherwise the encoding
  u64 value = 0;  // kConst: the constant as the operand's type wants it
};

// Sub-dword select of SDWA.
struct Sdwa {
  u8 dst_sel, dst_unused, sel[2];
  bool sext[2];
};

struct Dpp {
  u16 ctrl;  // 9 bits
  bool bound_ctrl, fetch_inactive;
  u8 row_mask, bank_mask;
};

enum class LaneMod : u8 { kNone, kDpp, kSdwa };

// One decoded instruction. Memory formats use the second half of the fields.
struct Inst {
  ExecFn exec = nullptr;
  const OpInfo* op = nullptr;
  u32 index = 0;  // dword index in the code object's text
  Format format = Format::kSopp;
  u8 dwords = 1;
  bool vop3 = false;    // encoded as VOP3 (op_sel, explicit carry registers)
  bool plain = true;    // no neg/abs/op_sel/clamp/omod/DPP/SDWA: the fast path
  u8 neg = 0, abs = 0;  // bit s: source s
  u8 neg_hi = 0;        // VOP3P: bit s: high half of source s
  u8 opsel = 0;         // bits 0..2 sources, bit 3 destination
  u8 opsel_hi = 0;      // VOP3P: bits 0..2
  bool clamp = false;
  u8 omod = 0;  // 0 none, 1 *2, 2 *4, 3 /2
  LaneMod lane_mod = LaneMod::kNone;
  u16 dst = 0;        // VGPR 0..255, AGPR 256..511; SGPR number for scalar formats
  u16 sdst = kVccLo;  // mask destination of carries and compares
  Src src[3];
  union {
    Sdwa sdwa{};
    Dpp dpp;
  };

  i32 imm = 0;                         // SOPK/SOPP immediate, memory offset, inline K (as bits)
  u16 addr = 0, data0 = 0, data1 = 0;  // VGPR 0..255, AGPR 256..511 (data)
  u16 saddr = 0;                       // SGPR of a 64-bit base, or kNoSaddr; SMEM: sbase
  u16 srsrc = 0;                       // first SGPR of a buffer resource
  bool sc0 = false, sc1 = false, nt = false, offen = false, idxen = false, lds = false, sve = false;
  bool soffset_en = false, imm_en = false;  // SMEM
  u8 dfmt = 0, nfmt = 0;                    // MTBUF
  Queue queue = Queue::kNone;
  u8 result = 0;  // dwords that a memory instruction brings to `dst`; known once it is in a Program

  // Matrix instructions.
  u8 cbsz = 0, abid = 0, blgp = 0;
  Src scale[2];  // kVop3px2: scale operands of A and B
};

inline constexpr u16 kNoSaddr = 0x7f;

constexpr bool is_valu(Format format) {
  return format >= Format::kVop1 && format <= Format::kVop3p;
}
constexpr bool is_memory(Format format) { return format == Format::kSmem || format >= Format::kDs; }
// What s_setvskip leaves out.
constexpr bool is_vector(Format format) {
  return format >= Format::kVop1 && format < Format::kCount;
}

}  // namespace vgpu
