// K-steps of 256 of MXFP4 operands, rows of 128 bytes: from memory through registers to LDS, piece
// by piece, so that a kernel puts each where the matrix cores leave room; their scales, shuffled,
// in registers (gfx950).
#pragma once

#include "rfops/fp4.h"
#include "rfops/lds_tile.h"
#include "rfops/loader.h"
#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

constexpr u32 kStepK = 2 * kRowBytes;  // elements

// Shuffled scales of at most `most` rows from `row` on, a multiple of 32.
struct ScaleRange {
  const u8* first;
  u32 bytes;

  __device__ ScaleRange(const u8* scales, u32 row, u32 rows, u32 most, u32 row_bytes) {
    const u32 left = row < rows ? rows - row : 0, own = left < most ? left : most;
    first = scales + u64{row / 32} * (32 * row_bytes);
    bytes = (own + 31) / 32 * 32 * row_bytes;
  }
};

// Where 16-byte chunk c of a row lies in LDS: as in lds_tile.h, but with a permutation in which
// writes of 8 rows side by side have no bank conflict either, as shuffled operands come.
constexpr u32 step_at(u32 row, u32 chunk) {
  return row * kRowBytes + (chunk ^ row % kRowChunks) * kVecBytes;
}
#if defined(__gfx950__)
static_assert(details::are_apart(details::kReadPhases, kLdsBanks,
                                 [](u32 l) { return step_at(l % 16, l / 16); }) &&
                  details::are_apart(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return step_at(l % 16, l / 16 + 4); }) &&
                  details::are_apart(details::kWritePhases, 32,
                                     [](u32 l) { return step_at(l / 8, l % 8); }) &&
                  details::are_apart(details::kWritePhases, 32,
                                     [](u32 l) { return step_at(l % 16, l / 16); }),
              "reads and writes have no bank conflict");
#endif

// Pieces of a K-step of an operand on their way to LDS: 16 bytes a thread, of 32 rows; those of a
// wave side by side in memory.
template <u32 kRows, bool kOrdered, bool kTail>
class Pieces {
 public:
  static constexpr u32 kCount = kRows / 32;
  using Order = MemoryOrder<kOrdered>;

  __device__ explicit Pieces(u32 row_bytes) : row_bytes_(row_bytes) {
    const u32 t = thread_in_group();
    const u32 row = kOrdered ? t % 16 + t / 128 * 16 : t / kRowChunks;
    chunk_ = kOrdered ? t / 16 % kRowChunks : t % kRowChunks;
    from_ = Order::place(row, chunk_, row_bytes);
    to_ = step_at(row, chunk_);
  }
  // What follows loads of the step that begins at element `k`; nothing from `end` on.
  __device__ void begin(const OperandRows& rows, u32 k, u32 end) {
    buffer_ = make_buffer(rows.first, k < end ? rows.bytes : 0);
    at_ = kTail && k + chunk_ * 32 >= end ? kOutside : from_ + k / 2 * Order::kUnit;
  }
  __device__ void load(u32 i) {
    u32 row_bytes = row_bytes_;
    asm volatile("" : "+s"(row_bytes));  // a product each time, else scalar registers are too few
    piece_[i] = load_16(buffer_, at_, i * 32 * row_bytes);
  }
  __device__ void put(u32 i, LdsBytes* tile) const {
    *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + i * 32 * kRowBytes) = piece_[i];
  }

 private:
  u32 row_bytes_, chunk_, from_, to_, at_;
  Buffer buffer_;
  U32x4 piece_[kCount];
};

// Scales of a wave's rows, of two K-steps: a dword of two tiles of rows and of both halves of a
// step.
template <u32 kTilesOfRows, bool kTail>
class Scales {
 public:
  static constexpr u32 kCount = kTilesOfRows / 2;

  __device__ explicit Scales(u32 row_bytes) : row_bytes_(row_bytes) {}
  __device__ void load(u32 i, u32 stage, const ScaleRange& range, u32 k, u32 end) {
    const Buffer buffer = make_buffer(range.first, k < end ? range.bytes : 0);
    const u32 at = lane_in_wave() * 4 + k / kStepK * (kWaveSize * 4);
    loaded_[stage][i] = load_dwords<1>(buffer, at, i * 32 * row_bytes_).dword[0];
  }
  // The step at element `k` begins: what lies beyond K may be NaN.
  __device__ void begin(u32 stage, u32 k, u32 end) {
    if constexpr (kTail) {
      const u32 block_k = k + lane_in_wave() / kTileRows * kFp4Block;
      const u32 there =
          (block_k < end ? 0x0000ffffu : 0) | (block_k + kTileK < end ? 0xffff0000u : 0);
#pragma unroll
      for (u32 i = 0; i < kCount; ++i) {
        loaded_[stage][i] &= there;
        asm volatile("s_nop 1" : "+v"(loaded_[stage][i]));  // a matrix instruction may be next
      }
    }
  }
  __device__ u32 of(u32 stage, u32 tile) const { return loaded_[stage][tile / 2]; }

 private:
  u32 row_bytes_;
  u32 loaded_[2][kCount];
};

}  // namespace rfops
