// ELF64 structures and constants for AMD GPU code objects, and a bounds-checked byte view.
#pragma once

#include <optional>
#include <string_view>

#include "vgpu/base/types.h"

namespace vgpu {

// A byte range with untrusted offsets: every access is bounds-checked.
struct Bytes {
  const u8* data = nullptr;
  u64 size = 0;

  bool holds(u64 offset, u64 count) const { return offset <= size && count <= size - offset; }

  template <class T>
  std::optional<T> read(u64 offset) const {
    if (!holds(offset, sizeof(T))) return std::nullopt;
    return load<T>(data + offset);
  }

  // Returns the part of [offset, offset + count) that exists.
  Bytes slice(u64 offset, u64 count) const {
    if (offset > size) return {};
    const u64 remaining = size - offset;
    return {data + offset, count < remaining ? count : remaining};
  }

  // Returns a zero-terminated string, or nothing if the terminator is missing.
  std::optional<std::string_view> text(u64 offset) const {
    if (offset >= size) return std::nullopt;
    const char* begin = reinterpret_cast<const char*>(data + offset);
    const void* end = std::memchr(begin, 0, size - offset);
    if (!end) return std::nullopt;
    return std::string_view(begin, static_cast<const char*>(end) - begin);
  }
};

namespace elf {

inline constexpr u8 kMagic[4] = {0x7f, 'E', 'L', 'F'};
inline constexpr u8 kClass64 = 2, kLittleEndian = 1, kOsAbiAmdHsa = 64;
inline constexpr u8 kAbiVersionV4 = 2, kAbiVersionV6 = 4;  // code object versions 4 to 6
inline constexpr u16 kTypeRelocatable = 1, kTypeShared = 3;
inline constexpr u16 kMachineAmdGpu = 224;

struct Header {
  u8 ident[16];  // magic 4, class, data, version, OS ABI, ABI version
  u16 type, machine;
  u32 version;
  u64 entry, phoff, shoff;
  u32 flags;
  u16 ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
};
static_assert(sizeof(Header) == 64, "ELF64 file header");

struct Segment {
  u32 type, flags;
  u64 offset, vaddr, paddr, filesz, memsz, align;
};
static_assert(sizeof(Segment) == 56, "ELF64 program header");
inline constexpr u32 kSegmentLoad = 1, kSegmentDynamic = 2, kSegmentNote = 4;
inline constexpr u32 kSegmentExecutable = 1;

struct Section {
  u32 name, type;
  u64 flags, addr, offset, size;
  u32 link, info;
  u64 addralign, entsize;
};
static_assert(sizeof(Section) == 64, "ELF64 section header");
inline constexpr u32 kSectionNoBits = 8;

struct Symbol {
  u32 name;
  u8 info, visibility;
  u16 section;
  u64 value, size;
  u8 type() const { return info & 15; }
  u8 binding() const { return info >> 4; }
};
static_assert(sizeof(Symbol) == 24, "ELF64 symbol");
inline constexpr u8 kSymbolObject = 1, kBindingWeak = 2;
inline constexpr u16 kSectionUndefined = 0;

struct Dynamic {
  i64 tag;
  u64 value;
};
enum DynamicTag : i64 {
  kDynHash = 4,
  kDynStrtab = 5,
  kDynSymtab = 6,
  kDynRela = 7,
  kDynRelaSize = 8,
  kDynRelaEntry = 9,
  kDynStrSize = 10,
  kDynRel = 17,
  kDynJmpRel = 23,
  kDynGnuHash = 0x6ffffef5,
};

struct Rela {
  u64 offset, info;
  i64 addend;
  u32 type() const { return static_cast<u32>(info); }
  u32 symbol() const { return static_cast<u32>(info >> 32); }
};
static_assert(sizeof(Rela) == 24, "ELF64 relocation with addend");

// LLVM AMDGPUUsage, "Relocation Records". S symbol, A addend, P place, B load address.
enum RelocationType : u32 {
  kRelocNone = 0,
  kRelocAbs32Lo = 1,      // (S + A) & 0xffffffff
  kRelocAbs32Hi = 2,      // (S + A) >> 32
  kRelocAbs64 = 3,        // S + A
  kRelocRel32 = 4,        // S + A - P
  kRelocRel64 = 5,        // S + A - P
  kRelocAbs32 = 6,        // S + A
  kRelocRel32Lo = 10,     // (S + A - P) & 0xffffffff
  kRelocRel32Hi = 11,     // (S + A - P) >> 32
  kRelocRelative64 = 13,  // B + A
};

inline constexpr u32 kNoteAmdgpuMetadata = 32;

// e_flags: the processor in the low byte, then two bits each for xnack and sramecc.
inline constexpr u32 kMachMask = 0xff;
inline constexpr u32 kMachGfx9_4Generic = 0x5f;  // runs on gfx942 and gfx950
inline constexpr u32 kXnackShift = 8, kSrameccShift = 10;
inline constexpr u32 kFeatureAny = 1, kFeatureOff = 2, kFeatureOn = 3;

}  // namespace elf
}  // namespace vgpu
