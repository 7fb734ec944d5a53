#include "vgpu/machine/allocations.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kHugePage = u64{2} << 20;
constexpr size_t kRememberedFrees = 4096;

}  // namespace

Allocations& Allocations::instance() {
  static Allocations* const registry =
      new Allocations;  // never destroyed: freed handles may outlive
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
  auto after = live_.lower_bound(base);
  if (after != live_.end() && after->first - base < size) return false;
  if (after != live_.begin()) {
    const Allocation& before = std::prev(after)->second;
    if (base - before.base < before.size) return false;
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

Allocations::Release Allocations::release(void* pointer, bool host) {
  const u64 base = reinterpret_cast<u64>(pointer);
  Allocation gone;
  {
    std::unique_lock lock(mutex_);
    const auto found = live_.find(base);
    if (found == live_.end()) {
      const auto next = live_.upper_bound(base);
      if (next != live_.begin()) {
        const Allocation& before = std::prev(next)->second;
        if (base - before.base < before.size) return Release::kNotTheBase;
      }
      return freed_.count(base) ? Release::kAlreadyFreed : Release::kUnknown;
    }
    gone = found->second;
    const bool is_host = gone.kind == MemoryKind::kHost;
    if (gone.kind == MemoryKind::kRegistered || is_host != host) return Release::kWrongKind;
    live_.erase(found);
    if (!is_host) device_bytes_ -= gone.size;
    remember_freed(gone);
  }
  munmap(reinterpret_cast<void*>(gone.base), gone.mapped);
  return Release::kFreed;
}

bool Allocations::unregister_host(void* pointer) {
  std::unique_lock lock(mutex_);
  const auto found = live_.find(reinterpret_cast<u64>(pointer));
  if (found == live_.end() || found->second.kind != MemoryKind::kRegistered) return false;
  live_.erase(found);
  return true;
}

std::optional<Allocation> Allocations::find(u64 address) const {
  std::shared_lock lock(mutex_);
  const auto next = live_.upper_bound(address);
  if (next == live_.begin()) return std::nullopt;
  const Allocation& before = std::prev(next)->second;
  if (address - before.base >= before.size) return std::nullopt;
  return before;
}

std::optional<Allocation> Allocations::find_freed(u64 address) const {
  std::shared_lock lock(mutex_);
  const auto next = freed_.upper_bound(address);
  if (next == freed_.begin()) return std::nullopt;
  const Allocation& before = std::prev(next)->second;
  if (address - before.base >= before.size) return std::nullopt;
  return before;
}

u64 Allocations::device_bytes() const {
  std::shared_lock lock(mutex_);
  return device_bytes_;
}

bool is_mapped(const void* pointer, u64 size) {
  u64 from = reinterpret_cast<u64>(pointer) / kPage * kPage;
  const u64 last = reinterpret_cast<u64>(pointer) + size;
  if (last < size) return false;
  unsigned char resident[1024];
  while (from < last) {
    const u64 bytes = std::min((last - from + kPage - 1) / kPage * kPage, sizeof(resident) * kPage);
    if (mincore(reinterpret_cast<void*>(from), bytes, resident)) return false;
    from += bytes;
  }
  return true;
}

}  // namespace vgpu
