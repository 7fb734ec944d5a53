// Reads the `amdhsa.kernels` list of the AMDGPU metadata note.
#pragma once

#include <map>
#include <string>

#include "vgpu/object/code_object.h"
#include "vgpu/object/elf.h"

namespace vgpu {

// Fills the metadata fields of each Kernel, by descriptor symbol (`name.kd`). Returns false if the
// note is corrupt.
bool read_kernel_metadata(Bytes note, std::map<std::string, Kernel>& kernels, std::string& error);

}  // namespace vgpu
