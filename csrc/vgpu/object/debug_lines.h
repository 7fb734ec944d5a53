// Source lines of a code object, read from DWARF .debug_line (versions 2 to 5).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vgpu/object/elf.h"

namespace vgpu {

struct SourceLine {
  std::string file;
  u32 line = 0;
};

// The line table of an ELF file. Corrupt or missing debug sections give an empty table, never an
// error.
class DebugLines {
 public:
  explicit DebugLines(Bytes elf);
  std::optional<SourceLine> find(u64 address) const;  // an ELF virtual address

 private:
  friend class LineProgram;
  struct Row {
    u64 begin, end;  // addresses
    u32 file;        // index in files_
    u32 line;
  };
  std::vector<Row> rows_;
  std::vector<std::string> files_;
};

}  // namespace vgpu
