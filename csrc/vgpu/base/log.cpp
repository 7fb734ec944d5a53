#include "vgpu/base/log.h"

#include <cstdio>
#include <cstdlib>

namespace vgpu {
namespace {

thread_local std::string t_error_text;

}  // namespace

int log_level() {
  static const int level = [] {
    const char* value = std::getenv("RFOPS_VGPU_LOG");
    return value && *value ? std::atoi(value) : 1;
  }();
  return level;
}

void log_line(int level, const std::string& text) {
  if (level > log_level()) return;
  const std::string line = "rfops vgpu: " + text + "\n";  // one write: threads do not interleave
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void set_error_text(std::string text) { t_error_text = std::move(text); }

const std::string& error_text() { return t_error_text; }

}  // namespace vgpu
