// Out-of-bounds accesses and uses after free: global accesses against the memory that a launch may
// access, LDS accesses against the workgroup's allocation.
#pragma once

#include <mutex>
#include <vector>

#include "vgpu/machine/allocations.h"
#include "vgpu/machine/observer.h"
#include "vgpu/object/launch.h"
#include "vgpu/watch/check_findings.h"
#include "vgpu/watch/host_memory.h"

namespace vgpu {

struct MemoryRange {
  u64 base = 0, size = 0;
  u64 mapped = 0;         // mapped bytes; those beyond `size` are unused
  const char* kind = "";  // "allocation", "argument buffer", ...
  u8* written = nullptr;  // per byte 1 if it was written; null: not tracked
  bool is_data = false;   // registered by a caller; may contain pointers
  u64 end() const { return base + size; }
  bool contains(u64 address, u64 bytes) const {
    return address >= base && address - base < size && bytes <= size - (address - base);
  }
};

// The memory of a launch: live allocations, registered ranges, the code object's image, the
// argument buffer. Shared by all threads, immutable.
class KnownMemory {
 public:
  KnownMemory(const Launch& launch, const std::vector<MemoryRange>& extra_ranges);

  // Returns the last range that begins at or before `address`, null if none.
  const MemoryRange* range_below(u64 address) const;
  const MemoryRange* range_above(u64 address) const;  // the first range that begins after it

  // Returns whether every pointer argument of the launch lies in a range. Otherwise the kernel may
  // legitimately access unregistered memory, and only provable errors are reported.
  bool complete() const { return complete_; }

  // Returns the host's memory outside all ranges.
  const HostMemory& host() const { return host_; }

  // Returns whether an address outside all ranges is probably pointed to by a known block.
  bool from_table(u64 address) const;

  // Names the pointer arguments of the launch that point into a range: " (argument 2)", or by name
  // where the metadata has names; empty if none.
  std::string arguments_of(const MemoryRange& range) const;

 private:
  struct Pointer {
    u64 value;
    std::string argument;
  };
  void find_table_pointers() const;
  void add_hidden(const Launch& launch, const KernelArg& arg, u64 bytes, const char* name);
  void add_allocations();
  void sort_ranges();
  bool knows_pointer(u64 pointer) const;
  bool knows_arguments(const Launch& launch) const;
  bool knows_words(const u8* bytes, u32 size) const;

  std::vector<MemoryRange> ranges_;
  std::vector<Pointer> pointers_;
  bool complete_ = true;
  HostMemory host_;
  mutable std::once_flag tables_read_;
  mutable std::vector<u64> table_pointers_;  // sorted
};

// One per host thread.
class MemoryCheck {
 public:
  MemoryCheck(const KnownMemory& memory, Findings& findings)
      : memory_(memory), findings_(findings) {}

  void access(const Wave& wave, const Inst& inst, const Access& access);
  // `dma`: an LDS-DMA access, whose address comes from M0.
  void lds(const Wave& wave, const Inst& inst, const Access& access, bool dma);

 private:
  void check_lane(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                  bool is_write);
  void report(FindingKind kind, const Wave& wave, const Inst& inst, u32 lane, u64 address,
              const std::string& description, u32 bytes, bool is_write);
  bool freed_block(u64 address, u32 bytes) const;
  void check_unknown(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                     bool is_write);
  void stop(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
            const std::string& description);
  std::string describe_address(u64 address, u32 bytes) const;

  const KnownMemory& memory_;
  Findings& findings_;
  MemoryRange last_range_;  // range of the previous access: a cache
};

}  // namespace vgpu
