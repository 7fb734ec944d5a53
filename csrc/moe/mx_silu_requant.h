// h of a mixture's experts in MXFP4 or MX-FP8: SiLU of gate times up, quantised in the registers
// that the sums are in (gfx950).
#pragma once

#include "moe/exp.h"
#include "moe/mx_format.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Where byte `at` of a row of h lies: row by row, or by tiles of 16 rows of 16 bytes, as operands
// of the matrix cores come, 1 KB at a time.
template <bool kTiled>
__device__ inline u32 h_place(u32 row, u32 row_bytes, u32 at) {
  if constexpr (!kTiled) return row * row_bytes + at;
  return row / kTileRows * kTileRows * row_bytes + at / kVecBytes * (kTileRows * kVecBytes) +
         row % kTileRows * kVecBytes + at % kVecBytes;
}

// Rows of h, `row_bytes` each, their scales `scale_bytes`. kOutChunk: steps of a chunk of scales.
template <class Half, class Format, u32 kOutChunk, bool kTiled>
class QuantisedRows {
 public:
  __device__ QuantisedRows(u8* rows, u8* scales, u32 count, u32 row_bytes, u32 scale_bytes)
      : rows_(make_buffer(
            rows, (kTiled ? (count + kTileRows - 1) / kTileRows * kTileRows : count) * row_bytes)),
        scales_(make_buffer(scales, count * scale_bytes)),
        count_(count),
        row_bytes_(row_bytes),
        scale_bytes_(scale_bytes) {}

  // Block number `block` of this lane's row; rows beyond the last are stored nowhere. A lane has of
  // its row, lane % 16, 4 neighbours of each half of the block, from 4 (lane / 16) on.
  __device__ void store(const F32x4 (&gate)[2], const F32x4 (&up)[2], u32 row, u32 block) const {
    u32 lane = lane_id();
    force_vgpr(
        lane);  // what follows is computed here, not kept in registers since the kernel began
    const u32 quarter = lane / kTileRows;
    u32 pairs[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 t = i / 2, e = i % 2 * 2;
      const Vec2<Half> pair = {static_cast<Half>(silu(gate[t][e]) * up[t][e]),
                               static_cast<Half>(silu(gate[t][e + 1]) * up[t][e + 1])};
      pairs[i] = __builtin_bit_cast(u32, pair);
    }
    const auto larger = [](u32 a, u32 b) { return a > b ? a : b; };
    u32 most = Mxfp4Float<Half>::amax_bits(pairs);
    most = details::butterfly_step<32>(details::butterfly_step<16>(most, larger), larger);
    const u32 byte = Format::template scale<Half>(most);
    const typename Format::Eight eight = Format::template eight<Half>(pairs, byte);
    const u32 at = block * kMxBlock + first_of_exchanged(quarter);
    const u32 to = h_place<kTiled>(row, row_bytes_, at * kTileK / Format::kStepK);
    store_eight(exchange(eight), rows_, kTiled && row >= count_ ? kOutOfBounds : to);
    const u32 scale_at = row * scale_bytes_ + ScaleLayout<Format, kOutChunk>::at(block);
    __builtin_amdgcn_raw_buffer_store_b8(static_cast<u8>(byte), scales_.rsrc,
                                         quarter == 0 ? scale_at : kOutOfBounds, 0, 0);
  }

 private:
  Buffer rows_, scales_;
  u32 count_, row_bytes_, scale_bytes_;
};

}  // namespace rfops
