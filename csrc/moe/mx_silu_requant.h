// Epilogue of gate and up: SiLU of gate times up, requantised to h in MXFP4 or MX-FP8 from the
// accumulators (gfx950).
#pragma once

#include "moe/mx_format.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/exp.h"
#include "rfops/wave/reduce.h"

namespace rfops {

// Returns the offset of byte `byte` of a row of h: row-major, or in tiles of 16 rows by 16 bytes,
// the operand order of the MFMAs, 1 KiB per tile.
template <bool kTiled>
__device__ inline u32 h_offset(u32 row, u32 row_bytes, u32 byte) {
  if constexpr (!kTiled) return row * row_bytes + byte;
  return row / kTileRows * kTileRows * row_bytes + byte / kVecBytes * (kTileRows * kVecBytes) +
         row % kTileRows * kVecBytes + byte % kVecBytes;
}

// Rows of h of row_bytes, with scales of scale_bytes. kOutChunk: K-steps per chunk of scales.
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

  // Stores block `block` of this lane's row; rows beyond the last are not stored. A lane has, of
  // row lane % 16, 4 adjacent elements of each half of the block, from 4 (lane / 16) on.
  __device__ void store(const F32x4 (&gate)[2], const F32x4 (&up)[2], u32 row, u32 block) const {
    u32 lane = lane_id();
    force_vgpr(lane);  // recomputed here, because hoisted values would occupy registers
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
    u32 amax = Mxfp4Float<Half>::amax_bits(pairs);
    amax = details::butterfly_step<32>(details::butterfly_step<16>(amax, larger), larger);
    const u32 byte = Format::template scale<Half>(amax);
    const typename Format::Payload8 payload = Format::template quantise8<Half>(pairs, byte);
    const u32 elem = block * kMxBlock + exchanged_begin(quarter);
    const u32 offset = h_offset<kTiled>(row, row_bytes_, elem * kTileK / Format::kStepK);
    store_payload8(exchange(payload), rows_, kTiled && row >= count_ ? kOutOfBounds : offset);
    const u32 scale_offset = row * scale_bytes_ + ScaleLayout<Format, kOutChunk>::offset(block);
    __builtin_amdgcn_raw_buffer_store_b8(static_cast<u8>(byte), scales_.rsrc,
                                         quarter == 0 ? scale_offset : kOutOfBounds, 0, 0);
  }

 private:
  Buffer rows_, scales_;
  u32 count_, row_bytes_, scale_bytes_;
};

}  // namespace rfops
