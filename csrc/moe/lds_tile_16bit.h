// Tiles of 16-bit operands in LDS for matrix cores of 32 x 32, and loads of them by 512 threads.
//
// A row has kStep elements of K in chunks of 16 bytes; chunk c of row r lies at place c ^ f(r) of
// it. An operand's read takes 32 rows of a chunk, and of the next; a write whole rows. Neither has
// bank conflicts: f counts rows that begin in the same banks.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <u32 kStep>
struct Rows16 {
  static constexpr u32 kElements = kVecBytes / 2;  // of a chunk
  static constexpr u32 kBytes = kStep * 2, kChunks = kStep / kElements;
  static constexpr u32 kSpread = kLdsBanks * 4 / kBytes;  // rows before the banks come again
  static constexpr u32 at(u32 row, u32 chunk) {
    return row * kBytes + (chunk ^ row / kSpread % kChunks) * kVecBytes;
  }
};

static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return Rows16<32>::at(l % 32, l / 32); }) &&
                  details::conflict_free(details::kReadPhases, kLdsBanks,
                                         [](u32 l) { return Rows16<64>::at(l % 32, 2 + l / 32); }),
              "reads of an operand have no bank conflict");
static_assert(details::conflict_free(details::kWritePhases, 32,
                                     [](u32 l) { return Rows16<32>::at(l / 4, l % 4); }) &&
                  details::conflict_free(details::kWritePhases, 32,
                                         [](u32 l) { return Rows16<64>::at(l / 8, l % 8); }),
              "writes of rows by a wave have none either");

// Memory that loads may touch.
struct Span {
  const void* first;
  u32 bytes;
};

// Steps that loaders have room for in registers, so that many are on their way.
constexpr u32 kStaged = 2;

// kCount rows of K side by side, through registers: each where the caller says, or nowhere. Of rows
// whose 16-byte chunks lie 16 times as far apart (global_to_lds.h's OperandLayout) kUnit is 16.
template <u32 kCount, u32 kStep, u32 kThreads, u32 kUnit = 1>
class RowLoader {
 public:
  using Rows = Rows16<kStep>;
  static constexpr u32 kRowsAtOnce = kThreads / Rows::kChunks, kPasses = kCount / kRowsAtOnce;
  static_assert(kPasses * kRowsAtOnce == kCount, "a chunk a thread and load");
  static constexpr u32 kChunkBytes = kVecBytes;  // even chunks lie apart by so much, exclusive-or
  static constexpr u32 at(u32 row, u32 chunk) { return Rows::at(row, chunk); }
  static_assert(kRowsAtOnce % (Rows::kSpread * Rows::kChunks) == 0, "passes lie alike");

  // offset_of(row): the byte of the row's first element, or kOutOfBounds.
  template <class OffsetOf>
  __device__ RowLoader(Span span, OffsetOf offset_of)
      : buffer_(make_buffer(span.first, span.bytes)) {
    const u32 row = thread_id() / Rows::kChunks, chunk = thread_id() % Rows::kChunks;
    k_ = chunk * Rows::kElements;
    to_ = Rows::at(row, chunk);
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      from_[p] = offset_of(row + p * kRowsAtOnce) + chunk * kVecBytes * kUnit;
    }
  }
  template <u32 kTo>
  __device__ void issue(u32 k, u32 k_end) {
    const u32 outside = k + k_ < k_end ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      staged_[kTo][p] = buffer_load_b128(buffer_, from_[p] | outside, k * 2 * kUnit);
    }
  }
  template <u32 kFrom>
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + p * kRowsAtOnce * Rows::kBytes) =
          staged_[kFrom][p];
    }
  }

 private:
  Buffer buffer_;
  u32 k_, to_, from_[kPasses];
  U32x4 staged_[kStaged][kPasses];
};

// The same of columns: memory has elements of one k side by side. A wave has 128 columns and 8 of
// K, a thread turns 4 x 4 elements round: 16 lanes load 64 bytes in a row of two k. In LDS two rows
// share 128 bytes, and a chunk's place counts the columns' fours, so that neither writes of one
// column of each four nor reads of an operand have bank conflicts.

template <u32 kThreads>
class ColumnLoader {
 public:
  static constexpr u32 kStep = 32, kColumns = 128;  // of K; of a wave
  static constexpr u32 kChunkBytes =
      2 * kVecBytes;  // even chunks lie apart by so much, exclusive-or
  static_assert(kThreads == 512, "four waves of 128 columns have a step of K");

  static constexpr u32 at(u32 row, u32 chunk) {
    const u32 place = (row / 4 ^ row % 4) % 8 ^ chunk * 2;
    return row / 2 * (2 * Rows16<kStep>::kBytes) + place * kVecBytes;
  }

  // The columns of waves 0 to 3, or 4 to 7, begin at `column` of a matrix of rows of row_bytes,
  // `columns` in all; row_of(n): the row of LDS of the n-th.
  template <class RowOf>
  __device__ ColumnLoader(Span span, u32 column, u32 columns, u32 row_bytes, RowOf row_of)
      : buffer_(make_buffer(span.first, span.bytes)), row_bytes_(row_bytes) {
    const u32 lane = lane_id(), chunk = wave_id() % 4, half = lane / 8 % 2;
    const u32 own = (lane % 8 + lane / 16 * 8) * 4;
    k_ = chunk * 8 + half * 4;
    from_ = k_ * row_bytes + (column + own) * 2;
    from_ |= column + own < columns ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 c = 0; c < 4; ++c) to_[c] = at(row_of(own + c), chunk) + half * 8;
  }
  template <u32 kTo>
  __device__ void issue(u32 k, u32 k_end) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 outside = k + i + k_ < k_end ? 0 : kOutOfBounds;
      const auto got =
          buffer_load_dwords<2>(buffer_, from_ | outside, readfirstlane((k + i) * row_bytes_));
      staged_[kTo][i] = {got.dword[0], got.dword[1]};
    }
  }
  template <u32 kFrom>
  __device__ void commit(LdsBytes* tile) const {
    constexpr u32 kLow = 0x05040100,
                  kHigh = 0x07060302;  // 16-bit halves of two dwords
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      const auto pair = [&](u32 i) {
        return __builtin_amdgcn_perm(staged_[kFrom][i + 1][c / 2], staged_[kFrom][i][c / 2],
                                     c % 2 == 0 ? kLow : kHigh);
      };
      *reinterpret_cast<RFOPS_LDS U32x2*>(tile + to_[c]) = U32x2{pair(0), pair(2)};
    }
  }

 private:
  Buffer buffer_;
  u32 row_bytes_, k_, from_, to_[4];
  U32x2 staged_[kStaged][4];
};
static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return ColumnLoader<512>::at(l % 32, l / 32); }),
              "reads of an operand have no bank conflict");

}  // namespace rfops
