// Loads go straight to LDS (rfops/tile/global_to_lds.h), one K-step ahead, into the other of two
// buffers. A workgroup computes RFOPS_TILE x RFOPS_TILE outputs, a wave kM x kN tiles of 16 x 16.
#include "rfops/chip/sync.h"
#include "rfops/group/tile_map.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/global_to_lds.h"
using namespace rfops;

constexpr u32 kTile = RFOPS_TILE, kWaves = RFOPS_THREADS / kWaveSize, kWavesM = 2;
constexpr u32 kM = kTile / kWavesM / 16, kN = kTile / (kWaves / kWavesM) / 16;
constexpr u32 kTileBytes = kTile * kRowBytes;  // of an operand's K-step
using Loader = LdsDmaLoader<kWaves>;

__shared__ u8 memory[2][2][kTileBytes];  // two K-steps of x and w

struct Wave {
  Loader x, w;
  RowReader x_reader, w_reader;
  u32 lds_dst, row_bytes;
  F32x4 sum[kM][kN];

  // Loads the K-step at byte k of the rows into buffer kBuffer; zeros beyond the last one.
  template <u32 kBuffer>
  __device__ void issue(u32 k) const {
    x.issue<kTile, 2 * kBuffer * kTileBytes>(lds_dst, 0, k, k < row_bytes);
    w.issue<kTile, (2 * kBuffer + 1) * kTileBytes>(lds_dst, 0, k, k < row_bytes);
  }

  // Multiplies the K-step in buffer kBuffer, while the next one loads into the other.
  template <u32 kBuffer>
  __device__ void step(u32 next_k) {
    wait_vmcnt<0>();  // for this wave's loads of the step
    s_barrier();      // for those of all waves, which have also read the other buffer
    issue<1 - kBuffer>(next_k);
    Fragment x_part[kM], w_part[kN];
#pragma unroll
    for (u32 b = 0; b < kN; ++b) w_part[b] = w_reader.read<(2 * kBuffer + 1) * kTileBytes>(b);
#pragma unroll
    for (u32 a = 0; a < kM; ++a) x_part[a] = x_reader.read<2 * kBuffer * kTileBytes>(a);
#pragma unroll
    for (u32 a = 0; a < kM; ++a) {
#pragma unroll
      for (u32 b = 0; b < kN; ++b) {
        sum[a][b] = mfma_16x16x32<bf16>(w_part[b].low, x_part[a].low, sum[a][b]);
        sum[a][b] = mfma_16x16x32<bf16>(w_part[b].high, x_part[a].high, sum[a][b]);
      }
    }
  }
};

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(RFOPS_THREADS, RFOPS_THREADS)))
    gemm_tile(bf16* out, const bf16* x, const bf16* w, u32 m, u32 n, u32 k) {
  const TileCoord tile = this_tile<4, 1>(m / kTile, n / kTile);
  const u32 row = tile.m * kTile, col = tile.n * kTile, row_bytes = k * 2, lane = lane_id();
  const u32 wave_row = wave_id() % kWavesM * kM * 16, wave_col = wave_id() / kWavesM * kN * 16;
  const auto rows = [&](const bf16* operand, u32 begin, u32 count) {
    return OperandView((const u8*)operand, begin, count, kTile, row_bytes, 0, row_bytes);
  };
  auto* const lds = (LdsBytes*)memory;
  Wave wave{Loader(rows(x, row, m)),
            Loader(rows(w, col, n)),
            RowReader(lds, lane, wave_row),
            RowReader(lds, lane, wave_col),
            Loader::wave_lds_base(lds),
            row_bytes,
            {}};
  wave.issue<0>(0);
  for (u32 i = 0; i < row_bytes; i += 2 * kRowBytes) {
    wave.step<0>(i + kRowBytes);
    wave.step<1>(i + 2 * kRowBytes);
  }
  out += u64{row + wave_row + lane % 16} * n + col + wave_col + lane / 16 * 4;
#pragma unroll
  for (u32 a = 0; a < kM; ++a) {
#pragma unroll
    for (u32 b = 0; b < kN; ++b) {
      *reinterpret_cast<Bf16x4*>(out + u64{a} * 16 * n + b * 16) =
          __builtin_convertvector(wave.sum[a][b], Bf16x4);
    }
  }
}
