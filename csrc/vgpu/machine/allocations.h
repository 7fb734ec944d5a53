// The registry of memory allocated by HIP calls: what hipFree may free, and what a pointer refers
// to.
#pragma once

#include <map>
#include <optional>
#include <shared_mutex>

#include "vgpu/base/types.h"

namespace vgpu {

enum class MemoryKind : u8 { kDevice, kHost, kManaged, kRegistered };

struct Allocation {
  u64 base = 0;
  u64 size = 0;
  MemoryKind kind = MemoryKind::kDevice;
  u32 flags = 0;
  u64 id = 0;      // never reused, so that a new block at an old address is distinguishable
  u64 mapped = 0;  // bytes to unmap; 0 if the caller owns the memory
};

class Allocations {
 public:
  static Allocations& instance();

  // Allocates page-aligned memory, zeroed by the kernel. Returns null if the host has no memory
  // left or the sum of device blocks would exceed `limit`.
  void* allocate(u64 size, MemoryKind kind, u32 flags, u64 limit);

  // Registers the caller's own memory (hipHostRegister). Returns false if it overlaps live memory.
  bool register_host(void* pointer, u64 size, u32 flags);

  enum class Release : u8 { kFreed, kUnknownPointer, kInteriorPointer, kRegistered, kAlreadyFreed };
  // Frees a block of any kind but kRegistered.
  Release release(void* pointer);
  bool unregister_host(void* pointer);

  // Returns the live block that contains an address.
  std::optional<Allocation> find(u64 address) const;

  // Returns the block that was freed last at this address, for messages.
  std::optional<Allocation> find_freed(u64 address) const;

  u64 device_bytes() const;

  // Visits all live blocks in ascending address order.
  template <class Visit>
  void for_each(Visit visit) const {
    std::shared_lock lock(mutex_);
    for (const auto& [base, allocation] : live_) visit(allocation);
  }

 private:
  void remember_freed(const Allocation& allocation);

  mutable std::shared_mutex mutex_;
  std::map<u64, Allocation> live_;   // by base
  std::map<u64, Allocation> freed_;  // by base; bounded in size
  u64 device_bytes_ = 0;
  u64 next_id_ = 1;
};

// Returns whether all pages of a range are mapped in this process: required to copy from an
// unregistered pointer.
bool is_mapped(const void* pointer, u64 size);

}  // namespace vgpu
