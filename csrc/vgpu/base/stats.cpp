#include "vgpu/base/stats.h"

#include <atomic>

namespace vgpu {
namespace {
std::atomic<u64> executed{0};
}

void count_instructions(u64 wave_instructions) { executed += wave_instructions; }
u64 instructions_executed() { return executed; }

}  // namespace vgpu

// Wave-instructions executed by this process so far: launches before and after give a kernel's
// count.
extern "C" __attribute__((visibility("default"))) std::uint64_t rfops_vgpu_instructions() {
  return vgpu::instructions_executed();
}
