// VOP1: one source.
#include "vgpu/exec/lanes.h"

namespace vgpu {
namespace {

template <class U>
constexpr u32 top_bit_distance(U a) {
  return a ? static_cast<u32>(std::countl_zero(a)) : ~0u;
}

constexpr u32 reverse_bits(u32 a) {
  a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
  a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
  a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(a);
}

// -------------------------------------------------------------------------------- frexp

template <class F>
inline constexpr i32 kBias = 126;
template <>
inline constexpr i32 kBias<f64> = 1022;
template <class F>
inline constexpr i32 kFractionBits = 23;
template <>
inline constexpr i32 kFractionBits<f64> = 52;

// Returns the exponent that leaves a fraction in [1/2, 1); 0 for zero, infinity and NaN.
template <class F>
constexpr i32 frexp_exponent(F x) {
  const auto mag = magnitude(x);
  if (!mag || mag >= FloatBits<F>::kExp) return 0;
  const i32 biased = static_cast<i32>(mag >> kFractionBits<F>);
  if (biased) return biased - kBias<F>;
  const i32 leading = static_cast<i32>(std::countl_zero(mag)) -
                      (static_cast<i32>(sizeof(F)) * 8 - kFractionBits<F>);
  return -kBias<F> - leading;
}

template <class F>
F frexp_fraction(F x) {
  if (magnitude(x) >= FloatBits<F>::kExp) return is_nan(x) ? quiet(x) : x;
  return std::scalbn(x, -frexp_exponent(x));
}

// Returns x - floor(x), kept below 1.
template <class F>
F fraction(F x) {
  const F below_one =
      sizeof(F) == 4 ? static_cast<F>(0x1.fffffep-1) : static_cast<F>(0x1.fffffffffffffp-1);
  const F out = x - std::floor(x);
  return is_inf(x)                        ? std::numeric_limits<F>::quiet_NaN()
         : out < below_one || is_nan(out) ? out
                                          : below_one;
}
constexpr f32 kHalfBelowOne = 0.99951171875f;

i16 signed_norm(f64 x) {
  return saturate<i16>(__builtin_roundeven((x < -1 ? -1.0 : x > 1 ? 1.0 : x) * 32767));
}
u16 unsigned_norm(f64 x) {
  return saturate<u16>(__builtin_roundeven((x < 0 ? 0.0 : x > 1 ? 1.0 : x) * 65535));
}

u32 saturate_pair_u8(u32 a) {
  const auto clamp = [](u32 half) {
    const i32 x = static_cast<i16>(half);
    return static_cast<u32>(x < 0 ? 0 : x > 255 ? 255 : x);
  };
  return clamp(a & 0xffff) | clamp(a >> 16) << 8;
}

f32 reciprocal(f32 x) { return flush(1.0f / flush(x)); }
f32 square_root(f32 x) { return std::sqrt(flush(x)); }
f32 reciprocal_root(f32 x) { return static_cast<f32>(1.0 / std::sqrt(static_cast<f64>(flush(x)))); }

// -------------------------------------------------------------------------------- cross-lane
// operations

void nothing(Wave&, const Inst&) {}

void v_readfirstlane(Wave& w, const Inst& inst) {
  Lanes tmp;
  const u32* a = fetch<u32>(w, inst, 0, tmp);
  const u64 exec = w.exec();
  w.sgpr[inst.dst & 127] = a[exec ? std::countr_zero(exec) : 0];
}

void v_swap(Wave& w, const Inst& inst) {
  Lanes a, b;
  std::memcpy(a.word, w.v(inst.dst), sizeof(u32) * kLanes);
  std::memcpy(b.word, w.v(inst.src[0].reg), sizeof(u32) * kLanes);
  store_masked(w, inst.dst, b.word, 1, w.exec());
  store_masked(w, inst.src[0].reg, a.word, 1, w.exec());
}

#define T1(number, name, R, A, ...) \
  OP1_T(number, name, R, A, Category::kTrans | kFlops1, __VA_ARGS__)

// clang-format off: one opcode a row
constexpr OpInfo kMove = OP1(1, "v_mov_b32", u32, u32, a);
constexpr OpInfo kVop1[] = {
    {0, "v_nop", nothing, Type::kNone, {}, Category::kValu},
    kMove,
    {2, "v_readfirstlane_b32", v_readfirstlane, Type::kB32, {Type::kB32, Type::kNone, Type::kNone}, kVector | kScalarDst | Spread::kReadFirst},
    OP1(3, "v_cvt_i32_f64", i32, f64, saturate<i32>(a)),
    OP1(4, "v_cvt_f64_i32", f64, i32, a),
    OP1(5, "v_cvt_f32_i32", f32, i32, a),
    OP1(6, "v_cvt_f32_u32", f32, u32, a),
    OP1(7, "v_cvt_u32_f32", u32, f32, saturate<u32>(a)),
    OP1(8, "v_cvt_i32_f32", i32, f32, saturate<i32>(a)),
    OP1(10, "v_cvt_f16_f32", f16, f32, a),
    OP1(11, "v_cvt_f32_f16", f32, f16, is_nan(a.value) ? quiet(a.value) : a.value),
    OP1(12, "v_cvt_rpi_i32_f32", i32, f32, saturate<i32>(std::floor(a + 0.5f))),
    OP1(13, "v_cvt_flr_i32_f32", i32, f32, saturate<i32>(std::floor(a))),
    OP1(14, "v_cvt_off_f32_i4", f32, u32, static_cast<f32>(sign_extend(a & 15, 4)) * 0.0625f),
    OP1(15, "v_cvt_f32_f64", f32, f64, a),
    OP1(16, "v_cvt_f64_f32", f64, f32, a),
    OP1(17, "v_cvt_f32_ubyte0", f32, u32, static_cast<i32>(a & 255)),
    OP1(18, "v_cvt_f32_ubyte1", f32, u32, static_cast<i32>(a >> 8 & 255)),
    OP1(19, "v_cvt_f32_ubyte2", f32, u32, static_cast<i32>(a >> 16 & 255)),
    OP1(20, "v_cvt_f32_ubyte3", f32, u32, static_cast<i32>(a >> 24)),
    OP1(21, "v_cvt_u32_f64", u32, f64, saturate<u32>(a)),
    OP1(22, "v_cvt_f64_u32", f64, u32, a),
    OP1(23, "v_trunc_f64", f64, f64, __builtin_trunc(a)),
    OP1(24, "v_ceil_f64", f64, f64, __builtin_ceil(a)),
    OP1(25, "v_rndne_f64", f64, f64, __builtin_roundeven(a)),
    OP1(26, "v_floor_f64", f64, f64, __builtin_floor(a)),
    OP1(27, "v_fract_f32", f32, f32, fraction(a)),
    OP1(28, "v_trunc_f32", f32, f32, __builtin_truncf(a)),
    OP1(29, "v_ceil_f32", f32, f32, __builtin_ceilf(a)),
    OP1(30, "v_rndne_f32", f32, f32, __builtin_roundevenf(a)),
    OP1(31, "v_floor_f32", f32, f32, __builtin_floorf(a)),
    T1(32, "v_exp_f32", f32, f32, exp2_approx(a)),
    T1(33, "v_log_f32", f32, f32, log2_approx(a)),
    T1(34, "v_rcp_f32", f32, f32, reciprocal(a)),
    T1(35, "v_rcp_iflag_f32", f32, f32, reciprocal(a)),
    T1(36, "v_rsq_f32", f32, f32, reciprocal_root(a)),
    T1(37, "v_rcp_f64", f64, f64, 1.0 / a),
    T1(38, "v_rsq_f64", f64, f64, 1.0 / std::sqrt(a)),
    T1(39, "v_sqrt_f32", f32, f32, square_root(a)),
    T1(40, "v_sqrt_f64", f64, f64, std::sqrt(a)),
    T1(41, "v_sin_f32", f32, f32, sin_approx(a)),
    T1(42, "v_cos_f32", f32, f32, cos_approx(a)),
    OP1(43, "v_not_b32", u32, u32, ~a),
    OP1(44, "v_bfrev_b32", u32, u32, reverse_bits(a)),
    OP1(45, "v_ffbh_u32", u32, u32, top_bit_distance(a)),
    OP1(46, "v_ffbl_b32", u32, u32, a ? static_cast<u32>(std::countr_zero(a)) : ~0u),
    OP1(47, "v_ffbh_i32", u32, u32, top_bit_distance(static_cast<i32>(a) < 0 ? ~a : a)),
    OP1(48, "v_frexp_exp_i32_f64", i32, f64, frexp_exponent(a)),
    OP1(49, "v_frexp_mant_f64", f64, f64, frexp_fraction(a)),
    OP1(50, "v_fract_f64", f64, f64, fraction(a)),
    OP1(51, "v_frexp_exp_i32_f32", i32, f32, frexp_exponent(a)),
    OP1(52, "v_frexp_mant_f32", f32, f32, frexp_fraction(a)),
    {53, "v_clrexcp", nothing, Type::kNone, {}, Category::kValu},
    OP1_T(56, "v_mov_b64", u64, u64, Spread::kRows, a),
    OP1(57, "v_cvt_f16_u16", f16, u16, static_cast<f32>(a)),
    OP1(58, "v_cvt_f16_i16", f16, i16, static_cast<f32>(a)),
    OP1(59, "v_cvt_u16_f16", u16, f16, saturate<u16>(a.value)),
    OP1(60, "v_cvt_i16_f16", i16, f16, saturate<i16>(a.value)),
    T1(61, "v_rcp_f16", f16, f16, 1.0f / a),
    T1(62, "v_sqrt_f16", f16, f16, std::sqrt(a.value)),
    T1(63, "v_rsq_f16", f16, f16, 1.0f / std::sqrt(a.value)),
    T1(64, "v_log_f16", f16, f16, log2_approx(a)),
    T1(65, "v_exp_f16", f16, f16, exp2_approx(a)),
    OP1(66, "v_frexp_mant_f16", f16, f16, frexp_fraction(a.value)),
    OP1(67, "v_frexp_exp_i16_f16", i16, f16, static_cast<i16>(frexp_exponent(a.value))),
    OP1(68, "v_floor_f16", f16, f16, __builtin_floorf(a)),
    OP1(69, "v_ceil_f16", f16, f16, __builtin_ceilf(a)),
    OP1(70, "v_trunc_f16", f16, f16, __builtin_truncf(a)),
    OP1(71, "v_rndne_f16", f16, f16, __builtin_roundevenf(a)),
    OP1(72, "v_fract_f16", f16, f16, fraction(a.value) > kHalfBelowOne ? kHalfBelowOne : fraction(a.value)),
    T1(73, "v_sin_f16", f16, f16, sin_approx(a)),
    T1(74, "v_cos_f16", f16, f16, cos_approx(a)),
    T1(75, "v_exp_legacy_f32", f32, f32, exp2_approx(a)),
    T1(76, "v_log_legacy_f32", f32, f32, log2_approx(a)),
    OP1(77, "v_cvt_norm_i16_f16", i16, f16, signed_norm(f32{a})),
    OP1(78, "v_cvt_norm_u16_f16", u16, f16, unsigned_norm(f32{a})),
    OP1(79, "v_sat_pk_u8_i16", u32, u32, saturate_pair_u8(a)),
    {81, "v_swap_b32", v_swap, Type::kB32, {Type::kB32, Type::kNone, Type::kNone}, kVector | kReadsDst | kNoVop3 | Spread::kSwap},
};
// clang-format on

}  // namespace

extern const OpTable kVop1Table;
const OpTable kVop1Table = {Format::kVop1, kVop1, std::size(kVop1)};

const OpInfo& lane_copy() { return kMove; }

}  // namespace vgpu
