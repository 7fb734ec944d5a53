// Memory: allocation, copies, fills, and what a pointer is.
//
// Device memory is host memory, so every pointer of this process is a valid device pointer and a
// copy's direction only has to be one of HIP's. A copy is checked against live allocations where a
// pointer lies in one, else against the pages of the process, so that a wild pointer is an error.
#include <cstdio>

#include "allocations.h"
#include "check_written.h"
#include "hip_internal.h"

namespace vgpu {
namespace {

// What the host can still give, in bytes (MemAvailable); all of it where that cannot be read.
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

hipError_t allocate(void** to, size_t size, MemoryKind kind, u32 flags) {
  if (!to) return fail(hipErrorInvalidValue, "allocation: null pointer");
  const DeviceInfo* device = device_or_fail();
  if (!device) return hipErrorInvalidValue;
  *to = nullptr;
  if (!size) return hipSuccess;
  *to = Allocations::instance().allocate(size, kind, flags, device->memory_bytes);
  if (*to) return hipSuccess;
  return fail(hipErrorOutOfMemory,
              "allocation of " + std::to_string(size) +
                  " bytes: " + std::to_string(Allocations::instance().device_bytes()) +
                  " are live, the device has " + std::to_string(device->memory_bytes) +
                  ", the host has " + std::to_string(host_available()) + " left");
}

hipError_t release(void* pointer, bool host) {
  using Release = Allocations::Release;
  if (!pointer) return hipSuccess;
  char at[32];
  std::snprintf(at, sizeof(at), "%p", pointer);
  const std::string call = std::string(host ? "hipHostFree(" : "hipFree(") + at + "): ";
  switch (Allocations::instance().release(pointer, host)) {
    case Release::kFreed:
      return hipSuccess;
    case Release::kAlreadyFreed:
      return fail(hipErrorInvalidValue, call + "already freed (double free)", kLogAlways);
    case Release::kNotTheBase:
      return fail(hipErrorInvalidValue, call + "points into a block, not at its start", kLogAlways);
    case Release::kWrongKind:
      return fail(hipErrorInvalidValue,
                  call + (host ? "not host memory of hipHostMalloc: free it with hipFree"
                               : "host memory: free it with hipHostFree"),
                  kLogAlways);
    case Release::kUnknown:
      break;
  }
  return fail(hipErrorInvalidValue, call + "not a pointer of hipMalloc", kLogAlways);
}

hipError_t bad_range(const char* role, const void* pointer, u64 size, const std::string& why) {
  char at[32];
  std::snprintf(at, sizeof(at), "%p", pointer);
  return fail(hipErrorInvalidValue,
              std::string(role) + " " + at + " of " + std::to_string(size) + " bytes " + why,
              kLogAlways);
}

// Whether [pointer, pointer + size) may be touched: inside one live block, or mapped memory.
hipError_t check_range(const char* role, const void* pointer, u64 size) {
  if (!size) return hipSuccess;
  if (!pointer) return bad_range(role, pointer, size, "is a null pointer");
  const u64 address = reinterpret_cast<u64>(pointer);
  const auto block = Allocations::instance().find(address);
  if (block && block->kind != MemoryKind::kRegistered) {
    if (size <= block->size - (address - block->base)) return hipSuccess;
    return bad_range(role, pointer, size,
                     "runs beyond its block of " + std::to_string(block->size) + " bytes");
  }
  if (is_mapped(pointer, size)) return hipSuccess;
  const bool freed = Allocations::instance().find_freed(address).has_value();
  return bad_range(role, pointer, size, freed ? "was freed" : "is not mapped");
}

bool is_direction(hipMemcpyKind kind) {
  return (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
         kind == hipMemcpyDeviceToDeviceNoCU;
}

hipError_t copy(void* to, const void* from, u64 size, hipMemcpyKind kind = hipMemcpyDefault) {
  if (!is_direction(kind)) {
    return fail(hipErrorInvalidMemcpyDirection, "copy direction " + std::to_string(kind));
  }
  hipError_t code = check_range("copy destination", to, size);
  if (code == hipSuccess) code = check_range("copy source", from, size);
  if (code == hipSuccess && size) {
    std::memmove(to, from, size);
    note_host_write(to, size);
  }
  return code;
}

struct Plane {
  u64 pitch, width, height;
  u64 extent() const { return height ? pitch * (height - 1) + width : 0; }
};

hipError_t check_plane(const Plane& plane) {
  if (plane.width > plane.pitch) {
    return fail(hipErrorInvalidPitchValue, "pitch " + std::to_string(plane.pitch) +
                                               " is less than the width " +
                                               std::to_string(plane.width));
  }
  if (plane.height && plane.pitch > (u64{1} << 46) / plane.height) {
    return fail(hipErrorInvalidValue,
                "height " + std::to_string(plane.height) + " is out of range");
  }
  return hipSuccess;
}

hipError_t copy_2d(void* to, u64 to_pitch, const void* from, u64 from_pitch, u64 width, u64 height,
                   hipMemcpyKind kind) {
  if (!width || !height) return hipSuccess;
  const Plane target{to_pitch, width, height}, source{from_pitch, width, height};
  hipError_t code = check_plane(target);
  if (code == hipSuccess) code = check_plane(source);
  if (code == hipSuccess && !is_direction(kind)) {
    code = fail(hipErrorInvalidMemcpyDirection, "copy direction " + std::to_string(kind));
  }
  if (code == hipSuccess) code = check_range("copy destination", to, target.extent());
  if (code == hipSuccess) code = check_range("copy source", from, source.extent());
  if (code != hipSuccess) return code;
  note_host_write(to, target.extent());
  for (u64 row = 0; row < height; ++row) {
    std::memmove(static_cast<u8*>(to) + row * to_pitch,
                 static_cast<const u8*>(from) + row * from_pitch, width);
  }
  return hipSuccess;
}

// Fills `count` elements of T.
template <class T>
hipError_t fill(void* to, T value, u64 count) {
  if (count > ~u64{0} / sizeof(T))
    return fail(hipErrorInvalidValue, "memset: count is out of range");
  const hipError_t code = check_range("memset", to, count * sizeof(T));
  if (code != hipSuccess || !count) return code;
  note_host_write(to, count * sizeof(T));
  if constexpr (sizeof(T) == 1) {
    std::memset(to, value, count);
  } else {
    for (u64 i = 0; i < count; ++i) store<T>(static_cast<u8*>(to) + i * sizeof(T), value);
  }
  return hipSuccess;
}

hipError_t fill_2d(void* to, u64 pitch, u8 value, u64 width, u64 height) {
  if (!width || !height) return hipSuccess;
  const Plane plane{pitch, width, height};
  hipError_t code = check_plane(plane);
  if (code == hipSuccess) code = check_range("memset", to, plane.extent());
  if (code == hipSuccess) note_host_write(to, plane.extent());
  for (u64 row = 0; code == hipSuccess && row < height; ++row) {
    std::memset(static_cast<u8*>(to) + row * pitch, value, width);
  }
  return code;
}

// The asynchronous forms are the synchronous ones on a checked stream.
template <class Body>
hipError_t on_stream(const char* function, hipStream_t stream, Body body) {
  return guarded(function, [&] {
    const hipError_t code = check_stream(stream);
    return code == hipSuccess ? body() : code;
  });
}

}  // namespace

hipError_t copy_memory(void* to, const void* from, size_t size, hipMemcpyKind kind) {
  return copy(to, from, size, kind);
}

}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipMalloc(void** pointer, size_t size) {
  return guarded(__func__, [&] { return allocate(pointer, size, MemoryKind::kDevice, 0); });
}

VGPU_API hipError_t hipExtMallocWithFlags(void** pointer, size_t size, unsigned flags) {
  return guarded(__func__, [&] { return allocate(pointer, size, MemoryKind::kDevice, flags); });
}

VGPU_API hipError_t hipMallocAsync(void** pointer, size_t size, hipStream_t stream) {
  return on_stream(__func__, stream,
                   [&] { return allocate(pointer, size, MemoryKind::kDevice, 0); });
}

VGPU_API hipError_t hipMallocManaged(void** pointer, size_t size, unsigned flags) {
  return guarded(__func__, [&] { return allocate(pointer, size, MemoryKind::kManaged, flags); });
}

VGPU_API hipError_t hipMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return guarded(__func__, [&] {
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
  return guarded(__func__, [&] { return allocate(pointer, size, MemoryKind::kHost, flags); });
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
  return guarded(__func__, [&] { return release(pointer, false); });
}

VGPU_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return release(pointer, false); });
}

VGPU_API hipError_t hipHostFree(void* pointer) {
  return guarded(__func__, [&] { return release(pointer, true); });
}

VGPU_API hipError_t hipFreeHost(void* pointer) { return hipHostFree(pointer); }

VGPU_API hipError_t hipHostRegister(void* pointer, size_t size, unsigned flags) {
  return guarded(__func__, [&] {
    if (!pointer || !size)
      return fail(hipErrorInvalidValue, "hipHostRegister: null or empty range");
    if (Allocations::instance().register_host(pointer, size, flags)) return hipSuccess;
    return fail(hipErrorHostMemoryAlreadyRegistered, "hipHostRegister: range overlaps a live one");
  });
}

VGPU_API hipError_t hipHostUnregister(void* pointer) {
  return guarded(__func__, [&] {
    if (Allocations::instance().unregister_host(pointer)) return hipSuccess;
    return fail(hipErrorHostMemoryNotRegistered, "hipHostUnregister: not a registered range");
  });
}

VGPU_API hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) {
  return guarded(__func__, [&] {
    if (!device || !host)
      return fail(hipErrorInvalidValue, "hipHostGetDevicePointer: null pointer");
    *device = host;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipHostGetFlags(unsigned* flags, void* pointer) {
  return guarded(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!flags || !block || block->kind == MemoryKind::kDevice) {
      return fail(hipErrorInvalidValue, "hipHostGetFlags: not host memory of HIP");
    }
    *flags = block->flags;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind) {
  return guarded(__func__, [&] { return copy(to, from, size, kind); });
}

VGPU_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind,
                                   hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return copy(to, from, size, kind); });
}

VGPU_API hipError_t hipMemcpyWithStream(void* to, const void* from, size_t size, hipMemcpyKind kind,
                                        hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, kind, stream);
}

VGPU_API hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyHostToDevice);
}

VGPU_API hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyDeviceToHost);
}

VGPU_API hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyDeviceToDevice);
}

VGPU_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyHostToDevice, stream);
}

VGPU_API hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToHost, stream);
}

VGPU_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToDevice, stream);
}

VGPU_API hipError_t hipMemcpyPeer(void* to, int, const void* from, int, size_t size) {
  return hipMemcpy(to, from, size, hipMemcpyDeviceToDevice);
}

VGPU_API hipError_t hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t width, size_t height, hipMemcpyKind kind) {
  return guarded(__func__,
                 [&] { return copy_2d(to, to_pitch, from, from_pitch, width, height, kind); });
}

VGPU_API hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, hipMemcpyKind kind,
                                     hipStream_t stream) {
  return on_stream(__func__, stream,
                   [&] { return copy_2d(to, to_pitch, from, from_pitch, width, height, kind); });
}

VGPU_API hipError_t hipMemset(void* to, int value, size_t size) {
  return guarded(__func__, [&] { return fill<u8>(to, static_cast<u8>(value), size); });
}

VGPU_API hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return fill<u8>(to, static_cast<u8>(value), size); });
}

VGPU_API hipError_t hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count) {
  return guarded(__func__, [&] { return fill<u8>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count,
                                     hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return fill<u8>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count) {
  return guarded(__func__, [&] { return fill<u16>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                                      hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return fill<u16>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count) {
  return guarded(__func__, [&] { return fill<u32>(to, static_cast<u32>(value), count); });
}

VGPU_API hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count,
                                      hipStream_t stream) {
  return on_stream(__func__, stream, [&] { return fill<u32>(to, static_cast<u32>(value), count); });
}

VGPU_API hipError_t hipMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return guarded(__func__,
                 [&] { return fill_2d(to, pitch, static_cast<u8>(value), width, height); });
}

VGPU_API hipError_t hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                                     hipStream_t stream) {
  return on_stream(__func__, stream,
                   [&] { return fill_2d(to, pitch, static_cast<u8>(value), width, height); });
}

// Free is what an allocation could get: the device's memory, but never more than the host has.
VGPU_API hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  return guarded(__func__, [&] {
    const DeviceInfo* device = device_or_fail();
    if (!device) return hipErrorInvalidValue;
    const u64 used = Allocations::instance().device_bytes();
    const u64 rest = device->memory_bytes > used ? device->memory_bytes - used : 0;
    if (free) *free = std::min(rest, host_available());
    if (total) *total = device->memory_bytes;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipMemPtrGetInfo(void* pointer, size_t* size) {
  return guarded(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!size || !block) return fail(hipErrorInvalidValue, "hipMemPtrGetInfo: unknown pointer");
    *size = block->size;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size,
                                          hipDeviceptr_t pointer) {
  return guarded(__func__, [&] {
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    if (!block) return fail(hipErrorNotFound, "hipMemGetAddressRange: unknown pointer");
    if (base) *base = reinterpret_cast<void*>(block->base);
    if (size) *size = block->size;
    return hipSuccess;
  });
}
