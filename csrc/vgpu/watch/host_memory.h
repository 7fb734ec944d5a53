// What of the host's memory is certainly no kernel's.
//
// Kernels on the virtual GPU may be given any pointer of the process, and where the memory behind
// it ends is known of hipMalloc's blocks and of the tensors that callers told of, not of a bare
// pointer into malloc's heap. But what lies between the blocks of the heap belongs to the C library
// alone: a store there ends the process, sooner or later and far away. The same goes for the stack,
// for the data of libraries, and for the registers of the virtual GPU itself.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "vgpu/base/types.h"

namespace vgpu {

// What some bytes of unknown memory are: somebody's, in words; else maybe a kernel's, and the bytes
// around them with them.
struct HostPlace {
  std::string owner;
  u64 begin = 0, end = 0;
};

// As it was when it was first asked; what a launch may rightly touch is there while it runs.
class HostMemory {
 public:
  // `given`: pointers that the launch has. Mappings they point into are a kernel's.
  explicit HostMemory(std::vector<u64> given) : given_(std::move(given)) {}

  HostPlace place(u64 address, u32 bytes, bool is_write) const;

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
  // Not from the heap, which must not change while it is read.
  class ChunkList {
   public:
    ChunkList() = default;
    ChunkList(const ChunkList&) = delete;
    ChunkList& operator=(const ChunkList&) = delete;
    ~ChunkList();
    bool reserve(u64 most);
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
  HostPlace in_given_block(const Mapping& heap, u64 address, u32 bytes) const;
  HostPlace in_heap(u64 address, u32 bytes) const;
  bool was_given(const Mapping& mapping) const;

  std::vector<u64> given_;
  mutable std::once_flag mappings_read_, heap_read_;
  mutable std::vector<Mapping> mappings_;  // by address
  mutable ChunkList chunks_;  // of the main heap, and its end; empty: it is not glibc's
};

// Memory of the virtual GPU itself, from its allocation until it is freed.
void own_memory(const void* base, u64 size);
void disown_memory(const void* base);

}  // namespace vgpu
