// kStage 1: h = In(silu(in[t] Wg) * (in[t] Wu)),  out[r], out_scale[r] = fp8 of blocks of h
// kStage 2: out[r] = In(in[r] Wd)
//
// r goes over the rows of all experts, expert by expert; t is the token of r, by the expert's list,
// or r's own number where the expert is shared; W are that expert's. FP8, e4m3fnuz on gfx942 and
// e4m3 on gfx950, with fp32 scales of 1 x 128 of in and of 128 x 128 of W; sums in fp32 a block of
// K, times both scales.
//
// Layout. A workgroup a CU takes tile after tile: kRows rows of an expert by 256 rows of weights,
// of stage 1 128 of gate and the same 128 of up: a block of h's scale. Eight waves, 2 along rows
// and 4 along weights; a wave has every other 16 rows, and of weights 64: of gate 32 and of up 32,
// so that both of a column meet in one lane. 16 rows that are not there are not multiplied. A step
// of K, 128, goes through registers into LDS while the last one is multiplied from registers
// (promotion.h says how). Weights are operand A: a lane holds 4 neighbours of a row of out.
//
// Promises. Deterministic: a row's sums go along K, wherever it lies. Memory that is not there is
// not touched. N and K are multiples of 128, rows are aligned to 16 bytes; `in` of stage 1, and an
// expert's weights, are below 2 GiB.
#include "moe/exp.h"
#include "moe/expert_tile_scheduler.h"
#include "moe/gather_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/store/cshuffle_16x16.h"
#include "rfops/tile/promotion.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using In = RFOPS_IN;                 // f16 or bf16: what h is rounded to, and out of stage 2
constexpr u32 kStage = RFOPS_STAGE;  // 1: gate, up and SiLU; 2: down
constexpr u32 kRows = RFOPS_ROWS;    // of a tile: 64 or 128
constexpr u32 kEach = RFOPS_EACH;    // experts of a lane
constexpr u32 kColumns = 256;        // of a tile: rows of weights
constexpr u32 kMWaves = 2, kNWaves = 4, kThreads = kMWaves * kNWaves * kWaveSize;
constexpr u32 kSubs = kRows / kTileRows / kMWaves;  // operands of rows of a wave
constexpr u32 kNTiles = kColumns / kTileRows / kNWaves;
constexpr u32 kHalf = kNTiles / 2 * kTileRows;  // of gate, and of up, of a wave
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
static_assert(kNTiles == kGroup, "the tiles of 16 rows are promoted together");

// Steps of K that are loaded at a time, as many as registers have room for.
constexpr u32 kSets = kRows == 64 ? 2 : 1;
using Out = __type_pack_element<kStage - 1, u8, In>;
using WLoader = PlacedLoader<kColumns, kThreads, kSets, RFOPS_SHUFFLED>;
using XLoader = PlacedLoader<kRows, kThreads, kSets>;
constexpr u32 kRowGranularity = kMWaves * kTileRows;  // rows: as many of each wave
using Experts = ExpertTileScheduler<kRows, kEach, kRowGranularity>;

struct Memory {
  u8 x[kRows * kRowBytes], w[kColumns * kRowBytes];
  u32 amax[kNWaves][kRows];
  KeptRows<Experts> experts;
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

// Which weights an LDS row has, and of which matrix.
struct Column {
  u32 n;
  bool is_second;
};
__device__ inline Column column_of(u32 row) {
  if constexpr (kStage == 2) return {row, false};
  return {row / (2 * kHalf) * kHalf + row % kHalf, row % (2 * kHalf) >= kHalf};
}
// The order in which a wave's tiles of weights are multiplied by rows i: neighbours share operands.
constexpr u32 n_of(u32 i, u32 t) { return i % 2 == 0 ? t : kNTiles - 1 - t; }

struct Own {  // of a wave
  u32 lane = lane_id(), m = wave_id() / kNWaves, n = wave_id() % kNWaves;
  __device__ u32 row(u32 i) const { return (i * kMWaves + m) * kTileRows + lane % kTileRows; }
};

template <u32 kOwn>
struct Wave {
  PromotedAcc<kOwn * kNTiles> sums;
  Fragment x[kOwn], w[kNTiles];
  f32 scale[kOwn][2];  // x's times that of the first and of the second matrix

  __device__ void read(const Own& own, const LdsFragmentOffsets& pieces) {
    const LdsBytes* const w_rows = (LdsBytes*)memory.w + own.n * kNTiles * kLdsTile;
    const LdsBytes* const x_rows = (LdsBytes*)memory.x + own.m * kLdsTile;
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) w[j] = lds_load_fragment(w_rows + j * kLdsTile, pieces);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i)
      x[i] = lds_load_fragment(x_rows + i * kMWaves * kLdsTile, pieces);
  }
  template <u32 kFirst = 0>
  __device__ void multiply() {
    if constexpr (kFirst < kOwn) {
      sums.template multiply<kFirst * kNTiles>(
          [&](u32 t) -> const Fragment& { return w[n_of(kFirst, t)]; },
          [&](u32) -> const Fragment& { return x[kFirst]; },
          [&](u32 t) { return scale[kFirst][n_of(kFirst, t) / (kNTiles / 2)]; });
      multiply<kFirst + 1>();
    }
  }
  __device__ F32x4 sum(u32 i, u32 n) const { return sums.sum[i * kNTiles + n_of(i, n)]; }
};
template <>
struct Wave<0> {};  // of a wave that has no rows: it loads for others

struct Scales {
  const f32 *rows, *first, *second;  // of `in` from the tile's span on, of w at the wave's columns
  u32 row_bytes;
};

template <u32 kSet>
struct Set {};

template <u32 kOwn, class IndexOf>
__device__ inline void run_mainloop(Wave<kOwn>& wave, const Own& own, XLoader& x, WLoader& w,
                                    const Scales& scales, u32 blocks, IndexOf index_of) {
  const LdsFragmentOffsets pieces = lds_fragment_offsets(own.lane);
  PlacedScales<kOwn> of_rows(scales.rows, scales.row_bytes, blocks,
                             [&](u32 i) { return index_of(own.row(i)); });
  const auto issue = [&](u32 block) {
    if (block % PlacedScales<kOwn>::kSteps == 0) of_rows.issue(block);
    x.issue(block * kTileK, blocks * kTileK);
    w.issue(block * kTileK, blocks * kTileK);
    sched_barrier();
  };
  const auto read = [&](u32 block) {
    if constexpr (kOwn > 0) {
      wave.read(own, pieces);
      if (block % PlacedScales<kOwn>::kSteps == 0) of_rows.take();
      const f32 first = scales.first[block], second = scales.second[block];
#pragma unroll
      for (u32 i = 0; i < kOwn; ++i) {
        const f32 of_x = of_rows.at(i, block);
        wave.scale[i][0] = of_x * first;
        wave.scale[i][1] = of_x * second;
      }
    }
    wait_lgkmcnt();
  };
  u32 block = 0;
  const auto step = [&]<u32 kSet>(Set<kSet>) {
    s_barrier();  // all have read the last step, or the last tile's
    x.template commit<kSet>((LdsBytes*)memory.x);
    w.template commit<kSet>((LdsBytes*)memory.w);
    if constexpr (kSet == kSets - 1) issue(block + 1);
    if constexpr (kOwn > 0) {
      if (block > 0) wave.multiply();
    }
    wait_lgkmcnt();
    s_barrier();  // all have written
    read(block++);
  };
  issue(0);
  step(Set<0>{});
  while (block < blocks) {
    step(Set<kSets - 1>{});
    if (kSets > 1 && block < blocks) step(Set<0>{});
  }
  if constexpr (kOwn > 0) {
    wave.multiply();
    wave.sums.drain();
  }
}

// h of a lane's rows: 4 neighbours of each of two tiles; the workgroup's 128 columns are a block.
template <u32 kOwn>
__device__ inline void store_h(const Wave<kOwn>& wave, const Own& own, u8* out, f32* out_scale,
                               const ExpertTile& tile, u32 n) {
  F32x4 h[kOwn][2];
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    u32 most = Fp8Block::kMinAmaxBits;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      const F32x4 gate = wave.sum(i, j), up = wave.sum(i, j + 2);
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        h[i][j][e] = static_cast<f32>(static_cast<In>(silu(gate[e]) * up[e]));
        most = Fp8Block::larger(most, Fp8Block::magnitude(h[i][j][e]));
      }
    }
    most = reduce_lanes<kWaveSize, kTileRows>(most, Fp8Block::larger);
    memory.amax[own.n][own.row(i)] = most;  // the same of four lanes
  }
  workgroup_barrier();
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const u32 row = own.row(i);
    u32 most = memory.amax[0][row];
#pragma unroll
    for (u32 other = 1; other < kNWaves; ++other) {
      most = Fp8Block::larger(most, memory.amax[other][row]);
    }
    if (row >= tile.rows) continue;
    const Fp8Block block(most);
    const u64 at = u64{tile.first + row} * n + tile.n * kOutColumns + own.n * kHalf;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      u8* const to = out + at + j * kTileRows + own.lane / kTileRows * 4;
      *reinterpret_cast<u32*>(to) = block.convert(h[i][j][0], h[i][j][1], h[i][j][2], h[i][j][3]);
    }
    if (own.n == 0 && own.lane < kTileRows) {
      out_scale[u64{tile.first + row} * (n / kOutColumns) + tile.n] = block.scale();
    }
  }
}

// By LDS that has a step's weights otherwise. A wave's columns are all there or none, as N is a
// multiple of 128.
template <u32 kOwn>
__device__ inline void store_out(const Wave<kOwn>& wave, const Own& own, In* out,
                                 const ExpertTile& tile, u32 n) {
  using Store = WaveStore<In, kNTiles * kTileRows>;
  const u32 column = (tile.n * kNWaves + own.n) * (kNTiles * kTileRows);
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const u32 row = tile.first + (i * kMWaves + own.m) * kTileRows;
    const Store to(out, row, tile.first + tile.rows, kTileRows, n, column,
                   (LdsBytes*)memory.w + wave_id() * Store::kBytes);
    to.template store<1>([&](u32, u32 j) { return wave.sum(i, j); });
  }
}

template <u32 kOwn, class IndexOf>
__device__ inline void make_tile(u32 count, const Own& own, XLoader& x, WLoader& w,
                                 const Scales& scales, u32 k, IndexOf index_of, Out* out,
                                 f32* out_scale, const ExpertTile& tile, u32 n) {
  if constexpr (kOwn > 0) {
    if (count < kOwn) {
      return make_tile<kOwn - 1>(count, own, x, w, scales, k, index_of, out, out_scale, tile, n);
    }
  }
  Wave<kOwn> wave = {};
  run_mainloop(wave, own, x, w, scales, k / kTileK, index_of);
  if constexpr (kStage == 2 || kOwn == 0) workgroup_barrier();  // all have read w; or as in store_h
  if constexpr (kStage == 1 && kOwn > 0) store_h(wave, own, out, out_scale, tile, n);
  if constexpr (kStage == 2 && kOwn > 0) store_out(wave, own, out, tile, n);
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    moe_experts_fp8(Out* __restrict__ out,             // [rows, N]
                    f32* __restrict__ out_scale,       // [rows, N/128]; stage 1
                    const u8* __restrict__ in,         // [M, K]
                    const f32* __restrict__ in_scale,  // [M, K/128]
                    const u8* __restrict__ weights,    // [E, N or 2 N, K]
                    const f32* __restrict__ scales,    // [E, N/128 or 2 N/128, K/128]
                    const u32* __restrict__ lists,     // [routed, M]; stage 1
                    u32* __restrict__ counts,          // [routed]; stage 2 leaves them 0
                    u32* __restrict__ offsets,         // [E + 1]; stage 1 writes them
                    u32 m, u32 routed, u32 experts, u32 all_rows, u32 n, u32 k,
                    u32 groups) {  // 8 times some
  const u32 n_tiles = (n + kOutColumns - 1) / kOutColumns, blocks = k / kTileK;
  const u32 matrices = kStage == 1 ? 2 : 1;  // of an expert
  const Experts all(experts, n_tiles, m, all_rows,
                    RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  publish_offsets<kStage>(all, counts, offsets, routed, experts);
  const Own own;
  memory.experts.keep(all);
  const auto tile_of = [](u32 number) { return memory.experts.rows().tile(number); };
  for_each_row_slice<kRowGranularity>(all, routed, groups, tile_of, [&](const ExpertTile& tile) {
    const u64 row0 = u64{tile.expert} * matrices * n;  // of all weights
    const u32 n0 = tile.n * kOutColumns;
    WLoader w(weights + row0 * k, matrices * n * k, [&](u32 row) {
      const Column c = column_of(row);
      if (n0 + c.n >= n) return kOutOfBounds;
      return WLoader::Order::offset(n0 + c.n + (c.is_second ? n : 0), 0, k);
    });
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* list = pointer_in_vgpr(lists) + u64{tile.expert} * m + tile.row;
    const u32 first = kStage == 1 ? 0 : tile.first, rows = kStage == 1 ? m : tile.rows;
    const auto index_of = [&](u32 row) {
      if (row >= tile.rows) return kOutOfBounds;
      return is_list ? list[row] : kStage == 1 ? tile.row + row : row;
    };
    XLoader x(in + u64{first} * k, rows * k, [&](u32 row) {
      const u32 index = index_of(row);
      return index == kOutOfBounds ? kOutOfBounds : index * k;
    });
    // A wave's columns of stage 2 are in one block of 128, or nowhere.
    const u32 column = kStage == 1 ? n0 : n0 + own.n * kNTiles * kTileRows;
    const u32 block = (column < n ? column : n0) / kScaleRows;
    const f32* const of_w = scales + (row0 / kScaleRows + block) * blocks;
    const Scales of = {in_scale + u64{first} * blocks, of_w,
                       kStage == 1 ? of_w + n / kScaleRows * blocks : of_w,
                       rows * blocks * static_cast<u32>(sizeof(f32))};
    const u32 subs = (tile.rows + kTileRows - 1) / kTileRows;
    make_tile<kSubs>((subs + 1 - own.m) / 2, own, x, w, of, k, index_of, out, out_scale, tile, n);
  });
}
