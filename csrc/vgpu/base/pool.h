// The threads that help a launch. The launching thread always takes part.
#pragma once

#include <functional>

#include "vgpu/base/types.h"

namespace vgpu {

// Runs `work` on this thread and, when `parallelism` > 1 and they are free, on the pool's threads;
// returns when all of them have left it. Several launches at once: one has the pool, others run
// alone. While this thread waits for the others it calls `wait` every 50 ms.
void share_work(u64 parallelism, const std::function<void()>& work,
                const std::function<void()>& wait);

}  // namespace vgpu
