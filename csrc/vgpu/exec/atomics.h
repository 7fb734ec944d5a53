// Read-modify-write operations of LDS and global memory.
//
// An operation is a function of the old value and two operands: `a` is the new value or addend, `b`
// the compare value (cmpswap), the bits to set (mskor) or the wrap-around addend.
#pragma once

#include "vgpu/base/numeric.h"
#include "vgpu/exec/memory.h"

namespace vgpu {

// Executes an atomic for the lanes of `mask`. `out` receives the old values (null: not returned);
// `a` and `b` are operand registers.
using AtomicLanes = void (*)(u32* out, const u32* a, const u32* b, const u64* addresses, u64 mask);

// While alive, rounds to nearest and keeps denormals: the float units of the caches ignore MODE,
// and from gfx940 on they also keep f32 denormals (LLVM:
// FeatureMemoryAtomicFAddF32DenormalSupport).
class CacheFpMode {
 public:
  CacheFpMode();
  ~CacheFpMode();
  CacheFpMode(const CacheFpMode&) = delete;
  CacheFpMode& operator=(const CacheFpMode&) = delete;

 private:
  u32 saved_;
};
struct WaveFpMode {};  // the host's unit already follows the wave's MODE

template <class T>
inline T lane_value(const u32* rows, u32 lane) {
  if constexpr (sizeof(T) == 8) {
    return rows[lane] | static_cast<u64>(rows[kLanes + lane]) << 32;
  } else {
    return rows[lane];
  }
}

// Global memory is shared with workgroups on other host threads, so the operation is a host atomic.
template <class T, auto kOp>
inline T global_rmw(u64 address, T a, T b) {
  T* target = reinterpret_cast<T*>(address);
  T old = __atomic_load_n(target, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(target, &old, static_cast<T>(kOp(old, a, b)), true,
                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  return old;
}

// LDS belongs to one workgroup, whose waves run on one host thread, so no host atomic is needed.
template <class T, auto kOp>
inline T lds_rmw(u64 address, T a, T b) {
  const T old = load_at<T>(address);
  store_at<T>(address, static_cast<T>(kOp(old, a, b)));
  return old;
}

template <class T, auto kRmw, class FpMode>
void atomic_lanes(u32* out, const u32* a, const u32* b, const u64* addresses, u64 mask) {
  [[maybe_unused]] const FpMode fp_mode;
  for_lanes(mask, [&](u32 lane) {
    const T old = kRmw(addresses[lane], lane_value<T>(a, lane), lane_value<T>(b, lane));
    if (!out) return;
    out[lane] = static_cast<u32>(old);
    if constexpr (sizeof(T) == 8) out[kLanes + lane] = static_cast<u32>(old >> 32);
  });
}

// -------------------------------------------------------------------------------- the operations

namespace rmw {

inline constexpr auto kSwap = [](auto, auto a, auto) { return a; };
inline constexpr auto kCmpSwap = [](auto old, auto a, auto b) { return old == b ? a : old; };
inline constexpr auto kAdd = [](auto old, auto a, auto) { return old + a; };
inline constexpr auto kSub = [](auto old, auto a, auto) { return old - a; };
inline constexpr auto kRsub = [](auto old, auto a, auto) { return a - old; };
inline constexpr auto kUmin = [](auto old, auto a, auto) { return a < old ? a : old; };
inline constexpr auto kUmax = [](auto old, auto a, auto) { return a > old ? a : old; };
inline constexpr auto kAnd = [](auto old, auto a, auto) { return old & a; };
inline constexpr auto kOr = [](auto old, auto a, auto) { return old | a; };
inline constexpr auto kXor = [](auto old, auto a, auto) { return old ^ a; };
inline constexpr auto kInc = [](auto old, auto a, auto) {
  return static_cast<decltype(old)>(old >= a ? 0 : old + 1);
};
inline constexpr auto kDec = [](auto old, auto a, auto) {
  return static_cast<decltype(old)>(old == 0 || old > a ? a : old - 1);
};
inline constexpr auto kMskor = [](auto old, auto a, auto b) { return (old & ~a) | b; };
inline constexpr auto kWrap = [](auto old, auto a, auto b) { return old >= a ? old - a : old + b; };

template <class T>
using Signed = std::conditional_t<sizeof(T) == 8, i64, i32>;
inline constexpr auto kSmin = [](auto old, auto a, auto) {
  using S = Signed<decltype(old)>;
  return static_cast<S>(a) < static_cast<S>(old) ? a : old;
};
inline constexpr auto kSmax = [](auto old, auto a, auto) {
  using S = Signed<decltype(old)>;
  return static_cast<S>(a) > static_cast<S>(old) ? a : old;
};

template <class T>
using Float = std::conditional_t<sizeof(T) == 8, f64, f32>;
inline constexpr auto kFadd = [](auto old, auto a, auto) {
  using F = Float<decltype(old)>;
  return bits<decltype(old)>(bits<F>(old) + bits<F>(a));
};
inline constexpr auto kFmin = [](auto old, auto a, auto) {
  using F = Float<decltype(old)>;
  return bits<decltype(old)>(float_min(bits<F>(old), bits<F>(a)));
};
inline constexpr auto kFmax = [](auto old, auto a, auto) {
  using F = Float<decltype(old)>;
  return bits<decltype(old)>(float_max(bits<F>(old), bits<F>(a)));
};
inline constexpr auto kFcmpSwap = [](auto old, auto a, auto b) {
  using F = Float<decltype(old)>;
  return bits<F>(old) == bits<F>(b) ? a : old;
};
// The float sum of two halves rounds to the same half as the exact sum: 24 >= 2 * 11 + 2 bits.
inline constexpr auto kPkAddF16 = [](u32 old, u32 a, u32) {
  const u32 low =
      float_to_half(half_to_float(static_cast<u16>(old)) + half_to_float(static_cast<u16>(a)));
  const u32 high = float_to_half(half_to_float(static_cast<u16>(old >> 16)) +
                                 half_to_float(static_cast<u16>(a >> 16)));
  return low | high << 16;
};
inline constexpr auto kPkAddBf16 = [](u32 old, u32 a, u32) {
  const u32 low = float_to_bf16(bits<f32>(old << 16) + bits<f32>(a << 16));
  const u32 high = float_to_bf16(bits<f32>(old & 0xffff0000) + bits<f32>(a & 0xffff0000));
  return low | high << 16;
};
// Replaces each dword by the low 31 bits of its operand if bit 31 of the operand is set.
inline constexpr auto kCondXchg32 = [](u64 old, u64 a, u64) {
  u64 result = old;
  if (a >> 31 & 1) result = (result & ~u64{0xffffffff}) | (a & 0x7fffffff);
  if (a >> 63) result = (result & 0xffffffff) | (a & 0x7fffffff00000000);
  return result;
};

}  // namespace rmw

template <class T, auto kOp, class FpMode = WaveFpMode>
inline constexpr AtomicLanes kGlobalAtomic = atomic_lanes<T, global_rmw<T, kOp>, FpMode>;
template <class T, auto kOp, class FpMode = WaveFpMode>
inline constexpr AtomicLanes kLdsAtomic = atomic_lanes<T, lds_rmw<T, kOp>, FpMode>;

// Table rows of vector and scalar memory atomics, relative to the family's first opcode: X(number,
// mnemonic after "atomic_", bytes, operand type, lanes). X(opcode, mnemonic after the family's
// name, bytes, data type, traits, operation).
#define VGPU_ATOMICS_OF(X, first, suffix, type, T, bytes, pair)                             \
  X(first + 0, "swap" suffix, bytes, type, kExchanges, (kGlobalAtomic<T, rmw::kSwap>))      \
  X(first + 1, "cmpswap" suffix, bytes, pair, kNoTraits, (kGlobalAtomic<T, rmw::kCmpSwap>)) \
  X(first + 2, "add" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kAdd>))         \
  X(first + 3, "sub" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kSub>))         \
  X(first + 4, "smin" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kSmin>))       \
  X(first + 5, "umin" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kUmin>))       \
  X(first + 6, "smax" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kSmax>))       \
  X(first + 7, "umax" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kUmax>))       \
  X(first + 8, "and" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kAnd>))         \
  X(first + 9, "or" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kOr>))           \
  X(first + 10, "xor" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kXor>))        \
  X(first + 11, "inc" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kInc>))        \
  X(first + 12, "dec" suffix, bytes, type, kNoTraits, (kGlobalAtomic<T, rmw::kDec>))
#define VGPU_INT_ATOMICS(X, first)                              \
  VGPU_ATOMICS_OF(X, first, "", Type::kB32, u32, 4, Type::kB64) \
  VGPU_ATOMICS_OF(X, first + 32, "_x2", Type::kB64, u64, 8, Type::kB128)
#define VGPU_FLOAT_ATOMICS(X)                                                               \
  X(77, "add_f32", 4, Type::kF32, kNoTraits, (kGlobalAtomic<u32, rmw::kFadd, CacheFpMode>)) \
  X(78, "pk_add_f16", 4, Type::kPkF16, kNoTraits,                                           \
    (kGlobalAtomic<u32, rmw::kPkAddF16, CacheFpMode>))                                      \
  X(79, "add_f64", 8, Type::kF64, kNoTraits, (kGlobalAtomic<u64, rmw::kFadd, CacheFpMode>)) \
  X(80, "min_f64", 8, Type::kF64, kNoTraits, (kGlobalAtomic<u64, rmw::kFmin, CacheFpMode>)) \
  X(81, "max_f64", 8, Type::kF64, kNoTraits, (kGlobalAtomic<u64, rmw::kFmax, CacheFpMode>))
#define VGPU_PK_ADD_BF16(X)                         \
  X(82, "pk_add_bf16", 4, Type::kPkBf16, kNoTraits, \
    (kGlobalAtomic<u32, rmw::kPkAddBf16, CacheFpMode>))

}  // namespace vgpu
