// Loads of a tile of an operand into LDS as lds_tile.h has it, a step of 128 along K at a time.
//
// Rows of an operand that are not there, and steps beyond the workgroup's part of K, load zeros by
// the descriptor's range check and touch no memory: every step issues the same instructions, from
// which the kernel's waits are counted (kLoads).
#pragma once

#include "rfops/lds_tile.h"
#include "rfops/memory.h"
#include "rfops/types.h"

namespace rfops {

// How an operand lies in memory: row by row, or shuffled: tiles of 16 rows by 16 bytes of K one
// after the other along K, so that 1 KB in a row are 64 bytes of K of 16 rows, a matrix operand's
// half.
template <bool kShuffled>
struct MemoryOrder {
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
struct OperandRows {
  const u8* first;
  u32 row_bytes;  // from row to row
  u32 bytes;      // to the end of the last row's part

  // At most `most` of the operand's rows from `row` on; K from `k` on, `k_bytes` of it.
  __device__ OperandRows(const u8* operand, u32 row, u32 rows, u32 most, u32 row_bytes, u32 k,
                         u32 k_bytes, u32 unit = 1)
      : first(operand + u64{row} * row_bytes + k * unit), row_bytes(row_bytes) {
    const u32 own = rows - row < most ? rows - row : most;
    bytes = (own - unit) * row_bytes + k_bytes * unit;
  }

  // Of a column-major operand, whose bytes of one k are `row_bytes` from those of the next.
  __device__ static OperandRows columns(const u8* operand, u32 row, u32 rows, u32 most,
                                        u32 row_bytes, u32 k, u32 k_bytes) {
    const u32 own = rows - row < most ? rows - row : most;
    return {operand + row + u64{k} * row_bytes, row_bytes, (k_bytes - 1) * row_bytes + own};
  }

 private:
  __device__ OperandRows(const u8* first, u32 row_bytes, u32 bytes)
      : first(first), row_bytes(row_bytes), bytes(bytes) {}
};

// Through registers: `issue` starts the loads of a step, `commit` waits for them and writes LDS.
template <u32 kRows, u32 kThreads, bool kShuffled = false>
class StagedLoader {
 public:
  using Order = MemoryOrder<kShuffled>;
  static constexpr u32 kLoads = kRows * kRowChunks / kThreads;
  static_assert(kLoads * kThreads == kRows * kRowChunks, "a chunk a thread and load");

  __device__ explicit StagedLoader(const OperandRows& rows) : rows_(rows) {
    const u32 row = thread_in_group() / kRowChunks, chunk = thread_in_group() % kRowChunks;
    from_ = Order::place(row, chunk, rows.row_bytes);
    to_ = lds_at(row, chunk);
  }

  __device__ void issue(u32 k, bool is_there) {
    const Buffer buffer = make_buffer(rows_.first, is_there ? rows_.bytes : 0);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] = load_16(buffer, from_, i * kRowsAtOnce * rows_.row_bytes + k * Order::kUnit);
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
  OperandRows rows_;
  u32 from_, to_;
  U32x4 staged_[kLoads];
};

// The same of 128 rows of a column-major operand: a thread loads 4 rows of 16 bytes of K, a dword a
// k, and turns them round, 4 x 4 bytes at a time. The rows are a multiple of 4, and begin at one.
template <u32 kRows, u32 kThreads>
class TurningLoader {
 public:
  static constexpr u32 kLoads = kVecBytes;
  static_assert(kRows == 128 && kThreads == 256, "4 x 16 bytes a thread");

  __device__ explicit TurningLoader(const OperandRows& rows) : rows_(rows) {
    // A wave has 64 rows and 4 chunks, and 8 lanes 2 rows of them whose permutations differ: so
    // their writes have no bank conflict. 16 lanes of one k load 64 bytes in a row.
    const u32 lane = lane_in_wave(), wave = wave_in_group();
    const u32 pair = lane % 2, rest = lane / 8;
    const u32 quad = kLdsBanks == 64 ? pair * 2 + rest % 2 + rest / 2 * 4 : pair + rest * 2;
    row_ = (quad + wave % 2 * 16) * 4;
    chunk_ = lane / 2 % 4 + wave / 2 * 4;
    from_ = chunk_ * kVecBytes * rows.row_bytes + row_;
  }

  __device__ void issue(u32 k, bool is_there) {
    const Buffer buffer = make_buffer(rows_.first, is_there ? rows_.bytes : 0);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      const u32 at = as_scalar((k + i) * rows_.row_bytes);
      staged_[i] = load_dwords<1>(buffer, from_, at).dword[0];
    }
  }

  __device__ void commit(LdsBytes* tile) const {
    U32x4 turned[4];
#pragma unroll
    for (u32 g = 0; g < 4; ++g) {
      const u32* const k = staged_ + 4 * g;
      const u32 low01 = __builtin_amdgcn_perm(k[1], k[0], 0x05010400);
      const u32 high01 = __builtin_amdgcn_perm(k[1], k[0], 0x07030602);
      const u32 low23 = __builtin_amdgcn_perm(k[3], k[2], 0x05010400);
      const u32 high23 = __builtin_amdgcn_perm(k[3], k[2], 0x07030602);
      turned[0][g] = __builtin_amdgcn_perm(low23, low01, 0x05040100);
      turned[1][g] = __builtin_amdgcn_perm(low23, low01, 0x07060302);
      turned[2][g] = __builtin_amdgcn_perm(high23, high01, 0x05040100);
      turned[3][g] = __builtin_amdgcn_perm(high23, high01, 0x07060302);
    }
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_at(row_ + r, chunk_)) = turned[r];
    }
  }

 private:
  OperandRows rows_;
  u32 row_, chunk_, from_;
  u32 staged_[kLoads];
};

#if defined(__gfx950__)

// Straight from memory to LDS, 16 bytes a lane, where lanes land side by side: the permutation of
// lds_tile.h is in the place that a lane loads from. `wait_loads` waits for it.
//
// By inline assembly, as the compiler would drain all loads before each read of LDS. M0 wants an
// instruction between its write and its use, so the offset's sum stands there.
template <u32 kWaves, bool kShuffled = false>
class DirectLoader {
 public:
  using Order = MemoryOrder<kShuffled>;
  static constexpr u32 kRowsAtOnce = kWaves * kWaveSize / kRowChunks;
  static_assert(kRowsAtOnce % 16 == 0, "rows of one load after another have the same permutation");

  __device__ explicit DirectLoader(const OperandRows& rows)
      : buffer_(make_words(rows.first, rows.bytes)), row_bytes_(rows.row_bytes) {
    const u32 row = thread_in_group() / kRowChunks, chunk = thread_in_group() % kRowChunks;
    from_ = Order::place(row, chunk ^ lds_swizzle(row), rows.row_bytes);
  }

  // Where this wave's part of what an instruction brings lies, of a tile at the beginning of LDS
  // memory `memory`.
  __device__ static u32 own_place(const LdsBytes* memory) {
    u32 place = lds_address(memory) + wave_in_group() * (kWaveSize * kVecBytes);
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
      u32 offset;
      asm volatile(
          "s_add_u32 m0, %1, %6\n\ts_add_u32 %0, %4, %5\n\t"
          "buffer_load_dwordx4 %2, %3, %0 offen lds"
          : "=&s"(offset)
          : "s"(place), "v"(from_), "s"(buffer), "s"(row * row_bytes_), "s"(k_bytes), "i"(kTile)
          : "memory", "scc");
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
__device__ inline void load_direct_4(U32x4 buffer, u32 from, u32 offset, u32 to) {
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
