// Initialisation, the device and its properties, contexts, synchronisation.
#include <algorithm>
#include <cstdio>
#include <span>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"
#include "vgpu/machine/schedule.h"

namespace vgpu {
namespace {

constexpr u64 kMaxPitch = 0x7fffffff;
constexpr u32 kPciBus = 1,
              kFeatureBits = 0x97ff;  // hipDeviceArch_t: all but surfaces, funnel shift,
                                      // __syncthreads_count and dynamic parallelism

void fill_limits(const DeviceInfo& device, hipDeviceProp_tR0600& p) {
  p.totalGlobalMem = device.memory_bytes;
  p.sharedMemPerBlock = p.sharedMemPerBlockOptin = device.traits().lds_bytes;
  p.sharedMemPerMultiprocessor = p.maxSharedMemoryPerMultiProcessor = device.traits().lds_bytes;
  p.regsPerBlock = p.regsPerMultiprocessor = kRegistersPerCu;
  p.warpSize = kLanes;
  p.memPitch = kMaxPitch;
  p.maxThreadsPerBlock = kMaxBlockThreads;
  p.maxThreadsPerMultiProcessor = kMaxThreadsPerCu;
  p.maxBlocksPerMultiProcessor = kMaxThreadsPerCu / kLanes;
  for (u32 d = 0; d < 3; ++d) {
    p.maxThreadsDim[d] = kMaxBlockThreads;
    p.maxGridSize[d] = static_cast<int>(kMaxGrid[d]);
  }
  p.totalConstMem = kMaxPitch;
  p.textureAlignment = p.texturePitchAlignment = p.surfaceAlignment = 256;
}

hipDeviceProp_tR0600 properties(const DeviceInfo& device) {
  hipDeviceProp_tR0600 p{};
  std::snprintf(p.name, sizeof(p.name), "%s", device.name);
  std::snprintf(p.gcnArchName, sizeof(p.gcnArchName), "%s", device.target);
  std::snprintf(p.uuid, sizeof(p.uuid), "rfops-%s", arch_name(device.arch));
  fill_limits(device, p);
  p.clockRate = static_cast<int>(device.clock_khz);
  p.major = static_cast<int>(device.traits().major);
  p.minor = static_cast<int>(device.traits().minor);
  p.multiProcessorCount = static_cast<int>(device.compute_units);
  p.memoryClockRate = static_cast<int>(device.memory_clock_khz);
  p.memoryBusWidth = static_cast<int>(device.memory_bus_bits);
  p.l2CacheSize = static_cast<int>(device.l2_bytes);
  p.clockInstructionRate = kWallClockKhz;
  p.arch = kFeatureBits;
  p.pciBusID = kPciBus;
  p.deviceOverlap = p.canMapHostMemory = p.concurrentKernels = p.ECCEnabled = 1;
  p.unifiedAddressing = p.managedMemory = p.pageableMemoryAccess = p.concurrentManagedAccess = 1;
  p.canUseHostPointerForRegisteredMem = p.hostRegisterSupported = p.cooperativeLaunch = 1;
  p.pageableMemoryAccessUsesHostPageTables = p.directManagedMemAccessFromHost = 1;
  p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.asyncEngineCount = 1;
  p.isLargeBar = 1;
  return p;
}

// Attributes that are one `int` member of the properties.
struct MemberRow {
  int attribute;
  int hipDeviceProp_tR0600::* member;
};
using Prop = hipDeviceProp_tR0600;
constexpr MemberRow kMembers[] = {
    {0, &Prop::ECCEnabled},
    {2, &Prop::asyncEngineCount},
    {3, &Prop::canMapHostMemory},
    {4, &Prop::canUseHostPointerForRegisteredMem},
    {5, &Prop::clockRate},
    {6, &Prop::computeMode},
    {7, &Prop::computePreemptionSupported},
    {8, &Prop::concurrentKernels},
    {9, &Prop::concurrentManagedAccess},
    {10, &Prop::cooperativeLaunch},
    {11, &Prop::cooperativeMultiDeviceLaunch},
    {12, &Prop::deviceOverlap},
    {13, &Prop::directManagedMemAccessFromHost},
    {14, &Prop::globalL1CacheSupported},
    {15, &Prop::hostNativeAtomicSupported},
    {16, &Prop::integrated},
    {17, &Prop::isMultiGpuBoard},
    {18, &Prop::kernelExecTimeoutEnabled},
    {19, &Prop::l2CacheSize},
    {20, &Prop::localL1CacheSupported},
    {23, &Prop::major},
    {24, &Prop::managedMemory},
    {25, &Prop::maxBlocksPerMultiProcessor},
    {56, &Prop::maxThreadsPerBlock},
    {57, &Prop::maxThreadsPerMultiProcessor},
    {59, &Prop::memoryBusWidth},
    {60, &Prop::memoryClockRate},
    {61, &Prop::minor},
    {62, &Prop::multiGpuBoardGroupID},
    {63, &Prop::multiProcessorCount},
    {65, &Prop::pageableMemoryAccess},
    {66, &Prop::pageableMemoryAccessUsesHostPageTables},
    {67, &Prop::pciBusID},
    {68, &Prop::pciDeviceID},
    {69, &Prop::pciDomainID},
    {70, &Prop::persistingL2CacheMaxSize},
    {71, &Prop::regsPerBlock},
    {72, &Prop::regsPerMultiprocessor},
    {77, &Prop::singleToDoublePrecisionPerfRatio},
    {78, &Prop::streamPrioritiesSupported},
    {80, &Prop::tccDriver},
    {85, &Prop::unifiedAddressing},
    {87, &Prop::warpSize},
    {88, &Prop::memoryPoolsSupported},
    {90, &Prop::hostRegisterSupported},
    {10000, &Prop::clockInstructionRate},
    {10011, &Prop::isLargeBar},
    {10012, &Prop::asicRevision},
};

// Attributes that are computed, wider than int, or not a member of the properties.
struct ValueRow {
  int attribute;
  u64 (*value)(const DeviceInfo&);
};
constexpr ValueRow kValues[] = {
    {26, [](const DeviceInfo&) { return u64{kMaxBlockThreads}; }},  // MaxBlockDimX, Y, Z
    {27, [](const DeviceInfo&) { return u64{kMaxBlockThreads}; }},
    {28, [](const DeviceInfo&) { return u64{kMaxBlockThreads}; }},
    {29, [](const DeviceInfo&) { return u64{kMaxGrid[0]}; }},  // MaxGridDimX, Y, Z
    {30, [](const DeviceInfo&) { return u64{kMaxGrid[1]}; }},
    {31, [](const DeviceInfo&) { return u64{kMaxGrid[2]}; }},
    {55, [](const DeviceInfo&) { return u64{kMaxBlockThreads}; }},  // MaxThreadsDim
    {58, [](const DeviceInfo&) { return kMaxPitch; }},
    {73, [](const DeviceInfo&) { return u64{0}; }},  // ReservedSharedMemPerBlock
    {74, [](const DeviceInfo& d) { return u64{d.traits().lds_bytes}; }},  // MaxSharedMemoryPerBlock
    {75, [](const DeviceInfo& d) { return u64{d.traits().lds_bytes}; }},  // SharedMemPerBlockOptin
    {76,
     [](const DeviceInfo& d) { return u64{d.traits().lds_bytes}; }},  // SharedMemPerMultiprocessor
    {79, [](const DeviceInfo&) { return u64{256}; }},                 // SurfaceAlignment
    {81, [](const DeviceInfo&) { return u64{256}; }},                 // TextureAlignment
    {82, [](const DeviceInfo&) { return u64{256}; }},                 // TexturePitchAlignment
    {83, [](const DeviceInfo&) { return kMaxPitch; }},                // TotalConstantMemory
    {84, [](const DeviceInfo& d) { return d.memory_bytes; }},         // TotalGlobalMem
    {89, [](const DeviceInfo&) { return u64{0}; }},                   // VirtualMemoryManagement
    {91, [](const DeviceInfo&) { return u64{0}; }},  // MemoryPoolSupportedHandleTypes
    {10002,
     [](const DeviceInfo& d) {
       return u64{d.traits().lds_bytes};
     }},                                                // MaxSharedMemoryPerMultiprocessor
    {10007, [](const DeviceInfo&) { return u64{0}; }},  // CooperativeMultiDeviceUnmatched*
    {10008, [](const DeviceInfo&) { return u64{0}; }},
    {10009, [](const DeviceInfo&) { return u64{0}; }},
    {10010, [](const DeviceInfo&) { return u64{0}; }},
    {10013, [](const DeviceInfo&) { return u64{0}; }},  // CanUseStreamWaitValue
    {10014, [](const DeviceInfo&) { return u64{0}; }},  // ImageSupport
    {10015,
     [](const DeviceInfo& d) { return u64{d.compute_units}; }},     // PhysicalMultiProcessorCount
    {10016, [](const DeviceInfo&) { return u64{1}; }},              // FineGrainSupport
    {10017, [](const DeviceInfo&) { return u64{kWallClockKhz}; }},  // WallClockRate
    {10018, [](const DeviceInfo& d) { return u64{d.xccs}; }},       // NumberOfXccs
    {10019,
     [](const DeviceInfo& d) { return u64{d.traits().vgprs}; }},  // MaxAvailableVgprsPerThread
    {10020, [](const DeviceInfo& d) { return u64{d.pci_chip_id}; }},
};

hipError_t attribute_value(const DeviceInfo& device, int attribute, int* value) {
  for (const ValueRow& row : kValues) {
    if (row.attribute != attribute) continue;
    *value = static_cast<int>(std::min<u64>(row.value(device), 0x7fffffff));  // ROCm saturates too
    return hipSuccess;
  }
  for (const MemberRow& row : kMembers) {
    if (row.attribute != attribute) continue;
    *value = properties(device).*row.member;
    return hipSuccess;
  }
  return fail(hipErrorInvalidValue, "device attribute " + std::to_string(attribute) +
                                        " has no meaning on the virtual GPU");
}

// Returns device 0 after the checks of a getter; null after fail(), with `code` set.
const DeviceInfo* getter(const void* out, int ordinal, hipError_t& code) {
  code = out ? check_ordinal(ordinal) : fail(hipErrorInvalidValue, "device query: null pointer");
  if (code != hipSuccess) return nullptr;
  const DeviceInfo* device = device_or_fail();
  if (!device) code = hipErrorInvalidValue;
  return device;
}

hipCtx_t the_context() {
  static char context;
  return reinterpret_cast<hipCtx_t>(&context);
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipInit(unsigned flags) {
  return with_error_handling(__func__, [&] {
    if (flags) return fail(hipErrorInvalidValue, "hipInit: flags must be 0");
    return device_or_fail() ? hipSuccess : hipErrorInvalidValue;
  });
}

VGPU_API hipError_t hipDriverGetVersion(int* version) {
  if (!version) return fail(hipErrorInvalidValue, "hipDriverGetVersion: null pointer");
  *version = kHipVersion;
  return hipSuccess;
}

VGPU_API hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

// Selects the architecture for modules loaded and properties read later; loaded modules are
// unchanged. "gfx950" or "gfx942", features allowed.
VGPU_API int rfops_vgpu_set_arch(const char* name) {
  return with_error_handling("rfops_vgpu_set_arch", [&] {
    std::string error;
    if (name && select_arch(name, error)) return hipSuccess;
    return fail(hipErrorInvalidValue, name ? error : "rfops_vgpu_set_arch: name is null");
  });
}

// Selects the GPU model of its architecture; properties, occupancy and timing follow.
VGPU_API int rfops_vgpu_set_part(const char* name) {
  return with_error_handling("rfops_vgpu_set_part", [&] {
    std::string error;
    if (name && select_model(name, error)) return hipSuccess;
    return fail(hipErrorInvalidValue, name ? error : "rfops_vgpu_set_part: name is null");
  });
}

// Sets the schedule of later launches, with the syntax of RFOPS_VGPU_SCHEDULE.
VGPU_API int rfops_vgpu_schedule(const char* text) {
  return with_error_handling("rfops_vgpu_schedule", [&] {
    const std::string error = set_schedule(text ? text : "");
    return error.empty() ? hipSuccess : fail(hipErrorInvalidValue, error);
  });
}

VGPU_API hipError_t hipGetDeviceCount(int* count) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(count, 0, code)) *count = 1;
    return code;
  });
}

VGPU_API hipError_t hipGetDevice(int* device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(device, 0, code)) *device = 0;
    return code;
  });
}

VGPU_API hipError_t hipSetDevice(int device) {
  return with_error_handling(__func__, [&] { return check_ordinal(device); });
}

VGPU_API hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(device, ordinal, code)) *device = ordinal;
    return code;
  });
}

VGPU_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties_out, int device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (const DeviceInfo* info = getter(properties_out, device, code)) {
      *properties_out = properties(*info);
    }
    return code;
  });
}

// The unsuffixed name has the R0600 layout here, which HIP's headers use since ROCm 6.
VGPU_API hipError_t hipGetDeviceProperties(hipDeviceProp_tR0600* properties_out, int device) {
  return hipGetDevicePropertiesR0600(properties_out, device);
}

VGPU_API hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    const DeviceInfo* info = getter(value, device, code);
    return info ? attribute_value(*info, attribute, value) : code;
  });
}

VGPU_API hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    const DeviceInfo* info = getter(length > 0 ? name : nullptr, device, code);
    if (info) std::snprintf(name, static_cast<size_t>(length), "%s", info->name);
    return code;
  });
}

VGPU_API hipError_t hipDeviceGetUuid(char (*uuid)[16], hipDevice_t device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (const DeviceInfo* info = getter(uuid, device, code)) {
      std::memcpy(*uuid, properties(*info).uuid, sizeof(*uuid));
    }
    return code;
  });
}

VGPU_API hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (const DeviceInfo* info = getter(bytes, device, code)) *bytes = info->memory_bytes;
    return code;
  });
}

VGPU_API hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    const DeviceInfo* info = getter(minor ? major : nullptr, device, code);
    if (info)
      *major = static_cast<int>(info->traits().major),
      *minor = static_cast<int>(info->traits().minor);
    return code;
  });
}

VGPU_API hipError_t hipDeviceGetPCIBusId(char* bus, int length, int device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(length > 0 ? bus : nullptr, device, code)) {
      std::snprintf(bus, static_cast<size_t>(length), "0000:%02x:00.0", kPciBus);
    }
    return code;
  });
}

VGPU_API hipError_t hipDeviceCanAccessPeer(int* can_access, int device, int) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(can_access, device, code)) *can_access = 0;
    return code;
  });
}

// All work is complete when its call returns.
VGPU_API hipError_t hipDeviceSynchronize() {
  return with_error_handling(__func__, [&] { return refuse_device_wait("hipDeviceSynchronize"); });
}

VGPU_API hipError_t hipDeviceReset() {
  return with_error_handling(__func__, [&] { return refuse_device_wait("hipDeviceReset"); });
}

// One device has no peer.
VGPU_API hipError_t hipDeviceEnablePeerAccess(int, unsigned) {
  return fail(hipErrorInvalidDevice, "hipDeviceEnablePeerAccess: there is one device");
}

VGPU_API hipError_t hipDeviceDisablePeerAccess(int) {
  return fail(hipErrorInvalidDevice, "hipDeviceDisablePeerAccess: there is one device");
}

VGPU_API hipError_t hipProfilerStart() { return hipSuccess; }

VGPU_API hipError_t hipProfilerStop() { return hipSuccess; }

VGPU_API hipError_t hipSetDeviceFlags(unsigned) { return hipSuccess; }

VGPU_API hipError_t hipGetDeviceFlags(unsigned* flags) {
  if (!flags) return fail(hipErrorInvalidValue, "hipGetDeviceFlags: null pointer");
  *flags = 0;
  return hipSuccess;
}

VGPU_API hipError_t hipDeviceSetCacheConfig(int) { return hipSuccess; }

VGPU_API hipError_t hipDeviceSetSharedMemConfig(int) { return hipSuccess; }

VGPU_API hipError_t hipDeviceGetLimit(size_t* value, int limit) {
  return with_error_handling(__func__, [&] {
    if (!value) return fail(hipErrorInvalidValue, "hipDeviceGetLimit: null pointer");
    constexpr int kStackSize = 0;
    if (limit != kStackSize)
      return fail(hipErrorUnsupportedLimit, "limit " + std::to_string(limit));
    *value = 1024;
    return hipSuccess;
  });
}

// There is one device with one context, current on every thread.
VGPU_API hipError_t hipCtxCreate(hipCtx_t* context, unsigned, hipDevice_t device) {
  return with_error_handling(__func__, [&] {
    hipError_t code;
    if (getter(context, device, code)) *context = the_context();
    return code;
  });
}

VGPU_API hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* context, hipDevice_t device) {
  return hipCtxCreate(context, 0, device);
}

VGPU_API hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device) { return hipSetDevice(device); }

VGPU_API hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return hipSetDevice(device);
}

VGPU_API hipError_t hipCtxGetCurrent(hipCtx_t* context) { return hipCtxCreate(context, 0, 0); }

VGPU_API hipError_t hipCtxSetCurrent(hipCtx_t) { return hipSuccess; }

VGPU_API hipError_t hipCtxPushCurrent(hipCtx_t) { return hipSuccess; }

VGPU_API hipError_t hipCtxPopCurrent(hipCtx_t* context) {
  return context ? hipCtxGetCurrent(context) : hipSuccess;
}

VGPU_API hipError_t hipCtxDestroy(hipCtx_t) { return hipSuccess; }

VGPU_API hipError_t hipCtxSynchronize() { return hipDeviceSynchronize(); }

VGPU_API hipError_t hipCtxGetDevice(hipDevice_t* device) { return hipGetDevice(device); }

VGPU_API hipError_t hipCtxGetApiVersion(hipCtx_t, unsigned* version) {
  if (!version) return fail(hipErrorInvalidValue, "hipCtxGetApiVersion: null pointer");
  *version = 4;
  return hipSuccess;
}

// -------------------------------------------------------------------------------- images

// These GPUs have none. Programs that never use one are linked against the functions.
struct hipChannelFormatDesc {
  int x, y, z, w, kind;
};

VGPU_API hipChannelFormatDesc hipCreateChannelDesc(int x, int y, int z, int w, int kind) {
  return {x, y, z, w, kind};
}

VGPU_API hipError_t hipCreateTextureObject(void**, const void*, const void*, const void*) {
  return fail(hipErrorNotSupported, "hipCreateTextureObject: the GPU has no images", kLogAlways);
}

VGPU_API hipError_t hipDestroyTextureObject(void* texture) {
  if (!texture) return hipSuccess;
  return fail(hipErrorNotSupported, "hipDestroyTextureObject: the GPU has no images", kLogAlways);
}
