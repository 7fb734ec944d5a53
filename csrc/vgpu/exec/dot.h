// Dot products of small vectors in one register, shared by VOP2 (dot2c ...) and VOP3P (dot2 ...).
#pragma once

#include "vgpu/exec/lanes.h"

namespace vgpu {

// Converts both 16-bit values of each lane to float.
template <class T>
void split_halves(const u32* raw, Lanes& low, Lanes& high) {
  constexpr bool kHalf = kTypeOf<T> == Type::kF16;
  VGPU_LANES { low.word[lane] = kHalf ? raw[lane] & 0xffff : raw[lane] << 16; }
  VGPU_LANES { high.word[lane] = kHalf ? raw[lane] >> 16 : raw[lane] & 0xffff0000; }
  if constexpr (kHalf) {
    widen_halves(low.word);
    widen_halves(high.word);
  }
}

// Returns element `i` of `kBits` bits, with the signedness of T.
template <class T, u32 kBits>
i64 element(u32 word, u32 i) {
  const u32 raw = field(word, i * kBits, kBits);
  if constexpr (std::is_signed_v<T>) return sign_extend(raw, kBits);
  return raw;
}

// Returns the exact sum of products, rounded once: f16 and bf16 products are exact in double.
inline f32 dot2_value(f32 a0, f32 b0, f32 a1, f32 b1, f32 c) {
  return static_cast<f32>(f64{a0} * b0 + f64{a1} * b1 + f64{c});
}

// d += a . b over two halves.
template <class T>
void dot2c(Wave& w, const Inst& inst) {
  Lanes ta, tb, a[2], b[2];
  split_halves<T>(fetch<u32>(w, inst, 0, ta), a[0], a[1]);
  split_halves<T>(fetch<u32>(w, inst, 1, tb), b[0], b[1]);
  const u32* d = w.v(inst.dst);
  const u32 *a0 = a[0].word, *a1 = a[1].word, *b0 = b[0].word, *b1 = b[1].word;
  Result<f32> result(w, inst);
  u32* out = result.out;
  VGPU_LANES {
    store_lane<f32>(
        out, lane,
        dot2_value(load_lane<f32>(a0, lane), load_lane<f32>(b0, lane), load_lane<f32>(a1, lane),
                   load_lane<f32>(b1, lane), load_lane<f32>(d, lane)));
  }
  result.commit();
}

template <class T, u32 kBits>
i64 integer_dot(u32 a, u32 b, i64 c) {
  for (u32 i = 0; i < 32 / kBits; ++i) c += element<T, kBits>(a, i) * element<T, kBits>(b, i);
  return c;
}

template <class T, u32 kBits>
void dotc(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<u32>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  const u32* d = w.v(inst.dst);
  Result<u32> result(w, inst);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    i64 x = integer_dot<T, kBits>(a[lane], b[lane], static_cast<i32>(d[lane]));
    if (inst.clamp) x = x < -0x80000000ll ? -0x80000000ll : x > 0x7fffffff ? 0x7fffffff : x;
    result.out[lane] = static_cast<u32>(x);
  }
  result.commit();
}

inline f32 half_fma(f32 a, f32 b, f32 c) { return round_to_odd(f64{a} * b + f64{c}); }

inline void pk_fmac_f16(Wave& w, const Inst& inst) {
  FpGuard guard(w);
  Lanes ta, tb, a[2], b[2], d[2];
  split_halves<f16>(fetch<u32>(w, inst, 0, ta), a[0], a[1]);
  split_halves<f16>(fetch<u32>(w, inst, 1, tb), b[0], b[1]);
  split_halves<f16>(w.v(inst.dst), d[0], d[1]);
  for (u32 half = 0; half < 2; ++half) {
    const u32 *x = a[half].word, *y = b[half].word;
    u32* out = d[half].word;
    VGPU_LANES {
      store_lane<f32>(
          out, lane,
          half_fma(load_lane<f32>(x, lane), load_lane<f32>(y, lane), load_lane<f32>(out, lane)));
    }
    scale_and_clamp(w, inst, Type::kF16, out);
    narrow(w, Type::kF16, out);
  }
  VGPU_LANES { d[0].word[lane] |= d[1].word[lane] << 16; }
  commit_slow(w, inst, Type::kB32, d[0]);
}

}  // namespace vgpu
