// Extracts the ELF of one architecture from the argument of hipModuleLoadData: a bare ELF, a
// __CLANG_OFFLOAD_BUNDLE__, or a compressed one.
#pragma once

#include <string>
#include <vector>

#include "vgpu/object/code_object.h"
#include "vgpu/object/elf.h"

namespace vgpu {

// Returns a copy of the code object for `arch`; `size` 0 as in load_code_object. Empty on failure.
std::vector<u8> extract_code_object(const u8* bytes, u64 size, Arch arch, std::string& error,
                                    LoadFailure& failure);

}  // namespace vgpu
