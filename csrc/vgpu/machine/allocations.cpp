#include "vgpu/machine/allocations.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kHugePage = u64{2} << 20;
constexpr size_t kRememberedFrees = 4096;

// Returns the block that contains an address.
std::optional<Allocation> block_with(const std::map<u64, Allocation>& blocks, u64 address) {
  const auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) return std::nullopt;
  const Allocation& previous = std::prev(next)->second;
  if (address - previous.base >= previous.size) return std::nullopt;
  return previous;
}

}  // namespace

Allocations& Allocations::instance() {
  // Never destroyed: handles may be freed during static destruction.
  static Allocations* const registry = new Allocations;
  return *registry;
}

void* Allocations::allocate(u64 size, MemoryKind kind, u32 flags, u64 limit) {
  const u64 mapped = (size + kPage - 1) / kPage * kPage;
  if (mapped < size) return nullptr;
  std::unique_lock lock(mutex_);
  const bool counts = kind != MemoryKind::kHost;
  if (counts && (size > limit || device_bytes_ > limit - size)) return nullptr;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (mapped >= 2 * kHugePage)
    madvise(memory, mapped, MADV_HUGEPAGE);  // fewer faults and TLB misses
  const u64 base = reinterpret_cast<u64>(memory);
  live_[base] = {base, size, kind, flags, next_id_++, mapped};
  freed_.erase(base);
  if (counts) device_bytes_ += size;
  return memory;
}

bool Allocations::register_host(void* pointer, u64 size, u32 flags) {
  const u64 base = reinterpret_cast<u64>(pointer);
  std::unique_lock lock(mutex_);
  const auto next = live_.lower_bound(base);
  if (next != live_.end() && next->first - base < size) return false;
  if (next != live_.begin()) {
    const Allocation& previous = std::prev(next)->second;
    if (base - previous.base < previous.size) return false;
  }
  live_[base] = {base, size, MemoryKind::kRegistered, flags, next_id_++, 0};
  return true;
}

void Allocations::remember_freed(const Allocation& allocation) {
  if (freed_.size() >= kRememberedFrees) {
    const auto oldest =
        std::min_element(freed_.begin(), freed_.end(),
                         [](const auto& a, const auto& b) { return a.second.id < b.second.id; });
    freed_.erase(oldest);
  }
  freed_[allocation.base] = allocation;
}

Allocations::Release Allocations::release(void* pointer) {
  const u64 base = reinterpret_cast<u64>(pointer);
  Allocation released;
  {
    std::unique_lock lock(mutex_);
    const auto it = live_.find(base);
    if (it == live_.end()) {
      if (block_with(live_, base)) return Release::kInteriorPointer;
      return freed_.count(base) ? Release::kAlreadyFreed : Release::kUnknownPointer;
    }
    released = it->second;
    if (released.kind == MemoryKind::kRegistered) return Release::kRegistered;
    live_.erase(it);
    if (released.kind != MemoryKind::kHost) device_bytes_ -= released.size;
    remember_freed(released);
  }
  munmap(reinterpret_cast<void*>(released.base), released.mapped);
  return Release::kFreed;
}

bool Allocations::unregister_host(void* pointer) {
  std::unique_lock lock(mutex_);
  const auto it = live_.find(reinterpret_cast<u64>(pointer));
  if (it == live_.end() || it->second.kind != MemoryKind::kRegistered) return false;
  live_.erase(it);
  return true;
}

std::optional<Allocation> Allocations::find(u64 address) const {
  std::shared_lock lock(mutex_);
  return block_with(live_, address);
}

std::optional<Allocation> Allocations::find_freed(u64 address) const {
  std::shared_lock lock(mutex_);
  return block_with(freed_, address);
}

u64 Allocations::device_bytes() const {
  std::shared_lock lock(mutex_);
  return device_bytes_;
}

bool is_mapped(const void* pointer, u64 size) {
  u64 page = reinterpret_cast<u64>(pointer) / kPage * kPage;
  const u64 end = reinterpret_cast<u64>(pointer) + size;
  if (end < size) return false;
  unsigned char resident[1024];
  while (page < end) {
    const u64 bytes = std::min((end - page + kPage - 1) / kPage * kPage, sizeof(resident) * kPage);
    if (mincore(reinterpret_cast<void*>(page), bytes, resident)) return false;
    page += bytes;
  }
  return true;
}

}  // namespace vgpu
