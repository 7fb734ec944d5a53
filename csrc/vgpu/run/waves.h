// How the waves of a workgroup advance: in turn, a few instructions each, as the SIMDs of a compute
// unit issue them, or at random.
#pragma once

#include "vgpu/isa/wave.h"
#include "vgpu/machine/schedule.h"

namespace vgpu {

struct Turns {
  Wave* waves;
  u32 count;
  Random* random;  // null: as hardware has it
};

// Runs until all waves have ended, which gives true, or about `slice` instructions were executed,
// or none can go on and some sleep, for what other workgroups do. Adds to `instructions`; `running`
// tells those who catch a fault which wave it was.
bool take_turns(const Turns& turns, u64 slice, u64& instructions, const Wave* volatile& running);

}  // namespace vgpu
