// How many cycles an LDS access takes by the banks it meets.
#pragma once

#include "vgpu/base/arch.h"
#include "vgpu/machine/memory_access.h"

namespace vgpu {

struct LdsCycles {
  u32 cycles;     // phases and conflicts
  u32 conflicts;  // the part that lanes of one phase cost by meeting in a bank
};

// `base` is the host address of the workgroup's LDS.
LdsCycles lds_cycles(Arch arch, const Access& access, u64 base);

}  // namespace vgpu
