// K-steps of 256 elements of MXFP4 operands, 128 bytes per row: loaded through registers to LDS one
// chunk at a time, so that a kernel can place each instruction between MFMAs; their preshuffled
// scales stay in registers (gfx950).
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

constexpr u32 kStepK = 2 * kRowBytes;  // elements per K-step

// Returns the LDS offset of 16-byte chunk c of a row. The swizzle differs from that of
// lds_swizzle.h: writes of 16 rows, as preshuffled operands arrive, have no bank conflict either.
constexpr u32 lds_offset_mxfp4(u32 row, u32 chunk) {
  return row * kRowBytes + (chunk ^ row % kRowChunks) * kVecBytes;
}
#if defined(__gfx950__)
static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return lds_offset_mxfp4(l % 16, l / 16); }) &&
                  details::conflict_free(details::kReadPhases, kLdsBanks,
                                         [](u32 l) {
                                           return lds_offset_mxfp4(l % 16, l / 16 + 4);
                                         }) &&
                  details::conflict_free(details::kWritePhases, 32,
                                         [](u32 l) { return lds_offset_mxfp4(l / 8, l % 8); }) &&
                  details::conflict_free(details::kWritePhases, 32,
                                         [](u32 l) { return lds_offset_mxfp4(l % 16, l / 16); }),
              "reads and writes have no bank conflict");
#endif

// Loads the chunks of an operand's K-step to LDS: one 16-byte chunk per thread covers 32 rows;
// those of a wave are contiguous in memory.
template <u32 kRows, bool kShuffled, bool kTail>
class StepLoader {
 public:
  static constexpr u32 kCount = kRows / 32;
  using Layout = OperandLayout<kShuffled>;

  __device__ explicit StepLoader(u32 row_bytes) : load_stride_(32 * row_bytes) {
    const u32 t = thread_id();
    const u32 row = kShuffled ? t % 16 + t / 128 * 16 : t / kRowChunks;
    chunk_ = kShuffled ? t / 16 % kRowChunks : t % kRowChunks;
    src_offset_ = Layout::offset(row, chunk_, row_bytes);
    lds_dst_ = lds_offset_mxfp4(row, chunk_);
  }
  // Sets the K-step for the following loads to the one at element `k`. Elements from `end` on are
  // zeros.
  __device__ void set_k(u32 k, u32 end) {
    asm volatile("" : "+s"(k));  // keeps the computation from being hoisted
    lane_offset_ = kTail && k + chunk_ * 32 >= end
                       ? kOutOfBounds
                       : src_offset_ + (k < end ? k / 2 * Layout::kKStrideBytes : kOutOfBounds);
    scalar_offset_ = 0;
  }
  // Loads the chunks in ascending order of i.
  __device__ void load(const Buffer& rows, u32 i) {
    chunks_[i] = buffer_load_b128(rows, lane_offset_, scalar_offset_);
    scalar_offset_ += load_stride_;
    asm volatile("" : "+s"(scalar_offset_));  // in one register
  }
  // Waits for load i and writes its chunk to the LDS tile.
  __device__ void write_lds(u32 i, LdsBytes* tile) const {
    *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + i * 32 * kRowBytes) = chunks_[i];
  }

 private:
  u32 load_stride_, chunk_, src_offset_, lds_dst_, lane_offset_, scalar_offset_;
  U32x4 chunks_[kCount];
};

// Scales of a wave's rows for two K-steps: one dword holds those of two 16-row tiles and both
// halves of a K-step.
template <u32 kTilesOfRows, bool kTail>
class Scales {
 public:
  static constexpr u32 kCount = kTilesOfRows / 2;

  __device__ explicit Scales(u32 row_bytes) : load_stride_(32 * row_bytes) {}
  // Sets the K-step for the following loads to the one at element `k`. Scales from `end` on are
  // zeros.
  __device__ void set_k(u32 k, u32 end) {
    asm volatile("" : "+s"(k));
    lane_offset_ = lane_id() * 4 + (k < end ? k / kStepK * (kWaveSize * 4) : kOutOfBounds);
    scalar_offset_ = 0;
  }
  // Loads the scales in ascending order of i.
  __device__ void load(const Buffer& rows, u32 i, u32 stage) {
    loaded_[stage][i] = buffer_load_dwords<1>(rows, lane_offset_, scalar_offset_).dword[0];
    scalar_offset_ += load_stride_;
    asm volatile("" : "+s"(scalar_offset_));
  }
  // Zeroes the scales beyond K of the K-step at element `k`, because they may be NaN.
  __device__ void mask_tail(u32 stage, u32 k, u32 end) {
    if constexpr (kTail) {
      const u32 block_k = k + lane_id() / kTileRows * kFp4Block;
      const u32 valid_mask =
          (block_k < end ? 0x0000ffffu : 0) | (block_k + kTileK < end ? 0xffff0000u : 0);
#pragma unroll
      for (u32 i = 0; i < kCount; ++i) {
        loaded_[stage][i] &= valid_mask;
        asm volatile("s_nop 1"
                     : "+v"(loaded_[stage][i]));  // wait states before an MFMA that reads it
      }
    }
  }
  // Returns the dword with the scales of row tile `tile`; the MFMA selects the byte.
  __device__ u32 scale(u32 stage, u32 tile) const { return loaded_[stage][tile / 2]; }

 private:
  u32 load_stride_, lane_offset_, scalar_offset_;
  u32 loaded_[2][kCount];
};

// Order of a wave's tiles in which consecutive tiles share an operand.
template <u32 kMTiles, u32 kNTiles>
struct SnakeOrder {
  // Row tile and column tile of the t-th MFMA, and the inverse.
  static constexpr u32 m_of(u32 t) { return t / kNTiles; }
  static constexpr u32 n_of(u32 t) {
    return m_of(t) % 2 == 0 ? t % kNTiles : kNTiles - 1 - t % kNTiles;
  }
  static constexpr u32 index_of(u32 i, u32 j) {
    return i * kNTiles + (i % 2 == 0 ? j : kNTiles - 1 - j);
  }
};

// Issue slots of a K-step of 2 kTiles MFMAs in two halves: after which MFMA each other instruction
// is issued. LDS reads take every kInterval-th slot, LDS writes the slots between them in the first
// half; loads are spread over both halves to even out the load on memory. Writes end early, so that
// the barrier finds them complete.
template <u32 kTiles, u32 kReads, u32 kPieces, u32 kScales>
struct IssueSchedule {
  static constexpr u32 kMaxPerHalf = kReads > kPieces ? kReads : kPieces;
  static constexpr u32 kInterval = (kTiles - 8) / kMaxPerHalf;
  static_assert(kInterval >= 1, "reads and writes end before their half");
  // Issue slots of the i-th LDS write, load and scale load.
  static constexpr u32 write_idx(u32 i) { return i * kInterval + (kInterval > 1 ? 1 : 0); }
  static constexpr u32 load_idx(u32 i) { return write_idx(i) + 3 + i * (kTiles + 8) / kPieces; }
  static constexpr u32 scale_idx(u32 i) { return 9 + i * (kTiles / kScales); }
  // Returns a slot before issue_idx that reads and writes leave free.
  static constexpr u32 free_idx_before(u32 issue_idx) {
    return issue_idx / kInterval * kInterval - 1;
  }
};

}  // namespace rfops
