// What random programs are made of: types and operations that mean the same on the host and on the
// device. On the device an operation is the builtin that selects the instruction under test; on the
// host it is plain C++. NaN payloads and signs are not compared: q() makes every NaN the same one.
#pragma once

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;
using f16 = _Float16;
using bf16 = __bf16;
using f32 = float;
using f64 = double;

#define VECTOR(T, n) using T##x##n = T __attribute__((ext_vector_type(n)))
VECTOR(u8, 4);
VECTOR(u16, 2);
VECTOR(i16, 2);
VECTOR(u16, 4);
VECTOR(u32, 2);
VECTOR(i32, 2);
VECTOR(f16, 2);
VECTOR(f16, 4);
VECTOR(bf16, 2);
VECTOR(f32, 2);
#undef VECTOR

#ifdef __AMDGCN__
#define FN __attribute__((device, always_inline)) static inline
#define METHOD __attribute__((device, always_inline))
#else
#define FN __attribute__((always_inline)) static inline
#define METHOD __attribute__((always_inline))
#endif

template <class To, class From>
FN To bits(From x) {
  return __builtin_bit_cast(To, x);
}
template <class To, class From>
FN To to(From x) {
  return static_cast<To>(x);
}
template <class T>
FN T load(const u8* from) {
  T x;
  __builtin_memcpy(&x, from, sizeof(T));
  return x;
}
template <class T>
FN void store(u8* to, T x) {
  __builtin_memcpy(to, &x, sizeof(T));
}

// -------------------------------------------------------------------------------- NaN

template <class T>
FN T q(T x) {
  return x;
}
// By integers: clang takes any NaN for any other and drops a choice between two of them.
#define CANONICAL(T, I, infinity, nan)                                  \
  template <>                                                           \
  FN T q(T x) {                                                         \
    constexpr I kSize = static_cast<I>(~(I{1} << (8 * sizeof(I) - 1))); \
    const I word = bits<I>(x);                                          \
    return bits<T>((word & kSize) > I{infinity} ? I{nan} : word);       \
  }
CANONICAL(f16, u16, 0x7c00, 0x7e00)
CANONICAL(bf16, u16, 0x7f80, 0x7fc0)
CANONICAL(f32, u32, 0x7f800000, 0x7fc00000)
CANONICAL(f64, u64, 0x7ff0000000000000, 0x7ff8000000000000)
#undef CANONICAL
template <>
FN f16x2 q(f16x2 x) {
  return f16x2{q<f16>(x.x), q<f16>(x.y)};
}
template <>
FN f16x4 q(f16x4 x) {
  return f16x4{q<f16>(x.x), q<f16>(x.y), q<f16>(x.z), q<f16>(x.w)};
}
template <>
FN bf16x2 q(bf16x2 x) {
  return bf16x2{q<bf16>(x.x), q<bf16>(x.y)};
}
template <>
FN f32x2 q(f32x2 x) {
  return f32x2{q<f32>(x.x), q<f32>(x.y)};
}

// -------------------------------------------------------------------------------- integers

template <class T>
constexpr bool kSigned = T(-1) < T(0);
template <class T>
constexpr int kBits = 8 * sizeof(T);

// `x` from a register that the compiler does not look into. It keeps faults of clang 22.1.8 out of
// the comparison, which random_programs.py names.
template <class T>
FN T hidden(T x) {
#ifdef __AMDGCN__
  asm("" : "+v"(x));
#endif
  return x;
}
template <class T>
constexpr bool kScalar64 = __is_same(T, u64) || __is_same(T, i64);
template <class T>
FN T either(T a, T b) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(hidden(a) | hidden(b));
  return static_cast<T>(a | b);
}
template <class T>
FN T dividend(T a) {
#ifdef GLOBAL_ISEL
  if constexpr (sizeof(T) >= 4) return hidden(a);
#endif
  return a;
}

// C++ leaves shifts by too much and divisions by zero undefined.
template <class T>
FN T shl(T a, u32 n) {
  return static_cast<T>(a << (n & (kBits<T> - 1)));
}
template <class T>
FN T shr(T a, u32 n) {
  return static_cast<T>(a >> (n & (kBits<T> - 1)));
}
template <class T>
FN T safe_divisor(T b) {
  return b == 0 || (kSigned<T> && b == T(-1)) ? T(1) : b;
}
template <class T>
FN T quotient(T a, T b) {
  return static_cast<T>(dividend(a) / safe_divisor(b));
}
template <class T>
FN T remainder(T a, T b) {
  return static_cast<T>(dividend(a) % safe_divisor(b));
}
template <class T>
FN T low(T a, T b) {
  return a < b ? a : b;
}
template <class T>
FN T high(T a, T b) {
  return a > b ? a : b;
}
template <class T>
FN T median(T a, T b, T c) {
  return high(low(a, b), low(high(a, b), c));
}
template <class T>
FN T add_sat(T a, T b) {
  if constexpr (kScalar64<T>) return __builtin_elementwise_add_sat(hidden(a), hidden(b));
  return __builtin_elementwise_add_sat(a, b);
}
template <class T>
FN T sub_sat(T a, T b) {
  if constexpr (kScalar64<T>) return __builtin_elementwise_sub_sat(hidden(a), hidden(b));
  return __builtin_elementwise_sub_sat(a, b);
}
template <class T>
FN u32 leading_zeros(T a) {
  if constexpr (sizeof(T) == 8) return a ? __builtin_clzll(a) : 64;
  return a ? __builtin_clz(a) : 32;
}
template <class T>
FN u32 trailing_zeros(T a) {
  if constexpr (sizeof(T) == 8) return a ? __builtin_ctzll(a) : 64;
  return a ? __builtin_ctz(a) : 32;
}
FN i32 widen(i8 x) { return hidden(i32{x}); }

// -------------------------------------------------------------------------------- conversions

template <class T, class F>
FN T to_int(F x) {
  using W = decltype(x + f32{0});  // f64 stays, others widen
  const W top = static_cast<W>(u64{1} << (kBits<T> - 1 - kSigned<T>)) * W{2};
  const W bottom = kSigned<T> ? -top : W{-1};
  const W w = x;
  return w > bottom && w < top ? static_cast<T>(w) : T(0);
}

#ifndef __AMDGCN__
// What the compiler calls on a host without these instructions. Each rounds once, to nearest even.
template <int kMantissa, int kMinExponent, u16 kInf>
static u16 narrow_double(f64 x) {
  const u64 word = bits<u64>(x);
  const u16 sign = static_cast<u16>(word >> 48 & 0x8000);
  const u64 mag = word & 0x7fffffffffffffff;
  if (mag > 0x7ff0000000000000) return sign | kInf | 1 << (kMantissa - 1);
  if (mag == 0) return sign;
  int exponent = static_cast<int>(mag >> 52) - 1023;
  u64 mantissa = (mag & 0xfffffffffffff) | u64{1} << 52;
  int drop = 52 - kMantissa;
  if (exponent < kMinExponent) drop += kMinExponent - exponent, exponent = kMinExponent;
  if (drop > 54) return sign;
  const u64 rest = mantissa & ((u64{1} << drop) - 1), half = u64{1} << (drop - 1);
  mantissa >>= drop;
  mantissa += rest > half || (rest == half && mantissa & 1);
  const u64 out = (static_cast<u64>(exponent - kMinExponent) << kMantissa) + mantissa;
  return out >= kInf ? sign | kInf : sign | static_cast<u16>(out);
}
extern "C" f16 __truncdfhf2(f64 x) { return bits<f16>(narrow_double<10, -14, 0x7c00>(x)); }
extern "C" bf16 __truncdfbf2(f64 x) { return bits<bf16>(narrow_double<7, -126, 0x7f80>(x)); }
extern "C" bf16 __truncsfbf2(f32 x) { return __truncdfbf2(x); }
#endif

// -------------------------------------------------------------------------------- floats

// The lesser zero is -0, and a NaN gives way to a number.
template <class T>
FN T float_low(T a, T b) {
#ifdef __AMDGCN__
  if constexpr (sizeof(T) == 8) return __builtin_fmin(a, b);
  if constexpr (sizeof(T) == 4) return __builtin_fminf(a, b);
  return __builtin_fminf16(a, b);
#else
  if (a == b) return __builtin_signbit(static_cast<f64>(a)) ? a : b;
  return a != a ? b : b != b ? a : a < b ? a : b;
#endif
}
template <class T>
FN T float_high(T a, T b) {
#ifdef __AMDGCN__
  if constexpr (sizeof(T) == 8) return __builtin_fmax(a, b);
  if constexpr (sizeof(T) == 4) return __builtin_fmaxf(a, b);
  return __builtin_fmaxf16(a, b);
#else
  if (a == b) return __builtin_signbit(static_cast<f64>(a)) ? b : a;
  return a != a ? b : b != b ? a : a < b ? b : a;
#endif
}
// Between 0 and 1, and 0 for NaN: the clamp bit of whatever has made x. The sign of a zero is not
// defined; `hidden` keeps a negation behind it apart.
template <class T>
FN T unit(T x) {
#ifdef __AMDGCN__
  if constexpr (sizeof(T) == 4) x = hidden(__builtin_amdgcn_fmed3f(x, 0.0f, 1.0f));
  if constexpr (sizeof(T) == 2) x = hidden(__builtin_amdgcn_fmed3h(x, f16(0.0f), f16(1.0f)));
#else
  x = x > T(1.0f) ? T(1.0f) : x;
#endif
  return x > T(0.0f) ? x : T(0.0f);
}
template <class T>
FN T fma(T a, T b, T c) {
  return __builtin_elementwise_fma(a, b, c);
}
#ifndef __AMDGCN__
// The exact product plus the addend, rounded to odd in f64 and then to f16.
template <>
FN f16 fma(f16 a, f16 b, f16 c) {
  const f64 x = static_cast<f64>(a) * static_cast<f64>(b), y = static_cast<f64>(c);
  const f64 sum = x + y, part = sum - x;
  const f64 error = (x - (sum - part)) + (y - part);
  u64 word = bits<u64>(sum);
  if (sum - sum == 0 && error != 0 && !(word & 1)) word += (error > 0) == (sum > 0) ? 1 : u64(-1);
  return static_cast<f16>(bits<f64>(word));
}
#endif
template <class To, class From>
FN To rounded(From x) {
  return static_cast<To>(hidden(x));
}
FN f32 scale_by(f32 x, i32 by) { return __builtin_ldexpf(x, by); }
FN bool is_class(f32 x, u32 mask) {
#ifdef __AMDGCN__
  return __builtin_amdgcn_classf(x, mask);
#else
  const u32 word = bits<u32>(x), mag = word & 0x7fffffff;
  const int size = mag == 0x7f800000 ? 3 : mag >= 0x800000 ? 2 : mag ? 1 : 0;
  if (mag > 0x7f800000) return mask & 2;
  return mask >> (word >> 31 ? 5 - size : 6 + size) & 1;
#endif
}

// -------------------------------------------------------------------------------- instructions

#ifdef __AMDGCN__
FN u32 align_bits(u32 a, u32 b, u32 n) { return __builtin_amdgcn_alignbit(a, b, n); }
FN u32 align_bytes(u32 a, u32 b, u32 n) { return __builtin_amdgcn_alignbyte(a, b, n); }
FN u32 permute_bytes(u32 a, u32 b, u32 s) { return __builtin_amdgcn_perm(a, b, s); }
FN u32 sad_bytes(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sad_u8(a, b, c); }
FN u32 sad_halves(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sad_u16(a, b, c); }
FN u32 masked_sad(u32 a, u32 b, u32 c) { return __builtin_amdgcn_msad_u8(a, b, c); }
FN u32 average_bytes(u32 a, u32 b, u32 c) { return __builtin_amdgcn_lerp(a, b, c); }
FN u32 unsigned_field(u32 a, u32 at, u32 n) { return __builtin_amdgcn_ubfe(a, at, n); }
FN i32 signed_field(i32 a, u32 at, u32 n) { return __builtin_amdgcn_sbfe(a, at, n); }
FN i32 dot2(i16x2 a, i16x2 b, i32 c) { return __builtin_amdgcn_sdot2(a, b, c, false); }
FN u32 dot2(u16x2 a, u16x2 b, u32 c) { return __builtin_amdgcn_udot2(a, b, c, false); }
FN i32 dot4(i32 a, i32 b, i32 c) { return __builtin_amdgcn_sdot4(a, b, c, false); }
FN u32 dot4(u32 a, u32 b, u32 c) { return __builtin_amdgcn_udot4(a, b, c, false); }
FN i32 dot8(i32 a, i32 b, i32 c) { return __builtin_amdgcn_sdot8(a, b, c, false); }
FN u32 dot8(u32 a, u32 b, u32 c) { return __builtin_amdgcn_udot8(a, b, c, false); }
FN i16x2 pack_signed(i32 a, i32 b) { return __builtin_amdgcn_cvt_pk_i16(a, b); }
FN u16x2 pack_unsigned(u32 a, u32 b) { return __builtin_amdgcn_cvt_pk_u16(a, b); }
FN u32 pack_toward_zero(f32 a, f32 b) { return bits<u32>(__builtin_amdgcn_cvt_pkrtz(a, b)); }
FN u32 ones_below(u32 lo, u32 hi, u32 base, u32) {
  return __builtin_amdgcn_mbcnt_hi(hi, __builtin_amdgcn_mbcnt_lo(lo, base));
}
#else
FN u32 align_bits(u32 a, u32 b, u32 n) { return (u64{a} << 32 | b) >> (n & 31); }
FN u32 align_bytes(u32 a, u32 b, u32 n) { return (u64{a} << 32 | b) >> (8 * (n & 3)); }
FN u32 permute_bytes(u32 a, u32 b, u32 s) {
  const u64 both = u64{a} << 32 | b;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 k = s >> 8 * i & 255;
    const u32 byte = k < 8     ? both >> 8 * k & 255
                     : k < 12  ? (both >> (16 * (k - 8) + 15) & 1 ? 255 : 0)
                     : k == 12 ? 0
                               : 255;
    out |= byte << 8 * i;
  }
  return out;
}
static inline u32 apart(u32 x, u32 y) { return x > y ? x - y : y - x; }
FN u32 sad_bytes(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 32; i += 8) c += apart(a >> i & 255, b >> i & 255);
  return c;
}
FN u32 sad_halves(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 32; i += 16) c += apart(a >> i & 65535, b >> i & 65535);
  return c;
}
FN u32 masked_sad(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 32; i += 8) c += b >> i & 255 ? apart(a >> i & 255, b >> i & 255) : 0;
  return c;
}
FN u32 average_bytes(u32 a, u32 b, u32 c) {
  u32 out = 0;
  for (int i = 0; i < 32; i += 8)
    out |= (((a >> i & 255) + (b >> i & 255) + (c >> i & 1)) >> 1) << i;
  return out;
}
FN u32 unsigned_field(u32 a, u32 at, u32 n) { return a >> (at & 31) & ((1u << (n & 31)) - 1); }
FN i32 signed_field(i32 a, u32 at, u32 n) {
  const int width = n & 31;
  if (!width) return 0;
  const i32 x = a >> (at & 31);
  return x << (32 - width) >> (32 - width);
}
template <class A, int kWidth, class C>
FN C dot(u32 a, u32 b, C c) {
  for (int i = 0; i < 32; i += kWidth) {
    const A x = static_cast<A>(a << (32 - kWidth - i)) >> (32 - kWidth);
    const A y = static_cast<A>(b << (32 - kWidth - i)) >> (32 - kWidth);
    c += static_cast<C>(x) * static_cast<C>(y);
  }
  return c;
}
FN i32 dot2(i16x2 a, i16x2 b, i32 c) { return dot<i32, 16>(bits<u32>(a), bits<u32>(b), c); }
FN u32 dot2(u16x2 a, u16x2 b, u32 c) { return dot<u32, 16>(bits<u32>(a), bits<u32>(b), c); }
FN i32 dot4(i32 a, i32 b, i32 c) { return dot<i32, 8>(a, b, c); }
FN u32 dot4(u32 a, u32 b, u32 c) { return dot<u32, 8>(a, b, c); }
FN i32 dot8(i32 a, i32 b, i32 c) { return dot<i32, 4>(a, b, c); }
FN u32 dot8(u32 a, u32 b, u32 c) { return dot<u32, 4>(a, b, c); }
FN i16x2 pack_signed(i32 a, i32 b) {
  return i16x2{i16(median(a, -32768, 32767)), i16(median(b, -32768, 32767))};
}
FN u16x2 pack_unsigned(u32 a, u32 b) { return u16x2{u16(low(a, 65535u)), u16(low(b, 65535u))}; }
static inline u32 toward_zero(f32 x) {
  const u16 near = bits<u16>(static_cast<f16>(x));
  const f32 size = static_cast<f32>(bits<f16>(u16(near & 0x7fff)));
  return near - (x - x == 0 && size > __builtin_fabsf(x));
}
FN u32 pack_toward_zero(f32 a, f32 b) { return toward_zero(a) | toward_zero(b) << 16; }
FN u32 ones_below(u32 lo, u32 hi, u32 base, u32 lane) {
  const u64 below = (u64{1} << lane) - 1;
  return base + __builtin_popcountll((u64{hi} << 32 | lo) & below);
}
#endif

// -------------------------------------------------------------------------------- atomics

#ifdef __AMDGCN__
#define ATOMIC(name, op, fallback)                                                   \
  template <class T>                                                                 \
  FN T atomic_##name(u8* at, T x) {                                                  \
    return __hip_atomic_##op((T*)at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); \
  }
#else
#define ATOMIC(name, op, result)    \
  template <class T>                \
  FN T atomic_##name(u8* at, T x) { \
    const T old = load<T>(at);      \
    store<T>(at, q<T>(result));     \
    return old;                     \
  }
#endif
ATOMIC(add, fetch_add, T(old + x))
ATOMIC(sub, fetch_sub, T(old - x))
ATOMIC(and, fetch_and, T(old& x))
ATOMIC(or, fetch_or, T(old | x))
ATOMIC(xor, fetch_xor, T(old ^ x))
ATOMIC(min, fetch_min, low(old, x))
ATOMIC(max, fetch_max, high(old, x))
ATOMIC(swap, exchange, x)
// A float in memory is made an ordinary number first, so that no NaN is compared.
template <class T>
FN T atomic_float_add(u8* at, T x) {
  store<T>(at, q(load<T>(at)));
#ifdef __AMDGCN__
  const T old = __hip_atomic_fetch_add((T*)at, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  const T old = load<T>(at);
  store<T>(at, q<T>(old + x));
#endif
  store<T>(at, q(load<T>(at)));
  return q(old);
}
template <class T>
FN T atomic_compare_swap(u8* at, T expected, T x) {
#ifdef __AMDGCN__
  __hip_atomic_compare_exchange_strong((T*)at, &expected, x, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
#else
  const T old = load<T>(at);
  if (old == expected) store<T>(at, x);
  return old;
#endif
}

// -------------------------------------------------------------------------------- lanes

constexpr u32 kLanes = 256;  // of a program: four waves
constexpr u32 kSlice = 64;   // bytes of memory and of LDS that belong to a lane

#ifdef __AMDGCN__
FN void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <u32 kGroup>
FN void swap_groups(u32& a, u32& b, u32 lane) {
#ifdef __gfx950__
  const auto both = kGroup == 32 ? __builtin_amdgcn_permlane32_swap(a, b, false, false)
                                 : __builtin_amdgcn_permlane16_swap(a, b, false, false);
  a = both[0], b = both[1];
#else
  const u32 other = (lane ^ kGroup) * 4, x = a, y = b;
  const u32 from_a = __builtin_amdgcn_ds_bpermute(other, x);
  const u32 from_b = __builtin_amdgcn_ds_bpermute(other, y);
  a = lane & kGroup ? from_b : x;
  b = lane & kGroup ? y : from_a;
#endif
}
#else
// The lane that `lane` reads under a DPP control, -1 where there is none.
static int dpp_lane(u32 control, int lane) {
  const int at = lane & 15, row = lane & ~15, n = control & 15;
  if (control < 0x100) return (lane & ~3) | (control >> 2 * (lane & 3) & 3);
  switch (control & 0x1f0) {
    case 0x100:
      return at + n < 16 ? lane + n : -1;
    case 0x110:
      return at >= n ? lane - n : -1;
    case 0x120:
      return row | ((at - n) & 15);
    case 0x150:
      return row | n;
  }
  switch (control) {
    case 0x130:
      return lane < 63 ? lane + 1 : -1;
    case 0x134:
      return (lane + 1) & 63;
    case 0x138:
      return lane - 1;
    case 0x13c:
      return (lane - 1) & 63;
    case 0x140:
      return row | (15 - at);
    case 0x141:
      return (lane & ~7) | (7 - (lane & 7));
    case 0x142:
      return row ? row - 1 : -1;
    case 0x143:
      return lane >= 32 ? 31 : -1;
  }
  return -1;
}
static u32 dpp(const u32* wave, u32 old, u32 lane, u32 control, u32 rows, u32 banks, bool zero) {
  if (!(rows >> lane / 16 & 1) || !(banks >> lane / 4 % 4 & 1)) return old;
  const int from = dpp_lane(control, static_cast<int>(lane));
  return from < 0 ? (zero ? 0 : old) : wave[from];
}
static u32 swizzle(const u32* wave, u32 lane, u32 pattern) {
  if (pattern & 0x8000) return wave[(lane & ~3u) | (pattern >> 2 * (lane & 3) & 3)];
  const u32 at = ((lane & pattern & 31) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
  return wave[(lane & 32) | at];
}
#define EACH for (u32 l = 0; l < kLanes; ++l)
#define TAKE(var) \
  u32 t[kLanes];  \
  EACH t[l] = s[l].var;
#endif
