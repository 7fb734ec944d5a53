// Execution of VALU instructions: fetch the lanes of each source, one loop over 64 lanes, commit.
//
// An opcode is a function of one lane's values in a table row (OP1, OP2, OP3 below). Constants,
// SGPRs, neg/abs, op_sel, DPP, SDWA, clamp, omod and EXEC are handled in fetch() and commit(), once
// for all opcodes.
#pragma once

#include <type_traits>

#include "vgpu/base/numeric.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// Lane types without a C++ type; both compute in float.
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
// A raw dword to which float neg/abs apply (v_cndmask_b32).
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

// A fetched 16-bit source is in the low half; f16 and bf16 are already widened to float.
template <class T>
inline T load_lane(const u32* src, u32 lane) {
  if constexpr (sizeof(T) == 8) {
    return bits<T>(src[lane] | u64{src[lane + kLanes]} << 32);
  } else if constexpr (sizeof(T) == 2) {
    return static_cast<T>(src[lane]);
  } else {
    return bits<T>(src[lane]);
  }
}

template <class T>
inline void store_lane(u32* dst, u32 lane, T value) {
  if constexpr (sizeof(T) == 8) {
    dst[lane] = static_cast<u32>(bits<u64>(value));
    dst[lane + kLanes] = static_cast<u32>(bits<u64>(value) >> 32);
  } else if constexpr (sizeof(T) == 2) {
    dst[lane] = static_cast<u16>(value);
  } else {
    dst[lane] = bits<u32>(value);
  }
}

inline void broadcast(u32* dst, u32 value) {
  for (u32 lane = 0; lane < kLanes; ++lane) dst[lane] = value;
}

constexpr bool is_16bit(Type type) {
  return type == Type::kB16 || type == Type::kF16 || type == Type::kBf16;
}

// Returns source `s` as `type` with all modifiers applied, either in its register or in `tmp`.
const u32* fetch_slow(Wave& wave, const Inst& inst, u32 s, Type type, Lanes& tmp);

template <class T>
inline const u32* fetch(Wave& wave, const Inst& inst, u32 s, Lanes& tmp) {
  const Src& src = inst.src[s];
  if constexpr (!is_16bit(kTypeOf<T>)) {
    if (inst.plain && src.kind == SrcKind::kVgpr) return wave.v(src.reg);
  }
  return fetch_slow(wave, inst, s, kTypeOf<T>, tmp);
}

// Returns one half of source `s` of a packed instruction: 0 low (op_sel, neg), 1 high (op_sel_hi,
// neg_hi).
const u32* fetch_packed(Wave& wave, const Inst& inst, u32 s, u32 half, Type type, Lanes& tmp);

// Convert halves in the low 16 bits of each lane to floats, and back in the host's rounding mode.
void widen_halves(u32* lanes);
void narrow_halves(u32* lanes);

// Rounds float results to the 16 bits that `type` stores; other types are unchanged.
void narrow(const Wave& wave, Type type, u32* lanes);
// Converts 16-bit floats in the low halves to floats; flushes denormals as MODE says.
void widen(const Wave& wave, Type type, u32* lanes);

// Returns a mask with bit l set if flags[l] is not 0.
u64 mask_of(const u32* flags);

// Returns the lanes that this instruction writes: EXEC, and with DPP only lanes that have a source.
u64 write_mask(const Wave& wave, const Inst& inst);

// Writes `rows` registers of `src` to VGPR `dst` under `mask`.
void store_masked(Wave& wave, u32 dst, const u32* src, u32 rows, u64 mask);

// Applies omod and clamp to float results (f64: two registers per lane) before they are narrowed to
// `type`. For instructions that do not use Result.
void scale_and_clamp(const Wave& wave, const Inst& inst, Type type, u32* lanes);

// The result of one instruction; written directly to the register file if no modifier applies.
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

// Switches the host's floating-point mode for f16 and f64 instructions if their rounding and
// denormal mode differs from that of f32, which is the host's default.
struct FpGuard {
  explicit FpGuard(const Wave& wave) : active(wave.fp_split) {
    if (active) enter(wave);
  }
  ~FpGuard() {
    if (active) exit();
  }
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  void enter(const Wave& wave);
  void exit();
  bool active;
  u32 saved = 0;
};
struct NoGuard {
  explicit NoGuard(const Wave&) {}
};

template <class... T>
using GuardFor = std::conditional_t<((kTypeOf<T> == Type::kF64 || kTypeOf<T> == Type::kF16) || ...),
                                    FpGuard, NoGuard>;

// Sets the host's rounding and denormal mode from MODE; called when a wave starts to run.
void enter_fp_mode(Wave& wave);
u32 save_host_fp_mode();
void restore_host_fp_mode(u32 saved);

// The lanes of a loop are independent: a lane reads all its sources before it writes.
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
  VGPU_LANES { store_lane<R>(out, lane, kOp(load_lane<A>(a, lane))); }
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
  VGPU_LANES { store_lane<R>(out, lane, kOp(load_lane<A>(a, lane), load_lane<B>(b, lane))); }
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
  VGPU_LANES {
    store_lane<R>(out, lane,
                  kOp(load_lane<A>(a, lane), load_lane<B>(b, lane), load_lane<C>(c, lane)));
  }
  result.commit();
}

// d = op(d, a, b): fmac and similar.
template <class R, class A, class B, auto kOp>
void lanes_acc(Wave& wave, const Inst& inst) {
  [[maybe_unused]] GuardFor<R, A, B> guard(wave);
  Lanes ta, tb, td;
  const u32* a = fetch<A>(wave, inst, 0, ta);
  const u32* b = fetch<B>(wave, inst, 1, tb);
  const u32* d = wave.v(inst.dst);
  if constexpr (is_16bit(kTypeOf<R>)) {  // the accumulator is in the register's low half
    for (u32 lane = 0; lane < kLanes; ++lane)
      td.word[lane] = bits<u32>(half_to_float(static_cast<u16>(d[lane])));
    d = td.word;
  }
  Result<R> result(wave, inst);
  u32* out = result.out;
  VGPU_LANES {
    store_lane<R>(out, lane,
                  kOp(load_lane<R>(d, lane), load_lane<A>(a, lane), load_lane<B>(b, lane)));
  }
  result.commit();
}

// The constant 1, opaque to the compiler, so that multiplications by it are kept.
extern const f32 kRuntimeOneF32;
extern const f64 kRuntimeOneF64;

// Minimum, maximum and median would compile to compares without arithmetic; a multiplication by 1
// makes the host apply MODE's denormal flush. With MODE.IEEE off signalling NaNs are treated like
// quiet ones.
template <class T, u32 kSources, auto kOp>
void extreme(Wave& wave, const Inst& inst) {
  using F = std::conditional_t<kTypeOf<T> == Type::kF64, f64, f32>;  // a half was widened
  [[maybe_unused]] GuardFor<T> guard(wave);
  Lanes ta, tb, tc;
  const u32* a = fetch<T>(wave, inst, 0, ta);
  const u32* b = fetch<T>(wave, inst, 1, tb);
  const u32* c = kSources == 3 ? fetch<T>(wave, inst, 2, tc) : a;
  Result<T> result(wave, inst);
  u32* out = result.out;
  const bool ieee = wave.ieee();
  const F one = sizeof(F) == 8 ? static_cast<F>(kRuntimeOneF64) : static_cast<F>(kRuntimeOneF32);
  const auto value = [ieee](const u32* src, u32 lane) {
    const F x = load_lane<F>(src, lane);
    return ieee || !is_nan(x) ? x : quiet(x);
  };
  VGPU_LANES {
    store_lane<F>(out, lane, kOp(value(a, lane), value(b, lane), value(c, lane)) * one);
  }
  result.commit();
}

// Returns the opcode row that copies lanes: v_mov_b32.
const OpInfo& lane_copy();

// Rows of an opcode table. R, A, B, C are the lane types of result and sources; the last argument
// is the value of one lane. The _T forms add traits.
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
