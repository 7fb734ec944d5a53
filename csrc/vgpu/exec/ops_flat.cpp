// FLAT, GLOBAL and SCRATCH: memory by address.
#include <iterator>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- addresses

// A 64-bit address in a register pair + offset.
void pair_addresses(Wave& wave, const Inst& inst, u64* at) {
  const u32* low = wave.v(inst.addr);
  const u32* high = low + kLanes;
  const u64 offset = static_cast<u64>(static_cast<i64>(inst.imm));
  for (u32 lane = 0; lane < kLanes; ++lane) at[lane] = (low[lane] | u64{high[lane]} << 32) + offset;
}

// GLOBAL: a register pair, or an SGPR pair + an unsigned 32-bit register.
void global_addresses(Wave& wave, const Inst& inst, u32 bytes, bool is_write, u64* at) {
  if (inst.saddr == kNoSaddr) {
    pair_addresses(wave, inst, at);
  } else {
    const u64 base = wave.sgpr64(inst.saddr) + static_cast<u64>(static_cast<i64>(inst.imm));
    const u32* offset = wave.v(inst.addr);
    for (u32 lane = 0; lane < kLanes; ++lane) at[lane] = base + offset[lane];
  }
  const u64 mask = wave.exec();
  touch(wave, inst, {Space::kGlobal, is_write, bytes, mask, at});
  check_global(wave, inst, at, mask);
}

// SCRATCH: offsets into a lane's private memory; sve says whether there is a vector address. Both
// registers are unsigned and nothing wraps: one below zero is out of range whatever is added to it
// (LLVM's isFlatScratchBaseLegal keeps such bases out of the instruction).
void scratch_offsets(Wave& wave, const Inst& inst, u32 bytes, bool is_write, u64* at) {
  const u64 base = u64{inst.saddr == kNoSaddr ? 0 : wave.sgpr[inst.saddr & 127]} +
                   static_cast<u64>(static_cast<i64>(inst.imm));
  const u32* offset = wave.v(inst.addr);
  for (u32 lane = 0; lane < kLanes; ++lane) at[lane] = base + (inst.sve ? offset[lane] : 0);
  const u64 mask = wave.exec();
  check_scratch(wave, inst, at, bytes, mask);  // first: observers index by the offset
  touch(wave, inst, {Space::kScratch, is_write, bytes, mask, at});
}

// -------------------------------------------------------------------------------- FLAT

// A FLAT access by aperture: lanes inside LDS and private memory are redirected, and private
// memory, whose dwords do not lie together, goes through a copy.
class FlatAccess {
 public:
  FlatAccess(Wave& wave, const Inst& inst, u32 bytes, bool is_write)
      : wave_(wave), bytes_(bytes), mask_(wave.exec()) {
    pair_addresses(wave, inst, at_.at);
    u64 global = mask_;
    u64 apertures = 0;
    for (u32 lane = 0; lane < kLanes; ++lane) apertures |= at_.at[lane] >> 63 | at_.at[lane] >> 62;
    if (apertures) global = redirect(inst, is_write);
    if (!global) return;
    touch(wave, inst, {Space::kGlobal, is_write, bytes, global, at_.at});
    if (global == mask_) {
      check_global(wave, inst, at_.at, global);
    } else {
      check_global_slow(wave, inst, at_.at, global);
    }
  }
  u64* at() { return at_.at; }
  u64 mask() const { return mask_; }  // the lanes whose access takes place

  // Carries what was written to the copies back to private memory.
  void write_back() {
    for_lanes(private_, [&](u32 lane) {
      scratch_write(wave_, lane, offsets_[lane], bytes_, stage_.lanes[lane]);
    });
  }

 private:
  static bool in(u64 address, u64 base) { return (address & kApertureMask) == base; }

  // Returns the lanes that access global memory.
  u64 redirect(const Inst& inst, bool is_write) {
    u64 shared = 0;
    for_lanes(mask_, [&](u32 lane) {
      if (in(at_.at[lane], kSharedBaseAddr)) shared |= lane_bit(lane);
      if (in(at_.at[lane], kPrivateBaseAddr)) private_ |= lane_bit(lane);
    });
    const u64 global = mask_ & ~(shared | private_);
    if (shared) redirect_shared(inst, is_write, shared);
    if (private_) redirect_private(inst, is_write);
    return global;
  }

  void redirect_shared(const Inst& inst, bool is_write, u64 shared) {
    const u64 base = host_address(wave_.group->lds);
    for_lanes(shared, [&](u32 lane) { at_.at[lane] = base + static_cast<u32>(at_.at[lane]); });
    const u64 inside = lds_inside_slow(*wave_.group, at_.at, bytes_, shared);
    mask_ &= ~(shared & ~inside);
    touch(wave_, inst, {Space::kLds, is_write, bytes_, inside, at_.at, shared & ~inside});
  }

  void redirect_private(const Inst& inst, bool is_write) {
    LaneAddresses offsets;
    for_lanes(private_, [&](u32 lane) { offsets.at[lane] = static_cast<u32>(at_.at[lane]); });
    touch(wave_, inst, {Space::kScratch, is_write, bytes_, private_, offsets.at});
    check_scratch(wave_, inst, offsets.at, bytes_, private_);
    for_lanes(private_, [&](u32 lane) {
      offsets_[lane] = static_cast<u32>(offsets.at[lane]);
      scratch_read(wave_, lane, offsets_[lane], bytes_, stage_.lanes[lane]);
      at_.at[lane] = host_address(stage_.lanes[lane]);
    });
  }

  Wave& wave_;
  u32 bytes_;
  u64 mask_;
  u64 private_ = 0;
  LaneAddresses at_;
  u32 offsets_[kLanes];
  Stage stage_;
};

template <auto kTransfer, u32 kBytes>
void flat_load(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, false);
  const u64 outside = wave.exec() & ~access.mask();
  if (outside) zero_lanes(wave.va(inst.dst), dwords_for(kBytes), outside);
  kTransfer(wave.va(inst.dst), access.at(), access.mask());
}

template <auto kTransfer, u32 kBytes>
void flat_store(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, true);
  kTransfer(wave.va(inst.data0), access.at(), access.mask());
  access.write_back();
}

template <auto kLanesOp, u32 kBytes>
void flat_atomic(Wave& wave, const Inst& inst) {
  FlatAccess access(wave, inst, kBytes, true);
  const u64 outside = wave.exec() & ~access.mask();
  if (outside && inst.sc0) zero_lanes(wave.va(inst.dst), dwords_for(kBytes), outside);
  check_aligned(wave, inst, access.at(), kBytes, access.mask());
  const u32* data = wave.va(inst.data0);
  kLanesOp(inst.sc0 ? wave.va(inst.dst) : nullptr, data, data + kBytes / 4 * kLanes, access.at(),
           access.mask());
  access.write_back();
}

// -------------------------------------------------------------------------------- GLOBAL

template <auto kTransfer, u32 kBytes>
void global_load(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, false, a.at);
  kTransfer(wave.va(inst.dst), a.at, wave.exec());
}

template <auto kTransfer, u32 kBytes>
void global_store(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, true, a.at);
  kTransfer(wave.va(inst.data0), a.at, wave.exec());
}

template <auto kLanesOp, u32 kBytes>
void global_atomic(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  global_addresses(wave, inst, kBytes, true, a.at);
  check_aligned(wave, inst, a.at, kBytes, mask);
  const u32* data = wave.va(inst.data0);
  kLanesOp(inst.sc0 ? wave.va(inst.dst) : nullptr, data, data + kBytes / 4 * kLanes, a.at, mask);
}

template <auto kTransfer, u32 kBytes>
void global_load_lds(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  global_addresses(wave, inst, kBytes, false, a.at);
  lds_dma(wave, inst, a.at, wave.exec(), wave.exec(), kTransfer, kBytes);
}

// -------------------------------------------------------------------------------- SCRATCH

// Spills and most stack variables: whole dwords at one offset for all lanes, so that a dword of all
// lanes is one piece of memory. Null where the access is not of that kind.
u8* uniform_scratch(const Wave& wave, const Inst& inst, const u64* at, u32 bytes) {
  if (inst.sve || bytes % 4 || at[0] % 4) return nullptr;
  return wave.scratch + at[0] * kLanes;
}

void copy_row(u8* to, const u8* from, u64 mask) {
  if (mask == ~u64{0}) {
    std::memcpy(to, from, 4 * kLanes);
  } else {
    for_lanes(mask, [&](u32 lane) { store<u32>(to + 4 * lane, load<u32>(from + 4 * lane)); });
  }
}

void stage_private(const Wave& wave, u64* at, u32 bytes, u64 mask, Stage& stage) {
  for_lanes(mask, [&](u32 lane) {
    scratch_read(wave, lane, static_cast<u32>(at[lane]), bytes, stage.lanes[lane]);
    at[lane] = host_address(stage.lanes[lane]);
  });
}

template <auto kTransfer, u32 kBytes>
void scratch_load(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  if (!mask) return;
  scratch_offsets(wave, inst, kBytes, false, a.at);
  u32* rows = wave.va(inst.dst);
  if (const u8* from = uniform_scratch(wave, inst, a.at, kBytes)) {
    for (u32 d = 0; d < kBytes / 4; ++d) {
      copy_row(reinterpret_cast<u8*>(rows + d * kLanes), from + d * 4 * kLanes, mask);
    }
    return;
  }
  Stage stage;
  stage_private(wave, a.at, kBytes, mask, stage);
  kTransfer(rows, a.at, mask);
}

template <auto kTransfer, u32 kBytes>
void scratch_store(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  const u64 mask = wave.exec();
  if (!mask) return;
  scratch_offsets(wave, inst, kBytes, true, a.at);
  u32* rows = wave.va(inst.data0);
  if (u8* to = uniform_scratch(wave, inst, a.at, kBytes)) {
    for (u32 d = 0; d < kBytes / 4; ++d) {
      copy_row(to + d * 4 * kLanes, reinterpret_cast<const u8*>(rows + d * kLanes), mask);
    }
    return;
  }
  Stage stage;
  LaneAddresses staged;
  for (u32 lane = 0; lane < kLanes; ++lane) staged.at[lane] = host_address(stage.lanes[lane]);
  kTransfer(rows, staged.at, mask);
  for_lanes(mask, [&](u32 lane) {
    scratch_write(wave, lane, static_cast<u32>(a.at[lane]), kBytes, stage.lanes[lane]);
  });
}

template <auto kTransfer, u32 kBytes>
void scratch_load_lds(Wave& wave, const Inst& inst) {
  LaneAddresses a;
  Stage stage;
  const u64 mask = wave.exec();
  scratch_offsets(wave, inst, kBytes, false, a.at);
  stage_private(wave, a.at, kBytes, mask, stage);
  lds_dma(wave, inst, a.at, mask, mask, kTransfer, kBytes);
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
    GLOBAL_LDS(38, "ubyte", 1, load_part<u8>, kNoTraits)
    GLOBAL_LDS(39, "sbyte", 1, load_part<i8>, kNoTraits)
    GLOBAL_LDS(40, "ushort", 2, load_part<u16>, kNoTraits)
    GLOBAL_LDS(41, "sshort", 2, load_part<i16>, kNoTraits)
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
    SCRATCH_LDS(38, "ubyte", 1, load_part<u8>)
    SCRATCH_LDS(39, "sbyte", 1, load_part<i8>)
    SCRATCH_LDS(40, "ushort", 2, load_part<u16>)
    SCRATCH_LDS(41, "sshort", 2, load_part<i16>)
    SCRATCH_LDS(42, "dword", 4, load_dwords<1>)
};
// clang-format on

}  // namespace

extern const OpTable kFlatTable, kGlobalTable, kScratchTable;
const OpTable kFlatTable = {Format::kFlat, kFlat, std::size(kFlat)};
const OpTable kGlobalTable = {Format::kGlobal, kGlobal, std::size(kGlobal)};
const OpTable kScratchTable = {Format::kScratch, kScratch, std::size(kScratch)};

}  // namespace vgpu
