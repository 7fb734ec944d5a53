// Formats decoded instructions as assembler text that clang accepts.
#include <cstdio>

#include "vgpu/isa/program.h"
#include "vgpu/isa/wave.h"

namespace vgpu {
namespace {

std::string number(const char* format, i64 value) {
  char text[32];
  std::snprintf(text, sizeof(text), format, static_cast<long long>(value));
  return text;
}

// Formats `letter`5 or `letter`[4:7].
std::string range(const char* letter, u32 first, u32 count) {
  std::string text = letter;
  if (count == 1) return text + std::to_string(first);
  return text + "[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
}

std::string vector_reg(u32 reg, u32 count) {
  return reg < 256 ? range("v", reg, count) : range("a", reg - 256, count);
}

std::string scalar_reg(u32 reg, u32 count) {
  struct Name {
    u32 reg;
    const char* low;
    const char* high;
    const char* pair;
  };
  static constexpr Name kNames[] = {
      {kFlatScratchLo, "flat_scratch_lo", "flat_scratch_hi", "flat_scratch"},
      {kXnackMaskLo, "xnack_mask_lo", "xnack_mask_hi", "xnack_mask"},
      {kVccLo, "vcc_lo", "vcc_hi", "vcc"},
      {kExecLo, "exec_lo", "exec_hi", "exec"},
  };
  if (reg < kFlatScratchLo) return range("s", reg, count);
  for (const Name& name : kNames) {
    if (reg == name.reg) return count == 1 ? name.low : name.pair;
    if (reg == name.reg + 1) return name.high;
  }
  if (reg >= kTtmp0 && reg < kTtmp0 + 16) return range("ttmp", reg - kTtmp0, count);
  return "m0";
}

const char* special_name(u32 code) {
  switch (code) {
    case kSharedBase:
      return "src_shared_base";
    case kSharedLimit:
      return "src_shared_limit";
    case kPrivateBase:
      return "src_private_base";
    case kPrivateLimit:
      return "src_private_limit";
    case kVccz:
      return "src_vccz";
    case kExecz:
      return "src_execz";
    case kScc:
      return "src_scc";
    default:
      return "src_lds_direct";
  }
}

// Formats a constant; src.reg holds its encoding.
std::string constant(const Src& src) {
  static constexpr const char* kFloats[] = {"0.5",  "-0.5", "1.0",  "-1.0",      "2.0",
                                            "-2.0", "4.0",  "-4.0", "0.15915494"};
  if (src.reg >= 128 && src.reg <= 192) return std::to_string(src.reg - 128);
  if (src.reg > 192 && src.reg <= 208) return std::to_string(192 - src.reg);
  if (src.reg >= 240 && src.reg <= 248) return kFloats[src.reg - 240];
  const u32 literal = static_cast<u32>(src.type == Type::kF64 ? src.value >> 32 : src.value);
  return number("0x%llx", literal);
}

std::string operand(const Src& src, u32 count) {
  switch (src.kind) {
    case SrcKind::kVgpr:
      return vector_reg(src.reg, count);
    case SrcKind::kSgpr:
      return scalar_reg(src.reg, count);
    case SrcKind::kConst:
      return constant(src);
    case SrcKind::kSpecial:
      return special_name(src.reg);
    default:
      return "off";
  }
}

std::string source(const Inst& inst, u32 s) {
  std::string text = operand(inst.src[s], dwords_of(inst.src[s].type));
  const bool packed = inst.format == Format::kVop3p;
  if (inst.lane_mod == LaneMod::kSdwa && s < 2 && inst.sdwa.sext[s]) text = "sext(" + text + ")";
  if (!packed && inst.abs >> s & 1) text = "|" + text + "|";
  if (!packed && inst.neg >> s & 1) text = "-" + text;
  return text;
}

// Formats ` name:[1,0,1]` from the low `count` bits; empty if all equal the default.
std::string bit_list(const char* name, u32 bits_set, u32 count, u32 usual) {
  const u32 mask = (1u << count) - 1;
  if ((bits_set & mask) == (usual ? mask : 0)) return "";
  std::string text = std::string(" ") + name + ":[";
  for (u32 i = 0; i < count; ++i)
    text += std::string(i ? "," : "") + (bits_set >> i & 1 ? "1" : "0");
  return text + "]";
}

u32 source_count(const OpInfo& op) {
  u32 count = 0;
  while (count < 3 && op.src[count] != Type::kNone) ++count;
  return count;
}

class Operands {
 public:
  explicit Operands(std::string mnemonic) : text_(std::move(mnemonic)) {}
  void add(const std::string& operand) {
    text_ += (first_ ? " " : ", ") + operand;
    first_ = false;
  }
  void modifier(bool present, const std::string& text) {
    if (present) text_ += " " + text;
  }
  void append(const std::string& text) { text_ += text; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool first_ = true;
};

// -------------------------------------------------------------------------------- scalar formats

std::string index_mode(u32 mask) {
  static constexpr const char* kNames[] = {"SRC0", "SRC1", "SRC2", "DST"};
  std::string text;
  for (u32 i = 0; i < 4; ++i)
    if (mask >> i & 1) text += (text.empty() ? "" : ",") + std::string(kNames[i]);
  return "gpr_idx(" + text + ")";
}

std::string hardware_register(u32 code) {
  return "hwreg(" + std::to_string(code & 63) + ", " + std::to_string(code >> 6 & 31) + ", " +
         std::to_string((code >> 11) + 1) + ")";
}

// The destination is printed first, also a hardware register.
std::string sopk_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  const u32 code = static_cast<u32>(inst.imm & 0xffff);
  const bool hardware = op.syntax == Syntax::kHardwareRegister;
  const bool sets = hardware && op.effects & kWritesMode;
  if (sets) out.add(hardware_register(code));
  if (op.dst != Type::kNone) out.add(scalar_reg(inst.dst, dwords_of(op.dst)));
  if (hardware && !sets) out.add(hardware_register(code));
  if (op.flags & kInlineK) out.add(operand(inst.src[0], 1));
  if (!hardware) out.add(number("0x%llx", code));
  return out.take();
}

std::string scalar_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  if (inst.format == Format::kSopp) {
    const i32 value = inst.imm & 0xffff;
    if (op.syntax == Syntax::kIndexMode) {
      out.add(index_mode(static_cast<u32>(inst.imm)));
    } else if (op.syntax != Syntax::kBare) {
      out.add(op.syntax == Syntax::kHex ? number("0x%llx", value) : std::to_string(value));
    }
    return out.take();
  }
  if (inst.format == Format::kSopk) return sopk_text(inst);
  if (op.dst != Type::kNone) out.add(scalar_reg(inst.dst, dwords_of(op.dst)));
  for (u32 s = 0; s < source_count(op); ++s) {
    const bool mode = s == 1 && op.syntax == Syntax::kIndexMode;
    out.add(mode ? index_mode(inst.src[1].reg) : source(inst, s));
  }
  return out.take();
}

std::string smem_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  const Type data = op.src[1] != Type::kNone ? op.src[1] : op.dst;  // the stored or the loaded type
  if (data != Type::kNone) out.add(scalar_reg(inst.dst, dwords_of(data)));
  if (op.src[0] == Type::kNone) return out.take();
  out.add(scalar_reg(inst.saddr, dwords_of(op.src[0])));
  if (inst.soffset_en) out.add(scalar_reg(inst.src[0].reg, 1));
  if (inst.imm_en && inst.soffset_en) {
    out.append(" offset:" + number("0x%llx", inst.imm));
  } else if (inst.imm_en) {
    out.add(inst.imm < 0 ? "-" + number("0x%llx", -i64{inst.imm}) : number("0x%llx", inst.imm));
  }
  out.modifier(inst.sc0, "glc");
  return out.take();
}

// -------------------------------------------------------------------------------- vector formats

std::string dpp_text(const Inst& inst) {
  const Dpp& dpp = inst.dpp;
  const u32 ctrl = dpp.ctrl, amount = ctrl & 15;
  std::string text;
  if (ctrl < 0x100) {
    text = " quad_perm:[" + std::to_string(ctrl & 3) + "," + std::to_string(ctrl >> 2 & 3) + "," +
           std::to_string(ctrl >> 4 & 3) + "," + std::to_string(ctrl >> 6 & 3) + "]";
  } else if (ctrl < 0x130 || ctrl >> 4 == 0x15) {
    const char* name = ctrl < 0x110   ? " row_shl:"
                       : ctrl < 0x120 ? " row_shr:"
                       : ctrl < 0x130 ? " row_ror:"
                                      : " row_newbcast:";
    text = name + std::to_string(amount);
  } else {
    static constexpr struct {
      u32 ctrl;
      const char* name;
    } kNames[] = {{0x130, " wave_shl:1"},   {0x134, " wave_rol:1"},  {0x138, " wave_shr:1"},
                  {0x13c, " wave_ror:1"},   {0x140, " row_mirror"},  {0x141, " row_half_mirror"},
                  {0x142, " row_bcast:15"}, {0x143, " row_bcast:31"}};
    for (const auto& row : kNames)
      if (row.ctrl == ctrl) text = row.name;
  }
  text += " row_mask:" + number("0x%llx", dpp.row_mask) +
          " bank_mask:" + number("0x%llx", dpp.bank_mask);
  return text + (dpp.bound_ctrl ? " bound_ctrl:0" : "");
}

std::string sdwa_text(const Inst& inst) {
  static constexpr const char* kSelect[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                            "WORD_0", "WORD_1", "DWORD",  "?"};
  static constexpr const char* kUnused[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE", "?"};
  std::string text;
  if (inst.format != Format::kVopc) {
    text = std::string(" dst_sel:") + kSelect[inst.sdwa.dst_sel] +
           " dst_unused:" + kUnused[inst.sdwa.dst_unused & 3];
  }
  text += std::string(" src0_sel:") + kSelect[inst.sdwa.sel[0]];
  if (source_count(*inst.op) > 1) text += std::string(" src1_sel:") + kSelect[inst.sdwa.sel[1]];
  return text;
}

const char* encoding_suffix(const Inst& inst) {
  if (inst.lane_mod == LaneMod::kDpp) return "_dpp";
  if (inst.lane_mod == LaneMod::kSdwa) return "_sdwa";
  const bool two_forms =
      inst.format == Format::kVop1 || inst.format == Format::kVop2 || inst.format == Format::kVopc;
  if (!two_forms || inst.op->flags & (kInlineK | kNoVop3).flags) return "";
  return inst.vop3 ? "_e64" : "_e32";
}

// op_sel:[src0,src1,src2,dst] of 16-bit VOP3 instructions.
std::string vop3_opsel(const Inst& inst, u32 sources) {
  if (!inst.vop3 || !inst.opsel) return "";
  std::string text = " op_sel:[";
  for (u32 s = 0; s < sources; ++s) text += inst.opsel >> s & 1 ? "1," : "0,";
  return text + (inst.opsel & 8 ? "1]" : "0]");
}

std::string vector_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  const u32 sources = source_count(op);
  Operands out(std::string(op.name) + encoding_suffix(inst));
  if (inst.format == Format::kVopc) {
    out.add(scalar_reg(inst.sdst, 2));
  } else if (op.dst != Type::kNone) {
    out.add(op.flags & kScalarDst ? scalar_reg(inst.dst, 1)
                                  : vector_reg(inst.dst, dwords_of(op.dst)));
  }
  if (op.flags & kCarryOut) out.add(scalar_reg(inst.sdst, 2));
  if (op.flags & kInlineK && sources == 3) {
    const bool middle = op.syntax == Syntax::kConstantSecond;
    out.add(source(inst, 0));
    out.add(source(inst, middle ? 2 : 1));
    out.add(source(inst, middle ? 1 : 2));
    return out.take();
  }
  for (u32 s = 0; s < sources; ++s) out.add(source(inst, s));
  if (op.flags & kCarryIn) out.add(operand(inst.src[2], 2));
  if (inst.format == Format::kVop3p) {
    out.append(bit_list("op_sel", inst.opsel, sources, 0));
    out.append(bit_list("op_sel_hi", inst.opsel_hi, sources, op.syntax != Syntax::kMixed));
    out.append(bit_list("neg_lo", inst.neg, sources, 0));
    out.append(bit_list("neg_hi", inst.neg_hi, sources, 0));
  } else {
    out.append(vop3_opsel(inst, sources));
  }
  out.modifier(inst.clamp, "clamp");
  static constexpr const char* kOmod[] = {"", " mul:2", " mul:4", " div:2"};
  out.append(kOmod[inst.omod & 3]);
  if (inst.lane_mod == LaneMod::kDpp) out.append(dpp_text(inst));
  if (inst.lane_mod == LaneMod::kSdwa) out.append(sdwa_text(inst));
  return out.take();
}

// Returns the registers of an f8f6f4 operand by format: 8 for 8-bit, 6 for 6-bit, 4 for 4-bit.
u32 f8f6f4_rows(u32 format) { return format < 2 ? 8 : format < 4 ? 6 : 4; }

std::string matrix_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  const bool any_format = op.syntax == Syntax::kByFormat;
  out.add(vector_reg(inst.dst, dwords_of(op.dst)));
  for (u32 s = 0; s < source_count(op); ++s) {
    const u32 rows =
        any_format && s < 2 ? f8f6f4_rows(s ? inst.blgp : inst.cbsz) : dwords_of(op.src[s]);
    out.add(operand(inst.src[s], rows));
  }
  if (inst.format == Format::kVop3px2) {
    out.add(operand(inst.scale[0], 1));
    out.add(operand(inst.scale[1], 1));
    out.append(bit_list("op_sel", inst.opsel, 2, 0) + " op_sel_hi:[" +
               (inst.opsel_hi & 1 ? "1," : "0,") + (inst.opsel_hi & 2 ? "1,0]" : "0,0]"));
  }
  const bool scaled = inst.format == Format::kVop3px2;    // there, only the low bit of abid is used
  if (op.category != Category::kMfma) return out.take();  // v_accvgpr_*
  out.modifier(inst.cbsz, "cbsz:" + std::to_string(inst.cbsz));
  out.modifier(inst.abid && !scaled, "abid:" + std::to_string(inst.abid));
  if (op.syntax == Syntax::kNegated)
    out.append(bit_list("neg", inst.blgp, 3, 0));
  else
    out.modifier(inst.blgp, "blgp:" + std::to_string(inst.blgp));
  return out.take();
}

// -------------------------------------------------------------------------------- memory formats

std::string ds_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  if (op.dst != Type::kNone) out.add(vector_reg(inst.dst, dwords_of(op.dst)));
  if (op.src[0] != Type::kNone) out.add(vector_reg(inst.addr, 1));
  if (op.src[1] != Type::kNone) out.add(vector_reg(inst.data0, dwords_of(op.src[1])));
  if (op.src[2] != Type::kNone) out.add(vector_reg(inst.data1, dwords_of(op.src[2])));
  if (op.syntax == Syntax::kTwoOffsets) {
    out.modifier(inst.imm & 0xff, "offset0:" + std::to_string(inst.imm & 0xff));
    out.modifier(inst.imm >> 8, "offset1:" + std::to_string(inst.imm >> 8));
  } else {
    out.modifier(inst.imm, "offset:" + std::to_string(inst.imm));
  }
  return out.take();
}

std::string flat_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  const bool scratch = inst.format == Format::kScratch;
  const bool based = inst.saddr != kNoSaddr && inst.format != Format::kFlat;
  const bool load = op.dst != Type::kNone && (!(op.flags & kAtomic) || inst.sc0);
  if (load) out.add(vector_reg(inst.dst, dwords_of(op.dst)));
  out.add(scratch ? (inst.sve ? vector_reg(inst.addr, 1) : "off")
                  : vector_reg(inst.addr, based ? 1 : 2));
  if (op.src[1] != Type::kNone) out.add(vector_reg(inst.data0, dwords_of(op.src[1])));
  if (inst.format != Format::kFlat) {
    out.add(based ? scalar_reg(inst.saddr, scratch ? 1 : 2) : "off");
  }
  out.modifier(inst.imm, "offset:" + std::to_string(inst.imm));
  out.modifier(inst.sc0, "sc0");
  out.modifier(inst.nt, "nt");
  out.modifier(inst.sc1, "sc1");
  return out.take();
}

std::string buffer_text(const Inst& inst) {
  const OpInfo& op = *inst.op;
  Operands out(op.name);
  if (op.dst == Type::kNone && op.src[1] == Type::kNone) {  // buffer_wbl2, buffer_inv
    out.modifier(inst.sc0, "sc0");
    out.modifier(inst.nt, "nt");
    out.modifier(inst.sc1, "sc1");
    return out.take();
  }
  const Type data = op.src[1] != Type::kNone ? op.src[1] : op.dst;
  if (!inst.lds) out.add(vector_reg(inst.data0, dwords_of(data)));
  out.add(inst.offen || inst.idxen ? vector_reg(inst.addr, inst.offen && inst.idxen ? 2 : 1)
                                   : "off");
  out.add(scalar_reg(inst.srsrc, 4));
  out.add(operand(inst.src[0], 1));
  if (inst.format == Format::kMtbuf) {
    out.append(" format:" + std::to_string(inst.dfmt | inst.nfmt << 4));
  }
  out.modifier(inst.idxen, "idxen");
  out.modifier(inst.offen, "offen");
  out.modifier(inst.imm, "offset:" + std::to_string(inst.imm));
  out.modifier(inst.sc0, "sc0");
  out.modifier(inst.nt, "nt");
  out.modifier(inst.sc1, "sc1");
  out.modifier(inst.lds, "lds");
  return out.take();
}

}  // namespace

std::string disassemble(const Inst& inst) {
  if (!inst.op) return "unknown";
  switch (inst.format) {
    case Format::kSmem:
      return smem_text(inst);
    case Format::kDs:
      return ds_text(inst);
    case Format::kFlat:
    case Format::kGlobal:
    case Format::kScratch:
      return flat_text(inst);
    case Format::kMubuf:
    case Format::kMtbuf:
      return buffer_text(inst);
    case Format::kVop1:
    case Format::kVop2:
    case Format::kVopc:
    case Format::kVop3:
      return vector_text(inst);
    case Format::kVop3p:
      return inst.op->flags & kMatrix ? matrix_text(inst) : vector_text(inst);
    case Format::kVop3px2:
      return matrix_text(inst);
    default:
      return scalar_text(inst);
  }
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Writes the text of the instruction at words[0] to `text`. Returns its size in dwords, 0 if it is
// unknown.
VGPU_EXPORT unsigned rfops_vgpu_disassemble(int gfx, const std::uint32_t* words, unsigned count,
                                            char* text, unsigned size) {
  vgpu::Inst inst;
  if (!count || !size) return 0;
  for (vgpu::u32 arch = 0; arch < vgpu::kArchCount; ++arch) {
    if (vgpu::kArchs[arch].number != static_cast<vgpu::u32>(gfx)) continue;
    vgpu::decode(static_cast<vgpu::Arch>(arch), words, count, 0, inst);
  }
  std::snprintf(text, size, "%s", vgpu::disassemble(inst).c_str());
  return inst.op ? inst.dwords : 0;
}
