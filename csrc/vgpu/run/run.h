// Executes one kernel launch on the host's cores.
#pragma once

#include <string>

#include "vgpu/object/launch.h"

namespace vgpu {

// What the text of a launch ends with that a signal has ended.
inline constexpr const char* kInterrupted = "interrupted by a signal";

// Runs to the end (launches are synchronous). Empty on success; else the fault's text, which names
// kernel, instruction and offset.
std::string run(const Launch& launch);

}  // namespace vgpu
