// LDS ring of expert weights, MXFP4 or MX-FP8, with direct-to-LDS loads (gfx950): each stage is one
// item, kItemSteps K-steps of kTiles tiles of 16 rows. One producer wave loads; consumer waves read
// the fragments that a wave of mx_weight_loader.h would load itself.
#pragma once

#include "moe/mx_weight_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/tile/global_to_lds.h"

namespace rfops {

// The weights [E, n, K] of all experts, and the workgroup's first column.
struct RingWeights {
  const u8 *payload, *scales;
  u32 n, row_bytes, scale_row_bytes, column;
};

// The first of 16 rows of an item, and its K-step.
struct TileOrigin {
  u32 row, step;
  bool in_bounds;
};

template <class Weights, u32 kTiles, bool kShuffled, bool kShuffledScales, u32 kItemSteps,
          u32 kNumStages>
class WeightRing {
  using Fragments = typename Weights::Fragments;
  static constexpr u32 kPiece = kWaveSize * kVecBytes, kWord = kWaveSize * sizeof(u32);
  static constexpr u32 kScalesOffset = 2 * kTiles * kPiece;
  static constexpr u32 kStepBytes = kScalesOffset + Weights::kWords * kWord;

 public:
  static constexpr u32 kItemLoads = kItemSteps * Weights::kLoads;
  static constexpr u32 kBytes = kNumStages * kItemSteps * kStepBytes;  // of LDS
  static_assert(kNumStages >= 2 && (kNumStages - 2) * kItemLoads <= 63, "vmcnt counts at most 63");

  __device__ explicit WeightRing(LdsBytes* memory) : memory_(memory) {}

  // Runs the producer wave: loads `items` items, kNumStages - 1 ahead, in the order of Cursor's
  // table, with a barrier before each.
  template <class Cursor, class Table>
  __device__ void run_producer(const Table& table, u32 items, const Weights& weights,
                               const RingWeights& ring_weights) const {
    Cursor cursor(table, 0);
    const auto issue_next = [&](u32 number) {
      const auto& item = cursor.current();
      const u64 row_begin = u64{item.tile.expert} * ring_weights.n;
      const MatrixWords matrix(ring_weights.payload + row_begin * ring_weights.row_bytes,
                               ring_weights.scales + row_begin * ring_weights.scale_row_bytes,
                               ring_weights.n, ring_weights.row_bytes,
                               ring_weights.scale_row_bytes);
      issue(number, weights, matrix, [&](u32 i, u32 tile) {
        return TileOrigin{ring_weights.column + tile * kTileRows, item.number * kItemSteps + i,
                          item.tile.rows > 0};
      });
      cursor.advance();
    };
    set_wave_priority<3>();  // all other waves wait for this one
    for (u32 i = 0; i + 1 < kNumStages; ++i) issue_next(i);
    for (u32 i = 0; i < items; ++i) {
      wait_vmcnt<(kNumStages - 2) * kItemLoads>();
      s_barrier();  // item i is in LDS, and all waves have read the one before
      issue_next(i + kNumStages - 1);
    }
    wait_vmcnt<0>();  // LDS must not be released before
  }

  // Issues the loads of item `number`, or of `count` K-steps of it; origin_of(i, t) returns the
  // origin of tile t of K-step i.
  template <class OriginOf>
  __device__ void issue(u32 number, const Weights& weights, const MatrixWords& matrix,
                        OriginOf origin_of, u32 count = kItemSteps) const {
    issue_from<0>(lds_address(stage(number)), weights, matrix, origin_of, count);
  }

  // Reads the fragments of step `i` of an item; `step` is its number along K.
  __device__ void read(Fragments& fragments, u32 number, u32 i, const Weights& weights, u32 step,
                       u32 row) const {
    const LdsBytes* const step_data = stage(number) + i * kStepBytes;
    const u32 lane = lane_id(), lane_chunk = lane / kTileRows;
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        const u32 offset =
            kShuffled ? h * kPiece + lane * kVecBytes
                      : lds_offset_mxfp4(lane % kTileRows, lane_chunk + h * (kRowChunks / 2));
        fragments.piece[t][h] = lds_load_b128(step_data + t * 2 * kPiece + offset);
      }
    }
#pragma unroll
    for (u32 w = 0; w < Weights::kWords; ++w) {
      fragments.scale[w] = *reinterpret_cast<const RFOPS_LDS u32*>(step_data + kScalesOffset +
                                                                   w * kWord + lane * sizeof(u32));
    }
    weights.to_fragment_scales(fragments, step, row);
  }

 private:
  __device__ LdsBytes* stage(u32 number) const {
    return memory_ + number % kNumStages * (kItemSteps * kStepBytes);
  }
  template <u32 kL, class OriginOf>
  __device__ void issue_from(u32 lds_dst, const Weights& weights, const MatrixWords& matrix,
                             OriginOf origin_of, u32 count) const {
    if constexpr (kL < kItemLoads) {
      constexpr u32 kQ = kL % Weights::kLoads, kI = kL / Weights::kLoads;
      if (kQ == 0 && kI >= count) return;
      const TileOrigin origin = origin_of(kI, Weights::tile_of(kQ));
      const u32 oob_bits = origin.in_bounds ? 0 : kOutOfBounds;
      if constexpr (kQ < 2 * kTiles) {
        const auto offset = weights.template piece_offset<kQ % 2, true>(
            matrix.row_bytes, origin.row, origin.step, oob_bits);
        buffer_load_lds_b128<kI * kStepBytes + kQ * kPiece>(matrix.payload, offset.lane,
                                                            offset.scalar, 0, lds_dst);
      } else {
        constexpr u32 kW = kQ - 2 * kTiles;
        const auto offset = weights.template scale_offset<kW>(matrix.scale_row_bytes, origin.row,
                                                              origin.step, oob_bits);
        load_scale(matrix.scales, offset.lane, offset.scalar,
                   lds_dst + kI * kStepBytes + kScalesOffset + kW * kWord);
      }
      issue_from<kL + 1>(lds_dst, weights, matrix, origin_of, count);
    }
  }
  // Loads a dword per lane, or a byte to a dword.
  __device__ static void load_scale(U32x4 buffer, u32 lane_offset, u32 offset, u32 lds_dst) {
    if constexpr (kShuffledScales) {
      buffer_load_lds_b32<kWaveSize>(buffer, lane_offset, offset, lds_dst);
    } else {
      asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_ubyte %1, %2, %3 offen lds"
                   :
                   : "s"(lds_dst), "v"(lane_offset), "s"(buffer), "s"(offset)
                   : "memory");
    }
  }

  LdsBytes* memory_;
};

}  // namespace rfops
