// Executes one kernel launch on the host's cores.
#pragma once

#include <string>

#include "code_object.h"

namespace vgpu {

struct Launch {
  const Kernel* kernel = nullptr;
  u32 grid[3] = {1, 1, 1};   // in workgroups
  u32 block[3] = {1, 1, 1};  // in lanes
  u32 dynamic_lds = 0;
  const u8* kernarg = nullptr;  // explicit and hidden arguments, kernarg_bytes long
  u32 kernarg_bytes = 0;
};

// Runs to the end (launches are synchronous). Empty on success; else the fault's text, which names
// kernel, instruction and offset.
std::string run(const Launch& launch);

}  // namespace vgpu
