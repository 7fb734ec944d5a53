// Records for an outside process, `rfops run`. RFOPS_VGPU_REPORT names a directory; each process
// writes a file in it, one record per line, complete even if the process crashes.
#pragma once

#include <string>

#include "vgpu/base/types.h"

namespace vgpu {

// Returns whether RFOPS_VGPU_REPORT is set; then every launch is counted.
bool reporting();

// Writes a record. `record` is a JSON value; `kind` is process, started, counted, timed or finding.
void report(const char* kind, const std::string& record);

}  // namespace vgpu
