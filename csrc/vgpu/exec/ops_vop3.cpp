// VOP3-only opcodes: three sources, lane access, division steps, wide integers.
#include "vgpu/exec/dot.h"
#include "vgpu/exec/lanes.h"

namespace vgpu {
namespace {

// ------------------------------------------------------------ bit fields and bytes

constexpr u32 bfe(u32 a, u32 b, u32 c) {
  const u32 offset = b & 31, width = c & 31;
  return a >> offset & ((1u << width) - 1);
}
constexpr i32 bfe_signed(i32 a, u32 b, u32 c) {
  const u32 offset = b & 31, width = c & 31;
  if (!width) return 0;
  return offset + width >= 32
             ? a >> offset
             : sign_extend(static_cast<u32>(a) >> offset & ((1u << width) - 1), width);
}

constexpr u32 absdiff(u32 a, u32 b) { return a > b ? a - b : b - a; }
constexpr u32 byte_of(u64 word, u32 i) { return static_cast<u32>(word >> (8 * i) & 0xff); }

constexpr u32 sad_u8(u32 a, u32 b, u32 c) {
  for (u32 i = 0; i < 4; ++i) c += absdiff(byte_of(a, i), byte_of(b, i));
  return c;
}
constexpr u32 msad_u8(u32 a, u32 b, u32 c) {  // bytes of b that are 0 are skipped
  for (u32 i = 0; i < 4; ++i) c += byte_of(b, i) ? absdiff(byte_of(a, i), byte_of(b, i)) : 0;
  return c;
}
constexpr u32 sad_u16(u32 a, u32 b, u32 c) {
  return c + absdiff(a & 0xffff, b & 0xffff) + absdiff(a >> 16, b >> 16);
}
template <auto kSad>
u64 quad_sad(u64 a, u32 b, u64 c) {  // four sums over windows that start at bytes 0 to 3 of a
  u64 out = 0;
  for (u32 i = 0; i < 4; ++i) {
    out |= u64{kSad(static_cast<u32>(a >> (8 * i)), b, static_cast<u32>(c >> (16 * i) & 0xffff)) &
               0xffff}
           << (16 * i);
  }
  return out;
}
constexpr u32 lerp_u8(u32 a, u32 b, u32 c) {
  u32 out = 0;
  for (u32 i = 0; i < 4; ++i)
    out |= ((byte_of(a, i) + byte_of(b, i) + (byte_of(c, i) & 1)) >> 1 & 0xff) << (8 * i);
  return out;
}
constexpr u32 permute_bytes(u32 a, u32 b, u32 sel) {
  const u64 data = u64{a} << 32 | b;
  u32 out = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 pick = byte_of(sel, i);
    u32 value = 0;
    if (pick < 8)
      value = byte_of(data, pick);
    else if (pick < 12)
      value = byte_of(data, 2 * (pick - 8) + 1) & 0x80 ? 0xff : 0;
    else if (pick > 12)
      value = 0xff;
    out |= value << (8 * i);
  }
  return out;
}
u32 float_to_u8(f32 x) { return saturate<u8>(__builtin_roundevenf(x)); }
u32 insert_byte(f32 a, u32 b, u32 c) {
  const u32 shift = 8 * (b & 3);
  return (c & ~(0xffu << shift)) | float_to_u8(a) << shift;
}

// -------------------------------------------------------------------------------- cube maps

struct Cube {
  f32 id, s, t, major;
};
Cube cube(f32 x, f32 y, f32 z) {
  const f32 ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  if (az >= ax && az >= ay) return {z < 0 ? 5.0f : 4.0f, z < 0 ? -x : x, -y, z * 2};
  if (ay >= ax) return {y < 0 ? 3.0f : 2.0f, x, y < 0 ? -z : z, y * 2};
  return {x < 0 ? 1.0f : 0.0f, x < 0 ? z : -z, -y, x * 2};
}

// -------------------------------------------------------------------------------- division

template <class F>
struct Division;
template <>
struct Division<f32> {
  static constexpr i32 kFarApart = 96, kScale = 64, kTiny = 23, kUnderflow = -150;
  static constexpr f32 kMinNormal = 0x1p-126f;
};
template <>
struct Division<f64> {
  static constexpr i32 kFarApart = 768, kScale = 128, kTiny = 53, kUnderflow = -1075;
  static constexpr f64 kMinNormal = 0x1p-1022;
};

template <class F>
i32 biased_exponent(F x) {
  return static_cast<i32>(magnitude(x) >> (sizeof(F) == 4 ? 23 : 52));
}
template <class F>
bool is_denormal(F x) {
  return x != 0 && std::fabs(x) < Division<F>::kMinNormal;
}

// Pre-scales numerator s2 or denominator s1 (s0 equals the one to scale) so that the Newton steps
// between div_scale and div_fmas neither overflow nor lose denormal bits.
template <class F>
F div_scale(F s0, F s1, F s2, bool& flag) {
  using D = Division<F>;
  flag = false;
  if (s2 == 0 || s1 == 0) return std::numeric_limits<F>::quiet_NaN();
  const bool is_denominator =
      bits<typename FloatBits<F>::U>(s0) == bits<typename FloatBits<F>::U>(s1);
  const bool is_numerator =
      bits<typename FloatBits<F>::U>(s0) == bits<typename FloatBits<F>::U>(s2);
  if (biased_exponent(s2) - biased_exponent(s1) >= D::kFarApart) {
    flag = true;
    return is_denominator ? std::scalbn(s0, D::kScale) : s0;
  }
  if (is_denormal(s1)) return std::scalbn(s0, D::kScale);
  const bool reciprocal_denormal = is_denormal(F{1} / s1);
  const bool quotient_denormal = std::fabs(s2 / s1) < D::kMinNormal;  // 0 too: s2 is not 0
  if (reciprocal_denormal && quotient_denormal) {
    flag = true;
    return is_denominator ? std::scalbn(s0, -D::kScale) : s0;
  }
  if (reciprocal_denormal) return std::scalbn(s0, -D::kScale);
  if (quotient_denormal) {
    flag = true;
    return is_numerator ? std::scalbn(s0, D::kScale) : s0;
  }
  return biased_exponent(s2) <= D::kTiny ? std::scalbn(s0, D::kScale) : s0;
}

template <class F>
void v_div_scale(Wave& w, const Inst& inst) {
  Lanes ta, tb, tc, out;
  const u32* a = fetch<F>(w, inst, 0, ta);
  const u32* b = fetch<F>(w, inst, 1, tb);
  const u32* c = fetch<F>(w, inst, 2, tc);
  u64 flags = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    bool flag = false;
    store_lane<F>(
        out.word, lane,
        div_scale<F>(load_lane<F>(a, lane), load_lane<F>(b, lane), load_lane<F>(c, lane), flag));
    flags |= u64{flag} << lane;
  }
  w.set_sgpr64(inst.sdst, flags & w.exec());
  scale_and_clamp(w, inst, kTypeOf<F>, out.word);
  store_masked(w, inst.dst, out.word, dwords_of(kTypeOf<F>), w.exec());
}

// Returns a * b + c times 2^kScale or 2^-kScale, which reverts div_scale. c is the quotient so far;
// div_scale made it large if the true quotient is larger, small if it is smaller. Rounded once: if
// the result is denormal, the bits lost in the sum decide a tie.
template <class F>
F scaled_fma(F a, F b, F c) {
  constexpr i32 scale = Division<F>::kScale;
  const F sum = std::fma(a, b, c);
  if (std::fabs(c) >= 2) return std::scalbn(sum, scale);
  const F result = std::scalbn(sum, -scale);
  if (std::fabs(result) > Division<F>::kMinNormal || !std::isfinite(sum)) return result;
  const F half = std::scalbn(std::numeric_limits<F>::denorm_min(), scale - 1);
  const F remainder = sum - std::scalbn(result, scale);
  const F lost_bits = std::fma(a, b, c - sum);  // exact, because c is close to the sum
  const F step = std::numeric_limits<F>::denorm_min();
  if (remainder == half && lost_bits > 0) return result + step;
  if (remainder == -half && lost_bits < 0) return result - step;
  return result;
}

template <class F>
void v_div_fmas(Wave& w, const Inst& inst) {
  [[maybe_unused]] GuardFor<F> guard(w);
  Lanes ta, tb, tc;
  const u32* a = fetch<F>(w, inst, 0, ta);
  const u32* b = fetch<F>(w, inst, 1, tb);
  const u32* c = fetch<F>(w, inst, 2, tc);
  const u64 scaled = w.vcc();
  Result<F> result(w, inst);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const F x = load_lane<F>(a, lane), y = load_lane<F>(b, lane), z = load_lane<F>(c, lane);
    store_lane<F>(result.out, lane, scaled >> lane & 1 ? scaled_fma(x, y, z) : std::fma(x, y, z));
  }
  result.commit();
}

// Handles the special cases of numerator / denominator; s0 is the quotient so far.
template <class F>
F div_fixup(F quotient, F denominator, F numerator) {
  constexpr F infinity = std::numeric_limits<F>::infinity();
  const bool negative = sign_bit_of(denominator) != sign_bit_of(numerator);
  const auto with_sign = [&](F x) { return negative ? -x : x; };
  if (is_nan(numerator)) return quiet(numerator);
  if (is_nan(denominator)) return quiet(denominator);
  if ((denominator == 0 && numerator == 0) || (is_inf(denominator) && is_inf(numerator))) {
    return -std::numeric_limits<F>::quiet_NaN();
  }
  if (denominator == 0 || is_inf(numerator)) return with_sign(infinity);
  if (is_inf(denominator) || numerator == 0) return with_sign(0);
  if (biased_exponent(numerator) - biased_exponent(denominator) < Division<F>::kUnderflow)
    return with_sign(0);
  if (is_nan(quotient)) return with_sign(infinity);  // an intermediate result overflowed
  return with_sign(std::fabs(quotient));
}

// ------------------------------------------------------------ wide multiply-add

template <class T, class Wide>
void v_mad_wide(Wave& w, const Inst& inst) {
  Lanes ta, tb, tc, out;
  const u32* a = fetch<T>(w, inst, 0, ta);
  const u32* b = fetch<T>(w, inst, 1, tb);
  const u32* c = fetch<u64>(w, inst, 2, tc);
  u64 carries = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u64 product = static_cast<u64>(Wide{load_lane<T>(a, lane)} * Wide{load_lane<T>(b, lane)});
    const u64 addend = load_lane<u64>(c, lane), sum = product + addend;
    const bool overflows =
        std::is_signed_v<T> ? ((product ^ sum) & (addend ^ sum)) >> 63 : sum < product;
    store_lane<u64>(out.word, lane, sum);
    carries |= u64{overflows} << lane;
  }
  w.set_sgpr64(inst.sdst, carries & w.exec());
  store_masked(w, inst.dst, out.word, 2, w.exec());
}

// The four masked sums are 32 bits each; c and the result are register quads.
void v_mqsad_u32_u8(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<u64>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  u32 out[4 * kLanes];
  for (u32 i = 0; i < 4; ++i) {
    const Src& c = inst.src[2];
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 addend =
          c.kind == SrcKind::kVgpr ? w.v(c.reg + i)[lane] : static_cast<u32>(c.value);
      out[i * kLanes + lane] =
          msad_u8(static_cast<u32>(load_lane<u64>(a, lane) >> (8 * i)), b[lane], addend);
    }
  }
  store_masked(w, inst.dst, out, 4, w.exec());
}

// -------------------------------------------------------------------------------- lane access

void v_readlane(Wave& w, const Inst& inst) {
  Lanes tmp;
  const u32* a = fetch<u32>(w, inst, 0, tmp);
  w.sgpr[inst.dst & 127] = a[read_scalar32(w, inst.src[1]) & 63];
}
void v_writelane(Wave& w, const Inst& inst) {
  w.v(inst.dst)[read_scalar32(w, inst.src[1]) & 63] = read_scalar32(w, inst.src[0]);
}

// Counts the mask bits below this lane and adds b.
template <bool kHigh>
void v_mbcnt(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<u32>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  Result<u32> result(w, inst);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u64 lower_lanes = lane_bit(lane) - 1;
    const u32 mask = static_cast<u32>(kHigh ? lower_lanes >> 32 : lower_lanes);
    result.out[lane] = b[lane] + static_cast<u32>(std::popcount(a[lane] & mask));
  }
  result.commit();
}

// ------------------------------------------------------------ packing conversions

u32 pack16(u32 low, u32 high) { return (low & 0xffff) | high << 16; }

// Converts to half, rounding toward zero: the largest half not above |x|.
u32 half_toward_zero(f32 x) {
  const u16 nearest = float_to_half(x);
  const u16 mag = nearest & 0x7fff;
  if (is_nan(x) || is_inf(x)) return nearest;
  return std::fabs(half_to_float(mag)) > std::fabs(x) ? nearest - 1u : nearest;
}
// The clamp precedes the conversion, which is exact for 0 and 1.
void v_cvt_pkrtz_f16_f32(Wave& w, const Inst& inst) {
  Lanes ta, tb, wide[2];
  const u32* source[2] = {fetch<f32>(w, inst, 0, ta), fetch<f32>(w, inst, 1, tb)};
  for (u32 half = 0; half < 2; ++half) {
    VGPU_LANES { wide[half].word[lane] = source[half][lane]; }
    scale_and_clamp(w, inst, Type::kF16, wide[half].word);
  }
  Result<u32> result(w, inst);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    result.out[lane] = pack16(half_toward_zero(load_lane<f32>(wide[0].word, lane)),
                              half_toward_zero(load_lane<f32>(wide[1].word, lane)));
  }
  result.commit();
}
template <class I>
u32 norm16(f64 x) {
  constexpr f64 low = std::is_signed_v<I> ? -1 : 0, scale = std::numeric_limits<I>::max();
  return static_cast<u16>(saturate<I>(__builtin_roundeven((x < low ? low
                                                           : x > 1 ? 1
                                                                   : x) *
                                                          scale)));
}
template <class Target, class Source>
u32 clamp16(Source x) {
  const i64 wide = x, low = std::numeric_limits<Target>::min(),
            high = std::numeric_limits<Target>::max();
  return static_cast<u16>(wide < low ? low : wide > high ? high : wide);
}

void v_pack_b32_f16(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<f16>(w, inst, 0, ta);
  const u32* b = fetch<f16>(w, inst, 1, tb);
  Result<u32> result(w, inst);
  Inst plain = inst;  // op_sel has selected the halves; the result is a whole register
  plain.opsel = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    result.tmp.word[lane] =
        pack16(float_to_half(load_lane<f16>(a, lane)), float_to_half(load_lane<f16>(b, lane)));
  }
  commit_slow(w, plain, Type::kB32, result.tmp);
}

// ------------------------------------------------------------ 2/pi for sine and cosine

// Bits of 2/pi after the binary point, most significant first, as 24-bit digits (enough for any
// double).
constexpr u32 kTwoOverPi[] = {
    0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD, 0xC0DB62, 0x95993C, 0x439041, 0xFE5163,
    0xABDEBB, 0xC561B7, 0x246E3A, 0x424DD2, 0xE00649, 0x2EEA09, 0xD1921C, 0xFE1DEB, 0x1CB129,
    0xA73EE8, 0x8235F5, 0x2EBB44, 0x84E99C, 0x7026B4, 0x5F7E41, 0x3991D6, 0x398353, 0x39F49C,
    0x845F8B, 0xBDF928, 0x3B1FF8, 0x97FFDE, 0x05980F, 0xEF2F11, 0x8B5A0A, 0x6D1F6D, 0x367ECF,
    0x27CB09, 0xB74F46, 0x3F669E, 0x5FEA2D, 0x7527BA, 0xC7EBE5, 0xF17B3D, 0x0739F7, 0x8A5292,
    0xEA6BFB, 0x5FB11F, 0x8D5D08, 0x560330, 0x46FC7B};

u32 two_over_pi_bit(u32 i) {  // bit i after the binary point; 0 from the 1201st on
  return i < 1200 ? kTwoOverPi[i / 24] >> (23 - i % 24) & 1 : 0;
}

f64 trig_preop(f64 x, u32 segment) {
  const i32 exponent = biased_exponent(x);
  u32 shift = (segment & 31) * 53;
  if (exponent > 1077) shift += static_cast<u32>(exponent - 1077);
  u64 window = 0;  // 53 bits from position `shift`
  for (u32 i = 0; i < 53; ++i) window = window << 1 | two_over_pi_bit(shift + i);
  const i32 scale = -53 - static_cast<i32>(shift) + (exponent >= 1968 ? 128 : 0);
  return std::scalbn(static_cast<f64>(window), scale);
}

// -------------------------------------------------------------------------------- table

constexpr Type kB32 = Type::kB32;
#define SPECIAL(number, name, exec, dst, s0, s1, s2, traits) \
  {number, name, exec, dst, {s0, s1, s2}, kVector | traits}
#define HALF3(number, name, flops, ...) \
  OP3_T(number, name, f16, f16, f16, f16, kKeepHigh | flops, __VA_ARGS__)
#define INT16(number, name, T, ...) OP3_T(number, name, T, T, T, T, kKeepHigh, __VA_ARGS__)

template <class T>
constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T max_of(T a, T b) {
  return a > b ? a : b;
}
template <class T>
constexpr T med_of(T a, T b, T c) {
  return max_of(min_of(a, b), min_of(max_of(a, b), c));
}

// Integer arithmetic with saturation by the clamp bit; the function takes i64. With two sources, A
// is B.
template <class R, class A, class C, u32 kSources, auto kOp>
void integer3(Wave& w, const Inst& inst) {
  constexpr i64 low = std::numeric_limits<R>::min(), high = std::numeric_limits<R>::max();
  Lanes ta, tb, tc;
  const u32* a = fetch<A>(w, inst, 0, ta);
  const u32* b = fetch<A>(w, inst, 1, tb);
  const u32* c = kSources == 3 ? fetch<C>(w, inst, 2, tc) : a;
  Result<R> result(w, inst);
  u32* out = result.out;
  const auto value = [&](u32 lane) {
    return kOp(i64{load_lane<A>(a, lane)}, i64{load_lane<A>(b, lane)}, i64{load_lane<C>(c, lane)});
  };
  if (!inst.clamp) {
    VGPU_LANES { store_lane<R>(out, lane, static_cast<R>(value(lane))); }
  } else {
    VGPU_LANES {
      const i64 x = value(lane);
      store_lane<R>(out, lane, static_cast<R>(x < low ? low : x > high ? high : x));
    }
  }
  result.commit();
}
#define INT_SAT(number, name, R, A, C, sources, traits, ...)          \
  {number,                                                            \
   name,                                                              \
   integer3<R, A, C, sources, ([](i64 a, i64 b, i64 c) -> i64 {       \
              (void)c;                                                \
              return __VA_ARGS__;                                     \
            })>,                                                      \
   kTypeOf<R>,                                                        \
   {kTypeOf<A>, kTypeOf<A>, sources == 3 ? kTypeOf<C> : Type::kNone}, \
   kVector | traits}

#define SAD(number, name, ...)                                                  \
  INT_SAT(number, name, u32, u32, u32, 3, kNoTraits, ([](u32 a, u32 b, i64 c) { \
            return __VA_ARGS__;                                                 \
          })(static_cast<u32>(a), static_cast<u32>(b), c))

constexpr i64 signed24(i64 x) { return sign_extend(static_cast<u32>(x) & 0xffffff, 24); }

// clang-format off: one opcode a row
constexpr OpInfo kVop3[] = {
    INT_SAT(450, "v_mad_i32_i24", i32, u32, i32, 3, kNoTraits, signed24(a) * signed24(b) + c),
    INT_SAT(451, "v_mad_u32_u24", u32, u32, u32, 3, kNoTraits, (a & 0xffffff) * (b & 0xffffff) + c),
    OP3(452, "v_cubeid_f32", f32, f32, f32, f32, cube(a, b, c).id),
    OP3(453, "v_cubesc_f32", f32, f32, f32, f32, cube(a, b, c).s),
    OP3(454, "v_cubetc_f32", f32, f32, f32, f32, cube(a, b, c).t),
    OP3(455, "v_cubema_f32", f32, f32, f32, f32, cube(a, b, c).major),
    OP3(456, "v_bfe_u32", u32, u32, u32, u32, bfe(a, b, c)),
    OP3(457, "v_bfe_i32", i32, i32, u32, u32, bfe_signed(a, b, c)),
    OP3(458, "v_bfi_b32", u32, u32, u32, u32, (a & b) | (~a & c)),
    OP3_T(459, "v_fma_f32", f32, f32, f32, f32, kFlops2, __builtin_fmaf(a, b, c)),
    OP3_T(460, "v_fma_f64", f64, f64, f64, f64, kDoubleFma | kFlops2, __builtin_fma(a, b, c)),
    OP3(461, "v_lerp_u8", u32, u32, u32, u32, lerp_u8(a, b, c)),
    OP3(462, "v_alignbit_b32", u32, u32, u32, u32, static_cast<u32>((u64{a} << 32 | b) >> (c & 31))),
    OP3(463, "v_alignbyte_b32", u32, u32, u32, u32, static_cast<u32>((u64{a} << 32 | b) >> (8 * (c & 3)))),
    EXTREME(464, "v_min3_f32", f32, 3, kNoTraits, float_min(float_min(a, b), c)),
    OP3(465, "v_min3_i32", i32, i32, i32, i32, min_of(min_of(a, b), c)),
    OP3(466, "v_min3_u32", u32, u32, u32, u32, min_of(min_of(a, b), c)),
    EXTREME(467, "v_max3_f32", f32, 3, kNoTraits, float_max(float_max(a, b), c)),
    OP3(468, "v_max3_i32", i32, i32, i32, i32, max_of(max_of(a, b), c)),
    OP3(469, "v_max3_u32", u32, u32, u32, u32, max_of(max_of(a, b), c)),
    EXTREME(470, "v_med3_f32", f32, 3, kNoTraits, float_med3(a, b, c)),
    OP3(471, "v_med3_i32", i32, i32, i32, i32, med_of(a, b, c)),
    OP3(472, "v_med3_u32", u32, u32, u32, u32, med_of(a, b, c)),
    SAD(473, "v_sad_u8", i64{sad_u8(a, b, 0)} + c),
    SAD(474, "v_sad_hi_u8", (i64{sad_u8(a, b, 0)} << 16) + c),
    SAD(475, "v_sad_u16", i64{sad_u16(a, b, 0)} + c),
    SAD(476, "v_sad_u32", i64{absdiff(a, b)} + c),
    OP3(477, "v_cvt_pk_u8_f32", u32, f32, u32, u32, insert_byte(a, b, c)),
    OP3(478, "v_div_fixup_f32", f32, f32, f32, f32, div_fixup(a, b, c)),
    OP3(479, "v_div_fixup_f64", f64, f64, f64, f64, div_fixup(a, b, c)),
    SPECIAL(480, "v_div_scale_f32", v_div_scale<f32>, Type::kF32, Type::kF32, Type::kF32, Type::kF32, kCarryOut),
    SPECIAL(481, "v_div_scale_f64", v_div_scale<f64>, Type::kF64, Type::kF64, Type::kF64, Type::kF64, kCarryOut),
    SPECIAL(482, "v_div_fmas_f32", v_div_fmas<f32>, Type::kF32, Type::kF32, Type::kF32, Type::kF32, kReadsVcc | kFlops2),
    SPECIAL(483, "v_div_fmas_f64", v_div_fmas<f64>, Type::kF64, Type::kF64, Type::kF64, Type::kF64, kReadsVcc | kFlops2),
    SAD(484, "v_msad_u8", i64{msad_u8(a, b, 0)} + c),
    OP3_T(485, "v_qsad_pk_u16_u8", u64, u64, u32, u64, Category::kQuarter, quad_sad<sad_u8>(a, b, c)),
    OP3_T(486, "v_mqsad_pk_u16_u8", u64, u64, u32, u64, Category::kQuarter, quad_sad<msad_u8>(a, b, c)),
    SPECIAL(487, "v_mqsad_u32_u8", v_mqsad_u32_u8, Type::kB128, Type::kB64, kB32, Type::kB128, Category::kQuarter),
    SPECIAL(488, "v_mad_u64_u32", (v_mad_wide<u32, u64>), Type::kB64, kB32, kB32, Type::kB64, kCarryOut | Category::kQuarter | Spread::kTowardsHigh),
    SPECIAL(489, "v_mad_i64_i32", (v_mad_wide<i32, i64>), Type::kB64, kB32, kB32, Type::kB64, kCarryOut | Category::kQuarter | Spread::kTowardsHigh),
    OP3_T(490, "v_mad_legacy_f16", f16, f16, f16, f16, kFlops2, half_to_float(float_to_half(a * b)) + c),
    INT_SAT(491, "v_mad_legacy_u16", u16, u16, u16, 3, kNoTraits, a * b + c),
    INT_SAT(492, "v_mad_legacy_i16", i16, i16, i16, 3, kNoTraits, a * b + c),
    OP3_T(493, "v_perm_b32", u32, u32, u32, u32, Spread::kBytes, permute_bytes(a, b, c)),
    OP3_T(494, "v_fma_legacy_f16", f16, f16, f16, f16, kFlops2, half_fma(a, b, c)),
    OP3(495, "v_div_fixup_legacy_f16", f16, f16, f16, f16, div_fixup(a.value, b.value, c.value)),
    OP_ACC(496, "v_cvt_pkaccum_u8_f32", u32, f32, u32, kMerges, insert_byte(a, b, d)),
    INT_SAT(497, "v_mad_u32_u16", u32, u16, u32, 3, kNoTraits, a * b + c),
    INT_SAT(498, "v_mad_i32_i16", i32, i16, i32, 3, kNoTraits, a * b + c),
    OP3(499, "v_xad_u32", u32, u32, u32, u32, (a ^ b) + c),
    EXTREME(500, "v_min3_f16", f16, 3, kKeepHigh, float_min(float_min(a, b), c)),
    INT16(501, "v_min3_i16", i16, min_of(min_of(a, b), c)),
    INT16(502, "v_min3_u16", u16, min_of(min_of(a, b), c)),
    EXTREME(503, "v_max3_f16", f16, 3, kKeepHigh, float_max(float_max(a, b), c)),
    INT16(504, "v_max3_i16", i16, max_of(max_of(a, b), c)),
    INT16(505, "v_max3_u16", u16, max_of(max_of(a, b), c)),
    EXTREME(506, "v_med3_f16", f16, 3, kKeepHigh, float_med3(a, b, c)),
    INT16(507, "v_med3_i16", i16, med_of(a, b, c)),
    INT16(508, "v_med3_u16", u16, med_of(a, b, c)),
    OP3(509, "v_lshl_add_u32", u32, u32, u32, u32, (a << (b & 31)) + c),
    OP3(510, "v_add_lshl_u32", u32, u32, u32, u32, (a + b) << (c & 31)),
    OP3(511, "v_add3_u32", u32, u32, u32, u32, a + b + c),
    OP3(512, "v_lshl_or_b32", u32, u32, u32, u32, a << (b & 31) | c),
    OP3(513, "v_and_or_b32", u32, u32, u32, u32, (a & b) | c),
    OP3(514, "v_or3_b32", u32, u32, u32, u32, a | b | c),
    HALF3(515, "v_mad_f16", kFlops2, half_to_float(float_to_half(a * b)) + c),
    INT_SAT(516, "v_mad_u16", u16, u16, u16, 3, kKeepHigh, a * b + c),
    INT_SAT(517, "v_mad_i16", i16, i16, i16, 3, kKeepHigh, a * b + c),
    HALF3(518, "v_fma_f16", kFlops2, half_fma(a, b, c)),
    HALF3(519, "v_div_fixup_f16", kNoTraits, div_fixup(a.value, b.value, c.value)),
    OP3_T(520, "v_lshl_add_u64", u64, u64, u32, u64, Spread::kTowardsHigh, ((b & 7) > 4 ? 0 : a << (b & 7)) + c),
    OP2_T(640, "v_add_f64", f64, f64, f64, kFlops1, a + b),
    OP2_T(641, "v_mul_f64", f64, f64, f64, kFlops1, a * b),
    EXTREME(642, "v_min_f64", f64, 2, kNoTraits, float_min(a, b)),
    EXTREME(643, "v_max_f64", f64, 2, kNoTraits, float_max(a, b)),
    OP2(644, "v_ldexp_f64", f64, f64, i32, std::scalbn(a, b)),
    OP2_T(645, "v_mul_lo_u32", u32, u32, u32, Category::kQuarter, a * b),
    OP2_T(646, "v_mul_hi_u32", u32, u32, u32, Category::kQuarter, static_cast<u32>(u64{a} * b >> 32)),
    OP2_T(647, "v_mul_hi_i32", u32, i32, i32, Category::kQuarter, static_cast<u32>(static_cast<u64>(i64{a} * b) >> 32)),
    OP2(648, "v_ldexp_f32", f32, f32, i32, std::scalbn(a, b)),
    {649, "v_readlane_b32", v_readlane, kB32, {kB32, kB32, Type::kNone}, Category::kValu | kScalarDst | Spread::kReadLane},
    {650, "v_writelane_b32", v_writelane, kB32, {kB32, kB32, Type::kNone}, Category::kValu | kReadsDst | Spread::kWriteLane},
    OP2(651, "v_bcnt_u32_b32", u32, u32, u32, static_cast<u32>(std::popcount(a)) + b),
    {652, "v_mbcnt_lo_u32_b32", v_mbcnt<false>, kB32, {kB32, kB32, Type::kNone}, kVector},
    {653, "v_mbcnt_hi_u32_b32", v_mbcnt<true>, kB32, {kB32, kB32, Type::kNone}, kVector},
    OP2_T(655, "v_lshlrev_b64", u64, u32, u64, Spread::kTowardsHigh, b << (a & 63)),
    OP2_T(656, "v_lshrrev_b64", u64, u32, u64, Spread::kTowardsLow, b >> (a & 63)),
    OP2_T(657, "v_ashrrev_i64", i64, u32, i64, Spread::kTowardsLow, b >> (a & 63)),
    OP2(658, "v_trig_preop_f64", f64, f64, u32, trig_preop(a, b)),
    OP2(659, "v_bfm_b32", u32, u32, u32, ((1u << (a & 31)) - 1) << (b & 31)),
    OP2(660, "v_cvt_pknorm_i16_f32", u32, f32, f32, pack16(norm16<i16>(f64{a}), norm16<i16>(f64{b}))),
    OP2(661, "v_cvt_pknorm_u16_f32", u32, f32, f32, pack16(norm16<u16>(a), norm16<u16>(b))),
    SPECIAL(662, "v_cvt_pkrtz_f16_f32", v_cvt_pkrtz_f16_f32, kB32, Type::kF32, Type::kF32, Type::kNone, kNoTraits),
    OP2(663, "v_cvt_pk_u16_u32", u32, u32, u32, pack16(clamp16<u16>(a), clamp16<u16>(b))),
    OP2(664, "v_cvt_pk_i16_i32", u32, i32, i32, pack16(clamp16<i16>(a), clamp16<i16>(b))),
    OP2(665, "v_cvt_pknorm_i16_f16", u32, f16, f16, pack16(norm16<i16>(a), norm16<i16>(b))),
    OP2(666, "v_cvt_pknorm_u16_f16", u32, f16, f16, pack16(norm16<u16>(a), norm16<u16>(b))),
    INT_SAT(668, "v_add_i32", i32, i32, i32, 2, kNoTraits, a + b),
    INT_SAT(669, "v_sub_i32", i32, i32, i32, 2, Spread::kCancels, a - b),
    INT_SAT(670, "v_add_i16", i16, i16, i16, 2, kKeepHigh, a + b),
    INT_SAT(671, "v_sub_i16", i16, i16, i16, 2, kKeepHigh, a - b),
    SPECIAL(672, "v_pack_b32_f16", v_pack_b32_f16, kB32, Type::kF16, Type::kF16, Type::kNone, kNoTraits),
    OP2_T(673, "v_mul_legacy_f32", f32, f32, f32, kFlops1, a == 0 || b == 0 ? 0.0f : a * b),
    EXTREME(680, "v_minimum3_f32", f32, 3, kOnGfx950, float_minimum(float_minimum(a, b), c)),
    EXTREME(681, "v_maximum3_f32", f32, 3, kOnGfx950, float_maximum(float_maximum(a, b), c)),
};
// clang-format on

}  // namespace

extern const OpTable kVop3Table;
const OpTable kVop3Table = {Format::kVop3, kVop3, std::size(kVop3)};

}  // namespace vgpu
