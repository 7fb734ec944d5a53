// Dot products of small vectors held in one register, shared by VOP2 (dot2c ...) and VOP3P (dot2 ...).
#pragma once

#include "lanes.h"

namespace vgpu {

template <class T>
f32 widen_16(u16 raw) {
  if constexpr (kTypeOf<T> == Type::kF16) return half_to_float(raw);
  return bf16_to_float(raw);
}

// Element `i` of `kBits` bits, signed as T is.
template <class T, u32 kBits>
i64 element(u32 word, u32 i) {
  const u32 raw = field(word, i * kBits, kBits);
  if constexpr (std::is_signed_v<T>) return sign_extend(raw, kBits);
  return raw;
}

// The exact sum of products, rounded once: f16 and bf16 products are exact in double.
inline f32 dot2_value(f32 a0, f32 b0, f32 a1, f32 b1, f32 c) {
  return static_cast<f32>(f64{a0} * b0 + f64{a1} * b1 + f64{c});
}

// d += a . b over two halves.
template <class T>
void dot2c(Wave& w, const Inst& in) {
  Lanes ta, tb;
  const u32* a = fetch<u32>(w, in, 0, ta);
  const u32* b = fetch<u32>(w, in, 1, tb);
  const u32* d = w.v(in.dst);
  Result<f32> result(w, in);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const auto half = [&](const u32* x, u32 i) { return widen_16<T>(static_cast<u16>(x[lane] >> (16 * i))); };
    put<f32>(result.out, lane, dot2_value(half(a, 0), half(b, 0), half(a, 1), half(b, 1), get<f32>(d, lane)));
  }
  result.commit();
}

template <class T, u32 kBits>
i64 integer_dot(u32 a, u32 b, i64 c) {
  for (u32 i = 0; i < 32 / kBits; ++i) c += element<T, kBits>(a, i) * element<T, kBits>(b, i);
  return c;
}

template <class T, u32 kBits>
void dotc(Wave& w, const Inst& in) {
  Lanes ta, tb;
  const u32* a = fetch<u32>(w, in, 0, ta);
  const u32* b = fetch<u32>(w, in, 1, tb);
  const u32* d = w.v(in.dst);
  Result<u32> result(w, in);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    i64 x = integer_dot<T, kBits>(a[lane], b[lane], static_cast<i32>(d[lane]));
    if (in.clamp) x = x < -0x80000000ll ? -0x80000000ll : x > 0x7fffffff ? 0x7fffffff : x;
    result.out[lane] = static_cast<u32>(x);
  }
  result.commit();
}

inline f32 half_fma(f32 a, f32 b, f32 c) { return round_to_odd(f64{a} * b + f64{c}); }

inline void pk_fmac_f16(Wave& w, const Inst& in) {
  Lanes ta, tb, out;
  const u32* a = fetch<u32>(w, in, 0, ta);
  const u32* b = fetch<u32>(w, in, 1, tb);
  const u32* d = w.v(in.dst);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const auto half = [&](const u32* x, u32 i) { return half_to_float(static_cast<u16>(x[lane] >> (16 * i))); };
    const u32 low = float_to_half(half_fma(half(a, 0), half(b, 0), half(d, 0)));
    out.word[lane] = low | u32{float_to_half(half_fma(half(a, 1), half(b, 1), half(d, 1)))} << 16;
  }
  store_masked(w, in.dst, out.word, 1, write_mask(w, in));
}

}  // namespace vgpu
