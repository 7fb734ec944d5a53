// Reading of DWARF sections, whose bytes are untrusted.
#pragma once

#include <string>

#include "vgpu/object/elf.h"

namespace vgpu::dwarf {

// A bounds-checked reader: past the end it returns zeros and records the failure.
class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return !ok_ || offset_ >= bytes_.size; }
  u64 offset() const { return offset_; }
  void seek(u64 offset) { offset <= bytes_.size ? offset_ = offset : fail(); }
  u64 fail() {
    ok_ = false;
    offset_ = bytes_.size;
    return 0;
  }
  u64 fixed(u32 count) {
    if (count > bytes_.size - offset_) return fail();
    u64 value = 0;
    for (u32 i = 0; i < count; ++i) value |= u64{bytes_.data[offset_ + i]} << (8 * i);
    offset_ += count;
    return value;
  }
  u64 uleb() {
    u64 value = 0;
    for (u32 shift = 0;; shift += 7) {
      const u64 byte = fixed(1);
      if (!ok_ || shift > 63) return fail();
      value |= (byte & 127) << shift;
      if (!(byte & 128)) return value;
    }
  }
  i64 sleb() {
    u64 value = 0;
    for (u32 shift = 0;;) {
      const u64 byte = fixed(1);
      if (!ok_ || shift > 63) return static_cast<i64>(fail());
      value |= (byte & 127) << shift;
      shift += 7;
      if (byte & 128) continue;
      if (byte & 64 && shift < 64) value |= ~u64{0} << shift;
      return static_cast<i64>(value);
    }
  }
  std::string_view text() {
    const auto string = bytes_.text(offset_);
    if (!string) {
      fail();
      return {};
    }
    offset_ += string->size() + 1;
    return *string;
  }
  void skip(u64 count) { count <= bytes_.size - offset_ ? offset_ += count : fail(); }
  Bytes read_bytes(u64 count) {
    const Bytes bytes = bytes_.slice(offset_, count);
    skip(count);
    return bytes;
  }

 private:
  Bytes bytes_;
  u64 offset_ = 0;
  bool ok_ = true;
};

struct Sections {
  Bytes line, line_str, str, info, abbrev, addr, rnglists;
};

// Finds the debug sections of an ELF file; those that it lacks are empty.
Sections find_sections(Bytes file);

}  // namespace vgpu::dwarf
