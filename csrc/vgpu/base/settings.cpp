#include "vgpu/base/settings.h"

#include <cstdlib>
#include <cstring>
#include <thread>

namespace vgpu {
namespace {

u64 number(const char* name, u64 default_value) {
  const char* text = std::getenv(name);
  if (!text || !*text) return default_value;
  char* end = nullptr;
  const u64 value = std::strtoull(text, &end, 10);
  return *end ? default_value : value;
}

u32 thread_count() {
  const u64 requested = number("RFOPS_VGPU_THREADS", 0);
  const u64 cores = std::thread::hardware_concurrency();
  const u64 count = requested ? requested : cores;
  return static_cast<u32>(count < 1 ? 1 : count > 256 ? 256 : count);
}

u32 check_level() {
  const char* text = std::getenv("RFOPS_VGPU_CHECK");
  if (text && std::strcmp(text, "error") == 0) return 2;
  const u64 value = number("RFOPS_VGPU_CHECK", 0);
  return static_cast<u32>(value > 2 ? 2 : value);
}

}  // namespace

const Settings& settings() {
  static const char* const text = std::getenv("RFOPS_VGPU_SCHEDULE");
  static const Settings read = {thread_count(), number("RFOPS_VGPU_MAX_STEPS", 0), check_level(),
                                text && *text ? text : "hardware"};
  return read;
}

}  // namespace vgpu
