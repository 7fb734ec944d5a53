#include "vgpu/base/stats.h"

#include <atomic>

namespace vgpu {
namespace {
std::atomic<u64> executed{0};
}

void count_instructions(u64 wave_instructions) { executed += wave_instructions; }
u64 instructions_executed() { return executed; }

}  // namespace vgpu

// Returns the number of wave-instructions that this process has executed; the difference before and
// after a launch is the kernel's count.
extern "C" __attribute__((visibility("default"))) std::uint64_t rfops_vgpu_instructions() {
  return vgpu::instructions_executed();
}
