// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], in MX formats: w is e2m1; x is e2m1 or e4m3, or
// bf16 or f16 that is quantised here to e2m1; one e8m0 scale per 32 along K.
//
// For more rows of x than one workgroup of mxfp4_stream takes. Any M and N, K a multiple of 32.
//
// Layout. A workgroup computes 16 kMTiles x 16 kNTiles kWaves of the output, with its waves along
// N. In a K-step of kSteps tiles of 128 each wave converts some tiles of x to MFMA fragments, so
// each is quantised once, and writes them to LDS, in two buffers. Tiles of w go from memory to the
// registers of the one wave that uses them. While a step is multiplied, x of the next step is
// quantised and x of the step after that is in flight. w is MFMA operand A, so a lane holds 4
// neighbours of a row of out. kSplit workgroups split K; the last to arrive reduces
// (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config and K. A scale of 255 makes its row or
// column NaN.
// Requires: x, w and their rows 16-byte aligned, preshuffled scales 4-byte aligned; the rows of a
// workgroup span less than 2 GiB (what lies before them may be larger).
#include "gemm/bias.h"
#include "gemm/mxfp4_operand.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/global_to_lds.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_tiles is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
using X = RFOPS_X;                          // bf16, f16, Fp4 or Fp8
using Bias = RFOPS_BIAS;                    // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr u32 kMTiles = RFOPS_M_TILES;      // 16-row tiles of x per workgroup
constexpr u32 kNTiles = RFOPS_N_TILES;      // 16-row tiles of w per wave
constexpr u32 kSteps = RFOPS_STEPS;         // tiles of 128 per K-step
constexpr u32 kWaves = RFOPS_WAVES;         // waves per workgroup, along N
constexpr u32 kSplit = RFOPS_SPLIT;         // split-K: workgroups per output tile
constexpr bool kTail = RFOPS_TAIL;          // K ends within a tile

constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kTiles = kNTiles * kMTiles;  // per wave
constexpr u32 kM = kMTiles * kTileRows, kN = kWaves * kNTiles * kTileRows;
constexpr u32 kXFragments = kMTiles * kSteps;                   // tiles of x per K-step
constexpr u32 kXPerWave = (kXFragments + kWaves - 1) / kWaves;  // tiles that a wave converts
using XTiles = XSource<X, RFOPS_ROUNDING, RFOPS_X_SHUFFLED_SCALES, kTail>;
using WTiles = ScaledSource<Fp4, kShuffled, RFOPS_SHUFFLED_SCALES, kTail>;
constexpr u32 kChunksPerLane = XTiles::kFormat == kE2m1 ? 1 : 2;  // 16 bytes each, per tile of x

// A K-step of x as MFMA fragments, in lane order, and a dword per lane with its scales of four
// tiles.
struct XStage {
  U32x4 chunk[kXFragments][kChunksPerLane][kWaveSize];
  u8 scale[kSteps][(kMTiles + 3) / 4][kWaveSize][4];
};
constexpr u32 kStagingBytes =
    XTiles::kStagingBytes > kLdsTile ? XTiles::kStagingBytes : kLdsTile;  // w needs less
struct Memory {
  XStage stages[2];
  u8 staging[kWaves][kStagingBytes];
};
static_assert(sizeof(Memory) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Memory memory;

// A workgroup's split of K: tiles [begin, end) of 128.
struct KSplit {
  u32 begin, end;
};

// Converts tiles of x to fragments: this wave's tiles of a K-step are number wave + i * kWaves.
class Producer {
 public:
  __device__ Producer(const XTiles& x, const KSplit& k_split) : x_(x), k_split_(k_split) {}

  __device__ void load(u32 k128) {
    for_each_tile(
        [&](u32 i, u32 m, u32 s) { staged_[i] = x_.load(m, k128 + s, k128 + s < k_split_.end); });
    sched_barrier();
  }
  __device__ void write_lds(u32 k128, RFOPS_LDS XStage* dst) {
    LdsBytes* const staging = (LdsBytes*)memory.staging[wave_id()];
    for_each_tile([&](u32 i, u32 m, u32 s) {
      x_.stage(staged_[i], staging);
      const ScaledFragment tile = x_.make_fragment(x_.transpose(staged_[i], staging), m, k128 + s);
      const u32 lane = lane_id(), t = s * kMTiles + m;
      dst->chunk[t][0][lane] = tile.fragment.low;
      if constexpr (kChunksPerLane == 2) dst->chunk[t][1][lane] = tile.fragment.high;
      dst->scale[s][m / 4][lane][m % 4] = static_cast<u8>(tile.scale);
    });
  }

 private:
  template <class Fn>
  __device__ void for_each_tile(Fn fn) {
#pragma unroll
    for (u32 i = 0; i < kXPerWave; ++i) {
      const u32 t = wave_id() + i * kWaves;
      if (kXFragments % kWaves == 0 || t < kXFragments) fn(i, t % kMTiles, t / kMTiles);
    }
  }

  const XTiles x_;
  const KSplit k_split_;
  typename XTiles::Staged staged_[kXPerWave];
};

struct WStep {
  WTiles::Staged staged[kSteps][kNTiles];

  __device__ void load(const WTiles& w, u32 k128, const KSplit& k_split) {
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
      for (u32 j = 0; j < kNTiles; ++j) {
        staged[s][j] = w.load(wave_id() * kNTiles + j, k128 + s, k128 + s < k_split.end);
      }
    }
    sched_barrier();
  }
};

template <u32 kI = 0>
__device__ inline void multiply_rows(F32x4 (&sums)[kTiles], const ScaledFragment (&a)[kNTiles],
                                     const Fragment (&b)[kMTiles],
                                     const u32 (&b_scale)[(kMTiles + 3) / 4]) {
  if constexpr (kI < kMTiles) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      F32x4& sum = sums[j * kMTiles + kI];
      sum = mfma_mxfp4_16x16x128<XTiles::kFormat, kI % 4>(a[j].fragment.low, a[j].scale, b[kI],
                                                          b_scale[kI / 4], sum);
    }
    multiply_rows<kI + 1>(sums, a, b, b_scale);
  }
}

__device__ inline void multiply(F32x4 (&sums)[kTiles], const WTiles& w, const WStep& w_step,
                                u32 k128, const RFOPS_LDS XStage* x) {
  const u32 lane = lane_id();
  LdsBytes* const staging = (LdsBytes*)memory.staging[wave_id()];
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
    Fragment b[kMTiles];
    u32 b_scale[(kMTiles + 3) / 4];
#pragma unroll
    for (u32 i = 0; i < (kMTiles + 3) / 4; ++i) {
      b_scale[i] = *reinterpret_cast<const RFOPS_LDS u32*>(x->scale[s][i][lane]);
    }
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      const u32 t = s * kMTiles + i;
      b[i] = {x->chunk[t][0][lane], x->chunk[t][kChunksPerLane - 1][lane]};
    }
    ScaledFragment a[kNTiles];
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      w.stage(w_step.staged[s][j], staging);
      a[j] = w.make_fragment(w.transpose(w_step.staged[s][j], staging), wave_id() * kNTiles + j,
                             k128 + s);
    }
    multiply_rows(sums, a, b, b_scale);
  }
}

__device__ inline void run_mainloop(F32x4 (&sums)[kTiles], const XTiles& x, const WTiles& w,
                                    const KSplit& k_split) {
  RFOPS_LDS Memory* const lds = (RFOPS_LDS Memory*)&memory;
  Producer producer(x, k_split);
  WStep current;
  producer.load(k_split.begin);
  current.load(w, k_split.begin, k_split);
  producer.write_lds(k_split.begin, &lds->stages[0]);
  producer.load(k_split.begin + kSteps);
  wait_lgkmcnt();
  s_barrier();
  u32 buffer = 0;
  for (u32 k128 = k_split.begin; k128 < k_split.end; k128 += kSteps) {
    WStep next;
    next.load(w, k128 + kSteps, k_split);
    producer.write_lds(k128 + kSteps, &lds->stages[1 - buffer]);
    producer.load(k128 + 2 * kSteps);
    multiply(sums, w, current, k128, &lds->stages[buffer]);
    current = next;
    buffer = 1 - buffer;
    wait_lgkmcnt();
    s_barrier();
  }
}

}  // namespace

// Grid: workgroups with the same rows of w are neighbours on one XCD; the splits of a tile come
// first.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp4_tiles(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
            const u8* __restrict__ w_scale,  // [N, K/32], rows w_scale_row bytes apart
            const void* __restrict__ x,      // [M, K], rows x_row bytes apart
            const u8* __restrict__ x_scale,  // [M, K/32], rows x_scale_row bytes apart
            u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
            Out* __restrict__ out,          // [M, N]
            const void* __restrict__ bias,  // [N]
            void* __restrict__ workspace,   // partials if kSplit > 1 (SplitKReducer)
            u32* __restrict__ counts) {     // [tiles], zeros before and after
  const u32 m_blocks = (m + kM - 1) / kM, n_blocks = (n + kN - 1) / kN;
  const u32 order = xcd_remap(workgroup_id_x(), m_blocks * n_blocks * kSplit);
  const u32 tile = order / kSplit, split = order % kSplit;
  const u32 n0 = readfirstlane(tile / m_blocks) * kN, m0 = readfirstlane(tile % m_blocks) * kM;
  const u32 k_tiles = (k + kTileK - 1) / kTileK;  // splits differ by at most one
  const KSplit k_split = {k_tiles * split / kSplit, k_tiles * (split + 1) / kSplit};
  const WTiles w_tiles = {{w, n0, n, kN, w_row, 0, k / 2, WTiles::Layout::kKStrideBytes},
                          {w_scale, n0, n, kN, w_scale_row, k},
                          k};
  const XTiles x_tiles = x_source<XTiles, X>(x, x_scale, m0, m, kM, x_row, x_scale_row, k);
  F32x4 sums[kTiles] = {};
  run_mainloop(sums, x_tiles, w_tiles, k_split);

  if constexpr (kSplit > 1) {
    if (!SplitKReducer<kSplit, kTiles * kThreads, kThreads>(workspace, counts, tile)
             .reduce(sums, split)) {
      return;
    }
  }
  const u32 lane = lane_id();
  const BiasRow<Bias> bias_row(bias, n);
  OutputView<Out>(out, m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      const u32 column = n0 + (wave_id() * kNTiles + j) * kTileRows + lane / kTileRows * 4;
      const F32x4 bias_values = bias_row.load(column);
#pragma unroll
      for (u32 i = 0; i < kMTiles; ++i) {
        store(sums[j * kMTiles + i] + bias_values, i * kTileRows + lane % kTileRows, column);
      }
    }
  });
}
