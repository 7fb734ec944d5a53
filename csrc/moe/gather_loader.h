// Gather loads of FP8 rows and of their scales: the caller gives the offset of each row.
// Out-of-range rows read zeros without a memory access.
#pragma once

#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"

namespace rfops {

// Loads rows through registers into LDS, in the layout of lds_swizzle.h. `issue` starts the loads
// of kSets consecutive K-steps of 128 bytes, which are adjacent because opening a DRAM row takes
// time; `commit` waits for one K-step and writes it to LDS.
template <u32 kRows, u32 kThreads, u32 kSets, bool kShuffled = false>
class GatherLoader {
 public:
  using Layout = OperandLayout<kShuffled>;
  static constexpr u32 kRowsPerLoad = kThreads / kRowChunks, kLoads = kRows / kRowsPerLoad;
  static_assert(kLoads * kRowsPerLoad == kRows, "each load moves one chunk per thread");
  static_assert(kRowsPerLoad % 16 == 0, "rows of consecutive loads have the same swizzle");

  // offset_of(row) returns the offset of the row's first byte (Layout::offset), or kOutOfBounds.
  template <class OffsetOf>
  __device__ GatherLoader(const void* base, u32 bytes, OffsetOf offset_of)
      : base_(base), bytes_(bytes) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    lds_dst_ = lds_offset(row, chunk);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      row_offset_[i] = offset_of(row + i * kRowsPerLoad) + chunk * Layout::kChunkStrideBytes;
    }
  }
  __device__ void issue(u32 k, u32 k_end) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
#pragma unroll
      for (u32 set = 0; set < kSets; ++set) {
        const u32 k0 = k + set * kTileK;
        const Buffer buffer = make_buffer(base_, k0 < k_end ? bytes_ : 0);
        staged_[set][i] = buffer_load_b128(buffer, row_offset_[i], k0 * Layout::kKStrideBytes);
      }
    }
  }
  template <u32 kSet>
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + i * kRowsPerLoad * kRowBytes) =
          staged_[kSet][i];
    }
  }

 private:
  const void* base_;
  u32 bytes_, lds_dst_, row_offset_[kLoads];
  U32x4 staged_[kSets][kLoads];
};

// As GatherLoader with two K-steps, for row-major rows and LDS that holds both: a load brings 256
// contiguous bytes of a row, so that half as many DRAM rows are opened, and one barrier serves two
// K-steps. Estimated, MI355X: 192 tokens, 160 experts of 5120 x 384, up 149 -> 126 us; 35 tokens, 8
// experts of 4096 x 7168, down 63 -> 51 us.
template <u32 kRows, u32 kThreads>
class PairGatherLoader {
 public:
  using Layout = OperandLayout<false>;
  static constexpr u32 kTileBytes = kRows * kRowBytes;
  static constexpr u32 kLanes = 2 * kRowChunks, kRowsPerLoad = kThreads / kLanes;
  static constexpr u32 kLoads = kRows / kRowsPerLoad;
  static_assert(kLoads * kRowsPerLoad == kRows, "each load moves one chunk per thread");
  static_assert(kRowsPerLoad % 16 == 0, "rows of consecutive loads have the same swizzle");

  template <class OffsetOf>
  __device__ PairGatherLoader(const void* base, u32 bytes, OffsetOf offset_of)
      : buffer_(make_buffer(base, bytes)) {
    const u32 row = thread_id() / kLanes, chunk = thread_id() % kLanes;
    lane_k_ = chunk / kRowChunks * kTileK;
    lds_dst_ = chunk / kRowChunks * kTileBytes + lds_offset(row, chunk % kRowChunks);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      row_offset_[i] = offset_of(row + i * kRowsPerLoad) + chunk * kVecBytes;
    }
  }
  __device__ void issue(u32 k, u32 k_end) {
    const u32 oob_bits = k + lane_k_ < k_end ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_load_b128(buffer_, row_offset_[i] | oob_bits, k);
    }
  }
  // Waits for the loads and writes both K-steps, the second kTileBytes after the first.
  __device__ void commit(LdsBytes* tiles) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tiles + lds_dst_ + i * kRowsPerLoad * kRowBytes) =
          staged_[i];
    }
  }

 private:
  Buffer buffer_;
  u32 lane_k_, lds_dst_, row_offset_[kLoads];
  U32x4 staged_[kLoads];
};

// Scales [rows, K/128] of kTiles tiles of 16 gathered rows of a wave. One load covers kSteps
// K-steps and is in flight while the previous kSteps are in use.
template <u32 kTiles>
class GatheredScales {
 public:
  static constexpr u32 kSteps = kWaveSize / kTileRows;

  // index_of(i) returns the index of the lane's row in tile i, or kOutOfBounds.
  template <class IndexOf>
  __device__ GatheredScales(const f32* scales, u32 bytes, u32 blocks, IndexOf index_of)
      : buffer_(make_buffer(scales, bytes)), blocks_(blocks), step_(lane_id() / kTileRows) {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      const u32 index = index_of(i);
      row_offset_[i] =
          index == kOutOfBounds ? kOutOfBounds : (index * blocks + step_) * sizeof(f32);
    }
  }
  // Loads the scales of the K-steps from `step_begin` on, a multiple of kSteps; zeros beyond the
  // last.
  __device__ void issue(u32 step_begin) {
    const u32 oob_bits = step_begin + step_ < blocks_ ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      next_[i] = buffer_load_dwords<1>(buffer_, row_offset_[i] | oob_bits, step_begin * sizeof(f32))
                     .dword[0];
    }
  }
  // Makes the scales loaded last the current ones.
  __device__ void use_next() {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) loaded_[i] = next_[i];
  }
  __device__ f32 select(u32 i, u32 step) const {
    const u32 lane = lane_id() % kTileRows + step % kSteps * kTileRows;
    return __builtin_bit_cast(f32,
                              __builtin_amdgcn_ds_bpermute(static_cast<i32>(lane * sizeof(f32)),
                                                           static_cast<i32>(loaded_[i])));
  }

 private:
  Buffer buffer_;
  static constexpr u32 kStorage = kTiles > 0 ? kTiles : 1;
  u32 blocks_, step_, row_offset_[kStorage], next_[kStorage], loaded_[kStorage];
};

}  // namespace rfops
