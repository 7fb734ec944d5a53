// SMEM: scalar memory.
#include <chrono>
#include <iterator>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- addresses

u64 scalar_offset(const Wave& wave, const Inst& inst) {
  const u64 immediate = inst.imm_en ? static_cast<u64>(static_cast<i64>(inst.imm)) : 0;
  return immediate + (inst.soffset_en ? read_scalar32(wave, inst.src[0]) : 0);
}

void check_scalar(Wave& wave, const Inst& inst, u64 address, u32 bytes, bool is_write) {
  touch(wave, inst, {Space::kGlobal, is_write, bytes, 1, &address});
  if ((address - 4096) >> 47) check_global_slow(wave, inst, &address, 1);
}

// Computes base in an SGPR pair + offset; the two lowest bits are ignored.
u64 scalar_address(Wave& wave, const Inst& inst, u32 bytes, bool is_write) {
  const u64 address = (wave.sgpr64(inst.saddr) + scalar_offset(wave, inst)) & ~u64{3};
  check_scalar(wave, inst, address, bytes, is_write);
  return address;
}

// The position of a scalar access in a buffer, and how many of its bytes are in range.
struct BufferSpan {
  u64 address;
  u32 bytes;
};

BufferSpan buffer_span(Wave& wave, const Inst& inst, u32 bytes, bool is_write) {
  const u32* resource = &wave.sgpr[inst.saddr & 0x7c];
  const u32 stride = field(resource[1], 16, 14);
  const u64 size = u64{resource[2]} * (stride ? stride : 1);
  const u64 offset = static_cast<u32>(scalar_offset(wave, inst)) & ~3u;
  const u64 base = (resource[0] | u64{resource[1] & 0xffff} << 32) & ~u64{3};
  const u64 remaining = offset < size ? size - offset : 0;
  const BufferSpan span = {base + offset,
                           remaining < bytes ? static_cast<u32>(remaining & ~u64{3}) : bytes};
  if (span.bytes) check_scalar(wave, inst, span.address, span.bytes, is_write);
  return span;
}

// -------------------------------------------------------------------------------- loads and stores

// Returns the tuple of SGPRs at `first`; faults if it exceeds the register file.
u32* scalar_tuple(Wave& wave, const Inst& inst, u32 dwords) {
  if (inst.dst + dwords > std::size(wave.sgpr)) {
    fault(wave, inst,
          "register tuple s[" + std::to_string(inst.dst) + ":" +
              std::to_string(inst.dst + dwords - 1) + "] leaves the scalar registers");
  }
  return &wave.sgpr[inst.dst];
}

template <u32 kDwords>
void s_load(Wave& wave, const Inst& inst) {
  const u64 address = scalar_address(wave, inst, 4 * kDwords, false);
  std::memcpy(scalar_tuple(wave, inst, kDwords), reinterpret_cast<const void*>(address),
              4 * kDwords);
}

template <u32 kDwords>
void s_store(Wave& wave, const Inst& inst) {
  const u64 address = scalar_address(wave, inst, 4 * kDwords, true);
  std::memcpy(reinterpret_cast<void*>(address), scalar_tuple(wave, inst, kDwords), 4 * kDwords);
}

// Dwords outside the buffer read as zero and are not written.
template <u32 kDwords>
void s_buffer_load(Wave& wave, const Inst& inst) {
  const BufferSpan span = buffer_span(wave, inst, 4 * kDwords, false);
  u32 data[kDwords] = {};
  std::memcpy(data, reinterpret_cast<const void*>(span.address), span.bytes);
  std::memcpy(scalar_tuple(wave, inst, kDwords), data, sizeof(data));
}

template <u32 kDwords>
void s_buffer_store(Wave& wave, const Inst& inst) {
  const BufferSpan span = buffer_span(wave, inst, 4 * kDwords, true);
  std::memcpy(reinterpret_cast<void*>(span.address), scalar_tuple(wave, inst, kDwords), span.bytes);
}

void s_scratch(Wave& wave, const Inst& inst) {
  fault(wave, inst, "scalar access to scratch memory is not implemented (no compiler emits it)");
}

// -------------------------------------------------------------------------------- atomics

// Operands and result share the tuple at sdata: the new value, then the compare value of cmpswap.
void scalar_rmw(Wave& wave, const Inst& inst, u64 address, AtomicLanes lanes, u32 bytes,
                bool pair) {
  if (address & (bytes - 1)) misaligned_atomic(wave, inst, &address, bytes, 1, 0);
  const u32 dwords = bytes / 4;
  u32* tuple = scalar_tuple(wave, inst, pair ? 2 * dwords : dwords);
  u32 a[2 * kLanes] = {}, b[2 * kLanes] = {}, old[2 * kLanes];  // as one lane of a vector atomic
  for (u32 d = 0; d < dwords; ++d) {
    a[d * kLanes] = tuple[d];
    if (pair) b[d * kLanes] = tuple[dwords + d];
  }
  lanes(old, a, b, &address, 1);
  for (u32 d = 0; d < dwords && inst.sc0; ++d) tuple[d] = old[d * kLanes];
}

template <auto kLanesOp, u32 kBytes, bool kPair>
void s_atomic(Wave& wave, const Inst& inst) {
  scalar_rmw(wave, inst, scalar_address(wave, inst, kBytes, true), kLanesOp, kBytes, kPair);
}

template <auto kLanesOp, u32 kBytes, bool kPair>
void s_buffer_atomic(Wave& wave, const Inst& inst) {
  const BufferSpan span = buffer_span(wave, inst, kBytes, true);
  if (span.bytes == kBytes) {
    scalar_rmw(wave, inst, span.address, kLanesOp, kBytes, kPair);
  } else if (inst.sc0) {
    std::memset(scalar_tuple(wave, inst, kBytes / 4), 0, kBytes);
  }
}

// -------------------------------------------------------------------------------- clocks, caches

u64 nanoseconds() {
  const auto elapsed = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

// Host time approximates the core clock at 1 GHz; the constant clock of these devices runs at 100
// MHz.
template <u32 kDivisor>
void s_time(Wave& wave, const Inst& inst) {
  wave.set_sgpr64(inst.dst, nanoseconds() / kDivisor);
}

void no_effect(Wave&, const Inst&) {}

// -------------------------------------------------------------------------------- tables
// Operand types: the result; then base address, data, offset.
// clang-format off

#define SMEM(op, name, exec, dst, base, data, ...)                                                 \
  {op, name, exec, dst, {base, data, Type::kB32}, Category::kSmem __VA_OPT__(|) __VA_ARGS__},
#define SMEM_LOAD(op, name, type, dwords)                                                          \
  SMEM(op, "s_load_" name, s_load<dwords>, type, Type::kB64, Type::kNone)
#define SMEM_BUFFER_LOAD(op, name, type, dwords)                                                   \
  SMEM(op, "s_buffer_load_" name, s_buffer_load<dwords>, type, Type::kB128, Type::kNone)
#define SMEM_STORE(op, name, type, dwords)                                                         \
  SMEM(op, "s_store_" name, s_store<dwords>, Type::kNone, Type::kB64, type)
#define SMEM_BUFFER_STORE(op, name, type, dwords)                                                  \
  SMEM(op, "s_buffer_store_" name, s_buffer_store<dwords>, Type::kNone, Type::kB128, type)
#define SMEM_BARE(op, name, exec, dst)                                                             \
  {op, name, exec, dst, {Type::kNone, Type::kNone, Type::kNone}, Category::kSmem},

#define SMEM_ATOMIC_ROW(op, name, run, base, bytes, type, traits, lanes)                           \
  SMEM(op, name, (run<lanes, bytes, (dwords_of(type) > bytes / 4)>),                               \
       bytes == 8 ? Type::kB64 : Type::kB32, base, type, kAtomic | traits)
#define SMEM_ATOMIC(op, name, bytes, type, traits, lanes)                                          \
  SMEM_ATOMIC_ROW(op, "s_atomic_" name, s_atomic, Type::kB64, bytes, type, traits, lanes)
#define SMEM_BUFFER_ATOMIC(op, name, bytes, type, traits, lanes)                                   \
  SMEM_ATOMIC_ROW(op, "s_buffer_atomic_" name, s_buffer_atomic, Type::kB128, bytes, type,          \
                  traits, lanes)

constexpr OpInfo kSmem[] = {
    SMEM_LOAD(0, "dword", Type::kB32, 1)
    SMEM_LOAD(1, "dwordx2", Type::kB64, 2)
    SMEM_LOAD(2, "dwordx4", Type::kB128, 4)
    SMEM_LOAD(3, "dwordx8", Type::kB256, 8)
    SMEM_LOAD(4, "dwordx16", Type::kB512, 16)
    SMEM(5, "s_scratch_load_dword", s_scratch, Type::kB32, Type::kB64, Type::kNone)
    SMEM(6, "s_scratch_load_dwordx2", s_scratch, Type::kB64, Type::kB64, Type::kNone)
    SMEM(7, "s_scratch_load_dwordx4", s_scratch, Type::kB128, Type::kB64, Type::kNone)
    SMEM_BUFFER_LOAD(8, "dword", Type::kB32, 1)
    SMEM_BUFFER_LOAD(9, "dwordx2", Type::kB64, 2)
    SMEM_BUFFER_LOAD(10, "dwordx4", Type::kB128, 4)
    SMEM_BUFFER_LOAD(11, "dwordx8", Type::kB256, 8)
    SMEM_BUFFER_LOAD(12, "dwordx16", Type::kB512, 16)
    SMEM_STORE(16, "dword", Type::kB32, 1)
    SMEM_STORE(17, "dwordx2", Type::kB64, 2)
    SMEM_STORE(18, "dwordx4", Type::kB128, 4)
    SMEM(21, "s_scratch_store_dword", s_scratch, Type::kNone, Type::kB64, Type::kB32)
    SMEM(22, "s_scratch_store_dwordx2", s_scratch, Type::kNone, Type::kB64, Type::kB64)
    SMEM(23, "s_scratch_store_dwordx4", s_scratch, Type::kNone, Type::kB64, Type::kB128)
    SMEM_BUFFER_STORE(24, "dword", Type::kB32, 1)
    SMEM_BUFFER_STORE(25, "dwordx2", Type::kB64, 2)
    SMEM_BUFFER_STORE(26, "dwordx4", Type::kB128, 4)
    SMEM_BARE(32, "s_dcache_inv", no_effect, Type::kNone)
    SMEM_BARE(33, "s_dcache_wb", no_effect, Type::kNone)
    SMEM_BARE(34, "s_dcache_inv_vol", no_effect, Type::kNone)
    SMEM_BARE(35, "s_dcache_wb_vol", no_effect, Type::kNone)
    SMEM_BARE(36, "s_memtime", s_time<1>, Type::kB64)
    SMEM_BARE(37, "s_memrealtime", s_time<10>, Type::kB64)
    SMEM(40, "s_dcache_discard", no_effect, Type::kNone, Type::kB64, Type::kNone)
    SMEM(41, "s_dcache_discard_x2", no_effect, Type::kNone, Type::kB64, Type::kNone)
    VGPU_INT_ATOMICS(SMEM_BUFFER_ATOMIC, 64)
    VGPU_INT_ATOMICS(SMEM_ATOMIC, 128)
};
// clang-format on

}  // namespace

extern const OpTable kSmemTable;
const OpTable kSmemTable = {Format::kSmem, kSmem, std::size(kSmem)};

}  // namespace vgpu
