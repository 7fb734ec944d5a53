// Addresses and accesses shared by all memory instructions (SMEM, DS, FLAT, GLOBAL, SCRATCH, MUBUF,
// MTBUF).
//
// A vector memory instruction runs in three steps, each implemented once: the family's address
// function fills LaneAddresses with a host address per lane and returns the lanes in range; touch()
// reports them to observers; a transfer moves bytes between those addresses and the rows of a
// register tuple.
#pragma once

#include "vgpu/isa/wave.h"
#include "vgpu/machine/observer.h"

namespace vgpu {

// Per lane: a host address (global, LDS) or an offset into private memory (scratch).
struct LaneAddresses {
  alignas(64) u64 lane[kLanes];
};

// Reports an access to the observer. Every memory instruction calls it once per address space,
// before the access.
inline void touch(Wave& wave, const Inst& inst, const Access& access) {
  if (wave.observer) [[unlikely]]
    wave.observer->access(wave, inst, access);
}

template <class F>
inline void for_lanes(u64 mask, F&& body) {
  if (mask == ~u64{0}) {
    for (u32 lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    for (; mask; mask &= mask - 1) body(static_cast<u32>(std::countr_zero(mask)));
  }
}

template <class T>
inline T load_at(u64 address) {
  return load<T>(reinterpret_cast<const void*>(address));
}
template <class T>
inline void store_at(u64 address, T value) {
  store<T>(reinterpret_cast<void*>(address), value);
}
inline u64 host_address(const void* pointer) { return reinterpret_cast<u64>(pointer); }

// -------------------------------------------------------------------------------- transfers
// Between `at` and the registers at `rows` (one row of 64 dwords a register), for the lanes of
// `mask`.

using Transfer = void (*)(u32* rows, const u64* addresses, u64 mask);

// Full EXEC with contiguous lanes, as in coalesced code, takes a fast path.
template <u32 kStep>
inline bool contiguous(const u64* addresses) {
  u64 differs = 0;
  for (u32 lane = 0; lane < kLanes; ++lane)
    differs |= addresses[lane] ^ (addresses[0] + lane * kStep);
  return !differs;
}

using Quad = u32 __attribute__((vector_size(16)));

// Transposes 4 x 4 dwords: the quads of four lanes become parts of four registers.
inline void transpose(Quad (&q)[4]) {
  const Quad a = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
  const Quad c = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const Quad d = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  q[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  q[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  q[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  q[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

inline void load_quads(u32* __restrict rows, const u64* addresses) {
  for (u32 lane = 0; lane < kLanes; lane += 4) {
    Quad q[4];
    for (u32 i = 0; i < 4; ++i) q[i] = load_at<Quad>(addresses[lane + i]);
    transpose(q);
    for (u32 d = 0; d < 4; ++d) store<Quad>(rows + d * kLanes + lane, q[d]);
  }
}

inline void store_quads(const u32* __restrict rows, const u64* addresses) {
  for (u32 lane = 0; lane < kLanes; lane += 4) {
    Quad q[4];
    for (u32 d = 0; d < 4; ++d) q[d] = load<Quad>(rows + d * kLanes + lane);
    transpose(q);
    for (u32 i = 0; i < 4; ++i) store_at<Quad>(addresses[lane + i], q[i]);
  }
}

// A lane's 8 or 16 bytes are moved at once, because kernels rely on it that another workgroup never
// sees a part of them: decoupled look-back keeps a flag beside its value. x86 moves aligned words
// so; the empty assembly keeps the compiler from taking a move apart.
inline void keep_whole(u64& word) { asm("" : "+r"(word)); }
#if defined(__aarch64__)
inline void keep_whole(Quad& quad) { asm("" : "+w"(quad)); }
#else
inline void keep_whole(Quad& quad) { asm("" : "+x"(quad)); }
#endif

template <u32 kDwords>
void load_lane(u32* rows, u64 address) {
  if constexpr (kDwords == 2) {
    u64 word = load_at<u64>(address);
    keep_whole(word);
    rows[0] = static_cast<u32>(word);
    rows[kLanes] = static_cast<u32>(word >> 32);
  } else if constexpr (kDwords == 4) {
    Quad quad = load_at<Quad>(address);
    keep_whole(quad);
    for (u32 d = 0; d < 4; ++d) rows[d * kLanes] = quad[d];
  } else {
    for (u32 d = 0; d < kDwords; ++d) rows[d * kLanes] = load_at<u32>(address + 4 * d);
  }
}

template <u32 kDwords>
void store_lane(const u32* rows, u64 address) {
  if constexpr (kDwords == 2) {
    u64 word = u64{rows[kLanes]} << 32 | rows[0];
    keep_whole(word);
    store_at<u64>(address, word);
  } else if constexpr (kDwords == 4) {
    Quad quad = {rows[0], rows[kLanes], rows[2 * kLanes], rows[3 * kLanes]};
    keep_whole(quad);
    store_at<Quad>(address, quad);
  } else {
    for (u32 d = 0; d < kDwords; ++d) store_at<u32>(address + 4 * d, rows[d * kLanes]);
  }
}

// Two dwords of all lanes, one lane after the other.
inline void load_pairs(u32* __restrict rows, u64 address) {
  for (u32 lane = 0; lane < kLanes; lane += 4) {
    Quad a = load_at<Quad>(address + 8 * lane), b = load_at<Quad>(address + 8 * lane + 16);
    keep_whole(a);
    keep_whole(b);
    store<Quad>(rows + lane, __builtin_shufflevector(a, b, 0, 2, 4, 6));
    store<Quad>(rows + kLanes + lane, __builtin_shufflevector(a, b, 1, 3, 5, 7));
  }
}

inline void store_pairs(const u32* __restrict rows, u64 address) {
  for (u32 lane = 0; lane < kLanes; lane += 4) {
    const Quad low = load<Quad>(rows + lane), high = load<Quad>(rows + kLanes + lane);
    Quad a = __builtin_shufflevector(low, high, 0, 4, 1, 5);
    Quad b = __builtin_shufflevector(low, high, 2, 6, 3, 7);
    keep_whole(a);
    keep_whole(b);
    store_at<Quad>(address + 8 * lane, a);
    store_at<Quad>(address + 8 * lane + 16, b);
  }
}

template <u32 kDwords>
void load_dwords(u32* __restrict rows, const u64* addresses, u64 mask) {
  if (kDwords <= 2 && mask == ~u64{0} && contiguous<4 * kDwords>(addresses)) {
    if constexpr (kDwords == 1) {
      std::memcpy(rows, reinterpret_cast<const u8*>(addresses[0]), 4 * kLanes);
    } else {
      load_pairs(rows, addresses[0]);
    }
    return;
  }
  if (kDwords == 4 && mask == ~u64{0}) return load_quads(rows, addresses);
  for_lanes(mask, [&](u32 lane) { load_lane<kDwords>(rows + lane, addresses[lane]); });
}

template <u32 kDwords>
void store_dwords(u32* __restrict rows, const u64* addresses, u64 mask) {
  if (kDwords <= 2 && mask == ~u64{0} && contiguous<4 * kDwords>(addresses)) {
    if constexpr (kDwords == 1) {
      std::memcpy(reinterpret_cast<u8*>(addresses[0]), rows, 4 * kLanes);
    } else {
      store_pairs(rows, addresses[0]);
    }
    return;
  }
  if (kDwords == 4 && mask == ~u64{0}) return store_quads(rows, addresses);
  for_lanes(mask, [&](u32 lane) { store_lane<kDwords>(rows + lane, addresses[lane]); });
}

// Loads a byte or short, extended as T says.
template <class T>
void load_partial(u32* __restrict rows, const u64* addresses, u64 mask) {
  for_lanes(mask, [&](u32 lane) { rows[lane] = static_cast<u32>(load_at<T>(addresses[lane])); });
}

// D16 loads. These devices have SRAM-ECC, with which the half that is not loaded is not preserved
// (LLVM: d16PreservesUnusedBits() is false); it becomes zero.
template <class T, u32 kShift>
void load_half(u32* __restrict rows, const u64* addresses, u64 mask) {
  for_lanes(mask, [&](u32 lane) {
    rows[lane] = static_cast<u32>(static_cast<u16>(load_at<T>(addresses[lane]))) << kShift;
  });
}

template <class T, u32 kShift>
void store_partial(u32* __restrict rows, const u64* addresses, u64 mask) {
  for_lanes(mask,
            [&](u32 lane) { store_at<T>(addresses[lane], static_cast<T>(rows[lane] >> kShift)); });
}

inline void zero_lanes(u32* rows, u32 dwords, u64 mask) {
  for (u32 d = 0; d < dwords; ++d) {
    for_lanes(mask, [&](u32 lane) { rows[d * kLanes + lane] = 0; });
  }
}

constexpr u32 dwords_for(u32 bytes) { return (bytes + 3) / 4; }

// Table rows common to FLAT, GLOBAL, SCRATCH and MUBUF, with the same opcodes: X(opcode, mnemonic
// after the family's name, register type, bytes, transfer).
#define VGPU_VMEM_LOADS(X)                               \
  X(16, "load_ubyte", Type::kB32, 1, load_partial<u8>)   \
  X(17, "load_sbyte", Type::kB32, 1, load_partial<i8>)   \
  X(18, "load_ushort", Type::kB32, 2, load_partial<u16>) \
  X(19, "load_sshort", Type::kB32, 2, load_partial<i16>) \
  X(20, "load_dword", Type::kB32, 4, load_dwords<1>)     \
  X(21, "load_dwordx2", Type::kB64, 8, load_dwords<2>)   \
  X(22, "load_dwordx3", Type::kB96, 12, load_dwords<3>)  \
  X(23, "load_dwordx4", Type::kB128, 16, load_dwords<4>)
#define VGPU_VMEM_D16_LOADS(X)                                   \
  X(32, "load_ubyte_d16", Type::kB32, 1, (load_half<u8, 0>))     \
  X(33, "load_ubyte_d16_hi", Type::kB32, 1, (load_half<u8, 16>)) \
  X(34, "load_sbyte_d16", Type::kB32, 1, (load_half<i8, 0>))     \
  X(35, "load_sbyte_d16_hi", Type::kB32, 1, (load_half<i8, 16>)) \
  X(36, "load_short_d16", Type::kB32, 2, (load_half<u16, 0>))    \
  X(37, "load_short_d16_hi", Type::kB32, 2, (load_half<u16, 16>))
#define VGPU_VMEM_STORES(X)                                            \
  X(24, "store_byte", Type::kB32, 1, (store_partial<u8, 0>))           \
  X(25, "store_byte_d16_hi", Type::kB32, 1, (store_partial<u8, 16>))   \
  X(26, "store_short", Type::kB32, 2, (store_partial<u16, 0>))         \
  X(27, "store_short_d16_hi", Type::kB32, 2, (store_partial<u16, 16>)) \
  X(28, "store_dword", Type::kB32, 4, store_dwords<1>)                 \
  X(29, "store_dwordx2", Type::kB64, 8, store_dwords<2>)               \
  X(30, "store_dwordx3", Type::kB96, 12, store_dwords<3>)              \
  X(31, "store_dwordx4", Type::kB128, 16, store_dwords<4>)

// -------------------------------------------------------------------------------- global memory

// Ends the launch if an active lane's address cannot be host memory: the first page, or beyond the
// 47 bits of user space. Other invalid pointers cause a host page fault, which the runner catches.
void check_global_slow(Wave& wave, const Inst& inst, const u64* addresses, u64 mask);

inline void check_global(Wave& wave, const Inst& inst, const u64* addresses, u64 mask) {
  u64 check_host_range = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) check_host_range |= (addresses[lane] - 4096) >> 47;
  if (check_host_range) [[unlikely]]
    check_global_slow(wave, inst, addresses, mask);
}

// -------------------------------------------------------------------------------- LDS

// Converts LDS offsets to host addresses in place. Returns the lanes of `mask` whose `bytes` lie
// inside the workgroup's allocation: outside it hardware reads 0 and drops writes.
u64 lds_inside_slow(const Workgroup& group, u64* addresses, u32 bytes, u64 mask);

inline u64 lds_resolve(const Workgroup& group, u64* addresses, u32 bytes, u64 mask) {
  const u64 last_offset = group.lds_bytes - u64{bytes};  // negative if the allocation is smaller
  const u64 base = host_address(group.lds);
  u64 outside = group.lds_bytes < bytes;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    outside |= (last_offset - addresses[lane]) >> 63;
    addresses[lane] += base;
  }
  return outside ? lds_inside_slow(group, addresses, bytes, mask) : mask;
}

// LDS-DMA: writes loaded data to LDS at M0 + instruction offset + lane * (4 or 16). Lanes of `mask`
// outside `inside` write zero; a lane whose destination lies outside the allocation is dropped.
void lds_dma(Wave& wave, const Inst& inst, const u64* addresses, u64 mask, u64 inside,
             Transfer transfer, u32 bytes);

// -------------------------------------------------------------------------------- private memory

inline constexpr u32 kStageBytes = 16;

// A staging copy of each lane's access to private memory, where the bytes of a lane are not
// contiguous.
struct Stage {
  alignas(16) u8 lanes[kLanes][kStageBytes];
};

void scratch_read(const Wave& wave, u32 lane, u32 offset, u32 bytes, u8* dst);
void scratch_write(Wave& wave, u32 lane, u32 offset, u32 bytes, const u8* src);

// Ends the launch if a lane of `mask` exceeds its private memory.
void check_scratch(Wave& wave, const Inst& inst, const u64* addresses, u32 bytes, u64 mask);

// -------------------------------------------------------------------------------- alignment

// `base` is subtracted from addresses in the fault's text (LDS offsets).
void misaligned_atomic(Wave& wave, const Inst& inst, const u64* addresses, u32 bytes, u64 mask,
                       u64 base);

inline void check_aligned(Wave& wave, const Inst& inst, const u64* addresses, u32 bytes, u64 mask,
                          u64 base = 0) {
  u64 low = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) low |= addresses[lane];
  if (low & (bytes - 1)) [[unlikely]]
    misaligned_atomic(wave, inst, addresses, bytes, mask, base);
}

}  // namespace vgpu
