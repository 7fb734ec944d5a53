// VOP3P: packed halves, packed floats, dot products and mixed-precision FMA. (MFMA: ops_mfma.cpp.)
#include "vgpu/exec/dot.h"
#include "vgpu/exec/half_pairs.h"
#include "vgpu/exec/lanes.h"

namespace vgpu {
namespace {

f32 clamp_float(const Wave& w, f32 x) {
  if (is_nan(x)) return w.dx10_clamp() ? 0.0f : x;
  return x < 0 ? 0.0f : x > 1 ? 1.0f : x;
}
void clamp_floats(const Wave& w, u32* lanes) {
  for (u32 lane = 0; lane < kLanes; ++lane)
    store_lane<f32>(lanes, lane, clamp_float(w, load_lane<f32>(lanes, lane)));
}

// ------------------------------------------------------------ two 16-bit values

// A packed instruction runs its function on the low halves, then on the high halves. Each half is
// fetched into separate lanes, so the destination may be a source.
inline void combine(u32* out, const u32* low, const u32* high) {
  VGPU_LANES { out[lane] = (low[lane] & 0xffff) | high[lane] << 16; }
}

// Integer functions take i64, so that clamp can saturate.
template <class T, u32 kSources, auto kOp>
void packed_int(Wave& w, const Inst& inst) {
  constexpr i64 low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  Lanes tmp[3], result[2];
  for (u32 half = 0; half < 2; ++half) {
    const u32* a = fetch_packed(w, inst, 0, half, Type::kB16, tmp[0]);
    const u32* b = fetch_packed(w, inst, 1, half, Type::kB16, tmp[1]);
    const u32* c = kSources == 3 ? fetch_packed(w, inst, 2, half, Type::kB16, tmp[2]) : a;
    u32* out = result[half].word;
    const bool clamp = inst.clamp;
    VGPU_LANES {
      const i64 x =
          kOp(i64{load_lane<T>(a, lane)}, i64{load_lane<T>(b, lane)}, i64{load_lane<T>(c, lane)});
      out[lane] = static_cast<u32>(!clamp ? x : x < low ? low : x > high ? high : x);
    }
  }
  combine(result[0].word, result[0].word, result[1].word);
  store_masked(w, inst.dst, result[0].word, 1, w.exec());
}

template <u32 kSources, auto kOp, HalfOp kQuick>
void packed_f16(Wave& w, const Inst& inst) {
  if constexpr (kQuick != HalfOp::kNone) {
    if (run_half_pairs<kQuick>(w, inst)) return;
  }
  FpGuard guard(w);
  Lanes tmp[3], result[2];
  for (u32 half = 0; half < 2; ++half) {
    const u32* a = fetch_packed(w, inst, 0, half, Type::kF16, tmp[0]);
    const u32* b = fetch_packed(w, inst, 1, half, Type::kF16, tmp[1]);
    const u32* c = kSources == 3 ? fetch_packed(w, inst, 2, half, Type::kF16, tmp[2]) : a;
    u32* out = result[half].word;
    VGPU_LANES {
      store_lane<f32>(
          out, lane,
          kOp(load_lane<f16>(a, lane), load_lane<f16>(b, lane), load_lane<f16>(c, lane)));
    }
    if (inst.clamp) clamp_floats(w, out);
    narrow(w, Type::kF16, out);
  }
  combine(result[0].word, result[0].word, result[1].word);
  store_masked(w, inst.dst, result[0].word, 1, w.exec());
}

#define PK_INT(number, name, T, sources, ...)                               \
  {number,                                                                  \
   name,                                                                    \
   packed_int<T, sources, ([](i64 a, i64 b, i64 c) -> i64 {                 \
                (void)c;                                                    \
                return __VA_ARGS__;                                         \
              })>,                                                          \
   Type::kPkB16,                                                            \
   {Type::kPkB16, Type::kPkB16, sources == 3 ? Type::kPkB16 : Type::kNone}, \
   kVector}
#define PK_HALF(number, name, sources, traits, quick, ...)                  \
  {number,                                                                  \
   name,                                                                    \
   packed_f16<sources, ([](f16 a, f16 b, f16 c) -> f16 {                    \
                (void)c;                                                    \
                return __VA_ARGS__;                                         \
              }),                                                           \
              HalfOp::quick>,                                               \
   Type::kPkF16,                                                            \
   {Type::kPkF16, Type::kPkF16, sources == 3 ? Type::kPkF16 : Type::kNone}, \
   kVector | traits}

// -------------------------------------------------------------------------------- two floats

// Returns one float of a pair; without a sign flip the register itself.
inline const u32* fetch_float(Wave& w, const Inst& inst, u32 s, u32 half, Lanes& tmp) {
  const Src& src = inst.src[s];
  const u32 pick = (half ? inst.opsel_hi : inst.opsel) >> s & 1,
            neg = (half ? inst.neg_hi : inst.neg) >> s & 1;
  if (src.kind == SrcKind::kVgpr && !neg) return w.v(src.reg + pick);
  return fetch_packed(w, inst, s, half, Type::kF32, tmp);
}

template <u32 kSources, auto kOp>
void packed_f32(Wave& w, const Inst& inst) {
  Lanes tmp[2][3];
  const u32* src[2][3];
  for (u32 half = 0; half < 2; ++half) {
    for (u32 s = 0; s < kSources; ++s) src[half][s] = fetch_float(w, inst, s, half, tmp[half][s]);
    if (kSources == 2) src[half][2] = src[half][0];
  }
  Result<f64> result(w, inst);  // a register pair
  u32* out = result.out;
  const u32 *a0 = src[0][0], *b0 = src[0][1], *c0 = src[0][2];
  const u32 *a1 = src[1][0], *b1 = src[1][1], *c1 = src[1][2];
  VGPU_LANES {
    const f32 low =
        kOp(load_lane<f32>(a0, lane), load_lane<f32>(b0, lane), load_lane<f32>(c0, lane));
    const f32 high =
        kOp(load_lane<f32>(a1, lane), load_lane<f32>(b1, lane), load_lane<f32>(c1, lane));
    out[lane] = bits<u32>(low);
    out[lane + kLanes] = bits<u32>(high);
  }
  if (result.direct) return;
  if (inst.clamp) {
    clamp_floats(w, out);
    clamp_floats(w, out + kLanes);
  }
  store_masked(w, inst.dst, result.tmp.word, 2, w.exec());
}

#define PK_F32(number, name, sources, flops, ...)                           \
  {number,                                                                  \
   name,                                                                    \
   packed_f32<sources, ([](f32 a, f32 b, f32 c) -> f32 {                    \
                (void)c;                                                    \
                return __VA_ARGS__;                                         \
              })>,                                                          \
   Type::kPkF32,                                                            \
   {Type::kPkF32, Type::kPkF32, sources == 3 ? Type::kPkF32 : Type::kNone}, \
   kVector | Category::kPacked | Spread::kPair | flops}

// Low word: the half of src0 that op_sel[0] selects; high word: that of src1 by op_sel[1].
void v_pk_mov_b32(Wave& w, const Inst& inst) {
  Lanes ta, tb, out;
  const u32* low = fetch_packed(w, inst, 0, 0, Type::kB32, ta);
  const u32* high = fetch_packed(w, inst, 1, 0, Type::kB32, tb);
  std::memcpy(out.word, low, sizeof(u32) * kLanes);
  std::memcpy(out.word + kLanes, high, sizeof(u32) * kLanes);
  store_masked(w, inst.dst, out.word, 2, w.exec());
}

// -------------------------------------------------------------------------------- dot products

template <class T>
void v_dot2_float(Wave& w, const Inst& inst) {
  Lanes ta[2], tb[2], tc;
  const u32 *a[2], *b[2];
  for (u32 half = 0; half < 2; ++half) {
    a[half] = fetch_packed(w, inst, 0, half, kTypeOf<T>, ta[half]);
    b[half] = fetch_packed(w, inst, 1, half, kTypeOf<T>, tb[half]);
  }
  Lanes tmp;
  const Src& addend = inst.src[2];
  const u32* c = addend.kind == SrcKind::kVgpr ? w.v(addend.reg) : tc.word;
  if (c == tc.word) broadcast(tc.word, read_scalar32(w, addend));
  const u32 flip = inst.neg & 4 ? 0x80000000 : 0;
  const u32 *a0 = a[0], *a1 = a[1], *b0 = b[0], *b1 = b[1];
  u32* out = tmp.word;
  VGPU_LANES {
    store_lane<f32>(
        out, lane,
        dot2_value(load_lane<f32>(a0, lane), load_lane<f32>(b0, lane), load_lane<f32>(a1, lane),
                   load_lane<f32>(b1, lane), bits<f32>(c[lane] ^ flip)));
  }
  if (inst.clamp) clamp_floats(w, out);
  store_masked(w, inst.dst, out, 1, w.exec());
}

template <class T, u32 kBits>
void v_dot_int(Wave& w, const Inst& inst) {
  using Wide = std::conditional_t<std::is_signed_v<T>, i32, u32>;
  Lanes t[3], out;
  const u32* src[3];
  for (u32 s = 0; s < 3; ++s) {
    const Src& operand = inst.src[s];
    src[s] = operand.kind == SrcKind::kVgpr ? w.v(operand.reg) : t[s].word;
    if (src[s] == t[s].word) broadcast(t[s].word, read_scalar32(w, operand));
  }
  constexpr i64 low = std::numeric_limits<Wide>::min(), high = std::numeric_limits<Wide>::max();
  for (u32 lane = 0; lane < kLanes; ++lane) {
    i64 x = integer_dot<T, kBits>(src[0][lane], src[1][lane], i64{static_cast<Wide>(src[2][lane])});
    if (inst.clamp) x = x < low ? low : x > high ? high : x;
    out.word[lane] = static_cast<u32>(x);
  }
  store_masked(w, inst.dst, out.word, 1, w.exec());
}
#define DOT_I(number, name, T, width)                                                          \
  {number,        name, v_dot_int<T, width>, Type::kB32, {Type::kB32, Type::kB32, Type::kB32}, \
   kVector | kDot}

// -------------------------------------------------------------------------------- mixed precision

// Each source is a float or, by op_sel_hi, the half that op_sel selects. neg is neg, neg_hi is abs.
const u32* fetch_mixed(Wave& w, const Inst& inst, u32 s, Lanes& tmp) {
  const bool is_half = inst.opsel_hi >> s & 1;
  Inst view = inst;
  view.plain = false;
  view.abs = inst.neg_hi;
  return fetch_slow(w, view, s, is_half ? Type::kF16 : Type::kF32, tmp);
}

enum class MixTo { kFloat, kLow, kHigh };
template <MixTo kTarget>
void v_fma_mix(Wave& w, const Inst& inst) {
  Lanes ta, tb, tc, out;
  const u32* a = fetch_mixed(w, inst, 0, ta);
  const u32* b = fetch_mixed(w, inst, 1, tb);
  const u32* c = fetch_mixed(w, inst, 2, tc);
  const u32* old = w.v(inst.dst);
  std::conditional_t<kTarget == MixTo::kFloat, NoGuard, FpGuard> guard(w);
  VGPU_LANES {
    store_lane<f32>(
        out.word, lane,
        __builtin_fmaf(load_lane<f32>(a, lane), load_lane<f32>(b, lane), load_lane<f32>(c, lane)));
  }
  if (inst.clamp) clamp_floats(w, out.word);
  if constexpr (kTarget != MixTo::kFloat) {
    narrow(w, Type::kF16, out.word);
    const u32 kept_mask = kTarget == MixTo::kLow ? 0xffff0000 : 0xffff,
              shift = kTarget == MixTo::kLow ? 0 : 16;
    VGPU_LANES { out.word[lane] = (old[lane] & kept_mask) | out.word[lane] << shift; }
  }
  store_masked(w, inst.dst, out.word, 1, w.exec());
}
#define MIX(number, name, to, type, traits) \
  {number,                                  \
   name,                                    \
   v_fma_mix<to>,                           \
   type,                                    \
   {Type::kF32, Type::kF32, Type::kF32},    \
   kVector | kFlops2 | Syntax::kMixed | traits}

// -------------------------------------------------------------------------------- table

// clang-format off: one opcode a row
constexpr OpInfo kVop3p[] = {
    PK_INT(0, "v_pk_mad_i16", i16, 3, a * b + c),
    PK_INT(1, "v_pk_mul_lo_u16", u16, 2, a * b),
    PK_INT(2, "v_pk_add_i16", i16, 2, a + b),
    PK_INT(3, "v_pk_sub_i16", i16, 2, a - b),
    PK_INT(4, "v_pk_lshlrev_b16", u16, 2, b << (a & 15)),
    PK_INT(5, "v_pk_lshrrev_b16", u16, 2, b >> (a & 15)),
    PK_INT(6, "v_pk_ashrrev_i16", i16, 2, b >> (a & 15)),
    PK_INT(7, "v_pk_max_i16", i16, 2, a > b ? a : b),
    PK_INT(8, "v_pk_min_i16", i16, 2, a < b ? a : b),
    PK_INT(9, "v_pk_mad_u16", u16, 3, a * b + c),
    PK_INT(10, "v_pk_add_u16", u16, 2, a + b),
    PK_INT(11, "v_pk_sub_u16", u16, 2, a - b),
    PK_INT(12, "v_pk_max_u16", u16, 2, a > b ? a : b),
    PK_INT(13, "v_pk_min_u16", u16, 2, a < b ? a : b),
    PK_HALF(14, "v_pk_fma_f16", 3, kFlops4, kFma, half_fma(a, b, c)),
    PK_HALF(15, "v_pk_add_f16", 2, kFlops2, kAdd, a + b),
    PK_HALF(16, "v_pk_mul_f16", 2, kFlops2, kMul, a * b),
    PK_HALF(17, "v_pk_min_f16", 2, kNoTraits, kNone, float_min(a.value, b.value)),
    PK_HALF(18, "v_pk_max_f16", 2, kNoTraits, kNone, float_max(a.value, b.value)),
    {26, "v_dot2_f32_bf16", v_dot2_float<bf16>, Type::kF32, {Type::kPkBf16, Type::kPkBf16, Type::kF32}, kVector | kDot | kFlops4 | kOnGfx950},
    PK_HALF(27, "v_pk_minimum3_f16", 3, kOnGfx950, kNone, float_minimum(float_minimum(a.value, b.value), c.value)),
    PK_HALF(28, "v_pk_maximum3_f16", 3, kOnGfx950, kNone, float_maximum(float_maximum(a.value, b.value), c.value)),
    MIX(32, "v_fma_mix_f32", MixTo::kFloat, Type::kF32, kNoTraits),
    MIX(33, "v_fma_mixlo_f16", MixTo::kLow, Type::kF16, kReadsDst | kMerges),
    MIX(34, "v_fma_mixhi_f16", MixTo::kHigh, Type::kF16, kReadsDst | kMerges),
    {35, "v_dot2_f32_f16", v_dot2_float<f16>, Type::kF32, {Type::kPkF16, Type::kPkF16, Type::kF32}, kVector | kDot | kFlops4},
    DOT_I(38, "v_dot2_i32_i16", i16, 16),
    DOT_I(39, "v_dot2_u32_u16", u16, 16),
    DOT_I(40, "v_dot4_i32_i8", i8, 8),
    DOT_I(41, "v_dot4_u32_u8", u8, 8),
    DOT_I(42, "v_dot8_i32_i4", i32, 4),
    DOT_I(43, "v_dot8_u32_u4", u32, 4),
    PK_F32(48, "v_pk_fma_f32", 3, kFlops4, __builtin_fmaf(a, b, c)),
    PK_F32(49, "v_pk_mul_f32", 2, kFlops2, a * b),
    PK_F32(50, "v_pk_add_f32", 2, kFlops2, a + b),
    {51, "v_pk_mov_b32", v_pk_mov_b32, Type::kPkB32, {Type::kPkB32, Type::kPkB32, Type::kNone}, kVector | Category::kPacked | Spread::kPair},
};
// clang-format on

}  // namespace

extern const OpTable kVop3pTable;
const OpTable kVop3pTable = {Format::kVop3p, kVop3p, std::size(kVop3p)};

}  // namespace vgpu
