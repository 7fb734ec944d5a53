#include "vgpu/object/debug_lines.h"

#include "vgpu/object/debug_inlines.h"
#include "vgpu/object/dwarf_reader.h"

namespace vgpu {
namespace {

using dwarf::Reader;
using dwarf::Sections;

constexpr u32 kMaxRows = 1 << 20, kMaxFiles = 1 << 14, kMaxFormats = 32;

enum Form : u32 {  // the DW_FORM_* that line tables use
  kFormBlock2 = 0x03,
  kFormBlock4 = 0x04,
  kFormData2 = 0x05,
  kFormData4 = 0x06,
  kFormData8 = 0x07,
  kFormString = 0x08,
  kFormBlock = 0x09,
  kFormBlock1 = 0x0a,
  kFormData1 = 0x0b,
  kFormSdata = 0x0d,
  kFormStrp = 0x0e,
  kFormUdata = 0x0f,
  kFormSecOffset = 0x17,
  kFormData16 = 0x1e,
  kFormLineStrp = 0x1f,
};
// Returns the size of a fixed-size number, or of the length of a block.
constexpr u32 form_bytes(u64 form) {
  switch (form) {
    case kFormData2:
    case kFormBlock2:
      return 2;
    case kFormData4:
    case kFormBlock4:
      return 4;
    case kFormData8:
      return 8;
    default:
      return 1;
  }
}

enum Content : u32 { kContentPath = 1, kContentDirectory = 2 };  // DW_LNCT_*

enum StandardOpcode : u32 {  // DW_LNS_*
  kExtended = 0,
  kCopy = 1,
  kAdvancePc = 2,
  kAdvanceLine = 3,
  kSetFile = 4,
  kSetColumn = 5,
  kConstAddPc = 8,
  kFixedAdvancePc = 9,
};
enum ExtendedOpcode : u32 { kEndSequence = 1, kSetAddress = 2, kDefineFile = 3 };  // DW_LNE_*

}  // namespace

// One unit of .debug_line: directory and file tables, then the program that generates the rows.
class LineProgram {
 public:
  LineProgram(DebugLines& lines, const Sections& sections) : lines_(lines), sections_(sections) {}

  void run(Bytes unit, bool is_dwarf64) {
    Reader reader(unit);
    offset_bytes_ = is_dwarf64 ? 8 : 4;
    version_ = static_cast<u32>(reader.fixed(2));
    if (version_ < 2 || version_ > 5) return;
    if (version_ >= 5) reader.skip(2);  // sizes of an address and a segment selector
    const u64 header_bytes = reader.fixed(offset_bytes_);
    const u64 program = reader.offset() + header_bytes;
    min_bytes_ = static_cast<u32>(reader.fixed(1));
    if (version_ >= 4) reader.skip(1);  // operations per instruction: always 1 here
    reader.skip(1);                     // default_is_stmt
    line_base_ = static_cast<i8>(reader.fixed(1));
    line_range_ = static_cast<u32>(reader.fixed(1));
    opcode_base_ = static_cast<u32>(reader.fixed(1));
    for (u32 op = 1; op < opcode_base_; ++op) operands_[op] = static_cast<u8>(reader.fixed(1));
    first_file_ = static_cast<u32>(lines_.files_.size());
    version_ >= 5 ? read_tables(reader) : read_old_tables(reader);
    if (!reader.ok() || !line_range_ || program < reader.offset()) return;
    reader.seek(program);
    execute(reader);
  }

 private:
  std::string join(u64 directory, std::string_view name) const {
    if (name.starts_with('/') || directory >= directories_.size()) return std::string(name);
    const std::string& folder = directories_[directory];
    return folder.empty() ? std::string(name) : folder + "/" + std::string(name);
  }
  void add_file(u64 directory, std::string_view name) {
    if (lines_.files_.size() < kMaxFiles) lines_.files_.push_back(join(directory, name));
  }

  void read_old_tables(Reader& reader) {
    directories_ = {""};  // the directory of compilation, which the table does not name
    for (auto name = reader.text(); !name.empty(); name = reader.text())
      directories_.emplace_back(name);
    lines_.files_.emplace_back();  // files count from 1
    for (auto name = reader.text(); !name.empty(); name = reader.text()) {
      add_file(reader.uleb(), name);
      reader.uleb();  // time
      reader.uleb();  // length
    }
  }

  struct Entry {
    std::string_view path;
    u64 directory = 0;
  };
  template <class AddEntry>
  void read_table(Reader& reader, AddEntry add) {
    struct Field {
      u64 content, form;
    } fields[kMaxFormats];
    const u64 field_count = reader.fixed(1);
    if (field_count > kMaxFormats) return void(reader.fail());
    for (u64 i = 0; i < field_count; ++i) {
      fields[i].content = reader.uleb();
      fields[i].form = reader.uleb();
    }
    const u64 count = reader.uleb();
    if (count && !field_count) return void(reader.fail());
    for (u64 e = 0; e < count && reader.ok(); ++e) {
      Entry entry;
      for (u64 i = 0; i < field_count; ++i)
        read_field(reader, fields[i].content, fields[i].form, entry);
      if (reader.ok()) add(entry);
    }
  }
  void read_tables(Reader& reader) {
    directories_.clear();
    read_table(reader, [&](const Entry& entry) { directories_.emplace_back(entry.path); });
    read_table(reader, [&](const Entry& entry) { add_file(entry.directory, entry.path); });
  }
  void read_field(Reader& reader, u64 content, u64 form, Entry& entry) {
    std::string_view text;
    u64 number = 0;
    switch (form) {
      case kFormString:
        text = reader.text();
        break;
      case kFormLineStrp:
        text = sections_.line_str.text(reader.fixed(offset_bytes_)).value_or("");
        break;
      case kFormStrp:
        text = sections_.str.text(reader.fixed(offset_bytes_)).value_or("");
        break;
      case kFormData1:
      case kFormData2:
      case kFormData4:
      case kFormData8:
        number = reader.fixed(form_bytes(form));
        break;
      case kFormUdata:
        number = reader.uleb();
        break;
      case kFormSdata:
        reader.sleb();
        break;
      case kFormData16:
        reader.skip(16);
        break;
      case kFormSecOffset:
        reader.skip(offset_bytes_);
        break;
      case kFormBlock:
        reader.skip(reader.uleb());
        break;
      case kFormBlock1:
      case kFormBlock2:
      case kFormBlock4:
        reader.skip(reader.fixed(form_bytes(form)));
        break;
      default:
        reader.fail();
    }
    if (content == kContentPath) entry.path = text;
    if (content == kContentDirectory) entry.directory = number;
  }

  // ------------------------------------------------------------------ the program

  struct State {
    u64 address = 0;
    u64 file = 1;
    i64 line = 1;
    bool has_row = false;
    u64 row_address = 0, row_file = 0;
    i64 row_line = 0;
  };

  // A row covers the addresses up to the next row.
  void emit(State& s) {
    if (s.has_row && s.address > s.row_address && lines_.rows_.size() < kMaxRows) {
      lines_.rows_.push_back({s.row_address, s.address, static_cast<u32>(first_file_ + s.row_file),
                              static_cast<u32>(s.row_line)});
    }
    s.has_row = true;
    s.row_address = s.address;
    s.row_file = s.file;
    s.row_line = s.line;
  }

  void extended(Reader& reader, State& s) {
    Reader body(reader.read_bytes(reader.uleb()));
    switch (body.fixed(1)) {
      case kEndSequence:
        emit(s);
        s = State{};
        break;
      case kSetAddress:
        s.address = body.fixed(8);
        break;
      case kDefineFile: {
        const auto name = body.text();
        add_file(body.uleb(), name);
        break;
      }
      default:
        break;
    }
  }

  void execute(Reader& reader) {
    State s;
    while (!reader.at_end()) {
      const u32 op = static_cast<u32>(reader.fixed(1));
      if (op >= opcode_base_) {
        s.address += u64{(op - opcode_base_) / line_range_} * min_bytes_;
        s.line += line_base_ + static_cast<i32>((op - opcode_base_) % line_range_);
        emit(s);
        continue;
      }
      switch (op) {
        case kExtended:
          extended(reader, s);
          break;
        case kCopy:
          emit(s);
          break;
        case kAdvancePc:
          s.address += reader.uleb() * min_bytes_;
          break;
        case kAdvanceLine:
          s.line += reader.sleb();
          break;
        case kSetFile:
          s.file = reader.uleb();
          break;
        case kConstAddPc:
          s.address += u64{(255 - opcode_base_) / line_range_} * min_bytes_;
          break;
        case kFixedAdvancePc:
          s.address += reader.fixed(2);
          break;
        default:
          for (u32 i = 0; i < operands_[op]; ++i) reader.uleb();
      }
    }
  }

  DebugLines& lines_;
  const Sections& sections_;
  std::vector<std::string> directories_;
  u32 offset_bytes_ = 4, version_ = 0, min_bytes_ = 1, line_range_ = 0, opcode_base_ = 0;
  i32 line_base_ = 0;
  u32 first_file_ = 0;
  u8 operands_[256] = {};
};

DebugLines::DebugLines(Bytes elf) {
  const Sections sections = dwarf::find_sections(elf);
  Reader reader(sections.line);
  while (!reader.at_end()) {
    units_.push_back({reader.offset(), static_cast<u32>(files_.size())});
    u64 length = reader.fixed(4);
    const bool is_dwarf64 = length == 0xffffffff;
    if (is_dwarf64) length = reader.fixed(8);
    const Bytes unit = reader.read_bytes(length);
    if (reader.ok()) LineProgram(*this, sections).run(unit, is_dwarf64);
  }
  calls_ = dwarf::inlined_calls(sections);
}

std::optional<SourceLine> DebugLines::find(u64 address) const {
  for (const Row& row : rows_) {
    if (address < row.begin || address >= row.end || !row.line || row.file >= files_.size())
      continue;
    return SourceLine{files_[row.file], row.line};
  }
  return std::nullopt;
}

std::vector<SourceLine> DebugLines::callers(u64 address) const {
  std::vector<SourceLine> found;
  for (const dwarf::InlinedCall& call : calls_) {
    if (address < call.begin || address >= call.end) continue;
    for (const Unit& unit : units_) {
      const u64 file = unit.first_file + call.file;
      if (unit.offset == call.line_table && file < files_.size())
        found.push_back({files_[file], call.line});
    }
  }
  return {found.rbegin(), found.rend()};
}

}  // namespace vgpu
