// Loads code objects (raw ELF or __CLANG_OFFLOAD_BUNDLE__) into host memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "vgpu/isa/program.h"

namespace vgpu {

// One explicit or hidden argument from the AMDGPU metadata note.
struct KernelArg {
  std::string name;
  std::string value_kind;  // global_buffer, by_value, hidden_block_count_x, ...
  u32 offset = 0;
  u32 size = 0;
};

constexpr u64 kGridBarrierBytes = 48;  // behind a hidden_multigrid_sync_arg

// The kernel descriptor (64 bytes at `<name>.kd`) and the kernel's metadata.
struct Kernel {
  std::string name;
  struct CodeObject* object = nullptr;
  u64 descriptor = 0;             // its descriptor's host address, in the image
  u32 group_segment_bytes = 0;    // static LDS
  u32 private_segment_bytes = 0;  // scratch per lane
  bool dynamic_stack = false;
  u32 kernarg_bytes = 0;
  u32 entry = 0;  // dword index in the text
  u32 rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  u16 properties = 0;    // kernel_code_properties
  u16 preload = 0;       // kernarg_preload: length 6:0, offset 15:7, in dwords
  u32 vgpr_rows = 0;     // registers per lane that the descriptor allocates (arch + acc)
  u32 accum_offset = 0;  // row of the first AGPR
  // From the metadata note; for hipFuncGetAttribute and reports.
  u32 vgpr_count = 0, agpr_count = 0, sgpr_count = 0, vgpr_spills = 0, sgpr_spills = 0;
  u32 max_workgroup_size = 1024;
  bool has_metadata = false;  // otherwise the layout of the arguments is unknown
  std::vector<KernelArg> args;

  // Returns the dword index at which waves start: with preloaded arguments, behind a prologue of
  // 256 bytes.
  u32 first_instruction() const { return entry + (preload & 127 ? 64 : 0); }
};

struct CodeObject {
  Arch arch = Arch::kGfx950;
  u8* image = nullptr;   // segments at their virtual addresses, relocated
  u64 image_bytes = 0;   // length of the image; zeroed guard bytes follow
  u64 mapped_bytes = 0;  // size to unmap
  u64 base_address = 0;  // ELF virtual address of image[0]
  std::vector<u8> file;  // the original ELF, because debug lines are not part of the image
  std::unique_ptr<Program> program;
  std::map<std::string, Kernel> kernels;
  struct Symbol {
    u64 address;
    u64 size;
  };
  std::map<std::string, Symbol> globals;  // device variables, with host addresses

  CodeObject() = default;
  CodeObject(const CodeObject&) = delete;
  CodeObject& operator=(const CodeObject&) = delete;
  ~CodeObject();
};

enum class LoadFailure : u8 { kNone, kCorrupt, kWrongArch };

// Loads `bytes` for `arch`. On failure returns null and sets `error` (truncated, corrupt, no image
// for this architecture). `size` 0 means unknown (hipModuleLoadData passes only a pointer): the
// extent is then taken from the headers, and reads stop at the end of readable memory.
std::unique_ptr<CodeObject> load_code_object(const u8* bytes, u64 size, Arch arch,
                                             std::string& error, LoadFailure* failure = nullptr);

}  // namespace vgpu
