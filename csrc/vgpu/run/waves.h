// Interleaves the waves of a workgroup: a few instructions each in turn, as the SIMDs of a compute
// unit issue them, or in random order.
#pragma once

#include "vgpu/isa/wave.h"
#include "vgpu/machine/schedule.h"

namespace vgpu {

struct WaveSet {
  Wave* waves;
  u32 count;
  Random* random;  // null: hardware order
};

// Runs until all waves have ended (returns true), about `slice` instructions have executed, or no
// wave can run and some sleep until other workgroups progress. Adds to `instructions`; `running` is
// the current wave, for fault messages.
bool run_waves(const WaveSet& group, u64 slice, u64& instructions, const Wave* volatile& running);

}  // namespace vgpu
