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
  // Of a dispatch packet (hsa/); otherwise the runner makes both, and workgroups are whole.
  const void* packet = nullptr;  // to which dispatch_ptr points
  const void* queue = nullptr;   // to which queue_ptr points
  u32 lanes[3] = {};      // the grid in lanes; the last workgroups may have fewer than `block`
  u32 private_bytes = 0;  // scratch per lane, if more than the kernel's own
};

}  // namespace vgpu
