#include "vgpu/watch/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "vgpu/exec/memory.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;

// A chunk of glibc's heap: a word that belongs to the block before it, its size with three flags,
// then what malloc has returned, up to and with the first word of the next chunk.
constexpr u64 kSizeField = 8, kChunkHead = 16;
constexpr u64 kPreviousUsed = 1, kMapped = 2, kFlags = 7;

u64 size_field(u64 chunk) { return load_at<u64>(chunk + kSizeField); }

// A block that malloc has mapped for itself begins a page, with nothing before and the flag in its
// size. (memalign moves the block on and leaves these words.)
bool is_mapped_chunk(u64 page, u64 end) {
  const u64 size = size_field(page) - kMapped;
  return !load_at<u64>(page) && size && size % kPage == 0 && size <= end - page;
}

bool is_library(const std::string& name) { return name.find(".so") != name.npos; }

// Calls visit(chunk, its size field) from chunk to chunk. Only a chain that ends where the heap
// does is glibc's, and whole: other threads may change it.
template <class Visit>
bool walk_heap(u64 begin, u64 end, Visit visit) {
  u64 chunk = (begin + kChunkHead - 1) / kChunkHead * kChunkHead;
  while (chunk + kChunkHead <= end) {
    const u64 field = size_field(chunk), size = field & ~kFlags;
    if (size < kChunkHead || size % kChunkHead || size > end - chunk) return false;
    visit(chunk, field);
    chunk += size;
  }
  return chunk == end && chunk > begin;
}

struct Own {
  std::mutex mutex;
  std::map<u64, u64> ranges;  // base, size
};
Own& own() {
  static Own* const instance = new Own;  // threads may outlive static destruction
  return *instance;
}

bool is_own(u64 address) {
  const std::lock_guard lock(own().mutex);
  const auto next = own().ranges.upper_bound(address);
  return next != own().ranges.begin() && address - std::prev(next)->first < std::prev(next)->second;
}

}  // namespace

void own_memory(const void* base, u64 size) {
  const std::lock_guard lock(own().mutex);
  own().ranges[host_address(base)] = size;
}

void disown_memory(const void* base) {
  const std::lock_guard lock(own().mutex);
  own().ranges.erase(host_address(base));
}

void HostMemory::read_mappings() const {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    char access[5] = {};
    int name = 0;
    const int fields =
        std::sscanf(line.c_str(), "%llx-%llx %4s %*s %*s %*s %n", &begin, &end, access, &name);
    if (fields < 3) continue;
    mappings_.push_back({begin, end, access[0] == 'r', access[1] == 'w',
                         name ? line.substr(static_cast<u32>(name)) : ""});
  }
}

HostMemory::ChunkList::~ChunkList() {
  if (data_) munmap(data_, bytes_);
}

// The host gives pages as they are written.
bool HostMemory::ChunkList::reserve(u64 most) {
  bytes_ = most * sizeof(Chunk);
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = memory == MAP_FAILED ? nullptr : static_cast<Chunk*>(memory);
  return data_;
}

void HostMemory::read_heap(u64 begin) const {
  const u64 end = host_address(sbrk(0));
  if (!chunks_.reserve((end - begin) / kChunkHead + 2)) return;
  const bool whole = walk_heap(begin, end, [&](u64 chunk, u64 field) {
    if (!chunks_.empty() && !(field & kPreviousUsed)) chunks_.back().free = true;
    chunks_.push({chunk, false});
  });
  if (!whole) return chunks_.clear();
  chunks_.back().free = true;  // the last is what blocks are taken from
  chunks_.push({end, true});
}

// The block that begins at a pointer that was given, so that most launches need no walk: what
// stands in front of the pointer, and behind the block, looks like malloc's.
HostPlace HostMemory::in_given_block(const Mapping& heap, u64 address, u32 bytes) const {
  for (const u64 pointer : given_) {
    // Any word of the arguments, zero too, whose chunk would begin below the heap.
    if (pointer % kChunkHead || pointer > address || pointer < heap.begin + kChunkHead ||
        pointer >= heap.end)
      continue;
    u64 chunk = pointer - kChunkHead;
    const u64 end = chunk + (size_field(chunk) & ~kFlags) + kSizeField;
    if (address + bytes > end) continue;
    u32 links = 0;
    for (; links < 8 && chunk + kChunkHead <= heap.end; ++links) {
      const u64 field = size_field(chunk), size = field & ~kFlags;
      if (size < 2 * kChunkHead || size % kChunkHead || size > heap.end - chunk) break;
      if (links == 1 && !(field & kPreviousUsed)) break;
      chunk += size;
    }
    if (links == 8) return {"", pointer, end};
  }
  return {};
}

HostPlace HostMemory::in_heap(u64 address, u32 bytes) const {
  const auto next = std::upper_bound(
      chunks_.begin(), chunks_.end(), address,
      [](u64 value, const Chunk& chunk) { return value < chunk.begin + kSizeField; });
  if (next == chunks_.begin() || next == chunks_.end()) return {};
  const auto at = std::prev(next);
  const u64 block = at->begin + kChunkHead, end = next->begin + kSizeField;
  const auto behind = [&](u64 base, u64 limit) -> HostPlace {
    const u64 past = address > limit ? address - limit : 0;
    return {"in what malloc keeps behind a block, " + std::to_string(past) +
            " bytes behind the end of the block of " + std::to_string(limit - base) + " bytes at " +
            hex(base)};
  };
  const bool in_size = address < block, follows = at != chunks_.begin() && !std::prev(at)->free;
  if (in_size && follows) return behind(std::prev(at)->begin + kChunkHead, at->begin + kSizeField);
  if (at->free) return {"in free memory of malloc's heap"};
  if (in_size || address + bytes > end) return behind(block, end);
  return {"", block, end};
}

bool HostMemory::was_given(const Mapping& mapping) const {
  return std::any_of(given_.begin(), given_.end(), [&](u64 pointer) {
    return pointer >= mapping.begin && pointer < mapping.end;
  });
}

HostPlace HostMemory::place(u64 address, u32 bytes, bool is_write) const {
  std::call_once(mappings_read_, [this] { read_mappings(); });
  if (is_own(address)) return {"in the virtual GPU's own memory"};
  const auto next =
      std::upper_bound(mappings_.begin(), mappings_.end(), address,
                       [](u64 value, const Mapping& mapping) { return value < mapping.begin; });
  if (next == mappings_.begin()) return {};
  const Mapping& mapping = *std::prev(next);
  if (address >= mapping.end || !mapping.readable) return {};
  if (mapping.name == "[heap]") {
    const HostPlace given = in_given_block(mapping, address, bytes);
    if (given.end) return given;
    std::call_once(heap_read_, [&] { read_heap(mapping.begin); });
    if (!chunks_.empty()) return in_heap(address, bytes);
  }
  const u64 page = address / kPage * kPage;
  if (mapping.name.empty()) {
    const u64 last = (address + bytes - 1) / kPage * kPage;
    const bool head = last < mapping.end && is_mapped_chunk(last, mapping.end);
    if (head && (last != page || address < page + kChunkHead)) {
      return {"in what malloc keeps in front of a block, at " + hex(last)};
    }
    return {"", head ? page + kChunkHead : page, page + kPage};
  }
  const bool foreign = mapping.name == "[stack]" || is_library(mapping.name);
  if (foreign && is_write && mapping.writable && !was_given(mapping)) {
    return {"in " +
            (is_library(mapping.name) ? "the data of " + mapping.name : "the host's stack")};
  }
  if (foreign && !is_write) return {};  // not remembered: a store may follow
  return {"", page, page + kPage};
}

}  // namespace vgpu
