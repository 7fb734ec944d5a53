// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales, of any value, per block of 128 of K; any M and N, K a multiple of 128.
//
// Layout. Four waves, 2 along M and 2 along N, compute kM x kN of the output. A K-step of both
// operands is loaded through registers into one LDS buffer of at most 32 KiB, so two workgroups
// share a CU: while one waits for memory or accesses LDS, the other one multiplies. In each step a
// wave writes the rows of the next K-step to LDS, issues the loads of the K-step after that,
// multiplies the operands in its registers, and reads the next operands. The partial sums of a
// scale block are promoted as in promotion.h. w is MFMA operand A, so a lane holds 4 neighbours of
// a row of out and the scale of its tile is one value.
//
// Column-major operands are transposed in registers on gfx942, and by the LDS reads on gfx950
// (col_major_loader.h). kSplit workgroups split K; the last to arrive reduces (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config and K.
// Requires: x, w and their rows 16-byte aligned; the rows of a workgroup span less than 2 GiB (what
// lies before them may be larger).
#include "gemm/col_major_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/promotion.h"

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kXColMajor =
    RFOPS_X_COLUMNS;  // x is column-major; x_row is then the stride between k and k + 1
constexpr bool kWColMajor = RFOPS_W_COLUMNS;  // w is column-major; w_row likewise
constexpr bool kDense = RFOPS_DENSE;          // x, w and w_scale are contiguous
constexpr u32 kKStrideBytes = OperandLayout<kShuffled>::kKStrideBytes;
constexpr u32 kM = RFOPS_M;              // rows of x per workgroup
constexpr u32 kN = RFOPS_N;              // rows of w per workgroup
constexpr u32 kSplit = RFOPS_SPLIT;      // split-K: workgroups per output tile
constexpr u32 kGroupM = RFOPS_GROUP_M;   // tiles along M per raster group (tile_map.h)
constexpr u32 kThreads = 4 * kWaveSize;  // 2 x 2 waves
constexpr u32 kMTiles = kM / 2 / kTileRows, kNTiles = kN / 2 / kTileRows;  // per wave
constexpr u32 kTiles = kMTiles * kNTiles;

static_assert(kM % 64 == 0 && kN % 64 == 0 && kN <= kScaleRows, "one scale of w per K-step");
static_assert((kM + kN) * kRowBytes <= kLdsBytes / 2, "LDS holds two workgroups per CU");

// Tile t of a wave, in the order of promotion: consecutive tiles share an operand.
constexpr u32 m_of(u32 t) { return t / kNTiles; }
constexpr u32 n_of(u32 t) { return m_of(t) % 2 == 0 ? t % kNTiles : kNTiles - 1 - t % kNTiles; }

using XPath = StagedPath<kXColMajor, kM, kMTiles, kThreads, false>;
using WPath = StagedPath<kWColMajor, kN, kNTiles, kThreads, kShuffled>;

// The transpose instructions of an operand are interleaved with the MFMAs if a K-step has enough of
// them. With few MFMAs the transpose runs alone, because the loads would delay it; then the many
// loads are interleaved.
constexpr u32 kTransposeOps = XPath::Loader::kTransposeOps + WPath::Loader::kTransposeOps;
constexpr u32 kMfmas = kTiles * kMatrixSteps;  // MFMAs per K-step
constexpr bool kTransposeInterleaved = kTransposeOps > 0 && kTiles >= 16;
constexpr bool kLoadInterleaved = kTransposeOps > 0 && !kTransposeInterleaved;

// Issues a transposed operand's share of loads at one MFMA, x's before w's; other operands have few
// loads and issue all at the first MFMA.
template <u32 kXLoads, class Loader>
__device__ inline void load_interleaved(Loader& loader, u32 k, bool in_bounds, u32 mfma_idx) {
  if constexpr (Loader::kTransposeOps > 0) {
    constexpr u32 kLoads = kTransposeOps / 2;  // of both operands
    const Buffer step = loader.k_step_buffer(k, in_bounds);
#pragma unroll
    for (u32 i = mfma_idx * kLoads / kMfmas; i < (mfma_idx + 1) * kLoads / kMfmas; ++i) {
      if (i >= kXLoads && i - kXLoads < Loader::kTransposeOps / 2) loader.load(step, i - kXLoads);
    }
  } else if (mfma_idx == 0) {
    loader.issue(k, in_bounds);
  }
}

struct Wave {
  u32 m, n, lane;  // the wave's first row of x and of w in the workgroup's tile
};

// Fragments that a wave multiplies in a K-step.
struct Operands {
  Fragment x[kMTiles], w[kNTiles];

  __device__ void read(const XPath::Reader& x_reader, const WPath::Reader& w_reader) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) w[j] = w_reader.read(j);
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) x[i] = x_reader.read(i);
  }
};

template <u32 kTileBegin = 0, class Interleave>
__device__ inline void multiply(PromotedAcc<kTiles>& sums, const Operands& operands,
                                const f32 (&scale)[kMTiles], Interleave interleave) {
  if constexpr (kTileBegin < kTiles) {
    sums.multiply<kTileBegin>(
        [&](u32 t) -> const Fragment& { return operands.w[n_of(kTileBegin + t)]; },
        [&](u32 t) -> const Fragment& { return operands.x[m_of(kTileBegin + t)]; },
        [&](u32 t) { return scale[m_of(kTileBegin + t)]; },
        [&](u32 i) { interleave(kTileBegin * kMatrixSteps + i); });
    multiply<kTileBegin + kGroup>(sums, operands, scale, interleave);
  }
}

__device__ inline void run_mainloop(PromotedAcc<kTiles>& sums, const OperandView& x_rows,
                                    const OperandView& w_rows, const RowScales& x_scale,
                                    const BlockScales& w_scale, u32 blocks, const Wave& wave) {
  __shared__ u8 memory[(kM + kN) * kRowBytes];
  LdsBytes* const x_tile = (LdsBytes*)memory;
  LdsBytes* const w_tile = x_tile + kM * kRowBytes;
  const XPath::Reader x_reader(x_tile, wave.lane, wave.m);
  const WPath::Reader w_reader(w_tile, wave.lane, wave.n);
  const auto read = [&](Operands& operands) { operands.read(x_reader, w_reader); };
  XPath::Loader x(x_rows);
  WPath::Loader w(w_rows);
  const LaneBlockScales lane_scales(x_scale);
  Operands operands;
  f32 x_scales[kMTiles],
      scale[kMTiles];  // x's scales of four K-steps; those of the current one times w's
  const auto issue_scales = [&](u32 block) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      x_scales[i] = lane_scales.load(wave.m + i * kTileRows, block, blocks);
    }
    sched_barrier();
  };
  const auto issue = [&](u32 block) {
    const bool in_bounds = block < blocks;
    x.issue(block * kTileK, in_bounds);
    w.issue(block * kTileK, in_bounds);
    sched_barrier();
  };
  const auto commit = [&] {
    x.commit(x_tile);
    w.commit(w_tile);
  };
  const auto transpose = [&](u32 begin, u32 end) {
    constexpr u32 kX = XPath::Loader::kTransposeOps;
#pragma unroll
    for (u32 i = begin; i < end; ++i) i < kX ? x.transpose(i) : w.transpose(i - kX);
  };
  const auto transpose_interleaved =
      [&](u32 mfma_idx) {  // in the second half, after the loads are complete
        constexpr u32 kHalf = kMfmas / 2;
        if (kTransposeInterleaved && mfma_idx >= kHalf) {
          transpose((mfma_idx - kHalf) * kTransposeOps / kHalf,
                    (mfma_idx + 1 - kHalf) * kTransposeOps / kHalf);
        }
      };

  const auto scale_by = [&](u32 block) {
    const f32 w_block_scale = w_scale.load(block);
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      scale[i] = lane_scales.select(x_scales[i], block % LaneBlockScales::kSteps) * w_block_scale;
    }
  };
  issue_scales(0);
  issue(0);
  transpose(0, kTransposeOps);
  commit();
  issue(1);
  if constexpr (kTransposeInterleaved) transpose(0, kTransposeOps);
  scale_by(0);
  wait_lgkmcnt();
  s_barrier();
  read(operands);
  wait_lgkmcnt();
  for (u32 block = 1; block < blocks; ++block) {
    s_barrier();  // all waves have read LDS
    if constexpr (!kTransposeInterleaved) transpose(0, kTransposeOps);
    commit();
    if (block % LaneBlockScales::kSteps == 0) issue_scales(block);
    if constexpr (!kLoadInterleaved) issue(block + 1);
    set_wave_priority<0>();  // the reads and writes of the other workgroup go first, because they
                             // are fewer
    if constexpr (kLoadInterleaved) {
      multiply(sums, operands, scale, [&](u32 mfma_idx) {
        const u32 next = block + 1;
        load_interleaved<0>(x, next * kTileK, next < blocks, mfma_idx);
        load_interleaved<XPath::Loader::kTransposeOps / 2>(w, next * kTileK, next < blocks,
                                                           mfma_idx);
      });
    } else {
      multiply(sums, operands, scale, transpose_interleaved);
    }
    set_wave_priority<1>();
    wait_lgkmcnt();
    s_barrier();  // all waves have written LDS
    read(operands);
    scale_by(block);
    wait_lgkmcnt();
  }
  multiply(sums, operands, scale, Idle{});
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    a8w8_blockscale_staged(
        const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
        const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
        const f32* __restrict__ x_scale,  // [M, K/128], strides x_scale_row, x_scale_k
        const f32* __restrict__ w_scale,  // [N/128, K/128], strides w_scale_row, w_scale_k
        u32 m, u32 n, u32 k, u32 x_scale_row, u32 x_scale_k, u32 w_scale_k,
        Out* __restrict__ out,         // [M, N]
        void* __restrict__ workspace,  // partials if kSplit > 1 (SplitKReducer)
        u32* __restrict__ counts,      // [tiles], zeros before and after
        u32 x_row, u32 w_row, u32 w_scale_row) {
  if constexpr (kDense) x_row = kXColMajor ? m : k, w_row = kWColMajor ? n : k;
  if constexpr (kDense) w_scale_row = w_scale_k == 1 ? k / kTileK : 1;
  const u32 m_blocks = (m + kM - 1) / kM, n_blocks = (n + kN - 1) / kN;
  const TileCoord tile = this_tile<kGroupM, kSplit>(m_blocks, n_blocks);
  const u32 m0 = tile.m * kM, n0 = tile.n * kN;
  const u32 k_blocks = k / kTileK;  // splits differ by at most one K-step
  const u32 block_begin = k_blocks * tile.split / kSplit;
  const u32 blocks = k_blocks * (tile.split + 1) / kSplit - block_begin;
  const u32 wave_idx = wave_id();
  const Wave wave = {wave_idx / 2 * (kM / 2), wave_idx % 2 * (kN / 2), lane_id()};

  const u32 k0 = block_begin * kTileK, k_bytes = blocks * kTileK;
  const auto x_rows = OperandView::make<kXColMajor>(x, m0, m, kM, x_row, k0, k_bytes);
  const auto w_rows =
      OperandView::make<kWColMajor>(w, n0, n, kN, w_row, k0, k_bytes, kKStrideBytes);
  PromotedAcc<kTiles> sums = {};
  run_mainloop(sums, x_rows, w_rows,
               {x_scale, m0, m, kM, x_scale_row, x_scale_k, block_begin, blocks},
               {w_scale, n0, w_scale_row, w_scale_k, block_begin}, blocks, wave);
  sums.drain();
  if constexpr (kSplit > 1) {
    SplitKReducer<kSplit, kTiles * kThreads, kThreads, kCounterStride> reducer(
        workspace, counts, tile.m * n_blocks + tile.n);
    if (!reducer.reduce(sums.sum, tile.split)) return;
  }
  OutputView<Out>(out, m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      store(sums.sum[t], wave.m + m_of(t) * kTileRows + wave.lane % kTileRows,
            n0 + wave.n + n_of(t) * kTileRows + wave.lane / kTileRows * 4);
    }
  });
}
