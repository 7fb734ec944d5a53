// Loads one operand tile per K-step of 128 bytes into LDS, in the layout of lds_swizzle.h.
//
// Rows out of bounds and K-steps beyond the workgroup's range of K load zeros by the descriptor's
// range check and touch no memory. Every K-step issues the same number of instructions (kLoads),
// which a kernel's wait counts rely on.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// Layout of an operand in global memory: row-major, or preshuffled into tiles of 16 rows by 16
// bytes of K, consecutive along K: 1 KiB is 64 bytes of K of 16 rows, half a fragment of each lane.
template <bool kShuffled>
struct OperandLayout {
  static constexpr u32 kKStrideBytes = kShuffled ? 16 : 1;  // bytes of memory per byte of K
  static constexpr u32 kChunkStrideBytes =
      kVecBytes * kKStrideBytes;  // between 16-byte chunks of a row

  // Returns the byte offset of a 16-byte chunk of a row.
  __device__ static u32 offset(u32 row, u32 chunk, u32 row_bytes) {
    if constexpr (kShuffled) {
      return row / 16 * 16 * row_bytes + chunk * kChunkStrideBytes + row % 16 * kVecBytes;
    } else {
      return row * row_bytes + chunk * kChunkStrideBytes;
    }
  }
};

// Rows and range of K of one operand that a workgroup works on; all in scalars. The number of
// preshuffled rows is a multiple of 16.
struct OperandView {
  const u8* base;
  u32 row_bytes;  // row stride
  u32 bytes;      // to the end of the last row's range of K

  // View of at most max_rows of the operand's `rows` rows from `row` on, and of k_bytes of K from
  // `k` on.
  __device__ OperandView(const u8* operand, u32 row, u32 rows, u32 max_rows, u32 row_bytes, u32 k,
                         u32 k_bytes, u32 k_stride_bytes = 1)
      : base(operand + u64{row} * row_bytes + k * k_stride_bytes), row_bytes(row_bytes) {
    const u32 num_rows = rows - row < max_rows ? rows - row : max_rows;
    bytes = (num_rows - k_stride_bytes) * row_bytes + k_bytes * k_stride_bytes;
  }

  // Makes a view of an operand that may be column-major: row_bytes is then the distance between k
  // and k + 1, and `bytes` the size of one K-step.
  template <bool kColMajor>
  __device__ static OperandView make(const u8* operand, u32 row, u32 rows, u32 max_rows,
                                     u32 row_bytes, u32 k, u32 k_bytes, u32 k_stride_bytes = 1) {
    if constexpr (kColMajor) {
      const u32 num_rows = rows - row < max_rows ? rows - row : max_rows;
      return {operand + row + u64{k} * row_bytes, row_bytes, (kTileK - 1) * row_bytes + num_rows};
    } else {
      return {operand, row, rows, max_rows, row_bytes, k, k_bytes, k_stride_bytes};
    }
  }

  // Returns the buffer of one K-step of a column-major operand, because distant K-steps exceed
  // 32-bit offsets.
  __device__ Buffer k_step_buffer(u32 k, bool in_bounds) const {
    return make_buffer(base + u64{k} * row_bytes, in_bounds ? bytes : 0);
  }

 private:
  __device__ OperandView(const u8* base, u32 row_bytes, u32 bytes)
      : base(base), row_bytes(row_bytes), bytes(bytes) {}
};

// Prefetches rows of an operand to this XCD's L2, one cache line per lane: part `index` of them,
// kRows rows by as many 128-byte blocks of K as a wave has lanes for. The returned value is
// meaningless; keep it alive until the load is complete.
template <u32 kRows>
__device__ inline u32 prefetch_rows_to_l2(const OperandView& rows, u32 index, u32 blocks) {
  constexpr u32 kBlocks = kWaveSize / kRows;
  const u32 lane = lane_id(), block = index * kBlocks + lane / kRows;
  const bool in_bounds = block < blocks && lane < kBlocks * kRows;
  const u32 offset = in_bounds ? lane % kRows * rows.row_bytes + block * kTileK : kOutOfBounds;
  const u32 prefetched =
      buffer_load_dwords<1>(make_buffer(rows.base, rows.bytes), offset, 0).dword[0];
  sched_barrier();
  return prefetched;
}

// Loads through registers: issue() starts the loads of a K-step, commit() waits for them and writes
// LDS. Loaders that transpose in registers (transpose_loader.h) have kTransposeOps instructions in
// between.
template <u32 kRows, u32 kThreads, bool kShuffled = false>
class StagedLoader {
 public:
  using Layout = OperandLayout<kShuffled>;
  static constexpr u32 kLoads = kRows * kRowChunks / kThreads;
  static_assert(kLoads * kThreads == kRows * kRowChunks, "each load moves one chunk per thread");
  static constexpr u32 kTransposeOps = 0;
  __device__ void transpose(u32) {}

  __device__ explicit StagedLoader(const OperandView& rows) : rows_(rows) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    src_offset_ = Layout::offset(row, chunk, rows.row_bytes);
    lds_dst_ = lds_offset(row, chunk);
  }

  // Issues the loads of the K-step at element k; zeros if not in_bounds.
  __device__ void issue(u32 k, bool in_bounds) {
    const Buffer buffer = make_buffer(rows_.base, in_bounds ? rows_.bytes : 0);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_load_b128(buffer, src_offset_,
                                    i * kRowsPerLoad * rows_.row_bytes + k * Layout::kKStrideBytes);
    }
  }

  // Waits for the loads and writes them to the LDS tile.
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + i * kRowsPerLoad * kRowBytes) =
          staged_[i];
    }
  }

 private:
  static constexpr u32 kRowsPerLoad = kThreads / kRowChunks;
  static_assert(kRowsPerLoad % 16 == 0, "all loads of a thread have the same swizzle");
  OperandView rows_;
  u32 src_offset_, lds_dst_;
  U32x4 staged_[kLoads];
};

#if defined(__gfx950__)

// Loads 16 bytes per lane, from lane_offset + scalar_offset + extra_offset of a buffer, to
// consecutive LDS addresses from lds_dst + kLdsOffset on. Wait for it with wait_vmcnt.
//
// Inline assembly, because the compiler inserts s_waitcnt vmcnt(0) before every LDS read. M0 needs
// one instruction between its write and its use; the addition of the offsets stands there.
template <u32 kLdsOffset>
__device__ inline void buffer_load_lds_b128(U32x4 buffer, u32 lane_offset, u32 scalar_offset,
                                            u32 extra_offset, u32 lds_dst) {
  u32 sum;
  asm volatile(
      "s_add_u32 m0, %1, %6\n\ts_add_u32 %0, %4, %5\n\t"
      "buffer_load_dwordx4 %2, %3, %0 offen lds"
      : "=&s"(sum)
      : "s"(lds_dst), "v"(lane_offset), "s"(buffer), "s"(scalar_offset), "s"(extra_offset),
        "i"(kLdsOffset)
      : "memory", "scc");
}

// Loads from global memory direct to LDS, 16 bytes per lane. The instruction writes lanes to
// consecutive addresses, so the swizzle of lds_swizzle.h is applied to the address that a lane
// loads from.
template <u32 kWaves, bool kShuffled = false>
class LdsDmaLoader {
 public:
  using Layout = OperandLayout<kShuffled>;
  static constexpr u32 kRowsPerLoad = kWaves * kWaveSize / kRowChunks;
  static_assert(kRowsPerLoad % 16 == 0, "all loads of a thread have the same swizzle");

  __device__ explicit LdsDmaLoader(const OperandView& rows)
      : buffer_(make_buffer_words(rows.base, rows.bytes)), row_bytes_(rows.row_bytes) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    src_offset_ = Layout::offset(row, chunk ^ lds_swizzle(row), rows.row_bytes);
  }

  // Returns the LDS address that this wave's loads write to, for a tile at `memory`.
  __device__ static u32 wave_lds_base(const LdsBytes* memory) {
    u32 lds_dst = lds_address(memory) + wave_id() * (kWaveSize * kVecBytes);
    asm volatile("" : "+s"(lds_dst));  // computed once
    return lds_dst;
  }

  // Issues the kRows / kRowsPerLoad loads of kRows rows from `row` on, to the tile kTile bytes
  // after lds_dst. Calls for the same K-step share the computation of `k` and `in_bounds`.
  template <u32 kRows, u32 kTile = 0>
  __device__ void issue(u32 lds_dst, u32 row, u32 k, bool in_bounds) const {
    static_assert(kRows % kRowsPerLoad == 0, "a whole number of loads");
    U32x4 buffer = buffer_;
    buffer[2] = in_bounds ? buffer[2] : 0;
    issue_rows<kRows, kTile>(lds_dst, buffer, row, k * Layout::kKStrideBytes);
  }

 private:
  template <u32 kRows, u32 kTile>
  __device__ void issue_rows(u32 lds_dst, U32x4 buffer, u32 row, u32 k_bytes) const {
    if constexpr (kRows != 0) {
      buffer_load_lds_b128<kTile>(buffer, src_offset_, row * row_bytes_, k_bytes, lds_dst);
      issue_rows<kRows - kRowsPerLoad, kTile + kRowsPerLoad * kRowBytes>(
          lds_dst, buffer, row + kRowsPerLoad, k_bytes);
    }
  }

  U32x4 buffer_;
  u32 row_bytes_, src_offset_;
};

// Loads 4 bytes per lane to consecutive LDS addresses from lds_dst on, by the first kLanes lanes of
// a wave. Requires: all lanes are active.
template <u32 kLanes>
__device__ inline void buffer_load_lds_b32(U32x4 buffer, u32 lane_offset, u32 scalar_offset,
                                           u32 lds_dst) {
  if constexpr (kLanes == kWaveSize) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dword %1, %2, %3 offen lds"
                 :
                 : "s"(lds_dst), "v"(lane_offset), "s"(buffer), "s"(scalar_offset)
                 : "memory");
  } else {
    constexpr u64 kMask = (u64{1} << kLanes) - 1;
    asm volatile(
        "s_mov_b32 m0, %0\n\ts_mov_b64 exec, %4\n\tbuffer_load_dword %1, %2, %3 offen lds\n\t"
        "s_mov_b64 exec, -1"
        :
        : "s"(lds_dst), "v"(lane_offset), "s"(buffer), "s"(scalar_offset), "s"(kMask)
        : "memory");
  }
}

#endif

}  // namespace rfops
