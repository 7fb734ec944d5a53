// Out-of-bounds accesses and uses after free: global accesses against the memory that a launch may
// touch, LDS accesses against the workgroup's allocation.
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
  u64 mapped = 0;         // bytes that lie there; those behind `size` belong to nobody
  const char* what = "";  // "allocation", "argument buffer", ...
  u8* written = nullptr;  // a byte for each, 1 where it was written; null: not followed
  bool is_data = false;   // of a caller, who may keep pointers there
  u64 end() const { return base + size; }
  bool holds(u64 address, u64 bytes) const {
    return address >= base && address - base < size && bytes <= size - (address - base);
  }
};

// The memory of a launch: live allocations, what callers registered, the code object's image, the
// argument buffer. One for all threads, unchanging.
class KnownMemory {
 public:
  KnownMemory(const Launch& launch, const std::vector<MemoryRange>& more);

  // The last range that begins at or before `address`; null where there is none.
  const MemoryRange* before(u64 address) const;
  const MemoryRange* after(u64 address) const;  // the first that begins behind it

  // Whether every pointer that the launch was given lies in a range. Else the kernel may rightly
  // touch memory that nobody told us of, and only what is provably wrong counts.
  bool complete() const { return complete_; }

  // The host's memory outside all ranges.
  const HostMemory& host() const { return host_; }

  // Whether an address outside all ranges is likely memory to which a known block has a pointer.
  bool from_table(u64 address) const;

 private:
  void find_table_pointers() const;
  void add_allocations();
  void sort_ranges();
  bool knows_pointer(u64 pointer) const;
  bool knows_arguments(const Launch& launch) const;
  bool knows_words(const u8* bytes, u32 size) const;

  std::vector<MemoryRange> ranges_;
  bool complete_ = true;
  HostMemory host_;
  mutable std::once_flag tables_read_;
  mutable std::vector<u64> table_pointers_;  // sorted
};

// Of one thread.
class MemoryCheck {
 public:
  MemoryCheck(const KnownMemory& memory, Findings& findings)
      : memory_(memory), findings_(findings) {}

  void access(const Wave& wave, const Inst& inst, const Access& access);
  // `dma`: by LDS-DMA, whose place M0 gives.
  void lds(const Wave& wave, const Inst& inst, const Access& access, bool dma);

 private:
  void check_lane(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                  bool is_write);
  void report(FindingKind kind, const Wave& wave, const Inst& inst, u32 lane, u64 address,
              const std::string& what, u32 bytes, bool is_write);
  bool freed_block(u64 address, u32 bytes) const;
  void check_unknown(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
                     bool is_write);
  void stop(const Wave& wave, const Inst& inst, u32 lane, u64 address, u32 bytes,
            const std::string& what);
  std::string place(u64 address, u32 bytes) const;

  const KnownMemory& memory_;
  Findings& findings_;
  MemoryRange last_;  // the range of the previous access: most accesses stay there
};

}  // namespace vgpu
