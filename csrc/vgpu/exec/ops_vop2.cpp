// VOP2: two sources, the second a VGPR; fused forms accumulate in their destination or take a
// literal.
#include "vgpu/exec/dot.h"
#include "vgpu/exec/lanes.h"

namespace vgpu {
namespace {

constexpr i32 low24(u32 a) { return sign_extend(a & 0xffffff, 24); }
constexpr i64 mul24(u32 a, u32 b) { return i64{low24(a)} * low24(b); }
constexpr u64 umul24(u32 a, u32 b) { return u64{a & 0xffffff} * (b & 0xffffff); }

// ------------------------------------------------------------ masks and carries

u64 mask_source(const Wave& w, const Inst& inst) { return read_scalar64(w, inst.src[2]); }

void v_cndmask(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<raw32>(w, inst, 0, ta);
  const u32* b = fetch<raw32>(w, inst, 1, tb);
  const u64 mask = mask_source(w, inst);
  const u32 low = static_cast<u32>(mask), high = static_cast<u32>(mask >> 32);
  Result<u32> result(w, inst);
  u32* out = result.out;
  for (u32 l = 0; l < 32; ++l) out[l] = low >> l & 1 ? b[l] : a[l];
  for (u32 l = 0; l < 32; ++l) out[l + 32] = high >> l & 1 ? b[l + 32] : a[l + 32];
  result.commit();
}

// kOp(a, b, carry) returns the 33-bit result; carry bits of inactive lanes become 0.
template <bool kCarry, auto kOp>
void carry(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<u32>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  const u64 carries = kCarry ? mask_source(w, inst) : 0;
  const u64 lanes = write_mask(w, inst);
  u64 out_mask = 0;
  Lanes sum;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u64 full = kOp(u64{a[lane]}, u64{b[lane]}, carries >> lane & 1);
    sum.word[lane] = static_cast<u32>(full);
    out_mask |= (full >> 32 & 1) << lane;
  }
  if (inst.clamp) {  // saturates: an addition at the maximum, a subtraction at 0
    const u32 limit = kOp(0, 0, 0) == kOp(1, 1, 0) ? 0 : ~0u;
    for (u32 lane = 0; lane < kLanes; ++lane)
      if (out_mask >> lane & 1) sum.word[lane] = limit;
  }
  w.set_sgpr64(inst.sdst, (out_mask & lanes) | (w.sgpr64(inst.sdst) & w.exec() & ~lanes));
  if (inst.lane_mod == LaneMod::kSdwa) {
    commit_slow(w, inst, Type::kB32, sum);
  } else {
    store_masked(w, inst.dst, sum.word, 1, lanes);
  }
}

constexpr Type kU = Type::kB32;
#define CARRY(number, name, traits, takes, ...)   \
  {number,                                        \
   name,                                          \
   carry<takes, ([](u64 a, u64 b, u64 c) -> u64 { \
           (void)c;                               \
           return __VA_ARGS__;                    \
         })>,                                     \
   kU,                                            \
   {kU, kU, Type::kNone},                         \
   kVector | traits}

// Integer additions saturate with the clamp bit.
template <class T, auto kOp>
void integer2(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<T>(w, inst, 0, ta);
  const u32* b = fetch<T>(w, inst, 1, tb);
  Result<T> result(w, inst);
  u32* out = result.out;
  if (!inst.clamp) {
    VGPU_LANES {
      store_lane<T>(out, lane,
                    static_cast<T>(kOp(i64{load_lane<T>(a, lane)}, i64{load_lane<T>(b, lane)})));
    }
  } else {
    constexpr i64 kMinValue = std::numeric_limits<T>::min(),
                  kMaxValue = std::numeric_limits<T>::max();
    VGPU_LANES {
      const i64 x = kOp(i64{load_lane<T>(a, lane)}, i64{load_lane<T>(b, lane)});
      store_lane<T>(out, lane,
                    static_cast<T>(x < kMinValue   ? kMinValue
                                   : x > kMaxValue ? kMaxValue
                                                   : x));
    }
  }
  result.commit();
}
#define INT2(number, name, T, traits, ...)                         \
  {number,                                                         \
   name,                                                           \
   integer2<T, ([](i64 a, i64 b) -> i64 { return __VA_ARGS__; })>, \
   kTypeOf<T>,                                                     \
   {kTypeOf<T>, kTypeOf<T>, Type::kNone},                          \
   kVector | traits}

// The literal form of a fused multiply-add: src2 is the literal.
#define FMAK(number, name, F, traits, ...) \
  OP3_T(number, name, F, F, F, F, kInlineK | kFlops2 | traits, __VA_ARGS__)

f32 half_step(f32 x) { return half_to_float(float_to_half(x)); }  // mac rounds its product

// The exponent is an integer, but its inline constants are those of f16.
constexpr auto load_exponent = [](f16 a, i16 b) -> f16 { return std::scalbn(a.value, b); };

// clang-format off: one opcode a row
constexpr OpInfo kVop2[] = {
    {0, "v_cndmask_b32", v_cndmask, Type::kB32, {Type::kF32, Type::kF32, Type::kNone}, kVector | kCarryIn | Spread::kSelect},
    OP2_T(1, "v_add_f32", f32, f32, f32, kFlops1, a + b),
    OP2_T(2, "v_sub_f32", f32, f32, f32, kFlops1, a - b),
    OP2_T(3, "v_subrev_f32", f32, f32, f32, kFlops1, b - a),
    OP_ACC(4, "v_fmac_f64", f64, f64, f64, kDoubleFma | kFlops2, __builtin_fma(a, b, d)),
    OP2_T(5, "v_mul_f32", f32, f32, f32, kFlops1, a * b),
    OP2(6, "v_mul_i32_i24", u32, u32, u32, static_cast<u32>(mul24(a, b))),
    OP2(7, "v_mul_hi_i32_i24", u32, u32, u32, static_cast<u32>(static_cast<u64>(mul24(a, b)) >> 32)),
    OP2(8, "v_mul_u32_u24", u32, u32, u32, static_cast<u32>(umul24(a, b))),
    OP2(9, "v_mul_hi_u32_u24", u32, u32, u32, static_cast<u32>(umul24(a, b) >> 32)),
    EXTREME(10, "v_min_f32", f32, 2, kNoTraits, float_min(a, b)),
    EXTREME(11, "v_max_f32", f32, 2, kNoTraits, float_max(a, b)),
    OP2(12, "v_min_i32", i32, i32, i32, a < b ? a : b),
    OP2(13, "v_max_i32", i32, i32, i32, a > b ? a : b),
    OP2(14, "v_min_u32", u32, u32, u32, a < b ? a : b),
    OP2(15, "v_max_u32", u32, u32, u32, a > b ? a : b),
    OP2(16, "v_lshrrev_b32", u32, u32, u32, b >> (a & 31)),
    OP2(17, "v_ashrrev_i32", i32, u32, i32, b >> (a & 31)),
    OP2(18, "v_lshlrev_b32", u32, u32, u32, b << (a & 31)),
    OP2(19, "v_and_b32", u32, u32, u32, a & b),
    OP2(20, "v_or_b32", u32, u32, u32, a | b),
    OP2_T(21, "v_xor_b32", u32, u32, u32, Spread::kCancels, a ^ b),
    {22, "v_dot2c_f32_bf16", dot2c<bf16>, Type::kF32, {Type::kPkBf16, Type::kPkBf16, Type::kNone}, kVector | kReadsDst | kDot | kFlops4 | kOnGfx950},
    FMAK(23, "v_fmamk_f32", f32, Syntax::kConstantSecond, __builtin_fmaf(a, c, b)),
    FMAK(24, "v_fmaak_f32", f32, kNoTraits, __builtin_fmaf(a, b, c)),
    CARRY(25, "v_add_co_u32", kCarryOut, false, a + b),
    CARRY(26, "v_sub_co_u32", kCarryOut, false, a - b),
    CARRY(27, "v_subrev_co_u32", kCarryOut, false, b - a),
    CARRY(28, "v_addc_co_u32", kCarryIn | kCarryOut, true, a + b + c),
    CARRY(29, "v_subb_co_u32", kCarryIn | kCarryOut, true, a - b - c),
    CARRY(30, "v_subbrev_co_u32", kCarryIn | kCarryOut, true, b - a - c),
    OP2_T(31, "v_add_f16", f16, f16, f16, kFlops1, a + b),
    OP2_T(32, "v_sub_f16", f16, f16, f16, kFlops1, a - b),
    OP2_T(33, "v_subrev_f16", f16, f16, f16, kFlops1, b - a),
    OP2_T(34, "v_mul_f16", f16, f16, f16, kFlops1, a * b),
    OP_ACC(35, "v_mac_f16", f16, f16, f16, kFlops2, half_step(a * b) + d),
    FMAK(36, "v_madmk_f16", f16, Syntax::kConstantSecond, half_step(a * c) + b),
    FMAK(37, "v_madak_f16", f16, kNoTraits, half_step(a * b) + c),
    INT2(38, "v_add_u16", u16, kNoTraits, a + b),
    INT2(39, "v_sub_u16", u16, Spread::kCancels, a - b),
    INT2(40, "v_subrev_u16", u16, kNoTraits, b - a),
    OP2(41, "v_mul_lo_u16", u16, u16, u16, static_cast<u32>(a) * b),
    OP2(42, "v_lshlrev_b16", u16, u16, u16, b << (a & 15)),
    OP2(43, "v_lshrrev_b16", u16, u16, u16, b >> (a & 15)),
    OP2(44, "v_ashrrev_i16", i16, u16, i16, b >> (a & 15)),
    EXTREME(45, "v_max_f16", f16, 2, kNoTraits, float_max(a, b)),
    EXTREME(46, "v_min_f16", f16, 2, kNoTraits, float_min(a, b)),
    OP2(47, "v_max_u16", u16, u16, u16, a > b ? a : b),
    OP2(48, "v_max_i16", i16, i16, i16, a > b ? a : b),
    OP2(49, "v_min_u16", u16, u16, u16, a < b ? a : b),
    OP2(50, "v_min_i16", i16, i16, i16, a < b ? a : b),
    {51, "v_ldexp_f16", lanes2<f16, f16, i16, load_exponent>, Type::kF16, {Type::kF16, Type::kF16, Type::kNone}, kVector},
    INT2(52, "v_add_u32", u32, kNoTraits, a + b),
    INT2(53, "v_sub_u32", u32, Spread::kCancels, a - b),
    INT2(54, "v_subrev_u32", u32, kNoTraits, b - a),
    {55, "v_dot2c_f32_f16", dot2c<f16>, Type::kF32, {Type::kPkF16, Type::kPkF16, Type::kNone}, kVector | kReadsDst | kDot | kFlops4},
    {56, "v_dot2c_i32_i16", dotc<i16, 16>, Type::kB32, {Type::kPkB16, Type::kPkB16, Type::kNone}, kVector | kReadsDst | kDot},
    {57, "v_dot4c_i32_i8", dotc<i8, 8>, Type::kB32, {kU, kU, Type::kNone}, kVector | kReadsDst | kDot},
    {58, "v_dot8c_i32_i4", dotc<i32, 4>, Type::kB32, {kU, kU, Type::kNone}, kVector | kReadsDst | kDot},
    OP_ACC(59, "v_fmac_f32", f32, f32, f32, kFlops2, __builtin_fmaf(a, b, d)),
    {60, "v_pk_fmac_f16", pk_fmac_f16, Type::kPkF16, {Type::kPkF16, Type::kPkF16, Type::kNone}, kVector | kReadsDst | kFlops4},
    OP2(61, "v_xnor_b32", u32, u32, u32, ~(a ^ b)),
};
// clang-format on

}  // namespace

extern const OpTable kVop2Table;
const OpTable kVop2Table = {Format::kVop2, kVop2, std::size(kVop2)};

}  // namespace vgpu
