// Weights of experts in LDS, MXFP4 or MX-FP8: a ring of items of kItemSteps steps of kTiles tiles
// of 16 rows, straight from memory (gfx950). One wave brings them; those that multiply read from
// LDS what a wave of mx_weight_loader.h would have loaded itself.
#pragma once

#include "moe/mx_weight_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/tile/global_to_lds.h"

namespace rfops {

// All experts' [E, n, K], of each the columns of one workgroup.
struct RingWeights {
  const u8 *payload, *scales;
  u32 n, row_bytes, scale_row_bytes, column;
};

// Where 16 rows of an item begin, and which step of K they are.
struct RingPlace {
  u32 row, step;
  bool is_there;
};

template <class Weights, u32 kTiles, bool kShuffled, bool kShuffledScales, u32 kItemSteps,
          u32 kSlots>
class WeightRing {
  using Held = typename Weights::Held;
  static constexpr u32 kPiece = kWaveSize * kVecBytes, kWord = kWaveSize * sizeof(u32);
  static constexpr u32 kScalesAt = 2 * kTiles * kPiece;
  static constexpr u32 kStepBytes = kScalesAt + Weights::kWords * kWord;

 public:
  static constexpr u32 kItemLoads = kItemSteps * Weights::kLoads;
  static constexpr u32 kBytes = kSlots * kItemSteps * kStepBytes;  // of LDS
  static_assert(kSlots >= 2 && (kSlots - 2) * kItemLoads <= 63, "vmcnt counts at most 63");

  __device__ explicit WeightRing(LdsBytes* memory) : memory_(memory) {}

  // What the wave that brings them does: `items` of them, kSlots - 1 ahead, in the order of
  // Cursor's table. It meets the others before each.
  template <class Cursor, class Table>
  __device__ void run_producer(const Table& table, u32 items, const Weights& weights,
                               const RingWeights& given) const {
    Cursor cursor(table, 0);
    const auto issue_next = [&](u32 number) {
      const auto& item = cursor.here();
      const u64 before = u64{item.tile.expert} * given.n;
      const MatrixWords from(given.payload + before * given.row_bytes,
                             given.scales + before * given.scale_row_bytes, given.n,
                             given.row_bytes, given.scale_row_bytes);
      issue(number, weights, from, [&](u32 i, u32 tile) {
        return RingPlace{given.column + tile * kTileRows, item.number * kItemSteps + i,
                         item.tile.rows > 0};
      });
      cursor.advance();
    };
    set_wave_priority<3>();  // all others wait for it
    for (u32 i = 0; i + 1 < kSlots; ++i) issue_next(i);
    for (u32 i = 0; i < items; ++i) {
      wait_vmcnt<(kSlots - 2) * kItemLoads>();
      s_barrier();  // item i is there, and the one before has been read
      issue_next(i + kSlots - 1);
    }
    wait_vmcnt<0>();  // LDS is not given back before
  }

  // Item `number`, on its way, or `count` steps of it; where(i, t): place of tile t of its step i.
  template <class Where>
  __device__ void issue(u32 number, const Weights& weights, const MatrixWords& from, Where where,
                        u32 count = kItemSteps) const {
    issue_from<0>(lds_address(slot(number)), weights, from, where, count);
  }

  // Step `i` of an item, ready for the matrix cores; `step` is its number along K.
  __device__ void read(Held& held, u32 number, u32 i, const Weights& weights, u32 step,
                       u32 row) const {
    const LdsBytes* const at = slot(number) + i * kStepBytes;
    const u32 lane = lane_id(), of_row = lane / kTileRows;
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        const u32 place = kShuffled
                              ? h * kPiece + lane * kVecBytes
                              : lds_offset_mxfp4(lane % kTileRows, of_row + h * (kRowChunks / 2));
        held.piece[t][h] = lds_load_b128(at + t * 2 * kPiece + place);
      }
    }
#pragma unroll
    for (u32 w = 0; w < Weights::kWords; ++w) {
      held.scale[w] =
          *reinterpret_cast<const RFOPS_LDS u32*>(at + kScalesAt + w * kWord + lane * sizeof(u32));
    }
    weights.turn_scales(held, step, row);
  }

 private:
  __device__ LdsBytes* slot(u32 number) const {
    return memory_ + number % kSlots * (kItemSteps * kStepBytes);
  }
  template <u32 kL, class Where>
  __device__ void issue_from(u32 to, const Weights& weights, const MatrixWords& from, Where where,
                             u32 count) const {
    if constexpr (kL < kItemLoads) {
      constexpr u32 kQ = kL % Weights::kLoads, kI = kL / Weights::kLoads;
      if (kQ == 0 && kI >= count) return;
      const RingPlace place = where(kI, Weights::tile_of(kQ));
      const u32 outside = place.is_there ? 0 : kOutOfBounds;
      if constexpr (kQ < 2 * kTiles) {
        const auto at =
            weights.template piece_at<kQ % 2, true>(from.row_bytes, place.row, place.step, outside);
        buffer_load_lds_b128<kI * kStepBytes + kQ * kPiece>(from.payload, at.lane, at.scalar, 0,
                                                            to);
      } else {
        constexpr u32 kW = kQ - 2 * kTiles;
        const auto at =
            weights.template scale_at<kW>(from.scale_row_bytes, place.row, place.step, outside);
        load_scale(from.scales, at.lane, at.scalar, to + kI * kStepBytes + kScalesAt + kW * kWord);
      }
      issue_from<kL + 1>(to, weights, from, where, count);
    }
  }
  // A dword a lane, or a byte in one.
  __device__ static void load_scale(U32x4 buffer, u32 from, u32 offset, u32 to) {
    if constexpr (kShuffledScales) {
      buffer_load_lds_b32<kWaveSize>(buffer, from, offset, to);
    } else {
      asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_ubyte %1, %2, %3 offen lds"
                   :
                   : "s"(to), "v"(from), "s"(buffer), "s"(offset)
                   : "memory");
    }
  }

  LdsBytes* memory_;
};

}  // namespace rfops
