// Cycles of an LDS access, with bank conflicts.
#pragma once

#include "vgpu/base/arch.h"
#include "vgpu/machine/memory_access.h"

namespace vgpu {

struct LdsCycles {
  u32 cycles;     // phases plus conflicts
  u32 conflicts;  // extra cycles for lanes of one phase that hit the same bank
};

// `base` is the host address of the workgroup's LDS.
LdsCycles lds_cycles(Arch arch, const Access& access, u64 base);

}  // namespace vgpu
