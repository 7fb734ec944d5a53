// Compressed offload bundles ("CCOB"), which ROCm 7's hipcc embeds by default.
#pragma once

#include <string>
#include <vector>

#include "vgpu/object/elf.h"

namespace vgpu {

inline constexpr std::string_view kCompressedMagic = "CCOB";
inline constexpr u64 kCompressedHeaderBytes = 32;  // of the longest header

// What the header of a file says; 0 if it is invalid.
struct CompressedSizes {
  u64 file_bytes = 0, content_bytes = 0;
};
CompressedSizes compressed_sizes(Bytes head);

// Decompresses `count` bytes of a whole file's contents from `offset` on, fewer at their end. The
// contents are at most `limit` bytes: images of all architectures, of which one is wanted, so that
// what precedes the range is not kept and what follows it is not read. On failure sets `error`.
std::vector<u8> decompress_range(Bytes file, u64 limit, u64 offset, u64 count, std::string& error);

}  // namespace vgpu
