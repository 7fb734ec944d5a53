// Formats the record of a timed launch as JSON.
#pragma once

#include "vgpu/timing/launch_time.h"

namespace vgpu {

std::string timing_record(const Launch& launch, const GpuModel& model, const Sample& sample,
                          const TimingOptions& options, const LaunchTime& time,
                          const std::string& error, u64 number);

}  // namespace vgpu
