// MUBUF and MTBUF: memory access through buffer resources.
#include <iterator>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/buffer.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- raw accesses

// LDS-DMA exists for single dwords and smaller, and on some architectures for three and four
// dwords.
void check_lds_form(Wave& wave, const Inst& inst, u32 bytes) {
  const bool wide = bytes == 12 || bytes == 16;
  if (bytes <= 4 || (wide && arch_traits(wave.group->arch).wide_lds_dma)) return;
  fault(wave, inst,
        std::string("no lds form of this instruction on ") + arch_name(wave.group->arch));
}

template <auto kTransfer, u32 kBytes>
void buffer_load(Wave& wave, const Inst& inst) {
  if (inst.lds) check_lds_form(wave, inst, kBytes);
  const BufferResource resource = buffer_resource(wave, inst);
  BufferAccess access(wave, inst, resource, kBytes, Granule::kDword, false, false);
  const u64 exec = wave.exec();
  if (inst.lds) {
    lds_dma(wave, inst, access.addresses(), exec, access.mask(), kTransfer, kBytes);
    return;
  }
  u32* rows = wave.va(inst.dst);
  if (access.mask() != exec) zero_lanes(rows, dwords_for(kBytes), exec & ~access.mask());
  kTransfer(rows, access.addresses(), access.mask());
}

template <auto kTransfer, u32 kBytes>
void buffer_store(Wave& wave, const Inst& inst) {
  const BufferResource resource = buffer_resource(wave, inst);
  BufferAccess access(wave, inst, resource, kBytes, Granule::kDword, false, true);
  kTransfer(wave.va(inst.data0), access.addresses(), access.mask());
  access.write_back();
}

// The data registers receive the old values.
template <auto kLanesOp, u32 kBytes>
void buffer_atomic(Wave& wave, const Inst& inst) {
  const BufferResource resource = buffer_resource(wave, inst);
  if (resource.add_tid && resource.swizzle) fault(wave, inst, "atomic on a swizzled buffer");
  BufferAccess access(wave, inst, resource, kBytes, Granule::kElement, false, true);
  check_aligned(wave, inst, access.addresses(), kBytes, access.mask());
  u32* data = wave.va(inst.data0);
  kLanesOp(inst.sc0 ? data : nullptr, data, data + kBytes / 4 * kLanes, access.addresses(),
           access.mask());
  const u64 outside = wave.exec() & ~access.mask();
  if (outside && inst.sc0) zero_lanes(data, kBytes / 4, outside);
  access.write_back();
}

// The host's caches are coherent, so only the ordering of accesses remains.
void cache_control(Wave&, const Inst&) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// -------------------------------------------------------------------------------- typed accesses

template <u32 kComponents, bool kD16, bool kHigh>
void load_format(Wave& wave, const Inst& inst) {
  buffer_load_format(wave, inst, {kComponents, kD16, kHigh});
}

template <u32 kComponents, bool kD16, bool kHigh>
void store_format(Wave& wave, const Inst& inst) {
  buffer_store_format(wave, inst, {kComponents, kD16, kHigh});
}

// -------------------------------------------------------------------------------- tables
// Operand types: the result; then address (its registers depend on offen and idxen), data.
// clang-format off

#define BUFFER_LOAD(op, name, type, bytes, transfer)                                               \
  {op, "buffer_" name, buffer_load<transfer, bytes>, type, {Type::kB32, Type::kNone, Type::kNone}, \
   Category::kVmemLoad | kReadsExec},
#define BUFFER_STORE(op, name, type, bytes, transfer)                                              \
  {op, "buffer_" name, buffer_store<transfer, bytes>, Type::kNone,                                 \
   {Type::kB32, type, Type::kNone}, Category::kVmemStore | kReadsExec},
#define BUFFER_ATOMIC(op, name, bytes, type, traits, lanes)                                        \
  {op, "buffer_atomic_" name, buffer_atomic<lanes, bytes>, bytes == 8 ? Type::kB64 : Type::kB32,   \
   {Type::kB32, type, Type::kNone}, Category::kVmemAtomic | kReadsExec | kAtomic | traits},
#define BUFFER_ATOMIC_GFX950(op, name, bytes, type, traits, lanes)                                 \
  BUFFER_ATOMIC(op, name, bytes, type, traits | kOnGfx950, lanes)
#define BUFFER_CACHE(op, name)                                                                     \
  {op, name, cache_control, Type::kNone, {Type::kNone, Type::kNone, Type::kNone},                  \
   Category::kVmemCache},

#define FORMAT_LOAD(op, name, type, components, d16, high)                                         \
  {op, name, load_format<components, d16, high>, type, {Type::kB32, Type::kNone, Type::kNone},     \
   Category::kVmemLoad | kReadsExec | kTyped},
#define FORMAT_STORE(op, name, type, components, d16, high)                                        \
  {op, name, store_format<components, d16, high>, Type::kNone, {Type::kB32, type, Type::kNone},    \
   Category::kVmemStore | kReadsExec | kTyped},
#define FORMAT_ROWS(family)                                                                        \
  FORMAT_LOAD(0, family "load_format_x", Type::kB32, 1, false, false)                              \
  FORMAT_LOAD(1, family "load_format_xy", Type::kB64, 2, false, false)                             \
  FORMAT_LOAD(2, family "load_format_xyz", Type::kB96, 3, false, false)                            \
  FORMAT_LOAD(3, family "load_format_xyzw", Type::kB128, 4, false, false)                          \
  FORMAT_STORE(4, family "store_format_x", Type::kB32, 1, false, false)                            \
  FORMAT_STORE(5, family "store_format_xy", Type::kB64, 2, false, false)                           \
  FORMAT_STORE(6, family "store_format_xyz", Type::kB96, 3, false, false)                          \
  FORMAT_STORE(7, family "store_format_xyzw", Type::kB128, 4, false, false)                        \
  FORMAT_LOAD(8, family "load_format_d16_x", Type::kB32, 1, true, false)                           \
  FORMAT_LOAD(9, family "load_format_d16_xy", Type::kB32, 2, true, false)                          \
  FORMAT_LOAD(10, family "load_format_d16_xyz", Type::kB64, 3, true, false)                        \
  FORMAT_LOAD(11, family "load_format_d16_xyzw", Type::kB64, 4, true, false)                       \
  FORMAT_STORE(12, family "store_format_d16_x", Type::kB32, 1, true, false)                        \
  FORMAT_STORE(13, family "store_format_d16_xy", Type::kB32, 2, true, false)                       \
  FORMAT_STORE(14, family "store_format_d16_xyz", Type::kB64, 3, true, false)                      \
  FORMAT_STORE(15, family "store_format_d16_xyzw", Type::kB64, 4, true, false)

constexpr OpInfo kMubuf[] = {
    FORMAT_ROWS("buffer_")
    FORMAT_LOAD(38, "buffer_load_format_d16_hi_x", Type::kB32, 1, true, true)
    FORMAT_STORE(39, "buffer_store_format_d16_hi_x", Type::kB32, 1, true, true)
    VGPU_VMEM_LOADS(BUFFER_LOAD)
    VGPU_VMEM_STORES(BUFFER_STORE)
    VGPU_VMEM_D16_LOADS(BUFFER_LOAD)
    BUFFER_CACHE(40, "buffer_wbl2")
    BUFFER_CACHE(41, "buffer_inv")
    VGPU_INT_ATOMICS(BUFFER_ATOMIC, 64)
    VGPU_FLOAT_ATOMICS(BUFFER_ATOMIC)
    VGPU_PK_ADD_BF16(BUFFER_ATOMIC_GFX950)
};

constexpr OpInfo kMtbuf[] = {FORMAT_ROWS("tbuffer_")};
// clang-format on

}  // namespace

extern const OpTable kMubufTable, kMtbufTable;
const OpTable kMubufTable = {Format::kMubuf, kMubuf, std::size(kMubuf)};
const OpTable kMtbufTable = {Format::kMtbuf, kMtbuf, std::size(kMtbuf)};

}  // namespace vgpu
