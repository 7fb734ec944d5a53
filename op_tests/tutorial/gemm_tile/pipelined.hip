// As ahead.hip, with the other units busy while the matrix units work. A wave reads the next half
// of a K-step (32 elements) from LDS to registers while it multiplies the current half. It issues
// the loads of a K-step one by one between groups of kN matrix instructions: kEarly of them as soon
// as all waves have read the buffer, the others half a step later. Estimated, MI355X, 4096 x 4096 x
// 4096: kEarly = 8 (all) 132.0 us, 5 128.3 us, 4 128.9 us.
#include "rfops/chip/static_for.h"
#include "rfops/chip/sync.h"
#include "rfops/group/tile_map.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/global_to_lds.h"
using namespace rfops;

constexpr u32 kTile = RFOPS_TILE, kWaves = RFOPS_THREADS / kWaveSize, kWavesM = 2;
constexpr u32 kM = kTile / kWavesM / 16, kN = kTile / (kWaves / kWavesM) / 16;
constexpr u32 kTileBytes = kTile * kRowBytes;  // of an operand's K-step
using Loader = LdsDmaLoader<kWaves>;
constexpr u32 kLoads = kTile / Loader::kRowsPerLoad;  // of a wave, per operand and K-step
constexpr u32 kEarly = 5;

__shared__ u8 memory[2][2][kTileBytes];  // two K-steps of x and w

struct Wave {
  Loader x, w;
  LdsFragmentOffsets fragment;
  const LdsBytes *x_tile, *w_tile;  // this wave's rows in buffer 0
  u32 lds_dst, row_bytes;
  U32x4 x_part[kM], w_part[2][kN];
  F32x4 sum[kM][kN];

  // Issues load kLoad of the 2 kLoads of the K-step at byte k into buffer kBuffer.
  template <u32 kBuffer, u32 kLoad>
  __device__ void issue(u32 k) const {
    constexpr u32 kRow = kLoad % kLoads * Loader::kRowsPerLoad;
    constexpr u32 kOffset = (2 * kBuffer + kLoad / kLoads) * kTileBytes + kRow * kRowBytes;
    const Loader& loader = kLoad < kLoads ? x : w;
    loader.template issue<Loader::kRowsPerLoad, kOffset>(lds_dst, kRow, k, k < row_bytes);
  }

  // Reads 16 rows of half kHalf of the K-step in buffer kBuffer.
  template <u32 kBuffer, u32 kHalf>
  __device__ U32x4 read(const LdsBytes* tile, u32 index) const {
    const u32 offset = kHalf ? fragment.high : fragment.low;
    return lds_load_b128(tile + offset + 2 * kBuffer * kTileBytes + index * kLdsTile);
  }
  template <u32 kBuffer, u32 kHalf>
  __device__ void read_w() {
#pragma unroll
    for (u32 b = 0; b < kN; ++b) w_part[kHalf][b] = read<kBuffer, kHalf>(w_tile, b);
  }

  // Multiplies half kHalf of a K-step, and reads the next half, from buffer kNext: the rows of x
  // that a group has used are replaced at once. Calls between(Number) before each of kM groups.
  template <u32 kHalf, u32 kNext, class Fn>
  __device__ void multiply(Fn between) {
    read_w<kNext, 1 - kHalf>();
    static_for<kM>([&](auto a) {
      between(a);
#pragma unroll
      for (u32 b = 0; b < kN; ++b) {
        sum[a][b] = mfma_16x16x32<bf16>(w_part[kHalf][b], x_part[a], sum[a][b]);
      }
#pragma unroll
      for (u32 b = 0; b < kN; ++b) force_vgpr(sum[a][b]);  // the compiler moves no group
      x_part[a] = read<kNext, 1 - kHalf>(x_tile, a);
    });
  }

  // One K-step, at byte k and in buffer kBuffer; its first half is in registers.
  template <u32 kBuffer>
  __device__ void step(u32 k) {
    multiply<0, kBuffer>([&](auto a) {
      if constexpr (a < kM - kEarly) issue<1 - kBuffer, kEarly + a>(k + kRowBytes);
    });
    wait_lgkmcnt();
    wait_vmcnt<0>();  // for the next K-step
    s_barrier();      // all waves have it, and have read all of this one
    multiply<1, 1 - kBuffer>([&](auto a) {
      if constexpr (a < kEarly) issue<kBuffer, a>(k + 2 * kRowBytes);
    });
  }
};
static_assert(2 * kLoads == kM, "one load per group of matrix instructions");

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
            lds_fragment_offsets(lane),
            lds + wave_row * kRowBytes,
            lds + kTileBytes + wave_col * kRowBytes,
            Loader::wave_lds_base(lds),
            row_bytes,
            {},
            {},
            {}};
  static_for<2 * kLoads>([&](auto load) { wave.issue<0, load>(0); });
  static_for<kEarly>([&](auto load) { wave.issue<1, load>(kRowBytes); });
  wait_vmcnt<kEarly>();
  s_barrier();
  wave.read_w<0, 0>();
#pragma unroll
  for (u32 a = 0; a < kM; ++a) wave.x_part[a] = wave.read<0, 0>(wave.x_tile, a);
  for (u32 i = 0; i < row_bytes; i += 2 * kRowBytes) {
    wave.step<0>(i);
    wave.step<1>(i + kRowBytes);
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
