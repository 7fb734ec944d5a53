// Propagates undefined lanes through vector instructions.
#include <bit>

#include "vgpu/exec/lanes.h"
#include "vgpu/isa/mfma.h"
#include "vgpu/watch/check_registers.h"

namespace vgpu {
namespace {

constexpr u32 kUnwritten = 2;  // a flag value that no source has

void expand_mask(u64 lanes, u32* flags) {
  for (u32 lane = 0; lane < kLanes; ++lane) flags[lane] = lanes >> lane & 1;
}
u64 gather(const u32* flags, u32 value) {
  u64 lanes = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) lanes |= u64{flags[lane] == value} << lane;
  return lanes;
}

void merge(LaneBits& target, const LaneBits& source) {
  if (!target.lanes) target.origin = source.origin;
  target.lanes |= source.lanes;
}

}  // namespace

void RegisterCheck::vector(RegisterState& state, Wave& wave, const Inst& inst,
                           const Operands& operands) {
  u64 mask = exec_;
  if (inst.lane_mod == LaneMod::kDpp) mask = write_mask(wave, inst);
  LaneBits result;
  switch (operands.spread) {
    case Spread::kNothing:
      break;
    case Spread::kSelect:
      result = selected(state, wave, inst);
      break;
    case Spread::kRows:
    case Spread::kPair:
      return rows(state, inst, operands, mask);
    case Spread::kTowardsHigh:
    case Spread::kTowardsLow:
      return wide(state, wave, inst, operands, mask);
    case Spread::kBytes:
      result = permuted_bytes(state, wave, inst);
      break;
    case Spread::kReadLane:
    case Spread::kReadFirst:
      return read_lane(state, wave, inst, operands);
    case Spread::kWriteLane:
      return write_lane(state, wave, inst);
    case Spread::kSwap:
    case Spread::kPermlane:
      return exchange(state, wave, inst, operands.spread);
    case Spread::kMatrix:
      return matrix(state, inst);
    default:
      result = any_source(state, wave, inst, operands);
  }
  for (const RegRange& range : operands.vwrites) {
    for (u32 r = 0; r < range.count; ++r) set_lanes(state, range.first + r, result, mask);
  }
  const ScalarBits bits = {result.lanes & mask, result.origin};
  for (const RegRange& range : operands.swrites) set_bits(state, range.first, range.count, bits);
  if (operands.writes_exec) check_exec(state, wave, inst, bits);
}

// A lane is undefined if any source is. A result that replaces a part of its register counts as
// defined if that part is.
LaneBits RegisterCheck::any_source(const RegisterState& state, Wave& wave, const Inst& inst,
                                   const Operands& operands) {
  LaneBits merged;
  for (u32 s = 0; s < 3; ++s) {
    const Src& src = inst.src[s];
    if (src.kind == SrcKind::kNone || src.kind == SrcKind::kConst) continue;
    if (s == 2 && inst.op->flags & kCarryIn) {  // a lane mask
      const ScalarBits bits = source_bits(state, src, 2);
      merge(merged, {bits.bits, bits.origin});
      continue;
    }
    LaneBits lanes = source_lanes(state, src, dwords_of(src.type));
    if (s == 0 && inst.lane_mod == LaneMod::kDpp && lanes.lanes) {
      lanes = dpp_source(lanes, wave, inst);
    }
    merge(merged, lanes);
  }
  if (inst.op->effects & kReadsVcc) {
    const ScalarBits bits = scalar_bits(state, kVccLo, 2);
    merge(merged, {bits.bits, bits.origin});
  }
  if (inst.op->flags & kReadsDst && !operands.partial) {
    const u8 dwords = static_cast<u8>(dwords_of(inst.op->dst));
    merge(merged, lanes_of(state, {inst.dst, dwords, Role::kSource}));
  }
  return merged;
}

LaneBits RegisterCheck::selected(const RegisterState& state, const Wave& wave,
                                 const Inst& inst) const {
  const LaneBits a = source_lanes(state, inst.src[0], 1), b = source_lanes(state, inst.src[1], 1);
  const ScalarBits any_undefined = source_bits(state, inst.src[2], 2);
  const u64 takes_b = read_scalar64(wave, inst.src[2]);
  LaneBits result = {(a.lanes & ~takes_b) | (b.lanes & takes_b), a.lanes ? a.origin : b.origin};
  const bool same_register =
      inst.src[0].kind == inst.src[1].kind && inst.src[0].reg == inst.src[1].reg;
  if (!same_register) merge(result, {any_undefined.bits, any_undefined.origin});
  return result;
}

// v_perm_b32: selectors 0 to 3 are bytes of source 1, 4 to 7 of source 0, 8 to 11 signs of both.
LaneBits RegisterCheck::permuted_bytes(const RegisterState& state, const Wave& wave,
                                       const Inst& inst) const {
  const LaneBits a = source_lanes(state, inst.src[0], 1), b = source_lanes(state, inst.src[1], 1);
  LaneBits result = source_lanes(state, inst.src[2], 1);
  if (inst.src[2].kind == SrcKind::kVgpr || result.lanes) {
    merge(result, a);
    merge(result, b);
    return result;
  }
  const u32 selectors = read_scalar32(wave, inst.src[2]);
  for (u32 i = 0; i < 4; ++i) {
    const u32 byte = selectors >> (8 * i) & 0xff;
    if (byte < 4 || byte == 8 || byte == 9) merge(result, b);
    if ((byte >= 4 && byte < 8) || byte == 10 || byte == 11) merge(result, a);
  }
  return result;
}

// Each register separately: from the source register at the same position, or the one that op_sel
// selects.
void RegisterCheck::rows(RegisterState& state, const Inst& inst, const Operands& operands,
                         u64 mask) {
  LaneBits result[2];
  const auto row_of = [&](const Src& src, u32 selector) -> LaneBits {
    if (src.kind == SrcKind::kVgpr) return register_lanes(state, src.reg + selector);
    const ScalarBits bits = source_bits(state, src, 2);
    const u32 half = static_cast<u32>(bits.bits >> (32 * selector));
    return {half ? ~u64{0} : 0, bits.origin};
  };
  const bool move = inst.op->dst == Type::kPkB32;
  for (u32 half = 0; half < 2; ++half) {
    if (operands.spread == Spread::kRows) {
      result[half] = row_of(inst.src[0], half);
    } else if (move) {  // v_pk_mov_b32: low from source 0, high from source 1
      result[half] = row_of(inst.src[half], inst.opsel >> half & 1);
    } else {
      for (u32 s = 0; s < 3; ++s) {
        if (inst.src[s].kind == SrcKind::kNone) continue;
        merge(result[half], row_of(inst.src[s], (half ? inst.opsel_hi : inst.opsel) >> s & 1));
      }
    }
  }
  for (u32 half = 0; half < 2; ++half) set_lanes(state, inst.dst + half, result[half], mask);
}

// One dword of the result depends on all source dwords, the other only on the corresponding dword
// of wide sources: compilers leave the unused half undefined.
void RegisterCheck::wide(RegisterState& state, Wave& wave, const Inst& inst,
                         const Operands& operands, u64 mask) {
  // The dword that depends on half of the source dwords.
  const u32 partial = operands.spread == Spread::kTowardsLow;
  LaneBits result[2] = {any_source(state, wave, inst, operands), {}};
  if (partial == 0) std::swap(result[0], result[1]);
  LaneBits& half = result[partial];
  for (const Src& src : inst.src) {
    if (src.kind == SrcKind::kNone) continue;
    const bool is_wide = dwords_of(src.type) == 2;
    if (src.kind == SrcKind::kVgpr && is_wide) {
      merge(half, register_lanes(state, src.reg + partial));
    } else if (is_wide) {
      const ScalarBits bits = source_bits(state, src, 2);
      merge(half, {static_cast<u32>(bits.bits >> (32 * partial)) ? ~u64{0} : 0, bits.origin});
    } else {
      merge(half, source_lanes(state, src, 1));
    }
  }
  for (u32 d = 0; d < 2; ++d) set_lanes(state, inst.dst + d, result[d], mask);
  const ScalarBits carry = {result[1 - partial].lanes & mask, result[1 - partial].origin};
  for (const RegRange& range : operands.swrites) set_bits(state, range.first, range.count, carry);
}

void RegisterCheck::read_lane(RegisterState& state, const Wave& wave, const Inst& inst,
                              const Operands& operands) {
  const LaneBits source = source_lanes(state, inst.src[0], 1);
  u32 lane = exec_ ? static_cast<u32>(std::countr_zero(exec_)) : 0;
  ScalarBits number;
  if (operands.spread == Spread::kReadLane) {
    number = source_bits(state, inst.src[1], 1);
    lane = read_scalar32(wave, inst.src[1]) & 63;
  }
  const bool bad = number.bits || source.lanes >> lane & 1;
  set_bits(state, inst.dst, 1, {bad ? ~u64{0} : 0, number.bits ? number.origin : source.origin});
}

// A partially defined scalar register counts as defined: compilers keep lane masks in lanes of a
// vector register, with undefined bits for inactive lanes.
void RegisterCheck::write_lane(RegisterState& state, const Wave& wave, const Inst& inst) {
  const ScalarBits value = source_bits(state, inst.src[0], 1);
  const u32 lane = read_scalar32(wave, inst.src[1]) & 63;
  const bool bad = static_cast<u32>(value.bits) == 0xffffffff;
  set_lanes(state, inst.dst, {bad ? ~u64{0} : 0, value.origin}, lane_bit(lane));
}

void RegisterCheck::exchange(RegisterState& state, Wave& wave, const Inst& inst, Spread spread) {
  const u32 other_reg = inst.src[0].reg;
  const LaneBits a = register_lanes(state, inst.dst), b = register_lanes(state, other_reg);
  if (spread == Spread::kSwap) {
    set_lanes(state, inst.dst, b, exec_);
    set_lanes(state, other_reg, a, exec_);
    return;
  }
  if (!(a.lanes | b.lanes)) return;
  shadow_.set_exec(exec_);
  expand_mask(a.lanes, shadow_.v(inst.dst));
  expand_mask(b.lanes, shadow_.v(other_reg));
  shadow_.group = wave.group;
  inst.exec(shadow_, inst);
  const Origin origin = a.lanes ? a.origin : b.origin;
  set_lanes(state, inst.dst, {gather(shadow_.v(inst.dst), 1), origin}, ~u64{0});
  set_lanes(state, other_reg, {gather(shadow_.v(other_reg), 1), origin}, ~u64{0});
}

// Returns source 0 permuted by DPP.
LaneBits RegisterCheck::dpp_source(const LaneBits& source, Wave& wave, const Inst& inst) {
  // Executed on flags with this instruction's DPP fields, it shows the permutation.
  Inst move = inst;
  move.op = &lane_copy();
  move.exec = move.op->exec;
  move.format = Format::kVop1;
  move.src[0] = {SrcKind::kVgpr, Type::kB32, 0, 0};
  move.dst = 1;
  move.neg = move.abs = move.opsel = move.omod = 0;
  move.clamp = false;
  shadow_.set_exec(exec_);
  shadow_.group = wave.group;
  expand_mask(source.lanes, shadow_.v(0));
  for (u32 lane = 0; lane < kLanes; ++lane) shadow_.v(1)[lane] = kUnwritten;
  move.exec(shadow_, move);
  return {gather(shadow_.v(1), 1), source.origin};
}

// Executes ds_bpermute, ds_permute or ds_swizzle on flags.
LaneBits RegisterCheck::crossbar(const RegisterState& state, Wave& wave, const Inst& inst,
                                 const Operands& operands) {
  const bool swizzle = inst.op->src[1] == Type::kNone;  // its source is in the address field
  const LaneBits data = register_lanes(state, swizzle ? inst.addr : inst.data0);
  if (!data.lanes || !operands.vwrites.size) return {};
  Inst flags = inst;
  flags.addr = 0;
  flags.data0 = swizzle ? 0 : 1;
  flags.dst = 2;
  if (!swizzle) std::memcpy(shadow_.v(0), wave.v(inst.addr), kLanes * sizeof(u32));
  expand_mask(data.lanes, shadow_.v(flags.data0));
  shadow_.set_exec(exec_);
  shadow_.group = wave.group;
  inst.exec(shadow_, flags);
  return {gather(shadow_.v(2), 1), data.origin};
}

// -------------------------------------------------------------------------------- matrices

// A row of A or a column of B with an undefined element makes that row or column of D undefined.
// EXEC is ignored. Shapes with several blocks, and f64, only propagate C.
void RegisterCheck::matrix(RegisterState& state, const Inst& inst) {
  const MatrixShape& shape = *matrix_shape(inst);
  const u32 dim = shape.dim, count = matrix_dwords(shape, inst, 3);
  u64 row_bad = 0, column_bad = 0;
  Origin origin;
  if (shape.blocks == 1 && shape.out_bits() == 32 && dim >= 16) {
    const auto folded = [&](u32 s) {  // merges lanes that hold the same row or column
      const LaneBits merged = source_lanes(state, inst.src[s], matrix_dwords(shape, inst, s));
      u64 bad = 0;
      for (u32 group = 0; group < kLanes; group += dim)
        bad |= merged.lanes >> group & ((u64{1} << dim) - 1);
      if (bad) origin = merged.origin;
      return bad;
    };
    row_bad = folded(0);
    column_bad = folded(1);
  }
  const Src& c = inst.src[2];
  LaneBits results[32];
  for (u32 r = 0; r < count; ++r) {
    LaneBits& result = results[r];
    if (shape.sparse) {
      result = register_lanes(state, inst.dst + r);
    } else if (c.kind == SrcKind::kVgpr) {
      result = register_lanes(state, c.reg + r);
    }
    u64 bad = 0;
    for (u32 lane = 0; lane < kLanes && (row_bad | column_bad); ++lane) {
      const u32 group = lane / dim;
      const u32 row = dim == 32 ? 8 * (r / 4) + 4 * group + r % 4 : 4 * group + r;
      bad |= ((row_bad >> row | column_bad >> (lane % dim)) & 1) << lane;
    }
    merge(result, {bad, origin});
  }
  for (u32 r = 0; r < count; ++r) set_lanes(state, inst.dst + r, results[r], ~u64{0});
}

}  // namespace vgpu
