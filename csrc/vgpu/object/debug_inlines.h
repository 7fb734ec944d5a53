// Inlined calls of a code object, read from DWARF .debug_info (version 5, as clang writes it).
#pragma once

#include <vector>

#include "vgpu/object/dwarf_reader.h"

namespace vgpu::dwarf {

// A range of addresses that a call was inlined to.
struct InlinedCall {
  u64 begin, end;
  u64 line_table;  // offset of the unit's line table in .debug_line
  u64 file;        // of the call: an index of that table
  u32 line;
};

// Returns all inlined calls, outer ones before those inside them. Corrupt, missing or other debug
// information gives none, or those before the first fault.
std::vector<InlinedCall> inlined_calls(const Sections& sections);

}  // namespace vgpu::dwarf
