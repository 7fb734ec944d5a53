#include "vgpu/watch/check_written.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <unordered_set>

#include "vgpu/watch/checker.h"

namespace vgpu {
namespace {

// The kernel gives pages of zeros as they are touched.
class ZeroedMemory {
 public:
  explicit ZeroedMemory(u64 size) : size_(size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<u8*>(memory);
  }
  ZeroedMemory(const ZeroedMemory&) = delete;
  ZeroedMemory& operator=(const ZeroedMemory&) = delete;
  ~ZeroedMemory() {
    if (data_) munmap(data_, size_);
  }
  u8* data() const { return data_; }

 private:
  u8* data_;
  u64 size_;
};

struct Blocks {
  std::mutex mutex;
  bool on = false;
  u64 first_id = 0;  // of the blocks that are followed
  std::map<u64, ZeroedMemory> by_id;
};
Blocks& blocks() {
  static Blocks* const instance = new Blocks;  // callers may outlive static destruction
  return *instance;
}

u8* find_or_make(Blocks& all, const Allocation& block) {
  if (!all.on || block.kind != MemoryKind::kDevice || block.id < all.first_id) return nullptr;
  return all.by_id.try_emplace(block.id, block.size).first->second.data();
}

}  // namespace

void follow_writes(bool on) {
  u64 last = 0;
  Allocations::instance().for_each([&](const Allocation& block) {
    if (block.id > last) last = block.id;
  });
  const std::lock_guard lock(blocks().mutex);
  if (on && !blocks().on) blocks().first_id = last + 1;
  if (!on) blocks().by_id.clear();
  blocks().on = on;
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
  const u64 from = address - block->base;
  if (written)
    std::memset(written + from, 1, size < block->size - from ? size : block->size - from);
}

}  // namespace vgpu
