// LDS tiles of 16-bit operands of 32 x 32 MFMAs, and loaders of them for 512 threads.
//
// A row has kStep elements of K in 16-byte chunks; chunk c of row r is stored at chunk c ^ f(r). A
// fragment read takes one chunk of 32 rows and the next chunk of the same rows; a write takes whole
// rows. f counts the groups of rows that span all banks, so neither has bank conflicts.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <u32 kStep>
struct Rows16 {
  static constexpr u32 kElements = kVecBytes / 2;  // of a chunk
  static constexpr u32 kBytes = kStep * 2, kChunks = kStep / kElements;
  static constexpr u32 kSpread = kLdsBanks * 4 / kBytes;  // rows that span all banks
  static constexpr u32 offset(u32 row, u32 chunk) {
    return row * kBytes + (chunk ^ row / kSpread % kChunks) * kVecBytes;
  }
};

static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return Rows16<32>::offset(l % 32, l / 32); }) &&
                  details::conflict_free(details::kReadPhases, kLdsBanks,
                                         [](u32 l) {
                                           return Rows16<64>::offset(l % 32, 2 + l / 32);
                                         }),
              "reads of an operand must have no bank conflict");
static_assert(details::conflict_free(details::kWritePhases, 32,
                                     [](u32 l) { return Rows16<32>::offset(l / 4, l % 4); }) &&
                  details::conflict_free(details::kWritePhases, 32,
                                         [](u32 l) { return Rows16<64>::offset(l / 8, l % 8); }),
              "writes of rows by a wave must have no bank conflict");

// Memory that loads may access.
struct Span {
  const void* base;
  u32 bytes;
};

// K-steps that a loader stages in registers, so that several are in flight.
constexpr u32 kStages = 2;

// Loads kNumRows row-major rows through registers; the caller gives the offset of each row. For
// preshuffled rows, whose 16-byte chunks are 16 times as far apart (OperandLayout of
// global_to_lds.h), kKStrideBytes is 16.
template <u32 kNumRows, u32 kStep, u32 kThreads, u32 kKStrideBytes = 1>
class RowLoader {
 public:
  using Lds = Rows16<kStep>;
  static constexpr u32 kRowsPerLoad = kThreads / Lds::kChunks, kPasses = kNumRows / kRowsPerLoad;
  static_assert(kPasses * kRowsPerLoad == kNumRows, "each load moves one chunk per thread");
  static constexpr u32 kChunkBytes = kVecBytes;  // XOR distance of consecutive even chunks
  static constexpr u32 offset(u32 row, u32 chunk) { return Lds::offset(row, chunk); }
  static_assert(kRowsPerLoad % (Lds::kSpread * Lds::kChunks) == 0,
                "all passes must have the same swizzle");

  // offset_of(row) returns the offset of the row's first element, or kOutOfBounds.
  template <class OffsetOf>
  __device__ RowLoader(Span span, OffsetOf offset_of)
      : buffer_(make_buffer(span.base, span.bytes)) {
    const u32 row = thread_id() / Lds::kChunks, chunk = thread_id() % Lds::kChunks;
    k_ = chunk * Lds::kElements;
    lds_dst_ = Lds::offset(row, chunk);
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      src_offset_[p] = offset_of(row + p * kRowsPerLoad) + chunk * kVecBytes * kKStrideBytes;
    }
  }
  template <u32 kStage>
  __device__ void issue(u32 k, u32 k_end) {
    const u32 oob_bits = k + k_ < k_end ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      staged_[kStage][p] =
          buffer_load_b128(buffer_, src_offset_[p] | oob_bits, k * 2 * kKStrideBytes);
    }
  }
  template <u32 kStage>
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + p * kRowsPerLoad * Lds::kBytes) =
          staged_[kStage][p];
    }
  }

 private:
  Buffer buffer_;
  u32 k_, lds_dst_, src_offset_[kPasses];
  U32x4 staged_[kStages][kPasses];
};

// Loads a column-major operand (elements of one k are contiguous). A wave loads 128 columns by 8 of
// K; a thread transposes 4 x 4 elements, and 16 lanes load 64 contiguous bytes of two k. In LDS two
// rows share 128 bytes, and the swizzle counts groups of four columns, so that neither writes of
// one column of each four nor fragment reads have bank conflicts.
template <u32 kThreads>
class ColumnLoader {
 public:
  static constexpr u32 kStep = 32, kColumns = 128;   // of K; of a wave
  static constexpr u32 kChunkBytes = 2 * kVecBytes;  // XOR distance of consecutive even chunks
  static_assert(kThreads == 512, "four waves of 128 columns must cover a K-step");

  static constexpr u32 offset(u32 row, u32 chunk) {
    const u32 swizzled_chunk = (row / 4 ^ row % 4) % 8 ^ chunk * 2;
    return row / 2 * (2 * Rows16<kStep>::kBytes) + swizzled_chunk * kVecBytes;
  }

  // The columns of waves 0 to 3, or 4 to 7, start at `column` of a matrix with rows of row_bytes
  // and `columns` columns. row_of(n) returns the LDS row of the n-th.
  template <class RowOf>
  __device__ ColumnLoader(Span span, u32 column, u32 columns, u32 row_bytes, RowOf row_of)
      : buffer_(make_buffer(span.base, span.bytes)), row_bytes_(row_bytes) {
    const u32 lane = lane_id(), chunk = wave_id() % 4, half = lane / 8 % 2;
    const u32 col = (lane % 8 + lane / 16 * 8) * 4;
    k_ = chunk * 8 + half * 4;
    src_offset_ = k_ * row_bytes + (column + col) * 2;
    src_offset_ |= column + col < columns ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 c = 0; c < 4; ++c) lds_dst_[c] = offset(row_of(col + c), chunk) + half * 8;
  }
  template <u32 kStage>
  __device__ void issue(u32 k, u32 k_end) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 oob_bits = k + i + k_ < k_end ? 0 : kOutOfBounds;
      const auto loaded = buffer_load_dwords<2>(buffer_, src_offset_ | oob_bits,
                                                readfirstlane((k + i) * row_bytes_));
      staged_[kStage][i] = {loaded.dword[0], loaded.dword[1]};
    }
  }
  template <u32 kStage>
  __device__ void commit(LdsBytes* tile) const {
    constexpr u32 kLow = 0x05040100, kHigh = 0x07060302;  // select 16-bit halves of two dwords
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      const auto pair = [&](u32 i) {
        return __builtin_amdgcn_perm(staged_[kStage][i + 1][c / 2], staged_[kStage][i][c / 2],
                                     c % 2 == 0 ? kLow : kHigh);
      };
      *reinterpret_cast<RFOPS_LDS U32x2*>(tile + lds_dst_[c]) = U32x2{pair(0), pair(2)};
    }
  }

 private:
  Buffer buffer_;
  u32 row_bytes_, k_, src_offset_, lds_dst_[4];
  U32x2 staged_[kStages][4];
};
static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) {
                                       return ColumnLoader<512>::offset(l % 32, l / 32);
                                     }),
              "reads of an operand must have no bank conflict");

}  // namespace rfops
