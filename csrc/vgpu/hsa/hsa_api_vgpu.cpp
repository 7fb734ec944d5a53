// The virtual GPU's own functions, which the HIP interface has too. A library that is linked
// against this one finds them through its own handle, as rfops does through AMD's HIP runtime.
#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/machine/schedule.h"
#include "vgpu/run/run.h"

using namespace vgpu;

// Returns the reason of what failed last: a call of this thread, or a packet of a queue that still
// exists. "" if nothing did. Valid until the thread's next call.
HSA_API const char* rfops_vgpu_last_error() {
  static thread_local std::string text;
  const QueueError queue_error = last_queue_error();
  text = queue_error.failure > thread_failure() ? queue_error.text : error_text();
  return text.c_str();
}

// The runtime above reads the device's properties once, so that the architecture stays.
HSA_API int rfops_vgpu_set_arch(const char* name) {
  const std::string processor = std::string(name ? name : "").substr(0, 6);
  if (processor == arch_name(device().arch)) return 0;
  fail(kInvalidArgument, "architecture '" + processor + "': the device of AMD's runtime is " +
                             arch_name(device().arch) +
                             " from its start; choose with RFOPS_VGPU_ARCH");
  return 1;
}

// Timing follows; properties that the runtime above has read do not.
HSA_API int rfops_vgpu_set_part(const char* name) {
  std::string error;
  if (name && select_model(name, error)) return 0;
  fail(kInvalidArgument, error);
  return 1;
}

HSA_API int rfops_vgpu_schedule(const char* text) {
  const std::string error = set_schedule(text ? text : "");
  if (error.empty()) return 0;
  fail(kInvalidArgument, error);
  return 1;
}

// Calls `observer` for each dispatch packet, in the thread that rings its doorbell; null: no more.
HSA_API void rfops_vgpu_observe_launches(LaunchObserver observer) { set_launch_observer(observer); }

// Calls `observer` for each copy and fill, in the thread that asks for it; null: no more.
HSA_API void rfops_vgpu_observe_writes(WriteObserver observer) { set_write_observer(observer); }
