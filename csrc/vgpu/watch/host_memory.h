// Host memory that certainly belongs to no kernel.
//
// A kernel on the virtual GPU may receive any pointer of the process. The bounds are known for
// hipMalloc's blocks and for registered tensors, but not for a bare pointer into malloc's heap. The
// words between heap blocks, however, belong to the C library: a store there crashes the process
// later, far from the cause. The same holds for the stack, for data of libraries, and for the
// virtual GPU's own registers.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "vgpu/base/types.h"

namespace vgpu {

// Classification of unknown memory: `owner` describes the host's memory; if it is empty, [begin,
// end) may belong to a kernel.
struct HostLocation {
  std::string owner;
  u64 begin = 0, end = 0;
};

// A snapshot at first use; memory that a launch may access exists while the launch runs.
class HostMemory {
 public:
  // `pointers`: pointer arguments of the launch. Mappings they point into belong to the kernel.
  explicit HostMemory(std::vector<u64> pointers) : pointers_(std::move(pointers)) {}

  HostLocation locate(u64 address, u32 bytes, bool is_write) const;

 private:
  struct Mapping {
    u64 begin, end;
    bool readable, writable;
    std::string name;
  };
  struct Chunk {
    u64 begin;
    bool free;
  };
  // Allocated with mmap, because the heap must not change while it is walked.
  class ChunkList {
   public:
    ChunkList() = default;
    ChunkList(const ChunkList&) = delete;
    ChunkList& operator=(const ChunkList&) = delete;
    ~ChunkList();
    bool reserve(u64 max_chunks);
    void push(const Chunk& chunk) { data_[size_++] = chunk; }
    void clear() { size_ = 0; }
    bool empty() const { return !size_; }
    Chunk& back() { return data_[size_ - 1]; }
    const Chunk* begin() const { return data_; }
    const Chunk* end() const { return data_ + size_; }

   private:
    Chunk* data_ = nullptr;
    u64 size_ = 0, bytes_ = 0;
  };
  void read_mappings() const;
  void read_heap(u64 begin) const;
  HostLocation in_known_block(const Mapping& heap, u64 address, u32 bytes) const;
  HostLocation in_heap(u64 address, u32 bytes) const;
  bool contains_pointer(const Mapping& mapping) const;

  std::vector<u64> pointers_;
  mutable std::once_flag mappings_read_, heap_read_;
  mutable std::vector<Mapping> mappings_;  // sorted by address
  mutable ChunkList chunks_;  // of the main heap, and its end; empty if it is not glibc's
};

// Registers memory of the virtual GPU itself, until disown_memory().
void own_memory(const void* base, u64 size);
void disown_memory(const void* base);

}  // namespace vgpu
