// Decoded instructions of CDNA3 and CDNA4: operands, and the fields of each format.
//
// Every opcode is exactly one table row (op_info.h; the tables are in ops_*.cpp and
// mfma_shapes.cpp). The decoder is driven by these rows.
#pragma once

#include "vgpu/isa/op_info.h"

namespace vgpu {

// The queue of the memory pipeline that an instruction enters; it decides the wait counter.
enum class Queue : u8 {
  kNone,
  kVector,  // vmcnt
  kFlat,    // vmcnt and lgkmcnt
  kLds,     // lgkmcnt, in order
  kScalar,  // lgkmcnt, out of order
};

// Encodings of scalar registers; Wave::sgpr has all of 0..127.
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
  u64 value = 0;  // kConst: the constant converted to the operand's type
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
  u32 index = 0;  // dword index in the text section of the code object
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
  u8 result = 0;  // dwords that a memory instruction loads to `dst`; set when it is in a Program

  // Matrix instructions.
  u8 cbsz = 0, abid = 0, blgp = 0;
  Src scale[2];  // kVop3px2: scale operands of A and B
};

inline constexpr u16 kNoSaddr = 0x7f;

// Returns the category of the row, or of its LDS-DMA form.
inline Category category_of(const Inst& inst) {
  const bool dma = inst.lds && inst.op->category == Category::kVmemLoad;
  return dma ? Category::kLdsDma : inst.op->category;
}

constexpr bool is_valu(Format format) {
  return format >= Format::kVop1 && format <= Format::kVop3p;
}
constexpr bool is_memory(Format format) { return format == Format::kSmem || format >= Format::kDs; }
// Returns whether s_setvskip skips instructions of this format.
constexpr bool is_vector(Format format) {
  return format >= Format::kVop1 && format < Format::kCount;
}

}  // namespace vgpu
