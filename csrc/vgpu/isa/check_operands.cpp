#include "vgpu/isa/check_operands.h"

#include <string_view>

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

constexpr u64 bit_range(u32 first, u32 last) {
  return (last == 63 ? 0 : u64{1} << (last + 1)) - (u64{1} << first);
}

// Opcodes that write SCC; the tables say it in the result's type only.
constexpr u64 kSop1WritesScc =
    bit_range(4, 7) | bit_range(10, 13) | bit_range(32, 41) | u64{1} << 48 | bit_range(51, 54);
constexpr u64 kSop2WritesScc =
    bit_range(0, 9) | bit_range(12, 33) | bit_range(37, 40) | u64{1} << 42 | bit_range(46, 49);
constexpr u64 kSop2ReadsScc = bit_range(4, 5) | bit_range(10, 11);
constexpr u64 kSop1WritesExec = bit_range(32, 39) | bit_range(51, 54);

enum Sop1 : u32 {
  kCmov32 = 2,
  kCmov64 = 3,
  kBitset0 = 24,
  kBitset3 = 27,
  kSetpc = 29,
  kSwappc = 30
};
enum Sopk : u32 {
  kCmovk = 1,
  kCmpkFirst = 2,
  kCmpkLast = 13,
  kAddk = 14,
  kMulk = 15,
  kSetreg = 18
};
enum Sopp : u32 { kBranchScc0 = 4, kBranchScc1 = 5, kBranchVccz = 6, kBranchVccnz = 7 };
constexpr u32 kSetVskip = 16, kSetGprIdxOn = 17;  // SOPC: its second field is a number

struct Builder {
  const Inst& inst;
  const OpInfo& op;
  Operands out;

  explicit Builder(const Inst& i) : inst(i), op(*i.op) {}

  void source(const Src& src, u32 dwords, Role role = Role::kSource) {
    if (src.kind == SrcKind::kVgpr) out.vreads.add(src.reg, dwords, role);
    if (src.kind == SrcKind::kSgpr) out.sreads.add(src.reg, dwords, role);
    if (src.kind != SrcKind::kSpecial) return;
    if (src.reg == kScc) out.reads_scc = true;
    if (src.reg == kVccz) out.sreads.add(kVccLo, 2, role);
  }
  void source(u32 s, Role role = Role::kSource) {
    source(inst.src[s], dwords_of(inst.src[s].type), role);
  }

  // ------------------------------------------------------------------ scalar formats

  void sop1() {
    const u32 number = op.opcode;
    if (op.src[0] != Type::kNone) {
      source(0, number == kSetpc || number == kSwappc ? Role::kAddress : Role::kSource);
    }
    const u32 dwords = dwords_of(op.dst);
    if (number == kCmov32 || number == kCmov64) out.reads_scc = true;
    const bool merges =
        number == kCmov32 || number == kCmov64 || (number >= kBitset0 && number <= kBitset3);
    if (merges) out.sreads.add(inst.dst, dwords);
    out.swrites.add(inst.dst, dwords);
    out.writes_scc = kSop1WritesScc >> number & 1;
    out.writes_exec = kSop1WritesExec >> number & 1;
  }
  void sop2() {
    source(0);
    source(1);
    out.swrites.add(inst.dst, dwords_of(op.dst));
    out.writes_scc = kSop2WritesScc >> op.opcode & 1;
    out.reads_scc = kSop2ReadsScc >> op.opcode & 1;
  }
  void sopc() {
    source(0);
    if (op.opcode == kSetGprIdxOn) return;
    source(1);
    out.writes_scc = op.opcode != kSetVskip;
  }
  void sopk() {
    const u32 number = op.opcode, dwords = dwords_of(op.dst);
    const bool compares = number >= kCmpkFirst && number <= kCmpkLast;
    const bool merges = number == kCmovk || number == kAddk || number == kMulk;
    if (compares || merges || number == kSetreg) out.sreads.add(inst.dst, dwords);
    if (!compares && number != kSetreg) out.swrites.add(inst.dst, dwords);
    out.writes_scc = compares || number == kAddk;
    out.reads_scc = number == kCmovk;
  }

  void sopp() {
    const u32 number = op.opcode;
    out.reads_scc = number == kBranchScc0 || number == kBranchScc1;
    if (number == kBranchVccz || number == kBranchVccnz) out.sreads.add(kVccLo, 2);
  }

  void smem() {
    out.queue = Queue::kScalar;
    const bool has_address = op.src[0] != Type::kNone;  // not that of a clock
    if (has_address) out.sreads.add(inst.saddr, dwords_of(op.src[0]), Role::kAddress);
    if (has_address && inst.soffset_en) source(inst.src[0], 1, Role::kAddress);
    const u32 data = dwords_of(op.src[1]);
    out.sreads.add(inst.dst, data, Role::kData);
    out.atomic = data && op.dst != Type::kNone;
    if (!out.atomic || inst.sc0) out.swrites.add(inst.dst, dwords_of(op.dst));
    const bool empty = op.dst == Type::kNone && !data;  // cache control
    if (empty) out.queue = Queue::kNone;
  }

  // ------------------------------------------------------------------ vector ALU

  void vector() {
    const MatrixShape* shape = matrix_shape(inst);
    for (u32 s = 0; s < 3; ++s) {
      const bool carry = s == 2 && op.flags & kCarryIn;
      if (op.src[s] == Type::kNone && !carry) continue;
      source(inst.src[s], shape ? matrix_dwords(*shape, inst, s) : dwords_of(inst.src[s].type));
    }
    if (inst.format == Format::kVop3px2) {
      source(inst.scale[0], 1);
      source(inst.scale[1], 1);
    }
    const std::string_view name = op.name;
    out.reads_vcc = name.starts_with("v_div_fmas");
    out.dot = name.starts_with("v_dot");
    if (out.reads_vcc) out.sreads.add(kVccLo, 2);
    out.flow = shape ? Flow::kMatrix : flow_of(name);
    destination(name);
  }

  bool same_sources() const {
    const Src &a = inst.src[0], &b = inst.src[1];
    return a.kind == b.kind && a.reg == b.reg && inst.lane_mod == LaneMod::kNone &&
           (a.kind == SrcKind::kVgpr || a.kind == SrcKind::kSgpr);
  }

  Flow flow_of(std::string_view name) const {
    struct Row {
      std::string_view start;
      Flow flow;
    };
    static constexpr Row kRows[] = {
        {"v_cndmask", Flow::kSelect},        {"v_mov_b64", Flow::kRows},
        {"v_perm_b32", Flow::kBytes},        {"v_readlane", Flow::kReadLane},
        {"v_readfirst", Flow::kReadFirst},   {"v_writelane", Flow::kWriteLane},
        {"v_swap_b32", Flow::kSwap},         {"v_permlane", Flow::kPermlane},
        {"v_pk_mov_b32", Flow::kPair},       {"v_pk_fma_f32", Flow::kPair},
        {"v_mad_u64_u32", Flow::kUpwards},   {"v_mad_i64_i32", Flow::kUpwards},
        {"v_lshl_add_u64", Flow::kUpwards},  {"v_lshlrev_b64", Flow::kUpwards},
        {"v_lshrrev_b64", Flow::kDownwards}, {"v_ashrrev_i64", Flow::kDownwards},
        {"v_pk_mul_f32", Flow::kPair},       {"v_pk_add_f32", Flow::kPair},
    };
    for (const Row& row : kRows) {
      if (name.starts_with(row.start)) return row.flow;
    }
    const bool cancels = name.starts_with("v_xor_b32") || name.starts_with("v_sub_u32") ||
                         name.starts_with("v_sub_u16") || name.starts_with("v_sub_i32");
    return cancels && same_sources() ? Flow::kNothing : Flow::kAny;
  }

  void destination(std::string_view name) {
    const u32 dwords = dwords_of(op.dst);
    if (inst.format == Format::kVopc) {
      out.swrites.add(inst.sdst, 2);
      out.writes_exec = name.starts_with("v_cmpx");
      return;
    }
    if (op.flags & kScalarDst) {
      out.swrites.add(inst.dst, dwords);
    } else if (dwords) {
      out.vwrites.add(inst.dst, dwords);
      const bool sdwa_part = inst.lane_mod == LaneMod::kSdwa && inst.sdwa.dst_sel < 6;
      const bool half = dwords == 1 && (op.flags & kKeepHigh || inst.opsel & 8) && inst.vop3 &&
                        inst.format != Format::kVop3p;
      // These replace a half or a byte of the register that they name as an input.
      const bool merges =
          op.flags & kReadsDst && (name.starts_with("v_cvt") || name.starts_with("v_fma_mix"));
      out.partial = half || merges || (sdwa_part && inst.sdwa.dst_unused == 2);
      if (op.flags & kReadsDst || out.partial) out.vreads.add(inst.dst, dwords);
    }
    const bool swaps = name.starts_with("v_swap") || name.starts_with("v_permlane");
    if (swaps) out.vwrites.add(inst.src[0].reg, 1);
    if (op.flags & kCarryOut) out.swrites.add(inst.sdst, 2);
  }

  // ------------------------------------------------------------------ memory

  void ds() {
    out.queue = Queue::kLds;
    const std::string_view name = op.name;
    if (op.src[0] != Type::kNone) {
      const bool swizzle = name.starts_with("ds_swizzle");
      out.vreads.add(inst.addr, 1, swizzle ? Role::kSource : Role::kAddress);
    }
    out.vreads.add(inst.data0, dwords_of(op.src[1]));
    out.vreads.add(inst.data1, dwords_of(op.src[2]));
    out.vwrites.add(inst.dst, dwords_of(op.dst));
    const bool plain = name.starts_with("ds_read") || name.starts_with("ds_write");
    const bool crossbar =
        name.starts_with("ds_swizzle") || name.find("permute") != name.npos || name == "ds_nop";
    out.atomic = out.signals = !plain && !crossbar;
    out.exchanges = name.find("xchg") != name.npos;
    if (crossbar) out.flow = Flow::kCrossbar;
    const bool by_m0 =
        name.find("addtid") != name.npos || name == "ds_append" || name == "ds_consume";
    if (by_m0) out.sreads.add(kM0, 1, Role::kAddress);
    set_partial(name);
  }

  void set_partial(std::string_view name) {
    out.partial =
        name.find("d16") != name.npos && op.dst != Type::kNone && name.find("format") == name.npos;
  }

  void lds_form(bool lds) {
    out.lds_dma = lds;
    if (lds) out.sreads.add(kM0, 1, Role::kAddress);
  }

  void flat() {
    out.queue = inst.format == Format::kFlat ? Queue::kFlat : Queue::kVector;
    const std::string_view name = op.name;
    const bool scalar_base = inst.saddr != kNoSaddr && inst.format != Format::kFlat;
    if (inst.format == Format::kScratch) {
      if (inst.sve) out.vreads.add(inst.addr, 1, Role::kAddress);
      if (scalar_base) out.sreads.add(inst.saddr & 127u, 1, Role::kAddress);
    } else {
      out.vreads.add(inst.addr, scalar_base ? 1 : 2, Role::kAddress);
      if (scalar_base) out.sreads.add(inst.saddr & 127u, 2, Role::kAddress);
    }
    out.vreads.add(inst.data0, dwords_of(op.src[1]), Role::kData);
    out.atomic = op.src[1] != Type::kNone && op.dst != Type::kNone;
    out.signals = inst.sc0 || inst.sc1;
    out.exchanges = name.find("atomic_swap") != name.npos;
    lds_form(name.find("load_lds") != name.npos);
    if (!out.atomic || inst.sc0) out.vwrites.add(inst.dst, dwords_of(op.dst));
    set_partial(name);
  }

  void buffer() {
    const std::string_view name = op.name;
    if (op.src[0] == Type::kNone) return;  // cache control
    out.queue = Queue::kVector;
    out.vreads.add(inst.addr, inst.idxen + inst.offen, Role::kAddress);
    out.sreads.add(inst.srsrc & 0x7cu, 4, Role::kAddress);
    source(inst.src[0], 1, Role::kAddress);
    out.vreads.add(inst.data0, dwords_of(op.src[1]), Role::kData);
    out.atomic = op.src[1] != Type::kNone && op.dst != Type::kNone;
    out.exchanges = name.find("atomic_swap") != name.npos;
    out.typed = name.find("format") != name.npos;
    lds_form(inst.lds);
    if ((!out.atomic || inst.sc0) && !inst.lds) out.vwrites.add(inst.data0, dwords_of(op.dst));
    set_partial(name);
  }
};

void collect_sets(Operands& all, u32 accum_offset) {
  const auto vectors = [&](const RegRange& range) {
    for (u32 reg = range.first; reg < u32{range.first} + range.count; ++reg) {
      all.vectors.add(reg < 256 ? reg : accum_offset + reg - 256);
    }
  };
  const auto scalars = [&](const RegRange& range) {
    for (u32 r = 0; r < range.count; ++r) all.scalars.add((range.first + r) & 127);
  };
  for (const RegRange& range : all.vreads) vectors(range);
  for (const RegRange& range : all.vwrites) vectors(range);
  for (const RegRange& range : all.sreads) scalars(range);
  for (const RegRange& range : all.swrites) scalars(range);
}

}  // namespace

Operands operands_of(const Inst& inst, u32 accum_offset) {
  Builder b(inst);
  switch (inst.format) {
    case Format::kSop1:
      b.sop1();
      break;
    case Format::kSop2:
      b.sop2();
      break;
    case Format::kSopc:
      b.sopc();
      break;
    case Format::kSopk:
      b.sopk();
      break;
    case Format::kSopp:
      b.sopp();
      break;
    case Format::kSmem:
      b.smem();
      break;
    case Format::kDs:
      b.ds();
      break;
    case Format::kFlat:
    case Format::kGlobal:
    case Format::kScratch:
      b.flat();
      break;
    case Format::kMubuf:
    case Format::kMtbuf:
      b.buffer();
      break;
    default:
      b.vector();
      break;
  }
  collect_sets(b.out, accum_offset);
  return b.out;
}

}  // namespace vgpu
