// Entry points of hipcc's host code: registration of embedded device code, kernel<<<>>>() launches,
// and device variables by their host symbols. Also hipGetProcAddress.
#include <dlfcn.h>

#include <map>
#include <optional>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/hip/hip_internal.h"

namespace vgpu {

namespace {

constexpr u32 kFatBinaryMagic = 0x48495046;  // "HIPF"

// __CudaFatBinaryWrapper of hipcc's host objects.
struct FatBinaryWrapper {
  u32 magic, version;
  const void* binary;  // an offload bundle
  void* unused;
};

// One embedded bundle, loaded per architecture at first use: registration happens before main(),
// where an error could not be returned.
struct FatBinary {
  const void* bundle = nullptr;
  std::mutex mutex;
  std::map<Arch, std::shared_ptr<Module>> loaded;
};

struct HostSymbol {
  std::shared_ptr<FatBinary> binary;
  std::string name;  // name in device code
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<FatBinary>> binaries;  // by handle
  std::unordered_map<const void*, HostSymbol> kernels, variables;        // by host address
};

Registry& registry() {
  static auto* const instance = new Registry;  // host code unregisters in exit handlers
  return *instance;
}

void add_symbol(bool is_kernel, void** handle, const void* host, const char* name) {
  Registry& symbols_registry = registry();
  std::unique_lock lock(symbols_registry.mutex);
  const auto binary = symbols_registry.binaries.find(handle);
  if (binary == symbols_registry.binaries.end() || !name) return;
  (is_kernel ? symbols_registry.kernels : symbols_registry.variables)[host] = {binary->second,
                                                                               name};
}

std::optional<HostSymbol> find_symbol(bool is_kernel, const void* host) {
  Registry& symbols_registry = registry();
  std::shared_lock lock(symbols_registry.mutex);
  const auto& symbols = is_kernel ? symbols_registry.kernels : symbols_registry.variables;
  const auto it = symbols.find(host);
  if (it == symbols.end()) return std::nullopt;
  return it->second;
}

std::shared_ptr<Module> module_of(FatBinary& binary, hipError_t& code) {
  const DeviceInfo* device = device_or_fail();
  code = hipErrorInvalidValue;
  if (!device) return nullptr;
  std::lock_guard lock(binary.mutex);
  std::shared_ptr<Module>& module = binary.loaded[device->arch];
  code = hipSuccess;
  if (!module) module = load_module(binary.bundle, 0, code);
  return module;
}

std::shared_ptr<Function> kernel_of(const void* host, hipError_t& code) {
  const auto symbol = find_symbol(true, host);
  if (!symbol) {
    code = fail(hipErrorInvalidDeviceFunction, "not the host function of a registered kernel");
    return nullptr;
  }
  const auto module = module_of(*symbol->binary, code);
  if (!module) return nullptr;
  Function* function = Module::function(module, symbol->name);
  if (!function) {
    code = fail(hipErrorInvalidDeviceFunction,
                "no kernel '" + symbol->name + "' in its code object", kLogAlways);
    return nullptr;
  }
  return std::shared_ptr<Function>(module, function);
}

hipError_t variable(const void* host, CodeObject::Symbol& out) {
  const auto symbol = find_symbol(false, host);
  if (!symbol) return fail(hipErrorInvalidSymbol, "not a registered device variable");
  hipError_t code;
  const auto module = module_of(*symbol->binary, code);
  if (!module) return code;
  const auto& globals = module->object().globals;
  const auto global = globals.find(symbol->name);
  if (global == globals.end()) {
    return fail(hipErrorInvalidSymbol,
                "no device variable '" + symbol->name + "' in its code object");
  }
  out = global->second;
  return hipSuccess;
}

// Returns the address of [offset, offset + size) of a variable.
hipError_t variable_range(const void* host, size_t offset, size_t size, void*& ptr) {
  CodeObject::Symbol symbol{};
  const hipError_t code = variable(host, symbol);
  if (code != hipSuccess) return code;
  if (offset > symbol.size || size > symbol.size - offset) {
    return fail(hipErrorInvalidValue, std::to_string(size) + " bytes at " + std::to_string(offset) +
                                          " of a device variable of " +
                                          std::to_string(symbol.size));
  }
  ptr = reinterpret_cast<void*>(symbol.address + offset);
  return hipSuccess;
}

hipError_t launch_host(const void* host, dim3 grid, dim3 block, void** args, size_t shared,
                       hipStream_t stream, bool cooperative) {
  hipError_t code;
  const auto function = kernel_of(host, code);
  if (!function) return code;
  LaunchRequest request{.grid = {grid.x, grid.y, grid.z},
                        .block = {block.x, block.y, block.z},
                        .dynamic_lds = shared,
                        .params = args,
                        .cooperative = cooperative,
                        .bad_shape = hipErrorInvalidConfiguration};
  return launch_on(stream, function, const_cast<void*>(host), request);
}

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  hipStream_t stream;
};
thread_local std::vector<CallConfiguration> t_configurations;

}  // namespace

std::shared_ptr<Function> resolve_function(const void* handle) {
  if (auto function = functions().lookup(handle)) return function;
  hipError_t code;
  return kernel_of(handle, code);
}

}  // namespace vgpu

using namespace vgpu;

VGPU_API void** __hipRegisterFatBinary(const void* data) {
  const auto* wrapper = static_cast<const FatBinaryWrapper*>(data);
  if (!wrapper || wrapper->magic != kFatBinaryMagic || !wrapper->binary) {
    log_line(kLogAlways, "__hipRegisterFatBinary: not the device code of a hipcc host object");
    return nullptr;
  }
  void** handle = nullptr;
  with_error_handling(__func__, [&] {
    auto binary = std::make_shared<FatBinary>();
    binary->bundle = wrapper->binary;
    handle = reinterpret_cast<void**>(binary.get());
    std::unique_lock lock(registry().mutex);
    registry().binaries[handle] = std::move(binary);
    return hipSuccess;
  });
  return handle;
}

VGPU_API void __hipUnregisterFatBinary(void** handle) {
  with_error_handling(__func__, [&] {
    Registry& symbols_registry = registry();
    std::unique_lock lock(symbols_registry.mutex);
    const auto it = symbols_registry.binaries.find(handle);
    if (it == symbols_registry.binaries.end()) return hipSuccess;
    const auto binary = it->second;
    symbols_registry.binaries.erase(it);
    std::erase_if(symbols_registry.kernels,
                  [&](const auto& entry) { return entry.second.binary == binary; });
    std::erase_if(symbols_registry.variables,
                  [&](const auto& entry) { return entry.second.binary == binary; });
    for (const auto& [arch, module] : binary->loaded) {
      if (module) module->retire_functions();
    }
    return hipSuccess;
  });
}

VGPU_API void __hipRegisterFunction(void** handle, const void* host, char*, const char* device_name,
                                    unsigned, void*, void*, void*, void*, int*) {
  with_error_handling(__func__, [&] {
    add_symbol(true, handle, host, device_name);
    return hipSuccess;
  });
}

VGPU_API void __hipRegisterVar(void** handle, void* host, char*, char* device_name, int, size_t,
                               int, int) {
  with_error_handling(__func__, [&] {
    add_symbol(false, handle, host, device_name);
    return hipSuccess;
  });
}

VGPU_API void __hipRegisterManagedVar(void*, void**, void*, const char* name, size_t, unsigned) {
  log_line(kLogAlways, "__managed__ variable " + std::string(name ? name : "?") +
                           " is not supported: use hipMallocManaged or a __device__ variable");
}

VGPU_API void __hipRegisterSurface(void**, void*, char*, char* name, int, int) {
  log_line(kLogAlways, "surface " + std::string(name ? name : "?") + ": images are not supported");
}

VGPU_API void __hipRegisterTexture(void**, void*, char*, char* name, int, int, int) {
  log_line(kLogAlways, "texture " + std::string(name ? name : "?") + ": images are not supported");
}

VGPU_API hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                               hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    t_configurations.push_back({grid, block, shared, stream});
    return hipSuccess;
  });
}

VGPU_API hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                              hipStream_t* stream) {
  return with_error_handling(__func__, [&] {
    if (t_configurations.empty() || !grid || !block || !shared || !stream) {
      return fail(hipErrorMissingConfiguration, "no <<<>>> configuration is pending");
    }
    const CallConfiguration top = t_configurations.back();
    t_configurations.pop_back();
    *grid = top.grid, *block = top.block, *shared = top.shared, *stream = top.stream;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipLaunchKernel(const void* host, dim3 grid, dim3 block, void** args,
                                    size_t shared, hipStream_t stream) {
  return with_error_handling(
      __func__, [&] { return launch_host(host, grid, block, args, shared, stream, false); });
}

VGPU_API hipError_t hipLaunchCooperativeKernel(const void* host, dim3 grid, dim3 block, void** args,
                                               unsigned shared, hipStream_t stream) {
  return with_error_handling(
      __func__, [&] { return launch_host(host, grid, block, args, shared, stream, true); });
}

VGPU_API hipError_t hipExtLaunchKernel(const void* host, dim3 grid, dim3 block, void** args,
                                       size_t shared, hipStream_t stream, hipEvent_t start,
                                       hipEvent_t stop, int) {
  return with_error_handling(__func__, [&] {
    hipError_t code = start ? record_on(start, stream, 0) : hipSuccess;
    if (code == hipSuccess) code = launch_host(host, grid, block, args, shared, stream, false);
    if (code == hipSuccess && stop) code = record_on(stop, stream, 0);
    return code;
  });
}

VGPU_API hipError_t hipGetFuncBySymbol(hipFunction_t* function, const void* host) {
  return with_error_handling(__func__, [&] {
    if (!function) return fail(hipErrorInvalidValue, "hipGetFuncBySymbol: null pointer");
    hipError_t code;
    const auto kernel = kernel_of(host, code);
    if (kernel) *function = reinterpret_cast<hipFunction_t>(kernel.get());
    return code;
  });
}

VGPU_API hipError_t hipGetSymbolAddress(void** address, const void* host) {
  return with_error_handling(__func__, [&] {
    if (!address) return fail(hipErrorInvalidValue, "hipGetSymbolAddress: null pointer");
    return variable_range(host, 0, 0, *address);
  });
}

VGPU_API hipError_t hipGetSymbolSize(size_t* size, const void* host) {
  return with_error_handling(__func__, [&] {
    if (!size) return fail(hipErrorInvalidValue, "hipGetSymbolSize: null pointer");
    CodeObject::Symbol symbol{};
    const hipError_t code = variable(host, symbol);
    if (code == hipSuccess) *size = symbol.size;
    return code;
  });
}

VGPU_API hipError_t hipMemcpyToSymbol(const void* host, const void* src, size_t size, size_t offset,
                                      hipMemcpyKind kind) {
  return with_error_handling(__func__, [&] {
    void* ptr = nullptr;
    const hipError_t code = variable_range(host, offset, size, ptr);
    return code == hipSuccess ? copy_memory(ptr, src, size, kind) : code;
  });
}

VGPU_API hipError_t hipMemcpyFromSymbol(void* dst, const void* host, size_t size, size_t offset,
                                        hipMemcpyKind kind) {
  return with_error_handling(__func__, [&] {
    void* ptr = nullptr;
    const hipError_t code = variable_range(host, offset, size, ptr);
    return code == hipSuccess ? copy_memory(dst, ptr, size, kind) : code;
  });
}

VGPU_API hipError_t hipMemcpyToSymbolAsync(const void* host, const void* src, size_t size,
                                           size_t offset, hipMemcpyKind kind, hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    void* ptr = nullptr;
    const hipError_t code = variable_range(host, offset, size, ptr);
    return code == hipSuccess ? submit(stream, copy_work(ptr, src, size, kind)) : code;
  });
}

VGPU_API hipError_t hipMemcpyFromSymbolAsync(void* dst, const void* host, size_t size,
                                             size_t offset, hipMemcpyKind kind,
                                             hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    void* ptr = nullptr;
    const hipError_t code = variable_range(host, offset, size, ptr);
    return code == hipSuccess ? submit(stream, copy_work(dst, ptr, size, kind)) : code;
  });
}

// Takes a pointer to the bundle, or to hipcc's wrapper around it.
VGPU_API hipError_t hipModuleLoadFatBinary(hipModule_t* module, const void* image) {
  return with_error_handling(__func__, [&] {
    if (!module || !image) return fail(hipErrorInvalidValue, "module load: null pointer");
    FatBinaryWrapper wrapper{};
    std::memcpy(&wrapper.magic, image, sizeof(wrapper.magic));
    if (wrapper.magic == kFatBinaryMagic) std::memcpy(&wrapper, image, sizeof(wrapper));
    hipError_t code;
    auto loaded = load_module(wrapper.binary ? wrapper.binary : image, 0, code);
    if (loaded) *module = reinterpret_cast<hipModule_t>(modules().add(std::move(loaded)));
    return code;
  });
}

// Returns any function of this library by name. The requested version matters only for layouts that
// HIP changed before ROCm 6, which are not supported.
VGPU_API hipError_t hipGetProcAddress(const char* symbol, void** function, int, uint64_t,
                                      hipDriverProcAddressQueryResult* result) {
  return with_error_handling(__func__, [&] {
    if (!symbol || !function) return fail(hipErrorInvalidValue, "hipGetProcAddress: null pointer");
    static void* const self = [] {
      Dl_info info{};
      if (!dladdr(reinterpret_cast<const void*>(&hipGetProcAddress), &info)) return (void*)nullptr;
      return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    const std::string_view name = symbol;
    const bool own_function = name.starts_with("hip") || name.starts_with("__hip");
    *function = self && own_function ? dlsym(self, symbol) : nullptr;
    if (result) {
      *result = *function ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    if (*function) return hipSuccess;
    return fail(hipErrorNotFound,
                "hipGetProcAddress: the virtual GPU has no " + std::string(name.substr(0, 100)));
  });
}
