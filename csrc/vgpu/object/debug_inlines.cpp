#include "vgpu/object/debug_inlines.h"

#include <map>

namespace vgpu::dwarf {
namespace {

constexpr std::size_t kMaxCalls = 1 << 18, kMaxAttributes = 64;

enum Tag : u64 { kTagInlinedSubroutine = 0x1d };
enum Attribute : u64 {
  kAtStmtList = 0x10,
  kAtLowPc = 0x11,
  kAtHighPc = 0x12,
  kAtRanges = 0x55,
  kAtCallFile = 0x58,
  kAtCallLine = 0x59,
  kAtAddrBase = 0x73,
  kAtRnglistsBase = 0x74,
};

struct Field {
  u64 attribute, form;
  i64 constant;  // of DW_FORM_implicit_const
};
struct Abbreviation {
  u64 tag = 0;
  bool has_children = false;
  std::vector<Field> fields;
};

// What a form's bytes are; the number of a DW_FORM_* is the index.
enum class Kind : u8 { kUnknown, kFixed, kUleb, kSleb, kOffset, kBlock, kString, kNone };
struct FormRow {
  u64 form;
  Kind kind;
  u8 bytes;  // of kFixed; of a kBlock's length, 0: ULEB
};
constexpr u64 kFormAddr = 0x01, kFormImplicitConst = 0x21, kFormRnglistx = 0x23;
constexpr u64 kFormAddrx = 0x1b, kFormAddrx1 = 0x29, kFormAddrx4 = 0x2c;
constexpr FormRow kForms[] = {
    {kFormAddr, Kind::kFixed, 8}, {0x03, Kind::kBlock, 2},
    {0x04, Kind::kBlock, 4},      {0x05, Kind::kFixed, 2},
    {0x06, Kind::kFixed, 4},      {0x07, Kind::kFixed, 8},
    {0x08, Kind::kString, 0},     {0x09, Kind::kBlock, 0},
    {0x0a, Kind::kBlock, 1},      {0x0b, Kind::kFixed, 1},
    {0x0c, Kind::kFixed, 1},      {0x0d, Kind::kSleb, 0},
    {0x0e, Kind::kOffset, 0},     {0x0f, Kind::kUleb, 0},
    {0x10, Kind::kOffset, 0},     {0x11, Kind::kFixed, 1},
    {0x12, Kind::kFixed, 2},      {0x13, Kind::kFixed, 4},
    {0x14, Kind::kFixed, 8},      {0x15, Kind::kUleb, 0},
    {0x17, Kind::kOffset, 0},     {0x18, Kind::kBlock, 0},
    {0x19, Kind::kNone, 0},       {0x1a, Kind::kUleb, 0},
    {kFormAddrx, Kind::kUleb, 0}, {0x1e, Kind::kFixed, 16},
    {0x1f, Kind::kOffset, 0},     {kFormImplicitConst, Kind::kNone, 0},
    {0x22, Kind::kUleb, 0},       {kFormRnglistx, Kind::kUleb, 0},
    {0x25, Kind::kFixed, 1},      {0x26, Kind::kFixed, 2},
    {0x28, Kind::kFixed, 4},      {kFormAddrx1, Kind::kFixed, 1},
    {0x2a, Kind::kFixed, 2},      {kFormAddrx4, Kind::kFixed, 4},
};

constexpr bool is_index_of_address(u64 form) {
  return form == kFormAddrx || (form >= kFormAddrx1 && form <= kFormAddrx4);
}

// A unit of .debug_info.
class UnitReader {
 public:
  UnitReader(const Sections& sections, std::vector<InlinedCall>& calls)
      : sections_(sections), calls_(calls) {}

  void run(Reader& reader) {
    if (reader.fixed(2) != 5) return;
    reader.skip(2);  // kind of the unit, size of an address
    read_abbreviations(reader.fixed(4));
    bool is_first = true;
    for (u32 depth = 0; !reader.at_end() && calls_.size() < kMaxCalls;) {
      const u64 code = reader.uleb();
      if (!code) {
        if (depth-- <= 1) return;
        continue;
      }
      const auto found = abbreviations_.find(code);
      if (found == abbreviations_.end()) return;
      const Entry entry = read_entry(reader, found->second);
      if (!reader.ok()) return;
      if (is_first) unit_ = entry;
      is_first = false;
      if (found->second.tag == kTagInlinedSubroutine) add(entry);
      depth += found->second.has_children;
      if (!depth) return;
    }
  }

 private:
  struct Entry {
    u64 low = 0, high = 0, line_table = 0, file = 0, line = 0, addr_base = 0, rnglists_base = 0;
    u64 ranges = 0;
    bool has_low = false, has_ranges = false;
    bool low_is_index = false, high_is_address = false, ranges_is_index = false;
  };

  void read_abbreviations(u64 offset) {
    Reader reader(sections_.abbrev);
    reader.seek(offset);
    while (const u64 code = reader.uleb()) {
      Abbreviation row;
      row.tag = reader.uleb();
      row.has_children = reader.fixed(1);
      while (true) {
        Field field{reader.uleb(), reader.uleb(), 0};
        if (field.form == kFormImplicitConst) field.constant = reader.sleb();
        if (!reader.ok()) return;
        if (!field.attribute && !field.form) break;
        if (row.fields.size() < kMaxAttributes) row.fields.push_back(field);
      }
      abbreviations_.emplace(code, std::move(row));
    }
  }

  // Reads a value; numbers alone are returned.
  static u64 read_value(Reader& reader, const Field& field) {
    for (const FormRow& row : kForms) {
      if (row.form != field.form) continue;
      switch (row.kind) {
        case Kind::kFixed:
          if (row.bytes > 8) return reader.skip(row.bytes), 0;
          return reader.fixed(row.bytes);
        case Kind::kUleb:
          return reader.uleb();
        case Kind::kSleb:
          return static_cast<u64>(reader.sleb());
        case Kind::kOffset:
          return reader.fixed(4);
        case Kind::kBlock:
          return reader.skip(row.bytes ? reader.fixed(row.bytes) : reader.uleb()), 0;
        case Kind::kString:
          return reader.text(), 0;
        default:
          return static_cast<u64>(field.constant);
      }
    }
    return reader.fail();
  }

  static Entry read_entry(Reader& reader, const Abbreviation& abbreviation) {
    Entry entry;
    for (const Field& field : abbreviation.fields) {
      const u64 value = read_value(reader, field);
      switch (field.attribute) {
        case kAtLowPc:
          entry.low = value;
          entry.has_low = true;
          entry.low_is_index = is_index_of_address(field.form);
          break;
        case kAtHighPc:
          entry.high = value;
          entry.high_is_address = field.form == kFormAddr || is_index_of_address(field.form);
          break;
        case kAtRanges:
          entry.ranges = value;
          entry.has_ranges = true;
          entry.ranges_is_index = field.form == kFormRnglistx;
          break;
        case kAtStmtList:
          entry.line_table = value;
          break;
        case kAtCallFile:
          entry.file = value;
          break;
        case kAtCallLine:
          entry.line = value;
          break;
        case kAtAddrBase:
          entry.addr_base = value;
          break;
        case kAtRnglistsBase:
          entry.rnglists_base = value;
          break;
        default:
          break;
      }
    }
    return entry;
  }

  u64 address(u64 index) const {
    return sections_.addr.read<u64>(unit_.addr_base + 8 * index).value_or(0);
  }

  void add(const Entry& entry) {
    if (entry.has_ranges) return add_ranges(entry);
    if (!entry.has_low) return;
    const u64 begin = entry.low_is_index ? address(entry.low) : entry.low;
    add_range(entry, begin, entry.high_is_address ? entry.high : begin + entry.high);
  }

  void add_range(const Entry& entry, u64 begin, u64 end) {
    if (begin < end && calls_.size() < kMaxCalls) {
      calls_.push_back({begin, end, unit_.line_table, entry.file, static_cast<u32>(entry.line)});
    }
  }

  // Reads a list of .debug_rnglists.
  void add_ranges(const Entry& entry) {
    enum : u64 {
      kEndOfList,
      kBaseAddressx,
      kStartxEndx,
      kStartxLength,
      kOffsetPair,
      kBaseAddress,
      kStartEnd,
      kStartLength
    };
    u64 offset = entry.ranges;
    if (entry.ranges_is_index) {
      const u64 entry_offset = unit_.rnglists_base + 4 * entry.ranges;
      offset = unit_.rnglists_base + sections_.rnglists.read<u32>(entry_offset).value_or(0);
    }
    Reader reader(sections_.rnglists);
    reader.seek(offset);
    u64 base = unit_.low_is_index ? address(unit_.low) : unit_.low;
    while (!reader.at_end()) {
      u64 begin = 0, end = 0;
      switch (reader.fixed(1)) {
        case kBaseAddressx:
          base = address(reader.uleb());
          continue;
        case kBaseAddress:
          base = reader.fixed(8);
          continue;
        case kStartxEndx:
          begin = address(reader.uleb());
          end = address(reader.uleb());
          break;
        case kStartxLength:
          begin = address(reader.uleb());
          end = begin + reader.uleb();
          break;
        case kOffsetPair:
          begin = base + reader.uleb();
          end = base + reader.uleb();
          break;
        case kStartEnd:
          begin = reader.fixed(8);
          end = reader.fixed(8);
          break;
        case kStartLength:
          begin = reader.fixed(8);
          end = begin + reader.uleb();
          break;
        default:
          return;
      }
      if (!reader.ok()) return;
      add_range(entry, begin, end);
    }
  }

  const Sections& sections_;
  std::vector<InlinedCall>& calls_;
  std::map<u64, Abbreviation> abbreviations_;
  Entry unit_;
};

}  // namespace

std::vector<InlinedCall> inlined_calls(const Sections& sections) {
  std::vector<InlinedCall> calls;
  Reader reader(sections.info);
  while (!reader.at_end()) {
    const u64 length = reader.fixed(4);
    if (length >= 0xfffffff0) break;  // 64-bit DWARF, which clang does not write
    Reader unit(reader.read_bytes(length));
    if (reader.ok()) UnitReader(sections, calls).run(unit);
  }
  return calls;
}

}  // namespace vgpu::dwarf
