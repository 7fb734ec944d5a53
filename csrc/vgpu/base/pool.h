// The host threads that help execute a launch, besides the launching thread.
#pragma once

#include <functional>

#include "vgpu/base/types.h"

namespace vgpu {

// Runs `work` on this thread and, if `parallelism` > 1 and the pool is free, on the pool's threads.
// Returns when all of them have finished. Of several concurrent launches one gets the pool; the
// others run on their own thread. While this thread waits for the pool it calls `wait` every 50 ms.
void share_work(u64 parallelism, const std::function<void()>& work,
                const std::function<void()>& wait);

}  // namespace vgpu
