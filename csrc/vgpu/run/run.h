// Executes one kernel launch on the host's cores.
#pragma once

#include <string>

#include "vgpu/object/launch.h"

namespace vgpu {

// Runs to the end (launches are synchronous). Empty on success; else the fault's text, which names
// kernel, instruction and offset.
std::string run(const Launch& launch);

}  // namespace vgpu
