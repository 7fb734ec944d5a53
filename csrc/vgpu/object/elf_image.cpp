#include "vgpu/object/elf_image.h"

#include <sys/mman.h>

#include <algorithm>

namespace vgpu {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kMaxImageBytes = u64{4} << 30;
constexpr u64 kMaxAddress = u64{1} << 46;  // keeps sums of addresses and sizes from overflowing
constexpr u64 kMaxNameBytes = 64 << 10;    // per symbol; long enough for template names

std::string hex(u64 value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

u64 round_up(u64 value, u64 alignment) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace

ElfImage::~ElfImage() {
  if (data_) munmap(data_, mapped_);
}

u8* ElfImage::release() {
  u8* data = data_;
  data_ = nullptr;
  return data;
}

Bytes ElfImage::contents(u64 address, u64 count) const {
  if (address < base_ || !memory().holds(address - base_, count)) return {};
  return {data_ + (address - base_), count};
}

bool ElfImage::open(Bytes file, std::string& error) {
  file_ = file;
  return read_headers(error) && map_segments(error) && read_dynamic(error) &&
         count_symbols(error) && relocate(error);
}

bool ElfImage::read_headers(std::string& error) {
  if (file_.size >= 4 && std::memcmp(file_.data, elf::kMagic, 4)) {
    error = "neither an ELF file nor an offload bundle";
    return false;
  }
  const auto header = file_.read<elf::Header>(0);
  if (!header) {
    error = "truncated: " + std::to_string(file_.size) + " bytes are no ELF file";
    return false;
  }
  header_ = *header;
  const u8* ident = header_.ident;
  if (ident[4] != elf::kClass64 || ident[5] != elf::kLittleEndian) {
    error = "not a little-endian 64-bit ELF file";
  } else if (header_.machine != elf::kMachineAmdGpu) {
    error = "ELF for machine " + std::to_string(header_.machine) + ", expected 224 (AMD GPU)";
  } else if (ident[7] != elf::kOsAbiAmdHsa || ident[8] < elf::kAbiVersionV4 ||
             ident[8] > elf::kAbiVersionV6) {
    error = "OS ABI " + std::to_string(ident[7]) + " version " + std::to_string(ident[8]) +
            ", expected 64 (AMD HSA) version 2 to 4 (code object v4 to v6)";
  } else if (header_.type == elf::kTypeRelocatable) {
    error = "relocatable object: link it with ld.lld -shared first";
  } else if (header_.type != elf::kTypeShared || header_.phentsize != sizeof(elf::Segment)) {
    error = "corrupt: ELF type " + std::to_string(header_.type) + " with program headers of " +
            std::to_string(header_.phentsize) + " bytes";
  } else {
    for (u32 i = 0; i < header_.phnum; ++i) {
      const Bytes table = file_.slice(header_.phoff, u64{header_.phnum} * sizeof(elf::Segment));
      const auto segment = table.read<elf::Segment>(u64{i} * sizeof(elf::Segment));
      if (!segment) break;
      segments_.push_back(*segment);
    }
    if (!segments_.empty() && segments_.size() == header_.phnum) return true;
    error = "truncated: " + std::to_string(header_.phnum) + " program headers at " +
            hex(header_.phoff) + ", file ends at " + hex(file_.size);
  }
  return false;
}

bool ElfImage::map_segments(std::string& error) {
  u64 low = kMaxAddress, high = 0;
  for (const elf::Segment& segment : segments_) {
    if (segment.type != elf::kSegmentLoad) continue;
    if (!file_.holds(segment.offset, segment.filesz)) {
      error = "truncated: segment of " + std::to_string(segment.filesz) + " bytes at " +
              hex(segment.offset) + ", file ends at " + hex(file_.size);
      return false;
    }
    if (segment.vaddr > kMaxAddress || segment.memsz > kMaxImageBytes ||
        segment.filesz > segment.memsz) {
      error = "corrupt: segment at address " + hex(segment.vaddr) + " with " + hex(segment.filesz) +
              " bytes in the file and " + hex(segment.memsz) + " in memory";
      return false;
    }
    low = std::min(low, segment.vaddr);
    high = std::max(high, segment.vaddr + segment.memsz);
    if (segment.flags & elf::kSegmentExecutable && !text_) text_ = &segment;
  }
  if (low >= high || high - low > kMaxImageBytes) {
    error = "corrupt: segments span addresses " + hex(low) + " to " + hex(high);
    return false;
  }
  base_ = low / kPage * kPage;
  bytes_ = high - base_;
  mapped_ = round_up(bytes_, kPage) + kPage;  // guard page: wide reads near the end stay inside
  void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    error = "cannot map " + std::to_string(mapped_) + " bytes for its segments";
    return false;
  }
  data_ = static_cast<u8*>(mapping);
  for (const elf::Segment& segment : segments_) {
    if (segment.type != elf::kSegmentLoad) continue;
    std::memcpy(data_ + (segment.vaddr - base_), file_.data + segment.offset, segment.filesz);
  }
  return true;
}

bool ElfImage::read_dynamic(std::string& error) {
  static constexpr std::pair<u64, u64 DynamicTable::*> kMembers[] = {
      {elf::kDynHash, &DynamicTable::hash},          {elf::kDynGnuHash, &DynamicTable::gnu_hash},
      {elf::kDynSymtab, &DynamicTable::symtab},      {elf::kDynStrtab, &DynamicTable::strtab},
      {elf::kDynStrSize, &DynamicTable::strsize},    {elf::kDynRela, &DynamicTable::rela},
      {elf::kDynRelaSize, &DynamicTable::rela_size},
  };
  Bytes table;
  for (const elf::Segment& segment : segments_) {
    if (segment.type == elf::kSegmentDynamic) table = contents(segment.vaddr, segment.filesz);
  }
  u64 rela_entry = sizeof(elf::Rela);
  for (u64 offset = 0; offset < table.size; offset += sizeof(elf::Dynamic)) {
    const auto entry = table.read<elf::Dynamic>(offset);
    if (!entry || !entry->tag) break;
    if (entry->tag == elf::kDynRel || entry->tag == elf::kDynJmpRel) {
      error = "dynamic tag " + std::to_string(entry->tag) +
              " (REL or PLT relocations): unknown to AMD GPU loaders";
      return false;
    }
    if (entry->tag == elf::kDynRelaEntry) rela_entry = entry->value;
    for (const auto& [tag, member] : kMembers) {
      if (entry->tag == tag) dynamic_.*member = entry->value;
    }
  }
  if (!dynamic_.symtab || !dynamic_.strtab || rela_entry != sizeof(elf::Rela)) {
    error = "corrupt: no usable dynamic symbol table";
    return false;
  }
  return true;
}

// The GNU hash table does not store the number of symbols; the end of the last chain gives it.
u32 ElfImage::count_gnu_hash(u64 address) const {
  const Bytes head = contents(address, 16);
  if (!head.size) return 0;
  const u32 bucket_count = load<u32>(head.data), first = load<u32>(head.data + 4),
            bloom_words = load<u32>(head.data + 8);
  const u64 buckets_offset = address + 16 + u64{bloom_words} * 8;
  const Bytes buckets = contents(buckets_offset, u64{bucket_count} * 4);
  u32 last_chain = 0;
  for (u64 i = 0; i + 4 <= std::min(buckets.size, file_.size); i += 4) {
    last_chain = std::max(last_chain, load<u32>(buckets.data + i));
  }
  if (last_chain < first) return first;
  const u64 chains_offset = buckets_offset + buckets.size;
  for (u64 steps = 0; steps < file_.size / 4; ++steps, ++last_chain) {
    const Bytes chain = contents(chains_offset + u64{last_chain - first} * 4, 4);
    if (!chain.size) return 0;
    if (load<u32>(chain.data) & 1) return last_chain + 1;
  }
  return 0;
}

bool ElfImage::count_symbols(std::string& error) {
  const Bytes hash = contents(dynamic_.hash, 8);
  if (dynamic_.hash && hash.size) {
    symbol_count_ = load<u32>(hash.data + 4);
  } else if (dynamic_.gnu_hash) {
    symbol_count_ = count_gnu_hash(dynamic_.gnu_hash);
  }
  const u64 bytes = u64{symbol_count_} * sizeof(elf::Symbol);
  if (symbol_count_ && bytes <= file_.size && contents(dynamic_.symtab, bytes).size) return true;
  error = "corrupt: dynamic symbol table of " + std::to_string(symbol_count_) + " symbols at " +
          hex(dynamic_.symtab);
  return false;
}

std::optional<ElfImage::NamedSymbol> ElfImage::symbol(u32 index) const {
  if (index >= symbol_count_) return std::nullopt;
  const Bytes entry =
      contents(dynamic_.symtab + u64{index} * sizeof(elf::Symbol), sizeof(elf::Symbol));
  if (!entry.size) return std::nullopt;
  const auto symbol = load<elf::Symbol>(entry.data);
  const auto name =
      contents(dynamic_.strtab, dynamic_.strsize).slice(symbol.name, kMaxNameBytes).text(0);
  if (!name) return std::nullopt;
  return NamedSymbol{*name, symbol};
}

bool ElfImage::relocate(std::string& error) {
  if (!dynamic_.rela_size) return true;
  const Bytes table = contents(dynamic_.rela, dynamic_.rela_size);
  if (!table.size || dynamic_.rela_size > file_.size || dynamic_.rela_size % sizeof(elf::Rela)) {
    error = "corrupt: relocation table of " + std::to_string(dynamic_.rela_size) + " bytes at " +
            hex(dynamic_.rela);
    return false;
  }
  for (u64 offset = 0; offset < table.size; offset += sizeof(elf::Rela)) {
    if (!apply(load<elf::Rela>(table.data + offset), error)) return false;
  }
  return true;
}

bool ElfImage::apply(const elf::Rela& rela, std::string& error) {
  u64 symbol_address = 0;  // S
  if (rela.symbol()) {
    const auto target = symbol(rela.symbol());
    if (!target) {
      error = "corrupt: relocation names symbol " + std::to_string(rela.symbol()) + " of " +
              std::to_string(symbol_count_);
      return false;
    }
    if (target->symbol.section != elf::kSectionUndefined) {
      symbol_address = reinterpret_cast<u64>(data_) + target->symbol.value - base_;
    } else if (target->symbol.binding() != elf::kBindingWeak) {
      error = "undefined symbol " + std::string(target->name.substr(0, 200)) +
              ": link the object that defines it";
      return false;
    }
  }
  const u64 addend = static_cast<u64>(rela.addend);
  const u64 relocated_address = reinterpret_cast<u64>(data_) + rela.offset - base_;  // P
  const u64 absolute = symbol_address + addend, relative = absolute - relocated_address;
  u64 value = 0;
  u32 width = 4;
  switch (rela.type()) {
    case elf::kRelocNone:
      return true;
    case elf::kRelocAbs32Lo:
    case elf::kRelocAbs32:
      value = absolute;
      break;
    case elf::kRelocAbs32Hi:
      value = absolute >> 32;
      break;
    case elf::kRelocRel32:
    case elf::kRelocRel32Lo:
      value = relative;
      break;
    case elf::kRelocRel32Hi:
      value = relative >> 32;
      break;
    case elf::kRelocAbs64:
      value = absolute, width = 8;
      break;
    case elf::kRelocRel64:
      value = relative, width = 8;
      break;
    case elf::kRelocRelative64:
      value = reinterpret_cast<u64>(data_) - base_ + addend, width = 8;
      break;
    default:
      error = "relocation type " + std::to_string(rela.type()) + " at " + hex(rela.offset) +
              " is not a dynamic relocation of AMD GPU code";
      return false;
  }
  const Bytes target = contents(rela.offset, width);
  if (!target.size) {
    error = "corrupt: relocation of address " + hex(rela.offset) + " outside the image";
    return false;
  }
  std::memcpy(data_ + (rela.offset - base_), &value, width);  // little-endian: low bytes first
  return true;
}

std::vector<Bytes> ElfImage::metadata_notes() const {
  std::vector<Bytes> found;
  for (const elf::Segment& segment : segments_) {
    if (segment.type != elf::kSegmentNote) continue;
    const Bytes notes = file_.slice(segment.offset, segment.filesz);
    u64 offset = 0;
    while (const auto name_size = notes.read<u32>(offset)) {
      const auto size = notes.read<u32>(offset + 4), type = notes.read<u32>(offset + 8);
      if (!type) break;
      const u64 content = offset + 12 + round_up(*name_size, 4);
      if (!notes.holds(content, *size)) break;
      const auto name = notes.slice(offset + 12, *name_size).text(0);
      if (*type == elf::kNoteAmdgpuMetadata && name == "AMDGPU") {
        found.push_back(notes.slice(content, *size));
      }
      offset = content + round_up(*size, 4);
    }
  }
  return found;
}

}  // namespace vgpu
