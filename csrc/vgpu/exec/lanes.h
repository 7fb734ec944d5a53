// How a VALU instruction runs: fetch the lanes of each source, one loop over 64 lanes, commit.
//
// An opcode's meaning is a function of one lane's values, written beside its number in a table row
// (OP1, OP2, OP3 below). Everything around it - constants, SGPRs, neg/abs, op_sel, DPP, SDWA,
// clamp, omod, EXEC - happens in fetch() and commit(), once for all opcodes.
#pragma once

#include <type_traits>

#include "vgpu/base/numeric.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// Lane values that are not C++ types of their own. Both compute in float.
struct f16 {
  f32 value;
  constexpr f16(f32 v) : value(v) {}
  constexpr operator f32() const { return value; }
};
struct bf16 {
  f32 value;
  constexpr bf16(f32 v) : value(v) {}
  constexpr operator f32() const { return value; }
};
// A raw dword that takes float neg/abs bits (v_cndmask_b32).
struct raw32 {
  u32 value;
  constexpr raw32(u32 v) : value(v) {}
  constexpr operator u32() const { return value; }
};

template <class T>
inline constexpr Type kTypeOf = Type::kNone;
template <>
inline constexpr Type kTypeOf<u16> = Type::kB16;
template <>
inline constexpr Type kTypeOf<i16> = Type::kB16;
template <>
inline constexpr Type kTypeOf<f16> = Type::kF16;
template <>
inline constexpr Type kTypeOf<bf16> = Type::kBf16;
template <>
inline constexpr Type kTypeOf<u32> = Type::kB32;
template <>
inline constexpr Type kTypeOf<i32> = Type::kB32;
template <>
inline constexpr Type kTypeOf<raw32> = Type::kF32;
template <>
inline constexpr Type kTypeOf<f32> = Type::kF32;
template <>
inline constexpr Type kTypeOf<u64> = Type::kB64;
template <>
inline constexpr Type kTypeOf<i64> = Type::kB64;
template <>
inline constexpr Type kTypeOf<f64> = Type::kF64;

// 64 lanes of one or two dwords.
struct alignas(64) Lanes {
  u32 word[2 * kLanes];
};

// A fetched 16-bit source lies in its low half; f16 and bf16 have been widened to float.
template <class T>
inline T get(const u32* from, u32 lane) {
  if constexpr (sizeof(T) == 8) {
    return bits<T>(from[lane] | u64{from[lane + kLanes]} << 32);
  } else if constexpr (sizeof(T) == 2) {
    return static_cast<T>(from[lane]);
  } else {
    return bits<T>(from[lane]);
  }
}

template <class T>
inline void put(u32* to, u32 lane, T value) {
  if constexpr (sizeof(T) == 8) {
    to[lane] = static_cast<u32>(bits<u64>(value));
    to[lane + kLanes] = static_cast<u32>(bits<u64>(value) >> 32);
  } else if constexpr (sizeof(T) == 2) {
    to[lane] = static_cast<u16>(value);
  } else {
    to[lane] = bits<u32>(value);
  }
}

inline void broadcast(u32* to, u32 value) {
  for (u32 lane = 0; lane < kLanes; ++lane) to[lane] = value;
}

constexpr bool is_16bit(Type type) {
  return type == Type::kB16 || type == Type::kF16 || type == Type::kBf16;
}

// Source `s` as `type` wants it, all modifiers applied; the result lies in a register or in `tmp`.
const u32* fetch_slow(Wave& wave, const Inst& inst, u32 s, Type type, Lanes& tmp);

template <class T>
inline const u32* fetch(Wave& wave, const Inst& inst, u32 s, Lanes& tmp) {
  const Src& src = inst.src[s];
  if constexpr (!is_16bit(kTypeOf<T>)) {
    if (inst.plain && src.kind == SrcKind::kVgpr) return wave.v(src.reg);
  }
  return fetch_slow(wave, inst, s, kTypeOf<T>, tmp);
}

// One half of source `s` of a packed instruction: 0 low (op_sel, neg), 1 high (op_sel_hi, neg_hi).
const u32* fetch_packed(Wave& wave, const Inst& inst, u32 s, u32 half, Type type, Lanes& tmp);

// Halves in the low 16 bits of each lane to floats, and back in the host's rounding mode.
void widen_halves(u32* lanes);
void narrow_halves(u32* lanes);

// Rounds float results to the 16 bits that `type` stores; other types pass.
void narrow(const Wave& wave, Type type, u32* lanes);
// 16-bit floats in the low halves to floats; denormals are flushed as MODE says.
void widen(const Wave& wave, Type type, u32* lanes);

// Bit l is set where flags[l] is not 0.
u64 mask_of(const u32* flags);

// The lanes that this instruction writes: EXEC, and with DPP the lanes that have a source.
u64 write_mask(const Wave& wave, const Inst& inst);

// Writes `rows` registers of `from` to VGPR `dst` under `mask`.
void store_masked(Wave& wave, u32 dst, const u32* from, u32 rows, u64 mask);

// omod and clamp of float results (f64: two registers a lane), before they are narrowed to `type`.
// For instructions whose results do not go through Result.
void scale_and_clamp(const Wave& wave, const Inst& inst, Type type, u32* lanes);

// Result of one instruction: written straight to the register file when nothing stands between.
void commit_slow(Wave& wave, const Inst& inst, Type type, Lanes& tmp);

template <class T>
struct Result {
  Wave& wave;
  const Inst& inst;
  bool direct;
  Lanes tmp;
  u32* out;

  Result(Wave& w, const Inst& i)
      : wave(w),
        inst(i),
        direct(!is_16bit(kTypeOf<T>) && i.plain && w.exec() == ~u64{0}),
        out(direct ? w.v(i.dst) : tmp.word) {}
  void commit() {
    if (!direct) commit_slow(wave, inst, kTypeOf<T>, tmp);
  }
};

// f16 and f64 follow their own rounding and denormal mode where it differs from that of f32, under
// which the host's floating-point unit runs.
struct FpGuard {
  explicit FpGuard(const Wave& wave) : active(wave.fp_split) {
    if (active) enter(wave);
  }
  ~FpGuard() {
    if (active) leave();
  }
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  void enter(const Wave& wave);
  void leave();
  bool active;
  u32 saved = 0;
};
struct NoGuard {
  explicit NoGuard(const Wave&) {}
};

template <class... T>
using GuardFor = std::conditional_t<((kTypeOf<T> == Type::kF64 || kTypeOf<T> == Type::kF16) || ...),
                                    FpGuard, NoGuard>;

// Sets the host's rounding and denormal mode from MODE; the runner calls it when a wave starts.
void enter_fp_mode(Wave& wave);
u32 save_host_fp_mode();
void restore_host_fp_mode(u32 saved);

// The loops carry no dependence between lanes: a lane reads all its sources before it writes.
#if defined(__clang__)
#define VGPU_LANES _Pragma("clang loop vectorize(enable)") for (u32 lane = 0; lane < kLanes; ++lane)
#else
#define VGPU_LANES _Pragma("GCC ivdep") for (u32 lane = 0; lane < kLanes; ++lane)
#endif

template <class R, class A, auto kOp>
void lanes1(Wave& wave, const Inst& inst) {
  [[maybe_unused]] GuardFor<R, A> guard(wave);
  Lanes ta;
  const u32* a = fetch<A>(wave, inst, 0, ta);
  Result<R> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES { put<R>(out, lane, kOp(get<A>(a, lane))); }
  result.commit();
}

template <class R, class A, class B, auto kOp>
void lanes2(Wave& wave, const Inst& inst) {
  [[maybe_unused]] GuardFor<R, A, B> guard(wave);
  Lanes ta, tb;
  const u32* a = fetch<A>(wave, inst, 0, ta);
  const u32* b = fetch<B>(wave, inst, 1, tb);
  Result<R> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES { put<R>(out, lane, kOp(get<A>(a, lane), get<B>(b, lane))); }
  result.commit();
}

template <class R, class A, class B, class C, auto kOp>
void lanes3(Wave& wave, const Inst& inst) {
  [[maybe_unused]] GuardFor<R, A, B, C> guard(wave);
  Lanes ta, tb, tc;
  const u32* a = fetch<A>(wave, inst, 0, ta);
  const u32* b = fetch<B>(wave, inst, 1, tb);
  const u32* c = fetch<C>(wave, inst, 2, tc);
  Result<R> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES { put<R>(out, lane, kOp(get<A>(a, lane), get<B>(b, lane), get<C>(c, lane))); }
  result.commit();
}

// d = op(d, a, b): fmac and its kin.
template <class R, class A, class B, auto kOp>
void lanes_acc(Wave& wave, const Inst& inst) {
  [[maybe_unused]] GuardFor<R, A, B> guard(wave);
  Lanes ta, tb, td;
  const u32* a = fetch<A>(wave, inst, 0, ta);
  const u32* b = fetch<B>(wave, inst, 1, tb);
  const u32* d = wave.v(inst.dst);
  if constexpr (is_16bit(kTypeOf<R>)) {  // the accumulator is the register's low half
    for (u32 lane = 0; lane < kLanes; ++lane)
      td.word[lane] = bits<u32>(half_to_float(static_cast<u16>(d[lane])));
    d = td.word;
  }
  Result<R> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES { put<R>(out, lane, kOp(get<R>(d, lane), get<A>(a, lane), get<B>(b, lane))); }
  result.commit();
}

// One, in a form that no compiler folds a multiplication away for.
extern const f32 kRuntimeOneF32;
extern const f64 kRuntimeOneF64;

// Minimum, maximum and median, which C++ would do without arithmetic: a multiplication makes MODE's
// denormal flush apply to the result. With MODE.IEEE off a signalling NaN is as quiet as any other.
template <class T, u32 kSources, auto kOp>
void extreme(Wave& wave, const Inst& inst) {
  using F = std::conditional_t<kTypeOf<T> == Type::kF64, f64, f32>;  // a half has been widened
  [[maybe_unused]] GuardFor<T> guard(wave);
  Lanes ta, tb, tc;
  const u32* a = fetch<T>(wave, inst, 0, ta);
  const u32* b = fetch<T>(wave, inst, 1, tb);
  const u32* c = kSources == 3 ? fetch<T>(wave, inst, 2, tc) : a;
  Result<T> result(wave, inst);
  u32* out = result.out;
  const bool ieee = wave.ieee();
  const F one = sizeof(F) == 8 ? static_cast<F>(kRuntimeOneF64) : static_cast<F>(kRuntimeOneF32);
  const auto value = [ieee](const u32* from, u32 lane) {
    const F x = get<F>(from, lane);
    return ieee || !is_nan(x) ? x : quiet(x);
  };
  VGPU_LANES { put<F>(out, lane, kOp(value(a, lane), value(b, lane), value(c, lane)) * one); }
  result.commit();
}

// The row that copies lanes: v_mov_b32.
const OpInfo& lane_copy();

// Rows of an opcode table. R, A, B, C are the lane types of result and sources; the last argument
// is the value of one lane. Those with _T join traits of their own.
#define OP1_T(number, name, R, A, traits, ...)                           \
  {number,                                                               \
   name,                                                                 \
   lanes1<R, A, ([](A a) -> R { return static_cast<R>(__VA_ARGS__); })>, \
   kTypeOf<R>,                                                           \
   {kTypeOf<A>, Type::kNone, Type::kNone},                               \
   kVector | traits}
#define OP2_T(number, name, R, A, B, traits, ...)                                \
  {number,                                                                       \
   name,                                                                         \
   lanes2<R, A, B, ([](A a, B b) -> R { return static_cast<R>(__VA_ARGS__); })>, \
   kTypeOf<R>,                                                                   \
   {kTypeOf<A>, kTypeOf<B>, Type::kNone},                                        \
   kVector | traits}
#define OP3_T(number, name, R, A, B, C, traits, ...)                                     \
  {number,                                                                               \
   name,                                                                                 \
   lanes3<R, A, B, C, ([](A a, B b, C c) -> R { return static_cast<R>(__VA_ARGS__); })>, \
   kTypeOf<R>,                                                                           \
   {kTypeOf<A>, kTypeOf<B>, kTypeOf<C>},                                                 \
   kVector | traits}
#define OP1(number, name, R, A, ...) OP1_T(number, name, R, A, kNoTraits, __VA_ARGS__)
#define OP2(number, name, R, A, B, ...) OP2_T(number, name, R, A, B, kNoTraits, __VA_ARGS__)
#define OP3(number, name, R, A, B, C, ...) OP3_T(number, name, R, A, B, C, kNoTraits, __VA_ARGS__)
#define EXTREME(number, name, T, sources, traits, ...)                \
  {number,                                                            \
   name,                                                              \
   extreme<T, sources, ([]<class F>(F a, F b, F c) -> F {             \
             (void)c;                                                 \
             return __VA_ARGS__;                                      \
           })>,                                                       \
   kTypeOf<T>,                                                        \
   {kTypeOf<T>, kTypeOf<T>, sources == 3 ? kTypeOf<T> : Type::kNone}, \
   kVector | traits}
#define OP_ACC(number, name, R, A, B, traits, ...)                                       \
  {number,                                                                               \
   name,                                                                                 \
   lanes_acc<R, A, B, ([](R d, A a, B b) -> R { return static_cast<R>(__VA_ARGS__); })>, \
   kTypeOf<R>,                                                                           \
   {kTypeOf<A>, kTypeOf<B>, Type::kNone},                                                \
   kVector | kReadsDst | traits}

}  // namespace vgpu
