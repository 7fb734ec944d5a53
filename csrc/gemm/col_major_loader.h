// Loads column-major operands (consecutive addresses are rows of one k) into LDS, one K-step of 128
// at a time, and reads transposed fragments.
//
// gfx950 keeps a K-step as it is in memory, kRows bytes per k, and transposes it on the read: for 8
// k by 16 rows, 16 lanes execute ds_read_b64_tr_b8, in which lanes 2 i and 2 i + 1 supply the
// addresses of the halves of k i, and lane j gets the 8 k of row j. gfx942 transposes in registers
// before the LDS write (transpose_loader.h).
//
// Requires: the first row and the stride between k and k + 1 multiples of 4 bytes, the number of
// rows a multiple of 4. If fewer than kRows rows are in bounds, the others hold undefined data,
// whose sums must not be stored.
#pragma once

#include "gemm/transpose_loader.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

#if defined(__gfx950__)

// LDS layout: chunk c of 16 rows of k is at kRows k + 16 (c ^ swizzle(k)).
template <u32 kRows>
struct ColMajorLayout {
  static constexpr u32 kChunks = kRows / kVecBytes;
  static constexpr u32 kBytes = kRows * kTileK;
  static_assert(kRows == 64 || kRows == 128, "one k fills a half or a quarter of the banks");

  // 16 lanes read 8 consecutive k; the next 16 lanes read those 16 k later.
  static constexpr u32 swizzle(u32 k) {
    constexpr u32 kStepsPerBankSweep = kLdsBanks * 4 / kRows;  // k that fill all banks once
    return k / kStepsPerBankSweep % (kChunks / 2) + k / 16 % 2 * (kChunks / 2);
  }
  static constexpr u32 offset(u32 k, u32 chunk) {
    return k * kRows + (chunk ^ swizzle(k)) * kVecBytes;
  }
  // Returns the offset that a lane supplies to the first of a tile's four reads; the other reads
  // are 8, 64 and 72 k later.
  static constexpr u32 read_offset(u32 lane, u32 chunk) {
    return offset(lane / 16 * 16 + lane % 16 / 2, chunk) + lane % 2 * 8;
  }
  static_assert(swizzle(8) == swizzle(0) && swizzle(72) == swizzle(64) && swizzle(64) == 0);
  static_assert(details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                          [](u32 l) { return read_offset(l, 0); }) &&
                    details::conflict_free(details::kWritePhases, 32,
                                           [](u32 l) { return offset(l / kChunks, l % kChunks); }),
                "neither reads nor writes have a bank conflict");
};

// Reads fragments of such operands: kTiles tiles from row row_begin on. A read takes the K-step
// kOffsetBytes after `memory`.
template <u32 kRows, u32 kTiles>
class ColMajorReader {
 public:
  using Layout = ColMajorLayout<kRows>;

  __device__ ColMajorReader(const LdsBytes* memory, u32 lane, u32 row_begin) {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      tile_begin_[i] = memory + Layout::read_offset(lane, row_begin / kTileRows + i);
      force_vgpr(tile_begin_[i]);  // otherwise each read adds what exceeds its offset field
    }
  }
  template <u32 kOffsetBytes = 0>
  __device__ Fragment read(u32 tile) const {
    const LdsBytes* const ptr = tile_begin_[tile] + kOffsetBytes;
    return {read_half(ptr), read_half(ptr + kPieceK * kRows)};
  }

 private:
  __device__ static U32x4 read_half(const LdsBytes* ptr) {
    const auto read_transposed = [](const LdsBytes* src) {
      return __builtin_amdgcn_ds_read_tr8_b64_v2i32((RFOPS_LDS I32x2*)src);
    };
    const I32x2 low = read_transposed(ptr), high = read_transposed(ptr + 8 * kRows);
    return __builtin_bit_cast(U32x4, __builtin_shufflevector(low, high, 0, 1, 2, 3));
  }
  const LdsBytes* tile_begin_[kTiles];
};

// As StagedLoader, for column-major operands.
template <u32 kRows, u32 kThreads>
class StagedColMajorLoader {
 public:
  using Layout = ColMajorLayout<kRows>;

  static constexpr u32 kTransposeOps = 0;
  __device__ void transpose(u32) {}

  __device__ explicit StagedColMajorLoader(const OperandView& rows) : rows_(rows) {
    const u32 k = thread_id() / Layout::kChunks, chunk = thread_id() % Layout::kChunks;
    src_offset_ = k * rows.row_bytes + chunk * kVecBytes;
    lds_dst_ = Layout::offset(k, chunk);
  }

  __device__ void issue(u32 k, bool in_bounds) {
    const Buffer buffer = rows_.k_step_buffer(k, in_bounds);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_load_b128(buffer, src_offset_, i * kStepsPerLoad * rows_.row_bytes);
    }
  }

  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + i * kStepsPerLoad * kRows) = staged_[i];
    }
  }

 private:
  static constexpr u32 kStepsPerLoad = kThreads / Layout::kChunks;  // k per load
  static constexpr u32 kLoads = kTileK / kStepsPerLoad;
  static_assert(kStepsPerLoad % 32 == 0, "all loads of a thread have the same swizzle");
  OperandView rows_;
  u32 src_offset_, lds_dst_;
  U32x4 staged_[kLoads];
};

// As LdsDmaLoader, for column-major operands.
template <u32 kRows, u32 kWaves>
class LdsDmaColMajorLoader {
 public:
  using Layout = ColMajorLayout<kRows>;

  __device__ explicit LdsDmaColMajorLoader(const OperandView& rows) : rows_(rows) {
    const u32 k = thread_id() / Layout::kChunks, lds_chunk = thread_id() % Layout::kChunks;
    src_offset_ = k * rows.row_bytes + (lds_chunk ^ Layout::swizzle(k)) * kVecBytes;
  }

  // Issues the loads of the kRows rows from `row` on, to kTile bytes after lds_dst
  // (LdsDmaLoader::wave_lds_base).
  template <u32, u32 kTile = 0>
  __device__ void issue(u32 lds_dst, u32 row, u32 k, bool in_bounds) const {
    const u8* const base = rows_.base + u64{k} * rows_.row_bytes;
    issue_loads<0, kTile>(lds_dst, make_buffer_words(base, in_bounds ? rows_.bytes : 0), row);
  }

 private:
  static constexpr u32 kStepsPerLoad = kWaves * kWaveSize / Layout::kChunks;  // k per load
  static_assert(kStepsPerLoad % 32 == 0, "all loads of a thread have the same swizzle");

  template <u32 kKBegin, u32 kTile>
  __device__ void issue_loads(u32 lds_dst, U32x4 buffer, u32 row) const {
    if constexpr (kKBegin < kTileK) {
      buffer_load_lds_b128<kTile>(buffer, src_offset_, kKBegin * rows_.row_bytes, row, lds_dst);
      issue_loads<kKBegin + kStepsPerLoad, kTile + kStepsPerLoad * kRows>(lds_dst, buffer, row);
    }
  }

  OperandView rows_;
  u32 src_offset_;
};

#endif

// Loader and reader of kRows rows of an operand, by its layout: StagedPath goes through registers
// with kThreads threads, LdsDmaPath direct to LDS with kWaves waves. A wave reads kTiles tiles.
template <bool kColMajor, u32 kRows, u32 kTiles, u32 kThreads, bool kShuffled>
struct StagedPath {
  using Loader = StagedLoader<kRows, kThreads, kShuffled>;
  using Reader = RowReader;
};
#if defined(__gfx950__)
template <u32 kRows, u32 kTiles, u32 kThreads>
struct StagedPath<true, kRows, kTiles, kThreads, false> {
  using Loader = StagedColMajorLoader<kRows, kThreads>;
  using Reader = ColMajorReader<kRows, kTiles>;
};
template <bool kColMajor, u32 kRows, u32 kTiles, u32 kWaves, bool kShuffled>
struct LdsDmaPath {
  using Loader = LdsDmaLoader<kWaves, kShuffled>;
  using Reader = RowReader;
};
template <u32 kRows, u32 kTiles, u32 kWaves>
struct LdsDmaPath<true, kRows, kTiles, kWaves, false> {
  using Loader = LdsDmaColMajorLoader<kRows, kWaves>;
  using Reader = ColMajorReader<kRows, kTiles>;
};
#else
template <u32 kTiles, u32 kThreads>
struct StagedPath<true, 128, kTiles, kThreads, false> {
  using Loader = TransposeLoader<128, kThreads>;
  using Reader = RowReader;
};
template <u32 kTiles, u32 kThreads>
struct StagedPath<true, 64, kTiles, kThreads, false> {
  using Loader = TransposeLoader<64, kThreads>;
  using Reader = TransposedReader;
};
#endif

}  // namespace rfops
