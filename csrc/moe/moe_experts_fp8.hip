// kStage 1: h = T(silu(x[t] Wg) * (x[t] Wu)),  out[r], out_scale[r] = fp8 of blocks of h
// kStage 2: out[r] = T(x[r] Wd)
//
// r is a row of all experts, ordered by expert; t is the token of r by the expert's list, or r's
// index within the expert if the expert is shared; W are that expert's weights. FP8 (e4m3fnuz on
// gfx942, e4m3 on gfx950) with fp32 scales per 1 x 128 of x and per 128 x 128 of W. The fp32 sum of
// each block of K is multiplied by both scales. T is f16 or bf16.
//
// Layout. One persistent workgroup per CU. A tile is kRows rows of an expert by 256 weight rows, in
// stage 1 128 of gate and the same 128 of up: a scale block of h. Eight waves, 2 along rows and 4
// along weights; a wave has every second tile of 16 rows and 64 weight rows: in stage 1 32 of gate
// and 32 of up, so that both values of a column are in one lane. 16 rows that are all out of range
// are not multiplied. A K-step of 128, or a pair where kLoadsPairs, is loaded through registers
// into LDS while the previous one is multiplied from registers (promotion.h). Weights are MFMA
// operand A: a lane holds 4 adjacent columns of a row of out.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, in any tile.
// Out-of-range rows and columns are not accessed.
// Requires: N and K multiples of 128; rows 16-byte aligned; x of stage 1, and an expert's weights,
// below 2 GiB.
#include "moe/expert_tile_scheduler.h"
#include "moe/gather_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/number/exp.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/store/cshuffle_16x16.h"
#include "rfops/tile/promotion.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;              // f16 or bf16: h is rounded to it; out of stage 2
constexpr u32 kStage = RFOPS_STAGE;  // 1: gate, up and SiLU; 2: down
constexpr u32 kRows = RFOPS_ROWS;    // of a tile: 64 or 128
constexpr u32 kExpertsPerLane = RFOPS_EACH;
constexpr u32 kColumns = 256;  // of a tile: weight rows
constexpr u32 kMWaves = 2, kNWaves = 4, kThreads = kMWaves * kNWaves * kWaveSize;
constexpr u32 kSubs = kRows / kTileRows / kMWaves;  // 16-row tiles of a wave
constexpr u32 kNTiles = kColumns / kTileRows / kNWaves;
constexpr u32 kHalf = kNTiles / 2 * kTileRows;  // columns of gate, and of up, per wave
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
static_assert(kNTiles == kGroup, "the tiles of 16 rows must be promoted together");

// K-steps in LDS. Two are for row-major weights, because a load then brings more contiguous bytes
// of a row; shuffled weights are contiguous, and with 128 rows a wave has no registers for a
// second.
constexpr u32 kLdsSteps =
    kRows == 64 && !RFOPS_SHUFFLED && 2 * (kRows + kColumns) * kRowBytes < kLdsBytes ? 2 : 1;
constexpr bool kLoadsPairs = kLdsSteps == 2;
// K-steps that are loaded at a time, limited by registers.
constexpr u32 kSets = kRows == 64 ? 2 : 1;
using Out = __type_pack_element<kStage - 1, u8, Input>;
template <u32 kLoaderRows, bool kShuffled>
using Loader =
    __type_pack_element<kLoadsPairs, GatherLoader<kLoaderRows, kThreads, kSets, kShuffled>,
                        PairGatherLoader<kLoaderRows, kThreads>>;
using WeightLoader = Loader<kColumns, RFOPS_SHUFFLED>;
using RowLoader = Loader<kRows, false>;
constexpr u32 kRowGranularity = kMWaves * kTileRows;  // an equal number of rows for each wave
using Experts = ExpertTileScheduler<kRows, kExpertsPerLane, kRowGranularity>;

struct Memory {
  u8 x[kLdsSteps][kRows * kRowBytes], w[kLdsSteps][kColumns * kRowBytes];
  u32 amax[kNWaves][kRows];
  LdsScheduler<Experts> experts;
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

// Column of a weight row in LDS, and whether the row belongs to the second matrix.
struct Column {
  u32 n;
  bool is_second;
};
__device__ inline Column column_of(u32 row) {
  if constexpr (kStage == 2) return {row, false};
  return {row / (2 * kHalf) * kHalf + row % kHalf, row % (2 * kHalf) >= kHalf};
}
// The order in which a wave multiplies its weight tiles by row tile i: consecutive MFMAs share an
// operand.
constexpr u32 n_of(u32 i, u32 t) { return i % 2 == 0 ? t : kNTiles - 1 - t; }

struct WavePosition {
  u32 lane = lane_id(), m = wave_id() / kNWaves, n = wave_id() % kNWaves;
  __device__ u32 row(u32 i) const { return (i * kMWaves + m) * kTileRows + lane % kTileRows; }
};

template <u32 kRowTiles>
struct Wave {
  PromotedAcc<kRowTiles * kNTiles> sums;
  Fragment x[kRowTiles], w[kNTiles];
  f32 scale[kRowTiles][2];  // x's scale times that of the first and of the second matrix

  __device__ void read(const WavePosition& wave_pos, const LdsFragmentOffsets& fragment_offsets,
                       u32 lds_step) {
    const LdsBytes* const w_tiles = (LdsBytes*)memory.w[lds_step] + wave_pos.n * kNTiles * kLdsTile;
    const LdsBytes* const x_tiles = (LdsBytes*)memory.x[lds_step] + wave_pos.m * kLdsTile;
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j)
      w[j] = lds_load_fragment(w_tiles + j * kLdsTile, fragment_offsets);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i)
      x[i] = lds_load_fragment(x_tiles + i * kMWaves * kLdsTile, fragment_offsets);
  }
  template <u32 kRowTile = 0>
  __device__ void multiply() {
    if constexpr (kRowTile < kRowTiles) {
      sums.template multiply<kRowTile * kNTiles>(
          [&](u32 t) -> const Fragment& { return w[n_of(kRowTile, t)]; },
          [&](u32) -> const Fragment& { return x[kRowTile]; },
          [&](u32 t) { return scale[kRowTile][n_of(kRowTile, t) / (kNTiles / 2)]; });
      multiply<kRowTile + 1>();
    }
  }
  __device__ F32x4 sum(u32 i, u32 n) const { return sums.sum[i * kNTiles + n_of(i, n)]; }
};
template <>
struct Wave<0> {};  // a wave without rows only loads

struct Scales {
  const f32 *x_scale, *w_first,
      *w_second;  // of x from the tile's first row on; of w at the wave's columns
  u32 row_bytes;
};

template <u32 kSet>
struct Set {};

template <u32 kRowTiles, class Rows, class Weights, class IndexOf>
__device__ inline void run_mainloop(Wave<kRowTiles>& wave, const WavePosition& wave_pos, Rows& x,
                                    Weights& w, const Scales& scales, u32 blocks,
                                    IndexOf index_of) {
  const LdsFragmentOffsets fragment_offsets = lds_fragment_offsets(wave_pos.lane);
  GatheredScales<kRowTiles> x_scales(scales.x_scale, scales.row_bytes, blocks,
                                     [&](u32 i) { return index_of(wave_pos.row(i)); });
  const auto issue = [&](u32 block) {
    if (block % GatheredScales<kRowTiles>::kSteps == 0) x_scales.issue(block);
    x.issue(block * kTileK, blocks * kTileK);
    w.issue(block * kTileK, blocks * kTileK);
    sched_barrier();
  };
  const auto read = [&](u32 block, u32 lds_step = 0) {
    if constexpr (kRowTiles > 0) {
      wave.read(wave_pos, fragment_offsets, lds_step);
      if (block % GatheredScales<kRowTiles>::kSteps == 0) x_scales.use_next();
      const f32 w_first = scales.w_first[block], w_second = scales.w_second[block];
#pragma unroll
      for (u32 i = 0; i < kRowTiles; ++i) {
        const f32 x_value = x_scales.select(i, block);
        wave.scale[i][0] = x_value * w_first;
        wave.scale[i][1] = x_value * w_second;
      }
    }
    wait_lgkmcnt();
  };
  const auto multiply = [&] {
    if constexpr (kRowTiles > 0) wave.multiply();
  };
  u32 block = 0;
  // Writes one K-step to LDS, or both of a pair, and reads the first of them.
  const auto step = [&]<u32 kSet>(Set<kSet>) {
    s_barrier();  // all waves have read the previous K-steps
    if constexpr (kLoadsPairs) {
      x.commit((LdsBytes*)memory.x);
      w.commit((LdsBytes*)memory.w);
      issue(block + 2);
    } else {
      x.template commit<kSet>((LdsBytes*)memory.x);
      w.template commit<kSet>((LdsBytes*)memory.w);
      if constexpr (kSet == kSets - 1) issue(block + 1);
    }
    if (block > 0) multiply();
    wait_lgkmcnt();
    s_barrier();  // all waves have written
    read(block++);
  };
  issue(0);
  if constexpr (kLoadsPairs) {
    while (block < blocks) {
      step(Set<0>{});
      if (block < blocks) {
        multiply();
        read(block++, 1);
      }
    }
  } else {
    step(Set<0>{});
    while (block < blocks) {
      step(Set<kSets - 1>{});
      if (kSets > 1 && block < blocks) step(Set<0>{});
    }
  }
  if constexpr (kRowTiles > 0) {
    wave.multiply();
    wave.sums.drain();
  }
}

// Quantises and stores h. A lane has 4 columns of each of two tiles; the workgroup's 128 columns
// are one scale block.
template <u32 kRowTiles>
__device__ inline void store_h(const Wave<kRowTiles>& wave, const WavePosition& wave_pos, u8* out,
                               f32* out_scale, const ExpertTile& tile, u32 n) {
  F32x4 h[kRowTiles][2];
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      const F32x4 gate = wave.sum(i, j), up = wave.sum(i, j + 2);
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        h[i][j][e] = static_cast<f32>(static_cast<Input>(silu(gate[e]) * up[e]));
        amax = Fp8Block::larger(amax, Fp8Block::magnitude(h[i][j][e]));
      }
    }
    amax = reduce_lanes<kWaveSize, kTileRows>(amax, Fp8Block::larger);
    memory.amax[wave_pos.n][wave_pos.row(i)] = amax;  // four lanes write the same value
  }
  workgroup_barrier();
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    const u32 row = wave_pos.row(i);
    u32 amax = memory.amax[0][row];
#pragma unroll
    for (u32 wave_n = 1; wave_n < kNWaves; ++wave_n) {
      amax = Fp8Block::larger(amax, memory.amax[wave_n][row]);
    }
    if (row >= tile.rows) continue;
    const Fp8Block block(amax);
    const u64 offset = u64{tile.global_row + row} * n + tile.n * kOutColumns + wave_pos.n * kHalf;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      u8* const dst = out + offset + j * kTileRows + wave_pos.lane / kTileRows * 4;
      *reinterpret_cast<u32*>(dst) = block.convert(h[i][j][0], h[i][j][1], h[i][j][2], h[i][j][3]);
    }
    if (wave_pos.n == 0 && wave_pos.lane < kTileRows) {
      out_scale[u64{tile.global_row + row} * (n / kOutColumns) + tile.n] = block.scale();
    }
  }
}

// Stores through the LDS of the weights. The columns of a wave are all in bounds or all out of
// bounds, because N is a multiple of 128.
template <u32 kRowTiles>
__device__ inline void store_out(const Wave<kRowTiles>& wave, const WavePosition& wave_pos,
                                 Input* out, const ExpertTile& tile, u32 n) {
  using Store = WaveStore<Input, kNTiles * kTileRows>;
  const u32 column = (tile.n * kNWaves + wave_pos.n) * (kNTiles * kTileRows);
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    const u32 row = tile.global_row + (i * kMWaves + wave_pos.m) * kTileRows;
    const Store out_rows(out, row, tile.global_row + tile.rows, kTileRows, n, column,
                         (LdsBytes*)memory.w + wave_id() * Store::kBytes);
    out_rows.template store<1>([&](u32, u32 j) { return wave.sum(i, j); });
  }
}

template <u32 kRowTiles, class IndexOf>
__device__ inline void make_tile(u32 count, const WavePosition& wave_pos, RowLoader& x,
                                 WeightLoader& w, const Scales& scales, u32 k, IndexOf index_of,
                                 Out* out, f32* out_scale, const ExpertTile& tile, u32 n) {
  if constexpr (kRowTiles > 0) {
    if (count < kRowTiles) {
      return make_tile<kRowTiles - 1>(count, wave_pos, x, w, scales, k, index_of, out, out_scale,
                                      tile, n);
    }
  }
  Wave<kRowTiles> wave = {};
  run_mainloop(wave, wave_pos, x, w, scales, k / kTileK, index_of);
  if constexpr (kStage == 2 || kRowTiles == 0) {
    workgroup_barrier();  // all waves have read w; pairs with the barrier in store_h
  }
  if constexpr (kStage == 1 && kRowTiles > 0) store_h(wave, wave_pos, out, out_scale, tile, n);
  if constexpr (kStage == 2 && kRowTiles > 0) store_out(wave, wave_pos, out, tile, n);
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    moe_experts_fp8(Out* __restrict__ out,             // [rows, N]
                    f32* __restrict__ out_scale,       // [rows, N/128]; stage 1
                    const u8* __restrict__ x_payload,  // [M, K]
                    const f32* __restrict__ x_scale,   // [M, K/128]
                    const u8* __restrict__ w_payload,  // [E, N or 2 N, K]
                    const f32* __restrict__ w_scales,  // [E, N/128 or 2 N/128, K/128]
                    const u32* __restrict__ lists,     // [routed, M]; stage 1
                    u32* __restrict__ counts,          // [routed]; stage 2 leaves them 0
                    u32* __restrict__ offsets,         // [E + 1]; stage 1 writes them
                    u32 m, u32 routed, u32 experts, u32 all_rows, u32 n, u32 k,
                    u32 groups) {  // a multiple of 8
  const u32 n_tiles = (n + kOutColumns - 1) / kOutColumns, blocks = k / kTileK;
  const u32 matrices = kStage == 1 ? 2 : 1;  // per expert
  const Experts scheduler(experts, n_tiles, m, all_rows,
                          RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  publish_offsets<kStage>(scheduler, counts, offsets, routed, experts);
  const WavePosition wave_pos;
  memory.experts.save(scheduler);
  const auto tile_of = [](u32 number) { return memory.experts.load().tile(number); };
  for_each_row_slice<kRowGranularity>(
      scheduler, routed, groups, tile_of, [&](const ExpertTile& tile) {
        const u64 row0 = u64{tile.expert} * matrices * n;  // of the weights of all experts
        const u32 n0 = tile.n * kOutColumns;
        WeightLoader w(w_payload + row0 * k, matrices * n * k, [&](u32 row) {
          const Column c = column_of(row);
          if (n0 + c.n >= n) return kOutOfBounds;
          return WeightLoader::Layout::offset(n0 + c.n + (c.is_second ? n : 0), 0, k);
        });
        const bool is_list = kStage == 1 && tile.expert < routed;
        const u32* list = pointer_in_vgpr(lists) + u64{tile.expert} * m + tile.row;
        const u32 x_row_begin = kStage == 1 ? 0 : tile.global_row,
                  rows = kStage == 1 ? m : tile.rows;
        const auto index_of = [&](u32 row) {
          if (row >= tile.rows) return kOutOfBounds;
          return is_list ? list[row] : kStage == 1 ? tile.row + row : row;
        };
        RowLoader x(x_payload + u64{x_row_begin} * k, rows * k, [&](u32 row) {
          const u32 index = index_of(row);
          return index == kOutOfBounds ? kOutOfBounds : index * k;
        });
        // The columns of a wave in stage 2 are in one block of 128, or out of bounds.
        const u32 column = kStage == 1 ? n0 : n0 + wave_pos.n * kNTiles * kTileRows;
        const u32 block = (column < n ? column : n0) / kScaleRows;
        const f32* const w_scale_rows = w_scales + (row0 / kScaleRows + block) * blocks;
        const Scales tile_scales = {
            x_scale + u64{x_row_begin} * blocks, w_scale_rows,
            kStage == 1 ? w_scale_rows + n / kScaleRows * blocks : w_scale_rows,
            rows * blocks * static_cast<u32>(sizeof(f32))};
        const u32 subs = (tile.rows + kTileRows - 1) / kTileRows;
        make_tile<kSubs>((subs + 1 - wave_pos.m) / 2, wave_pos, x, w, tile_scales, k, index_of, out,
                         out_scale, tile, n);
      });
}
