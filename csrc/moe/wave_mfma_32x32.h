// A wave's part of a tile of 32 x 32 products: operands from LDS (lds_tile_16bit.h), and sums.
//
// Eight waves, kMWaves along rows and kNWaves along weights. A wave has every kMWaves-th 32 rows,
// kOwn times, and of weights 64 in a row.
#pragma once

#include "moe/lds_tile_16bit.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_f16.h"

namespace rfops {

constexpr u32 kMWaves = 2, kNWaves = 4;
constexpr u32 kSub = 32;  // rows of an operand

template <u32 kOwn>
struct Sums {
  F32x16 of[kOwn > 0 ? kOwn : 1][2];
};

// What a lane holds of operands: 16 of K of a wave's weights and rows.
template <u32 kOwn>
struct Operands {
  U32x4 weights[2], rows[kOwn > 0 ? kOwn : 1];
};

// This wave's part of what LDS has; their Loader says where weights lie.
template <u32 kStep, class Loader>
class Reader {
  using Lds = Rows16<kStep>;

 public:
  __device__ Reader() {
    const u32 lane = lane_id(), wave = wave_id();
    rows_ = wave / kNWaves * kSub * Lds::kBytes + Lds::at(lane % kSub, lane / kSub);
    weights_ = wave % kNWaves * 2 * kSub * Lds::kBytes + Loader::at(lane % kSub, lane / kSub);
  }
  // Chunks `c` and `c` + 1 of K.
  template <u32 kOwn>
  __device__ Operands<kOwn> read(const LdsBytes* rows, const LdsBytes* weights, u32 c) const {
    Operands<kOwn> got;
    read_weights(got, weights, c);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) read_rows(got, i, rows, c);
    return got;
  }
  template <u32 kOwn>
  __device__ void read_weights(Operands<kOwn>& to, const LdsBytes* weights_of, u32 c) const {
    const LdsBytes* weights = weights_of + further(weights_, c * Loader::kChunkBytes);
#pragma unroll
    for (u32 j = 0; j < 2; ++j) to.weights[j] = lds_load_b128(weights + j * kSub * Lds::kBytes);
  }
  template <u32 kOwn>
  __device__ void read_rows(Operands<kOwn>& to, u32 i, const LdsBytes* rows_of, u32 c) const {
    const LdsBytes* rows = rows_of + further(rows_, c * kVecBytes);
    to.rows[i] = lds_load_b128(rows + i * kMWaves * kSub * Lds::kBytes);
  }

 private:
  // A lane's place an even number of chunks on: computed where it is used, as there are no
  // registers for all of them.
  static __device__ u32 further(u32 place, u32 chunks) {
    force_vgpr(place);
    return place ^ chunks;
  }
  u32 rows_, weights_;  // of a lane's operands
};

template <class In, u32 kOwn>
__device__ inline void multiply(Sums<kOwn>& sums, const Operands<kOwn>& of, u32 i) {
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    sums.of[i][j] = mfma_32x32x16<In>(of.weights[j], of.rows[i], sums.of[i][j]);
  }
}
template <class In, u32 kOwn>
__device__ inline void multiply(Sums<kOwn>& sums, const Operands<kOwn>& of) {
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) multiply<In>(sums, of, i);
}

template <u32 kCount>
struct Starts {};

// And reads what comes next, chunks `c` and `c` + 1, each operand in the place of one that has been
// multiplied: of rows there is no room for two. Meanwhile start(n) is called for n below kStarts,
// so that memory works while the matrix cores do.
template <class In, u32 kStarts, u32 kOwn, class Reader, class Start>
__device__ inline void multiply_and_read(Sums<kOwn>& sums, Operands<kOwn>& held,
                                         const Reader& reader, const LdsBytes* rows,
                                         const LdsBytes* weights, u32 c, Start start) {
  Operands<kOwn> next;
  reader.read_weights(next, weights, c);
  sched_barrier();
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    multiply<In>(sums, held, i);
    reader.read_rows(next, i, rows, c);
    constexpr u32 kOf = kOwn > 0 ? kOwn : 1;
#pragma unroll
    for (u32 n = kStarts * i / kOf; n < kStarts * (i + 1) / kOf; ++n) start(n);
    sched_barrier();
  }
  if constexpr (kOwn == 0) {
#pragma unroll
    for (u32 n = 0; n < kStarts; ++n) start(n);
  }
  held = next;
}

}  // namespace rfops
