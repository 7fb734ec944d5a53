// A launch's record as JSON.
#pragma once

#include "vgpu/timing/chip.h"

namespace vgpu {

std::string timing_record(const Launch& launch, const Part& part, const Sample& sample,
                          const TimingOptions& options, const LaunchTime& time,
                          const std::string& error, u64 number);

}  // namespace vgpu
