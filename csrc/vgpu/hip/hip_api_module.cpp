// HIP's functions for modules, functions, globals, function attributes and occupancy.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "vgpu/hip/hip_internal.h"

namespace vgpu {

HandleTable<Module>& modules() { return handle_table<Module>(); }
HandleTable<Function>& functions() { return handle_table<Function>(); }

namespace {

// The images of all modules: end by start.
struct Images {
  std::shared_mutex mutex;
  std::map<u64, u64> ends;
};

Images& images() {
  static auto* const instance = new Images;  // exit handlers unload modules
  return *instance;
}

}  // namespace

Module::Module(std::unique_ptr<CodeObject> object) : object_(std::move(object)) {
  const u64 start = reinterpret_cast<u64>(object_->image);
  std::unique_lock lock(images().mutex);
  images().ends[start] = start + object_->image_bytes;
}

Module::~Module() {
  std::unique_lock lock(images().mutex);
  images().ends.erase(reinterpret_cast<u64>(object_->image));
}

bool in_module(const void* pointer) {
  const u64 address = reinterpret_cast<u64>(pointer);
  std::shared_lock lock(images().mutex);
  const auto next = images().ends.upper_bound(address);
  return next != images().ends.begin() && address < std::prev(next)->second;
}

Function* Module::function(const std::shared_ptr<Module>& self, const std::string& name) {
  std::lock_guard lock(self->mutex_);
  if (const auto it = self->functions_.find(name); it != self->functions_.end()) {
    return it->second.get();
  }
  const auto kernel = self->object_->kernels.find(name);
  if (kernel == self->object_->kernels.end()) return nullptr;
  auto new_function = std::make_unique<Function>();
  new_function->kernel = &kernel->second;
  new_function->plan = plan_args(kernel->second);
  Function* function = new_function.get();
  self->functions_[name] = std::move(new_function);
  functions().add(std::shared_ptr<Function>(self, function));
  return function;
}

void Module::retire_functions() {
  std::lock_guard lock(mutex_);
  for (const auto& [name, function] : functions_) functions().remove(function.get());
}

std::shared_ptr<Module> load_module(const void* image, u64 size, hipError_t& code) {
  const DeviceInfo* device = device_or_fail();
  if (!device) {
    code = hipErrorInvalidValue;
    return nullptr;
  }
  std::string error;
  LoadFailure failure = LoadFailure::kNone;
  auto object =
      load_code_object(static_cast<const u8*>(image), size, device->arch, error, &failure);
  if (!object) {
    code = fail(failure == LoadFailure::kWrongArch ? hipErrorNoBinaryForGpu : hipErrorInvalidImage,
                error, kLogAlways);
    return nullptr;
  }
  code = hipSuccess;
  return std::make_shared<Module>(std::move(object));
}

namespace {

hipError_t load_into(hipModule_t* module, const void* image, u64 size) {
  if (!module || !image) return fail(hipErrorInvalidValue, "module load: null pointer");
  hipError_t code;
  auto loaded = load_module(image, size, code);
  if (loaded) *module = reinterpret_cast<hipModule_t>(modules().add(std::move(loaded)));
  return code;
}

std::shared_ptr<Module> module_or_fail(hipModule_t handle) {
  auto module = modules().lookup(handle);
  if (!module) fail(hipErrorInvalidHandle, "unknown or unloaded hipModule_t");
  return module;
}

// Returns the kernel names of a code object, for error messages.
std::string kernel_names(const CodeObject& object) {
  std::string names;
  for (const auto& [name, kernel] : object.kernels) {
    names += (names.empty() ? "" : ", ") + name;
    if (names.size() > 300) return names + ", ...";
  }
  return names.empty() ? "no kernels" : names;
}

u32 dynamic_lds_limit(const Kernel& kernel) {
  const u32 lds = arch_traits(kernel.object->arch).lds_bytes;
  return kernel.group_segment_bytes < lds ? lds - kernel.group_segment_bytes : 0;
}

// Returns the registers from the metadata, or the descriptor's allocation if there is none.
u32 registers_of(const Kernel& kernel) {
  return kernel.has_metadata ? kernel.vgpr_count : kernel.vgpr_rows;
}

hipError_t function_attribute(const Kernel& kernel, hipFunction_attribute attribute, int* value) {
  auto give = [value](u32 number) {
    *value = static_cast<int>(number);
    return hipSuccess;
  };
  switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return give(std::min(kernel.max_workgroup_size, kMaxBlockThreads));
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return give(kernel.group_segment_bytes);
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return give(kernel.private_segment_bytes);
    case HIP_FUNC_ATTRIBUTE_NUM_REGS:
      return give(registers_of(kernel));
    case HIP_FUNC_ATTRIBUTE_BINARY_VERSION:
    case HIP_FUNC_ATTRIBUTE_PTX_VERSION: {
      const DeviceInfo& device = device_info(kernel.object->arch);
      return give(device.traits().major * 10 + device.traits().minor);
    }
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return give(dynamic_lds_limit(kernel));
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return give(0);
  }
  return fail(hipErrorInvalidValue, "function attribute " + std::to_string(attribute));
}

hipError_t occupancy(const Function* function, int block, size_t dynamic_lds, int* blocks) {
  if (!blocks || !function || block <= 0)
    return fail(hipErrorInvalidValue, "occupancy: bad argument");
  const Kernel& kernel = *function->kernel;
  const u64 lds = kernel.group_segment_bytes + u64{dynamic_lds};
  *blocks = 0;
  if (static_cast<u32>(block) > kMaxBlockThreads || lds > 0xffffffff) return hipSuccess;
  *blocks = static_cast<int>(workgroups_per_cu(device_info(kernel.object->arch), kernel.vgpr_rows,
                                               static_cast<u32>(lds), static_cast<u32>(block)));
  return hipSuccess;
}

// Returns the block size that occupies a CU with the most lanes; the largest of several.
hipError_t best_block(const Function* function, size_t dynamic_lds, int limit, int* grid,
                      int* block) {
  if (!grid || !block || !function) return fail(hipErrorInvalidValue, "occupancy: bad argument");
  const u32 max_lanes = std::min(function->kernel->max_workgroup_size, kMaxBlockThreads);
  const u32 top = limit > 0 ? std::min(max_lanes, static_cast<u32>(limit)) : max_lanes;
  int best_lanes = 0, best = 0, best_blocks = 0;
  for (u32 lanes = kLanes; lanes <= std::max(top, kLanes); lanes += kLanes) {
    const int candidate = static_cast<int>(std::min(lanes, top));
    int blocks = 0;
    if (const hipError_t code = occupancy(function, candidate, dynamic_lds, &blocks);
        code != hipSuccess) {
      return code;
    }
    if (blocks * candidate < best_lanes) continue;
    best_lanes = blocks * candidate, best = candidate, best_blocks = blocks;
  }
  *block = best;
  *grid = best_blocks * static_cast<int>(device_info(function->kernel->object->arch).compute_units);
  return hipSuccess;
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

// The image's extent is taken from its headers, because a bare pointer has no size.
VGPU_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return with_error_handling(__func__, [&] { return load_into(module, image, 0); });
}

// JIT options (log buffers, optimisation levels) do not apply to finished machine code.
VGPU_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, void*,
                                        void**) {
  return hipModuleLoadData(module, image);
}

VGPU_API hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return with_error_handling(__func__, [&] {
    if (!module || !path) return fail(hipErrorInvalidValue, "hipModuleLoad: null pointer");
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      return fail(hipErrorFileNotFound, "hipModuleLoad: cannot open " + std::string(path),
                  kLogAlways);
    }
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.empty()) {
      return fail(hipErrorInvalidImage, "hipModuleLoad: " + std::string(path) + " is empty",
                  kLogAlways);
    }
    return load_into(module, bytes.data(), bytes.size());
  });
}

VGPU_API hipError_t hipModuleUnload(hipModule_t handle) {
  return with_error_handling(__func__, [&] {
    const auto module = modules().remove(handle);
    if (!module) return fail(hipErrorInvalidHandle, "unknown or unloaded hipModule_t");
    module->retire_functions();
    return hipSuccess;
  });
}

VGPU_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t handle,
                                         const char* name) {
  return with_error_handling(__func__, [&] {
    if (!function || !name) return fail(hipErrorInvalidValue, "hipModuleGetFunction: null pointer");
    const auto module = module_or_fail(handle);
    if (!module) return hipErrorInvalidHandle;
    Function* kernel = Module::function(module, name);
    if (!kernel) {
      return fail(hipErrorNotFound, "no kernel '" + std::string(name) + "' in the module: it has " +
                                        kernel_names(module->object()));
    }
    *function = reinterpret_cast<hipFunction_t>(kernel);
    return hipSuccess;
  });
}

VGPU_API hipError_t hipModuleGetFunctionCount(unsigned* count, hipModule_t handle) {
  return with_error_handling(__func__, [&] {
    if (!count) return fail(hipErrorInvalidValue, "hipModuleGetFunctionCount: null pointer");
    const auto module = module_or_fail(handle);
    if (!module) return hipErrorInvalidHandle;
    *count = static_cast<unsigned>(module->object().kernels.size());
    return hipSuccess;
  });
}

VGPU_API hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t handle,
                                       const char* name) {
  return with_error_handling(__func__, [&] {
    if (!name || (!address && !bytes)) {
      return fail(hipErrorInvalidValue, "hipModuleGetGlobal: null pointer");
    }
    const auto module = module_or_fail(handle);
    if (!module) return hipErrorInvalidHandle;
    const auto it = module->object().globals.find(name);
    if (it == module->object().globals.end()) {
      return fail(hipErrorNotFound, "no device variable '" + std::string(name) + "' in the module");
    }
    if (address) *address = reinterpret_cast<void*>(it->second.address);
    if (bytes) *bytes = it->second.size;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute,
                                        hipFunction_t handle) {
  return with_error_handling(__func__, [&] {
    if (!value) return fail(hipErrorInvalidValue, "hipFuncGetAttribute: value is null");
    const auto function = functions().lookup(handle);
    if (!function) return fail(hipErrorInvalidDeviceFunction, "unknown hipFunction_t");
    return function_attribute(*function->kernel, attribute, value);
  });
}

VGPU_API hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* handle) {
  return with_error_handling(__func__, [&] {
    if (!attributes) return fail(hipErrorInvalidValue, "hipFuncGetAttributes: attributes is null");
    const auto function = resolve_function(handle);
    if (!function) return fail(hipErrorInvalidDeviceFunction, "unknown kernel function");
    const Kernel& kernel = *function->kernel;
    const DeviceInfo& device = device_info(kernel.object->arch);
    const int version = static_cast<int>(device.traits().major * 10 + device.traits().minor);
    *attributes = {};
    attributes->binaryVersion = attributes->ptxVersion = version;
    attributes->localSizeBytes = kernel.private_segment_bytes;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_lds_limit(kernel));
    attributes->maxThreadsPerBlock =
        static_cast<int>(std::min(kernel.max_workgroup_size, kMaxBlockThreads));
    attributes->numRegs = static_cast<int>(registers_of(kernel));
    attributes->sharedSizeBytes = kernel.group_segment_bytes;
    return hipSuccess;
  });
}

// The whole LDS is always available, so only the limit is checked.
VGPU_API hipError_t hipFuncSetAttribute(const void* handle, int attribute, int value) {
  return with_error_handling(__func__, [&] {
    const auto function = resolve_function(handle);
    if (!function) return fail(hipErrorInvalidDeviceFunction, "unknown kernel function");
    const bool is_lds = attribute == HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    const bool is_carveout = attribute == HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    if (!is_lds && !is_carveout) {
      return fail(hipErrorInvalidValue, "function attribute " + std::to_string(attribute));
    }
    const u32 limit = dynamic_lds_limit(*function->kernel);
    if (is_lds && (value < 0 || static_cast<u32>(value) > limit)) {
      return fail(hipErrorInvalidValue, std::to_string(value) + " bytes of dynamic LDS for " +
                                            function->kernel->name + ", at most " +
                                            std::to_string(limit));
    }
    return hipSuccess;
  });
}

VGPU_API hipError_t hipFuncSetCacheConfig(const void*, int) { return hipSuccess; }

VGPU_API hipError_t hipFuncSetSharedMemConfig(const void*, int) { return hipSuccess; }

VGPU_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                       hipFunction_t handle,
                                                                       int block,
                                                                       size_t dynamic_lds) {
  return with_error_handling(__func__, [&] {
    return occupancy(functions().lookup(handle).get(), block, dynamic_lds, blocks);
  });
}

VGPU_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, hipFunction_t handle, int block, size_t dynamic_lds, unsigned) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, block, dynamic_lds);
}

VGPU_API hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* handle,
                                                                 int block, size_t dynamic_lds) {
  return with_error_handling(__func__, [&] {
    return occupancy(resolve_function(handle).get(), block, dynamic_lds, blocks);
  });
}

VGPU_API hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* handle, int block, size_t dynamic_lds, unsigned) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, block, dynamic_lds);
}

VGPU_API hipError_t hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block,
                                                            hipFunction_t handle,
                                                            size_t dynamic_lds, int limit) {
  return with_error_handling(__func__, [&] {
    return best_block(functions().lookup(handle).get(), dynamic_lds, limit, grid, block);
  });
}

VGPU_API hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* handle,
                                                      size_t dynamic_lds, int limit) {
  return with_error_handling(__func__, [&] {
    return best_block(resolve_function(handle).get(), dynamic_lds, limit, grid, block);
  });
}

VGPU_API const char* hipKernelNameRef(hipFunction_t handle) {
  const auto function = functions().lookup(handle);
  return function ? function->kernel->name.c_str() : nullptr;
}
