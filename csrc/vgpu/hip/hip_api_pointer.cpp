// HIP's pointer attributes, for memory of HIP and for other memory.
#include "vgpu/hip/hip_internal.h"
#include "vgpu/machine/allocations.h"

namespace vgpu {
namespace {

hipMemoryType type_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return hipMemoryTypeDevice;
    case MemoryKind::kManaged:
      return hipMemoryTypeManaged;
    default:
      return hipMemoryTypeHost;
  }
}

// Returns one attribute, whose type depends on the attribute. A host pointer unknown to HIP is its
// own device pointer, because every pointer of the process is valid on the device (Triton's
// launcher relies on it).
hipError_t pointer_attribute(void* data, int attribute, const void* pointer) {
  const u64 address = reinterpret_cast<u64>(pointer);
  const auto block = Allocations::instance().find(address);
  auto give = [data](auto value) {
    store(data, value);
    return hipSuccess;
  };
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(address);
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
      return give(address);
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(static_cast<u32>(block ? type_of(block->kind) : hipMemoryTypeHost));
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(static_cast<u32>(block && block->kind == MemoryKind::kManaged));
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(u32{0});
    case HIP_POINTER_ATTRIBUTE_MAPPED:
      return give(static_cast<u32>(is_mapped(pointer, 1)));
    case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(u32{1});
    default:
      break;
  }
  if (!block) return fail(hipErrorInvalidValue, "pointer attribute: not memory of HIP");
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(block->base);
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(block->size);
    case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(block->id);
    default:
      return fail(hipErrorNotSupported, "pointer attribute " + std::to_string(attribute));
  }
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipPointerGetAttribute(void* data, int attribute, hipDeviceptr_t pointer) {
  return with_error_handling(__func__, [&] {
    if (!data || !pointer)
      return fail(hipErrorInvalidValue, "hipPointerGetAttribute: null pointer");
    return pointer_attribute(data, attribute, pointer);
  });
}

VGPU_API hipError_t hipDrvPointerGetAttributes(unsigned count, int* attributes, void** data,
                                               hipDeviceptr_t pointer) {
  return with_error_handling(__func__, [&] {
    if (!attributes || !data || !pointer) {
      return fail(hipErrorInvalidValue, "hipDrvPointerGetAttributes: null pointer");
    }
    for (unsigned i = 0; i < count; ++i) {
      const hipError_t code = pointer_attribute(data[i], attributes[i], pointer);
      if (code != hipSuccess) return code;
    }
    return hipSuccess;
  });
}

// Memory unknown to HIP is "unregistered", as in ROCm 6 and later.
VGPU_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes,
                                            const void* pointer) {
  return with_error_handling(__func__, [&] {
    if (!attributes || !pointer) {
      return fail(hipErrorInvalidValue, "hipPointerGetAttributes: null pointer");
    }
    void* const mutable_pointer = const_cast<void*>(pointer);
    const auto block = Allocations::instance().find(reinterpret_cast<u64>(pointer));
    *attributes = {};
    attributes->type = block ? type_of(block->kind) : hipMemoryTypeUnregistered;
    attributes->devicePointer = mutable_pointer;
    if (!block || block->kind != MemoryKind::kDevice) attributes->hostPointer = mutable_pointer;
    attributes->isManaged = block && block->kind == MemoryKind::kManaged;
    attributes->allocationFlags = block ? block->flags : 0;
    return hipSuccess;
  });
}
