// Tiles of 16-bit operands in LDS for matrix cores of 32 x 32, and loads of them by 512 threads.
//
// A row has kStep elements of K in chunks of 16 bytes; chunk c of row r lies at place c ^ f(r) of
// it. An operand's read takes 32 rows of a chunk, and of the next; a write whole rows. Neither has
// bank conflicts: f counts rows that begin in the same banks.
#pragma once

#include "rfops/lds_tile.h"
#include "rfops/memory.h"
#include "rfops/types.h"

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

static_assert(details::are_apart(details::kReadPhases, kLdsBanks,
                                 [](u32 l) { return Rows16<32>::at(l % 32, l / 32); }) &&
                  details::are_apart(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return Rows16<64>::at(l % 32, 2 + l / 32); }),
              "reads of an operand have no bank conflict");
static_assert(details::are_apart(details::kWritePhases, 32,
                                 [](u32 l) { return Rows16<32>::at(l / 4, l % 4); }) &&
                  details::are_apart(details::kWritePhases, 32,
                                     [](u32 l) { return Rows16<64>::at(l / 8, l % 8); }),
              "writes of rows by a wave have none either");

// Memory that loads may touch.
struct Span {
  const void* first;
  u32 bytes;
};

// 256 rows of K side by side, through registers: each where the caller says, or nowhere. Of rows
// whose 16-byte chunks lie 16 times as far apart (loader.h's MemoryOrder) kUnit is 16.
template <u32 kStep, u32 kThreads, u32 kUnit = 1>
class RowLoader {
 public:
  using Rows = Rows16<kStep>;
  static constexpr u32 kRowsAtOnce = kThreads / Rows::kChunks, kPasses = 256 / kRowsAtOnce;
  static_assert(kRowsAtOnce % (Rows::kSpread * Rows::kChunks) == 0, "passes lie alike");

  // offset_of(row): the byte of the row's first element, or kOutside.
  template <class OffsetOf>
  __device__ RowLoader(Span span, OffsetOf offset_of)
      : buffer_(make_buffer(span.first, span.bytes)) {
    const u32 row = thread_in_group() / Rows::kChunks, chunk = thread_in_group() % Rows::kChunks;
    k_ = chunk * Rows::kElements;
    to_ = Rows::at(row, chunk);
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      from_[p] = offset_of(row + p * kRowsAtOnce) + chunk * kVecBytes * kUnit;
    }
  }
  __device__ void issue(u32 k, u32 k_end) {
    const u32 outside = k + k_ < k_end ? 0 : kOutside;
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      staged_[p] = load_16(buffer_, from_[p] | outside, k * 2 * kUnit);
    }
  }
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 p = 0; p < kPasses; ++p) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + p * kRowsAtOnce * Rows::kBytes) = staged_[p];
    }
  }

 private:
  Buffer buffer_;
  u32 k_, to_, from_[kPasses];
  U32x4 staged_[kPasses];
};

#if defined(__gfx950__)

// The same straight to LDS (loader.h says why by assembly): kLoads instructions of a wave, which
// `wait_loads` counts. A step beyond K loads zeros, and touches no memory.
template <u32 kStep, u32 kThreads, u32 kUnit = 1>
class DirectRowLoader {
 public:
  using Rows = Rows16<kStep>;
  static constexpr u32 kRowsAtOnce = kThreads / Rows::kChunks, kLoads = 256 / kRowsAtOnce;
  static_assert(kRowsAtOnce % (Rows::kSpread * Rows::kChunks) == 0, "loads lie alike");

  template <class OffsetOf>
  __device__ DirectRowLoader(Span span, OffsetOf offset_of)
      : buffer_(make_words(span.first, span.bytes)) {
    const u32 row = thread_in_group() / Rows::kChunks, place = thread_in_group() % Rows::kChunks;
    const u32 chunk = place ^ row / Rows::kSpread % Rows::kChunks;
    k_ = chunk * Rows::kElements;
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      from_[i] = offset_of(row + i * kRowsAtOnce) + chunk * kVecBytes * kUnit;
    }
  }
  __device__ void issue(LdsBytes* tile, u32 k, u32 k_end) const {
    const u32 outside = k + k_ < k_end ? 0 : kOutside;
    const u32 to = lds_address(tile) + wave_in_group() * (kWaveSize * kVecBytes);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dwordx4 %1, %2, %3 offen lds"
                   :
                   : "s"(to + i * kRowsAtOnce * Rows::kBytes), "v"(from_[i] | outside),
                     "s"(buffer_), "s"(k * 2 * kUnit)
                   : "memory");
    }
  }

 private:
  U32x4 buffer_;
  u32 k_, from_[kLoads];
};

#endif

// The same of columns: memory has elements of one k side by side. A wave has 32 columns, a thread
// turns 4 x 4 elements round at a time. Rows of LDS go by turned_row, so that two neighbouring
// blocks of 4 begin in different banks.
using U32x2 = u32 __attribute__((ext_vector_type(2)));
constexpr u32 turned_row(u32 row) { return row ^ (row >> 2 & 1); }

template <u32 kStep, u32 kThreads>
class ColumnLoader {
 public:
  using Rows = Rows16<kStep>;
  static constexpr u32 kBlocks = kStep / 32;  // of 4 x 4, of a thread
  static_assert(kThreads == 512, "32 columns a wave");

  // The wave's columns begin at `column` of a matrix of rows of row_bytes, `columns` in all.
  __device__ ColumnLoader(Span span, u32 column, u32 columns, u32 row_bytes)
      : buffer_(make_buffer(span.first, span.bytes)), row_bytes_(row_bytes) {
    const u32 lane = lane_in_wave(), own = lane / 8 * 4;
    k_ = lane % 8 * 4;
    from_ = k_ * row_bytes + (column + own) * 2;
    from_ |= column + own < columns ? 0 : kOutside;
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      to_[c] = Rows::at(turned_row(wave_in_group() * 32 + own + c), k_ / 8) + k_ % 8 * 2;
    }
  }
  __device__ void issue(u32 k, u32 k_end) {
#pragma unroll
    for (u32 i = 0; i < kBlocks * 4; ++i) {
      const u32 own = k + i / 4 * 32 + i % 4;
      const u32 outside = own + k_ < k_end ? 0 : kOutside;
      const auto got = load_dwords<2>(buffer_, from_ | outside, as_scalar(own * row_bytes_));
      staged_[i] = {got.dword[0], got.dword[1]};
    }
  }
  __device__ void commit(LdsBytes* tile) const {
    constexpr u32 kLow = 0x05040100, kHigh = 0x07060302;  // 16-bit halves of two dwords
#pragma unroll
    for (u32 b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        const auto pair = [&](u32 j) {
          return __builtin_amdgcn_perm(staged_[b * 4 + j + 1][c / 2], staged_[b * 4 + j][c / 2],
                                       c % 2 == 0 ? kLow : kHigh);
        };
        const U32x2 turned = {pair(0), pair(2)};
        *reinterpret_cast<RFOPS_LDS U32x2*>(tile + (to_[c] ^ b * 4 * kVecBytes)) = turned;
      }
    }
  }

 private:
  Buffer buffer_;
  u32 row_bytes_, k_, from_, to_[4];
  U32x2 staged_[kBlocks * 4];
};

}  // namespace rfops
