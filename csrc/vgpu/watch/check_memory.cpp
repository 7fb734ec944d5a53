#include "vgpu/watch/check_memory.h"

#include <algorithm>
#include <mutex>

#include "vgpu/base/device.h"
#include "vgpu/exec/memory.h"
#include "vgpu/watch/check_written.h"
#include "vgpu/watch/checker.h"

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kMaxReportedDistance = u64{1} << 30;  // larger distances are not reported
constexpr u64 kMaxTable = 16 << 10;                 // maximum size of a pointer table, in bytes
constexpr u64 kLowestPointer = 1 << 16, kHighestPointer = u64{1} << 47;

// Host memory registered with rfops_vgpu_register, one entry per call.
struct Registered {
  std::mutex mutex;
  std::vector<std::pair<u64, u64>> ranges;  // (base, size)
};
Registered& registered() {
  static Registered* const ranges = new Registered;  // callers may run during static destruction
  return *ranges;
}

// Returns the bytes that the program certainly uses. Compilers widen a scalar load to the next size
// if it cannot cross a cache line, so the load may fetch more.
u32 used_bytes(const Inst& inst, u32 bytes) {
  if (inst.format != Format::kSmem) return bytes;
  return bytes <= 4 ? 1 : bytes / 2 + 1;
}

}  // namespace

// ------------------------------------------------------------ a launch's memory

namespace {

// Returns the words of the arguments, some of which are pointers.
std::vector<u64> argument_words(const Launch& launch) {
  std::vector<u64> words;
  for (u32 offset = 0; offset + 8 <= launch.kernarg_bytes; offset += 8) {
    words.push_back(load<u64>(launch.kernarg + offset));
  }
  return words;
}

}  // namespace

KnownMemory::KnownMemory(const Launch& launch, const std::vector<MemoryRange>& extra_ranges)
    : ranges_(extra_ranges), host_(argument_words(launch)) {
  const CodeObject& object = *launch.kernel->object;
  const u64 image = host_address(object.image);
  ranges_.push_back({image, object.image_bytes, object.image_bytes, "code object"});
  if (launch.kernarg_bytes) {
    ranges_.push_back({host_address(launch.kernarg), launch.kernarg_bytes, launch.kernarg_bytes,
                       "argument buffer"});
  }
  for (const KernelArg& arg : launch.kernel->args) {
    if (arg.value_kind == "hidden_queue_ptr") {
      constexpr u64 kQueueBytes = 256;  // of amd_queue_t, of which the ABI reads the apertures
      add_hidden(launch, arg, kQueueBytes, "queue");
    } else if (arg.value_kind == "hidden_multigrid_sync_arg") {
      add_hidden(launch, arg, kGridBarrierBytes, "grid barrier");
    }
  }
  u32 index = 0;
  for (const KernelArg& arg : launch.kernel->args) {
    if (arg.value_kind == "global_buffer" && arg.offset + 8 <= launch.kernarg_bytes) {
      pointers_.push_back({load<u64>(launch.kernarg + arg.offset),
                           arg.name.empty() ? std::to_string(index) : arg.name});
    }
    ++index;
  }
  forget_freed_blocks();
  add_allocations();
  sort_ranges();
  complete_ = knows_arguments(launch);
}

// Memory that a hidden argument points to, if it does.
void KnownMemory::add_hidden(const Launch& launch, const KernelArg& arg, u64 bytes,
                             const char* name) {
  const u64 address = load<u64>(launch.kernarg + arg.offset);
  if (address != 0) ranges_.push_back({address, bytes, bytes, name});
}

std::string KnownMemory::arguments_of(const MemoryRange& range) const {
  std::string names;
  for (const Pointer& pointer : pointers_) {
    if (pointer.value < range.base || pointer.value >= range.end()) continue;
    names += (names.empty() ? " (argument " : ", ") + pointer.argument;
  }
  return names.empty() ? names : names + ")";
}

void KnownMemory::add_allocations() {
  Allocations::instance().for_each([&](const Allocation& block) {
    const bool own_block = block.kind != MemoryKind::kRegistered;
    ranges_.push_back({block.base, block.size, own_block ? block.mapped : block.size,
                       own_block ? "allocation" : "registered memory", written_bytes(block), true});
  });
  const std::lock_guard lock(registered().mutex);
  for (const auto& [base, size] : registered().ranges) {
    ranges_.push_back({base, size, size, "registered memory", nullptr, true});
  }
}

// Sorts by address and merges overlapping ranges (a tensor and a view of it).
void KnownMemory::sort_ranges() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.base < b.base; });
  std::vector<MemoryRange> merged;
  for (const MemoryRange& range : ranges_) {
    if (!merged.empty() && range.base < merged.back().end()) {
      MemoryRange& previous = merged.back();
      previous.size = std::max(previous.end(), range.end()) - previous.base;
      previous.mapped = std::max(previous.mapped, previous.size);
      previous.written = nullptr;
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

const MemoryRange* KnownMemory::range_below(u64 address) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](u64 value, const MemoryRange& range) { return value < range.base; });
  return next == ranges_.begin() ? nullptr : &*std::prev(next);
}

const MemoryRange* KnownMemory::range_above(u64 address) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](u64 value, const MemoryRange& range) { return value < range.base; });
  return next == ranges_.end() ? nullptr : &*next;
}

// Null, one-past-the-end and freed pointers are known, not pointers to unknown memory.
bool KnownMemory::knows_pointer(u64 pointer) const {
  if (!pointer) return true;
  const MemoryRange* range = range_below(pointer);
  if (range && pointer <= range->base + range->mapped) return true;
  return !is_mapped(reinterpret_cast<const void*>(pointer), 1) &&
         Allocations::instance().find_freed(pointer).has_value();
}

// A structure passed by value may hold pointers: words that are addresses of mapped memory.
bool KnownMemory::knows_words(const u8* bytes, u32 size) const {
  for (u32 offset = 0; offset + 8 <= size; offset += 8) {
    const u64 word = load<u64>(bytes + offset);
    if (word < kLowestPointer || word >= kHighestPointer || knows_pointer(word)) continue;
    if (is_mapped(reinterpret_cast<const void*>(word), 1)) return false;
  }
  return true;
}

bool KnownMemory::knows_arguments(const Launch& launch) const {
  if (!launch.kernel->has_metadata) return knows_words(launch.kernarg, launch.kernarg_bytes);
  for (const KernelArg& arg : launch.kernel->args) {
    if (arg.value_kind.starts_with("hidden_")) continue;
    const u8* value = launch.kernarg + arg.offset;
    const bool pointer = arg.value_kind == "global_buffer" && arg.size == 8;
    if (pointer ? !knows_pointer(load<u64>(value)) : !knows_words(value, arg.size)) return false;
  }
  return true;
}

// Collects words in registered blocks that point to unknown memory, because a block may be a table
// of pointers (the matrices of a grouped GEMM, the nodes of a list).
void KnownMemory::find_table_pointers() const {
  for (const MemoryRange& range : ranges_) {
    const u8* bytes = reinterpret_cast<const u8*>(range.base);
    if (!range.is_data || range.size > kMaxTable || range.base % 8) continue;
    if (!is_mapped(bytes, range.size)) continue;
    for (u64 offset = 0; offset + 8 <= range.size; offset += 8) {
      const u64 word = load<u64>(bytes + offset);
      if (word >= kLowestPointer && word < kHighestPointer) table_pointers_.push_back(word);
    }
  }
  std::sort(table_pointers_.begin(), table_pointers_.end());
}

// Returns whether the nearest item below the address is such a pointer, not the end of a known
// range.
bool KnownMemory::from_table(u64 address) const {
  std::call_once(tables_read_, [this] { find_table_pointers(); });
  const auto next = std::upper_bound(table_pointers_.begin(), table_pointers_.end(), address);
  if (next == table_pointers_.begin()) return false;
  const u64 pointer = *std::prev(next);
  const MemoryRange* low = range_below(address);
  return (!low || pointer > low->base + low->mapped) &&
         is_mapped(reinterpret_cast<const void*>(pointer), 1);
}

// -------------------------------------------------------------------------------- accesses

namespace {

// A wave disables its LDS-DMA with a base beyond the architecture's LDS; hardware then drops all of
// it. (M0 may wrap: an access that is in range after wrapping was not disabled.)
bool is_dma_disabled(const Wave& wave, const Access& access) {
  return !access.mask && wave.sgpr[kM0] >= arch_traits(wave.group->arch).lds_bytes;
}

}  // namespace

void MemoryCheck::lds(const Wave& wave, const Inst& inst, const Access& access, bool dma) {
  if (!access.out_of_bounds || (dma && is_dma_disabled(wave, access))) return;
  if (findings_.contains(inst.index, FindingKind::kOutOfBounds)) return;
  const u32 lane = static_cast<u32>(std::countr_zero(access.out_of_bounds));
  const u64 offset = access.addresses[lane] - host_address(wave.group->lds);
  Finding finding = Finding(wave, lane).with_address(offset);
  finding.detail = std::string(access.is_write ? "writes " : "reads ") +
                   std::to_string(access.bytes) + " bytes of LDS outside the workgroup's " +
                   std::to_string(wave.group->lds_bytes);
  findings_.add(inst.index, FindingKind::kOutOfBounds, std::move(finding));
}

void MemoryCheck::access(const Wave& wave, const Inst& inst, const Access& access) {
  if (access.space != Space::kGlobal || !access.mask) return;
  const u32 bytes = used_bytes(inst, access.bytes);
  u64 outside = 0;
  for_lanes(access.mask, [&](u32 lane) {
    outside |= u64{!last_range_.contains(access.addresses[lane], bytes)} << lane;
  });
  for (; outside; outside &= outside - 1) {
    const u32 lane = static_cast<u32>(std::countr_zero(outside));
    check_lane(wave, inst, inst.format == Format::kSmem ? kNoLane : lane, access.addresses[lane],
               bytes, access.is_write);
  }
}

void MemoryCheck::check_lane(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                             bool is_write) {
  if (last_range_.contains(address, bytes)) return;
  const MemoryRange* range = memory_.range_below(address);
  if (range && range->contains(address, bytes)) {
    last_range_ = *range;
    return;
  }
  const bool inside_block = range && address < range->base + range->mapped;
  if (!inside_block && (!memory_.complete() || memory_.from_table(address)) &&
      !freed_block(address, bytes)) {
    return check_unknown(wave, inst, lane, address, bytes, is_write);
  }
  const auto freed = inside_block ? std::nullopt : Allocations::instance().find_freed(address);
  std::string description;
  if (freed) {
    description = "in the allocation of " + std::to_string(freed->size) + " bytes at " +
                  hex(freed->base) + " that was freed";
    report(FindingKind::kUseAfterFree, wave, inst, lane, address, description, bytes, is_write);
  } else {
    description = describe_address(address, bytes);
    report(FindingKind::kOutOfBounds, wave, inst, lane, address, description, bytes, is_write);
  }
  const bool harms_host = is_write && (check_level() == CheckLevel::kFail ||
                                       !memory_.host().locate(address, bytes, true).owner.empty());
  if (harms_host) stop(wave, inst, lane, address, bytes, description);
}

// Checks an access to unknown memory: allowed, unless it provably belongs to the host.
void MemoryCheck::check_unknown(const Wave& wave, const Inst& inst, u32 lane, u64 address,
                                u32 bytes, bool is_write) {
  const HostLocation host = memory_.host().locate(address, bytes, is_write);
  if (host.owner.empty()) {
    if (host.end) last_range_ = {host.begin, host.end - host.begin};
    return;
  }
  report(FindingKind::kOutOfBounds, wave, inst, lane, address, host.owner, bytes, is_write);
  if (is_write) stop(wave, inst, lane, address, bytes, host.owner);
}

// Ends the launch before a store that would corrupt the host.
void MemoryCheck::stop(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                       const std::string& description) {
  fault(wave, inst,
        "lane " + std::to_string(lane) + " would write " + std::to_string(bytes) + " bytes at " +
            hex(address) + ", outside the kernel's memory: " + description +
            "; the checking mode has stopped it");
}

// Returns whether the address belongs to a freed block that has not been reused.
bool MemoryCheck::freed_block(u64 address, u32 bytes) const {
  return Allocations::instance().find_freed(address) &&
         !is_mapped(reinterpret_cast<void*>(address), bytes);
}

// Describes an address relative to the nearest range.
std::string MemoryCheck::describe_address(u64 address, u32 bytes) const {
  if (address < kLowestPointer) return "at a null pointer";
  const MemoryRange* low = memory_.range_below(address);
  const MemoryRange* high = memory_.range_above(address);
  const auto name = [this](const MemoryRange& range) {
    return "the " + std::string(range.kind) + " of " + std::to_string(range.size) + " bytes at " +
           hex(range.base) + memory_.arguments_of(range);
  };
  if (low && address < low->end()) {
    return std::to_string(address + bytes - low->end()) + " bytes beyond the end of " + name(*low);
  }
  const u64 above_distance = low ? address - low->end() : ~u64{0};
  const u64 below_distance = high ? high->base - address : ~u64{0};
  if (above_distance > kMaxReportedDistance && below_distance > kMaxReportedDistance)
    return "far from all known memory";
  if (low && above_distance <= below_distance)
    return std::to_string(above_distance) + " bytes after the end of " + name(*low);
  return std::to_string(below_distance) + " bytes before " + name(*high);
}

void MemoryCheck::report(FindingKind kind, const Wave& wave, const Inst& inst, u32 lane,
                         u64 address, const std::string& description, u32 bytes, bool is_write) {
  if (findings_.contains(inst.index, kind)) return;
  Finding finding = Finding(wave, lane).with_address(address);
  finding.detail = std::string(is_write ? "writes " : "reads ") + std::to_string(bytes) +
                   " bytes " + description;
  findings_.add(inst.index, kind, std::move(finding));
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Registers host memory that launches may access, for the checking mode. A range may be registered
// several times.
VGPU_EXPORT void rfops_vgpu_register(const void* pointer, std::size_t size) {
  if (!pointer || !size) return;
  const std::lock_guard lock(vgpu::registered().mutex);
  vgpu::registered().ranges.emplace_back(vgpu::host_address(pointer), size);
}

// Removes one registration at this address.
VGPU_EXPORT void rfops_vgpu_unregister(const void* pointer) {
  const std::lock_guard lock(vgpu::registered().mutex);
  auto& ranges = vgpu::registered().ranges;
  const auto it = std::find_if(ranges.begin(), ranges.end(), [pointer](const auto& range) {
    return range.first == vgpu::host_address(pointer);
  });
  if (it != ranges.end()) ranges.erase(it);
}
