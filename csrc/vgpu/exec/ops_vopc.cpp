// VOPC: compares two sources into a lane mask. The V_CMPX forms also write EXEC.
#include "vgpu/exec/lanes.h"

namespace vgpu {
namespace {

// A float predicate is a set of outcomes: bit 0 less, 1 equal, 2 greater, 3 unordered. An integer
// predicate is the same without unordered. The set is the opcode's low bits.
template <class T>
u64 compare(u32 predicate, const u32* a, const u32* b) {
  alignas(64) u32 hit[kLanes];
  VGPU_LANES {
    const T x = load_lane<T>(a, lane), y = load_lane<T>(b, lane);
    u32 outcome = (x < y ? 1u : 0u) | (x == y ? 2u : 0u) | (x > y ? 4u : 0u);
    if constexpr (!std::is_integral_v<T>) outcome = outcome ? outcome : 8u;
    hit[lane] = (outcome & predicate) != 0;
  }
  return mask_of(hit);
}

// Inactive lanes give 0.
void write_result(Wave& w, const Inst& inst, u64 hits, bool writes_exec) {
  const u64 mask = hits & write_mask(w, inst);
  w.set_sgpr64(inst.sdst, mask);
  if (writes_exec) w.set_exec(mask);
}

template <class T, bool kExec>
void v_cmp(Wave& w, const Inst& inst) {
  [[maybe_unused]] GuardFor<T> guard(w);
  constexpr u32 kOutcomes = std::is_integral_v<T> ? 7 : 15;
  Lanes ta, tb;
  const u32* a = fetch<T>(w, inst, 0, ta);
  const u32* b = fetch<T>(w, inst, 1, tb);
  write_result(w, inst, compare<T>(inst.op->opcode & kOutcomes, a, b), kExec);
}

template <class T, bool kExec>
void v_cmp_class(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<T>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  u64 hits = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    hits |= u64{(float_class<T>(load_lane<T>(a, lane)) & b[lane]) != 0} << lane;
  }
  write_result(w, inst, hits, kExec);
}

// The class of a half, with the denormals of half although the value has been widened to float.
template <bool kExec>
void v_cmp_class_f16(Wave& w, const Inst& inst) {
  Lanes ta, tb;
  const u32* a = fetch<u16>(w, inst, 0, ta);
  const u32* b = fetch<u32>(w, inst, 1, tb);
  u64 hits = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    u32 half = a[lane];
    if (inst.abs & 1) half &= 0x7fff;
    if (inst.neg & 1) half ^= 0x8000;
    const u32 mag = half & 0x7fff, size = mag == 0x7c00 ? 3 : mag >= 0x400 ? 2 : mag ? 1 : 0;
    const u32 cls = mag > 0x7c00    ? (half & 0x200 ? 2u : 1u)
                    : half & 0x8000 ? 1u << (5 - size)
                                    : 1u << (6 + size);
    hits |= u64{(cls & b[lane]) != 0} << lane;
  }
  write_result(w, inst, hits, kExec);
}

// V_CMPX.
constexpr Traits compare_traits(bool exec) { return exec ? kVector | kWritesExec : kVector; }
template <class T>
inline constexpr Traits kLiteralOf = std::is_same_v<T, i64> ? kSignedLiteral : kNoTraits;

#define CMP(number, name, T, exec)        \
  {number,                                \
   name,                                  \
   v_cmp<T, exec>,                        \
   Type::kNone,                           \
   {kTypeOf<T>, kTypeOf<T>, Type::kNone}, \
   compare_traits(exec) | kLiteralOf<T>}
#define CMP_FLOAT(base, prefix, suffix, T, exec)                                                  \
  CMP(base + 0, prefix "f" suffix, T, exec), CMP(base + 1, prefix "lt" suffix, T, exec),          \
      CMP(base + 2, prefix "eq" suffix, T, exec), CMP(base + 3, prefix "le" suffix, T, exec),     \
      CMP(base + 4, prefix "gt" suffix, T, exec), CMP(base + 5, prefix "lg" suffix, T, exec),     \
      CMP(base + 6, prefix "ge" suffix, T, exec), CMP(base + 7, prefix "o" suffix, T, exec),      \
      CMP(base + 8, prefix "u" suffix, T, exec), CMP(base + 9, prefix "nge" suffix, T, exec),     \
      CMP(base + 10, prefix "nlg" suffix, T, exec), CMP(base + 11, prefix "ngt" suffix, T, exec), \
      CMP(base + 12, prefix "nle" suffix, T, exec), CMP(base + 13, prefix "neq" suffix, T, exec), \
      CMP(base + 14, prefix "nlt" suffix, T, exec), CMP(base + 15, prefix "tru" suffix, T, exec)
#define CMP_INT(base, prefix, suffix, T, exec)                                                \
  CMP(base + 0, prefix "f" suffix, T, exec), CMP(base + 1, prefix "lt" suffix, T, exec),      \
      CMP(base + 2, prefix "eq" suffix, T, exec), CMP(base + 3, prefix "le" suffix, T, exec), \
      CMP(base + 4, prefix "gt" suffix, T, exec), CMP(base + 5, prefix "ne" suffix, T, exec), \
      CMP(base + 6, prefix "ge" suffix, T, exec), CMP(base + 7, prefix "t" suffix, T, exec)
#define CMP_CLASS(number, name, run, type, exec) \
  {number, name, run, Type::kNone, {type, Type::kB32, Type::kNone}, compare_traits(exec)}

// clang-format off: one opcode a row
constexpr OpInfo kVopc[] = {
    CMP_CLASS(16, "v_cmp_class_f32", (v_cmp_class<f32, false>), Type::kF32, false),
    CMP_CLASS(17, "v_cmpx_class_f32", (v_cmp_class<f32, true>), Type::kF32, true),
    CMP_CLASS(18, "v_cmp_class_f64", (v_cmp_class<f64, false>), Type::kF64, false),
    CMP_CLASS(19, "v_cmpx_class_f64", (v_cmp_class<f64, true>), Type::kF64, true),
    CMP_CLASS(20, "v_cmp_class_f16", v_cmp_class_f16<false>, Type::kF16, false),
    CMP_CLASS(21, "v_cmpx_class_f16", v_cmp_class_f16<true>, Type::kF16, true),
    CMP_FLOAT(32, "v_cmp_", "_f16", f16, false), CMP_FLOAT(48, "v_cmpx_", "_f16", f16, true),
    CMP_FLOAT(64, "v_cmp_", "_f32", f32, false), CMP_FLOAT(80, "v_cmpx_", "_f32", f32, true),
    CMP_FLOAT(96, "v_cmp_", "_f64", f64, false), CMP_FLOAT(112, "v_cmpx_", "_f64", f64, true),
    CMP_INT(160, "v_cmp_", "_i16", i16, false), CMP_INT(168, "v_cmp_", "_u16", u16, false),
    CMP_INT(176, "v_cmpx_", "_i16", i16, true), CMP_INT(184, "v_cmpx_", "_u16", u16, true),
    CMP_INT(192, "v_cmp_", "_i32", i32, false), CMP_INT(200, "v_cmp_", "_u32", u32, false),
    CMP_INT(208, "v_cmpx_", "_i32", i32, true), CMP_INT(216, "v_cmpx_", "_u32", u32, true),
    CMP_INT(224, "v_cmp_", "_i64", i64, false), CMP_INT(232, "v_cmp_", "_u64", u64, false),
    CMP_INT(240, "v_cmpx_", "_i64", i64, true), CMP_INT(248, "v_cmpx_", "_u64", u64, true),
};
// clang-format on

}  // namespace

extern const OpTable kVopcTable;
const OpTable kVopcTable = {Format::kVopc, kVopc, std::size(kVopc)};

}  // namespace vgpu
