#include "vgpu/object/dwarf_reader.h"

namespace vgpu::dwarf {

namespace {

constexpr struct {
  std::string_view name;
  Bytes Sections::* member;
} kNames[] = {
    {".debug_line", &Sections::line},         {".debug_line_str", &Sections::line_str},
    {".debug_str", &Sections::str},           {".debug_info", &Sections::info},
    {".debug_abbrev", &Sections::abbrev},     {".debug_addr", &Sections::addr},
    {".debug_rnglists", &Sections::rnglists},
};

}  // namespace

Sections find_sections(Bytes file) {
  Sections sections;
  if (file.size < sizeof(elf::Header)) return sections;
  const auto header = load<elf::Header>(file.data);
  const auto section = [&](u32 i) -> std::optional<elf::Section> {
    const Bytes contents =
        file.slice(header.shoff + u64{i} * sizeof(elf::Section), sizeof(elf::Section));
    if (header.shentsize != sizeof(elf::Section) || contents.size < sizeof(elf::Section)) return {};
    return load<elf::Section>(contents.data);
  };
  const auto names = section(header.shstrndx);
  if (!names) return sections;
  const Bytes strings = file.slice(names->offset, names->size);
  constexpr u64 kCompressed = 1 << 11;
  for (u32 i = 1; i < header.shnum; ++i) {
    const auto row = section(i);
    if (!row || row->type == elf::kSectionNoBits || row->flags & kCompressed) continue;
    const auto name = strings.text(row->name);
    if (!name) continue;
    const Bytes content = file.slice(row->offset, row->size);
    for (const auto& [wanted, member] : kNames)
      if (*name == wanted) sections.*member = content;
  }
  return sections;
}

}  // namespace vgpu::dwarf
