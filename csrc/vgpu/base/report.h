// Records for who watches a program from outside: `rfops run`. RFOPS_VGPU_REPORT names a folder; in
// it each process writes a file of its own, a line a record, whole whatever becomes of the process.
#pragma once

#include <string>

#include "vgpu/base/types.h"

namespace vgpu {

// Whether anybody does. Then each launch is counted.
bool reporting();

// `record` is a JSON value; what the line says it is: process, started, counted, timed, finding.
void report(const char* what, const std::string& record);

}  // namespace vgpu
