// Fuzzes the code-object loader: offload bundle, ELF, relocations, MessagePack metadata, kernel
// descriptors, debug lines. Input: what a caller hands to hipModuleLoadData, which gives no length,
// so the bytes end where readable memory ends. Any input loads or is refused with a text.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "vgpu/hip/hip_internal.h"
#include "vgpu/isa/program.h"
#include "vgpu/object/debug_lines.h"

extern "C" {
hipError_t hipModuleLoadData(hipModule_t*, const void*);
hipError_t hipModuleUnload(hipModule_t);
hipError_t hipModuleGetFunction(hipFunction_t*, hipModule_t, const char*);
int rfops_vgpu_set_arch(const char*);
const char* rfops_vgpu_last_error();
}

namespace {

using namespace vgpu;

constexpr u64 kAreaBytes = u64{4} << 20, kPage = 4096;

void require(bool holds) {
  if (!holds) std::abort();
}

// The end of an area behind which nothing can be read.
u8* area_end() {
  static u8* const end = [] {
    void* area = mmap(nullptr, kAreaBytes + kPage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(area != MAP_FAILED);
    u8* guard = static_cast<u8*>(area) + kAreaBytes;
    require(!mprotect(guard, kPage, PROT_NONE));
    return guard;
  }();
  return end;
}

// Looks at everything that a loaded module offers.
void inspect(hipModule_t handle) {
  const auto module = modules().lookup(handle);
  require(module != nullptr);
  const CodeObject& object = module->object();
  const DebugLines lines({object.file.data(), object.file.size()});
  for (const auto& [name, kernel] : object.kernels) {
    hipFunction_t function = nullptr;
    if (name.find('\0') == name.npos) {
      require(hipModuleGetFunction(&function, handle, name.c_str()) == hipSuccess && function);
    }
    require(kernel.entry < object.program->count);
    for (const KernelArg& arg : kernel.args) {
      require(u64{arg.offset} + arg.size <= kernel.kernarg_bytes);
    }
    Inst inst;
    decode(object.arch, object.program->words, object.program->count, kernel.entry, inst);
    lines.find(object.base_address + u64{kernel.entry} * 4);
    lines.callers(object.base_address + u64{kernel.entry} * 4);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("RFOPS_VGPU_LOG", "0", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const u8* data, size_t size) {
  if (size > kAreaBytes) return 0;
  u8* const image = area_end() - size;
  std::memcpy(image, data, size);
  for (const char* arch : {"gfx942", "gfx950"}) {
    require(rfops_vgpu_set_arch(arch) == hipSuccess);
    hipModule_t module = nullptr;
    const hipError_t code = hipModuleLoadData(&module, image);
    if (code == hipSuccess) {
      inspect(module);
      require(hipModuleUnload(module) == hipSuccess);
    } else {
      require(code == hipErrorInvalidImage || code == hipErrorNoBinaryForGpu);
      require(*rfops_vgpu_last_error());
    }
    std::string error;  // as from a file, whose length is known
    load_code_object(data, size, arch == std::string("gfx942") ? Arch::kGfx942 : Arch::kGfx950,
                     error);
  }
  return 0;
}
