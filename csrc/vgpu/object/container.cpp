#include "vgpu/object/container.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "vgpu/object/compressed_bundle.h"

namespace vgpu {
namespace {

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr u64 kMaxFileBytes = u64{2} << 30;
// Of a compressed bundle, whose images of all architectures may be larger: rocPRIM's tests have
// 3.4 GB.
constexpr u64 kMaxContentBytes = u64{64} << 30;
constexpr u64 kChunkBytes = u64{1} << 20;
constexpr u64 kBundleTableBytes = u64{64} << 10;  // maximum size of a bundle's entry table
constexpr u64 kMaxBundleEntries = 1024;

// Copies with process_vm_readv, so that unreadable bytes end the copy instead of the process: a
// bare pointer has no length, and a corrupt header may claim any.
std::vector<u8> copy_readable(const u8* src, u64 count) {
  std::vector<u8> copy;
  while (copy.size() < count) {
    const u64 num_copied = copy.size();
    const u64 num_requested = std::min(count - num_copied, kChunkBytes);
    copy.resize(num_copied + num_requested);
    iovec local{copy.data() + num_copied, num_requested};
    iovec source{const_cast<u8*>(src) + num_copied, num_requested};
    const ssize_t num_read = process_vm_readv(getpid(), &local, 1, &source, 1, 0);
    // The system call is forbidden here: copy directly.
    if (num_read < 0 && (errno == ENOSYS || errno == EPERM)) {
      std::memcpy(local.iov_base, source.iov_base, num_requested);
      continue;
    }
    if (num_read <= 0) {
      copy.resize(num_copied);
      break;
    }
    copy.resize(num_copied + static_cast<u64>(num_read));
  }
  return copy;
}

struct BundleEntry {
  std::string_view id;
  u64 offset, size;
};

// Returns the entries of a bundle up to the first invalid one.
std::vector<BundleEntry> bundle_entries(Bytes bundle) {
  std::vector<BundleEntry> entries;
  u64 position = kBundleMagic.size();
  const auto count = bundle.read<u64>(position);
  if (!count) return entries;
  position += 8;
  for (u64 i = 0; i < std::min(*count, kMaxBundleEntries); ++i) {
    const auto offset = bundle.read<u64>(position), size = bundle.read<u64>(position + 8),
               length = bundle.read<u64>(position + 16);
    position += 24;
    if (!length || !bundle.holds(position, *length)) break;
    const char* id = reinterpret_cast<const char*>(bundle.data + position);
    entries.push_back({std::string_view(id, *length), *offset, *size});
    position += *length;
  }
  return entries;
}

u64 clamped_end(u64 offset, u64 size) {
  return size > kMaxFileBytes || offset > kMaxFileBytes ? kMaxFileBytes
                                                        : std::min(offset + size, kMaxFileBytes);
}

u64 bundle_extent(Bytes head) {
  u64 extent = head.size;
  for (const BundleEntry& entry : bundle_entries(head)) {
    extent = std::max(extent, clamped_end(entry.offset, entry.size));
  }
  return extent;
}

// Returns the records of a table of an ELF header, as far as they are readable.
template <class Record>
std::vector<Record> read_table(const u8* bytes, u64 offset, u64 count) {
  std::vector<Record> records;
  if (offset >= kMaxFileBytes) return records;
  const auto table = copy_readable(bytes + offset, count * sizeof(Record));
  for (u64 i = 0; i + sizeof(Record) <= table.size(); i += sizeof(Record)) {
    records.push_back(load<Record>(table.data() + i));
  }
  return records;
}

// Returns the end of the last byte range that the ELF headers name.
u64 elf_extent(const u8* bytes) {
  const std::vector<u8> head = copy_readable(bytes, sizeof(elf::Header));
  const Bytes head_bytes{head.data(), head.size()};
  const auto header = head_bytes.read<elf::Header>(0);
  if (!header) return head.size();
  u64 extent = sizeof(elf::Header);
  const u64 segments_end = clamped_end(header->phoff, u64{header->phnum} * sizeof(elf::Segment));
  const u64 sections_end = clamped_end(header->shoff, u64{header->shnum} * sizeof(elf::Section));
  extent = std::max({extent, segments_end, sections_end});
  for (const auto& segment : read_table<elf::Segment>(bytes, header->phoff, header->phnum)) {
    extent = std::max(extent, clamped_end(segment.offset, segment.filesz));
  }
  for (const auto& section : read_table<elf::Section>(bytes, header->shoff, header->shnum)) {
    if (section.type == elf::kSectionNoBits) continue;
    extent = std::max(extent, clamped_end(section.offset, section.size));
  }
  return extent;
}

bool starts_with(Bytes bytes, std::string_view magic) {
  return bytes.size >= magic.size() && !std::memcmp(bytes.data, magic.data(), magic.size());
}

Bytes as_bytes(const std::vector<u8>& bytes) { return {bytes.data(), bytes.size()}; }

// Copies the caller's bytes; derives the size from the headers if it is unknown.
std::vector<u8> copy_bytes(const u8* bytes, u64 size) {
  if (size) return std::vector<u8>(bytes, bytes + std::min(size, kMaxFileBytes));
  std::vector<u8> head = copy_readable(bytes, kCompressedHeaderBytes);
  if (starts_with(as_bytes(head), kBundleMagic)) {
    head = copy_readable(bytes, kBundleTableBytes);
    return copy_readable(bytes, bundle_extent(as_bytes(head)));
  }
  if (starts_with(as_bytes(head), kCompressedMagic)) {
    const u64 extent = std::max<u64>(compressed_sizes(as_bytes(head)).file_bytes, head.size());
    return copy_readable(bytes, std::min(extent, kMaxFileBytes));
  }
  if (head.size() >= 4 && !std::memcmp(head.data(), elf::kMagic, 4)) {
    return copy_readable(bytes, elf_extent(bytes));
  }
  return head;
}

// Returns whether a bundle entry such as "hipv4-amdgcn-amd-amdhsa--gfx950:sramecc+:xnack-" fits:
// this processor or its family's generic one, sramecc on or any, xnack off or any.
bool entry_fits(std::string_view id, Arch arch) {
  const u64 processor_at = id.find("gfx");
  if (processor_at == std::string_view::npos || id.starts_with("host")) return false;
  const std::string_view target = id.substr(processor_at);
  const std::string_view processor = target.substr(0, target.find(':'));
  if (processor != arch_name(arch) && processor != "gfx9-4-generic") return false;
  return target.find("xnack+") == std::string_view::npos &&
         target.find("sramecc-") == std::string_view::npos;
}

std::string entry_names(const std::vector<BundleEntry>& entries) {
  std::string names;
  for (const BundleEntry& entry : entries) {
    if (entry.id.starts_with("host")) continue;
    names += (names.empty() ? "" : ", ") + std::string(entry.id);
    if (names.size() > 400) return names + " ...";
  }
  return names.empty() ? "no device image" : names;
}

// Returns the entry that this architecture runs, or sets the error.
std::optional<BundleEntry> choose_entry(Bytes table, u64 bundle_bytes, Arch arch,
                                        std::string& error, LoadFailure& failure) {
  const auto entries = bundle_entries(table);
  for (const BundleEntry& entry : entries) {
    if (!entry_fits(entry.id, arch)) continue;
    if (entry.offset <= bundle_bytes && entry.size <= bundle_bytes - entry.offset) return entry;
    error = "truncated offload bundle: the image " + std::string(entry.id.substr(0, 100)) + " (" +
            std::to_string(entry.size) + " bytes at " + std::to_string(entry.offset) +
            ") ends beyond the " + std::to_string(bundle_bytes) + " bytes there are";
    return std::nullopt;
  }
  error = "offload bundle has no image for " + std::string(arch_name(arch)) +
          ":sramecc+:xnack-, only " + entry_names(entries) +
          "; build with --offload-arch=" + arch_name(arch) + " or set RFOPS_VGPU_ARCH";
  failure = LoadFailure::kWrongArch;
  return std::nullopt;
}

std::vector<u8> extract_from_bundle(Bytes bundle, Arch arch, std::string& error,
                                    LoadFailure& failure) {
  const auto entry = choose_entry(bundle, bundle.size, arch, error, failure);
  if (!entry) return {};
  const u8* const image = bundle.data + entry->offset;
  return {image, image + entry->size};
}

std::vector<u8> extract_from_compressed(Bytes file, Arch arch, std::string& error,
                                        LoadFailure& failure) {
  const auto read = [&](u64 offset, u64 count) {
    return decompress_range(file, kMaxContentBytes, offset, count, error);
  };
  const std::vector<u8> table = read(0, kBundleTableBytes);
  if (!error.empty()) return {};
  if (!starts_with(as_bytes(table), kBundleMagic)) {
    error = "compressed offload bundle (CCOB): its contents are no offload bundle";
    return {};
  }
  const u64 content_bytes = compressed_sizes(file).content_bytes;
  const auto entry = choose_entry(as_bytes(table), content_bytes, arch, error, failure);
  return entry ? read(entry->offset, entry->size) : std::vector<u8>{};
}

}  // namespace

std::vector<u8> extract_code_object(const u8* bytes, u64 size, Arch arch, std::string& error,
                                    LoadFailure& failure) {
  std::vector<u8> owned = copy_bytes(bytes, size);
  if (starts_with(as_bytes(owned), kCompressedMagic)) {
    return extract_from_compressed(as_bytes(owned), arch, error, failure);
  }
  if (starts_with(as_bytes(owned), kBundleMagic)) {
    return extract_from_bundle(as_bytes(owned), arch, error, failure);
  }
  if (owned.empty()) {
    error = "code object is empty or its memory is not readable";
  }
  return owned;
}

}  // namespace vgpu
