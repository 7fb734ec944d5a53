// The one line a failure leaves on stderr, and the text that rfops_vgpu_last_error() returns.
#pragma once

#include <string>

namespace vgpu {

// RFOPS_VGPU_LOG: 0 nothing, 1 (default) refused or failed launches and loads, 2 every failed call.
int log_level();

// One line "rfops vgpu: ..." on stderr if `level` is enabled.
void log_line(int level, const std::string& text);

// The full text of the calling thread's latest failure.
void set_error_text(std::string text);
const std::string& error_text();

}  // namespace vgpu
