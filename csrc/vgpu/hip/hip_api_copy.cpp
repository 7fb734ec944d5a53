// Copies and fills.
//
// Device memory is host memory, so every pointer of this process is a valid device pointer and a
// copy's direction only has to be one of HIP's. A copy is checked against live allocations where a
// pointer lies in one, else against the pages of the process, so that a wild pointer is an error.
#include <cstdio>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/watch/check_written.h"

namespace vgpu {
namespace {

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

template <class T>
hipError_t fill_rows(const hipMemsetParams& p) {
  const T value = static_cast<T>(p.value);
  if (p.height == 1) return fill<T>(p.dst, value, p.width);
  if (!p.width || !p.height) return hipSuccess;
  if (p.width > (u64{1} << 46)) return fail(hipErrorInvalidValue, "memset: width is out of range");
  const Plane plane{p.pitch, p.width * sizeof(T), p.height};
  hipError_t code = check_plane(plane);
  if (code == hipSuccess) code = check_range("memset", p.dst, plane.extent());
  for (u64 row = 0; code == hipSuccess && row < p.height; ++row) {
    code = fill<T>(static_cast<u8*>(p.dst) + row * p.pitch, value, p.width);
  }
  return code;
}

// The synchronous forms, which are forbidden while a stream is captured.
template <class Body>
hipError_t at_once(const char* function, Body body) {
  return guarded(function, [&] {
    const hipError_t code = refuse_implicit(function);
    return code == hipSuccess ? body() : code;
  });
}

// The asynchronous forms: the same on a stream, or recorded where that is captured; what is wrong
// whatever the memory holds is refused at once.
hipError_t on_stream(const char* function, hipStream_t stream, const CopyWork& work) {
  return guarded(function, [&] {
    const hipMemcpy3DParms& params = work.params;
    const auto& [width, height, depth] = params.extent;
    if (!is_direction(params.kind)) {
      return fail(hipErrorInvalidMemcpyDirection, "copy direction " + std::to_string(params.kind));
    }
    if (width && height && depth && !params.srcArray && !params.dstArray) {
      for (const hipPitchedPtr& side : {params.srcPtr, params.dstPtr}) {
        const hipError_t code = check_plane({side.pitch, width, height});
        if (code != hipSuccess) return code;
      }
    }
    return submit(stream, work);
  });
}

hipError_t on_stream(const char* function, hipStream_t stream, const FillWork& work) {
  return guarded(function, [&] { return submit(stream, work); });
}

// A fill in two dimensions; where there is one row a graph's does not look at the pitch.
hipError_t check_fill(size_t pitch, size_t width, size_t height) {
  return width && height ? check_plane({pitch, width, height}) : hipSuccess;
}

CopyWork plane_work(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                    size_t height, hipMemcpyKind kind) {
  return {{.srcPtr = {const_cast<void*>(from), from_pitch, width, height},
           .dstPtr = {to, to_pitch, width, height},
           .extent = {width, height, 1},
           .kind = kind}};
}

const u8* place(const hipPitchedPtr& volume, const hipPos& at, u64 slice) {
  return static_cast<const u8*>(volume.ptr) + (at.z + slice) * volume.pitch * volume.ysize +
         at.y * volume.pitch + at.x;
}

}  // namespace

hipError_t copy_memory(void* to, const void* from, size_t size, hipMemcpyKind kind) {
  return at_once("hipMemcpy", [&] { return copy(to, from, size, kind); });
}

hipError_t copy_volume(const hipMemcpy3DParms& params) {
  if (params.srcArray || params.dstArray) {
    return fail(hipErrorNotSupported, "copy: the virtual GPU has no arrays (images)", kLogAlways);
  }
  const auto& [width, height, depth] = params.extent;
  if (height == 1 && depth == 1) {
    return copy(const_cast<u8*>(place(params.dstPtr, params.dstPos, 0)),
                place(params.srcPtr, params.srcPos, 0), width, params.kind);
  }
  for (u64 z = 0; z < depth; ++z) {
    const hipError_t code = copy_2d(const_cast<u8*>(place(params.dstPtr, params.dstPos, z)),
                                    params.dstPtr.pitch, place(params.srcPtr, params.srcPos, z),
                                    params.srcPtr.pitch, width, height, params.kind);
    if (code != hipSuccess) return code;
  }
  return hipSuccess;
}

hipError_t fill_plane(const hipMemsetParams& params) {
  switch (params.elementSize) {
    case 1:
      return fill_rows<u8>(params);
    case 2:
      return fill_rows<u16>(params);
    case 4:
      return fill_rows<u32>(params);
    default:
      return fail(hipErrorInvalidValue, "memset: elements of " +
                                            std::to_string(params.elementSize) +
                                            " bytes, expected 1, 2 or 4");
  }
}

}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind kind) {
  return at_once(__func__, [&] { return copy(to, from, size, kind); });
}

VGPU_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind,
                                   hipStream_t stream) {
  return on_stream(__func__, stream, copy_work(to, from, size, kind));
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
  return at_once(__func__,
                 [&] { return copy_2d(to, to_pitch, from, from_pitch, width, height, kind); });
}

VGPU_API hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, hipMemcpyKind kind,
                                     hipStream_t stream) {
  return on_stream(__func__, stream,
                   plane_work(to, to_pitch, from, from_pitch, width, height, kind));
}

VGPU_API hipError_t hipMemcpy3D(const hipMemcpy3DParms* params) {
  return at_once(__func__, [&] {
    return params ? copy_volume(*params) : fail(hipErrorInvalidValue, "hipMemcpy3D: null pointer");
  });
}

VGPU_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* params, hipStream_t stream) {
  if (!params) return fail(hipErrorInvalidValue, "hipMemcpy3DAsync: null pointer");
  return on_stream(__func__, stream, CopyWork{*params});
}

VGPU_API hipError_t hipMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(to, from, size, hipMemcpyDeviceToDevice, stream);
}

VGPU_API hipError_t hipMemset(void* to, int value, size_t size) {
  return at_once(__func__, [&] { return fill<u8>(to, static_cast<u8>(value), size); });
}

VGPU_API hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream) {
  return on_stream(__func__, stream, fill_work(to, 0, static_cast<u8>(value), 1, size, 1));
}

VGPU_API hipError_t hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count) {
  return at_once(__func__, [&] { return fill<u8>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count,
                                     hipStream_t stream) {
  return on_stream(__func__, stream, fill_work(to, 0, value, 1, count, 1));
}

VGPU_API hipError_t hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count) {
  return at_once(__func__, [&] { return fill<u16>(to, value, count); });
}

VGPU_API hipError_t hipMemsetD16Async(hipDeviceptr_t to, unsigned short value, size_t count,
                                      hipStream_t stream) {
  return on_stream(__func__, stream, fill_work(to, 0, value, 2, count, 1));
}

VGPU_API hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count) {
  return at_once(__func__, [&] { return fill<u32>(to, static_cast<u32>(value), count); });
}

VGPU_API hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count,
                                      hipStream_t stream) {
  return on_stream(__func__, stream, fill_work(to, 0, static_cast<u32>(value), 4, count, 1));
}

VGPU_API hipError_t hipMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return at_once(__func__, [&] {
    const hipError_t code = check_fill(pitch, width, height);
    if (code != hipSuccess) return code;
    return fill_plane(fill_work(to, pitch, static_cast<u8>(value), 1, width, height).params);
  });
}

VGPU_API hipError_t hipMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                                     hipStream_t stream) {
  const hipError_t code = check_fill(pitch, width, height);
  if (code != hipSuccess) return code;
  return on_stream(__func__, stream,
                   fill_work(to, pitch, static_cast<u8>(value), 1, width, height));
}
