// Compressed offload bundles ("CCOB"), which ROCm 7's hipcc embeds by default.
#pragma once

#include <memory>
#include <string>

#include "vgpu/object/elf.h"

namespace vgpu {

inline constexpr std::string_view kCompressedMagic = "CCOB";
inline constexpr u64 kCompressedHeaderBytes = 32;  // of the longest header

struct Decompressed {
  std::unique_ptr<u8[]> data;
  u64 size = 0;
  Bytes bytes() const { return {data.get(), size}; }
};

// Returns the length of the file that starts with `head`, from its header; 0 if that is invalid.
u64 compressed_extent(Bytes head);

// Decompresses a whole file of at most `limit` bytes of contents. On failure returns null data and
// sets `error`.
Decompressed decompress_bundle(Bytes file, u64 limit, std::string& error);

}  // namespace vgpu
