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

// A chunk of glibc's heap: a word that belongs to the preceding block, the chunk's size with three
// flags, then the block that malloc returned, up to and including the first word of the next chunk.
constexpr u64 kSizeField = 8, kChunkHead = 16;
constexpr u64 kPreviousUsed = 1, kMapped = 2, kFlags = 7;

u64 size_field(u64 chunk) { return load_at<u64>(chunk + kSizeField); }

// A block that malloc has mapped separately begins at a page boundary, with a zero word and a size
// with the mapped flag. (memalign moves the block and leaves these words.)
bool is_mapped_chunk(u64 page, u64 end) {
  const u64 size = size_field(page) - kMapped;
  return !load_at<u64>(page) && size && size % kPage == 0 && size <= end - page;
}

bool is_library(const std::string& name) { return name.find(".so") != name.npos; }

// Calls visit(chunk, its size field) for each chunk. The heap is glibc's and consistent only if the
// chain ends exactly at the heap's end: other threads may modify it.
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

struct OwnRanges {
  std::mutex mutex;
  std::map<u64, u64> ranges;  // base, size
};
OwnRanges& own_ranges() {
  static OwnRanges* const instance = new OwnRanges;  // threads may run during static destruction
  return *instance;
}

bool is_own(u64 address) {
  const std::lock_guard lock(own_ranges().mutex);
  const auto next = own_ranges().ranges.upper_bound(address);
  return next != own_ranges().ranges.begin() &&
         address - std::prev(next)->first < std::prev(next)->second;
}

}  // namespace

void own_memory(const void* base, u64 size) {
  const std::lock_guard lock(own_ranges().mutex);
  own_ranges().ranges[host_address(base)] = size;
}

void disown_memory(const void* base) {
  const std::lock_guard lock(own_ranges().mutex);
  own_ranges().ranges.erase(host_address(base));
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

// The host allocates pages on first write.
bool HostMemory::ChunkList::reserve(u64 max_chunks) {
  bytes_ = max_chunks * sizeof(Chunk);
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = memory == MAP_FAILED ? nullptr : static_cast<Chunk*>(memory);
  return data_;
}

void HostMemory::read_heap(u64 begin) const {
  const u64 end = host_address(sbrk(0));
  if (!chunks_.reserve((end - begin) / kChunkHead + 2)) return;
  const bool is_complete = walk_heap(begin, end, [&](u64 chunk, u64 field) {
    if (!chunks_.empty() && !(field & kPreviousUsed)) chunks_.back().free = true;
    chunks_.push({chunk, false});
  });
  if (!is_complete) return chunks_.clear();
  chunks_.back().free = true;  // the last chunk is the free space that blocks are cut from
  chunks_.push({end, true});
}

// Finds a block that begins at a pointer argument, so that most launches need no heap walk: the
// words before the pointer and after the block must look like malloc's.
HostLocation HostMemory::in_known_block(const Mapping& heap, u64 address, u32 bytes) const {
  for (const u64 pointer : pointers_) {
    // Any argument word may be examined, also 0, for which the chunk would begin below the heap.
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

HostLocation HostMemory::in_heap(u64 address, u32 bytes) const {
  const auto next = std::upper_bound(
      chunks_.begin(), chunks_.end(), address,
      [](u64 value, const Chunk& chunk) { return value < chunk.begin + kSizeField; });
  if (next == chunks_.begin() || next == chunks_.end()) return {};
  const auto chunk = std::prev(next);
  const u64 block = chunk->begin + kChunkHead, end = next->begin + kSizeField;
  const auto past_block = [&](u64 base, u64 limit) -> HostLocation {
    const u64 past = address > limit ? address - limit : 0;
    return {"in malloc's data after a block, " + std::to_string(past) +
            " bytes after the end of the block of " + std::to_string(limit - base) + " bytes at " +
            hex(base)};
  };
  const bool in_chunk_header = address < block,
             previous_in_use = chunk != chunks_.begin() && !std::prev(chunk)->free;
  if (in_chunk_header && previous_in_use)
    return past_block(std::prev(chunk)->begin + kChunkHead, chunk->begin + kSizeField);
  if (chunk->free) return {"in free memory of malloc's heap"};
  if (in_chunk_header || address + bytes > end) return past_block(block, end);
  return {"", block, end};
}

bool HostMemory::contains_pointer(const Mapping& mapping) const {
  return std::any_of(pointers_.begin(), pointers_.end(), [&](u64 pointer) {
    return pointer >= mapping.begin && pointer < mapping.end;
  });
}

HostLocation HostMemory::locate(u64 address, u32 bytes, bool is_write) const {
  std::call_once(mappings_read_, [this] { read_mappings(); });
  if (is_own(address)) return {"in the virtual GPU's own memory"};
  const auto next =
      std::upper_bound(mappings_.begin(), mappings_.end(), address,
                       [](u64 value, const Mapping& mapping) { return value < mapping.begin; });
  if (next == mappings_.begin()) return {};
  const Mapping& mapping = *std::prev(next);
  if (address >= mapping.end || !mapping.readable) return {};
  if (mapping.name == "[heap]") {
    const HostLocation known_block = in_known_block(mapping, address, bytes);
    if (known_block.end) return known_block;
    std::call_once(heap_read_, [&] { read_heap(mapping.begin); });
    if (!chunks_.empty()) return in_heap(address, bytes);
  }
  const u64 page = address / kPage * kPage;
  if (mapping.name.empty()) {
    const u64 last_page = (address + bytes - 1) / kPage * kPage;
    const bool has_chunk_head = last_page < mapping.end && is_mapped_chunk(last_page, mapping.end);
    if (has_chunk_head && (last_page != page || address < page + kChunkHead)) {
      return {"in malloc's data before a block, at " + hex(last_page)};
    }
    return {"", has_chunk_head ? page + kChunkHead : page, page + kPage};
  }
  const bool is_foreign = mapping.name == "[stack]" || is_library(mapping.name);
  if (is_foreign && is_write && mapping.writable && !contains_pointer(mapping)) {
    return {"in " +
            (is_library(mapping.name) ? "the data of " + mapping.name : "the host's stack")};
  }
  if (is_foreign && !is_write) return {};  // not cached, because a store may follow
  return {"", page, page + kPage};
}

}  // namespace vgpu
