// Finds the ELF of one architecture in what a caller hands to hipModuleLoadData: a bare ELF, or a
// __CLANG_OFFLOAD_BUNDLE__ of several.
#pragma once

#include <string>
#include <vector>

#include "vgpu/object/code_object.h"
#include "vgpu/object/elf.h"

namespace vgpu {

// Copies the code object for `arch` out of `bytes`; `size` 0 as in load_code_object. Empty on
// failure.
std::vector<u8> extract_code_object(const u8* bytes, u64 size, Arch arch, std::string& error,
                                    LoadFailure& failure);

}  // namespace vgpu
