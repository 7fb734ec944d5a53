// Logging: one line per failure on stderr, and the error text that rfops_vgpu_last_error() returns.
#pragma once

#include <string>

namespace vgpu {

// Returns RFOPS_VGPU_LOG: 0 nothing, 1 (default) rejected or failed launches and loads, 2 every
// failed call.
int log_level();

// Prints one line "rfops vgpu: ..." on stderr if `level` is enabled.
void log_line(int level, const std::string& text);

// Sets the full text of the calling thread's latest failure.
void set_error_text(std::string text);
const std::string& error_text();

}  // namespace vgpu
