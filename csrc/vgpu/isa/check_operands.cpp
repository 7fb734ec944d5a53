#include "vgpu/isa/check_operands.h"

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

struct Builder {
  const Inst& inst;
  const OpInfo& op;
  Operands out;

  explicit Builder(const Inst& i) : inst(i), op(*i.op) {
    out.reads_scc = op.effects & kReadsScc;
    out.writes_scc = op.effects & kWritesScc;
    out.writes_exec = op.effects & kWritesExec;
    out.lds_dma = category_of(inst) == Category::kLdsDma;
    out.atomic = op.flags & kAtomic;
    out.exchanges = op.flags & kExchanges;
    out.typed = op.flags & kTyped;
    out.dot = op.flags & kDot;
    out.spread = op.spread;
  }

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

  // Adds operands that the encoding does not name. EXEC is not among the tracked registers.
  void implicit() {
    if (op.effects & kReadsVcc) out.sreads.add(kVccLo, 2);
    if (op.effects & kReadsM0 || out.lds_dma) out.sreads.add(kM0, 1, Role::kAddress);
    if (op.effects & kWritesM0) out.swrites.add(kM0, 1);
  }

  // ------------------------------------------------------------------ scalar formats

  void scalar() {
    const Role role = op.flow == Flow::kIndirect ? Role::kAddress : Role::kSource;
    const bool bits = op.syntax == Syntax::kIndexMode;  // the second field is an immediate
    if (op.src[0] != Type::kNone) source(0, role);
    if (op.src[1] != Type::kNone && !bits) source(1, role);
    const u32 dwords = dwords_of(op.dst);
    if (op.flags & (kReadsDst | kDstIsSource).flags) out.sreads.add(inst.dst, dwords);
    if (!(op.flags & kDstIsSource)) out.swrites.add(inst.dst, dwords);
  }

  void smem() {
    out.queue = Queue::kScalar;
    const bool has_address = op.src[0] != Type::kNone;  // false for s_memtime and s_memrealtime
    if (has_address) out.sreads.add(inst.saddr, dwords_of(op.src[0]), Role::kAddress);
    if (has_address && inst.soffset_en) source(inst.src[0], 1, Role::kAddress);
    const u32 data = dwords_of(op.src[1]);
    out.sreads.add(inst.dst, data, Role::kData);
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
    const bool cancels = op.spread == Spread::kCancels;
    if (cancels) out.spread = same_sources() ? Spread::kNothing : Spread::kAny;
    destination();
  }

  bool same_sources() const {
    const Src &a = inst.src[0], &b = inst.src[1];
    return a.kind == b.kind && a.reg == b.reg && inst.lane_mod == LaneMod::kNone &&
           (a.kind == SrcKind::kVgpr || a.kind == SrcKind::kSgpr);
  }

  void destination() {
    const u32 dwords = dwords_of(op.dst);
    if (inst.format == Format::kVopc) return out.swrites.add(inst.sdst, 2);
    if (op.flags & kScalarDst) {
      out.swrites.add(inst.dst, dwords);
    } else if (dwords) {
      out.vwrites.add(inst.dst, dwords);
      const bool sdwa_part = inst.lane_mod == LaneMod::kSdwa && inst.sdwa.dst_sel < 6;
      const bool half = dwords == 1 && (op.flags & kKeepHigh || inst.opsel & 8) && inst.vop3 &&
                        inst.format != Format::kVop3p;
      out.partial = half || op.flags & kMerges || (sdwa_part && inst.sdwa.dst_unused == 2);
      if (op.flags & kReadsDst || out.partial) out.vreads.add(inst.dst, dwords);
    }
    const bool swaps = op.spread == Spread::kSwap || op.spread == Spread::kPermlane;
    if (swaps) out.vwrites.add(inst.src[0].reg, 1);
    if (op.flags & kCarryOut) out.swrites.add(inst.sdst, 2);
  }

  // ------------------------------------------------------------------ memory

  void ds() {
    out.queue = Queue::kLds;
    out.signals = out.atomic;
    if (op.src[0] != Type::kNone) {
      // Ds_swizzle has data in the address field.
      const bool data = out.spread == Spread::kCrossbar && op.src[1] == Type::kNone;
      out.vreads.add(inst.addr, 1, data ? Role::kSource : Role::kAddress);
    }
    out.vreads.add(inst.data0, dwords_of(op.src[1]));
    out.vreads.add(inst.data1, dwords_of(op.src[2]));
    out.vwrites.add(inst.dst, dwords_of(op.dst));
  }

  void flat() {
    out.queue = inst.format == Format::kFlat ? Queue::kFlat : Queue::kVector;
    out.signals = inst.sc0 || inst.sc1;
    const bool scalar_base = inst.saddr != kNoSaddr && inst.format != Format::kFlat;
    if (inst.format == Format::kScratch) {
      if (inst.sve) out.vreads.add(inst.addr, 1, Role::kAddress);
      if (scalar_base) out.sreads.add(inst.saddr & 127u, 1, Role::kAddress);
    } else {
      out.vreads.add(inst.addr, scalar_base ? 1 : 2, Role::kAddress);
      if (scalar_base) out.sreads.add(inst.saddr & 127u, 2, Role::kAddress);
    }
    out.vreads.add(inst.data0, dwords_of(op.src[1]), Role::kData);
    if (!out.atomic || inst.sc0) out.vwrites.add(inst.dst, dwords_of(op.dst));
  }

  void buffer() {
    if (op.category == Category::kVmemCache) return;
    out.queue = Queue::kVector;
    out.vreads.add(inst.addr, inst.idxen + inst.offen, Role::kAddress);
    out.sreads.add(inst.srsrc & 0x7cu, 4, Role::kAddress);
    source(inst.src[0], 1, Role::kAddress);
    out.vreads.add(inst.data0, dwords_of(op.src[1]), Role::kData);
    if ((!out.atomic || inst.sc0) && !out.lds_dma) out.vwrites.add(inst.data0, dwords_of(op.dst));
  }
};

void collect_sets(Operands& operands, u32 accum_offset) {
  const auto vectors = [&](const RegRange& range) {
    for (u32 reg = range.first; reg < u32{range.first} + range.count; ++reg) {
      operands.vectors.add(reg < 256 ? reg : accum_offset + reg - 256);
    }
  };
  const auto scalars = [&](const RegRange& range) {
    for (u32 r = 0; r < range.count; ++r) operands.scalars.add((range.first + r) & 127);
  };
  for (const RegRange& range : operands.vreads) vectors(range);
  for (const RegRange& range : operands.vwrites) vectors(range);
  for (const RegRange& range : operands.sreads) scalars(range);
  for (const RegRange& range : operands.swrites) scalars(range);
}

}  // namespace

Operands operands_of(const Inst& inst, u32 accum_offset) {
  Builder b(inst);
  switch (inst.format) {
    case Format::kSop1:
    case Format::kSop2:
    case Format::kSopc:
    case Format::kSopk:
      b.scalar();
      break;
    case Format::kSopp:
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
  b.implicit();
  collect_sets(b.out, accum_offset);
  return b.out;
}

}  // namespace vgpu
