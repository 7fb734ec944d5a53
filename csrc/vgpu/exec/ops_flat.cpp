// FLAT, GLOBAL and SCRATCH: memory access by address.
#include <iterator>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- addresses

// Computes a 64-bit address in a register pair + offset.
void pair_addresses(Wave& wave, const Inst& inst, u64* addresses) {
  const u32* low = wave.v(inst.addr);
  const u32* high = low + kLanes;
  const u64 offset = static_cast<u64>(static_cast<i64>(inst.imm));
  for (u32 lane = 0; lane < kLanes; ++lane)
    addresses[lane] = (low[lane] | u64{high[lane]} << 32) + offset;
}

// GLOBAL: a register pair, or an SGPR pair + an unsigned 32-bit register.
void global_addresses(Wave& wave, const Inst& inst, u32 bytes, bool is_write, u64* addresses) {
  if (inst.saddr == kNoSaddr) {
    pair_addresses(wave, inst, addresses);
  } else {
    const u64 base = wave.sgpr64(inst.saddr) + static_cast<u64>(static_cast<i64>(inst.imm));
    const u32* offset = wave.v(inst.addr);
    for (u32 lane = 0; lane < kLanes; ++lane) addresses[lane] = base + offset[lane];
  }
  const u64 mask = wave.exec();
  touch(wave, inst, {Space::kGlobal, is_write, bytes, mask, addresses});
  check_global(wave, inst, addresses, mask);
}

// SCRATCH: offsets into a lane's private memory; sve tells whether there is a vector address. Both
// registers are unsigned and the sum does not wrap: a negative register is always out of range
// (LLVM's isFlatScratchBaseLegal avoids such bases).
void scratch_offsets(Wave& wave, const Inst& inst, u32 bytes, bool is_write, u64* addresses) {
  const u64 base = u64{inst.saddr == kNoSaddr ? 0 : wave.sgpr[inst.saddr & 127]} +
                   static_cast<u64>(static_cast<i64>(inst.imm));
  const u32* offset = wave.v(inst.addr);
  for (u32 lane = 0; lane < kLanes; ++lane) addresses[lane] = base + (inst.sve ? offset[lane] : 0);
  const u64 mask = wave.exec();
  check_scratch(wave, inst, addresses, bytes,
                mask);  // before touch(): observers index by the offset
  touch(wave, inst, {Space::kScratch, is_write, bytes, mask, addresses});
}

// -------------------------------------------------------------------------------- FLAT

// A FLAT access by aperture: lanes inside LDS and private memory are redirected; private memory,
// whose dwords are interleaved, goes through a staging copy.
class FlatAccess {
 public:
  FlatAccess(Wave& wave, const Inst& inst, u32 bytes, bool is_write)
      : wave_(wave), bytes_(bytes), mask_(wave.exec()) {
    pair_addresses(wave, inst, addresses_.lane);
    u64 global = mask_;
    u64 apertures = 0;
    for (u32 lane = 0; lane < kLanes; ++lane)
      apertures |= addresses_.lane[lane] >> 63 | addresses_.lane[lane] >> 62;
    if (apertures) global = redirect(inst, is_write);
    if (!global) return;
    touch(wave, inst, {Space::kGlobal, is_write, bytes, global, addresses_.lane});
    if (global == mask_) {
      check_global(wave, inst, addresses_.lane, global);
    } else {
      check_global_slow(wave, inst, addresses_.lane, global);
    }
  }
  u64* addresses() { return addresses_.lane; }
  u64 mask() const { return mask_; }  // lanes that access memory

  // Writes staged data back to private memory.
  void write_back() {
    for_lanes(private_, [&](u32 lane) {
      scratch_write(wave_, lane, offsets_[lane], bytes_, stage_.lanes[lane]);
    });
  }

 private:
  static bool in_aperture(u64 address, u64 base) { return (address & kApertureMask) == base; }

  // Returns the lanes that access global memory.
  u64 redirect(const Inst& inst, bool is_write) {
    u64 shared = 0;
    for_lanes(mask_, [&](u32 lane) {
      if (in_aperture(addresses_.lane[lane], kSharedBaseAddr)) shared |= lane_bit(lane);
      if (in_aperture(addresses_.lane[lane], kPrivateBaseAddr)) private_ |= lane_bit(lane);
    });
    const u64 global = mask_ & ~(shared | private_);
    if (shared) redirect_shared(inst, is_write, shared);
    if (private_) redirect_private(inst, is_write);
    return global;
  }

  void redirect_shared(const Inst& inst, bool is_write, u64 shared) {
    const u64 base = host_address(wave_.group->lds);
    for_lanes(shared, [&](u32 lane) {
      addresses_.lane[lane] = base + static_cast<u32>(addresses_.lane[lane]);
    });
    const u64 inside = lds_inside_slow(*wave_.group, addresses_.lane, bytes_, shared);
    mask_ &= ~(shared & ~inside);
    touch(wave_, inst, {Space::kLds, is_write, bytes_, inside, addresses_.lane, shared & ~inside});
  }

  void redirect_private(const Inst& inst, bool is_write) {
    LaneAddresses offsets;
    for_lanes(private_,
              [&](u32 lane) { offsets.lane[lane] = static_cast<u32>(addresses_.lane[lane]); });
    touch(wave_, inst, {Space::kScratch, is_write, bytes_, private_, offsets.lane});
    check_scratch(wave_, inst, offsets.lane, bytes_, private_);
    for_lanes(private_, [&](u32 lane) {
      offsets_[lane] = static_cast<u32>(offsets.lane[lane]);
      scratch_read(wave_, lane, offsets_[lane], bytes_, stage_.lanes[lane]);
      addresses_.lane[lane] = host_address(stage_.lanes[lane]);
    });
  }

  Wave& wave_;
  u32 bytes_;
  u64 mask_;
  u64 private_ = 0;
  LaneAddresses addresses_;
  u32 offsets_[kLanes];
  Stage stage_;
};

template <auto kTransfer, u32 kBytes>
void flat_load(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, false);
  const u64 outside = wave.exec() & ~access.mask();
  if (outside) zero_lanes(wave.va(inst.dst), dwords_for(kBytes), outside);
  kTransfer(wave.va(inst.dst), access.addresses(), access.mask());
}

template <auto kTransfer, u32 kBytes>
void flat_store(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, true);
  kTransfer(wave.va(inst.data0), access.addresses(), access.mask());
  access.write_back();
}

template <auto kLanesOp, u32 kBytes>
void flat_atomic(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, true);
  const u64 outside = wave.exec() & ~access.mask();
  if (outside && inst.sc0) zero_lanes(wave.va(inst.dst), dwords_for(kBytes), outside);
  check_aligned(wave, inst, access.addresses(), kBytes, access.mask());
  const u32* data = wave.va(inst.data0);
  kLanesOp(inst.sc0 ? wave.va(inst.dst) : nullptr, data, data + kBytes / 4 * kLanes,
           access.addresses(), access.mask());
  access.write_back();
}

// -------------------------------------------------------------------------------- GLOBAL

template <auto kTransfer, u32 kBytes>
void global_load(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, false, a.lane);
  kTransfer(wave.va(inst.dst), a.lane, wave.exec());
}

template <auto kTransfer, u32 kBytes>
void global_store(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, true, a.lane);
  kTransfer(wave.va(inst.data0), a.lane, wave.exec());
}

template <auto kLanesOp, u32 kBytes>
void global_atomic(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  global_addresses(wave, inst, kBytes, true, a.lane);
  check_aligned(wave, inst, a.lane, kBytes, mask);
  const u32* data = wave.va(inst.data0);
  kLanesOp(inst.sc0 ? wave.va(inst.dst) : nullptr, data, data + kBytes / 4 * kLanes, a.lane, mask);
}

template <auto kTransfer, u32 kBytes>
void global_load_lds(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, false, a.lane);
  lds_dma(wave, inst, a.lane, wave.exec(), wave.exec(), kTransfer, kBytes);
}

// -------------------------------------------------------------------------------- SCRATCH

void copy_row(u8* dst, const u8* src, u64 mask) {
  if (mask == ~u64{0}) {
    std::memcpy(dst, src, 4 * kLanes);
  } else {
    for_lanes(mask, [&](u32 lane) { store<u32>(dst + 4 * lane, load<u32>(src + 4 * lane)); });
  }
}

// Fast path for spills and most stack variables: whole dwords at the same offset in all lanes, so
// that a dword of all lanes is contiguous. Returns false for other accesses.
template <u32 kBytes, bool kIsWrite>
bool access_uniform(const Wave& wave, const Inst& inst, const u64* addresses, u64 mask, u32* rows) {
  if (inst.sve || kBytes % 4 || addresses[0] % 4) return false;
  for (u32 d = 0; d < kBytes / 4; ++d) {
    u8* row = reinterpret_cast<u8*>(rows + d * kLanes);
    u8* memory = wave.scratch + (addresses[0] + d * 4) * kLanes;
    kIsWrite ? copy_row(memory, row, mask) : copy_row(row, memory, mask);
  }
  return true;
}

void stage_private(const Wave& wave, u64* addresses, u32 bytes, u64 mask, Stage& stage) {
  for_lanes(mask, [&](u32 lane) {
    scratch_read(wave, lane, static_cast<u32>(addresses[lane]), bytes, stage.lanes[lane]);
    addresses[lane] = host_address(stage.lanes[lane]);
  });
}

template <auto kTransfer, u32 kBytes>
void scratch_load(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  if (!mask) return;
  scratch_offsets(wave, inst, kBytes, false, a.lane);
  u32* rows = wave.va(inst.dst);
  if (access_uniform<kBytes, false>(wave, inst, a.lane, mask, rows)) return;
  Stage stage;
  stage_private(wave, a.lane, kBytes, mask, stage);
  kTransfer(rows, a.lane, mask);
}

template <auto kTransfer, u32 kBytes>
void scratch_store(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  if (!mask) return;
  scratch_offsets(wave, inst, kBytes, true, a.lane);
  u32* rows = wave.va(inst.data0);
  if (access_uniform<kBytes, true>(wave, inst, a.lane, mask, rows)) return;
  Stage stage;
  LaneAddresses staged;
  for (u32 lane = 0; lane < kLanes; ++lane) staged.lane[lane] = host_address(stage.lanes[lane]);
  kTransfer(rows, staged.lane, mask);
  for_lanes(mask, [&](u32 lane) {
    scratch_write(wave, lane, static_cast<u32>(a.lane[lane]), kBytes, stage.lanes[lane]);
  });
}

template <auto kTransfer, u32 kBytes>
void scratch_load_lds(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  Stage stage;
  const u64 mask = wave.exec();
  scratch_offsets(wave, inst, kBytes, false, a.lane);
  stage_private(wave, a.lane, kBytes, mask, stage);
  lds_dma(wave, inst, a.lane, mask, mask, kTransfer, kBytes);
}

// -------------------------------------------------------------------------------- tables
// Operand types: the result; then address, data.
// clang-format off

constexpr Traits kDma = Category::kLdsDma | kReadsExec | kReadsM0;

#define FLAT_LOAD(op, name, type, bytes, transfer)                                                 \
  {op, "flat_" name, flat_load<transfer, bytes>, type, {Type::kB64, Type::kNone, Type::kNone},     \
   Category::kVmemLoad | kReadsExec},
#define FLAT_STORE(op, name, type, bytes, transfer)                                                \
  {op, "flat_" name, flat_store<transfer, bytes>, Type::kNone, {Type::kB64, type, Type::kNone},    \
   Category::kVmemStore | kReadsExec},
#define FLAT_ATOMIC(op, name, bytes, type, traits, lanes)                                          \
  {op, "flat_atomic_" name, flat_atomic<lanes, bytes>, bytes == 8 ? Type::kB64 : Type::kB32,       \
   {Type::kB64, type, Type::kNone}, Category::kVmemAtomic | kReadsExec | kAtomic | traits},

constexpr OpInfo kFlat[] = {
    VGPU_VMEM_LOADS(FLAT_LOAD)
    VGPU_VMEM_STORES(FLAT_STORE)
    VGPU_VMEM_D16_LOADS(FLAT_LOAD)
    VGPU_INT_ATOMICS(FLAT_ATOMIC, 64)
    VGPU_FLOAT_ATOMICS(FLAT_ATOMIC)
    VGPU_PK_ADD_BF16(FLAT_ATOMIC)
};

#define GLOBAL_LOAD(op, name, type, bytes, transfer)                                               \
  {op, "global_" name, global_load<transfer, bytes>, type, {Type::kB64, Type::kNone, Type::kNone}, \
   Category::kVmemLoad | kReadsExec},
#define GLOBAL_STORE(op, name, type, bytes, transfer)                                              \
  {op, "global_" name, global_store<transfer, bytes>, Type::kNone,                                 \
   {Type::kB64, type, Type::kNone}, Category::kVmemStore | kReadsExec},
#define GLOBAL_ATOMIC(op, name, bytes, type, traits, lanes)                                        \
  {op, "global_atomic_" name, global_atomic<lanes, bytes>, bytes == 8 ? Type::kB64 : Type::kB32,   \
   {Type::kB64, type, Type::kNone}, Category::kVmemAtomic | kReadsExec | kAtomic | traits},
#define GLOBAL_LDS(op, name, bytes, transfer, traits)                                              \
  {op, "global_load_lds_" name, global_load_lds<transfer, bytes>, Type::kNone,                     \
   {Type::kB64, Type::kNone, Type::kNone}, kDma | traits},

constexpr OpInfo kGlobal[] = {
    VGPU_VMEM_LOADS(GLOBAL_LOAD)
    VGPU_VMEM_STORES(GLOBAL_STORE)
    VGPU_VMEM_D16_LOADS(GLOBAL_LOAD)
    GLOBAL_LDS(38, "ubyte", 1, load_partial<u8>, kNoTraits)
    GLOBAL_LDS(39, "sbyte", 1, load_partial<i8>, kNoTraits)
    GLOBAL_LDS(40, "ushort", 2, load_partial<u16>, kNoTraits)
    GLOBAL_LDS(41, "sshort", 2, load_partial<i16>, kNoTraits)
    GLOBAL_LDS(42, "dword", 4, load_dwords<1>, kNoTraits)
    GLOBAL_LDS(125, "dwordx4", 16, load_dwords<4>, kOnGfx950)
    GLOBAL_LDS(126, "dwordx3", 12, load_dwords<3>, kOnGfx950)
    VGPU_INT_ATOMICS(GLOBAL_ATOMIC, 64)
    VGPU_FLOAT_ATOMICS(GLOBAL_ATOMIC)
    VGPU_PK_ADD_BF16(GLOBAL_ATOMIC)
};

#define SCRATCH_LOAD(op, name, type, bytes, transfer)                                              \
  {op, "scratch_" name, scratch_load<transfer, bytes>, type,                                       \
   {Type::kB32, Type::kNone, Type::kNone}, Category::kVmemLoad | kReadsExec},
#define SCRATCH_STORE(op, name, type, bytes, transfer)                                             \
  {op, "scratch_" name, scratch_store<transfer, bytes>, Type::kNone,                               \
   {Type::kB32, type, Type::kNone}, Category::kVmemStore | kReadsExec},
#define SCRATCH_LDS(op, name, bytes, transfer)                                                     \
  {op, "scratch_load_lds_" name, scratch_load_lds<transfer, bytes>, Type::kNone,                   \
   {Type::kB32, Type::kNone, Type::kNone}, kDma},

constexpr OpInfo kScratch[] = {
    VGPU_VMEM_LOADS(SCRATCH_LOAD)
    VGPU_VMEM_STORES(SCRATCH_STORE)
    VGPU_VMEM_D16_LOADS(SCRATCH_LOAD)
    SCRATCH_LDS(38, "ubyte", 1, load_partial<u8>)
    SCRATCH_LDS(39, "sbyte", 1, load_partial<i8>)
    SCRATCH_LDS(40, "ushort", 2, load_partial<u16>)
    SCRATCH_LDS(41, "sshort", 2, load_partial<i16>)
    SCRATCH_LDS(42, "dword", 4, load_dwords<1>)
};
// clang-format on

}  // namespace

extern const OpTable kFlatTable, kGlobalTable, kScratchTable;
const OpTable kFlatTable = {Format::kFlat, kFlat, std::size(kFlat)};
const OpTable kGlobalTable = {Format::kGlobal, kGlobal, std::size(kGlobal)};
const OpTable kScratchTable = {Format::kScratch, kScratch, std::size(kScratch)};

}  // namespace vgpu
