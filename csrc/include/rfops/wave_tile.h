// A wave's part of a tile of 32 x 32 products: operands from LDS (tile16.h), and sums.
//
// Eight waves, kMWaves along rows and kNWaves along weights. A wave has every kMWaves-th 32 rows,
// kOwn times, and of weights 64 in a row.
#pragma once

#include "rfops/matrix16.h"
#include "rfops/tile16.h"

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

// This wave's part of what LDS has; rows of weights lie where row_of says.
template <u32 kStep, class Layout>
class Reader {
  using Lds = Rows16<kStep>;

 public:
  __device__ Reader() {
    const u32 lane = lane_in_wave(), wave = wave_in_group();
    row_ = lane % kSub;
    half_ = lane / kSub;
    rows_ = wave / kNWaves * kSub * Lds::kBytes;
    weights_ = wave % kNWaves * 2 * kSub * Lds::kBytes;
  }
  // Chunks `c` and `c` + 1 of K.
  template <u32 kOwn>
  __device__ Operands<kOwn> read(const LdsBytes* rows_of, const LdsBytes* weights_of, u32 c) const {
    const LdsBytes* rows = rows_of + rows_ + Lds::at(row_, c + half_);
    const LdsBytes* weights = weights_of + weights_ + Lds::at(Layout::row_of(row_), c + half_);
    Operands<kOwn> got;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) got.weights[j] = lds_load_16(weights + j * kSub * Lds::kBytes);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      got.rows[i] = lds_load_16(rows + i * kMWaves * kSub * Lds::kBytes);
    }
    return got;
  }

 private:
  u32 row_, half_, rows_, weights_;
};

template <class In, u32 kOwn>
__device__ inline void multiply(Sums<kOwn>& sums, const Operands<kOwn>& of) {
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      sums.of[i][j] = multiply_32x32<In>(of.weights[j], of.rows[i], sums.of[i][j]);
    }
  }
}

}  // namespace rfops
