// Conversions from and to formats of 16 bits and fewer, and the few moves next to them in the
// opcode map.
//
// Block scale (cvt_scalef32): unpacking multiplies by 2^(e - 127), packing divides by it; e is the
// exponent field of the scale operand, 255 is NaN. Only f32 sources follow MODE's denormal field.
#include "vgpu/base/formats.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/machine/fp_scope.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- helpers

// Returns x * 2^n in two factors, each in the normal range. Exact except for results below the
// normal range.
[[gnu::always_inline]] inline f32 times_power(f32 x, i32 n) {
  const i32 half = n >> 1;
  return x * power_of_two(half) * power_of_two(n - half);
}

[[gnu::always_inline]] inline f32 times_scale(f32 x, u32 scale) {
  const u32 e = scale >> 23 & 255;
  return e == 255 ? bits<f32>(kFloatNan) : times_power(x, static_cast<i32>(e) - 127);
}
[[gnu::always_inline]] inline f32 over_scale(f32 x, u32 scale) {
  const u32 e = scale >> 23 & 255;
  return e == 255 ? bits<f32>(kFloatNan) : times_power(x, 127 - static_cast<i32>(e));
}

// A float source, flushed as MODE says.
class FloatSource {
 public:
  explicit FloatSource(const Wave& wave) : flush_(flush_float_sources(wave)) {}
  f32 operator()(u32 word) const {
    return bits<f32>(flush_ && !(word & kFloatInf) ? word & 0x80000000 : word);
  }

 private:
  bool flush_;
};

// The wide type of a conversion.
enum class Wide { kF32, kF16, kBf16 };

template <Wide kWide>
constexpr f32 widen(u32 code) {
  if constexpr (kWide == Wide::kF16) return decode_small<kHalf>(code);
  if constexpr (kWide == Wide::kBf16) return bits<f32>(code << 16);
  return bits<f32>(code);
}

// FP16_OVFL saturates an overflow of finite values, but keeps an infinity.
template <Wide kWide>
constexpr u32 narrow(f32 x, bool saturate) {
  if constexpr (kWide == Wide::kF16)
    return encode_small<kHalf>(x, {false, 0, saturate && !is_inf(x)});
  if constexpr (kWide == Wide::kBf16) return float_to_bf16(x);
  return bits<u32>(x);
}

template <Wide kWide>
inline constexpr Type kPairType = kWide == Wide::kF32 ? Type::kB64 : Type::kB32;

// Replaces the field of the destination that op_sel selects: a half by bit 3, a byte by bits 3:2.
void store_field(Wave& wave, const Inst& inst, u32 width, Lanes& values) {
  const u32 shift = width == 16 ? 16 * (inst.opsel >> 3 & 1) : 8 * (inst.opsel >> 2 & 3);
  const u32 mask = ((1u << width) - 1) << shift;
  const u32* old = wave.v(inst.dst);
  VGPU_LANES { values.word[lane] = (old[lane] & ~mask) | (values.word[lane] << shift & mask); }
  store_masked(wave, inst.dst, values.word, 1, write_mask(wave, inst));
}

// neg and abs of a packed or tuple source, applied to every element; fetch() does not apply them.
struct SignBits {
  u32 keep_mask, flip_mask;
  SignBits(const Inst& inst, u32 sign)
      : keep_mask(inst.abs & 1 ? ~sign : ~0u), flip_mask(inst.neg & 1 ? sign : 0u) {}
  u32 operator()(u32 word) const { return (word & keep_mask) ^ flip_mask; }
};
template <Wide kWide>
inline constexpr u32 kSignBits = kWide == Wide::kF32 ? 0x80000000u : 0x80008000u;

// A pair of wide values of source 0: a register pair of floats, or both halves of a register.
template <Wide kWide>
struct Pair {
  f32 low[kLanes], high[kLanes];

  Pair(Wave& wave, const Inst& inst) {
    Lanes tmp;
    const SignBits sign(inst, kSignBits<kWide>);
    if constexpr (kWide == Wide::kF32) {
      const u32* raw = fetch<u64>(wave, inst, 0, tmp);
      const FloatSource source(wave);
      VGPU_LANES { low[lane] = source(sign(raw[lane])); }
      VGPU_LANES { high[lane] = source(sign(raw[lane + kLanes])); }
    } else {
      const u32* raw = fetch<u32>(wave, inst, 0, tmp);
      VGPU_LANES { low[lane] = widen<kWide>(sign(raw[lane]) & 0xffff); }
      VGPU_LANES { high[lane] = widen<kWide>(sign(raw[lane]) >> 16); }
    }
  }
};

// -------------------------------------------------------------------------------- packing

// Packs two floats (sources 0 and 1), unscaled: v_cvt_pk_fp8_f32 and bf8.
template <SmallFloat kTarget>
void pack_floats(Wave& wave, const Inst& inst) {
  Lanes ta, tb, out;
  const u32* a = fetch<f32>(wave, inst, 0, ta);
  const u32* b = fetch<f32>(wave, inst, 1, tb);
  const Rounding rounding{false, 0, wave.fp16_ovfl()};
  VGPU_LANES {
    out.word[lane] = encode_small<kTarget>(bits<f32>(a[lane]), rounding) |
                     encode_small<kTarget>(bits<f32>(b[lane]), rounding) << kTarget.bits();
  }
  store_field(wave, inst, 2 * kTarget.bits(), out);
}

// Packs two floats divided by the scale in source 2.
template <SmallFloat kTarget>
void pack_floats_scaled(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const FloatSource source(wave);
  Lanes ta, tb, ts, out;
  const u32* a = fetch<f32>(wave, inst, 0, ta);
  const u32* b = fetch<f32>(wave, inst, 1, tb);
  const u32* scale = fetch<f32>(wave, inst, 2, ts);
  const Rounding rounding{false, 0, wave.fp16_ovfl()};
  VGPU_LANES {
    out.word[lane] = encode_small<kTarget>(over_scale(source(a[lane]), scale[lane]), rounding) |
                     encode_small<kTarget>(over_scale(source(b[lane]), scale[lane]), rounding)
                         << kTarget.bits();
  }
  store_field(wave, inst, 2 * kTarget.bits(), out);
}

// Packs the two halves of source 0 divided by the scale in source 1.
template <SmallFloat kTarget, Wide kSource>
void pack_halves_scaled(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const Pair<kSource> x(wave, inst);
  Lanes ts, out;
  const u32* scale = fetch<f32>(wave, inst, 1, ts);
  const Rounding rounding{false, 0, wave.fp16_ovfl()};
  VGPU_LANES {
    out.word[lane] = encode_small<kTarget>(over_scale(x.low[lane], scale[lane]), rounding) |
                     encode_small<kTarget>(over_scale(x.high[lane], scale[lane]), rounding)
                         << kTarget.bits();
  }
  store_field(wave, inst, 2 * kTarget.bits(), out);
}

template <Wide kSource>
struct LaneOf {
  using T = f32;
};
template <>
struct LaneOf<Wide::kF16> {
  using T = f16;
};
template <>
struct LaneOf<Wide::kBf16> {
  using T = bf16;
};

// Packs one value, rounded stochastically with the bits of source 1 and scaled by source 2.
template <SmallFloat kTarget, Wide kSource, bool kScaled>
void pack_one_random(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const FloatSource source(wave);
  Lanes ta, tr, ts, out;
  const u32* a = fetch<typename LaneOf<kSource>::T>(wave, inst, 0, ta);  // widened to float
  const u32* random = fetch<u32>(wave, inst, 1, tr);
  const u32* scale = kScaled ? fetch<f32>(wave, inst, 2, ts) : nullptr;
  const bool saturate = wave.fp16_ovfl();
  VGPU_LANES {
    const f32 value = kSource == Wide::kF32 ? source(a[lane]) : bits<f32>(a[lane]);
    const f32 x = kScaled ? over_scale(value, scale[lane]) : value;
    const bool keep_infinity = kTarget.bits() == 16 && is_inf(x);
    out.word[lane] = encode_small<kTarget>(x, {true, random[lane], saturate && !keep_infinity});
  }
  store_field(wave, inst, kTarget.bits(), out);
}

// Packs a pair to fp4, each element with its own random bits.
template <Wide kSource>
void pack_pair_random(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const Pair<kSource> x(wave, inst);
  Lanes tr, ts, out;
  const u32* random = fetch<u32>(wave, inst, 1, tr);
  const u32* scale = fetch<f32>(wave, inst, 2, ts);
  VGPU_LANES {
    const u32 first = random[lane], second = next_random(first);
    out.word[lane] =
        encode_small<kE2m1>(over_scale(x.low[lane], scale[lane]), {true, first, true}) |
        encode_small<kE2m1>(over_scale(x.high[lane], scale[lane]), {true, second, true}) << 4;
  }
  store_field(wave, inst, 8, out);
}

// -------------------------------------------------------------------------------- unpacking

// Returns the codes that op_sel (or SDWA, in fetch) selects: `width` bits of source 0.
const u32* fetch_codes(Wave& wave, const Inst& inst, u32 width, Lanes& tmp) {
  const u32* raw = fetch<u32>(wave, inst, 0, tmp);
  const u32 shift = width == 16 ? 16 * (inst.opsel & 1) : 8 * (inst.opsel & 3);
  const u32 mask = (1u << width) - 1;
  VGPU_LANES { tmp.word[lane] = raw[lane] >> shift & mask; }
  return tmp.word;
}

template <SmallFloat kSource>
void unpack_one(Wave& wave, const Inst& inst) {
  Lanes out;
  const u32* code = fetch_codes(wave, inst, 8, out);
  VGPU_LANES { out.word[lane] = bits<u32>(decode_small<kSource>(code[lane])); }
  scale_and_clamp(wave, inst, Type::kF32, out.word);
  store_masked(wave, inst.dst, out.word, 1, write_mask(wave, inst));
}

template <SmallFloat kSource>
void unpack_pair(Wave& wave, const Inst& inst) {
  Lanes tmp, out;
  const u32* codes = fetch_codes(wave, inst, 2 * kSource.bits(), tmp);
  VGPU_LANES {
    out.word[lane] = bits<u32>(decode_small<kSource>(codes[lane]));
    out.word[lane + kLanes] = bits<u32>(decode_small<kSource>(codes[lane] >> kSource.bits()));
  }
  for (u32* row : {out.word, out.word + kLanes}) scale_and_clamp(wave, inst, Type::kF32, row);
  store_masked(wave, inst.dst, out.word, 2, write_mask(wave, inst));
}

// Unpacks with the scale in source 1. For f16, op_sel bit 3 selects the half that is written.
template <SmallFloat kSource, Wide kTarget>
void unpack_one_scaled(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  Lanes tmp, ts, out;
  const u32* code = fetch_codes(wave, inst, 8, tmp);
  const u32* scale = fetch<f32>(wave, inst, 1, ts);
  const bool saturate = wave.fp16_ovfl();
  VGPU_LANES {
    out.word[lane] =
        narrow<kTarget>(times_scale(decode_small<kSource>(code[lane]), scale[lane]), saturate);
  }
  if (kTarget == Wide::kF16) return store_field(wave, inst, 16, out);
  store_masked(wave, inst.dst, out.word, 1, write_mask(wave, inst));
}

template <SmallFloat kSource, Wide kTarget>
void unpack_pair_scaled(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  Lanes tmp, ts, out;
  const u32* codes = fetch_codes(wave, inst, 2 * kSource.bits(), tmp);
  const u32* scale = fetch<f32>(wave, inst, 1, ts);
  const bool saturate = wave.fp16_ovfl();
  u32 *low = out.word, *high = out.word + kLanes;
  VGPU_LANES {
    store_lane<f32>(low, lane, times_scale(decode_small<kSource>(codes[lane]), scale[lane]));
    store_lane<f32>(high, lane,
                    times_scale(decode_small<kSource>(codes[lane] >> kSource.bits()), scale[lane]));
  }
  if constexpr (kTarget != Wide::kF32) {
    if (kTarget == Wide::kF16 && !saturate) {
      narrow_halves(low);
      narrow_halves(high);
    } else {
      for (u32& word : out.word) word = narrow<kTarget>(bits<f32>(word), saturate);
    }
    VGPU_LANES { low[lane] |= high[lane] << 16; }
  }
  store_masked(wave, inst.dst, out.word, kTarget == Wide::kF32 ? 2 : 1, write_mask(wave, inst));
}

// -------------------------------------------------------------------------------- 32 six-bit codes

inline constexpr u32 kCodes = 32, kCodeDwords = 6;

struct CodeStream {
  u32 word[kCodeDwords][kLanes] = {};

  void insert(u32 index, u32 lane, u32 code) {
    const u32 dword = 6 * index / 32, shift = 6 * index % 32;
    word[dword][lane] |= code << shift;
    if (shift > 26) word[dword + 1][lane] |= code >> (32 - shift);
  }
};

u32 code_at(const u32* stream, u32 index, u32 lane) {
  const u32 shift = 6 * index % 32;
  const u32* src = stream + 6 * index / 32 * kLanes + lane;
  return (shift > 26 ? src[0] >> shift | src[kLanes] << (32 - shift) : src[0] >> shift) & 63;
}

// Returns value `index` of a tuple of floats or packed halves.
template <Wide kWide>
f32 value_at(const u32* tuple, u32 index, u32 lane, const SignBits& sign,
             const FloatSource& source) {
  if constexpr (kWide == Wide::kF32) return source(sign(tuple[index * kLanes + lane]));
  return widen<kWide>(sign(tuple[index / 2 * kLanes + lane]) >> (16 * (index & 1)) & 0xffff);
}

void store_codes(Wave& wave, const Inst& inst, const CodeStream& stream) {
  store_masked(wave, inst.dst, stream.word[0], kCodeDwords, write_mask(wave, inst));
}

// Packs 32 values of source 0 divided by the scale in source 1 or, if stochastic, in source 2.
template <SmallFloat kTarget, Wide kSource, bool kRandom>
void pack_32(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  Lanes tr, ts;
  const u32* values = wave.v(inst.src[0].reg);
  const u32* random = kRandom ? fetch<u32>(wave, inst, 1, tr) : nullptr;
  const u32* scale = fetch<f32>(wave, inst, kRandom ? 2 : 1, ts);
  const SignBits sign(inst, kSignBits<kSource>);
  const FloatSource source(wave);
  CodeStream out;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    u32 state = kRandom ? random[lane] : 0;
    for (u32 e = 0; e < kCodes; ++e, state = next_random(state)) {
      const f32 x = over_scale(value_at<kSource>(values, e, lane, sign, source), scale[lane]);
      out.insert(e, lane, encode_small<kTarget>(x, {kRandom, state, true}));
    }
  }
  store_codes(wave, inst, out);
}

// Packs 16 floats of source 0 and 16 of source 1, interleaved in the result.
template <SmallFloat kTarget>
void pack_2x16(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  Lanes ts;
  const u32* scale = fetch<f32>(wave, inst, 2, ts);
  const FloatSource source(wave);
  CodeStream out;
  for (u32 e = 0; e < kCodes; ++e) {
    const u32* values = wave.v(inst.src[e & 1].reg) + e / 2 * kLanes;
    const u32 flip_mask = inst.neg >> (e & 1) & 1 ? 0x80000000u : 0u,
              keep_mask = inst.abs >> (e & 1) & 1 ? 0x7fffffffu : ~0u;
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const f32 x = over_scale(source((values[lane] & keep_mask) ^ flip_mask), scale[lane]);
      out.insert(e, lane, encode_small<kTarget>(x));
    }
  }
  store_codes(wave, inst, out);
}

template <SmallFloat kSource, Wide kTarget>
void unpack_32(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  constexpr u32 kRows = kTarget == Wide::kF32 ? kCodes : kCodes / 2;
  Lanes ts;
  const u32* stream = wave.v(inst.src[0].reg);
  const u32* scale = fetch<f32>(wave, inst, 1, ts);
  const bool saturate = wave.fp16_ovfl();
  u32 out[kRows][kLanes] = {};
  for (u32 e = 0; e < kCodes; ++e) {
    u32* row = out[e * kRows / kCodes];
    const u32 shift = kTarget == Wide::kF32 ? 0 : 16 * (e & 1);
    for (u32 lane = 0; lane < kLanes; ++lane) {
      row[lane] |=
          narrow<kTarget>(times_scale(decode_small<kSource>(code_at(stream, e, lane)), scale[lane]),
                          saturate)
          << shift;
    }
  }
  store_masked(wave, inst.dst, out[0], kRows, write_mask(wave, inst));
}

// -------------------------------------------------------------------------------- v_cvt_pk_*16_f32

// Rounds to nearest even, independently of MODE.
template <Wide kTarget>
void pack_wide(Wave& wave, const Inst& inst) {
  Lanes ta, tb, out;
  const u32* source[2] = {fetch<f32>(wave, inst, 0, ta), fetch<f32>(wave, inst, 1, tb)};
  const bool saturate = wave.fp16_ovfl();
  VGPU_LANES { out.word[lane] = 0; }
  for (u32 half = 0; half < 2; ++half) {
    Lanes wide;
    VGPU_LANES { wide.word[lane] = source[half][lane]; }
    scale_and_clamp(wave, inst, Type::kF16, wide.word);
    VGPU_LANES {
      out.word[lane] |= narrow<kTarget>(bits<f32>(wide.word[lane]), saturate) << (16 * half);
    }
  }
  store_masked(wave, inst.dst, out.word, 1, write_mask(wave, inst));
}

// -------------------------------------------------------------------------------- moves, bits

void accvgpr_mov(Wave& wave, const Inst& inst) {
  const u32* src = wave.va(inst.src[0].reg);
  u32* dst = wave.va(inst.dst);
  const u64 exec = wave.exec();
  for (u32 lane = 0; lane < kLanes; ++lane) dst[lane] = exec >> lane & 1 ? src[lane] : dst[lane];
}

// Swaps the odd groups of kGroup lanes of the destination with the even groups of the source. In
// VOP3, op_sel bit 0 is fetch-inactive and bit 1 bound_ctrl: they decide the value of a lane whose
// partner is inactive.
template <u32 kGroup>
void permlane_swap(Wave& wave, const Inst& inst) {
  u32* d = wave.v(inst.dst);
  u32* s = wave.v(inst.src[0].reg);
  const bool fetch_inactive = inst.opsel & 1, zero = inst.opsel & 2;
  const u64 exec = wave.exec();
  for (u32 even = 0; even < kLanes; ++even) {
    if (even & kGroup) continue;
    const u32 odd = even + kGroup;
    const bool even_active = exec >> even & 1, odd_active = exec >> odd & 1;
    const u32 from_s = s[even], from_d = d[odd];
    const auto set_lane = [&](u32& dst, bool is_active, bool partner_active, u32 value) {
      if (!is_active) return;
      if (partner_active || fetch_inactive)
        dst = value;
      else if (zero)
        dst = 0;
    };
    set_lane(s[even], even_active, odd_active, from_d);
    set_lane(d[odd], odd_active, even_active, from_s);
  }
}

// The truth table is encoded in the omod, abs and neg fields; index bit 2 is source 0.
template <class T>
void bitop3(Wave& wave, const Inst& inst) {
  Lanes ta, tb, tc;
  const u32* a = fetch<T>(wave, inst, 0, ta);
  const u32* b = fetch<T>(wave, inst, 1, tb);
  const u32* c = fetch<T>(wave, inst, 2, tc);
  const u32 table = inst.omod << 6 | inst.abs << 3 | inst.neg;
  u32 active[8];
  for (u32 t = 0; t < 8; ++t) active[t] = table >> t & 1 ? ~0u : 0u;
  Result<T> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES {
    const u32 x = a[lane], y = b[lane], z = c[lane];
    const u32 clear = ~y & ((~z & active[0]) | (z & active[1])),
              clear_y = y & ((~z & active[2]) | (z & active[3]));
    const u32 set = ~y & ((~z & active[4]) | (z & active[5])),
              set_y = y & ((~z & active[6]) | (z & active[7]));
    store_lane<T>(out, lane, static_cast<T>((~x & (clear | clear_y)) | (x & (set | set_y))));
  }
  result.commit();
}

constexpr u32 clamp_byte(i32 x, i32 low, i32 high) {
  return static_cast<u32>(x < low ? low : x > high ? high : x) & 255;
}
constexpr u16 shift_pack(u32 a, u32 b, u32 shift, i32 low, i32 high) {
  const u32 s = shift & 31;
  return static_cast<u16>(clamp_byte(static_cast<i32>(a) >> s, low, high) |
                          clamp_byte(static_cast<i32>(b) >> s, low, high) << 8);
}

// -------------------------------------------------------------------------------- tables

#define ROW(number, name, exec, dst, a, b, c, traits) \
  {number, name, exec, Type::dst, {Type::a, Type::b, Type::c}, kVector | traits}

constexpr OpInfo kVop1[] = {
    ROW(82, "v_accvgpr_mov_b32", accvgpr_mov, kB32, kB32, kNone, kNone, kAccDst | kAccSrc),
    ROW(84, "v_cvt_f32_fp8", unpack_one<kE4m3Fnuz>, kF32, kB32, kNone, kNone, kOnGfx942),
    ROW(84, "v_cvt_f32_fp8", unpack_one<kE4m3>, kF32, kB32, kNone, kNone, kOnGfx950),
    ROW(85, "v_cvt_f32_bf8", unpack_one<kE5m2Fnuz>, kF32, kB32, kNone, kNone, kOnGfx942),
    ROW(85, "v_cvt_f32_bf8", unpack_one<kE5m2>, kF32, kB32, kNone, kNone, kOnGfx950),
    ROW(86, "v_cvt_pk_f32_fp8", unpack_pair<kE4m3Fnuz>, kPkF32, kB32, kNone, kNone, kOnGfx942),
    ROW(86, "v_cvt_pk_f32_fp8", unpack_pair<kE4m3>, kPkF32, kB32, kNone, kNone, kOnGfx950),
    ROW(87, "v_cvt_pk_f32_bf8", unpack_pair<kE5m2Fnuz>, kPkF32, kB32, kNone, kNone, kOnGfx942),
    ROW(87, "v_cvt_pk_f32_bf8", unpack_pair<kE5m2>, kPkF32, kB32, kNone, kNone, kOnGfx950),
    OP1_T(88, "v_prng_b32", u32, u32, kOnGfx950, next_random(a)),
    ROW(89, "v_permlane16_swap_b32", permlane_swap<16>, kB32, kB32, kNone, kNone,
        kOnGfx950 | kReadsDst | Spread::kPermlane),
    ROW(90, "v_permlane32_swap_b32", permlane_swap<32>, kB32, kB32, kNone, kNone,
        kOnGfx950 | kReadsDst | Spread::kPermlane),
    OP1_T(91, "v_cvt_f32_bf16", f32, bf16, kOnGfx950, f32{a}),
};

// Only gfx950 has block scales.
constexpr Traits kMerge = kReadsDst | kMerges, kMerge950 = kMerge | kOnGfx950;
#define UNPACK(number, name, exec, dst) \
  ROW(number, "v_cvt_scalef32_" name, (exec), dst, kB32, kF32, kNone, kOnGfx950)
#define PACK_F32(number, name, exec) \
  ROW(number, "v_cvt_scalef32_" name, (exec), kB32, kF32, kF32, kF32, kMerge950)
#define PACK_16(number, name, exec, a) \
  ROW(number, "v_cvt_scalef32_" name, (exec), kB32, a, kF32, kNone, kMerge950)
#define RANDOM(number, name, exec, a) \
  ROW(number, "v_cvt_scalef32_" name, (exec), kB32, a, kB32, kF32, kMerge950)
#define PACK_32(number, name, exec) \
  ROW(number, "v_cvt_scalef32_" name, (exec), kB192, kB512, kF32, kNone, kOnGfx950)
#define RANDOM_32(number, name, exec, a) \
  ROW(number, "v_cvt_scalef32_" name, (exec), kB192, a, kB32, kF32, kOnGfx950)
#define UNPACK_32(number, name, exec, dst) \
  ROW(number, "v_cvt_scalef32_" name, (exec), dst, kB192, kF32, kNone, kOnGfx950)

using enum Wide;

constexpr OpInfo kVop3[] = {
    ROW(563, "v_bitop3_b16", bitop3<u16>, kB16, kB16, kB16, kB16, kOnGfx950 | kKeepHigh),
    ROW(564, "v_bitop3_b32", bitop3<u32>, kB32, kB32, kB32, kB32, kOnGfx950),
    PACK_F32(565, "pk_fp8_f32", pack_floats_scaled<kE4m3>),
    PACK_F32(566, "pk_bf8_f32", pack_floats_scaled<kE5m2>),
    RANDOM(567, "sr_fp8_f32", (pack_one_random<kE4m3, kF32, true>), kF32),
    RANDOM(568, "sr_bf8_f32", (pack_one_random<kE5m2, kF32, true>), kF32),
    UNPACK(569, "pk_f32_fp8", (unpack_pair_scaled<kE4m3, kF32>), kPkF32),
    UNPACK(570, "pk_f32_bf8", (unpack_pair_scaled<kE5m2, kF32>), kPkF32),
    UNPACK(571, "f32_fp8", (unpack_one_scaled<kE4m3, kF32>), kF32),
    UNPACK(572, "f32_bf8", (unpack_one_scaled<kE5m2, kF32>), kF32),
    PACK_F32(573, "pk_fp4_f32", pack_floats_scaled<kE2m1>),
    RANDOM(574, "sr_pk_fp4_f32", pack_pair_random<kF32>, kB64),
    UNPACK(575, "pk_f32_fp4", (unpack_pair_scaled<kE2m1, kF32>), kPkF32),
    PACK_16(576, "pk_fp8_f16", (pack_halves_scaled<kE4m3, kF16>), kPkF16),
    PACK_16(577, "pk_bf8_f16", (pack_halves_scaled<kE5m2, kF16>), kPkF16),
    RANDOM(578, "sr_fp8_f16", (pack_one_random<kE4m3, kF16, true>), kF16),
    RANDOM(579, "sr_bf8_f16", (pack_one_random<kE5m2, kF16, true>), kF16),
    PACK_16(580, "pk_fp8_bf16", (pack_halves_scaled<kE4m3, kBf16>), kPkBf16),
    PACK_16(581, "pk_bf8_bf16", (pack_halves_scaled<kE5m2, kBf16>), kPkBf16),
    RANDOM(582, "sr_fp8_bf16", (pack_one_random<kE4m3, kBf16, true>), kBf16),
    RANDOM(583, "sr_bf8_bf16", (pack_one_random<kE5m2, kBf16, true>), kBf16),
    UNPACK(584, "pk_f16_fp8", (unpack_pair_scaled<kE4m3, kF16>), kPkF16),
    UNPACK(585, "pk_f16_bf8", (unpack_pair_scaled<kE5m2, kF16>), kPkF16),
    ROW(586, "v_cvt_scalef32_f16_fp8", (unpack_one_scaled<kE4m3, kF16>), kB32, kB32, kF32, kNone,
        kMerge950),
    ROW(587, "v_cvt_scalef32_f16_bf8", (unpack_one_scaled<kE5m2, kF16>), kB32, kB32, kF32, kNone,
        kMerge950),
    PACK_16(588, "pk_fp4_f16", (pack_halves_scaled<kE2m1, kF16>), kPkF16),
    PACK_16(589, "pk_fp4_bf16", (pack_halves_scaled<kE2m1, kBf16>), kPkBf16),
    RANDOM(590, "sr_pk_fp4_f16", pack_pair_random<kF16>, kPkF16),
    RANDOM(591, "sr_pk_fp4_bf16", pack_pair_random<kBf16>, kPkBf16),
    UNPACK(592, "pk_f16_fp4", (unpack_pair_scaled<kE2m1, kF16>), kPkF16),
    UNPACK(593, "pk_bf16_fp4", (unpack_pair_scaled<kE2m1, kBf16>), kPkBf16),
    ROW(594, "v_cvt_scalef32_2xpk16_fp6_f32", pack_2x16<kE2m3>, kB192, kB512, kB512, kF32,
        kOnGfx950),
    ROW(595, "v_cvt_scalef32_2xpk16_bf6_f32", pack_2x16<kE3m2>, kB192, kB512, kB512, kF32,
        kOnGfx950),
    RANDOM_32(596, "sr_pk32_fp6_f32", (pack_32<kE2m3, kF32, true>), kB1024),
    RANDOM_32(597, "sr_pk32_bf6_f32", (pack_32<kE3m2, kF32, true>), kB1024),
    UNPACK_32(598, "pk32_f32_fp6", (unpack_32<kE2m3, kF32>), kB1024),
    UNPACK_32(599, "pk32_f32_bf6", (unpack_32<kE3m2, kF32>), kB1024),
    PACK_32(600, "pk32_fp6_f16", (pack_32<kE2m3, kF16, false>)),
    PACK_32(601, "pk32_fp6_bf16", (pack_32<kE2m3, kBf16, false>)),
    PACK_32(602, "pk32_bf6_f16", (pack_32<kE3m2, kF16, false>)),
    PACK_32(603, "pk32_bf6_bf16", (pack_32<kE3m2, kBf16, false>)),
    RANDOM_32(604, "sr_pk32_fp6_f16", (pack_32<kE2m3, kF16, true>), kB512),
    RANDOM_32(605, "sr_pk32_fp6_bf16", (pack_32<kE2m3, kBf16, true>), kB512),
    RANDOM_32(606, "sr_pk32_bf6_f16", (pack_32<kE3m2, kF16, true>), kB512),
    RANDOM_32(607, "sr_pk32_bf6_bf16", (pack_32<kE3m2, kBf16, true>), kB512),
    UNPACK_32(608, "pk32_f16_fp6", (unpack_32<kE2m3, kF16>), kB512),
    UNPACK_32(609, "pk32_bf16_fp6", (unpack_32<kE2m3, kBf16>), kB512),
    UNPACK_32(610, "pk32_f16_bf6", (unpack_32<kE3m2, kF16>), kB512),
    UNPACK_32(611, "pk32_bf16_bf6", (unpack_32<kE3m2, kBf16>), kB512),
    OP3_T(613, "v_ashr_pk_i8_i32", u16, u32, u32, u32, kOnGfx950 | kKeepHigh,
          shift_pack(a, b, c, -128, 127)),
    OP3_T(614, "v_ashr_pk_u8_i32", u16, u32, u32, u32, kOnGfx950 | kKeepHigh,
          shift_pack(a, b, c, 0, 255)),
    ROW(615, "v_cvt_pk_f16_f32", pack_wide<kF16>, kPkF16, kF32, kF32, kNone, kOnGfx950),
    ROW(616, "v_cvt_pk_bf16_f32", pack_wide<kBf16>, kPkBf16, kF32, kF32, kNone, kOnGfx950),
    UNPACK(617, "pk_bf16_fp8", (unpack_pair_scaled<kE4m3, kBf16>), kPkBf16),
    UNPACK(618, "pk_bf16_bf8", (unpack_pair_scaled<kE5m2, kBf16>), kPkBf16),
    ROW(674, "v_cvt_pk_fp8_f32", pack_floats<kE4m3Fnuz>, kB32, kF32, kF32, kNone,
        kOnGfx942 | kMerge),
    ROW(674, "v_cvt_pk_fp8_f32", pack_floats<kE4m3>, kB32, kF32, kF32, kNone, kMerge950),
    ROW(675, "v_cvt_pk_bf8_f32", pack_floats<kE5m2Fnuz>, kB32, kF32, kF32, kNone,
        kOnGfx942 | kMerge),
    ROW(675, "v_cvt_pk_bf8_f32", pack_floats<kE5m2>, kB32, kF32, kF32, kNone, kMerge950),
    ROW(676, "v_cvt_sr_fp8_f32", (pack_one_random<kE4m3Fnuz, kF32, false>), kB32, kF32, kB32, kNone,
        kOnGfx942 | kMerge),
    ROW(676, "v_cvt_sr_fp8_f32", (pack_one_random<kE4m3, kF32, false>), kB32, kF32, kB32, kNone,
        kMerge950),
    ROW(677, "v_cvt_sr_bf8_f32", (pack_one_random<kE5m2Fnuz, kF32, false>), kB32, kF32, kB32, kNone,
        kOnGfx942 | kMerge),
    ROW(677, "v_cvt_sr_bf8_f32", (pack_one_random<kE5m2, kF32, false>), kB32, kF32, kB32, kNone,
        kMerge950),
    ROW(678, "v_cvt_sr_f16_f32", (pack_one_random<kHalf, kF32, false>), kB32, kF32, kB32, kNone,
        kMerge950),
    ROW(679, "v_cvt_sr_bf16_f32", (pack_one_random<kBfloat, kF32, false>), kB32, kF32, kB32, kNone,
        kMerge950),
};

}  // namespace

extern const OpTable kConvertVop1Table;
extern const OpTable kConvertVop3Table;
const OpTable kConvertVop1Table = {Format::kVop1, kVop1, static_cast<u32>(std::size(kVop1))};
const OpTable kConvertVop3Table = {Format::kVop3, kVop3, static_cast<u32>(std::size(kVop3))};

}  // namespace vgpu
