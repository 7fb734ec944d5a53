// A memory handle is an anonymous file, so that several mappings of it are one memory. Both agents
// always have access. Shared virtual memory (hipMallocManaged) is ordinary memory of the process.
#include "vgpu/hsa/vmem.h"

#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "vgpu/hsa/hsa_internal.h"

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;

struct Mapping {
  u64 end;
  u64 handle;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<u64, u64> reserved;     // bytes by start
  std::map<u64, Mapping> mapped;   // by start
  std::map<u64, u32> handle_uses;  // by handle: mappings, and the handle itself
  std::map<u64, int> files;        // by handle
  u64 next_handle = 0x5000;
};

VirtualMemory& memory() {
  static auto* const instance = new VirtualMemory;  // exit handlers release handles
  return *instance;
}

// `memory().mutex` is locked.
void drop(u64 handle) {
  VirtualMemory& vm = memory();
  const auto uses = vm.handle_uses.find(handle);
  if (uses == vm.handle_uses.end() || --uses->second) return;
  close(vm.files[handle]);
  vm.files.erase(handle);
  vm.handle_uses.erase(uses);
}

// Without kNoRegister the range is empty until a handle is mapped; with it, the runtime above uses
// it as shared virtual memory.
Status reserve(void** out, u64 bytes, u64 address, u64 alignment, u64 flags) {
  constexpr u64 kNoRegister = 1;
  const int access = flags & kNoRegister ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (!out || !bytes || bytes % kPage || alignment & (alignment - 1)) {
    return fail(kInvalidArgument, "address reservation of " + std::to_string(bytes) +
                                      " bytes, expected whole pages of 4096");
  }
  const u64 slack = alignment > kPage ? alignment : 0;
  void* const mapping = mmap(reinterpret_cast<void*>(address), bytes + slack, access,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return kOutOfResources;
  const u64 whole = reinterpret_cast<u64>(mapping);
  const u64 start = slack ? (whole + alignment - 1) & ~(alignment - 1) : whole;
  if (start > whole) munmap(mapping, start - whole);
  const u64 excess = whole + bytes + slack - (start + bytes);
  if (excess) munmap(reinterpret_cast<void*>(start + bytes), excess);
  VirtualMemory& vm = memory();
  const std::lock_guard lock(vm.mutex);
  vm.reserved[start] = bytes;
  *out = reinterpret_cast<void*>(start);
  return kSuccess;
}

bool is_reserved(u64 start, u64 bytes) {
  VirtualMemory& vm = memory();
  const auto next = vm.reserved.upper_bound(start);
  if (next == vm.reserved.begin()) return false;
  const auto& [base, size] = *std::prev(next);
  return bytes <= size && start - base <= size - bytes;
}

}  // namespace

std::optional<MappedRange> find_mapped(u64 address) {
  VirtualMemory& vm = memory();
  const std::lock_guard lock(vm.mutex);
  const auto next = vm.mapped.upper_bound(address);
  if (next == vm.mapped.begin()) return std::nullopt;
  const auto& [begin, mapping] = *std::prev(next);
  if (address >= mapping.end) return std::nullopt;
  return MappedRange{begin, mapping.end};
}

}  // namespace vgpu

using namespace vgpu;

HSA_API Status hsa_amd_vmem_address_reserve_align(void** out, size_t bytes, u64 address,
                                                  u64 alignment, u64 flags) {
  return with_error_handling(__func__,
                             [&] { return reserve(out, bytes, address, alignment, flags); });
}

HSA_API Status hsa_amd_vmem_address_reserve(void** out, size_t bytes, u64 address, u64 flags) {
  return hsa_amd_vmem_address_reserve_align(out, bytes, address, 0, flags);
}

HSA_API Status hsa_amd_vmem_address_free(void* pointer, size_t bytes) {
  return with_error_handling(__func__, [&] {
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    const auto range = vm.reserved.find(reinterpret_cast<u64>(pointer));
    if (range == vm.reserved.end() || range->second != bytes) {
      return fail(kInvalidAllocation, "hsa_amd_vmem_address_free: not a reserved range");
    }
    munmap(pointer, bytes);
    vm.reserved.erase(range);
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_handle_create(HsaPool pool, size_t bytes, u32, u64,
                                          HsaVmemHandle* out) {
  return with_error_handling(__func__, [&] {
    if (!out || !bytes || bytes % kPage) return kInvalidArgument;
    if (pool.handle == kPoolLds) return kInvalidMemoryPool;
    const int file = memfd_create("rfops_vgpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes))) {
      if (file >= 0) close(file);
      return fail(kOutOfResources, "memory of " + std::to_string(bytes) + " bytes", kLogAlways);
    }
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    out->handle = vm.next_handle++;
    vm.files[out->handle] = file;
    vm.handle_uses[out->handle] = 1;
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_handle_release(HsaVmemHandle handle) {
  return with_error_handling(__func__, [&] {
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    if (!vm.files.count(handle.handle)) return kInvalidAllocation;
    drop(handle.handle);
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_map(void* pointer, size_t bytes, size_t offset, HsaVmemHandle handle,
                                u64) {
  return with_error_handling(__func__, [&] {
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    const u64 start = reinterpret_cast<u64>(pointer);
    const auto file = vm.files.find(handle.handle);
    if (file == vm.files.end() || !bytes || offset % kPage || !is_reserved(start, bytes)) {
      return fail(kInvalidArgument, "hsa_amd_vmem_map: an unknown handle, or not a reserved range");
    }
    void* const mapping = mmap(pointer, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                               file->second, static_cast<off_t>(offset));
    if (mapping == MAP_FAILED) return kOutOfResources;
    vm.mapped[start] = {start + bytes, handle.handle};
    ++vm.handle_uses[handle.handle];
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_unmap(void* pointer, size_t bytes) {
  return with_error_handling(__func__, [&] {
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    const auto mapping = vm.mapped.find(reinterpret_cast<u64>(pointer));
    if (mapping == vm.mapped.end() || mapping->second.end - mapping->first != bytes) {
      return fail(kInvalidAllocation, "hsa_amd_vmem_unmap: not a mapping");
    }
    mmap(pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop(mapping->second.handle);
    vm.mapped.erase(mapping);
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_set_access(void* pointer, size_t, const void*, size_t) {
  return with_error_handling(__func__, [&] {
    return find_mapped(reinterpret_cast<u64>(pointer)) ? kSuccess : kInvalidAllocation;
  });
}

HSA_API Status hsa_amd_vmem_get_access(void* pointer, u32* permissions, HsaAgent) {
  return with_error_handling(__func__, [&] {
    constexpr u32 kNone = 0, kReadWrite = 3;
    if (!permissions) return kInvalidArgument;
    *permissions = find_mapped(reinterpret_cast<u64>(pointer)) ? kReadWrite : kNone;
    return kSuccess;
  });
}

HSA_API Status hsa_amd_vmem_retain_alloc_handle(HsaVmemHandle* out, void* pointer) {
  return with_error_handling(__func__, [&] {
    VirtualMemory& vm = memory();
    const std::lock_guard lock(vm.mutex);
    const auto mapping = vm.mapped.find(reinterpret_cast<u64>(pointer));
    if (!out || mapping == vm.mapped.end()) return kInvalidAllocation;
    out->handle = mapping->second.handle;
    ++vm.handle_uses[out->handle];
    return kSuccess;
  });
}

HSA_API Status hsa_amd_svm_attributes_set(void*, size_t, const void*, size_t) { return kSuccess; }
