// Loads of a tile of an operand into LDS as lds_swizzle.h has it, a step of 128 along K at a time.
//
// Rows of an operand that are not there, and steps beyond the workgroup's part of K, load zeros by
// the descriptor's range check and touch no memory: every step issues the same instructions, from
// which the kernel's waits are counted (kLoads).
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// How an operand lies in memory: row by row, or shuffled: tiles of 16 rows by 16 bytes of K one
// after the other along K, so that 1 KB in a row are 64 bytes of K of 16 rows, a matrix operand's
// half.
template <bool kShuffled>
struct OperandLayout {
  static constexpr u32 kUnit =
      kShuffled ? 16 : 1;  // bytes of memory from one byte of K to the next
  static constexpr u32 kChunk = kVecBytes * kUnit;  // from one 16-byte chunk of a row to the next

  __device__ static u32 place(u32 row, u32 chunk, u32 row_bytes) {
    if constexpr (kShuffled) {
      return row / 16 * 16 * row_bytes + chunk * kChunk + row % 16 * kVecBytes;
    } else {
      return row * row_bytes + chunk * kChunk;
    }
  }
};

// The rows of one operand that a workgroup works on, from its part of K on; all in scalars.
// Shuffled ones come in sixteens.
struct OperandView {
  const u8* first;
  u32 row_bytes;  // from row to row
  u32 bytes;      // to the end of the last row's part

  // At most `most` of the operand's rows from `row` on; K from `k` on, `k_bytes` of it.
  __device__ OperandView(const u8* operand, u32 row, u32 rows, u32 most, u32 row_bytes, u32 k,
                         u32 k_bytes, u32 unit = 1)
      : first(operand + u64{row} * row_bytes + k * unit), row_bytes(row_bytes) {
    const u32 own = rows - row < most ? rows - row : most;
    bytes = (own - unit) * row_bytes + k_bytes * unit;
  }

  // Of an operand that may be column-major: bytes of one k are then `row_bytes` from the next k's,
  // and `bytes` is to the end of a K-step.
  template <bool kColumns>
  __device__ static OperandView of(const u8* operand, u32 row, u32 rows, u32 most, u32 row_bytes,
                                   u32 k, u32 k_bytes, u32 unit = 1) {
    if constexpr (kColumns) {
      const u32 own = rows - row < most ? rows - row : most;
      return {operand + row + u64{k} * row_bytes, row_bytes, (kTileK - 1) * row_bytes + own};
    } else {
      return {operand, row, rows, most, row_bytes, k, k_bytes, unit};
    }
  }

  // A K-step of a column-major one; K-steps far apart are beyond 32-bit offsets.
  __device__ Buffer step_of(u32 k, bool is_there) const {
    return make_buffer(first + u64{k} * row_bytes, is_there ? bytes : 0);
  }

 private:
  __device__ OperandView(const u8* first, u32 row_bytes, u32 bytes)
      : first(first), row_bytes(row_bytes), bytes(bytes) {}
};

// Asks for a line a lane, so that rows that all workgroups of an XCD want are in its L2 before they
// are loaded: part `index` of them, kRows rows by as many blocks of K as a wave has lanes for. The
// result is worth nothing, and must live until it has arrived.
template <u32 kRows>
__device__ inline u32 prefetch_rows_to_l2(const OperandView& rows, u32 index, u32 blocks) {
  constexpr u32 kBlocks = kWaveSize / kRows;
  const u32 lane = lane_id(), block = index * kBlocks + lane / kRows;
  const bool is_there = block < blocks && lane < kBlocks * kRows;
  const u32 from = is_there ? lane % kRows * rows.row_bytes + block * kTileK : kOutOfBounds;
  const u32 touched = buffer_load_dwords<1>(make_buffer(rows.first, rows.bytes), from, 0).dword[0];
  sched_barrier();
  return touched;
}

// Through registers: `issue` starts the loads of a step, `commit` waits for them and writes LDS.
// Loaders that turn operands round (col_major_loader.h) do so by kTurns instructions in between.
template <u32 kRows, u32 kThreads, bool kShuffled = false>
class StagedLoader {
 public:
  using Order = OperandLayout<kShuffled>;
  static constexpr u32 kLoads = kRows * kRowChunks / kThreads;
  static_assert(kLoads * kThreads == kRows * kRowChunks, "a chunk a thread and load");
  static constexpr u32 kTurns = 0;
  __device__ void turn(u32) {}

  __device__ explicit StagedLoader(const OperandView& rows) : rows_(rows) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    from_ = Order::place(row, chunk, rows.row_bytes);
    to_ = lds_offset(row, chunk);
  }

  __device__ void issue(u32 k, bool is_there) {
    const Buffer buffer = make_buffer(rows_.first, is_there ? rows_.bytes : 0);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] =
          buffer_load_b128(buffer, from_, i * kRowsAtOnce * rows_.row_bytes + k * Order::kUnit);
    }
  }

  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + i * kRowsAtOnce * kRowBytes) = staged_[i];
    }
  }

 private:
  static constexpr u32 kRowsAtOnce = kThreads / kRowChunks;
  static_assert(kRowsAtOnce % 16 == 0, "rows of one load after another have the same permutation");
  OperandView rows_;
  u32 from_, to_;
  U32x4 staged_[kLoads];
};

#if defined(__gfx950__)

// 16 bytes a lane from `from` + `offset` + `further` of a buffer to LDS side by side, from `place`
// + kTo on. `wait_vmcnt` waits for it.
//
// By inline assembly, as the compiler would drain all loads before each read of LDS. M0 wants an
// instruction between its write and its use, so the offset's sum stands there.
template <u32 kTo>
__device__ inline void buffer_load_lds_b128(U32x4 buffer, u32 from, u32 offset, u32 further,
                                            u32 place) {
  u32 sum;
  asm volatile(
      "s_add_u32 m0, %1, %6\n\ts_add_u32 %0, %4, %5\n\t"
      "buffer_load_dwordx4 %2, %3, %0 offen lds"
      : "=&s"(sum)
      : "s"(place), "v"(from), "s"(buffer), "s"(offset), "s"(further), "i"(kTo)
      : "memory", "scc");
}

// Straight from memory to LDS, 16 bytes a lane, where lanes land side by side: the permutation of
// lds_swizzle.h is in the place that a lane loads from.
template <u32 kWaves, bool kShuffled = false>
class LdsDmaLoader {
 public:
  using Order = OperandLayout<kShuffled>;
  static constexpr u32 kRowsAtOnce = kWaves * kWaveSize / kRowChunks;
  static_assert(kRowsAtOnce % 16 == 0, "rows of one load after another have the same permutation");

  __device__ explicit LdsDmaLoader(const OperandView& rows)
      : buffer_(make_buffer_words(rows.first, rows.bytes)), row_bytes_(rows.row_bytes) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    from_ = Order::place(row, chunk ^ lds_swizzle(row), rows.row_bytes);
  }

  // Where this wave's part of what an instruction brings lies, of a tile at the beginning of LDS
  // memory `memory`.
  __device__ static u32 own_place(const LdsBytes* memory) {
    u32 place = lds_address(memory) + wave_id() * (kWaveSize * kVecBytes);
    asm volatile("" : "+s"(place));  // computed once
    return place;
  }

  // kRows rows from `row` on to the tile kTile bytes into that memory: kRows / kRowsAtOnce
  // instructions. Calls for the same K-step share what `k` and `is_there` cost.
  template <u32 kRows, u32 kTile = 0>
  __device__ void issue(u32 place, u32 row, u32 k, bool is_there) const {
    static_assert(kRows % kRowsAtOnce == 0, "whole loads");
    U32x4 buffer = buffer_;
    buffer[2] = is_there ? buffer[2] : 0;
    each<kRows, kTile>(place, buffer, row, k * Order::kUnit);
  }

 private:
  template <u32 kRows, u32 kTile>
  __device__ void each(u32 place, U32x4 buffer, u32 row, u32 k_bytes) const {
    if constexpr (kRows != 0) {
      buffer_load_lds_b128<kTile>(buffer, from_, row * row_bytes_, k_bytes, place);
      each<kRows - kRowsAtOnce, kTile + kRowsAtOnce * kRowBytes>(place, buffer, row + kRowsAtOnce,
                                                                 k_bytes);
    }
  }

  U32x4 buffer_;
  u32 row_bytes_, from_;
};

// 4 bytes a lane, from where each says, to LDS side by side from `to` on; by the first kLanes lanes
// of a wave of which all are active.
template <u32 kLanes>
__device__ inline void buffer_load_lds_b32(U32x4 buffer, u32 from, u32 offset, u32 to) {
  if constexpr (kLanes == kWaveSize) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dword %1, %2, %3 offen lds"
                 :
                 : "s"(to), "v"(from), "s"(buffer), "s"(offset)
                 : "memory");
  } else {
    constexpr u64 kMask = (u64{1} << kLanes) - 1;
    asm volatile(
        "s_mov_b32 m0, %0\n\ts_mov_b64 exec, %4\n\tbuffer_load_dword %1, %2, %3 offen lds\n\t"
        "s_mov_b64 exec, -1"
        :
        : "s"(to), "v"(from), "s"(buffer), "s"(offset), "s"(kMask)
        : "memory");
  }
}

#endif

}  // namespace rfops
