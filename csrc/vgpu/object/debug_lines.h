// Source lines of a code object, read from DWARF .debug_line (versions 2 to 5), and where functions
// that are inlined there were called, from .debug_info.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vgpu/object/debug_inlines.h"

namespace vgpu {

struct SourceLine {
  std::string file;
  u32 line = 0;
  std::string text() const { return file + ":" + std::to_string(line); }
};

// The line table of an ELF file. Corrupt or missing debug sections give an empty table, never an
// error.
class DebugLines {
 public:
  explicit DebugLines(Bytes elf);
  std::optional<SourceLine> find(u64 address) const;  // an ELF virtual address
  // Returns the lines of the calls that were inlined around an address, the innermost first.
  std::vector<SourceLine> callers(u64 address) const;

 private:
  friend class LineProgram;
  struct Row {
    u64 begin, end;  // addresses
    u32 file;        // index in files_
    u32 line;
  };
  struct Unit {
    u64 offset;      // in .debug_line
    u32 first_file;  // its first entry of files_
  };
  std::vector<Unit> units_;
  std::vector<Row> rows_;
  std::vector<std::string> files_;
  std::vector<dwarf::InlinedCall> calls_;  // outer ones before those inside them
};

}  // namespace vgpu
