// Executes one kernel launch on the host's cores.
#pragma once

#include <string>

#include "vgpu/object/launch.h"

namespace vgpu {

// The end of the error text of a launch that a signal has ended.
inline constexpr const char* kInterrupted = "interrupted by a signal";

// Runs a launch to its end (launches are synchronous). Returns an empty text, or that of the fault,
// which names kernel, instruction and offset.
std::string run(const Launch& launch);

// What a fault's text is about.
enum class FaultKind : u8 { kTimeout, kMemory, kOther };
FaultKind fault_kind(const std::string& text);

}  // namespace vgpu
