// The parameters of one kernel launch.
#pragma once

#include "vgpu/object/code_object.h"

namespace vgpu {

struct Launch {
  const Kernel* kernel = nullptr;
  u32 grid[3] = {1, 1, 1};   // in workgroups
  u32 block[3] = {1, 1, 1};  // in lanes
  u32 dynamic_lds = 0;
  const u8* kernarg = nullptr;  // explicit and hidden arguments, kernarg_bytes long
  u32 kernarg_bytes = 0;
};

}  // namespace vgpu
