// Statistics since the library was loaded.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

void count_instructions(u64 wave_instructions);
u64 instructions_executed();

}  // namespace vgpu
