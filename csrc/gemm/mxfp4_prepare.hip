// Prepares operands for mxfp4_loop.hip: quantises 16-bit x and preshuffles its elements and scales;
// preshuffles raw scales.
//
// A wave handles 32 rows by 256 of K: two tiles along the rows and two along K, whose scales are
// one dword per lane, byte 2 * (half of K) + half of the rows. Any number of rows, K a multiple of
// 32. Beyond K no elements are written, and scales are zero.
//
// Requires: x and its rows 16-byte aligned.
#include "gemm/mxfp4_operand.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/tile/global_to_lds.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_prepare is gfx950-only: it needs v_cvt_scalef32_pk_fp4"
#endif

namespace {

using namespace rfops;

using XTiles = QuantisedSource<RFOPS_X, RFOPS_ROUNDING, true>;  // of bf16 or f16
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;

__shared__ u8 memory[kWaves][XTiles::kStagingBytes];

// The 32 rows and 256 of K of a wave.
struct WavePosition {
  u32 row32, k256, columns;  // columns of scales, in groups of eight
  bool in_bounds;

  __device__ WavePosition(u32 rows, u32 k) {
    columns = (k + 255) / 256;
    const u32 number = readfirstlane(workgroup_id_x() * kWaves + wave_id());
    row32 = readfirstlane(number / columns);
    k256 = readfirstlane(number % columns);
    in_bounds = row32 * 32 < rows;
  }
  __device__ u64 scales() const { return (u64{row32} * columns + k256) * kWaveSize + lane_id(); }
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp4_prepare_x(u8* __restrict__ payload,    // [M up to a multiple of 32, K/2] shuffled
                u32* __restrict__ scale,     // [M up to 32, K/32 up to 8] shuffled
                const void* __restrict__ x,  // [M, K], rows x_row bytes apart
                u32 m, u32 k, u32 x_row) {
  const WavePosition pos(m, k);
  if (!pos.in_bounds) return;
  const u32 lane = lane_id(), row0 = pos.row32 * 32;
  const XTiles tiles = {{static_cast<const u8*>(x), row0, m, 32, x_row, 0, 2 * k}, k};
  LdsBytes* const staging = (LdsBytes*)memory[wave_id()];
  XTiles::Staged staged[2][2];
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
#pragma unroll
    for (u32 r = 0; r < 2; ++r) staged[h][r] = tiles.load(r, pos.k256 * 2 + h, true);
  }
  u32 scales = 0;
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
    const u32 k128 = pos.k256 * 2 + h, block = k128 * kFp4TileBlocks + lane / kTileRows;
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      tiles.stage(staged[h][r], staging);
      const ScaledFragment tile =
          tiles.make_fragment(tiles.transpose(staged[h][r], staging), r, k128);
      const bool is_valid = block * kFp4Block < k;
      scales |= (is_valid ? tile.scale : 0) << (h * 2 + r) * 8;
      const u64 row16 = pos.row32 * 2 + r;
      if (is_valid) {
        *reinterpret_cast<U32x4*>(payload + row16 * 16 * (k / 2) + u64{k128} * 1024 +
                                  lane * kVecBytes) = tile.fragment.low;
      }
    }
  }
  scale[pos.scales()] = scales;
}

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp4_prepare_scale(u32* __restrict__ shuffled,    // [rows up to 32, K/32 up to 8]
                    const u8* __restrict__ scale,  // [rows, K/32], rows `pitch` bytes apart
                    u32 rows, u32 k, u32 pitch) {
  const WavePosition pos(rows, k);
  if (!pos.in_bounds) return;
  const u32 lane = lane_id();
  u32 scales = 0;
#pragma unroll
  for (u32 h = 0; h < 2; ++h) {
    const u32 block = (pos.k256 * 2 + h) * kFp4TileBlocks + lane / kTileRows;
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      const u32 row = pos.row32 * 32 + r * kTileRows + lane % kTileRows;
      const bool is_valid = row < rows && block * kFp4Block < k;
      const u32 byte = is_valid ? scale[u64{row} * pitch + block] : 0;
      scales |= byte << (h * 2 + r) * 8;
    }
  }
  shuffled[pos.scales()] = scales;
}
