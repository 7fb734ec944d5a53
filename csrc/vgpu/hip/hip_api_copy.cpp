// Copies and fills.
//
// Device memory is host memory, so every pointer of this process is a valid device pointer. As in
// ROCm, a direction that names the device needs memory of HIP on one side, and so does a fill,
// except in a process with torch, whose CPU tensors are the virtual GPU's. A copy is checked
// against live allocations if a pointer lies in one, otherwise against the mapped pages of the
// process, so that an invalid pointer gives an error.
#include <dlfcn.h>

#include <cstdio>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/machine/allocations.h"
#include "vgpu/run/run.h"
#include "vgpu/watch/check_written.h"

namespace vgpu {
namespace {

hipError_t bad_range(const char* role, const void* pointer, u64 size, const std::string& reason) {
  char address[32];
  std::snprintf(address, sizeof(address), "%p", pointer);
  return fail(
      hipErrorInvalidValue,
      std::string(role) + " " + address + " of " + std::to_string(size) + " bytes " + reason,
      kLogAlways);
}

// Checks that [pointer, pointer + size) is accessible: inside one live block, or mapped memory.
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

bool is_hip_memory(const void* pointer) {
  return Allocations::instance().find(reinterpret_cast<u64>(pointer)) || in_module(pointer);
}

bool has_torch() {
  void* const torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch) dlclose(torch);
  return torch;
}

hipError_t not_of_hip(const void* dst, const void* src, hipMemcpyKind kind) {
  char text[200];
  std::snprintf(
      text, sizeof(text),
      "copy to %p from %p, direction %d: the device's side is not memory of HIP; allocate "
      "it with hipMalloc, or copy with hipMemcpyHostToHost",
      dst, src, kind);
  return fail(hipErrorInvalidValue, text, kLogAlways);
}

// For a linear copy one side suffices, whatever the direction.
hipError_t check_sides(const void* dst, const void* src, hipMemcpyKind kind) {
  if (kind == hipMemcpyHostToHost || kind == hipMemcpyDefault) return hipSuccess;
  if (is_hip_memory(dst) || is_hip_memory(src) || has_torch()) return hipSuccess;
  return not_of_hip(dst, src, kind);
}

// For a copy of rows each side that the direction calls the device's must be it.
hipError_t check_row_sides(const void* dst, const void* src, hipMemcpyKind kind) {
  if (kind == hipMemcpyHostToHost || kind == hipMemcpyDefault) return hipSuccess;
  const bool is_fit = (kind == hipMemcpyDeviceToHost || is_hip_memory(dst)) &&
                      (kind == hipMemcpyHostToDevice || is_hip_memory(src));
  return is_fit || has_torch() ? hipSuccess : not_of_hip(dst, src, kind);
}

void note_write(const void* dst, u64 size) {
  note_host_write(dst, size);
  observe_write(dst, size);
}

hipError_t copy(void* dst, const void* src, u64 size, hipMemcpyKind kind = hipMemcpyDefault) {
  if (!is_direction(kind)) {
    return fail(hipErrorInvalidMemcpyDirection, "copy direction " + std::to_string(kind));
  }
  hipError_t code = check_range("copy destination", dst, size);
  if (code == hipSuccess) code = check_range("copy source", src, size);
  if (code == hipSuccess && size) code = check_sides(dst, src, kind);
  if (code == hipSuccess && size) {
    std::memmove(dst, src, size);
    note_write(dst, size);
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

hipError_t copy_2d(void* dst, u64 dst_pitch, const void* src, u64 src_pitch, u64 width, u64 height,
                   hipMemcpyKind kind) {
  if (!width || !height) return hipSuccess;
  const Plane target{dst_pitch, width, height}, source{src_pitch, width, height};
  hipError_t code = check_plane(target);
  if (code == hipSuccess) code = check_plane(source);
  if (code == hipSuccess && !is_direction(kind)) {
    code = fail(hipErrorInvalidMemcpyDirection, "copy direction " + std::to_string(kind));
  }
  if (code == hipSuccess) code = check_range("copy destination", dst, target.extent());
  if (code == hipSuccess) code = check_range("copy source", src, source.extent());
  if (code == hipSuccess) code = check_row_sides(dst, src, kind);
  if (code != hipSuccess) return code;
  note_write(dst, target.extent());
  for (u64 row = 0; row < height; ++row) {
    std::memmove(static_cast<u8*>(dst) + row * dst_pitch,
                 static_cast<const u8*>(src) + row * src_pitch, width);
  }
  return hipSuccess;
}

// Fills `count` elements of T.
template <class T>
hipError_t fill(void* dst, T value, u64 count) {
  if (count > ~u64{0} / sizeof(T))
    return fail(hipErrorInvalidValue, "memset: count is out of range");
  const hipError_t code = check_range("memset", dst, count * sizeof(T));
  if (code != hipSuccess || !count) return code;
  if (!is_hip_memory(dst) && !has_torch()) {
    return bad_range("memset", dst, count * sizeof(T), "is not memory of HIP");
  }
  note_write(dst, count * sizeof(T));
  if constexpr (sizeof(T) == 1) {
    std::memset(dst, value, count);
  } else {
    for (u64 i = 0; i < count; ++i) store<T>(static_cast<u8*>(dst) + i * sizeof(T), value);
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

// Runs a synchronous operation, which is forbidden while a stream is captured.
template <class Body>
hipError_t run_now(const char* function, Body body) {
  return with_error_handling(function, [&] {
    const hipError_t code = refuse_implicit(function);
    return code == hipSuccess ? body() : code;
  });
}

// Asynchronous operations run on a stream, or are recorded if it is captured; errors that do not
// depend on memory contents are reported at once.
hipError_t enqueue(const char* function, hipStream_t stream, const CopyWork& work) {
  return with_error_handling(function, [&] {
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

hipError_t enqueue(const char* function, hipStream_t stream, const FillWork& work) {
  return with_error_handling(function, [&] { return submit(stream, work); });
}

// Checks a two-dimensional fill. For a single row the pitch is not checked, as in a graph node.
hipError_t check_fill(size_t pitch, size_t width, size_t height) {
  return width && height ? check_plane({pitch, width, height}) : hipSuccess;
}

CopyWork plane_work(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                    size_t height, hipMemcpyKind kind) {
  return {{.srcPtr = {const_cast<void*>(src), src_pitch, width, height},
           .dstPtr = {dst, dst_pitch, width, height},
           .extent = {width, height, 1},
           .kind = kind}};
}

const u8* slice_start(const hipPitchedPtr& volume, const hipPos& pos, u64 slice) {
  return static_cast<const u8*>(volume.ptr) + (pos.z + slice) * volume.pitch * volume.ysize +
         pos.y * volume.pitch + pos.x;
}

}  // namespace

hipError_t copy_memory(void* dst, const void* src, size_t size, hipMemcpyKind kind) {
  return run_now("hipMemcpy", [&] { return copy(dst, src, size, kind); });
}

hipError_t copy_volume(const hipMemcpy3DParms& params) {
  if (params.srcArray || params.dstArray) {
    return fail(hipErrorNotSupported, "copy: the virtual GPU has no arrays (images)", kLogAlways);
  }
  const auto& [width, height, depth] = params.extent;
  if (height == 1 && depth == 1) {
    return copy(const_cast<u8*>(slice_start(params.dstPtr, params.dstPos, 0)),
                slice_start(params.srcPtr, params.srcPos, 0), width, params.kind);
  }
  for (u64 z = 0; z < depth; ++z) {
    const hipError_t code =
        copy_2d(const_cast<u8*>(slice_start(params.dstPtr, params.dstPos, z)), params.dstPtr.pitch,
                slice_start(params.srcPtr, params.srcPos, z), params.srcPtr.pitch, width, height,
                params.kind);
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

VGPU_API hipError_t hipMemcpy(void* dst, const void* src, size_t size, hipMemcpyKind kind) {
  return run_now(__func__, [&] { return copy(dst, src, size, kind); });
}

VGPU_API hipError_t hipMemcpyAsync(void* dst, const void* src, size_t size, hipMemcpyKind kind,
                                   hipStream_t stream) {
  return enqueue(__func__, stream, copy_work(dst, src, size, kind));
}

VGPU_API hipError_t hipMemcpyWithStream(void* dst, const void* src, size_t size, hipMemcpyKind kind,
                                        hipStream_t stream) {
  return hipMemcpyAsync(dst, src, size, kind, stream);
}

VGPU_API hipError_t hipMemcpyHtoD(hipDeviceptr_t dst, const void* src, size_t size) {
  return hipMemcpy(dst, src, size, hipMemcpyHostToDevice);
}

VGPU_API hipError_t hipMemcpyDtoH(void* dst, hipDeviceptr_t src, size_t size) {
  return hipMemcpy(dst, src, size, hipMemcpyDeviceToHost);
}

VGPU_API hipError_t hipMemcpyDtoD(hipDeviceptr_t dst, hipDeviceptr_t src, size_t size) {
  return hipMemcpy(dst, src, size, hipMemcpyDeviceToDevice);
}

VGPU_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t dst, const void* src, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(dst, src, size, hipMemcpyHostToDevice, stream);
}

VGPU_API hipError_t hipMemcpyDtoHAsync(void* dst, hipDeviceptr_t src, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(dst, src, size, hipMemcpyDeviceToHost, stream);
}

VGPU_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t dst, hipDeviceptr_t src, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(dst, src, size, hipMemcpyDeviceToDevice, stream);
}

VGPU_API hipError_t hipMemcpyPeer(void* dst, int, const void* src, int, size_t size) {
  return hipMemcpy(dst, src, size, hipMemcpyDeviceToDevice);
}

VGPU_API hipError_t hipMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                                size_t width, size_t height, hipMemcpyKind kind) {
  return run_now(__func__,
                 [&] { return copy_2d(dst, dst_pitch, src, src_pitch, width, height, kind); });
}

VGPU_API hipError_t hipMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                                     size_t width, size_t height, hipMemcpyKind kind,
                                     hipStream_t stream) {
  return enqueue(__func__, stream, plane_work(dst, dst_pitch, src, src_pitch, width, height, kind));
}

VGPU_API hipError_t hipMemcpy3D(const hipMemcpy3DParms* params) {
  return run_now(__func__, [&] {
    return params ? copy_volume(*params) : fail(hipErrorInvalidValue, "hipMemcpy3D: null pointer");
  });
}

VGPU_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* params, hipStream_t stream) {
  if (!params) return fail(hipErrorInvalidValue, "hipMemcpy3DAsync: null pointer");
  return enqueue(__func__, stream, CopyWork{*params});
}

VGPU_API hipError_t hipMemcpyPeerAsync(void* dst, int, const void* src, int, size_t size,
                                       hipStream_t stream) {
  return hipMemcpyAsync(dst, src, size, hipMemcpyDeviceToDevice, stream);
}

VGPU_API hipError_t hipMemset(void* dst, int value, size_t size) {
  return run_now(__func__, [&] { return fill<u8>(dst, static_cast<u8>(value), size); });
}

VGPU_API hipError_t hipMemsetAsync(void* dst, int value, size_t size, hipStream_t stream) {
  return enqueue(__func__, stream, fill_work(dst, 0, static_cast<u8>(value), 1, size, 1));
}

VGPU_API hipError_t hipMemsetD8(hipDeviceptr_t dst, unsigned char value, size_t count) {
  return run_now(__func__, [&] { return fill<u8>(dst, value, count); });
}

VGPU_API hipError_t hipMemsetD8Async(hipDeviceptr_t dst, unsigned char value, size_t count,
                                     hipStream_t stream) {
  return enqueue(__func__, stream, fill_work(dst, 0, value, 1, count, 1));
}

VGPU_API hipError_t hipMemsetD16(hipDeviceptr_t dst, unsigned short value, size_t count) {
  return run_now(__func__, [&] { return fill<u16>(dst, value, count); });
}

VGPU_API hipError_t hipMemsetD16Async(hipDeviceptr_t dst, unsigned short value, size_t count,
                                      hipStream_t stream) {
  return enqueue(__func__, stream, fill_work(dst, 0, value, 2, count, 1));
}

VGPU_API hipError_t hipMemsetD32(hipDeviceptr_t dst, int value, size_t count) {
  return run_now(__func__, [&] { return fill<u32>(dst, static_cast<u32>(value), count); });
}

VGPU_API hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, size_t count,
                                      hipStream_t stream) {
  return enqueue(__func__, stream, fill_work(dst, 0, static_cast<u32>(value), 4, count, 1));
}

VGPU_API hipError_t hipMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height) {
  return run_now(__func__, [&] {
    const hipError_t code = check_fill(pitch, width, height);
    if (code != hipSuccess) return code;
    return fill_plane(fill_work(dst, pitch, static_cast<u8>(value), 1, width, height).params);
  });
}

VGPU_API hipError_t hipMemset2DAsync(void* dst, size_t pitch, int value, size_t width,
                                     size_t height, hipStream_t stream) {
  const hipError_t code = check_fill(pitch, width, height);
  if (code != hipSuccess) return code;
  return enqueue(__func__, stream, fill_work(dst, pitch, static_cast<u8>(value), 1, width, height));
}
