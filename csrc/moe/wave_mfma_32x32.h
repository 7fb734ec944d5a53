// A wave's share of a tile of 32 x 32 MFMAs: fragments from LDS (lds_tile_16bit.h) and
// accumulators.
//
// Eight waves, kMWaves along rows and kNWaves along weights. A wave has every kMWaves-th tile of 32
// rows, kRowTiles in all, and 64 consecutive weight rows.
#pragma once

#include "moe/lds_tile_16bit.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_f16.h"

namespace rfops {

constexpr u32 kMWaves = 2, kNWaves = 4;
constexpr u32 kSub = 32;  // rows of an operand

template <u32 kRowTiles>
struct Accumulators {
  F32x16 acc[kRowTiles > 0 ? kRowTiles : 1][2];
};

// Fragments that a lane holds: 16 of K of the wave's weights and rows.
template <u32 kRowTiles>
struct Operands {
  U32x4 weights[2], rows[kRowTiles > 0 ? kRowTiles : 1];
};

// Reads a wave's fragments from LDS; Loader defines the layout of weights.
template <u32 kStep, class Loader>
class Reader {
  using Lds = Rows16<kStep>;

 public:
  __device__ Reader() {
    const u32 lane = lane_id(), wave = wave_id();
    rows_ = wave / kNWaves * kSub * Lds::kBytes + Lds::offset(lane % kSub, lane / kSub);
    weights_ = wave % kNWaves * 2 * kSub * Lds::kBytes + Loader::offset(lane % kSub, lane / kSub);
  }
  // Reads chunks `c` and `c` + 1 of K.
  template <u32 kRowTiles>
  __device__ Operands<kRowTiles> read(const LdsBytes* rows, const LdsBytes* weights, u32 c) const {
    Operands<kRowTiles> operands;
    read_weights(operands, weights, c);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) read_rows(operands, i, rows, c);
    return operands;
  }
  template <u32 kRowTiles>
  __device__ void read_weights(Operands<kRowTiles>& operands, const LdsBytes* weights_of,
                               u32 c) const {
    const LdsBytes* weights = weights_of + xor_offset(weights_, c * Loader::kChunkBytes);
#pragma unroll
    for (u32 j = 0; j < 2; ++j)
      operands.weights[j] = lds_load_b128(weights + j * kSub * Lds::kBytes);
  }
  template <u32 kRowTiles>
  __device__ void read_rows(Operands<kRowTiles>& operands, u32 i, const LdsBytes* rows_of,
                            u32 c) const {
    const LdsBytes* rows = rows_of + xor_offset(rows_, c * kVecBytes);
    operands.rows[i] = lds_load_b128(rows + i * kMWaves * kSub * Lds::kBytes);
  }

 private:
  // Returns the lane's offset an even number of chunks on. It is computed where it is used, because
  // there are no registers for all of them.
  static __device__ u32 xor_offset(u32 offset, u32 chunks) {
    force_vgpr(offset);
    return offset ^ chunks;
  }
  u32 rows_, weights_;  // offsets of a lane's fragments
};

template <class Input, u32 kRowTiles>
__device__ inline void multiply(Accumulators<kRowTiles>& accumulators,
                                const Operands<kRowTiles>& operands, u32 i) {
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    accumulators.acc[i][j] =
        mfma_32x32x16<Input>(operands.weights[j], operands.rows[i], accumulators.acc[i][j]);
  }
}
template <class Input, u32 kRowTiles>
__device__ inline void multiply(Accumulators<kRowTiles>& accumulators,
                                const Operands<kRowTiles>& operands) {
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) multiply<Input>(accumulators, operands, i);
}

template <u32 kCount>
struct LoadCount {};

// Multiplies and reads the next fragments, chunks `c` and `c` + 1. Each replaces a fragment that
// has been multiplied, because there are no registers for two sets of rows. load(n), n < kLoads, is
// called between the MFMAs, so that memory accesses overlap with them.
template <class Input, u32 kLoads, u32 kRowTiles, class Reader, class Load>
__device__ inline void multiply_and_read(Accumulators<kRowTiles>& accumulators,
                                         Operands<kRowTiles>& current, const Reader& reader,
                                         const LdsBytes* rows, const LdsBytes* weights, u32 c,
                                         Load load) {
  Operands<kRowTiles> next;
  reader.read_weights(next, weights, c);
  sched_barrier();
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    multiply<Input>(accumulators, current, i);
    reader.read_rows(next, i, rows, c);
    constexpr u32 kDivisor = kRowTiles > 0 ? kRowTiles : 1;
#pragma unroll
    for (u32 n = kLoads * i / kDivisor; n < kLoads * (i + 1) / kDivisor; ++n) load(n);
    sched_barrier();
  }
  if constexpr (kRowTiles == 0) {
#pragma unroll
    for (u32 n = 0; n < kLoads; ++n) load(n);
  }
  current = next;
}

}  // namespace rfops
