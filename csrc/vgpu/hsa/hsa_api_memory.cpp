// Memory pools, what a pointer refers to, and copies. All memory is the host's: pools differ in the
// agent that owns them.
#include <cstdlib>
#include <list>
#include <thread>
#include <vector>

#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/hsa/vmem.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/run/run.h"
#include "vgpu/watch/check_written.h"

namespace vgpu {
namespace {

constexpr u64 kGranule = 4096, kRecommendedGranule = u64{2} << 20;
constexpr u64 kHostBytes = u64{64} << 30;  // as the host's pools report it

bool is_gpu_pool(HsaPool pool) { return pool.handle == kPoolDevice || pool.handle == kPoolLds; }
bool is_pool(HsaPool pool) { return pool.handle >= kPoolFine && pool.handle <= kPoolLds; }

u32 pool_flags(HsaPool pool) {
  constexpr u32 kKernarg = 1, kFine = 2, kCoarse = 4;
  switch (pool.handle) {
    case kPoolKernarg:
      return kKernarg | kFine;
    case kPoolFine:
      return kFine;
    case kPoolLds:
      return 0;
    default:
      return kCoarse;
  }
}

u64 pool_bytes(HsaPool pool) {
  if (pool.handle == kPoolLds) return device().traits().lds_bytes;
  return is_gpu_pool(pool) ? device().memory_bytes : kHostBytes;
}

// hsa_amd_pointer_info_t; later versions append members.
struct PointerInfo {
  u32 size;
  u32 type;
  void *agent_base, *host_base;
  u64 bytes;
  void* user_data;
  HsaAgent owner;
  u32 global_flags;
  bool is_registered;
};
enum PointerType : u32 {
  kPointerUnknown = 0,
  kPointerHsa = 1,
  kPointerLocked = 2,
  kPointerVmem = 6
};

PointerInfo describe(const void* pointer) {
  PointerInfo info{};
  info.type = kPointerUnknown;
  const u64 address = reinterpret_cast<u64>(pointer);
  if (const auto block = Allocations::instance().find(address)) {
    const bool is_locked = block->kind == MemoryKind::kRegistered;
    info.type = is_locked ? kPointerLocked : kPointerHsa;
    info.agent_base = info.host_base = reinterpret_cast<void*>(block->base);
    info.bytes = block->size;
    info.owner = block->kind == MemoryKind::kDevice ? kGpuAgent : kCpuAgent;
    info.global_flags = block->flags;
  } else if (const auto range = find_mapped(address)) {
    info.type = kPointerVmem;
    info.agent_base = info.host_base = reinterpret_cast<void*>(range->begin);
    info.bytes = range->end - range->begin;
    info.owner = kGpuAgent;
    info.global_flags = pool_flags({kPoolDevice});
  }
  return info;
}

// -------------------------------------------------------------------------------- copies

struct Volume {
  void* base;
  u64 pitch, slice;
};
struct Extent {
  u32 x, y, z;
};

struct Copy {
  Volume dst, src;
  Extent range;  // x in bytes
  u64 row_bytes;
  std::vector<HsaSignal> dependencies;
  HsaSignal completion;

  bool is_ready() const {
    return std::all_of(dependencies.begin(), dependencies.end(),
                       [](HsaSignal s) { return signal_of(s)->value == 0; });
  }
  u64 extent() const {
    if (!range.y || !range.z) return 0;
    return (range.z - 1) * dst.slice + (range.y - 1) * dst.pitch + row_bytes;
  }
  void run() const {
    for (u64 z = 0; z < range.z; ++z) {
      for (u64 y = 0; y < range.y; ++y) {
        u8* const to = static_cast<u8*>(dst.base) + z * dst.slice + y * dst.pitch;
        std::memmove(to, static_cast<u8*>(src.base) + z * src.slice + y * src.pitch, row_bytes);
        note_host_write(to, row_bytes);
      }
    }
  }
};

// A thread that makes the copies whose dependencies are met, in the order of their calls.
class CopyEngine {
 public:
  static CopyEngine& instance() {
    static auto* const engine = new CopyEngine;
    return *engine;
  }
  void add(Copy copy) {
    observe_write(copy.dst.base, copy.extent());
    {
      const std::lock_guard lock(mutex_);
      pending_.push_back(std::move(copy));
      if (!is_started_) std::thread([this] { work(); }).detach();
      is_started_ = true;
    }
    SignalBell::instance().ring();
  }

 private:
  bool take(std::list<Copy>& taken) {
    const std::lock_guard lock(mutex_);
    for (auto it = pending_.begin(); it != pending_.end(); ++it) {
      if (!it->is_ready()) continue;
      taken.splice(taken.end(), pending_, it);
      return true;
    }
    return false;
  }
  void work() {
    while (true) {
      std::list<Copy> taken;
      SignalBell::instance().wait([&] { return take(taken); });
      const u64 start = timestamp();
      taken.front().run();
      complete(taken.front().completion, start, timestamp());
    }
  }

  std::mutex mutex_;
  std::list<Copy> pending_;
  bool is_started_ = false;
};

Status check_copy(const void* dst, const void* src, u64 bytes) {
  if (!dst || !src) return fail(kInvalidArgument, "copy: null pointer", kLogAlways);
  if (is_mapped(dst, bytes) && is_mapped(src, bytes)) return kSuccess;
  return fail(kInvalidArgument, "copy of " + std::to_string(bytes) + " bytes: not all are mapped",
              kLogAlways);
}

Status copy(void* dst, const void* src, u64 bytes, u32 count, const HsaSignal* dependencies,
            HsaSignal completion) {
  const Status status = check_copy(dst, src, bytes);
  if (status != kSuccess) return status;
  CopyEngine::instance().add({{dst, 0, 0},
                              {const_cast<void*>(src), 0, 0},
                              {0, 1, 1},
                              bytes,
                              {dependencies, dependencies + count},
                              completion});
  return kSuccess;
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

// -------------------------------------------------------------------------------- pools

HSA_API Status hsa_amd_agent_iterate_memory_pools(HsaAgent agent, Status (*visit)(HsaPool, void*),
                                                  void* data) {
  if (!visit) return kInvalidArgument;
  const bool is_gpu = agent == kGpuAgent;
  for (u64 pool = kPoolFine; pool <= kPoolLds; ++pool) {
    if (is_gpu_pool({pool}) != is_gpu) continue;
    if (const Status status = visit({pool}, data); status != kSuccess) return status;
  }
  return kSuccess;
}

HSA_API Status hsa_amd_memory_pool_get_info(HsaPool pool, u32 attribute, void* out) {
  if (!out) return kInvalidArgument;
  if (!is_pool(pool)) return kInvalidMemoryPool;
  const bool is_lds = pool.handle == kPoolLds;
  switch (attribute) {
    case 0:  // SEGMENT: global, group
      store<u32>(out, is_lds ? 3 : 0);
      return kSuccess;
    case 1:  // GLOBAL_FLAGS
      store<u32>(out, pool_flags(pool));
      return kSuccess;
    case 2:   // SIZE
    case 16:  // ALLOC_MAX_SIZE
      store<u64>(out, pool_bytes(pool));
      return kSuccess;
    case 5:  // RUNTIME_ALLOC_ALLOWED
      store<bool>(out, !is_lds);
      return kSuccess;
    case 6:  // RUNTIME_ALLOC_GRANULE
    case 7:  // RUNTIME_ALLOC_ALIGNMENT
      store<u64>(out, is_lds ? 0 : kGranule);
      return kSuccess;
    case 18:  // RUNTIME_ALLOC_REC_GRANULE
      store<u64>(out, is_lds ? 0 : kRecommendedGranule);
      return kSuccess;
    case 15:  // ACCESSIBLE_BY_ALL
      store<bool>(out, !is_gpu_pool(pool));
      return kSuccess;
    case 17:  // LOCATION: CPU, GPU
      store<u32>(out, is_gpu_pool(pool));
      return kSuccess;
    default:
      return fail(kInvalidArgument, "hsa_amd_memory_pool_get_info: attribute " +
                                        std::to_string(attribute) + " is not known");
  }
}

HSA_API Status hsa_amd_agent_memory_pool_get_info(HsaAgent agent, HsaPool pool, u32 attribute,
                                                  void* out) {
  constexpr u32 kAllowed = 1, kDisallowed = 2, kPcie = 2;
  struct Link {
    u32 min_latency, max_latency, min_bandwidth, max_bandwidth;
    bool atomic_32, atomic_64, coherent;
    u32 type, numa_distance;
  };
  if (!out) return kInvalidArgument;
  if (!is_pool(pool)) return kInvalidMemoryPool;
  const bool is_remote = (agent == kGpuAgent) != is_gpu_pool(pool);
  switch (attribute) {
    case 0:  // ACCESS
      store<u32>(out, is_remote && is_gpu_pool(pool) ? kDisallowed : kAllowed);
      return kSuccess;
    case 1:  // NUM_LINK_HOPS
      store<u32>(out, is_remote);
      return kSuccess;
    case 2:  // LINK_INFO, for each hop
      if (is_remote) store<Link>(out, {0, 0, 0, 0, true, true, true, kPcie, 20});
      return kSuccess;
    default:
      return fail(kInvalidArgument, "hsa_amd_agent_memory_pool_get_info: attribute " +
                                        std::to_string(attribute) + " is not known");
  }
}

HSA_API Status hsa_amd_memory_pool_allocate(HsaPool pool, size_t size, u32, void** out) {
  return with_error_handling(__func__, [&] {
    if (!out || !size) return kInvalidArgument;
    if (!is_pool(pool) || pool.handle == kPoolLds) return kInvalidMemoryPool;
    const MemoryKind kind = is_gpu_pool(pool) ? MemoryKind::kDevice : MemoryKind::kHost;
    *out = Allocations::instance().allocate(size, kind, pool_flags(pool), device().memory_bytes);
    if (*out) return kSuccess;
    return fail(kOutOfResources,
                "allocation of " + std::to_string(size) + " bytes: the device has " +
                    std::to_string(device().memory_bytes) + ", of which " +
                    std::to_string(Allocations::instance().device_bytes()) + " are in use");
  });
}

HSA_API Status hsa_amd_memory_pool_free(void* pointer) {
  return with_error_handling(__func__, [&] {
    using Release = Allocations::Release;
    const Release result = Allocations::instance().release(pointer);
    if (!pointer || result == Release::kFreed) return kSuccess;
    return fail(kInvalidAllocation,
                std::string("hsa_amd_memory_pool_free: ") +
                    (result == Release::kAlreadyFreed ? "already freed (double free)"
                                                      : "not the start of a block of a pool"),
                kLogAlways);
  });
}

HSA_API Status hsa_amd_agents_allow_access(u32, const HsaAgent*, const u32*, const void*) {
  return kSuccess;
}

// Locked memory stays where it is. A range that overlaps a live one needs no second entry.
HSA_API Status hsa_amd_memory_lock_to_pool(void* pointer, size_t size, HsaAgent*, int, HsaPool, u32,
                                           void** agent_pointer) {
  return with_error_handling(__func__, [&] {
    if (!pointer || !size || !agent_pointer) return kInvalidArgument;
    Allocations::instance().register_host(pointer, size, pool_flags({kPoolFine}));
    *agent_pointer = pointer;
    return kSuccess;
  });
}

HSA_API Status hsa_amd_memory_unlock(void* pointer) {
  return with_error_handling(__func__, [&] {
    Allocations::instance().unregister_host(pointer);
    return kSuccess;
  });
}

HSA_API Status hsa_memory_register(void*, size_t) { return kSuccess; }
HSA_API Status hsa_memory_deregister(void*, size_t) { return kSuccess; }

HSA_API Status hsa_amd_pointer_info(const void* pointer, PointerInfo* out,
                                    void* (*allocate)(size_t), u32* count, HsaAgent** accessible) {
  return with_error_handling(__func__, [&] {
    if (!out || out->size < offsetof(PointerInfo, user_data)) return kInvalidArgument;
    const u32 size = out->size;
    PointerInfo info = describe(pointer);
    info.size = std::min<u32>(size, sizeof(info));
    std::memcpy(out, &info, info.size);
    if (!allocate || !count || !accessible || info.type == kPointerUnknown) return kSuccess;
    auto* const agents = static_cast<HsaAgent*>(allocate(2 * sizeof(HsaAgent)));
    if (!agents) return kOutOfResources;
    agents[0] = kCpuAgent;
    agents[1] = kGpuAgent;
    *count = 2;
    *accessible = agents;
    return kSuccess;
  });
}

// -------------------------------------------------------------------------------- copies

HSA_API Status hsa_memory_copy(void* dst, const void* src, size_t size) {
  return with_error_handling(__func__, [&] {
    if (!size) return kSuccess;
    const Status status = check_copy(dst, src, size);
    if (status != kSuccess) return status;
    std::memmove(dst, src, size);
    note_host_write(dst, size);
    observe_write(dst, size);
    return kSuccess;
  });
}

HSA_API Status hsa_amd_memory_async_copy(void* dst, HsaAgent, const void* src, HsaAgent,
                                         size_t size, u32 count, const HsaSignal* dependencies,
                                         HsaSignal completion) {
  return with_error_handling(__func__,
                             [&] { return copy(dst, src, size, count, dependencies, completion); });
}

HSA_API Status hsa_amd_memory_async_copy_on_engine(void* dst, HsaAgent, const void* src, HsaAgent,
                                                   size_t size, u32 count,
                                                   const HsaSignal* dependencies,
                                                   HsaSignal completion, u32, bool) {
  return with_error_handling(__func__,
                             [&] { return copy(dst, src, size, count, dependencies, completion); });
}

HSA_API Status hsa_amd_memory_async_copy_rect(const Volume* dst, const Extent* dst_at,
                                              const Volume* src, const Extent* src_at,
                                              const Extent* range, HsaAgent, u32, u32 count,
                                              const HsaSignal* dependencies, HsaSignal completion) {
  return with_error_handling(__func__, [&] {
    if (!dst || !dst_at || !src || !src_at || !range) return kInvalidArgument;
    const auto start = [](const Volume& volume, const Extent& at) {
      u8* const base = static_cast<u8*>(volume.base);
      return Volume{base + at.z * volume.slice + at.y * volume.pitch + at.x, volume.pitch,
                    volume.slice};
    };
    CopyEngine::instance().add({start(*dst, *dst_at),
                                start(*src, *src_at),
                                *range,
                                range->x,
                                {dependencies, dependencies + count},
                                completion});
    return kSuccess;
  });
}

// Two engines; neither is preferred.
HSA_API Status hsa_amd_memory_copy_engine_status(HsaAgent, HsaAgent, u32* mask) {
  if (!mask) return kInvalidArgument;
  *mask = 3;
  return kSuccess;
}
HSA_API Status hsa_amd_memory_get_preferred_copy_engine(HsaAgent, HsaAgent, u32* mask) {
  if (!mask) return kInvalidArgument;
  *mask = 0;
  return kSuccess;
}
HSA_API Status hsa_amd_profiling_async_copy_enable(bool) { return kSuccess; }
