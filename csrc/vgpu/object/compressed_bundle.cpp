// Layout (LLVM's OffloadBundler): "CCOB", u16 version, u16 method, the size of the file, the size
// of its contents, u64 hash. Sizes have 4 bytes in version 2 and 8 in version 3. Version 1 has no
// size of the file.
//
// zstd is loaded on first use, so that neither building nor running without compressed code needs
// it.
#include "vgpu/object/compressed_bundle.h"

#include <dlfcn.h>

#include <algorithm>

namespace vgpu {
namespace {

constexpr u16 kMethodZlib = 0, kMethodZstd = 1;
constexpr u64 kStepBytes = u64{1} << 20;

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

// zstd's stable interface, as far as it is used here.
struct ZstdOut {
  void* data;
  size_t size, position;
};
struct ZstdIn {
  const void* data;
  size_t size, position;
};
constexpr int kZstdWindowLogMax = 100;  // the parameter ZSTD_d_windowLogMax
constexpr int kLargestWindowLog = 31;   // of 64-bit hosts; beyond 27 zstd wants to be asked

struct Zstd {
  unsigned (*is_error)(size_t code) = nullptr;
  const char* (*error_name)(size_t code) = nullptr;
  unsigned long long (*content_bytes)(const void* src, size_t src_bytes) = nullptr;
  void* (*create_stream)() = nullptr;
  size_t (*free_stream)(void* stream) = nullptr;
  size_t (*set_parameter)(void* stream, int parameter, int value) = nullptr;
  size_t (*decompress)(void* stream, ZstdOut* out, ZstdIn* in) = nullptr;
  std::string error;

  Zstd() {
    // In a namespace of its own: its functions call each other by symbols, and those of another
    // zstd, with other structures, may be global in the process (FlyDSL's is).
    void* const library = dlmopen(LM_ID_NEWLM, "libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const reason = dlerror();
      error = reason ? reason : "dlmopen failed";
      return;
    }
    find(library, "ZSTD_isError", is_error);
    find(library, "ZSTD_getErrorName", error_name);
    find(library, "ZSTD_getFrameContentSize", content_bytes);
    find(library, "ZSTD_createDStream", create_stream);
    find(library, "ZSTD_freeDStream", free_stream);
    find(library, "ZSTD_DCtx_setParameter", set_parameter);
    find(library, "ZSTD_decompressStream", decompress);
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

// A frame that is decompressed from front to back.
class FrameReader {
 public:
  FrameReader(const Zstd& library, Bytes frame) : zstd_(library), in_{frame.data, frame.size, 0} {
    stream_ = library.create_stream();
    if (!stream_)
      error_ = "the host has no memory for zstd's state";
    else
      library.set_parameter(stream_, kZstdWindowLogMax, kLargestWindowLog);
  }
  ~FrameReader() { zstd_.free_stream(stream_); }  // which null is allowed for
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  const std::string& error() const { return error_; }

  // Writes the next `count` bytes, or sets the error.
  void read(u8* destination, u64 count) {
    ZstdOut out{destination, count, 0};
    while (error_.empty() && out.position < count) {
      const u64 written = out.position, consumed = in_.position;
      const size_t result = zstd_.decompress(stream_, &out, &in_);
      num_read_ += out.position - written;
      if (zstd_.is_error(result)) {
        error_ = std::string("corrupt: zstd: ") + zstd_.error_name(result);
      } else if (out.position == written && in_.position == consumed) {
        error_ = "corrupt: its contents end after " + std::to_string(num_read_) + " bytes";
      }
    }
  }

 private:
  const Zstd& zstd_;
  ZstdIn in_;
  void* stream_;
  u64 num_read_ = 0;
  std::string error_;
};

// Returns why the file cannot be decompressed, or nothing.
std::string check_file(const std::optional<Header>& header, Bytes file, u64 limit) {
  if (!header) return "truncated: a header of " + std::to_string(file.size) + " bytes";
  if (const std::string reason = check_header(*header, file, limit); !reason.empty()) return reason;
  const Zstd& library = zstd();
  if (!library.error.empty()) {
    return "needs zstd's libzstd.so.1 (Debian and Ubuntu: package libzstd1), or code built with "
           "--no-offload-compress: " +
           library.error;
  }
  // A frame need not have the size; then this is larger than any.
  const u64 in_frame = library.content_bytes(file.data + header->header_bytes,
                                             header->file_bytes - header->header_bytes);
  if (in_frame > limit || in_frame == header->content_bytes) return "";
  return "corrupt: its header has contents of " + std::to_string(header->content_bytes) +
         " bytes, its zstd frame " + std::to_string(in_frame);
}

}  // namespace

CompressedSizes compressed_sizes(Bytes head) {
  const auto header = read_header(head);
  return header ? CompressedSizes{header->file_bytes, header->content_bytes} : CompressedSizes{};
}

std::vector<u8> decompress_range(Bytes file, u64 limit, u64 offset, u64 count, std::string& error) {
  const std::string prefix = "compressed offload bundle (CCOB): ";
  const auto header = read_header(file);
  if (const std::string reason = check_file(header, file, limit); !reason.empty()) {
    error = prefix + reason;
    return {};
  }
  FrameReader reader(zstd(),
                     {file.data + header->header_bytes, header->file_bytes - header->header_bytes});
  const u64 begin = std::min(offset, header->content_bytes);
  const u64 end = begin + std::min(count, header->content_bytes - begin);
  std::vector<u8> skipped(std::min(begin, kStepBytes)), bytes;
  for (u64 num_skipped = 0; num_skipped < begin && reader.error().empty();
       num_skipped += skipped.size()) {
    reader.read(skipped.data(), std::min(begin - num_skipped, kStepBytes));
  }
  // In steps, so that a corrupt size claims no memory beyond the contents.
  while (bytes.size() < end - begin && reader.error().empty()) {
    const u64 num_read = bytes.size(), step = std::min(end - begin - num_read, kStepBytes);
    bytes.resize(num_read + step);
    reader.read(bytes.data() + num_read, step);
  }
  if (reader.error().empty()) return bytes;
  error = prefix + reader.error();
  return {};
}

}  // namespace vgpu
