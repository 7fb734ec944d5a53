// DS: local data share, and the lane permutations of its crossbar.
#include <iterator>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/lanes.h"
#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- addresses

// Computes address register + `offset`; returns the active lanes inside the allocation.
u64 ds_addresses(Wave& wave, const Inst& inst, u32 offset, u32 bytes, bool is_write,
                 u64* addresses) {
  const u32* base = wave.v(inst.addr);
  for (u32 lane = 0; lane < kLanes; ++lane) addresses[lane] = base[lane] + offset;
  const u64 inside = lds_resolve(*wave.group, addresses, bytes, wave.exec());
  touch(wave, inst, {Space::kLds, is_write, bytes, inside, addresses, wave.exec() & ~inside});
  return inside;
}

// Computes M0 + offset + lane * 4, without an address register.
u64 ds_addresses_by_lane(Wave& wave, const Inst& inst, bool is_write, u64* addresses) {
  const u32 base = (wave.sgpr[kM0] & 0xffff) + static_cast<u32>(inst.imm);
  for (u32 lane = 0; lane < kLanes; ++lane) addresses[lane] = base + lane * 4;
  const u64 inside = lds_resolve(*wave.group, addresses, 4, wave.exec());
  touch(wave, inst, {Space::kLds, is_write, 4, inside, addresses, wave.exec() & ~inside});
  return inside;
}

u32 byte_offset(const Inst& inst) { return static_cast<u32>(inst.imm); }
template <u32 kScale>
u32 offset0(const Inst& inst) {
  return (static_cast<u32>(inst.imm) & 0xff) * kScale;
}
template <u32 kScale>
u32 offset1(const Inst& inst) {
  return (static_cast<u32>(inst.imm) >> 8) * kScale;
}

void read_lanes(Wave& wave, u32* rows, const u64* addresses, u64 inside, Transfer transfer,
                u32 dwords) {
  const u64 outside = wave.exec() & ~inside;
  if (outside) zero_lanes(rows, dwords, outside);
  transfer(rows, addresses, inside);
}

// -------------------------------------------------------------------------------- reads and writes

template <auto kTransfer, u32 kBytes>
void ds_read(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside = ds_addresses(wave, inst, byte_offset(inst), kBytes, false, a.lane);
  read_lanes(wave, wave.va(inst.dst), a.lane, inside, kTransfer, dwords_for(kBytes));
}

template <auto kTransfer, u32 kBytes>
void ds_write(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside = ds_addresses(wave, inst, byte_offset(inst), kBytes, true, a.lane);
  kTransfer(wave.va(inst.data0), a.lane, inside);
}

// Both addresses are read before either result is written, because registers may overlap.
template <u32 kDwords, u32 kScale>
void ds_read2(Wave& wave, const Inst& inst) {
  LaneAddresses first, second;
  const u64 inside0 =
      ds_addresses(wave, inst, offset0<kScale>(inst), 4 * kDwords, false, first.lane);
  const u64 inside1 =
      ds_addresses(wave, inst, offset1<kScale>(inst), 4 * kDwords, false, second.lane);
  u32* rows = wave.va(inst.dst);
  read_lanes(wave, rows, first.lane, inside0, load_dwords<kDwords>, kDwords);
  read_lanes(wave, rows + kDwords * kLanes, second.lane, inside1, load_dwords<kDwords>, kDwords);
}

template <u32 kDwords, u32 kScale>
void ds_write2(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside0 = ds_addresses(wave, inst, offset0<kScale>(inst), 4 * kDwords, true, a.lane);
  store_dwords<kDwords>(wave.va(inst.data0), a.lane, inside0);
  const u64 inside1 = ds_addresses(wave, inst, offset1<kScale>(inst), 4 * kDwords, true, a.lane);
  store_dwords<kDwords>(wave.va(inst.data1), a.lane, inside1);
}

void ds_read_addtid_b32(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside = ds_addresses_by_lane(wave, inst, false, a.lane);
  read_lanes(wave, wave.va(inst.dst), a.lane, inside, load_dwords<1>, 1);
}

void ds_write_addtid_b32(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside = ds_addresses_by_lane(wave, inst, true, a.lane);
  store_dwords<1>(wave.va(inst.data0), a.lane, inside);
}

// -------------------------------------------------------------------------------- transposed reads

// The bytes that a lane reads as one integer (96 bits for six-bit elements).
__extension__ using u128 = unsigned __int128;
template <u32 kBytes>
using LaneWord = std::conditional_t<kBytes == 8, u64, u128>;

// Returns ones at the elements whose index does not have bit `skip`.
template <class Word, u32 kBits>
constexpr Word element_mask(u32 count, u32 skip) {
  Word mask = 0;
  for (u32 e = 0; e < count; ++e) {
    if (!(e & skip)) mask |= ((Word{1} << kBits) - 1) << (e * kBits);
  }
  return mask;
}

// Transposes a square of kCount words with kCount elements each: swaps the off-diagonal quarters,
// then recurses into every quarter.
template <class Word, u32 kBits, u32 kCount, u32 kHalf = kCount / 2>
void transpose_square(Word* words) {
  constexpr Word kMask = element_mask<Word, kBits>(kCount, kHalf);
  for (u32 k = 0; k < kCount; ++k) {
    if (k & kHalf) continue;
    const Word swapped = ((words[k] >> (kHalf * kBits)) ^ words[k + kHalf]) & kMask;
    words[k + kHalf] ^= swapped;
    words[k] ^= swapped << (kHalf * kBits);
  }
  if constexpr (kHalf > 1) transpose_square<Word, kBits, kCount, kHalf / 2>(words);
}

// A group of 16 lanes reads a matrix of 16 columns: each lane kCount elements of kBits of a row, so
// that 16 / kCount lanes read a row. Lane i of the group receives column i.
template <u32 kBits, u32 kCount>
void ds_read_transposed(Wave& wave, const Inst& inst) {
  constexpr u32 kBytes = kBits * kCount / 8, kWordsPerRow = 16 / kCount;
  using Word = LaneWord<kBytes>;
  LaneAddresses a;
  const u64 inside = ds_addresses(wave, inst, byte_offset(inst), kBytes, false, a.lane);
  Word read[kLanes] = {}, columns[kLanes];
  for_lanes(inside, [&](u32 lane) {
    std::memcpy(&read[lane], reinterpret_cast<const void*>(a.lane[lane]), kBytes);
  });
  for (u32 first = 0; first < kLanes; first += kCount) {  // one square of the matrix
    const u32 group = first & ~15u, word_idx = first % 16 / kCount;
    for (u32 row = 0; row < kCount; ++row)
      columns[first + row] = read[group + row * kWordsPerRow + word_idx];
    transpose_square<Word, kBits, kCount>(columns + first);
  }
  u32* rows = wave.va(inst.dst);
  for_lanes(wave.exec(), [&](u32 lane) {
    for (u32 d = 0; d < kBytes / 4; ++d) {
      rows[d * kLanes + lane] = static_cast<u32>(columns[lane] >> (32 * d));
    }
  });
}

// -------------------------------------------------------------------------------- atomics

// Selects the data registers for the atomic's operands `a` (new value) and `b`.
enum class Operands : u8 { kOne, kTwo, kCompareFirst };

template <auto kLanesOp, u32 kBytes, bool kReturn, Operands kOperands>
void ds_atomic(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 inside = ds_addresses(wave, inst, byte_offset(inst), kBytes, true, a.lane);
  check_aligned(wave, inst, a.lane, kBytes, inside, host_address(wave.group->lds));
  const u32* data0 = wave.va(inst.data0);
  const u32* data1 = kOperands == Operands::kOne ? data0 : wave.va(inst.data1);
  const bool swapped = kOperands == Operands::kCompareFirst;
  u32* out = kReturn ? wave.va(inst.dst) : nullptr;
  const u64 outside = wave.exec() & ~inside;
  kLanesOp(out, swapped ? data1 : data0, swapped ? data0 : data1, a.lane, inside);
  if (kReturn && outside) zero_lanes(out, kBytes / 4, outside);
}

// An f64 addition rounds as MODE's f64 field says.
template <auto kLanesOp, u32 kBytes, bool kReturn, Operands kOperands>
void ds_atomic_f64(Wave& wave, const Inst& inst) {
  const FpGuard guard(wave);
  ds_atomic<kLanesOp, kBytes, kReturn, kOperands>(wave, inst);
}

// Two exchanges per lane: both old values are read first, then offset 0 is written before offset 1.
template <u32 kDwords, u32 kScale>
void ds_wrxchg2(Wave& wave, const Inst& inst) {
  LaneAddresses first, second;
  const u64 inside0 =
      ds_addresses(wave, inst, offset0<kScale>(inst), 4 * kDwords, true, first.lane);
  const u64 inside1 =
      ds_addresses(wave, inst, offset1<kScale>(inst), 4 * kDwords, true, second.lane);
  u32* out = wave.va(inst.dst);
  const u32* data0 = wave.va(inst.data0);
  const u32* data1 = wave.va(inst.data1);
  for_lanes(wave.exec(), [&](u32 lane) {
    u32 old[2 * kDwords] = {}, value[2 * kDwords];
    const bool in0 = inside0 >> lane & 1, in1 = inside1 >> lane & 1;
    if (in0) std::memcpy(old, reinterpret_cast<void*>(first.lane[lane]), 4 * kDwords);
    if (in1) std::memcpy(old + kDwords, reinterpret_cast<void*>(second.lane[lane]), 4 * kDwords);
    for (u32 d = 0; d < kDwords; ++d) {
      value[d] = data0[d * kLanes + lane];
      value[kDwords + d] = data1[d * kLanes + lane];
    }
    if (in0) std::memcpy(reinterpret_cast<void*>(first.lane[lane]), value, 4 * kDwords);
    if (in1) std::memcpy(reinterpret_cast<void*>(second.lane[lane]), value + kDwords, 4 * kDwords);
    for (u32 d = 0; d < 2 * kDwords; ++d) out[d * kLanes + lane] = old[d];
  });
}

// One counter per wave: every active lane gets its old value.
template <bool kAdd>
void ds_append_consume(Wave& wave, const Inst& inst) {
  const u64 exec = wave.exec();
  if (!exec) return;
  LaneAddresses a;
  a.lane[0] = wave.sgpr[kM0] + static_cast<u32>(inst.imm);
  for (u32 lane = 1; lane < kLanes; ++lane) a.lane[lane] = a.lane[0];
  const u64 inside = lds_resolve(*wave.group, a.lane, 4, 1);
  touch(wave, inst, {Space::kLds, true, 4, inside, a.lane});
  const u32 old = inside ? load_at<u32>(a.lane[0]) : 0;
  const u32 count = static_cast<u32>(std::popcount(exec));
  if (inside) store_at<u32>(a.lane[0], kAdd ? old + count : old - count);
  u32* out = wave.va(inst.dst);
  for_lanes(exec, [&](u32 lane) { out[lane] = old; });
}

// -------------------------------------------------------------------------------- permutations

// Gathers: lane `lane` reads `src[source(lane)]`; an inactive source gives 0.
template <class Source>
void gather_lanes(Wave& wave, const u32* src, u32* dst, Source source) {
  const u64 exec = wave.exec();
  alignas(64) u32 result[kLanes];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 src_lane = source(lane);
    result[lane] = exec >> src_lane & 1 ? src[src_lane] : 0;
  }
  for_lanes(exec, [&](u32 lane) { dst[lane] = result[lane]; });
}

void ds_bpermute_b32(Wave& wave, const Inst& inst) {
  const u32* address = wave.v(inst.addr);
  const u32 offset = byte_offset(inst);
  gather_lanes(wave, wave.va(inst.data0), wave.va(inst.dst),
               [&](u32 lane) { return (address[lane] + offset) / 4 % kLanes; });
}

// Scatters: of several source lanes the highest wins; a lane that no lane writes gets 0.
void ds_permute_b32(Wave& wave, const Inst& inst) {
  const u32* address = wave.v(inst.addr);
  const u32* data = wave.va(inst.data0);
  const u64 exec = wave.exec();
  u32 result[kLanes] = {};
  for_lanes(exec, [&](u32 lane) {
    result[(address[lane] + byte_offset(inst)) / 4 % kLanes] = data[lane];
  });
  u32* out = wave.va(inst.dst);
  for_lanes(exec, [&](u32 lane) { out[lane] = result[lane]; });
}

u32 reverse5(u32 value) {
  u32 result = 0;
  for (u32 b = 0; b < 5; ++b) result |= (value >> b & 1) << (4 - b);
  return result;
}

// Returns the lane that ds_swizzle reads, within its half of the wave.
u32 swizzle_source(u32 code, u32 lane) {
  const u32 half = lane & 32, half_lane = lane & 31;
  if (code >= 0xe000) {  // FFT mode: bit reversal above the mask bits
    const u32 mask = code & 31;
    return half | ((reverse5(half_lane) >> std::popcount(mask) | (half_lane & mask)) & 31);
  }
  if (code >= 0xc000) {  // rotate mode: rotates the bits outside the mask
    const u32 mask = code & 31, amount = code >> 5 & 31;
    const u32 rotated = code >> 10 & 1 ? half_lane - amount : half_lane + amount;
    return half | (half_lane & mask) | (rotated & ~mask & 31);
  }
  if (code & 0x8000) return (lane & ~3u) | (code >> (2 * (lane & 3)) & 3);
  const u32 and_mask = code & 31, set = code >> 5 & 31, xor_mask = code >> 10 & 31;
  return half | (((half_lane & and_mask) | set) ^ xor_mask);
}

// LLVM encodes the source of ds_swizzle_b32 in the address field.
void ds_swizzle_b32(Wave& wave, const Inst& inst) {
  const u32 code = byte_offset(inst);
  gather_lanes(wave, wave.v(inst.addr), wave.va(inst.dst),
               [&](u32 lane) { return swizzle_source(code, lane); });
}

void ds_nop(Wave&, const Inst&) {}

void ds_gws(Wave& wave, const Inst& inst) {
  fault(wave, inst,
        "global wave sync needs a resource that only a device-wide barrier driver sets up; "
        "the virtual GPU does not have it");
}

// -------------------------------------------------------------------------------- tables
// Operand types: the result; then address, data0, data1.
// clang-format off

constexpr Traits kLdsLanes = Category::kLds | kReadsExec;

#define DS(op, name, exec, dst, addr, data0, data1, traits)                                        \
  {op, "ds_" name, exec, dst, {addr, data0, data1}, kLdsLanes | traits},
#define DS_READ(op, name, type, bytes, ...)                                                        \
  DS(op, name, (ds_read<__VA_ARGS__, bytes>), type, Type::kB32, Type::kNone, Type::kNone, kNoTraits)
#define DS_READ_TR(op, name, type, ...)                                                            \
  DS(op, name, (ds_read_transposed<__VA_ARGS__>), type, Type::kB32, Type::kNone, Type::kNone,      \
     kOnGfx950 | Spread::kTransposed)
#define DS_WRITE(op, name, type, bytes, ...)                                                       \
  DS(op, name, (ds_write<__VA_ARGS__, bytes>), Type::kNone, Type::kB32, type, Type::kNone, \
     kNoTraits)
#define DS_READ2(op, name, type, ...)                                                              \
  DS(op, name, (ds_read2<__VA_ARGS__>), type, Type::kB32, Type::kNone, Type::kNone,                \
     Syntax::kTwoOffsets)
#define DS_WRITE2(op, name, type, ...)                                                             \
  DS(op, name, (ds_write2<__VA_ARGS__>), Type::kNone, Type::kB32, type, type,                      \
     Syntax::kTwoOffsets)
#define DS_XCHG2(op, name, result, type, ...)                                                      \
  DS(op, name, (ds_wrxchg2<__VA_ARGS__>), result, Type::kB32, type, type,                          \
     Syntax::kTwoOffsets | kAtomic | kExchanges)

// Both forms of an atomic: without and with return value.
#define DS_RMW_AT(op, rtn_op, name, suffix, run, lanes, type, data1, operands)                     \
  DS(op, name suffix, (run<lanes, 4 * dwords_of(type), false, Operands::operands>), Type::kNone,   \
     Type::kB32, type, data1, kAtomic)                                                             \
  DS(rtn_op, name "_rtn" suffix, (run<lanes, 4 * dwords_of(type), true, Operands::operands>),      \
     type, Type::kB32, type, data1, kAtomic)
#define DS_RMW(op, name, suffix, T, type, ...)                                                     \
  DS_RMW_AT(op, op + 32, name, suffix, ds_atomic, (kLdsAtomic<T, __VA_ARGS__>), type, Type::kNone, \
            kOne)
#define DS_RMW_2(op, name, suffix, T, type, operands, ...)                                         \
  DS_RMW_AT(op, op + 32, name, suffix, ds_atomic, (kLdsAtomic<T, __VA_ARGS__>), type, type,        \
            operands)
#define DS_RTN(op, name, T, type, data1, operands, traits, ...)                                    \
  DS(op, name, (ds_atomic<kLdsAtomic<T, __VA_ARGS__>, sizeof(T), true, Operands::operands>), type, \
     Type::kB32, type, data1, kAtomic | traits)

#define DS_INTEGERS(first, size, T, type)                                                          \
  DS_RMW(first + 0, "add", "_u" size, T, type, rmw::kAdd)                                          \
  DS_RMW(first + 1, "sub", "_u" size, T, type, rmw::kSub)                                          \
  DS_RMW(first + 2, "rsub", "_u" size, T, type, rmw::kRsub)                                        \
  DS_RMW(first + 3, "inc", "_u" size, T, type, rmw::kInc)                                          \
  DS_RMW(first + 4, "dec", "_u" size, T, type, rmw::kDec)                                          \
  DS_RMW(first + 5, "min", "_i" size, T, type, rmw::kSmin)                                         \
  DS_RMW(first + 6, "max", "_i" size, T, type, rmw::kSmax)                                         \
  DS_RMW(first + 7, "min", "_u" size, T, type, rmw::kUmin)                                         \
  DS_RMW(first + 8, "max", "_u" size, T, type, rmw::kUmax)                                         \
  DS_RMW(first + 9, "and", "_b" size, T, type, rmw::kAnd)                                          \
  DS_RMW(first + 10, "or", "_b" size, T, type, rmw::kOr)                                           \
  DS_RMW(first + 11, "xor", "_b" size, T, type, rmw::kXor)                                         \
  DS_RMW_2(first + 12, "mskor", "_b" size, T, type, kTwo, rmw::kMskor)                             \
  DS_RMW_2(first + 16, "cmpst", "_b" size, T, type, kCompareFirst, rmw::kCmpSwap)                  \
  DS_RMW_2(first + 17, "cmpst", "_f" size, T, type, kCompareFirst, rmw::kFcmpSwap, CacheFpMode)    \
  DS_RMW(first + 18, "min", "_f" size, T, type, rmw::kFmin, CacheFpMode)                           \
  DS_RMW(first + 19, "max", "_f" size, T, type, rmw::kFmax, CacheFpMode)

#define DS_GWS(op, name)                                                                           \
  DS(op, "gws_" name, ds_gws, Type::kNone, Type::kNone, Type::kB32, Type::kNone,                   \
     Category::kGws | kAtomic | kReadsM0)

constexpr OpInfo kDs[] = {
    DS_INTEGERS(0, "32", u32, Type::kB32)
    DS_INTEGERS(64, "64", u64, Type::kB64)
    DS_RMW(21, "add", "_f32", u32, Type::kF32, rmw::kFadd)
    DS_RMW_AT(92, 124, "add", "_f64", ds_atomic_f64, (kLdsAtomic<u64, rmw::kFadd>), Type::kF64,
              Type::kNone, kOne)
    DS_RMW_AT(23, 183, "pk_add", "_f16", ds_atomic, (kLdsAtomic<u32, rmw::kPkAddF16, CacheFpMode>),
              Type::kPkF16, Type::kNone, kOne)
    DS_RMW_AT(24, 184, "pk_add", "_bf16", ds_atomic,
              (kLdsAtomic<u32, rmw::kPkAddBf16, CacheFpMode>), Type::kPkBf16, Type::kNone, kOne)
    DS_RTN(45, "wrxchg_rtn_b32", u32, Type::kB32, Type::kNone, kOne, kExchanges, rmw::kSwap)
    DS_RTN(52, "wrap_rtn_b32", u32, Type::kB32, Type::kB32, kTwo, kNoTraits, rmw::kWrap)
    DS_RTN(109, "wrxchg_rtn_b64", u64, Type::kB64, Type::kNone, kOne, kExchanges, rmw::kSwap)
    DS_RTN(126, "condxchg32_rtn_b64", u64, Type::kB64, Type::kNone, kOne, kExchanges,
           rmw::kCondXchg32)
    DS_XCHG2(46, "wrxchg2_rtn_b32", Type::kB64, Type::kB32, 1, 4)
    DS_XCHG2(47, "wrxchg2st64_rtn_b32", Type::kB64, Type::kB32, 1, 256)
    DS_XCHG2(110, "wrxchg2_rtn_b64", Type::kB128, Type::kB64, 2, 8)
    DS_XCHG2(111, "wrxchg2st64_rtn_b64", Type::kB128, Type::kB64, 2, 512)

    DS_WRITE(13, "write_b32", Type::kB32, 4, store_dwords<1>)
    DS_WRITE2(14, "write2_b32", Type::kB32, 1, 4)
    DS_WRITE2(15, "write2st64_b32", Type::kB32, 1, 256)
    DS_WRITE(30, "write_b8", Type::kB32, 1, store_partial<u8, 0>)
    DS_WRITE(31, "write_b16", Type::kB32, 2, store_partial<u16, 0>)
    DS_WRITE(77, "write_b64", Type::kB64, 8, store_dwords<2>)
    DS_WRITE2(78, "write2_b64", Type::kB64, 2, 8)
    DS_WRITE2(79, "write2st64_b64", Type::kB64, 2, 512)
    DS_WRITE(84, "write_b8_d16_hi", Type::kB32, 1, store_partial<u8, 16>)
    DS_WRITE(85, "write_b16_d16_hi", Type::kB32, 2, store_partial<u16, 16>)
    DS_WRITE(222, "write_b96", Type::kB96, 12, store_dwords<3>)
    DS_WRITE(223, "write_b128", Type::kB128, 16, store_dwords<4>)

    DS_READ(54, "read_b32", Type::kB32, 4, load_dwords<1>)
    DS_READ2(55, "read2_b32", Type::kB64, 1, 4)
    DS_READ2(56, "read2st64_b32", Type::kB64, 1, 256)
    DS_READ(57, "read_i8", Type::kB32, 1, load_partial<i8>)
    DS_READ(58, "read_u8", Type::kB32, 1, load_partial<u8>)
    DS_READ(59, "read_i16", Type::kB32, 2, load_partial<i16>)
    DS_READ(60, "read_u16", Type::kB32, 2, load_partial<u16>)
    DS_READ(86, "read_u8_d16", Type::kB32, 1, load_half<u8, 0>)
    DS_READ(87, "read_u8_d16_hi", Type::kB32, 1, load_half<u8, 16>)
    DS_READ(88, "read_i8_d16", Type::kB32, 1, load_half<i8, 0>)
    DS_READ(89, "read_i8_d16_hi", Type::kB32, 1, load_half<i8, 16>)
    DS_READ(90, "read_u16_d16", Type::kB32, 2, load_half<u16, 0>)
    DS_READ(91, "read_u16_d16_hi", Type::kB32, 2, load_half<u16, 16>)
    DS_READ(118, "read_b64", Type::kB64, 8, load_dwords<2>)
    DS_READ2(119, "read2_b64", Type::kB128, 2, 8)
    DS_READ2(120, "read2st64_b64", Type::kB128, 2, 512)
    DS_READ(254, "read_b96", Type::kB96, 12, load_dwords<3>)
    DS_READ(255, "read_b128", Type::kB128, 16, load_dwords<4>)
    DS_READ_TR(224, "read_b64_tr_b4", Type::kB64, 4, 16)
    DS_READ_TR(225, "read_b96_tr_b6", Type::kB96, 6, 16)
    DS_READ_TR(226, "read_b64_tr_b8", Type::kB64, 8, 8)
    DS_READ_TR(227, "read_b64_tr_b16", Type::kB64, 16, 4)

    DS(29, "write_addtid_b32", ds_write_addtid_b32, Type::kNone, Type::kNone, Type::kB32,
       Type::kNone, kReadsM0)
    DS(182, "read_addtid_b32", ds_read_addtid_b32, Type::kB32, Type::kNone, Type::kNone,
       Type::kNone, kReadsM0)
    DS(189, "consume", ds_append_consume<false>, Type::kB32, Type::kNone, Type::kNone, Type::kNone,
       kAtomic | kReadsM0)
    DS(190, "append", ds_append_consume<true>, Type::kB32, Type::kNone, Type::kNone, Type::kNone,
       kAtomic | kReadsM0)
    DS(61, "swizzle_b32", ds_swizzle_b32, Type::kB32, Type::kB32, Type::kNone, Type::kNone,
       Spread::kCrossbar)
    DS(62, "permute_b32", ds_permute_b32, Type::kB32, Type::kB32, Type::kB32, Type::kNone,
       Spread::kCrossbar)
    DS(63, "bpermute_b32", ds_bpermute_b32, Type::kB32, Type::kB32, Type::kB32, Type::kNone,
       Spread::kCrossbar)
    DS(20, "nop", ds_nop, Type::kNone, Type::kNone, Type::kNone, Type::kNone, kNoTraits)
    DS_GWS(152, "sema_release_all")
    DS_GWS(153, "init")
    DS_GWS(154, "sema_v")
    DS_GWS(155, "sema_br")
    DS_GWS(156, "sema_p")
    DS_GWS(157, "barrier")
};
// clang-format on

}  // namespace

extern const OpTable kDsTable;
const OpTable kDsTable = {Format::kDs, kDs, std::size(kDs)};

}  // namespace vgpu
