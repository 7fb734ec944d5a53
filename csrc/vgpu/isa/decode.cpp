// Decodes machine code to Inst, driven by the opcode tables.
#include <array>
#include <cstdio>

#include "vgpu/isa/program.h"
#include "vgpu/isa/wave.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- row lookup

constexpr u32 kOpcodes[] = {
    // Number of opcodes per Format.
    256, 128, 128, 32,   128, 256,  // sop1 sop2 sopc sopk sopp smem
    256, 64,  256, 1024, 128, 128,  // vop1 vop2 vopc vop3 vop3p vop3px2
    256, 128, 128, 128,  128, 16,   // ds flat global scratch mubuf mtbuf
};

class RowIndex {
 public:
  RowIndex() {
    u32 base = 0;
    for (u32 f = 0; f < static_cast<u32>(Format::kCount); ++f) {
      base_[f] = base;
      base += kOpcodes[f];
    }
    const OpTables tables = all_tables();
    for (u32 t = 0; t < tables.count; ++t) {
      const OpTable& table = *tables.tables[t];
      for (u32 r = 0; r < table.count; ++r) add(table.format, table.rows[r]);
    }
  }
  const OpInfo* find(Arch arch, Format format, u32 opcode) const {
    if (opcode >= kOpcodes[static_cast<u32>(format)]) return nullptr;
    return rows_[static_cast<u32>(arch)][base_[static_cast<u32>(format)] + opcode];
  }

 private:
  void add(Format format, const OpInfo& row) {
    const u32 slot = base_[static_cast<u32>(format)] + row.opcode;
    for (u32 arch = 0; arch < kArchCount; ++arch) {
      if (row.exists_on(static_cast<Arch>(arch))) rows_[arch][slot] = &row;
    }
  }
  static constexpr u32 kSlots = 4096;
  std::array<u32, static_cast<u32>(Format::kCount)> base_{};
  std::array<std::array<const OpInfo*, kSlots>, kArchCount> rows_{};
};

const RowIndex& row_index() {
  static const RowIndex index;
  return index;
}

// -------------------------------------------------------------------------------- constants

constexpr u16 kHalfInline[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000,
                               0xc000, 0x4400, 0xc400, 0x3118};
constexpr u16 kBf16Inline[] = {0x3f00, 0xbf00, 0x3f80, 0xbf80, 0x4000,
                               0xc000, 0x4080, 0xc080, 0x3e22};
constexpr u32 kFloatInline[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
constexpr u64 kDoubleInline[] = {0x3fe0000000000000, 0xbfe0000000000000, 0x3ff0000000000000,
                                 0xbff0000000000000, 0x4000000000000000, 0xc000000000000000,
                                 0x4010000000000000, 0xc010000000000000, 0x3fc45f306dc9c882};

// An inline constant fills both halves of a pair of 32-bit values: LLVM encodes a multiplication by
// <poison, 0.5> with a plain 0.5.
u64 both_halves(u32 value) { return u64{value} << 32 | value; }
constexpr bool is_pair(Type type) { return type == Type::kPkF32 || type == Type::kPkB32; }

// Returns an inline float (encodings 240..248) in the operand's type. 16-bit integers, also packed
// ones, get the 32-bit float and use half of it (LLVM: getInlineEncodingV216).
u64 inline_float(Type type, u32 constant_idx) {
  switch (type) {
    case Type::kF16:
    case Type::kPkF16:
      return kHalfInline[constant_idx];
    case Type::kBf16:
    case Type::kPkBf16:
      return kBf16Inline[constant_idx];
    case Type::kF64:
    case Type::kB64:
      return kDoubleInline[constant_idx];
    default:
      return is_pair(type) ? both_halves(kFloatInline[constant_idx]) : kFloatInline[constant_idx];
  }
}

u64 inline_int(Type type, i32 value) {
  if (is_pair(type)) return both_halves(static_cast<u32>(value));
  return dwords_of(type) == 2 ? static_cast<u64>(static_cast<i64>(value)) : static_cast<u32>(value);
}

// Returns a 32-bit literal of a wide operand: the high half of an f64, sign-extended for i64
// instructions, zero-extended for u64 and b64 ones (s_mov_b64 s[0:1], 0xffffffff).
u64 literal_value(Type type, u32 literal, const OpInfo& op) {
  if (type == Type::kF64) return u64{literal} << 32;
  if (type == Type::kB64 && op.flags & kSignedLiteral) {
    return static_cast<u64>(static_cast<i64>(static_cast<i32>(literal)));
  }
  return literal;
}

// -------------------------------------------------------------------------------- the decoder

class Decoder {
 public:
  Decoder(Arch arch, const u32* words, u32 count, u32 index, Inst& inst)
      : arch_(arch), words_(words), count_(count), index_(index), inst_(inst) {
    inst_ = Inst{};
    inst_.index = index;
    word_ = words[index];
    second_ = index + 1 < count ? words[index + 1] : 0;
    wide_ = word_ | u64{second_} << 32;
  }

  // Returns false if no table has the instruction.
  bool run() {
    if (!(word_ >> 31)) return vop2();
    if (word_ >> 30 == 2) return scalar();
    switch (word_ >> 26) {
      case 0b110000:
        return smem();
      case 0b110100:
        return field(word_, 23, 3) == 7 ? vop3p() : vop3();
      case 0b110110:
        return ds();
      case 0b110111:
        return flat();
      case 0b111000:
        return mubuf();
      case 0b111010:
        return mtbuf();
      default:
        return false;
    }
  }

 private:
  Arch arch_;
  const u32* words_;
  u32 count_, index_;
  Inst& inst_;
  u32 word_, second_;
  u64 wide_;
  bool literal_used_ = false;

  bool row(Format format, u32 opcode, u8 dwords) {
    inst_.op = row_index().find(arch_, format, opcode);
    if (!inst_.op || index_ + dwords > count_) return false;
    inst_.format = format;
    inst_.dwords = dwords;
    inst_.exec = inst_.op->exec;
    return true;
  }

  bool literal(u32& value) {
    if (index_ + inst_.dwords >= count_ && !literal_used_) return false;
    if (!literal_used_) ++inst_.dwords;
    literal_used_ = true;
    value = words_[index_ + inst_.dwords - 1];
    return true;
  }

  // Decodes a 9-bit source (8 bits in scalar formats).
  bool source(Src& src, Type type, u32 code) {
    src.type = type;
    src.reg = static_cast<u16>(code);  // a constant keeps its encoding for the disassembler
    if (code >= 256) {
      src.kind = SrcKind::kVgpr;
      src.reg = static_cast<u16>(code - 256);
    } else if (code < 128) {
      src.kind = SrcKind::kSgpr;
    } else if (code >= 128 && code <= 208) {
      src.kind = SrcKind::kConst;
      src.value = inline_int(
          type, code <= 192 ? static_cast<i32>(code) - 128 : 192 - static_cast<i32>(code));
    } else if (code >= 240 && code <= 248) {
      src.kind = SrcKind::kConst;
      src.value = inline_float(type, code - 240);
    } else if (code == 255) {
      u32 value = 0;
      if (!literal(value)) return false;
      src.kind = SrcKind::kConst;
      src.value = literal_value(type, value, *inst_.op);
    } else if ((code >= kSharedBase && code <= kPrivateLimit) ||
               (code >= kVccz && code <= kLdsDirect)) {
      src.kind = SrcKind::kSpecial;
      return code != kLdsDirect;
    } else {
      return false;
    }
    return true;
  }

  static void vgpr(Src& src, Type type, u32 reg) {
    src = {SrcKind::kVgpr, type, static_cast<u16>(reg), 0};
  }
  static void sgpr(Src& src, Type type, u32 reg) {
    src = {SrcKind::kSgpr, type, static_cast<u16>(reg), 0};
  }

  // ------------------------------------------------------------------ scalar formats

  bool scalar() {
    const u32 top9 = word_ >> 23;
    if (top9 == 0b101111101) {
      if (!row(Format::kSop1, field(word_, 8, 8), 1)) return false;
      inst_.dst = static_cast<u16>(field(word_, 16, 7));
      return source(inst_.src[0], inst_.op->src[0], field(word_, 0, 8));
    }
    if (top9 == 0b101111110) {
      if (!row(Format::kSopc, field(word_, 16, 7), 1)) return false;
      return source(inst_.src[0], inst_.op->src[0], field(word_, 0, 8)) &&
             source(inst_.src[1], inst_.op->src[1], field(word_, 8, 8));
    }
    if (top9 == 0b101111111) {
      if (!row(Format::kSopp, field(word_, 16, 7), 1)) return false;
      inst_.imm = static_cast<i16>(word_ & 0xffff);
      return true;
    }
    if (word_ >> 28 == 0b1011) {
      if (!row(Format::kSopk, field(word_, 23, 5), 1)) return false;
      inst_.dst = static_cast<u16>(field(word_, 16, 7));
      inst_.imm = static_cast<i16>(word_ & 0xffff);
      return !(inst_.op->flags & kInlineK) || source(inst_.src[0], Type::kB32, 255);
    }
    if (!row(Format::kSop2, field(word_, 23, 7), 1)) return false;
    inst_.dst = static_cast<u16>(field(word_, 16, 7));
    return source(inst_.src[0], inst_.op->src[0], field(word_, 0, 8)) &&
           source(inst_.src[1], inst_.op->src[1], field(word_, 8, 8));
  }

  bool smem() {
    if (!row(Format::kSmem, field(word_, 18, 8), 2)) return false;
    inst_.dst = static_cast<u16>(field(word_, 6, 7));
    inst_.saddr = static_cast<u16>(field(word_, 0, 6) * 2);
    inst_.soffset_en = field(word_, 14, 1);
    inst_.sc0 = field(word_, 16, 1);
    inst_.imm_en = field(word_, 17, 1);
    if (inst_.imm_en) inst_.imm = sign_extend(field(wide_, 32, 21), 21);
    if (inst_.soffset_en) {
      sgpr(inst_.src[0], Type::kB32, field(wide_, 57, 7));
    } else if (!inst_.imm_en) {  // the offset field names an SGPR
      sgpr(inst_.src[0], Type::kB32, field(wide_, 32, 7));
      inst_.soffset_en = true;
    }
    return true;
  }

  // ------------------------------------------------------------------ VOP1, VOP2, VOPC

  bool vop2() {
    if (word_ >> 25 == 0b0111111) {
      if (!row(Format::kVop1, field(word_, 9, 8), 1)) return false;
      inst_.dst = static_cast<u16>(field(word_, 17, 8));
      if (inst_.op->src[0] == Type::kNone) return true;
      return lane_source(field(word_, 0, 9)) && acc_operands();
    }
    if (word_ >> 25 == 0b0111110) {
      if (!row(Format::kVopc, field(word_, 17, 8), 1)) return false;
      vgpr(inst_.src[1], inst_.op->src[1], field(word_, 9, 8));
      return lane_source(field(word_, 0, 9));
    }
    if (!row(Format::kVop2, field(word_, 25, 6), 1)) return false;
    inst_.dst = static_cast<u16>(field(word_, 17, 8));
    vgpr(inst_.src[1], inst_.op->src[1], field(word_, 9, 8));
    if (!lane_source(field(word_, 0, 9))) return false;
    if (inst_.op->flags & kInlineK) {
      u32 value = 0;
      if (!literal(value)) return false;
      inst_.src[2] = {SrcKind::kConst, inst_.op->src[2], 255, value};
    }
    implicit_vcc();
    return true;
  }

  // VOP2 carries and v_cndmask read VCC; their VOP3 forms read the mask from src2.
  void implicit_vcc() {
    if (inst_.op->flags & kCarryIn) sgpr(inst_.src[2], Type::kB64, kVccLo);
  }

  // v_accvgpr_*: assemblers set the bits that mark an AGPR in other formats; here they have no
  // meaning.
  bool acc_operands() {
    const u32 flags = inst_.op->flags;
    if (!(flags & (kAccDst | kAccSrc).flags)) return true;
    const auto fix = [](u16& reg, bool acc) { reg = static_cast<u16>((reg & 255) | acc << 8); };
    const bool from_vector = inst_.src[0].kind == SrcKind::kVgpr;
    fix(inst_.dst, flags & kAccDst);
    if (from_vector) fix(inst_.src[0].reg, flags & kAccSrc);
    return from_vector || !(flags & kAccSrc);
  }

  bool lane_source(u32 code) {
    if (code == 249) return sdwa();
    if (code == 250) return dpp();
    return source(inst_.src[0], inst_.op->src[0], code);
  }

  bool dpp() {
    if (index_ + 1 >= count_) return false;
    inst_.dwords = 2;
    inst_.lane_mod = LaneMod::kDpp;
    inst_.plain = false;
    vgpr(inst_.src[0], inst_.op->src[0], field(wide_, 32, 8));
    inst_.dpp = {static_cast<u16>(field(wide_, 40, 9)), field(wide_, 51, 1) != 0,
                 field(wide_, 50, 1) != 0, static_cast<u8>(field(wide_, 60, 4)),
                 static_cast<u8>(field(wide_, 56, 4))};
    inst_.neg = static_cast<u8>(field(wide_, 52, 1) | field(wide_, 54, 1) << 1);
    inst_.abs = static_cast<u8>(field(wide_, 53, 1) | field(wide_, 55, 1) << 1);
    return true;
  }

  bool sdwa() {
    if (index_ + 1 >= count_) return false;
    inst_.dwords = 2;
    inst_.lane_mod = LaneMod::kSdwa;
    inst_.plain = false;
    inst_.sdwa = {static_cast<u8>(field(wide_, 40, 3)),
                  static_cast<u8>(field(wide_, 43, 2)),
                  {static_cast<u8>(field(wide_, 48, 3)), static_cast<u8>(field(wide_, 56, 3))},
                  {field(wide_, 51, 1) != 0, field(wide_, 59, 1) != 0}};
    inst_.neg = static_cast<u8>(field(wide_, 52, 1) | field(wide_, 60, 1) << 1);
    inst_.abs = static_cast<u8>(field(wide_, 53, 1) | field(wide_, 61, 1) << 1);
    if (inst_.format == Format::kVopc) {
      inst_.sdwa.dst_sel = 6;
      if (field(wide_, 47, 1)) inst_.sdst = static_cast<u16>(field(wide_, 40, 7));
    } else {
      inst_.clamp = field(wide_, 45, 1);
      inst_.omod = static_cast<u8>(field(wide_, 46, 2));
    }
    const u32 scalar1 = field(wide_, 63, 1);
    if (scalar1 && !source(inst_.src[1], inst_.op->src[1], field(word_, 9, 8))) return false;
    if (field(wide_, 55, 1)) return source(inst_.src[0], inst_.op->src[0], field(wide_, 32, 8));
    vgpr(inst_.src[0], inst_.op->src[0], field(wide_, 32, 8));
    return true;
  }

  // ------------------------------------------------------------------ VOP3

  // VOP3 opcodes: 0..255 VOPC, 256.. VOP2, 320.. VOP1, 448.. VOP3 only.
  bool vop3_row(u32 opcode) {
    if (opcode < 256) return row(Format::kVopc, opcode, 2);
    if (opcode < 320) return row(Format::kVop2, opcode - 256, 2);
    if (opcode < 448) return row(Format::kVop1, opcode - 320, 2);
    return row(Format::kVop3, opcode, 2);
  }

  bool vop3() {
    if (!vop3_row(field(word_, 16, 10)) || inst_.op->flags & (kNoVop3 | kInlineK).flags)
      return false;
    inst_.vop3 = true;
    const bool has_sdst = inst_.op->flags & kCarryOut;
    inst_.neg = static_cast<u8>(field(wide_, 61, 3));
    inst_.omod = static_cast<u8>(field(wide_, 59, 2));
    inst_.clamp = field(wide_, 15, 1);
    inst_.dst = static_cast<u16>(field(word_, 0, 8));
    if (inst_.format == Format::kVopc) inst_.sdst = inst_.dst;
    if (has_sdst) {
      inst_.sdst = static_cast<u16>(field(word_, 8, 7));
    } else {
      inst_.abs = static_cast<u8>(field(word_, 8, 3));
      inst_.opsel = static_cast<u8>(field(word_, 11, 4));
    }
    inst_.plain = !(inst_.neg | inst_.abs | inst_.opsel | inst_.omod) && !inst_.clamp;
    for (u32 s = 0; s < 3; ++s) {
      const bool mask = s == 2 && inst_.op->flags & kCarryIn;
      const Type type = mask ? Type::kB64 : inst_.op->src[s];
      if (type == Type::kNone) continue;
      const u32 code = field(wide_, 32 + 9 * s, 9);
      if (code == 255 || !source(inst_.src[s], type, code)) return false;
    }
    return acc_operands();
  }

  static constexpr u32 kVop3px2Prefix = 0x2c;

  bool vop3p() {
    const u32 opcode = field(word_, 16, 7);
    if (opcode == kVop3px2Prefix) return vop3px2();
    if (!row(Format::kVop3p, opcode, 2)) return false;
    return inst_.op->flags & kMatrix ? matrix(wide_) : packed();
  }

  bool packed() {
    inst_.vop3 = true;
    inst_.dst = static_cast<u16>(field(word_, 0, 8));
    inst_.neg = static_cast<u8>(field(wide_, 61, 3));
    inst_.neg_hi = static_cast<u8>(field(wide_, 8, 3));
    inst_.clamp = field(wide_, 15, 1);
    inst_.opsel = static_cast<u8>(field(wide_, 11, 3));
    inst_.opsel_hi = static_cast<u8>(field(wide_, 59, 2) | field(wide_, 14, 1) << 2);
    inst_.plain = !inst_.clamp;
    const u32 halves = inst_.op->syntax == Syntax::kMixed ? inst_.opsel_hi : 0;
    for (u32 s = 0; s < 3; ++s) {
      if (inst_.op->src[s] == Type::kNone) continue;
      const Type type = halves >> s & 1 ? Type::kF16 : inst_.op->src[s];
      const u32 code = field(wide_, 32 + 9 * s, 9);
      if (code == 255 || !source(inst_.src[s], type, code)) return false;
    }
    return true;
  }

  // Returns the type of a constant C: the element type of D.
  Type matrix_constant(u32 s) const {
    const bool doubles = s == 2 && inst_.op->syntax == Syntax::kNegated;
    return doubles ? Type::kF64 : inst_.op->src[s];
  }

  // Decodes MFMA, SMFMAC and AGPR moves; `wide` is the 64-bit encoding of the matrix instruction.
  bool matrix(u64 wide) {
    const u32 acc_d = field(wide, 15, 1);
    inst_.vop3 = true;
    inst_.dst = static_cast<u16>(field(wide, 0, 8) + 256 * acc_d);
    inst_.cbsz = static_cast<u8>(field(wide, 8, 3));
    inst_.abid = static_cast<u8>(field(wide, 11, 4));
    inst_.blgp = static_cast<u8>(field(wide, 61, 3));
    for (u32 s = 0; s < 3; ++s) {
      if (inst_.op->src[s] == Type::kNone) continue;
      Src& src = inst_.src[s];
      const u32 code = field(wide, 32 + 9 * s, 9);
      const Type type = code < 256 ? matrix_constant(s) : inst_.op->src[s];
      if (code == 255 || !source(src, type, code)) return false;
      // A sparse instruction reads its destination as C; its src2 is the index, which is never an
      // AGPR.
      const bool acc_c = acc_d && !(inst_.op->flags & kReadsDst);
      const bool acc = s == 2 ? acc_c : field(wide, 59 + s, 1);
      if (src.kind == SrcKind::kVgpr && acc) src.reg += 256;
    }
    return acc_operands();
  }

  // A 16-byte encoding: the scale operands, then the MFMA.
  bool vop3px2() {
    if (index_ + 4 > count_) return false;
    const u64 mfma = words_[index_ + 2] | u64{words_[index_ + 3]} << 32;
    if (field(mfma, 23, 9) != 0b110100111) return false;
    if (!row(Format::kVop3px2, field(mfma, 16, 7), 4) || !matrix(mfma)) return false;
    inst_.opsel = static_cast<u8>(field(wide_, 11, 3));
    inst_.opsel_hi = static_cast<u8>(field(wide_, 59, 2));
    inst_.neg = static_cast<u8>(field(wide_, 61, 3));
    inst_.neg_hi = static_cast<u8>(field(wide_, 8, 3));
    return source(inst_.scale[0], Type::kB32, field(wide_, 32, 9)) &&
           source(inst_.scale[1], Type::kB32, field(wide_, 41, 9));
  }

  // ------------------------------------------------------------------ memory

  u16 data_reg(u32 bit, u32 acc) const {
    return static_cast<u16>(field(wide_, bit, 8) + 256 * acc);
  }

  bool ds() {
    if (!row(Format::kDs, field(word_, 17, 8), 2)) return false;
    const bool gds = field(word_, 16, 1);
    if (gds && inst_.op->category != Category::kGws) return false;
    const u32 acc = field(word_, 25, 1);
    inst_.imm = static_cast<i32>(word_ & 0xffff);
    inst_.addr = data_reg(32, 0);
    inst_.data0 = data_reg(40, acc);
    inst_.data1 = data_reg(48, acc);
    inst_.dst = data_reg(56, acc);
    return true;
  }

  bool flat() {
    constexpr Format kSegments[] = {Format::kFlat, Format::kScratch, Format::kGlobal};
    const u32 segment = field(word_, 14, 2);
    if (segment == 3 || !row(kSegments[segment], field(word_, 18, 7), 2)) return false;
    const u32 acc = field(wide_, 55, 1);
    inst_.imm =
        segment ? sign_extend(field(word_, 0, 13), 13) : static_cast<i32>(field(word_, 0, 12));
    inst_.sve = field(word_, 13, 1);
    inst_.sc0 = field(word_, 16, 1);
    inst_.nt = field(word_, 17, 1);
    inst_.sc1 = field(word_, 25, 1);
    inst_.addr = data_reg(32, 0);
    inst_.data0 = data_reg(40, acc);
    inst_.saddr = static_cast<u16>(field(wide_, 48, 7));
    inst_.dst = data_reg(56, acc);
    return true;
  }

  bool buffer_operands() {
    inst_.imm = static_cast<i32>(field(word_, 0, 12));
    inst_.offen = field(word_, 12, 1);
    inst_.idxen = field(word_, 13, 1);
    inst_.sc0 = field(word_, 14, 1);
    inst_.addr = data_reg(32, 0);
    inst_.dst = inst_.data0 = data_reg(40, field(wide_, 55, 1));
    inst_.srsrc = static_cast<u16>(field(wide_, 48, 5) * 4);
    return source(inst_.src[0], Type::kB32, field(wide_, 56, 8));
  }

  bool mubuf() {
    if (!row(Format::kMubuf, field(word_, 18, 7), 2)) return false;
    inst_.sc1 = field(word_, 15, 1);
    inst_.lds = field(word_, 16, 1);
    inst_.nt = field(word_, 17, 1);
    return buffer_operands();
  }

  bool mtbuf() {
    if (!row(Format::kMtbuf, field(word_, 15, 4), 2)) return false;
    inst_.dfmt = static_cast<u8>(field(word_, 19, 4));
    inst_.nfmt = static_cast<u8>(field(word_, 23, 3));
    inst_.sc1 = field(wide_, 53, 1);
    inst_.nt = field(wide_, 54, 1);
    return buffer_operands();
  }
};

void unknown_instruction(Wave& wave, const Inst& inst) {
  char text[96];
  const u32* words = wave.program->words;
  const bool has_next = inst.index + 1 < wave.program->count;
  std::snprintf(text, sizeof(text), "unknown instruction 0x%08x%s%08x on %s", words[inst.index],
                has_next ? " 0x" : " end ", has_next ? words[inst.index + 1] : 0,
                arch_name(wave.program->arch));
  fault(wave, inst, text);
}

}  // namespace

void decode(Arch arch, const u32* words, u32 count, u32 index, Inst& inst) {
  if (Decoder(arch, words, count, index, inst).run()) return;
  inst = Inst{};
  inst.index = index;
  inst.exec = unknown_instruction;
}

}  // namespace vgpu
