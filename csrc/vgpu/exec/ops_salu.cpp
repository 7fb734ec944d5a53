// Scalar ALU and program control: SOP1, SOP2, SOPC, SOPK, SOPP.
#include <chrono>
#include <tuple>

#include "vgpu/exec/hostcall.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/isa/program.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- row helpers

template <class T>
T read(const Wave& w, const Src& src) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(read_scalar64(w, src));
  return static_cast<T>(read_scalar32(w, src));
}

template <class T>
void write(Wave& w, u32 reg, T value) {
  if constexpr (sizeof(T) == 8) {
    w.set_sgpr64(reg, static_cast<u64>(value));
  } else {
    w.sgpr[reg & 127] = static_cast<u32>(value);
  }
}

template <class T>
inline constexpr Type kScalarType = sizeof(T) == 8 ? Type::kB64 : Type::kB32;

// A result together with its SCC.
template <class T>
struct Scc {
  T value;
  bool scc;
};
// A result whose SCC is "not 0".
template <class T>
struct Test {
  T value;
};

// Result types: T keeps SCC, Scc<T> and Test<T> set it. An op may take the wave as first argument.
template <class R>
struct ResultOf {
  using Type = R;
  static constexpr Traits kTraits = Category::kSalu;
};
template <class T>
struct ResultOf<Scc<T>> {
  using Type = T;
  static constexpr Traits kTraits = Category::kSalu | kWritesScc;
};
template <class T>
struct ResultOf<Test<T>> {
  using Type = T;
  static constexpr Traits kTraits = Category::kSalu | kWritesScc | kTestsResult;
};

template <class R>
void set(Wave& w, u32 reg, R result) {
  write(w, reg, result);
}
template <class T>
void set(Wave& w, u32 reg, Scc<T> result) {
  write(w, reg, result.value);
  w.scc = result.scc;
}
template <class T>
void set(Wave& w, u32 reg, Test<T> result) {
  set(w, reg, Scc<T>{result.value, result.value != 0});
}

template <class T>
constexpr Test<T> nonzero(T value) {
  return {value};
}
template <class T>
constexpr Scc<T> pick(T value, bool scc) {
  return {value, scc};
}

template <class A, auto kOp>
void sop1(Wave& w, const Inst& inst) {
  set(w, inst.dst, kOp(w, read<A>(w, inst.src[0])));
}
template <class A, class B, auto kOp>
void sop2(Wave& w, const Inst& inst) {
  set(w, inst.dst, kOp(w, read<A>(w, inst.src[0]), read<B>(w, inst.src[1])));
}
template <class A, class B, auto kOp>
void sopc(Wave& w, const Inst& inst) {
  w.scc = kOp(read<A>(w, inst.src[0]), read<B>(w, inst.src[1]));
}

template <class R>
inline constexpr Type kDstOf = kScalarType<typename ResultOf<R>::Type>;
template <class A>
inline constexpr Traits kLiteralOf = std::is_same_v<A, i64> ? kSignedLiteral : kNoTraits;

// Table rows; the last argument is the value. The _T forms add traits.
#define S1_T(number, name, R, A, traits, ...)  \
  {number,                                     \
   name,                                       \
   sop1<A, ([](Wave& w, A a) -> R {            \
          (void)w;                             \
          return __VA_ARGS__;                  \
        })>,                                   \
   kDstOf<R>,                                  \
   {kScalarType<A>, Type::kNone, Type::kNone}, \
   ResultOf<R>::kTraits | kLiteralOf<A> | traits}
#define S2_T(number, name, R, A, B, traits, ...)  \
  {number,                                        \
   name,                                          \
   sop2<A, B, ([](Wave& w, A a, B b) -> R {       \
          (void)w;                                \
          return __VA_ARGS__;                     \
        })>,                                      \
   kDstOf<R>,                                     \
   {kScalarType<A>, kScalarType<B>, Type::kNone}, \
   ResultOf<R>::kTraits | kLiteralOf<A> | traits}
#define S1(number, name, R, A, ...) S1_T(number, name, R, A, kNoTraits, __VA_ARGS__)
#define S2(number, name, R, A, B, ...) S2_T(number, name, R, A, B, kNoTraits, __VA_ARGS__)
#define SC(number, name, A, B, ...)                            \
  {number,                                                     \
   name,                                                       \
   sopc<A, B, ([](A a, B b) -> bool { return __VA_ARGS__; })>, \
   Type::kNone,                                                \
   {kScalarType<A>, kScalarType<B>, Type::kNone},              \
   Category::kSalu | kWritesScc}
#define CTRL(number, name, exec, dst, src, traits) \
  {number, name, exec, dst, {src, Type::kNone, Type::kNone}, Category::kSalu | traits}
#define TWO(number, name, exec, traits) \
  {number, name, exec, Type::kNone, {Type::kB32, Type::kB32, Type::kNone}, Category::kSalu | traits}
#define SAVE(number, name, ...) \
  S1_T(number, name, SccU64, u64, kWriteExec | kSavesExec | __VA_ARGS__)

using SccU32 = Scc<u32>;
using SccI32 = Scc<i32>;
using SccU64 = Scc<u64>;
using TestU32 = Test<u32>;
using TestI32 = Test<i32>;
using TestU64 = Test<u64>;
using TestI64 = Test<i64>;

// -------------------------------------------------------------------------------- helpers

SccU32 add_carry(u32 a, u32 b, u32 carry) {
  const u64 sum = u64{a} + b + carry;
  return {static_cast<u32>(sum), sum >> 32 != 0};
}
SccU32 sub_borrow(u32 a, u32 b, u32 borrow) { return {a - b - borrow, u64{b} + borrow > a}; }
SccU32 add_signed(u32 a, u32 b) {
  const u32 sum = a + b;
  return {sum, ((a ^ sum) & (b ^ sum)) >> 31 != 0};
}
SccU32 sub_signed(u32 a, u32 b) {
  const u32 difference = a - b;
  return {difference, ((a ^ b) & (a ^ difference)) >> 31 != 0};
}
SccU32 shift_add(u32 a, u32 b, u32 shift) {
  const u64 sum = (u64{a} << shift) + b;
  return {static_cast<u32>(sum), sum >> 32 != 0};
}

// Extracts the field with offset b[4:0] (or b[5:0]) and width b[22:16].
template <class T>
Test<T> extract(T a, u32 b) {
  constexpr u32 kBits = sizeof(T) * 8;
  const u32 offset = b & (kBits - 1), width = b >> 16 & 0x7f;
  if (!width) return {0};
  if (offset + width >= kBits) return nonzero(static_cast<T>(a >> offset));
  using U = std::make_unsigned_t<T>;
  const U moved = static_cast<U>(a) << (kBits - width - offset);
  return nonzero(static_cast<T>(static_cast<T>(moved) >> (kBits - width)));
}

template <class U>
u32 first_bit(U a) {
  return a ? static_cast<u32>(std::countr_zero(a)) : ~0u;
}
template <class U>
u32 leading_bit(U a) {
  return a ? static_cast<u32>(std::countl_zero(a)) : ~0u;
}
// Returns the distance from the top of the first bit that differs from the sign.
template <class U>
u32 leading_signed(U a) {
  const U flipped = static_cast<std::make_signed_t<U>>(a) < 0 ? static_cast<U>(~a) : a;
  return leading_bit(flipped);
}

template <class U>
U reverse(U a) {
  U out = 0;
  for (u32 i = 0; i < sizeof(U) * 8; ++i) out |= (a >> i & 1) << (sizeof(U) * 8 - 1 - i);
  return out;
}

template <class U>
U whole_quads(U a) {
  U out = 0;
  for (u32 i = 0; i < sizeof(U) * 8; i += 4) out |= (a >> i & 15) ? U{15} << i : U{0};
  return out;
}
template <class U>
U quad_mask(U a) {
  U out = 0;
  for (u32 i = 0; i < sizeof(U) * 8; i += 4) out |= static_cast<U>((a >> i & 15) != 0) << (i / 4);
  return out;
}
u64 replicate_bits(u32 a) {
  u64 out = 0;
  for (u32 i = 0; i < 32; ++i) out |= u64{a >> i & 1} * 3 << (2 * i);
  return out;
}

SccU64 save_exec(Wave& w, u64 next) {
  const u64 old = w.exec();
  w.set_exec(next);
  return {old, next != 0};
}
TestU64 write_exec(Wave& w, u64 next) {
  w.set_exec(next);
  return nonzero(next);
}

// -------------------------------------------------------------------------------- addresses

u64 address_of(const Wave& w, u32 index) { return w.program->address + u64{index} * 4; }

void jump(Wave& w, const Inst& inst, u64 address) {
  const u64 offset = address - w.program->address;
  if (offset & 3 || offset / 4 >= w.program->count)
    fault(w, inst, "jump outside the code object's text");
  w.pc = static_cast<u32>(offset / 4);
}

void s_getpc(Wave& w, const Inst& inst) { write(w, inst.dst, address_of(w, w.pc)); }
void s_setpc(Wave& w, const Inst& inst) { jump(w, inst, read_scalar64(w, inst.src[0])); }
void s_swappc(Wave& w, const Inst& inst) {
  const u64 target = read_scalar64(w, inst.src[0]);
  write(w, inst.dst, address_of(w, w.pc));
  jump(w, inst, target);
}
void branch_relative(Wave& w, const Inst& inst) {
  jump(w, inst, address_of(w, w.pc) + static_cast<u64>(i64{inst.imm} * 4));
}
void s_call(Wave& w, const Inst& inst) {
  write(w, inst.dst, address_of(w, w.pc));
  branch_relative(w, inst);
}

template <auto kCondition>
void branch_if(Wave& w, const Inst& inst) {
  if (kCondition(w)) branch_relative(w, inst);
}
#define BRANCH(number, name, reads, ...)  \
  {number,                                \
   name,                                  \
   branch_if<([](const Wave& w) -> bool { \
     (void)w;                             \
     return __VA_ARGS__;                  \
   })>,                                   \
   Type::kNone,                           \
   {},                                    \
   Category::kBranch | Flow::kBranch | reads}

// -------------------------------------------------------------------------------- indirect moves

template <class T>
void s_movrels(Wave& w, const Inst& inst) {
  Src src = inst.src[0];
  src.reg = static_cast<u16>((src.reg + w.sgpr[kM0]) & 127);
  write(w, inst.dst, read<T>(w, src));
}
template <class T>
void s_movreld(Wave& w, const Inst& inst) {
  write(w, inst.dst + w.sgpr[kM0], read<T>(w, inst.src[0]));
}

// VGPR indexing: M0[7:0] is added to the register numbers that M0[15:12] selects (source 0, 1, 2,
// destination). The runner's slow path adds it while kIndexed is set.
void set_index_mode(Wave& w, u32 fields) {
  w.sgpr[kM0] = (w.sgpr[kM0] & ~0xf000u) | (fields & 15) << 12;
}
void s_set_gpr_idx_on(Wave& w, const Inst& inst) {  // the second field is an immediate
  w.sgpr[kM0] = (w.sgpr[kM0] & ~0xffu) | (read_scalar32(w, inst.src[0]) & 0xff);
  set_index_mode(w, inst.src[1].reg);
  w.set_slow(kIndexed, true);
}
void s_set_gpr_idx_idx(Wave& w, const Inst& inst) {
  w.sgpr[kM0] = (w.sgpr[kM0] & ~0xffu) | (read_scalar32(w, inst.src[0]) & 0xff);
}
void s_set_gpr_idx_mode(Wave& w, const Inst& inst) {
  set_index_mode(w, static_cast<u32>(inst.imm));
}
void s_set_gpr_idx_off(Wave& w, const Inst&) { w.set_slow(kIndexed, false); }

// ------------------------------------------------------------ hardware registers

constexpr u32 kHwMode = 1, kHwStatus = 2, kHwHwId = 4, kHwGprAlloc = 5, kHwLdsAlloc = 6,
              kHwShMemBases = 15, kHwXccId = 20;

u32 hardware_register(const Wave& w, const Inst& inst, u32 id) {
  switch (id) {
    case kHwMode:
      return w.mode;
    case kHwStatus:
      return (w.scc ? 1u : 0u) | (w.exec() ? 0u : 1u << 9) | (w.vcc() ? 0u : 1u << 10);
    case 3:
      return 0;  // TRAPSTS: exceptions are not modelled
    case kHwHwId:
      return w.index & 15;
    case kHwGprAlloc:
      return 0;
    case kHwLdsAlloc:
      return (w.group->lds_bytes / 256) << 12;
    case 7:
      return 0;  // IB_STS
    case kHwShMemBases:
      return static_cast<u32>(kPrivateBaseAddr >> 48) | static_cast<u32>(kSharedBaseAddr >> 48)
                                                            << 16;
    case kHwXccId:
      return w.group->id[0] % 8;  // XCC_ID: workgroups are dealt round-robin to eight XCDs
    default:
      fault(w, inst, "s_getreg_b32 of an unknown hardware register " + std::to_string(id));
  }
}

void s_getreg(Wave& w, const Inst& inst) {
  const u32 code = static_cast<u16>(inst.imm), offset = code >> 6 & 31, size = (code >> 11) + 1;
  const u64 value = hardware_register(w, inst, code & 63);
  w.sgpr[inst.dst] = field(value, offset, size);
}

constexpr u32 kVskip = 28;  // MODE: vector instructions are skipped

void set_mode(Wave& w, u32 mode) {
  w.mode = mode;
  w.set_slow(kSkipping, mode >> kVskip & 1);
  enter_fp_mode(w);
}
void s_setvskip(Wave& w, const Inst& inst) {
  const u32 is_set = read_scalar32(w, inst.src[0]) >> (read_scalar32(w, inst.src[1]) & 31) & 1;
  set_mode(w, (w.mode & ~(1u << kVskip)) | is_set << kVskip);
}

void set_register(Wave& w, const Inst& inst, u32 value) {
  const u32 code = static_cast<u16>(inst.imm), offset = code >> 6 & 31, size = (code >> 11) + 1;
  if ((code & 63) != kHwMode) {
    if ((code & 63) == 3) return;  // TRAPSTS: clears exception flags, which are never set
    fault(w, inst, "s_setreg_b32 of hardware register " + std::to_string(code & 63));
  }
  const u32 mask = static_cast<u32>(((u64{1} << size) - 1) << offset);
  set_mode(w, (w.mode & ~mask) | (value << offset & mask));
}
void s_setreg(Wave& w, const Inst& inst) { set_register(w, inst, w.sgpr[inst.dst]); }
void s_setreg_imm32(Wave& w, const Inst& inst) {
  set_register(w, inst, static_cast<u32>(inst.src[0].value));
}

// -------------------------------------------------------------------------------- SOPK, SOPP

void s_movk(Wave& w, const Inst& inst) { w.sgpr[inst.dst] = static_cast<u32>(inst.imm); }
void s_cmovk(Wave& w, const Inst& inst) {
  if (w.scc) s_movk(w, inst);
}
void s_addk(Wave& w, const Inst& inst) {
  set(w, inst.dst, add_signed(w.sgpr[inst.dst], static_cast<u32>(inst.imm)));
}
void s_mulk(Wave& w, const Inst& inst) { w.sgpr[inst.dst] *= static_cast<u32>(inst.imm); }

template <auto kOp>
void compare_k(Wave& w, const Inst& inst) {
  w.scc = kOp(static_cast<i32>(w.sgpr[inst.dst]), inst.imm);
}
template <auto kOp>
void compare_ku(Wave& w, const Inst& inst) {
  w.scc = kOp(w.sgpr[inst.dst], static_cast<u32>(inst.imm & 0xffff));
}
#define CMPK_AS(number, name, compare, T, op)  \
  {number,                                     \
   "s_cmpk_" name,                             \
   compare<([](T a, T b) { return a op b; })>, \
   Type::kB32,                                 \
   {},                                         \
   Category::kSalu | kDstIsSource | kWritesScc}
#define CMPK(number, name, op) CMPK_AS(number, name "_i32", compare_k, i32, op)
#define CMPKU(number, name, op) CMPK_AS(number, name "_u32", compare_ku, u32, op)

void nothing(Wave&, const Inst&) {}
void s_endpgm(Wave& w, const Inst&) { w.state = WaveState::kDone; }
void s_barrier(Wave& w, const Inst&) { w.state = WaveState::kAtBarrier; }
void s_sleep(Wave& w, const Inst& inst) {
  if (inst.imm & 0x7f) w.state = WaveState::kAsleep;
}
void s_trap(Wave& w, const Inst& inst) {
  fault(w, inst,
        "s_trap " + std::to_string(inst.imm & 0xffff) +
            " (abort or a failed assertion in device code)");
}
// An interrupt message rings the host's doorbell; other messages have no receiver.
void s_sendmsg(Wave& w, const Inst& inst) {
  constexpr u32 kInterrupt = 1;
  if ((static_cast<u32>(inst.imm) & 15) == kInterrupt) serve_hostcalls(w, inst);
}
void s_sethalt(Wave& w, const Inst& inst) {  // 0 ends the halt
  if (inst.imm & 1) fault(w, inst, "s_sethalt 1: the wave would never go on");
}
template <class T>
void s_cmov(Wave& w, const Inst& inst) {
  if (w.scc) write(w, inst.dst, read<T>(w, inst.src[0]));
}
template <class U, bool kSet>
void s_bitset(Wave& w, const Inst& inst) {
  const u32 reg = inst.dst;
  const U bit = U{1} << (read_scalar32(w, inst.src[0]) & (sizeof(U) * 8 - 1));
  const U old = sizeof(U) == 8 ? static_cast<U>(w.sgpr64(reg)) : static_cast<U>(w.sgpr[reg]);
  write(w, reg, static_cast<U>(kSet ? old | bit : old & ~bit));
}

// -------------------------------------------------------------------------------- tables

using enum Spread;

constexpr Traits kKeepsOld = kReadsDst | kReadsScc | kConditional;
constexpr Traits kSetsBit = kReadsDst | kBitset;
constexpr Traits kRelative = kReadsM0 | kDynamicOperands | kNothing;
constexpr Traits kIndexing = kWritesM0 | kWritesMode | Syntax::kIndexMode;
constexpr Traits kHardware = Category::kSalu | Syntax::kHardwareRegister;
constexpr Traits kWriteExec = kReadsExec | kWritesExec;

// clang-format off: one opcode a row
constexpr OpInfo kSop1[] = {
    S1_T(0, "s_mov_b32", u32, u32, kCopy, a),
    S1_T(1, "s_mov_b64", u64, u64, kCopy, a),
    CTRL(2, "s_cmov_b32", s_cmov<u32>, Type::kB32, Type::kB32, kKeepsOld),
    CTRL(3, "s_cmov_b64", s_cmov<u64>, Type::kB64, Type::kB64, kKeepsOld),
    S1_T(4, "s_not_b32", TestU32, u32, kCopy, nonzero(~a)),
    S1_T(5, "s_not_b64", TestU64, u64, kCopy, nonzero(~a)),
    S1(6, "s_wqm_b32", TestU32, u32, nonzero(whole_quads(a))),
    S1(7, "s_wqm_b64", TestU64, u64, nonzero(whole_quads(a))),
    S1(8, "s_brev_b32", u32, u32, reverse(a)),
    S1(9, "s_brev_b64", u64, u64, reverse(a)),
    S1(10, "s_bcnt0_i32_b32", TestU32, u32, nonzero<u32>(static_cast<u32>(std::popcount(~a)))),
    S1(11, "s_bcnt0_i32_b64", TestU32, u64, nonzero<u32>(static_cast<u32>(std::popcount(~a)))),
    S1(12, "s_bcnt1_i32_b32", TestU32, u32, nonzero<u32>(static_cast<u32>(std::popcount(a)))),
    S1(13, "s_bcnt1_i32_b64", TestU32, u64, nonzero<u32>(static_cast<u32>(std::popcount(a)))),
    S1(14, "s_ff0_i32_b32", u32, u32, first_bit(~a)),
    S1(15, "s_ff0_i32_b64", u32, u64, first_bit(~a)),
    S1(16, "s_ff1_i32_b32", u32, u32, first_bit(a)),
    S1(17, "s_ff1_i32_b64", u32, u64, first_bit(a)),
    S1(18, "s_flbit_i32_b32", u32, u32, leading_bit(a)),
    S1(19, "s_flbit_i32_b64", u32, u64, leading_bit(a)),
    S1(20, "s_flbit_i32", u32, u32, leading_signed(a)),
    S1_T(21, "s_flbit_i32_i64", u32, u64, kSignedLiteral, leading_signed(a)),
    S1_T(22, "s_sext_i32_i8", i32, u32, kByte, static_cast<i8>(a)),
    S1_T(23, "s_sext_i32_i16", i32, u32, kHalf, static_cast<i16>(a)),
    CTRL(24, "s_bitset0_b32", (s_bitset<u32, false>), Type::kB32, Type::kB32, kSetsBit),
    CTRL(25, "s_bitset0_b64", (s_bitset<u64, false>), Type::kB64, Type::kB32, kSetsBit),
    CTRL(26, "s_bitset1_b32", (s_bitset<u32, true>), Type::kB32, Type::kB32, kSetsBit),
    CTRL(27, "s_bitset1_b64", (s_bitset<u64, true>), Type::kB64, Type::kB32, kSetsBit),
    CTRL(28, "s_getpc_b64", s_getpc, Type::kB64, Type::kNone, kNothing),
    CTRL(29, "s_setpc_b64", s_setpc, Type::kNone, Type::kB64, Category::kBranch | Flow::kIndirect),
    CTRL(30, "s_swappc_b64", s_swappc, Type::kB64, Type::kB64, Category::kBranch | Flow::kIndirect | kNothing),
    SAVE(32, "s_and_saveexec_b64", kAnd, save_exec(w, a & w.exec())),
    SAVE(33, "s_or_saveexec_b64", kOr, save_exec(w, a | w.exec())),
    SAVE(34, "s_xor_saveexec_b64", kXor, save_exec(w, a ^ w.exec())),
    SAVE(35, "s_andn2_saveexec_b64", kAndNot, save_exec(w, a & ~w.exec())),
    SAVE(36, "s_orn2_saveexec_b64", kOrNot, save_exec(w, a | ~w.exec())),
    SAVE(37, "s_nand_saveexec_b64", kAnd, save_exec(w, ~(a & w.exec()))),
    SAVE(38, "s_nor_saveexec_b64", kOr, save_exec(w, ~(a | w.exec()))),
    SAVE(39, "s_xnor_saveexec_b64", kXor, save_exec(w, ~(a ^ w.exec()))),
    S1(40, "s_quadmask_b32", TestU32, u32, nonzero(quad_mask(a))),
    S1(41, "s_quadmask_b64", TestU64, u64, nonzero(quad_mask(a))),
    CTRL(42, "s_movrels_b32", s_movrels<u32>, Type::kB32, Type::kB32, kRelative),
    CTRL(43, "s_movrels_b64", s_movrels<u64>, Type::kB64, Type::kB64, kRelative),
    CTRL(44, "s_movreld_b32", s_movreld<u32>, Type::kB32, Type::kB32, kRelative),
    CTRL(45, "s_movreld_b64", s_movreld<u64>, Type::kB64, Type::kB64, kRelative),
    S1(48, "s_abs_i32", TestU32, u32, nonzero(static_cast<i32>(a) < 0 ? 0 - a : a)),
    CTRL(50, "s_set_gpr_idx_idx", s_set_gpr_idx_idx, Type::kNone, Type::kB32, kWritesM0),
    SAVE(51, "s_andn1_saveexec_b64", kNotAnd, save_exec(w, ~a & w.exec())),
    SAVE(52, "s_orn1_saveexec_b64", kNotOr, save_exec(w, ~a | w.exec())),
    S1_T(53, "s_andn1_wrexec_b64", TestU64, u64, kWriteExec | kNotAnd, write_exec(w, ~a & w.exec())),
    S1_T(54, "s_andn2_wrexec_b64", TestU64, u64, kWriteExec | kAndNot, write_exec(w, a & ~w.exec())),
    S1(55, "s_bitreplicate_b64_b32", u64, u32, replicate_bits(a)),
};
// clang-format on

// clang-format off: one opcode a row
constexpr OpInfo kSop2[] = {
    S2_T(0, "s_add_u32", SccU32, u32, u32, kTowardsHigh, add_carry(a, b, 0)),
    S2_T(1, "s_sub_u32", SccU32, u32, u32, kDifference, sub_borrow(a, b, 0)),
    S2_T(2, "s_add_i32", SccU32, u32, u32, kTowardsHigh, add_signed(a, b)),
    S2_T(3, "s_sub_i32", SccU32, u32, u32, kDifference, sub_signed(a, b)),
    S2_T(4, "s_addc_u32", SccU32, u32, u32, kReadsScc | kTowardsHigh, add_carry(a, b, w.scc)),
    S2_T(5, "s_subb_u32", SccU32, u32, u32, kReadsScc | kTowardsHigh, sub_borrow(a, b, w.scc)),
    S2(6, "s_min_i32", SccI32, i32, i32, pick(a < b ? a : b, a < b)),
    S2(7, "s_min_u32", SccU32, u32, u32, pick(a < b ? a : b, a < b)),
    S2(8, "s_max_i32", SccI32, i32, i32, pick(a > b ? a : b, a >= b)),
    S2(9, "s_max_u32", SccU32, u32, u32, pick(a > b ? a : b, a >= b)),
    S2_T(10, "s_cselect_b32", u32, u32, u32, kReadsScc | kSelect, w.scc ? a : b),
    S2_T(11, "s_cselect_b64", u64, u64, u64, kReadsScc | kSelect, w.scc ? a : b),
    S2_T(12, "s_and_b32", TestU32, u32, u32, kAnd, nonzero(a & b)),
    S2_T(13, "s_and_b64", TestU64, u64, u64, kAnd, nonzero(a & b)),
    S2_T(14, "s_or_b32", TestU32, u32, u32, kOr, nonzero(a | b)),
    S2_T(15, "s_or_b64", TestU64, u64, u64, kOr, nonzero(a | b)),
    S2_T(16, "s_xor_b32", TestU32, u32, u32, kXor, nonzero(a ^ b)),
    S2_T(17, "s_xor_b64", TestU64, u64, u64, kXor, nonzero(a ^ b)),
    S2_T(18, "s_andn2_b32", TestU32, u32, u32, kAndNot, nonzero(a & ~b)),
    S2_T(19, "s_andn2_b64", TestU64, u64, u64, kAndNot, nonzero(a & ~b)),
    S2_T(20, "s_orn2_b32", TestU32, u32, u32, kOrNot, nonzero(a | ~b)),
    S2_T(21, "s_orn2_b64", TestU64, u64, u64, kOrNot, nonzero(a | ~b)),
    S2_T(22, "s_nand_b32", TestU32, u32, u32, kAnd, nonzero(~(a & b))),
    S2_T(23, "s_nand_b64", TestU64, u64, u64, kAnd, nonzero(~(a & b))),
    S2_T(24, "s_nor_b32", TestU32, u32, u32, kOr, nonzero(~(a | b))),
    S2_T(25, "s_nor_b64", TestU64, u64, u64, kOr, nonzero(~(a | b))),
    S2_T(26, "s_xnor_b32", TestU32, u32, u32, kXor, nonzero(~(a ^ b))),
    S2_T(27, "s_xnor_b64", TestU64, u64, u64, kXor, nonzero(~(a ^ b))),
    S2_T(28, "s_lshl_b32", TestU32, u32, u32, kShiftLeft, nonzero(a << (b & 31))),
    S2_T(29, "s_lshl_b64", TestU64, u64, u32, kShiftLeft, nonzero(a << (b & 63))),
    S2_T(30, "s_lshr_b32", TestU32, u32, u32, kShiftRight, nonzero(a >> (b & 31))),
    S2_T(31, "s_lshr_b64", TestU64, u64, u32, kShiftRight, nonzero(a >> (b & 63))),
    S2(32, "s_ashr_i32", TestI32, i32, u32, nonzero(a >> (b & 31))),
    S2(33, "s_ashr_i64", TestI64, i64, u32, nonzero(a >> (b & 63))),
    S2(34, "s_bfm_b32", u32, u32, u32, ((1u << (a & 31)) - 1) << (b & 31)),
    S2(35, "s_bfm_b64", u64, u32, u32, ((u64{1} << (a & 63)) - 1) << (b & 63)),
    S2_T(36, "s_mul_i32", u32, u32, u32, kTowardsHigh, a * b),
    S2_T(37, "s_bfe_u32", TestU32, u32, u32, kField, extract(a, b)),
    S2_T(38, "s_bfe_i32", TestI32, i32, u32, kSignedField, extract(a, b)),
    S2_T(39, "s_bfe_u64", TestU64, u64, u32, kField, extract(a, b)),
    S2_T(40, "s_bfe_i64", TestI64, i64, u32, kSignedField, extract(a, b)),
    S2(42, "s_absdiff_i32", TestU32, u32, u32,
       nonzero(static_cast<i32>(a - b) < 0 ? b - a : a - b)),
    S2(44, "s_mul_hi_u32", u32, u32, u32, static_cast<u32>(u64{a} * b >> 32)),
    S2(45, "s_mul_hi_i32", u32, i32, i32, static_cast<u32>(static_cast<u64>(i64{a} * b) >> 32)),
    S2(46, "s_lshl1_add_u32", SccU32, u32, u32, shift_add(a, b, 1)),
    S2(47, "s_lshl2_add_u32", SccU32, u32, u32, shift_add(a, b, 2)),
    S2(48, "s_lshl3_add_u32", SccU32, u32, u32, shift_add(a, b, 3)),
    S2(49, "s_lshl4_add_u32", SccU32, u32, u32, shift_add(a, b, 4)),
    S2_T(50, "s_pack_ll_b32_b16", u32, u32, u32, kPackLowLow, (a & 0xffff) | b << 16),
    S2_T(51, "s_pack_lh_b32_b16", u32, u32, u32, kPackLowHigh, (a & 0xffff) | (b & 0xffff0000)),
    S2_T(52, "s_pack_hh_b32_b16", u32, u32, u32, kPackHighHigh, a >> 16 | (b & 0xffff0000)),
};
// clang-format on

// clang-format off: one opcode a row
constexpr OpInfo kSopc[] = {
    SC(0, "s_cmp_eq_i32", i32, i32, a == b),
    SC(1, "s_cmp_lg_i32", i32, i32, a != b),
    SC(2, "s_cmp_gt_i32", i32, i32, a > b),
    SC(3, "s_cmp_ge_i32", i32, i32, a >= b),
    SC(4, "s_cmp_lt_i32", i32, i32, a < b),
    SC(5, "s_cmp_le_i32", i32, i32, a <= b),
    SC(6, "s_cmp_eq_u32", u32, u32, a == b),
    SC(7, "s_cmp_lg_u32", u32, u32, a != b),
    SC(8, "s_cmp_gt_u32", u32, u32, a > b),
    SC(9, "s_cmp_ge_u32", u32, u32, a >= b),
    SC(10, "s_cmp_lt_u32", u32, u32, a < b),
    SC(11, "s_cmp_le_u32", u32, u32, a <= b),
    SC(12, "s_bitcmp0_b32", u32, u32, !(a >> (b & 31) & 1)),
    SC(13, "s_bitcmp1_b32", u32, u32, a >> (b & 31) & 1),
    SC(14, "s_bitcmp0_b64", u64, u32, !(a >> (b & 63) & 1)),
    SC(15, "s_bitcmp1_b64", u64, u32, a >> (b & 63) & 1),
    TWO(16, "s_setvskip", s_setvskip, kWritesMode | kDynamicOperands),
    TWO(17, "s_set_gpr_idx_on", s_set_gpr_idx_on, kIndexing | kDynamicOperands),
    SC(18, "s_cmp_eq_u64", u64, u64, a == b),
    SC(19, "s_cmp_lg_u64", u64, u64, a != b),
};
// clang-format on

// clang-format off: one opcode a row
constexpr OpInfo kSopk[] = {
    CTRL(0, "s_movk_i32", s_movk, Type::kB32, Type::kNone, kNothing),
    CTRL(1, "s_cmovk_i32", s_cmovk, Type::kB32, Type::kNone, kKeepsOld),
    CMPK(2, "eq", ==), CMPK(3, "lg", !=), CMPK(4, "gt", >),
    CMPK(5, "ge", >=), CMPK(6, "lt", <), CMPK(7, "le", <=),
    CMPKU(8, "eq", ==), CMPKU(9, "lg", !=), CMPKU(10, "gt", >),
    CMPKU(11, "ge", >=), CMPKU(12, "lt", <), CMPKU(13, "le", <=),
    CTRL(14, "s_addk_i32", s_addk, Type::kB32, Type::kNone, kReadsDst | kWritesScc | kTowardsHigh),
    CTRL(15, "s_mulk_i32", s_mulk, Type::kB32, Type::kNone, kReadsDst | kTowardsHigh),
    CTRL(17, "s_getreg_b32", s_getreg, Type::kB32, Type::kNone, kHardware | kNothing),
    {18, "s_setreg_b32", s_setreg, Type::kB32, {}, kHardware | kDstIsSource | kWritesMode},
    {20, "s_setreg_imm32_b32", s_setreg_imm32, Type::kNone, {}, kHardware | kInlineK | kWritesMode},
    CTRL(21, "s_call_b64", s_call, Type::kB64, Type::kNone, Category::kBranch | Flow::kCall | kNothing),
};
// clang-format on

#define SOPP(number, name, exec, traits) {number, name, exec, Type::kNone, {}, traits}
// There is no debugger, so branches on one are never taken.
// clang-format off: one opcode a row
constexpr OpInfo kSopp[] = {
    SOPP(0, "s_nop", nothing, Category::kNop),
    SOPP(1, "s_endpgm", s_endpgm, Category::kBranch | Flow::kEnd | Syntax::kBare),
    SOPP(2, "s_branch", branch_relative, Category::kBranch | Flow::kJump),
    SOPP(3, "s_wakeup", nothing, Category::kInternal | Syntax::kBare),
    BRANCH(4, "s_cbranch_scc0", kReadsScc, !w.scc),
    BRANCH(5, "s_cbranch_scc1", kReadsScc, w.scc),
    BRANCH(6, "s_cbranch_vccz", kReadsVcc, !w.vcc()),
    BRANCH(7, "s_cbranch_vccnz", kReadsVcc, w.vcc() != 0),
    BRANCH(8, "s_cbranch_execz", kReadsExec, !w.exec()),
    BRANCH(9, "s_cbranch_execnz", kReadsExec, w.exec() != 0),
    SOPP(10, "s_barrier", s_barrier, Category::kBarrier | Flow::kBarrier | Syntax::kBare),
    SOPP(12, "s_waitcnt", nothing, Category::kWait | Syntax::kHex),
    SOPP(13, "s_sethalt", s_sethalt, Category::kInternal),
    SOPP(14, "s_sleep", s_sleep, Category::kSleep),
    SOPP(15, "s_setprio", nothing, Category::kPriority),
    SOPP(16, "s_sendmsg", s_sendmsg, Category::kMessage | kReadsM0),
    SOPP(18, "s_trap", s_trap, Category::kMessage | Flow::kTrap),
    SOPP(19, "s_icache_inv", nothing, Category::kMessage | Syntax::kBare),
    SOPP(20, "s_incperflevel", nothing, Category::kMessage),
    SOPP(21, "s_decperflevel", nothing, Category::kMessage),
    SOPP(22, "s_ttracedata", nothing, Category::kMessage | kReadsM0 | Syntax::kBare),
    SOPP(23, "s_cbranch_cdbgsys", nothing, Category::kBranch),
    SOPP(24, "s_cbranch_cdbguser", nothing, Category::kBranch),
    SOPP(25, "s_cbranch_cdbgsys_or_user", nothing, Category::kBranch),
    SOPP(26, "s_cbranch_cdbgsys_and_user", nothing, Category::kBranch),
    SOPP(27, "s_endpgm_saved", s_endpgm, Category::kBranch | Flow::kEnd | Syntax::kBare),
    SOPP(28, "s_set_gpr_idx_off", s_set_gpr_idx_off, Category::kSalu | kWritesMode | Syntax::kBare),
    SOPP(29, "s_set_gpr_idx_mode", s_set_gpr_idx_mode, Category::kSalu | kWritesM0 | Syntax::kIndexMode),
};
// clang-format on

}  // namespace

extern const OpTable kSop1Table, kSop2Table, kSopcTable, kSopkTable, kSoppTable;
const OpTable kSop1Table = {Format::kSop1, kSop1, std::size(kSop1)};
const OpTable kSop2Table = {Format::kSop2, kSop2, std::size(kSop2)};
const OpTable kSopcTable = {Format::kSopc, kSopc, std::size(kSopc)};
const OpTable kSopkTable = {Format::kSopk, kSopk, std::size(kSopk)};
const OpTable kSoppTable = {Format::kSopp, kSopp, std::size(kSopp)};

u32 read_scalar32(const Wave& w, const Src& src) { return static_cast<u32>(read_scalar64(w, src)); }

u64 read_scalar64(const Wave& w, const Src& src) {
  switch (src.kind) {
    case SrcKind::kSgpr:
      return w.sgpr64(src.reg);
    case SrcKind::kConst:
      return src.value;
    case SrcKind::kSpecial:
      break;
    default:
      return 0;
  }
  switch (src.reg) {  // apertures are 64-bit values with the base in the high half
    case kSharedBase:
      return kSharedBaseAddr;
    case kSharedLimit:
      return kSharedBaseAddr | 0xffffffff;
    case kPrivateBase:
      return kPrivateBaseAddr;
    case kPrivateLimit:
      return kPrivateBaseAddr | 0xffffffff;
    case kVccz:
      return !w.vcc();
    case kExecz:
      return !w.exec();
    case kScc:
      return w.scc;
    default:
      return 0;
  }
}

}  // namespace vgpu
