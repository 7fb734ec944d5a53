// A wave's share of an MXFP4 operand on its way from memory to LDS: K-steps of 256, rows of 128
// bytes as mxfp4_k_step.h has them, and their shuffled scales; several steps at a time (gfx950).
#pragma once

#include "gemm/mxfp4_tile_scheduler.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

constexpr u32 kScalePair = 2 * kTileRows;  // rows whose scales are one dword a lane

// A K-step of an operand in LDS.
template <u32 kRows>
struct Fp4Rows {
  u8 rows[kRows * kRowBytes];
  u32 scales[kRows / kScalePair][kWaveSize];
};

// K-steps of a workgroup's part one after the other, round from any of them on.
class Fp4Cursor {
 public:
  __device__ Fp4Cursor(const Place& at, u32 turned)
      : first_(at.first),
        end_(at.end),
        k_(at.first + turned * kStepK),
        left_((at.end - at.first + kStepK - 1) / kStepK) {}
  // The step's first element, kOutOfBounds behind the last; and on to the next.
  __device__ u32 next() {
    const u32 k = left_ ? k_ : kOutOfBounds;
    left_ -= left_ ? 1 : 0;
    k_ += kStepK;
    k_ = k_ >= end_ ? first_ : k_;
    return k;
  }

 private:
  u32 first_, end_, k_, left_;
};

// What one of kOfWaves waves loads of an operand: pieces of 16 bytes a lane, of 8 rows, or of
// shuffled ones of half the K of 16; and scales. kSteps K-steps on their way.
template <u32 kRows, bool kOrdered, bool kTail, u32 kOfWaves, u32 kSteps>
class Fp4Loader {
 public:
  static constexpr u32 kAtOnce = kSteps;
  static constexpr u32 kPieceBytes = kWaveSize * kVecBytes;
  static constexpr u32 kCount = kRows / 8 / kOfWaves;
  static_assert(kCount * 8 * kOfWaves == kRows && (!kOrdered || kCount % 2 == 0), "whole loads");
  static constexpr u32 kPairs = (kRows / kScalePair + kOfWaves - 1) / kOfWaves;
  static constexpr bool kRowGranularity = kRows / kScalePair % kOfWaves == 0;
  static constexpr u32 kLoads = kCount + kPairs;  // of a step
  using Order = OperandLayout<kOrdered>;
  using To = Fp4Rows<kRows>;

  __device__ Fp4Loader(u32 number, const Buffer& rows, const Buffer& scales, u32 row_bytes,
                       u32 scale_columns, const Place& at, u32 turned)
      : rows_(rows), scales_(scales), end_(at.end), number_(number), cursor_(at, turned) {
    const u32 lane = lane_id();
    const u32 row = kOrdered ? lane % 16 : lane / kRowChunks;
    chunk_ = kOrdered ? lane / 16 : lane % kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) {
      const u32 piece = number * kCount + i;
      from_[i] = kOrdered ? Order::place(piece / 2 * 16 + row, piece % 2 * 4 + chunk_, row_bytes)
                          : Order::place(piece * 8 + row, chunk_, row_bytes);
      force_vgpr(from_[i]);
    }
#pragma unroll
    for (u32 i = 0; i < kPairs; ++i) {
      const u32 pair = number + i * kOfWaves;
      scale_from_[i] =
          pair < kRows / kScalePair ? pair * kScalePair * scale_columns + lane * 4 : kOutOfBounds;
      force_vgpr(scale_from_[i]);
    }
    to_ = lds_offset_mxfp4(row, chunk_) + number * (kCount * kPieceBytes);
  }

  // What follows loads the next step to slot `slot`; behind the last one nothing.
  __device__ void begin(u32 slot) {
    u32 k = cursor_.next();
    asm volatile("" : "+s"(k));
    k_[slot] = k;
    along_ = k < end_ ? k / 2 * Order::kUnit : kOutOfBounds;
    scale_along_ = k < end_ ? k / kStepK * (kWaveSize * 4) : kOutOfBounds;
  }
  // Load `i` of the step.
  __device__ void load(u32 slot, u32 i) {
    if (i < kCount) {
      u32 at = from_[i];
      if constexpr (kTail) {
        at =
            k_[slot] + (chunk_ + (kOrdered ? i % 2 * 4 : 0)) * kFp4Block < end_ ? at : kOutOfBounds;
      }
      pieces_[slot][i] = buffer_load_b128(rows_, at, along_);
    } else {
      loaded_[slot][i - kCount] =
          buffer_load_dwords<1>(scales_, scale_from_[i - kCount], scale_along_).dword[0];
    }
  }
  // What load `i` brought to LDS.
  __device__ void put(u32 slot, u32 i, RFOPS_LDS To* to) const {
    if (i < kCount) {
      const u32 at = kOrdered ? (to_ ^ i % 2 * 64) + i / 2 * 2048 : to_ + i * kPieceBytes;
      *reinterpret_cast<RFOPS_LDS U32x4*>((LdsBytes*)to->rows + at) = pieces_[slot][i];
    } else if (const u32 pair = pair_of(i - kCount); kRowGranularity || pair < kRows / kScalePair) {
      u32 there = ~0u;  // scales beyond K may be NaN
      if constexpr (kTail) {
        const u32 block_k = k_[slot] + lane_id() / kTileRows * kFp4Block;
        there = (block_k < end_ ? 0x0000ffffu : 0) | (block_k + kTileK < end_ ? 0xffff0000u : 0);
      }
      to->scales[pair][lane_id()] = loaded_[slot][i - kCount] & there;
    }
  }

 private:
  __device__ u32 pair_of(u32 i) const { return number_ + i * kOfWaves; }

  const Buffer rows_, scales_;
  const u32 end_, number_;
  Fp4Cursor cursor_;
  u32 chunk_, to_, from_[kCount], scale_from_[kPairs], along_, scale_along_;
  u32 k_[kSteps];
  U32x4 pieces_[kSteps][kCount];
  u32 loaded_[kSteps][kPairs];
};

}  // namespace rfops
