// HIP's functions for memory: allocation, release, and available memory.
#include <cstdio>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/machine/allocations.h"

namespace vgpu {
namespace {

// Returns the memory that the host can still provide, in bytes (MemAvailable); unlimited if
// unknown.
u64 host_available() {
  u64 kib = 0;
  if (std::FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (!kib && std::fgets(line, sizeof(line), file)) {
      unsigned long long value;
      if (std::sscanf(line, "MemAvailable: %llu kB", &value) == 1) kib = value;
    }
    std::fclose(file);
  }
  return kib ? kib << 10 : ~u64{0};
}

hipError_t allocate(void** out, size_t size, MemoryKind kind, u32 flags) {
  if (!out) return fail(hipErrorInvalidValue, "allocation: null pointer");
  const DeviceInfo* device = device_or_fail();
  if (!device) return hipErrorInvalidValue;
  *out = nullptr;
  if (!size) return hipSuccess;
  *out = Allocations::instance().allocate(size, kind, flags, device->memory_bytes);
  if (*out) return hipSuccess;
  return fail(hipErrorOutOfMemory,
              "allocation of " + std::to_string(size) +
                  " bytes: " + std::to_string(Allocations::instance().device_bytes()) +
                  " are live, the device has " + std::to_string(device->memory_bytes) +
                  ", the host has " + std::to_string(host_available()) + " left");
}

// As in ROCm, every function that frees takes memory of every function that allocates.
hipError_t release(const char* function, void* pointer) {
  using Release = Allocations::Release;
  if (!pointer) return hipSuccess;
  char call[64];
  std::snprintf(call, sizeof(call), "%s(%p): ", function, pointer);
  const char* reason = "not memory of HIP";
  switch (Allocations::instance().release(pointer)) {
    case Release::kFreed:
      return hipSuccess;
    case Release::kAlreadyFreed:
      reason = "already freed (double free)";
      break;
    case Release::kInteriorPointer:
      reason = "points into a block, not at its start";
      break;
    case Release::kRegistered:
      reason = "memory of hipHostRegister: undo that with hipHostUnregister";
      break;
    case Release::kUnknownPointer:
      break;
  }
  return fail(hipErrorInvalidValue, std::string(call) + reason, kLogAlways);
}

hipMemPool_t default_pool() {
  static char pool;
  return reinterpret_cast<hipMemPool_t>(&pool);
}

// Runs an allocation or release, which captures forbid except in relaxed mode.
template <class Body>
hipError_t unless_captured(const char* function, Body body) {
  return with_error_handling(function, [&] {
    const hipError_t code = refuse_unsafe(function);
    return code == hipSuccess ? body() : code;
  });
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipMalloc(void** pointer, size_t size) {
  return unless_captured(__func__, [&] { return allocate(pointer, size, MemoryKind::kDevice, 0); });
}

VGPU_API hipError_t hipExtMallocWithFlags(void** pointer, size_t size, unsigned flags) {
  return unless_captured(__func__,
                         [&] { return allocate(pointer, size, MemoryKind::kDevice, flags); });
}

VGPU_API hipError_t hipMallocAsync(void** pointer, size_t size, hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    bool captured = false;
    hipError_t code = enter_stream(stream, captured);
    if (code == hipSuccess) code = allocate(pointer, size, MemoryKind::kDevice, 0);
    return code == hipSuccess && captured ? capture_malloc(pointer, size, stream) : code;
  });
}

VGPU_API hipError_t hipMallocManaged(void** pointer, size_t size, unsigned flags) {
  return unless_captured(__func__,
                         [&] { return allocate(pointer, size, MemoryKind::kManaged, flags); });
}

VGPU_API hipError_t hipMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return unless_captured(__func__, [&] {
    constexpr size_t kPitchAlign = 256;
    if (!pitch) return fail(hipErrorInvalidValue, "hipMallocPitch: pitch is null");
    if (width > (size_t{1} << 46) || height > (size_t{1} << 46)) {
      return fail(hipErrorOutOfMemory, "hipMallocPitch: size is out of range");
    }
    *pitch = (width + kPitchAlign - 1) / kPitchAlign * kPitchAlign;
    if (height && *pitch > (size_t{1} << 46) / height) {
      return fail(hipErrorOutOfMemory, "hipMallocPitch: size is out of range");
    }
    return allocate(pointer, *pitch * height, MemoryKind::kDevice, 0);
  });
}

VGPU_API hipError_t hipHostMalloc(void** pointer, size_t size, unsigned flags) {
  return unless_captured(__func__,
                         [&] { return allocate(pointer, size, MemoryKind::kHost, flags); });
}

VGPU_API hipError_t hipHostAlloc(void** pointer, size_t size, unsigned flags) {
  return hipHostMalloc(pointer, size, flags);
}

VGPU_API hipError_t hipMallocHost(void** pointer, size_t size) {
  return hipHostMalloc(pointer, size, 0);
}

VGPU_API hipError_t hipMemAllocHost(void** pointer, size_t size) {
  return hipHostMalloc(pointer, size, 0);
}

VGPU_API hipError_t hipFree(void* pointer) {
  return unless_captured(__func__, [&] { return release("hipFree", pointer); });
}

VGPU_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    bool captured = false;
    const hipError_t code = enter_stream(stream, captured);
    if (code != hipSuccess) return code;
    return captured ? capture_free(pointer, stream) : release("hipFreeAsync", pointer);
  });
}

VGPU_API hipError_t hipHostFree(void* pointer) {
  return unless_captured(__func__, [&] { return release("hipHostFree", pointer); });
}

VGPU_API hipError_t hipFreeHost(void* pointer) { return hipHostFree(pointer); }

VGPU_API hipError_t hipHostRegister(void* pointer, size_t size, unsigned flags) {
  return unless_captured(__func__, [&] {
    if (!pointer || !size)
      return fail(hipErrorInvalidValue, "hipHostRegister: null or empty range");
    if (Allocations::instance().register_host(pointer, size, flags)) return hipSuccess;
    return fail(hipErrorHostMemoryAlreadyRegistered, "hipHostRegister: range overlaps a live one");
  });
}

VGPU_API hipError_t hipHostUnregister(void* pointer) {
  return unless_captured(__func__, [&] {
    if (Allocations::instance().unregister_host(pointer)) return hipSuccess;
    return fail(hipErrorHostMemoryNotRegistered, "hipHostUnregister: not a registered range");
  });
}

VGPU_API hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) {
  return with_error_handling(__func__, [&] {
    if (!device || !host)
      return fail(hipErrorInvalidValue, "hipHostGetDevicePointer: null pointer");
    *device = host;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipHostGetFlags(unsigned* flags, void* pointer) {
  return with_error_handling(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!flags || !block || block->kind == MemoryKind::kDevice) {
      return fail(hipErrorInvalidValue, "hipHostGetFlags: not host memory of HIP");
    }
    *flags = block->flags;
    return hipSuccess;
  });
}

// The default pool keeps no memory: hipFreeAsync returns it to the host at once, so that there is
// nothing to trim. It is the only pool.
VGPU_API hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
  return with_error_handling(__func__, [&] {
    if (!pool) return fail(hipErrorInvalidValue, "hipDeviceGetDefaultMemPool: null pointer");
    const hipError_t code = check_ordinal(device);
    if (code == hipSuccess) *pool = default_pool();
    return code;
  });
}

VGPU_API hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t) {
  return with_error_handling(__func__, [&] {
    if (pool == default_pool()) return hipSuccess;
    return fail(hipErrorInvalidValue,
                "hipMemPoolTrimTo: not the pool of "
                "hipDeviceGetDefaultMemPool, which is the only one");
  });
}

// Hints about memory placement have no effect: there is only host memory.
VGPU_API hipError_t hipMemAdvise(const void*, size_t, int, int) { return hipSuccess; }

VGPU_API hipError_t hipMemPrefetchAsync(const void*, size_t, int, hipStream_t stream) {
  return with_error_handling(__func__, [&] { return check_stream(stream); });
}

// Free memory is what an allocation could get: that of the device, limited by the host's.
VGPU_API hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  return with_error_handling(__func__, [&] {
    const DeviceInfo* device = device_or_fail();
    if (!device) return hipErrorInvalidValue;
    const u64 used = Allocations::instance().device_bytes();
    const u64 num_free = device->memory_bytes > used ? device->memory_bytes - used : 0;
    if (free) *free = std::min(num_free, host_available());
    if (total) *total = device->memory_bytes;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipMemPtrGetInfo(void* pointer, size_t* size) {
  return with_error_handling(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!size || !block) return fail(hipErrorInvalidValue, "hipMemPtrGetInfo: unknown pointer");
    *size = block->size;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size,
                                          hipDeviceptr_t pointer) {
  return with_error_handling(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!block) return fail(hipErrorNotFound, "hipMemGetAddressRange: unknown pointer");
    if (base) *base = reinterpret_cast<void*>(block->base);
    if (size) *size = block->size;
    return hipSuccess;
  });
}
