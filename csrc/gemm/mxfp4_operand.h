// Operands of MX matrix multiplication, loaded to registers in the order that suits memory, one
// tile of 16 rows by 128 of K at a time, then converted to MFMA fragments.
//
// Tiles beyond K (in_bounds is false) and rows out of bounds load zeros with scale 2^-127 without a
// memory access: they add 0. With kTail K may end within a tile, at a multiple of 32.
#pragma once

#include "gemm/mxfp4_fast_quant.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

struct Fp4 {};  // type of x: e2m1 with scales
struct Fp8 {};  // type of x: e4m3 with scales

// Scales of a workgroup's rows from `row` on, a multiple of 16; all in scalars.
template <bool kShuffled>
struct ScaleRows {
  const u8* base;
  u32 row_bytes;  // row stride; of preshuffled scales the number of columns, a multiple of 8
  u32 bytes;
  u32 odd;  // `row` is in the second half of 32 preshuffled rows

  __device__ ScaleRows(const u8* scales, u32 row, u32 rows, u32 max_rows, u32 row_bytes, u32 k)
      : row_bytes(row_bytes), odd(kShuffled ? row / kTileRows % 2 : 0) {
    const u32 num_rows = rows - row < max_rows ? rows - row : max_rows;
    if constexpr (kShuffled) {
      base = scales + u64{row / 32} * (32 * row_bytes);
      bytes = (row % 32 + num_rows + 31) / 32 * 32 * row_bytes;
    } else {
      base = scales + u64{row} * row_bytes;
      bytes = (num_rows - 1) * row_bytes + k / kFp4Block;
    }
  }

  // Loads the lane's scale of the tile that is `rows16` and `k128` tiles further, in the lowest
  // byte.
  template <bool kTail>
  __device__ u32 load(u32 rows16, u32 k128, u32 k, bool in_bounds) const {
    using Layout = MxScaleLayout<kShuffled>;
    const u32 lane = lane_id();
    u32 offset = Layout::lane_offset(lane, row_bytes);
    if constexpr (kTail)
      offset = (k128 * kFp4TileBlocks + lane / kTileRows) * kFp4Block < k ? offset : kOutOfBounds;
    const Buffer buffer = make_buffer(base, in_bounds ? bytes : 0);
    return Layout::load(buffer, offset, Layout::tile_offset(rows16 + odd, k128, row_bytes));
  }
  __device__ u32 select_byte(u32 loaded, u32 rows16, u32 k128) const {
    return MxScaleLayout<kShuffled>::select_byte(loaded, rows16 + odd, k128);
  }
};

// Fragment and scale of one tile; e2m1 ignores `high`.
struct ScaledFragment {
  Fragment fragment;
  u32 scale;
};

// An operand that has scales. Preshuffled tiles are loaded as fragments. Of others adjacent lanes
// load adjacent addresses, and kStagingBytes of the wave's own LDS bring them into fragment order.
template <class X, bool kShuffled, bool kShuffledScales, bool kTail, CacheHint kHint = kCached>
struct ScaledSource {
  static constexpr MatrixFormat kFormat = __is_same(X, Fp4) ? kE2m1 : kE4m3;
  static constexpr u32 kChunksPerLane = kFormat == kE2m1 ? 1 : 2;  // 16 bytes each
  static constexpr u32 kChunks = 4 * kChunksPerLane;  // 16-byte chunks in a row of a tile
  static constexpr u32 kElements = kTileK / kChunks;  // per chunk
  static constexpr u32 kRowsPerLoad = kWaveSize / kChunks;
  static constexpr u32 kStagingBytes = kShuffled ? 0 : kTileRows * kChunks * kVecBytes;
  using Layout = OperandLayout<kShuffled>;
  struct Staged {
    U32x4 chunks[kChunksPerLane];
    u32 scale;
  };
  using Transposed = Staged;

  OperandView rows;
  ScaleRows<kShuffledScales> scales;
  u32 k;

  // Returns the LDS offset of a chunk: lanes that LDS serves together use different banks.
  static constexpr u32 staging_offset(u32 row, u32 chunk) {
    if constexpr (kChunksPerLane == 2) return lds_offset(row, chunk);
    const u32 high = row / 8, swizzle = (high ^ row / 4 % 2) * 2 + high;
    return (row * kChunks + (chunk ^ swizzle)) * kVecBytes;
  }

  __device__ Staged load(u32 rows16, u32 k128, bool in_bounds) const {
    const u32 lane = lane_id();
    const Buffer buffer = make_buffer(rows.base, in_bounds ? rows.bytes : 0);
    Staged staged;
#pragma unroll
    for (u32 i = 0; i < kChunksPerLane; ++i) {
      const u32 row = kShuffled ? lane % kTileRows : lane / kChunks;
      const u32 chunk = kShuffled ? lane / kTileRows + 4 * i : lane % kChunks;
      const u32 more_rows = kShuffled ? 0 : i * kRowsPerLoad;
      u32 offset = Layout::offset(row, chunk, rows.row_bytes);
      if constexpr (kTail) offset = k128 * kTileK + chunk * kElements < k ? offset : kOutOfBounds;
      staged.chunks[i] =
          buffer_load_b128<kHint>(buffer, offset,
                                  (rows16 * kTileRows + more_rows) * rows.row_bytes +
                                      k128 * (kChunks * kVecBytes) * Layout::kKStrideBytes);
    }
    staged.scale = scales.template load<kTail>(rows16, k128, k, in_bounds);
    return staged;
  }
  __device__ void stage(const Staged& staged, LdsBytes* staging) const {
    if constexpr (kShuffled) return;
    const u32 lane = lane_id();
#pragma unroll
    for (u32 i = 0; i < kChunksPerLane; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(
          staging + staging_offset(i * kRowsPerLoad + lane / kChunks, lane % kChunks)) =
          staged.chunks[i];
    }
  }
  __device__ Transposed transpose(const Staged& staged, LdsBytes* staging) const {
    if constexpr (kShuffled) return staged;
    const u32 lane = lane_id();
    Transposed words = staged;
#pragma unroll
    for (u32 i = 0; i < kChunksPerLane; ++i) {
      words.chunks[i] =
          lds_load_b128(staging + staging_offset(lane % kTileRows, lane / kTileRows + 4 * i));
    }
    return words;
  }
  __device__ ScaledFragment make_fragment(const Transposed& frag, u32 rows16, u32 k128) const {
    return {{frag.chunks[0], frag.chunks[kChunksPerLane - 1]},
            scales.select_byte(frag.scale, rows16, k128)};
  }
};

// An operand of bf16 or f16 that is quantised here. A load brings four contiguous rows of 256
// bytes; kStagingBytes of the wave's own LDS give each lane 64 bytes of a row.
template <class X, class Rounding, bool kTail>
struct QuantisedSource {
  static constexpr MatrixFormat kFormat = kE2m1;
  static constexpr u32 kChunks = 16;  // 16-byte chunks in a row of a tile
  static constexpr u32 kRowsPerLoad = kWaveSize / kChunks;
  static constexpr u32 kStagingBytes = kTileRows * kChunks * kVecBytes;
  struct Staged {
    U32x4 chunks[4];
  };

  OperandView rows;
  u32 k;

  // Returns the LDS offset of a chunk: lanes that LDS serves together use different banks
  // (static_assert below).
  static constexpr u32 staging_offset(u32 row, u32 chunk) {
    const u32 high = row / 8, swizzle = (high ^ row / 4 % 2) * 8 + high * 4 + row % 4;
    return (row * kChunks + (chunk ^ swizzle)) * kVecBytes;
  }

  __device__ Staged load(u32 rows16, u32 k128, bool in_bounds) const {
    const u32 lane = lane_id(), chunk = lane % kChunks;
    const Buffer buffer = make_buffer(rows.base, in_bounds ? rows.bytes : 0);
    u32 offset = lane / kChunks * rows.row_bytes + chunk * kVecBytes;
    if constexpr (kTail)
      offset = k128 * kTileK + chunk * (kVecBytes / 2) < k ? offset : kOutOfBounds;
    Staged staged;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      staged.chunks[i] = buffer_load_b128(
          buffer, offset,
          (rows16 * kTileRows + i * kRowsPerLoad) * rows.row_bytes + k128 * kTileK * 2);
    }
    return staged;
  }

  // A lane's block of 32 elements.
  struct Transposed {
    u32 x[16];
  };
  __device__ void stage(const Staged& staged, LdsBytes* staging) const {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(
          staging + staging_offset(i * kRowsPerLoad + lane / kChunks, lane % kChunks)) =
          staged.chunks[i];
    }
  }
  __device__ Transposed transpose(const Staged&, LdsBytes* staging) const {
    const u32 lane = lane_id();
    Transposed words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const U32x4 chunks = lds_load_b128(staging + staging_offset(lane % 16, lane / 16 * 4 + i));
#pragma unroll
      for (u32 j = 0; j < 4; ++j) words.x[4 * i + j] = chunks[j];
    }
    return words;
  }
  __device__ ScaledFragment make_fragment(const Transposed& block_words, u32, u32) const {
    const Mxfp4Block block = quant_block_fast<X, Rounding>(block_words.x);
    return {{block.codes, block.codes}, block.scale};
  }
};

namespace details {

// Returns whether neither writes nor reads of a source's staging have a bank conflict.
template <class Source, u32 kReads>
constexpr bool staging_conflict_free() {
  constexpr u32 kChunks = Source::kChunks;
  for (u32 i = 0; i < kReads; ++i) {
    const u32 step = kReads == 4 ? 1 : 4, rows = kReads == 4 ? 4 : 1;  // chunks of a lane
    if (!conflict_free(kReadPhases, kLdsBanks, [=](u32 l) {
          return Source::staging_offset(l % 16, l / 16 * rows + i * step);
        })) {
      return false;
    }
  }
  for (u32 i = 0; i < kReads; ++i) {
    if (!conflict_free(kWritePhases, 32, [=](u32 l) {
          return Source::staging_offset(i * kWaveSize / kChunks + l / kChunks, l % kChunks);
        })) {
      return false;
    }
  }
  return true;
}
#if defined(__gfx950__)
static_assert(staging_conflict_free<QuantisedSource<bf16, Even, false>, 4>() &&
                  staging_conflict_free<ScaledSource<Fp4, false, false, false>, 1>() &&
                  staging_conflict_free<ScaledSource<Fp8, false, false, false>, 2>(),
              "staging has no bank conflict");
#endif

template <class X, class Rounding, bool kShuffledScales, bool kTail>
struct SourceOf {
  using Type = QuantisedSource<X, Rounding, kTail>;
};
template <class Rounding, bool kShuffledScales, bool kTail>
struct SourceOf<Fp4, Rounding, kShuffledScales, kTail> {
  using Type = ScaledSource<Fp4, false, kShuffledScales, kTail>;
};
template <class Rounding, bool kShuffledScales, bool kTail>
struct SourceOf<Fp8, Rounding, kShuffledScales, kTail> {
  using Type = ScaledSource<Fp8, false, kShuffledScales, kTail>;
};

}  // namespace details

// The source of x by its type.
template <class X, class Rounding, bool kShuffledScales, bool kTail>
using XSource = details::SourceOf<X, Rounding, kShuffledScales, kTail>::Type;

// Makes the source of at most max_rows rows of x, [rows, k], from `row` on.
template <class Source, class X>
__device__ inline Source x_source(const void* x, const u8* scales, u32 row, u32 rows, u32 max_rows,
                                  u32 row_bytes, u32 scale_row_bytes, u32 k) {
  const u8* const base = static_cast<const u8*>(x);
  if constexpr (__is_same(X, Fp4) || __is_same(X, Fp8)) {
    const u32 k_bytes = __is_same(X, Fp4) ? k / 2 : k;
    return {{base, row, rows, max_rows, row_bytes, 0, k_bytes},
            {scales, row, rows, max_rows, scale_row_bytes, k},
            k};
  } else {
    return {{base, row, rows, max_rows, row_bytes, 0, 2 * k}, k};
  }
}

}  // namespace rfops
