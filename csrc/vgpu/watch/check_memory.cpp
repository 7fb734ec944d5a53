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
constexpr u64 kNear = u64{1} << 30;   // a distance that says something
constexpr u64 kMostTable = 16 << 10;  // bytes of a table of pointers
constexpr u64 kLowestPointer = 1 << 16, kHighestPointer = u64{1} << 47;

// Host memory that callers told us of with rfops_vgpu_register, one entry a call.
struct Registered {
  std::mutex mutex;
  std::vector<std::pair<u64, u64>> ranges;  // base, size
};
Registered& registered() {
  static Registered* const ranges = new Registered;  // callers may outlive static destruction
  return *ranges;
}

// Scalar loads may fetch more than the program uses: compilers widen a load to the next size where
// that cannot leave the cache line. These bytes of each size are used for certain.
u32 used_bytes(const Inst& inst, u32 bytes) {
  if (inst.format != Format::kSmem) return bytes;
  return bytes <= 4 ? 1 : bytes / 2 + 1;
}

}  // namespace

// ------------------------------------------------------------ a launch's memory

namespace {

// The words of the arguments: some of them are pointers.
std::vector<u64> given_pointers(const Launch& launch) {
  std::vector<u64> words;
  for (u32 at = 0; at + 8 <= launch.kernarg_bytes; at += 8) {
    words.push_back(load<u64>(launch.kernarg + at));
  }
  return words;
}

}  // namespace

KnownMemory::KnownMemory(const Launch& launch, const std::vector<MemoryRange>& more)
    : ranges_(more), host_(given_pointers(launch)) {
  const CodeObject& object = *launch.kernel->object;
  const u64 image = host_address(object.image);
  ranges_.push_back({image, object.image_bytes, object.image_bytes, "code object"});
  if (launch.kernarg_bytes) {
    ranges_.push_back({host_address(launch.kernarg), launch.kernarg_bytes, launch.kernarg_bytes,
                       "argument buffer"});
  }
  for (const KernelArg& arg : launch.kernel->args) {
    if (arg.value_kind != "hidden_queue_ptr") continue;
    constexpr u64 kQueueBytes = 256;  // amd_queue_t, of which the ABI reads the apertures
    ranges_.push_back({load<u64>(launch.kernarg + arg.offset), kQueueBytes, kQueueBytes, "queue"});
  }
  forget_freed_blocks();
  add_allocations();
  sort_ranges();
  complete_ = knows_arguments(launch);
}

void KnownMemory::add_allocations() {
  Allocations::instance().for_each([&](const Allocation& block) {
    const bool ours = block.kind != MemoryKind::kRegistered;
    ranges_.push_back({block.base, block.size, ours ? block.mapped : block.size,
                       ours ? "allocation" : "registered memory", written_bytes(block), true});
  });
  const std::lock_guard lock(registered().mutex);
  for (const auto& [base, size] : registered().ranges) {
    ranges_.push_back({base, size, size, "registered memory", nullptr, true});
  }
}

// By address; what overlaps (a tensor and a view of it) becomes one range.
void KnownMemory::sort_ranges() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.base < b.base; });
  std::vector<MemoryRange> merged;
  for (const MemoryRange& range : ranges_) {
    if (!merged.empty() && range.base < merged.back().end()) {
      MemoryRange& to = merged.back();
      to.size = std::max(to.end(), range.end()) - to.base;
      to.mapped = std::max(to.mapped, to.size);
      to.written = nullptr;
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

const MemoryRange* KnownMemory::before(u64 address) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](u64 value, const MemoryRange& range) { return value < range.base; });
  return next == ranges_.begin() ? nullptr : &*std::prev(next);
}

const MemoryRange* KnownMemory::after(u64 address) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](u64 value, const MemoryRange& range) { return value < range.base; });
  return next == ranges_.end() ? nullptr : &*next;
}

// Null, the end of an array, and a pointer to freed memory are what they are: not unknown memory.
bool KnownMemory::knows_pointer(u64 pointer) const {
  if (!pointer) return true;
  const MemoryRange* range = before(pointer);
  if (range && pointer <= range->base + range->mapped) return true;
  return !is_mapped(reinterpret_cast<const void*>(pointer), 1) &&
         Allocations::instance().find_freed(pointer).has_value();
}

// A structure passed by value may hold pointers: words that are addresses of mapped memory.
bool KnownMemory::knows_words(const u8* bytes, u32 size) const {
  for (u32 at = 0; at + 8 <= size; at += 8) {
    const u64 word = load<u64>(bytes + at);
    if (word < kLowestPointer || word >= kHighestPointer || knows_pointer(word)) continue;
    if (is_mapped(reinterpret_cast<const void*>(word), 1)) return false;
  }
  return true;
}

bool KnownMemory::knows_arguments(const Launch& launch) const {
  if (!launch.kernel->has_metadata) return knows_words(launch.kernarg, launch.kernarg_bytes);
  for (const KernelArg& arg : launch.kernel->args) {
    if (arg.value_kind.starts_with("hidden_")) continue;
    const u8* at = launch.kernarg + arg.offset;
    const bool pointer = arg.value_kind == "global_buffer" && arg.size == 8;
    if (pointer ? !knows_pointer(load<u64>(at)) : !knows_words(at, arg.size)) return false;
  }
  return true;
}

// Words in the callers' small blocks that point to memory nobody told of: blocks may be tables of
// pointers (to the matrices of a group, the cells of a list).
void KnownMemory::find_table_pointers() const {
  for (const MemoryRange& range : ranges_) {
    const u8* bytes = reinterpret_cast<const u8*>(range.base);
    if (!range.is_data || range.size > kMostTable || range.base % 8) continue;
    if (!is_mapped(bytes, range.size)) continue;
    for (u64 at = 0; at + 8 <= range.size; at += 8) {
      const u64 word = load<u64>(bytes + at);
      if (word >= kLowestPointer && word < kHighestPointer) table_pointers_.push_back(word);
    }
  }
  std::sort(table_pointers_.begin(), table_pointers_.end());
}

// Whether what lies next below the address is such a pointer, and not the end of known memory.
bool KnownMemory::from_table(u64 address) const {
  std::call_once(tables_read_, [this] { find_table_pointers(); });
  const auto next = std::upper_bound(table_pointers_.begin(), table_pointers_.end(), address);
  if (next == table_pointers_.begin()) return false;
  const u64 pointer = *std::prev(next);
  const MemoryRange* low = before(address);
  return (!low || pointer > low->base + low->mapped) &&
         is_mapped(reinterpret_cast<const void*>(pointer), 1);
}

// -------------------------------------------------------------------------------- accesses

namespace {

// A base that no LDS of the architecture reaches is how a wave's LDS-DMA is switched off: hardware
// drops all of it. (M0 may wrap: what lands all the same was not switched off.)
bool switched_off(const Wave& wave, const Access& access) {
  return !access.mask && wave.sgpr[kM0] >= traits_of(wave.group->arch).lds_bytes;
}

}  // namespace

void MemoryCheck::lds(const Wave& wave, const Inst& inst, const Access& access, bool dma) {
  if (!access.dropped || (dma && switched_off(wave, access))) return;
  if (findings_.known(inst.index, FindingKind::kOutOfBounds)) return;
  const u32 lane = static_cast<u32>(std::countr_zero(access.dropped));
  const u64 offset = access.at[lane] - host_address(wave.group->lds);
  Finding finding = Finding(wave, lane).at(offset);
  finding.detail = std::string(access.is_write ? "writes " : "reads ") +
                   std::to_string(access.bytes) + " bytes of LDS outside the workgroup's " +
                   std::to_string(wave.group->lds_bytes);
  findings_.add(inst.index, FindingKind::kOutOfBounds, std::move(finding));
}

void MemoryCheck::access(const Wave& wave, const Inst& inst, const Access& access) {
  if (access.space != Space::kGlobal || !access.mask) return;
  const u32 bytes = used_bytes(inst, access.bytes);
  u64 outside = 0;
  for_lanes(access.mask,
            [&](u32 lane) { outside |= u64{!last_.holds(access.at[lane], bytes)} << lane; });
  for (; outside; outside &= outside - 1) {
    const u32 lane = static_cast<u32>(std::countr_zero(outside));
    check_lane(wave, inst, inst.format == Format::kSmem ? kNoLane : lane, access.at[lane], bytes,
               access.is_write);
  }
}

void MemoryCheck::check_lane(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                             bool is_write) {
  if (last_.holds(address, bytes)) return;
  const MemoryRange* range = memory_.before(address);
  if (range && range->holds(address, bytes)) {
    last_ = *range;
    return;
  }
  const bool inside_block = range && address < range->base + range->mapped;
  if (!inside_block && (!memory_.complete() || memory_.from_table(address)) &&
      !freed_block(address, bytes)) {
    return check_unknown(wave, inst, lane, address, bytes, is_write);
  }
  const auto freed = inside_block ? std::nullopt : Allocations::instance().find_freed(address);
  std::string what;
  if (freed) {
    what = "in the allocation of " + std::to_string(freed->size) + " bytes at " + hex(freed->base) +
           " that was freed";
    report(FindingKind::kUseAfterFree, wave, inst, lane, address, what, bytes, is_write);
  } else {
    what = place(address, bytes);
    report(FindingKind::kOutOfBounds, wave, inst, lane, address, what, bytes, is_write);
  }
  const bool harms = is_write && (check_level() == CheckLevel::kFail ||
                                  !memory_.host().place(address, bytes, true).owner.empty());
  if (harms) stop(wave, inst, lane, address, bytes, what);
}

// Memory that nobody told of: the kernel's or not, unless it is certainly somebody else's.
void MemoryCheck::check_unknown(const Wave& wave, const Inst& inst, u32 lane, u64 address,
                                u32 bytes, bool is_write) {
  const HostPlace found = memory_.host().place(address, bytes, is_write);
  if (found.owner.empty()) {
    if (found.end) last_ = {found.begin, found.end - found.begin};
    return;
  }
  report(FindingKind::kOutOfBounds, wave, inst, lane, address, found.owner, bytes, is_write);
  if (is_write) stop(wave, inst, lane, address, bytes, found.owner);
}

// Ends the launch before a store that would harm the host.
void MemoryCheck::stop(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                       const std::string& what) {
  fault(wave, inst,
        "lane " + std::to_string(lane) + " would write " + std::to_string(bytes) + " bytes at " +
            hex(address) + ", outside the kernel's memory: " + what +
            "; the checking mode has stopped it");
}

// Whether an address of unknown memory is a block's that was freed, and nobody else's since.
bool MemoryCheck::freed_block(u64 address, u32 bytes) const {
  return Allocations::instance().find_freed(address) &&
         !is_mapped(reinterpret_cast<void*>(address), bytes);
}

// Where an address lies relative to the nearest range.
std::string MemoryCheck::place(u64 address, u32 bytes) const {
  if (address < kLowestPointer) return "at a null pointer";
  const MemoryRange* low = memory_.before(address);
  const MemoryRange* high = memory_.after(address);
  const auto name = [](const MemoryRange& range) {
    return "the " + std::string(range.what) + " of " + std::to_string(range.size) + " bytes at " +
           hex(range.base);
  };
  if (low && address < low->end()) {
    return std::to_string(address + bytes - low->end()) + " bytes beyond the end of " + name(*low);
  }
  const u64 past = low ? address - low->end() : ~u64{0};
  const u64 ahead = high ? high->base - address : ~u64{0};
  if (past > kNear && ahead > kNear) return "far from all known memory";
  if (low && past <= ahead) return std::to_string(past) + " bytes behind the end of " + name(*low);
  return std::to_string(ahead) + " bytes before " + name(*high);
}

void MemoryCheck::report(FindingKind kind, const Wave& wave, const Inst& inst, u32 lane,
                         u64 address, const std::string& what, u32 bytes, bool is_write) {
  if (findings_.known(inst.index, kind)) return;
  Finding finding = Finding(wave, lane).at(address);
  finding.detail =
      std::string(is_write ? "writes " : "reads ") + std::to_string(bytes) + " bytes " + what;
  findings_.add(inst.index, kind, std::move(finding));
}

}  // namespace vgpu

#define VGPU_EXPORT extern "C" __attribute__((visibility("default")))

// Tells the checking mode of host memory that launches may touch. The same range may be registered
// several times, by several owners.
VGPU_EXPORT void rfops_vgpu_register(const void* pointer, std::size_t size) {
  if (!pointer || !size) return;
  const std::lock_guard lock(vgpu::registered().mutex);
  vgpu::registered().ranges.emplace_back(vgpu::host_address(pointer), size);
}

// Takes back one registration at this address.
VGPU_EXPORT void rfops_vgpu_unregister(const void* pointer) {
  const std::lock_guard lock(vgpu::registered().mutex);
  auto& ranges = vgpu::registered().ranges;
  const auto found = std::find_if(ranges.begin(), ranges.end(), [pointer](const auto& range) {
    return range.first == vgpu::host_address(pointer);
  });
  if (found != ranges.end()) ranges.erase(found);
}
