// out[m][n] = sum over k of a[m][k] * b[n][k], fp8 in (FNUZ on gfx942, OCP on gfx950), fp32 out.
//
// A wave computes 64 x 64 from 32x32x16 matrix instructions, a workgroup of four waves 128 x 128.
// A lane loads 16 bytes of row lane % 32, at k = 16 * (lane / 32): the k that an instruction sums
// are not consecutive, but the same of a and of b. No LDS.
// Multiples: rows and columns of 128, k of 32.
#include "hip_names.h"

namespace {

constexpr int kWaveTile = 64, kGroupTile = 128, kDim = 32, kStep = 32;
constexpr int kTiles = kWaveTile / kDim;
using F32x16 = Vec<float, 16>;
using I64x2 = Vec<long, 2>;

__device__ I64x2 fragment(const u8* rows, int row, int k, int at) {
  const int lane = lane_id();
  return *(const I64x2*)(rows + static_cast<i64>(row + lane % kDim) * k + at + lane / kDim * 16);
}

}  // namespace

KERNEL __launch_bounds__(256) gemm_fp8(float* out, const u8* a, const u8* b, int columns, int k) {
  const int wave = wave_id(), lane = lane_id();
  const int row = blockIdx.x * kGroupTile + wave / 2 * kWaveTile;
  const int column = blockIdx.y * kGroupTile + wave % 2 * kWaveTile;
  F32x16 sum[kTiles][kTiles] = {};
  for (int at = 0; at < k; at += kStep) {
    I64x2 x[kTiles], y[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      x[t] = fragment(a, row + t * kDim, k, at);
      y[t] = fragment(b, column + t * kDim, k, at);
    }
    for (int i = 0; i < kTiles; ++i) {
      for (int j = 0; j < kTiles; ++j) {
        for (int half = 0; half < 2; ++half) {
          sum[i][j] = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(x[i][half], y[j][half], sum[i][j],
                                                                 0, 0, 0);
        }
      }
    }
  }
  for (int i = 0; i < kTiles; ++i) {
    for (int j = 0; j < kTiles; ++j) {
      for (int r = 0; r < 16;
           ++r) {  // register r of a lane: row 8 * (r / 4) + 4 * (lane / 32) + r % 4
        const int m = row + i * kDim + r / 4 * 8 + lane / kDim * 4 + r % 4;
        out[static_cast<i64>(m) * columns + column + j * kDim + lane % kDim] = sum[i][j][r];
      }
    }
  }
}
