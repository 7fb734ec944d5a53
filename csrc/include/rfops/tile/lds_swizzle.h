// LDS tiles of 128-byte rows, swizzled so that no access has a bank conflict.
//
// The 16-byte chunk c of row r is at 128 r + 16 (c ^ swizzle(r)). A lane reads chunks l / 16 and 4
// + l / 16 of row l % 16 (mfma_fp8.h). Without the swizzle all 16 rows would use the same banks.
// Which lanes LDS serves together differs by architecture and determines the swizzle.
#pragma once

#include "rfops/chip/arch.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

#define RFOPS_LDS __attribute__((address_space(3)))
using LdsBytes = RFOPS_LDS u8;

// Returns the 32-bit LDS address, as direct-to-LDS loads take it in M0.
__device__ inline u32 lds_address(const LdsBytes* ptr) {
  return static_cast<u32>(reinterpret_cast<__UINTPTR_TYPE__>(ptr));
}

constexpr u32 kRowBytes = kTileK;
constexpr u32 kRowChunks = kRowBytes / kVecBytes;

// 128-byte rows begin in one of two halves of 64 banks, or all at bank 0 of 32 banks.
constexpr u32 lds_swizzle(u32 row) { return (kLdsBanks == 64 ? row / 2 : row) % kRowChunks; }
// Returns the offset of a 16-byte chunk of a row in an LDS tile.
constexpr u32 lds_offset(u32 row, u32 chunk) {
  return row * kRowBytes + (chunk ^ lds_swizzle(row)) * kVecBytes;
}

// Offsets of a lane's two chunks of an operand in an LDS tile. The next 16 rows are 2048 bytes
// further.
struct LdsFragmentOffsets {
  u32 low, high;
};
constexpr u32 kLdsTile = kTileRows * kRowBytes;
// Returns the offsets of a lane's fragment in the first 16 rows of a tile.
__device__ inline LdsFragmentOffsets lds_fragment_offsets(u32 lane) {
  const u32 row = lane % kTileRows, chunk = lane / kTileRows;
  return {lds_offset(row, chunk), lds_offset(row, chunk + kRowChunks / 2)};
}

// Loads 16 bytes from LDS.
__device__ inline U32x4 lds_load_b128(const LdsBytes* ptr) {
  return *reinterpret_cast<const RFOPS_LDS U32x4*>(ptr);
}
// Loads a lane's fragment from the LDS tile at `base`.
__device__ inline Fragment lds_load_fragment(const LdsBytes* base,
                                             const LdsFragmentOffsets& offsets) {
  return {lds_load_b128(base + offsets.low), lds_load_b128(base + offsets.high)};
}

// Reads fragments from LDS tiles, of which this wave's begin at row row_begin. A read takes the
// tile kOffsetBytes after `memory`.
class RowReader {
 public:
  __device__ RowReader(const LdsBytes* memory, u32 lane, u32 row_begin)
      : base_(memory + row_begin * kRowBytes), fragment_(lds_fragment_offsets(lane)) {}
  template <u32 kOffsetBytes = 0>
  __device__ Fragment read(u32 tile) const {
    return lds_load_fragment(base_ + kOffsetBytes + tile * kLdsTile, fragment_);
  }

 private:
  const LdsBytes* base_;
  LdsFragmentOffsets fragment_;
};

namespace details {

// Lanes that LDS serves together, in the first half of the wave; the second half has the same sets,
// 32 lanes later.
constexpr u32 lanes(u32 lo, u32 hi) { return static_cast<u32>((u64{2} << hi) - (u64{1} << lo)); }
constexpr u32 kReadPhases[] = {
#if defined(__gfx950__)
    lanes(0, 3) | lanes(12, 15) | lanes(20, 27),
    lanes(4, 11) | lanes(16, 19) | lanes(28, 31),
#else
    lanes(0, 3) | lanes(20, 23),
    lanes(4, 7) | lanes(16, 19),
    lanes(8, 11) | lanes(28, 31),
    lanes(12, 15) | lanes(24, 27),
#endif
};
constexpr u32 kWritePhases[] = {lanes(0, 7), lanes(8, 15), lanes(16, 23), lanes(24, 31)};
constexpr u32 kPhasesB64[] = {
// 8-byte accesses
#if defined(__gfx950__)
    lanes(0, 31),
#else
    lanes(0, 15),
    lanes(16, 31),
#endif
};

// Returns whether kBytes at offset(lane) of all these lanes are in different banks.
template <u32 kBytes, class Offset>
constexpr bool uses_distinct_banks(u32 phase, u32 lane_begin, u32 banks, Offset offset) {
  u64 used = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    if ((phase >> lane & 1) == 0) continue;
    const u64 lane_banks = ((u64{1} << kBytes / 4) - 1) << offset(lane_begin + lane) / 4 % banks;
    if ((used & lane_banks) != 0) return false;
    used |= lane_banks;
  }
  return true;
}

// Returns whether an access of kBytes at offset(lane) by all lanes of a wave has no bank conflict.
template <u32 kBytes = kVecBytes, u32 kCount, class Offset>
constexpr bool conflict_free(const u32 (&phases)[kCount], u32 banks, Offset offset) {
  for (const u32 phase : phases) {
    if (!uses_distinct_banks<kBytes>(phase, 0, banks, offset) ||
        !uses_distinct_banks<kBytes>(phase, 32, banks, offset)) {
      return false;
    }
  }
  return true;
}

}  // namespace details

static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return lds_offset(l % 16, l / 16); }) &&
                  details::conflict_free(details::kReadPhases, kLdsBanks,
                                         [](u32 l) { return lds_offset(l % 16, l / 16 + 4); }),
              "reads of an operand have no bank conflict");
static_assert(details::conflict_free(details::kWritePhases, 32,
                                     [](u32 l) { return lds_offset(l / 8, l % 8); }),
              "writes of 8 rows by a wave have no bank conflict");

}  // namespace rfops
