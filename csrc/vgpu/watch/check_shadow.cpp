// Propagates undefined bytes through memory: from stores to loads.
#include "vgpu/exec/memory.h"
#include "vgpu/watch/check_registers.h"

namespace vgpu {
namespace {

constexpr u32 dword_count(u32 bytes) { return (bytes + 3) / 4; }
constexpr u32 bytes_of_dword(u32 bytes, u32 dword) {
  return bytes - 4 * dword < 4 ? bytes - 4 * dword : 4;
}

bool any_written(const u8* written, u32 bytes) {
  if (bytes == 4) return load<u32>(written);
  u32 combined = 0;
  for (u32 b = 0; b < bytes; ++b) combined |= written[b];
  return combined != 0;
}

// Shadows of the memories. for_each_run(lane, byte, count, visit) visits the contiguous runs of
// shadow bytes of a lane's access; none if all memory counts as written.
struct LdsShadow {
  std::vector<u8>& written;
  const Access& access;
  u64 base;
  template <class Visit>
  void for_each_run(u32 lane, u32 byte, u32 count, Visit visit) const {
    visit(&written[access.addresses[lane] - base + byte], count);
  }
};

// In the layout of private memory: the dwords of a lane are not contiguous.
struct ScratchShadow {
  std::vector<u8>& written;
  const Access& access;
  u64 end;
  template <class Visit>
  void for_each_run(u32 lane, u32 byte, u32 count, Visit visit) const {
    if (count == 4 && access.addresses[lane] % 4 == 0 && access.addresses[lane] + byte + 4 <= end) {
      return visit(&written[(access.addresses[lane] + byte) * kLanes + lane * 4], count);
    }
    for (u64 address = access.addresses[lane] + byte; count && address < end;) {
      const u32 dword_bytes = 4 - address % 4,
                num_bytes = count < dword_bytes ? count : dword_bytes;
      visit(&written[address / 4 * (4 * kLanes) + lane * 4 + address % 4], num_bytes);
      address += num_bytes;
      count -= num_bytes;
    }
  }
};

struct GlobalShadow {
  RegisterCheck& check;
  const Access& access;
  template <class Visit>
  void for_each_run(u32 lane, u32 byte, u32 count, Visit visit) const {
    if (u8* written = check.written(access.addresses[lane] + byte, count)) visit(written, count);
  }
};

// The transposed reads of gfx950 distribute what a group of 16 lanes reads; the result is undefined
// only if all of the group's data is.
u64 keep_full_groups(u64 lanes) {
  u64 full_groups = 0;
  for (u32 group = 0; group < kLanes; group += 16) {
    if ((lanes >> group & 0xffff) == 0xffff) full_groups |= u64{0xffff} << group;
  }
  return full_groups;
}

}  // namespace

// Data comes register by register; the second half of ds_write2 from separate registers.
LaneBits RegisterCheck::stored_lanes(const RegisterState& state, const Inst& inst,
                                     u32 dword) const {
  const u32 first = dwords_of(inst.op->src[1]);
  const bool second = inst.format == Format::kDs && dword >= first;
  return register_lanes(state, second ? inst.data1 + dword - first : inst.data0 + dword);
}

// A partially written dword counts as written, because structures have padding.
template <class Shadow>
void RegisterCheck::load(const Inst& inst, const Access& access, Origin::Kind kind,
                         const Shadow& shadow) {
  for (u32 d = 0; d < dword_count(access.bytes); ++d) {
    u64 undefined = 0;
    const u32 bytes = bytes_of_dword(access.bytes, d);
    for_lanes(access.mask, [&](u32 lane) {
      u32 runs = 0, written = 0;
      shadow.for_each_run(lane, 4 * d, bytes, [&](const u8* run, u32 count) {
        ++runs;
        written += any_written(run, count);
      });
      undefined |= u64{runs && !written} << lane;
    });
    if (inst.op->spread == Spread::kTransposed) undefined = keep_full_groups(undefined);
    if (!undefined) continue;
    LaneBits& loaded = loaded_[(next_row_ + d) % 32];
    loaded.lanes |= undefined;
    loaded.origin = {kind, 0, inst.index};
  }
}

template <class Shadow>
void RegisterCheck::store(const RegisterState& state, const Inst& inst, const Access& access,
                          const Shadow& shadow) {
  for (u32 d = 0; d < dword_count(access.bytes); ++d) {
    const u64 undefined = stored_lanes(state, inst, next_row_ + d).lanes;
    const u32 bytes = bytes_of_dword(access.bytes, d);
    for_lanes(access.mask, [&](u32 lane) {
      shadow.for_each_run(lane, 4 * d, bytes, [&](u8* run, u32 count) {
        const bool defined = !(undefined >> lane & 1);
        if (count == 4) return vgpu::store<u32>(run, defined * 0x01010101);
        std::memset(run, defined, count);
      });
    });
  }
}

template <class Shadow>
void RegisterCheck::transfer(const RegisterState& state, const Wave& wave, const Inst& inst,
                             const Operands& operands, const Access& access, Origin::Kind kind,
                             const Shadow& shadow) {
  if (!access.is_write) return load(inst, access, kind, shadow);
  if (!operands.atomic) return store(state, inst, access, shadow);
  if (operands.exchanges) {
    load(inst, access, kind, shadow);
    return store(state, inst, access, shadow);
  }
  u64 undefined = 0;
  for_lanes(access.mask, [&](u32 lane) {
    shadow.for_each_run(lane, 0, access.bytes, [&](u8* run, u32 count) {
      undefined |= u64{!any_written(run, count)} << lane;
      std::memset(run, 1, count);
    });
  });
  if (!undefined) return;
  const u32 lane = static_cast<u32>(std::countr_zero(undefined));
  u64 address = access.addresses[lane];
  if (kind == Origin::kLds) address -= host_address(wave.group->lds);
  report_memory(wave, inst, lane, address, "an atomic on memory that was never written");
}

// Checks data stored to global memory. Compilers store structures with padding, so only a lane
// whose data is entirely undefined is a finding.
void RegisterCheck::check_store(RegisterState& state, const Wave& wave, const Inst& inst,
                                const Operands& operands, const Access& access) {
  u64 bad = access.mask;
  LaneBits first;
  const u32 dwords = operands.typed ? 1 : dword_count(access.bytes);
  for (u32 d = 0; d < dwords && bad; ++d) {
    const LaneBits data = stored_lanes(state, inst, next_row_ + d);
    if (data.lanes) first = data;
    bad &= data.lanes;
  }
  if (!bad) return;
  const u32 lane = static_cast<u32>(std::countr_zero(bad));
  report(wave, inst, lane, "the data stored from " + vector_register(inst.data0), first.origin,
         &access.addresses[lane]);
}

void RegisterCheck::access(RegisterState& state, std::vector<u8>& lds, const Wave& wave,
                           const Inst& inst, const Operands& operands, const Access& access) {
  // The source side of LDS-DMA.
  const bool is_dma_source = operands.lds_dma && access.space != Space::kLds;
  if (is_dma_source || inst.format == Format::kSmem) {
    if (inst.format == Format::kSmem && !access.is_write) load_scalar(inst, access);
    return;
  }
  if (access.space == Space::kLds) {
    const LdsShadow shadow = {lds, access, host_address(wave.group->lds)};
    if (operands.lds_dma) {
      for_lanes(access.mask, [&](u32 lane) {
        shadow.for_each_run(lane, 0, access.bytes,
                            [](u8* written, u32 count) { std::memset(written, 1, count); });
      });
    } else {
      transfer(state, wave, inst, operands, access, Origin::kLds, shadow);
    }
  } else if (access.space == Space::kScratch) {
    const ScratchShadow shadow = {state.scratch, access, wave.scratch_bytes};
    transfer(state, wave, inst, operands, access, Origin::kScratch, shadow);
  } else {
    if (access.is_write) check_store(state, wave, inst, operands, access);
    const GlobalShadow shadow = {*this, access};
    if (!operands.typed) transfer(state, wave, inst, operands, access, Origin::kGlobal, shadow);
  }
  if (inst.format != Format::kFlat) next_row_ += dword_count(access.bytes);
}

u8* RegisterCheck::written(u64 address, u32 bytes) {
  if (!last_range_.contains(address, bytes)) {
    const MemoryRange* range = memory_.range_below(address);
    if (!range || !range->contains(address, bytes)) return nullptr;
    last_range_ = *range;
  }
  return last_range_.written ? last_range_.written + (address - last_range_.base) : nullptr;
}

void RegisterCheck::load_scalar(const Inst& inst, const Access& access) {
  for (u32 d = 0; d < dword_count(access.bytes); ++d) {
    const u8* bytes = written(access.addresses[0] + 4 * d, 4);
    if (!bytes || any_written(bytes, 4)) continue;
    loaded_[d % 32] = {~u64{0}, {Origin::kGlobal, 0, inst.index}};
  }
}

}  // namespace vgpu
