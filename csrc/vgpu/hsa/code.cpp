// Executables: code objects that are loaded, and their symbols.
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "vgpu/hsa/hsa_internal.h"

namespace vgpu {
namespace {

struct Reader {
  const u8* bytes;
  u64 size;
};

struct Symbol {
  std::string name;
  const Kernel* kernel = nullptr;  // null: a variable
  CodeObject::Symbol variable{};
};

struct Executable {
  std::mutex mutex;
  bool is_frozen = false;
  std::vector<std::unique_ptr<CodeObject>> objects;
  std::map<std::string, std::unique_ptr<Symbol>> symbols;  // those that were asked for
};

// All kernels by the addresses of their descriptors.
struct KernelTable {
  std::shared_mutex mutex;
  std::map<u64, const Kernel*> kernels;
};

KernelTable& kernel_table() {
  static auto* const table = new KernelTable;
  return *table;
}

void add_kernels(const CodeObject& object) {
  KernelTable& table = kernel_table();
  const std::unique_lock lock(table.mutex);
  for (const auto& [name, kernel] : object.kernels) table.kernels[kernel.descriptor] = &kernel;
}

void remove_kernels(const CodeObject& object) {
  KernelTable& table = kernel_table();
  const std::unique_lock lock(table.mutex);
  for (const auto& [name, kernel] : object.kernels) table.kernels.erase(kernel.descriptor);
}

Executable* executable_of(HsaExecutable handle) {
  return reinterpret_cast<Executable*>(handle.handle);
}

std::unique_ptr<Symbol> find_symbol(const Executable& executable, const std::string& name) {
  constexpr std::string_view kSuffix = ".kd";
  for (const auto& object : executable.objects) {
    if (name.ends_with(kSuffix)) {
      const auto kernel = object->kernels.find(name.substr(0, name.size() - kSuffix.size()));
      if (kernel == object->kernels.end()) continue;
      return std::make_unique<Symbol>(Symbol{name, &kernel->second, {}});
    }
    if (const auto it = object->globals.find(name); it != object->globals.end()) {
      return std::make_unique<Symbol>(Symbol{name, nullptr, it->second});
    }
  }
  return nullptr;
}

Status kernel_info(const Kernel& kernel, u32 attribute, void* out) {
  constexpr u32 kKernargAlignment = 16;
  switch (attribute) {
    case 22:  // KERNEL_OBJECT
      store<u64>(out, kernel.descriptor);
      return kSuccess;
    case 11:  // KERNEL_KERNARG_SEGMENT_SIZE
      store<u32>(out, kernel.kernarg_bytes);
      return kSuccess;
    case 12:  // KERNEL_KERNARG_SEGMENT_ALIGNMENT
      store<u32>(out, kKernargAlignment);
      return kSuccess;
    case 13:  // KERNEL_GROUP_SEGMENT_SIZE
      store<u32>(out, kernel.group_segment_bytes);
      return kSuccess;
    case 14:  // KERNEL_PRIVATE_SEGMENT_SIZE
      store<u32>(out, kernel.private_segment_bytes);
      return kSuccess;
    case 15:  // KERNEL_DYNAMIC_CALLSTACK
      store<bool>(out, kernel.dynamic_stack);
      return kSuccess;
    default:
      return fail(kInvalidArgument, "hsa_executable_symbol_get_info: attribute " +
                                        std::to_string(attribute) + " of kernel " + kernel.name);
  }
}

Status variable_info(const Symbol& symbol, u32 attribute, void* out) {
  switch (attribute) {
    case 21:  // VARIABLE_ADDRESS
      store<u64>(out, symbol.variable.address);
      return kSuccess;
    case 9:  // VARIABLE_SIZE
      store<u32>(out, static_cast<u32>(symbol.variable.size));
      return kSuccess;
    default:
      return fail(kInvalidArgument, "hsa_executable_symbol_get_info: attribute " +
                                        std::to_string(attribute) + " of variable " + symbol.name);
  }
}

}  // namespace

const Kernel* find_kernel(u64 descriptor) {
  KernelTable& table = kernel_table();
  const std::shared_lock lock(table.mutex);
  const auto it = table.kernels.find(descriptor);
  return it == table.kernels.end() ? nullptr : it->second;
}

}  // namespace vgpu

using namespace vgpu;

HSA_API Status hsa_code_object_reader_create_from_memory(const void* bytes, size_t size,
                                                         HsaReader* out) {
  return with_error_handling(__func__, [&] {
    if (!bytes || !size || !out) return kInvalidArgument;
    out->handle = reinterpret_cast<u64>(new Reader{static_cast<const u8*>(bytes), size});
    return kSuccess;
  });
}

HSA_API Status hsa_code_object_reader_destroy(HsaReader handle) {
  if (!handle.handle) return kInvalidCodeObjectReader;
  delete reinterpret_cast<Reader*>(handle.handle);
  return kSuccess;
}

HSA_API Status hsa_executable_create_alt(u32, u32, const char*, HsaExecutable* out) {
  return with_error_handling(__func__, [&] {
    if (!out) return kInvalidArgument;
    out->handle = reinterpret_cast<u64>(new Executable);
    return kSuccess;
  });
}

HSA_API Status hsa_executable_destroy(HsaExecutable handle) {
  return with_error_handling(__func__, [&] {
    const std::unique_ptr<Executable> executable(executable_of(handle));
    if (!executable) return kInvalidExecutable;
    for (const auto& object : executable->objects) remove_kernels(*object);
    return kSuccess;
  });
}

HSA_API Status hsa_executable_load_agent_code_object(HsaExecutable handle, HsaAgent agent,
                                                     HsaReader reader_handle, const char*, u64*) {
  return with_error_handling(__func__, [&] {
    Executable* const executable = executable_of(handle);
    const auto* const reader = reinterpret_cast<const Reader*>(reader_handle.handle);
    if (!executable) return kInvalidExecutable;
    if (!reader) return kInvalidCodeObjectReader;
    if (agent != kGpuAgent) return kInvalidAgent;
    std::string error;
    LoadFailure failure = LoadFailure::kNone;
    auto object = load_code_object(reader->bytes, reader->size, device().arch, error, &failure);
    if (!object) {
      return fail(failure == LoadFailure::kWrongArch ? kIncompatibleArguments : kInvalidCodeObject,
                  error, kLogAlways);
    }
    const std::lock_guard lock(executable->mutex);
    if (executable->is_frozen) return kFrozenExecutable;
    add_kernels(*object);
    executable->objects.push_back(std::move(object));
    return kSuccess;
  });
}

HSA_API Status hsa_executable_agent_global_variable_define(HsaExecutable, HsaAgent,
                                                           const char* name, void*) {
  return fail(kError,
              std::string("hsa_executable_agent_global_variable_define(") + (name ? name : "") +
                  "): code that refers to variables outside its code object is not supported",
              kLogAlways);
}

HSA_API Status hsa_executable_freeze(HsaExecutable handle, const char*) {
  Executable* const executable = executable_of(handle);
  if (!executable) return kInvalidExecutable;
  const std::lock_guard lock(executable->mutex);
  if (executable->is_frozen) return kFrozenExecutable;
  executable->is_frozen = true;
  return kSuccess;
}

HSA_API Status hsa_executable_get_symbol_by_name(HsaExecutable handle, const char* name,
                                                 const HsaAgent*, HsaSymbol* out) {
  return with_error_handling(__func__, [&] {
    Executable* const executable = executable_of(handle);
    if (!executable) return kInvalidExecutable;
    if (!name || !out) return kInvalidArgument;
    const std::lock_guard lock(executable->mutex);
    std::unique_ptr<Symbol>& symbol = executable->symbols[name];
    if (!symbol) symbol = find_symbol(*executable, name);
    if (!symbol) {
      executable->symbols.erase(name);
      return fail(kInvalidSymbolName, "no symbol " + std::string(name) + " in the executable");
    }
    out->handle = reinterpret_cast<u64>(symbol.get());
    return kSuccess;
  });
}

HSA_API Status hsa_executable_symbol_get_info(HsaSymbol handle, u32 attribute, void* out) {
  return with_error_handling(__func__, [&] {
    const auto* const symbol = reinterpret_cast<const Symbol*>(handle.handle);
    if (!symbol || !out) return kInvalidArgument;
    switch (attribute) {
      case 0:  // TYPE: variable, kernel
        store<u32>(out, symbol->kernel != nullptr);
        return kSuccess;
      case 1:  // NAME_LENGTH
        store<u32>(out, static_cast<u32>(symbol->name.size()));
        return kSuccess;
      case 2:  // NAME, without a terminator
        std::memcpy(out, symbol->name.data(), symbol->name.size());
        return kSuccess;
      case 20:  // AGENT
        store<HsaAgent>(out, kGpuAgent);
        return kSuccess;
      case 5:  // LINKAGE: program
        store<u32>(out, 1);
        return kSuccess;
      case 17:  // IS_DEFINITION
        store<bool>(out, true);
        return kSuccess;
      default:
        return symbol->kernel ? kernel_info(*symbol->kernel, attribute, out)
                              : variable_info(*symbol, attribute, out);
    }
  });
}
