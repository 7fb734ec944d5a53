// Layout (LLVM's OffloadBundler): "CCOB", u16 version, u16 method, the size of the file, the size
// of its contents, u64 hash. Sizes have 4 bytes in version 2 and 8 in version 3. Version 1 has no
// size of the file.
//
// zstd is loaded on first use, so that neither building nor running without compressed code needs
// it.
#include "vgpu/object/compressed_bundle.h"

#include <dlfcn.h>

#include <new>

namespace vgpu {
namespace {

constexpr u16 kMethodZlib = 0, kMethodZstd = 1;

struct Header {
  u16 version, method;
  u64 header_bytes, file_bytes, content_bytes;
};

std::optional<Header> read_header(Bytes file) {
  const auto version = file.read<u16>(4), method = file.read<u16>(6);
  if (!version || !method) return std::nullopt;
  Header header{*version, *method, 0, 0, 0};
  if (header.version == 2) {
    const auto file_bytes = file.read<u32>(8), content_bytes = file.read<u32>(12);
    if (!content_bytes) return std::nullopt;
    header.header_bytes = 24;
    header.file_bytes = *file_bytes;
    header.content_bytes = *content_bytes;
  } else if (header.version == 3) {
    const auto file_bytes = file.read<u64>(8), content_bytes = file.read<u64>(16);
    if (!content_bytes) return std::nullopt;
    header.header_bytes = 32;
    header.file_bytes = *file_bytes;
    header.content_bytes = *content_bytes;
  }
  return header;
}

// The functions of zstd's stable interface that are used here.
struct Zstd {
  size_t (*decompress)(void* dst, size_t dst_bytes, const void* src, size_t src_bytes) = nullptr;
  unsigned (*is_error)(size_t code) = nullptr;
  const char* (*error_name)(size_t code) = nullptr;
  unsigned long long (*content_bytes)(const void* src, size_t src_bytes) = nullptr;
  std::string error;

  Zstd() {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const reason = dlerror();
      error = reason ? reason : "dlopen failed";
      return;
    }
    find(library, "ZSTD_decompress", decompress);
    find(library, "ZSTD_isError", is_error);
    find(library, "ZSTD_getErrorName", error_name);
    find(library, "ZSTD_getFrameContentSize", content_bytes);
  }

 private:
  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function && error.empty()) error = std::string("libzstd.so.1 has no ") + name;
  }
};

const Zstd& zstd() {
  static const Zstd* const instance = new Zstd;  // never destroyed: exit handlers may load code
  return *instance;
}

std::string check_header(const Header& header, Bytes file, u64 limit) {
  const std::string version = std::to_string(header.version);
  if (!header.header_bytes) {
    return "version " + version +
           ", expected 2 or 3: rebuild with ROCm 6.2 or later, or with --no-offload-compress";
  }
  if (header.method != kMethodZstd) {
    return (header.method == kMethodZlib ? std::string("compressed with zlib")
                                         : "method " + std::to_string(header.method)) +
           ", expected zstd: rebuild with --no-offload-compress";
  }
  if (header.file_bytes <= header.header_bytes || header.file_bytes > file.size) {
    return "truncated: a file of " + std::to_string(header.file_bytes) + " bytes, of which " +
           std::to_string(file.size) + " are there";
  }
  if (!header.content_bytes || header.content_bytes > limit) {
    return "corrupt: contents of " + std::to_string(header.content_bytes) +
           " bytes, expected 1 to " + std::to_string(limit);
  }
  return "";
}

}  // namespace

u64 compressed_extent(Bytes head) {
  const auto header = read_header(head);
  return header ? header->file_bytes : 0;
}

Decompressed decompress_bundle(Bytes file, u64 limit, std::string& error) {
  const std::string prefix = "compressed offload bundle (CCOB): ";
  const auto header = read_header(file);
  if (!header) {
    error = prefix + "truncated: a header of " + std::to_string(file.size) + " bytes";
    return {};
  }
  if (const std::string reason = check_header(*header, file, limit); !reason.empty()) {
    error = prefix + reason;
    return {};
  }
  const Zstd& library = zstd();
  if (!library.error.empty()) {
    error = prefix +
            "needs zstd's libzstd.so.1 (Debian and Ubuntu: package libzstd1), or code built "
            "with --no-offload-compress: " +
            library.error;
    return {};
  }
  const u8* const frame = file.data + header->header_bytes;
  const u64 frame_bytes = header->file_bytes - header->header_bytes;
  // A frame need not have the size; then this is larger than any.
  const u64 in_frame = library.content_bytes(frame, frame_bytes);
  if (in_frame <= limit && in_frame != header->content_bytes) {
    error = prefix + "corrupt: its header has contents of " +
            std::to_string(header->content_bytes) + " bytes, its zstd frame " +
            std::to_string(in_frame);
    return {};
  }
  // Not zeroed: pages that a corrupt size claims beyond the contents are never touched.
  Decompressed contents{std::unique_ptr<u8[]>(new (std::nothrow) u8[header->content_bytes]),
                        header->content_bytes};
  if (!contents.data) {
    error = prefix + "the host has no memory for contents of " +
            std::to_string(header->content_bytes) + " bytes";
    return {};
  }
  const size_t result = library.decompress(contents.data.get(), contents.size, frame, frame_bytes);
  if (!library.is_error(result) && result == contents.size) return contents;
  error = prefix + "corrupt: " +
          (library.is_error(result) ? std::string("zstd: ") + library.error_name(result)
                                    : std::to_string(result) + " bytes of contents, expected " +
                                          std::to_string(contents.size));
  return {};
}

}  // namespace vgpu
