// FP8 rows and their scales, each row where the caller says, or nowhere: what is not there is zeros
// and touches no memory.
#pragma once

#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"

namespace rfops {

// Into LDS as lds_swizzle.h has it, through registers: `issue` starts the loads of kSets steps of
// 128 bytes of K, side by side, as a row of memory takes time to open; `commit` waits for one of
// them and writes LDS.
template <u32 kRows, u32 kThreads, u32 kSets, bool kShuffled = false>
class PlacedLoader {
 public:
  using Order = OperandLayout<kShuffled>;
  static constexpr u32 kRowsAtOnce = kThreads / kRowChunks, kLoads = kRows / kRowsAtOnce;
  static_assert(kLoads * kRowsAtOnce == kRows, "a chunk a thread and load");
  static_assert(kRowsAtOnce % 16 == 0, "rows of one load after another have the same permutation");

  // place_of(row): the row's first byte (Order::place), or kOutOfBounds.
  template <class PlaceOf>
  __device__ PlacedLoader(const void* first, u32 bytes, PlaceOf place_of)
      : first_(first), bytes_(bytes) {
    const u32 row = thread_id() / kRowChunks, chunk = thread_id() % kRowChunks;
    to_ = lds_offset(row, chunk);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      from_[i] = place_of(row + i * kRowsAtOnce) + chunk * Order::kChunkStrideBytes;
    }
  }
  __device__ void issue(u32 k, u32 k_end) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
#pragma unroll
      for (u32 set = 0; set < kSets; ++set) {
        const u32 at = k + set * kTileK;
        const Buffer buffer = make_buffer(first_, at < k_end ? bytes_ : 0);
        staged_[set][i] = buffer_load_b128(buffer, from_[i], at * Order::kKStrideBytes);
      }
    }
  }
  template <u32 kSet>
  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + i * kRowsAtOnce * kRowBytes) =
          staged_[kSet][i];
    }
  }

 private:
  const void* first_;
  u32 bytes_, to_, from_[kLoads];
  U32x4 staged_[kSets][kLoads];
};

// Scales of kOwn times 16 rows of a wave, [any, K/128], each row's where the caller says, or
// nowhere: those of kSteps steps of K in a load, while those before them are in use.
template <u32 kOwn>
class PlacedScales {
 public:
  static constexpr u32 kSteps = kWaveSize / kTileRows;

  // index_of(i): which row the lane's one of the i-th 16 is, or kOutOfBounds.
  template <class IndexOf>
  __device__ PlacedScales(const f32* scales, u32 bytes, u32 blocks, IndexOf index_of)
      : buffer_(make_buffer(scales, bytes)), blocks_(blocks), step_(lane_id() / kTileRows) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 index = index_of(i);
      from_[i] = index == kOutOfBounds ? kOutOfBounds : (index * blocks + step_) * sizeof(f32);
    }
  }
  // Loads those of the steps from `first` on, a multiple of kSteps; zeros beyond the last.
  __device__ void issue(u32 first) {
    const u32 outside = first + step_ < blocks_ ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      next_[i] = buffer_load_dwords<1>(buffer_, from_[i] | outside, first * sizeof(f32)).dword[0];
    }
  }
  // From here on what was loaded last is in use.
  __device__ void take() {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) loaded_[i] = next_[i];
  }
  __device__ f32 at(u32 i, u32 step) const {
    const u32 lane = lane_id() % kTileRows + step % kSteps * kTileRows;
    return __builtin_bit_cast(f32,
                              __builtin_amdgcn_ds_bpermute(static_cast<i32>(lane * sizeof(f32)),
                                                           static_cast<i32>(loaded_[i])));
  }

 private:
  Buffer buffer_;
  static constexpr u32 kRoom = kOwn > 0 ? kOwn : 1;
  u32 blocks_, step_, from_[kRoom], next_[kRoom], loaded_[kRoom];
};

}  // namespace rfops
