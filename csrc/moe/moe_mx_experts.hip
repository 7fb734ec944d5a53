// kStage 1: out[r] = mx(silu(in[t] Wg) * (in[t] Wu))     kStage 2: out[r] = in[r] Wd
//
// r goes over the rows of all experts, expert by expert; t is the token of r, by the expert's list,
// or r's own number where the expert is shared. Rows of stage 2 go where the choice stands: row
// t * kTopK + j, those of shared experts after all of them, expert by expert. W are that expert's.
// in and W are MXFP4, or both MX-FP8 (mx_format.h); sums are fp32, h is rounded to Half and
// quantised from that, rows of stage 2 are Half.
//
// Layout. A workgroup takes tile after tile: 16 kMTiles rows of an expert by kColumns of the
// result. kNWaves waves lie side by side along these, kKWaves share out K, step by step. A wave has
// kTiles tiles of 16 rows of weights, of stage 1 half of them gate's and half up's of the same
// columns, so that both meet in one lane. Weights go from memory to the registers of that one wave;
// rows of `in` to LDS, a chunk of kChunk steps while another is multiplied. Weights are
// operand A: a lane has 4 neighbours of a row of out, and 4 lanes a block of 32. Of kMTiles tiles
// of rows, halves that hold the rows are multiplied.
//
// Promises. Deterministic: a row's sums go along K, part by part, wherever it lies. Memory that is
// not there is not touched. Rows of weights are aligned to 16 bytes, shuffled scales to 4.
#include "moe/cshuffle_scatter.h"
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mainloop.h"
#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "moe/mx_silu_requant.h"
#include "moe/mx_weight_loader.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"
#include "rfops/wave/reduce.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_experts is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Half = RFOPS_HALF;                          // bf16 or f16
constexpr u32 kStage = RFOPS_STAGE;               // 1: gate, up and SiLU; 2: down
using Format = RFOPS_FORMAT<RFOPS_BUMP>;          // Mxfp4 or Mxfp8
constexpr u32 kMTiles = RFOPS_M_TILES;            // tiles of 16 rows of an expert
constexpr u32 kNWaves = RFOPS_N_WAVES;            // waves side by side along the result's columns
constexpr u32 kKWaves = RFOPS_K_WAVES;            // waves that share out K
constexpr u32 kChunk = RFOPS_CHUNK;               // steps of `in` in LDS at a time
constexpr u32 kAhead = RFOPS_AHEAD;               // steps of weights on their way
constexpr u32 kEach = RFOPS_EACH;                 // experts of a lane
constexpr u32 kTopK = RFOPS_TOP_K;                // choices of a token
constexpr bool kThroughRegisters = kMTiles <= 2;  // rows of `in` on their way to LDS
constexpr u32 kTiles = 4;
constexpr u32 kWaves = kNWaves * kKWaves, kThreads = kWaves * kWaveSize;
constexpr u32 kRows = kMTiles * kTileRows;
constexpr u32 kOwnColumns = (kStage == 1 ? kTiles / 2 : kTiles) * kTileRows;  // of a wave
constexpr u32 kColumns = kNWaves * kOwnColumns;

// h that moe_mx_down takes lies by tiles, which belong to one expert each.
constexpr bool kTiledH = RFOPS_TILED_H;
using Experts = ExpertTileScheduler<kRows, kEach, kRows, kTiledH ? kTileRows : 1>;
using Rows = RowChunkLoader<Format, kRows, kChunk, kWaves, kStage == 1>;
using Scales = Rows::Scales;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Store = ScatteredStore<Half>;
constexpr u32 kNone = Store::kNoRow;
constexpr u32 kStepBlocks = Scales::kStepBlocks;

constexpr u32 kPartBytes = kMTiles * kTiles * kWaveSize * sizeof(F32x4);  // a wave's sums
union Memory {
  u8 chunk[2][Rows::kBytes];
  u8 part[kKWaves > 1 ? kKWaves - 1 : 1][kNWaves][kKWaves > 1 ? kPartBytes : 1];
};
struct Lds {
  Memory memory;
  u8 store[kNWaves][kStage == 2 ? Store::kBytes : 1];
  u32 to[kStage == 2 ? kRows : 1];  // rows of the result
  alignas(16) u8 staging[kWaves][Weights::kStagingBytes > 0 ? Weights::kStagingBytes : 1];
};
static_assert(sizeof(Lds) <= kLdsBytes, "a workgroup fits a CU");
__shared__ __attribute__((aligned(16))) Lds lds;

using Loop =
    ExpertLoop<Rows, Weights, kTiles, kStage == 1 ? 2 : 1, kKWaves, kAhead, kThroughRegisters>;
using Place = Loop::Place;
// The sums of the waves that share out K, in their order, in the first of them.
template <u32 kOwn>
__device__ inline void add_parts(F32x4 (&sums)[kOwn][kTiles], u32 wave_k, u32 wave_n) {
  if constexpr (kKWaves > 1) {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const u32 lane = lane_id();
    const auto at = [&](u32 part, u32 tile) {
      return reinterpret_cast<RFOPS_LDS F32x4*>(memory->memory.part[part][wave_n]) +
             tile * kWaveSize + lane;
    };
    s_barrier();
    if (wave_k > 0) {
#pragma unroll
      for (u32 i = 0; i < kOwn * kTiles; ++i) *at(wave_k - 1, i) = sums[i / kTiles][i % kTiles];
    }
    workgroup_barrier();
    if (wave_k > 0) return;
#pragma unroll
    for (u32 i = 0; i < kOwn * kTiles; ++i) {
#pragma unroll
      for (u32 part = 0; part + 1 < kKWaves; ++part) sums[i / kTiles][i % kTiles] += *at(part, i);
    }
  }
}

struct Out {
  u8* rows;    // of stage 2 Half [rows, n]; of stage 1 elements, `steps` steps a row
  u8* scales;  // of stage 1
  u32 n, steps;
};

template <u32 kOwn>
__device__ inline void store(const F32x4 (&sums)[kOwn][kTiles], const Out& out,
                             const ExpertTile& tile, u32 n0, u32 wave_n) {
  const u32 lane = lane_id();
  if constexpr (kStage == 1) {
    if (n0 >= out.n) return;
    const u32 row_bytes = out.steps * kRowBytes, scale_bytes = out.steps * kStepBlocks;
    const QuantisedRows<Half, Format, RFOPS_OUT_CHUNK, kTiledH> to(
        out.rows + u64{tile.first} * row_bytes, out.scales + u64{tile.first} * scale_bytes,
        tile.rows, row_bytes, scale_bytes);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const F32x4(&of)[kTiles] = sums[i];
      to.store({of[0], of[1]}, {of[2], of[3]}, i * kTileRows + lane % kTileRows, n0 / kMxBlock);
      sched_barrier();
    }
  } else {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const Store to(reinterpret_cast<Half*>(out.rows), memory->to, out.n, n0, memory->store[wave_n]);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) to.put(t, sums[i][t]);
      to.store(i);
    }
  }
}

template <u32 kOwn>
__device__ inline void make_tile(Loop& loop, const ExpertTile& tile, const Out& out, u32 column) {
  if constexpr (kOwn > 1) {
    constexpr u32 kFewer = kOwn % 2 == 0 ? kOwn / 2 : kOwn - 1;
    if (tile.rows <= kFewer * kTileRows) return make_tile<kFewer>(loop, tile, out, column);
  }
  F32x4 sums[kOwn][kTiles] = {};
  loop.multiply<kOwn>(sums);
  const u32 wave_k = wave_id() / kNWaves, wave_n = wave_id() % kNWaves;
  add_parts<kOwn>(sums, wave_k, wave_n);
  if (wave_k == 0) store<kOwn>(sums, out, tile, column, wave_n);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_experts(u32* __restrict__ counts,  // [routed]; stage 2 leaves them 0
               u32 m, u32 routed, u32 experts, u32 n, u32 k, u32 out_steps,
               u32 groups,                       // a multiple of 8
               const u32* __restrict__ lists,    // [routed, M]; stage 1
               const u8* __restrict__ in,        // [rows, steps, 128]
               const u8* __restrict__ in_scale,  // [rows, a row's blocks]
               const u8* __restrict__ w,         // [E, N or 2 N, K]
               const u8* __restrict__ w_scale,   // [E, N or 2 N, K / 32]
               u32* __restrict__ offsets,     // [E + 1]; stage 1 writes them, of tiled h the counts
               u8* __restrict__ out,          // stage 1: [rows, out_steps, 128]; 2: Half [rows, N]
               u8* __restrict__ out_scale,    // stage 1: [rows, a row's blocks]
               u32 w_row, u32 w_scale_row) {  // bytes
  const u32 steps = (k + Format::kStepK - 1) / Format::kStepK;
  // Columns of h that pad its rows are made too, of weights that are not there: zeros.
  const u32 columns = kStage == 1 ? out_steps * Format::kStepK : n;
  const u32 all_rows = m * (kTopK + experts - routed);
  const Experts all(experts, (columns + kColumns - 1) / kColumns, m, all_rows,
                    RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  if constexpr (kTiledH) {
    if (workgroup_id_x() == 0 && wave_id() == 0) {
      all.counts(experts, [&](u32 e, u32 rows) { offsets[e] = rows; });
    }
  } else {
    publish_offsets<kStage>(all, counts, offsets, routed, experts);
  }
  const Weights weights(k);
  const Out to = {out, out_scale, columns, out_steps};
  const u32 wave_n = wave_id() % kNWaves, wave_k = wave_id() / kNWaves;
  for_each_tile(all, routed, groups, [&](const ExpertTile& tile) {
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* const list = lists + u64{tile.expert} * m + tile.row;
    const u32 rows = kStage == 1 ? m : tile.rows;
    const u64 first = kStage == 1 ? 0 : tile.first;
    Rows from(in + first * (steps * kRowBytes), in_scale + first * (steps * kStepBlocks), rows,
              steps);
    const Buffer listed = make_buffer(list, is_list ? tile.rows * sizeof(u32) : 0);
    from.ask([&](u32 row) {
      return kStage == 1 ? buffer_load_dwords<1>(listed, row * sizeof(u32), 0).dword[0] : row;
    });
    sched_barrier();  // the list is on its way before weights are
    const u32 of_expert = kStage == 1 ? 2 * n : n;
    const u64 before = u64{tile.expert} * of_expert;
    const Place place = {
        {w + before * w_row, w_scale + before * w_scale_row, of_expert, w_row, w_scale_row},
        tile.n * kColumns + wave_n * kOwnColumns,
        n,
        steps};
    constexpr u32 kOfThread = kStage == 2 ? (kRows + kThreads - 1) / kThreads : 0;
    u32 goes_to[kOfThread > 0 ? kOfThread : 1];  // rows of the result; asked for before weights
#pragma unroll
    for (u32 i = 0; i < kOfThread; ++i) {
      const u32 row = thread_id() + i * kThreads;
      goes_to[i] = kNone;
      if (row >= tile.rows) continue;
      const u32 shared = m * kTopK + (tile.expert - routed) * m + tile.row + row;
      goes_to[i] = tile.expert < routed ? list[row] : shared;
      if (goes_to[i] >= all_rows) goes_to[i] = kNone;  // of a list that nobody wrote
    }
    sched_barrier();
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    Loop loop(weights, place, from, wave_k, memory->memory.chunk[0], memory->staging[wave_id()]);
    loop.begin();
    from.scale_and_mask([&](u32 row, u32 word) {
      if (row >= tile.rows) return kOutOfBounds;
      return is_list ? word / kTopK : kStage == 1 ? tile.row + row : row;
    });
    s_barrier();  // what was in LDS is stored
#pragma unroll
    for (u32 i = 0; i < kOfThread; ++i) {
      const u32 row = thread_id() + i * kThreads;
      if (row < kRows) lds.to[row] = goes_to[i];
    }
    wait_lgkmcnt();
    make_tile<kMTiles>(loop, tile, to, place.row);
  });
}
