// Loads the segments of an AMD GPU ELF into host memory and relocates them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "vgpu/object/elf.h"

namespace vgpu {

class ElfImage {
 public:
  ElfImage() = default;
  ElfImage(const ElfImage&) = delete;
  ElfImage& operator=(const ElfImage&) = delete;
  ~ElfImage();

  // Returns false and sets `error` if the file is truncated or corrupt.
  bool open(Bytes file, std::string& error);

  const elf::Header& header() const { return header_; }
  Bytes memory() const { return {data_, bytes_}; }
  u64 base_address() const { return base_; }
  u64 mapped_bytes() const { return mapped_; }
  u8* data() const { return data_; }

  // Returns the bytes at a virtual address; empty unless all are inside the image.
  Bytes contents(u64 address, u64 count) const;

  u32 symbol_count() const { return symbol_count_; }
  struct NamedSymbol {
    std::string_view name;
    elf::Symbol symbol;
  };
  std::optional<NamedSymbol> symbol(u32 index) const;

  const elf::Segment* text() const { return text_; }  // the executable segment, or null
  // All notes of type NT_AMDGPU_METADATA: Tensile's code objects have one per kernel.
  std::vector<Bytes> metadata_notes() const;

  // Transfers ownership of the mapping to the caller.
  u8* release();

 private:
  bool read_headers(std::string& error);
  bool map_segments(std::string& error);
  bool read_dynamic(std::string& error);
  bool count_symbols(std::string& error);
  bool relocate(std::string& error);
  bool apply(const elf::Rela& rela, std::string& error);
  u32 count_gnu_hash(u64 address) const;

  Bytes file_;
  elf::Header header_{};
  std::vector<elf::Segment> segments_;
  const elf::Segment* text_ = nullptr;
  u8* data_ = nullptr;
  u64 bytes_ = 0, mapped_ = 0, base_ = 0;
  struct DynamicTable {
    u64 hash = 0, gnu_hash = 0, symtab = 0, strtab = 0, strsize = 0, rela = 0, rela_size = 0;
  };
  DynamicTable dynamic_;
  u32 symbol_count_ = 0;
};

}  // namespace vgpu
