#include "vgpu/watch/check_written.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <unordered_set>

#include "vgpu/watch/checker.h"

namespace vgpu {
namespace {

// Zero pages, allocated on first touch.
class ZeroPages {
 public:
  explicit ZeroPages(u64 size) : size_(size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<u8*>(memory);
  }
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;
  ~ZeroPages() {
    if (data_) munmap(data_, size_);
  }
  u8* data() const { return data_; }

 private:
  u8* data_;
  u64 size_;
};

struct Blocks {
  std::mutex mutex;
  bool enabled = false;
  u64 first_id = 0;  // first id of the tracked blocks
  std::map<u64, ZeroPages> by_id;
};
Blocks& blocks() {
  static Blocks* const instance = new Blocks;  // callers may run during static destruction
  return *instance;
}

u8* find_or_make(Blocks& blocks, const Allocation& block) {
  if (!blocks.enabled || block.kind != MemoryKind::kDevice || block.id < blocks.first_id)
    return nullptr;
  return blocks.by_id.try_emplace(block.id, block.size).first->second.data();
}

}  // namespace

void track_writes(bool enabled) {
  u64 last_id = 0;
  Allocations::instance().for_each([&](const Allocation& block) {
    if (block.id > last_id) last_id = block.id;
  });
  const std::lock_guard lock(blocks().mutex);
  if (enabled && !blocks().enabled) blocks().first_id = last_id + 1;
  if (!enabled) blocks().by_id.clear();
  blocks().enabled = enabled;
}

u8* written_bytes(const Allocation& block) {
  const std::lock_guard lock(blocks().mutex);
  return find_or_make(blocks(), block);
}

void forget_freed_blocks() {
  std::unordered_set<u64> live;
  Allocations::instance().for_each([&](const Allocation& block) { live.insert(block.id); });
  const std::lock_guard lock(blocks().mutex);
  std::erase_if(blocks().by_id, [&](const auto& entry) { return !live.count(entry.first); });
}

void note_host_write(const void* pointer, u64 size) {
  if (check_level() == CheckLevel::kOff) return;
  const u64 address = reinterpret_cast<u64>(pointer);
  const auto block = Allocations::instance().find(address);
  if (!block) return;
  u8* written = written_bytes(*block);
  const u64 offset = address - block->base;
  if (written)
    std::memset(written + offset, 1, size < block->size - offset ? size : block->size - offset);
}

}  // namespace vgpu
