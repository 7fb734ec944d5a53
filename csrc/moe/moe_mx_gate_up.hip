// h[r] = mx(silu(x[t] Wg) * (x[t] Wu))
//
// Stage 1 of moe_mx_experts.hip, bitwise equal, for experts with many rows and shuffled MXFP4
// weights: one CU reads weights once for all rows of an expert, and its waves share them through
// LDS. r is a row of all experts, ordered by expert; t is the token of r by the expert's list, or
// r's index within the expert if the expert is shared.
//
// Layout. A workgroup processes slices: up to kRows rows of an expert by kColumns columns of h.
// kNWaves waves are adjacent along the columns, 32 columns of gate and of up each, times kMWaves
// that share the row tiles of 16. One more wave is the producer of weights, another one of rows;
// they load K-steps ahead of the consumer waves, in the order of the slices: the next slice is in
// flight while this slice's h is computed. A barrier precedes each K-step. Weights are MFMA operand
// A: a lane has 4 adjacent columns of a row of h, and 4 lanes a block of 32.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, in any tile.
// Out-of-range rows are not accessed.
// Requires: weights 16-byte aligned, scales 4-byte aligned; K a multiple of 256; at most 64
// experts.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "moe/mx_silu_requant.h"
#include "moe/mx_tile_slices.h"
#include "moe/mx_weight_ring.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_gate_up is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Half = RFOPS_HALF;  // bf16 or f16
using Format = Mxfp4<RFOPS_BUMP>;
constexpr u32 kTopK = RFOPS_TOP_K;  // assignments per token
constexpr bool kTiledH = RFOPS_TILED_H;
constexpr u32 kNWaves = RFOPS_N_WAVES;          // 3 or 4 waves along the columns
constexpr u32 kMTiles = kNWaves == 3 ? 10 : 9;  // row tiles of 16 of an expert, limited by LDS
constexpr u32 kNumStages = 3, kRowStages = 3;   // K-steps of weights and of rows in LDS
constexpr u32 kMWaves = 2, kConsumerWaves = kNWaves * kMWaves;
constexpr u32 kThreads = (kConsumerWaves + 2) * kWaveSize;
constexpr u32 kTiles = 4, kWaveColumns = kTiles / 2 * kTileRows, kColumns = kNWaves * kWaveColumns;
constexpr u32 kRows = kMTiles * kTileRows;
constexpr u32 kMaxRowTiles = (kMTiles + kMWaves - 1) / kMWaves;  // per wave

using Experts = ExpertTileScheduler<kRows, 1, kTileRows, kTiledH ? kTileRows : 1>;
using TileSlices = TileShareScheduler<Experts, kNWaves, kTileRows>;
using Rows = RowChunkLoader<Format, kRows, 1, 1, true>;
using Scales = LaneScales<Rows::Scales>;
using Weights = WeightLoader<Format, true, true, false, kTiles>;
// An item of the ring is one K-step of each column wave.
using Ring = WeightRing<Weights, kTiles, true, true, kNWaves, kNumStages>;

struct Lds {
  u8 rows[kRowStages][Rows::kBytes];
  u32 list[kRows];  // token list of the next slice's rows
  alignas(16) u8 ring[Ring::kBytes];
};
static_assert(sizeof(Lds) <= kLdsBytes, "a workgroup must fit a CU");
__shared__ __attribute__((aligned(16))) Lds lds;
__device__ inline LdsBytes* rows_at(u32 item) {
  return ((RFOPS_LDS Lds*)&lds)->rows[item % kRowStages];
}

struct GateUpArgs {
  const u8 *x, *x_scale, *w, *w_scale;
  const u32* lists;
  u32 m, routed, n, w_row, w_scale_row, steps;
};

// Runs the producer of weights: items in the order of the slices, with as many K-steps as the slice
// has column units.
__device__ inline void run_weight_producer(TileSlices slices, const Ring& ring,
                                           const Weights& weights, const GateUpArgs& args) {
  constexpr u32 kPrefetch = kNumStages - 1;
  TileSlice slice = slices.next();
  u32 step = 0, issued = 0;
  u32 in_flight[kPrefetch];  // K-steps of the items in flight
  const auto issue_next = [&](u32 number) {
    const u64 row_begin = u64{slice.tile.expert} * (2 * args.n);
    const MatrixWords matrix(args.w + row_begin * args.w_row,
                             args.w_scale + row_begin * args.w_scale_row, 2 * args.n, args.w_row,
                             args.w_scale_row);
    const u32 column_begin = slice.tile.n * kColumns + slice.column * kWaveColumns,
              count = slice.columns;
    ring.issue(
        number, weights, matrix,
        [&](u32 wave, u32 tile) {
          const u32 column = column_begin + wave * kWaveColumns;
          return TileOrigin{column + tile / 2 * args.n + tile % 2 * kTileRows, step,
                            column < args.n};
        },
        count);
    issued += slice.tile.rows > 0;
    if (++step == args.steps) step = 0, slice = slices.next();
    return count;
  };
#pragma unroll
  for (u32 i = 0; i < kPrefetch; ++i) in_flight[i] = issue_next(i);
  for (u32 i = 0; i < issued; ++i) {
    u32 trailing = 0;
#pragma unroll
    for (u32 a = 1; a < kPrefetch; ++a) trailing += in_flight[a], in_flight[a - 1] = in_flight[a];
    wait_vmcnt_dynamic<Weights::kLoads, (kPrefetch - 1) * kNWaves>(readfirstlane(trailing));
    s_barrier();  // item i is in LDS, and all waves have read the one before
    in_flight[kPrefetch - 1] = issue_next(i + kPrefetch);
  }
  wait_vmcnt<0>();  // LDS must not be released before
}

// Issues the loads of a slice's token list to LDS.
__device__ inline void issue_list(const ExpertTile& tile, const GateUpArgs& args) {
  const bool is_list = tile.rows > 0 && tile.expert < args.routed;
  const U32x4 list = make_buffer_words(args.lists + u64{is_list ? tile.expert : 0} * args.m,
                                       is_list ? args.m * sizeof(u32) : 0);
  const u32 lds_dst = lds_address((LdsBytes*)((RFOPS_LDS Lds*)&lds)->list);
  const u32 lane = lane_id() * sizeof(u32);
  constexpr u32 kFullLoads = kRows / kWaveSize, kTailLanes = kRows % kWaveSize;
#pragma unroll
  for (u32 i = 0; i < kFullLoads; ++i) {
    buffer_load_lds_b32<kWaveSize>(list, lane, (tile.row + i * kWaveSize) * sizeof(u32),
                                   lds_dst + i * kWaveSize * sizeof(u32));
  }
  if constexpr (kTailLanes > 0) {
    buffer_load_lds_b32<kTailLanes>(list, lane, (tile.row + kFullLoads * kWaveSize) * sizeof(u32),
                                    lds_dst + kFullLoads * kWaveSize * sizeof(u32));
  }
}
// Returns the loader of a slice's rows, from its list in LDS.
__device__ inline Rows rows_of(const ExpertTile& tile, const GateUpArgs& args) {
  const bool is_list = tile.expert < args.routed;
  Rows rows(args.x, args.x_scale, args.m, args.steps);
  rows.load_indices([](u32 row) { return ((RFOPS_LDS Lds*)&lds)->list[row < kRows ? row : 0]; });
  sched_barrier();  // all reads are issued before the first wait
  rows.init_offsets([&](u32 row, u32 listed) {
    if (row >= tile.rows) return kOutOfBounds;
    return is_list ? listed / kTopK : tile.row + row;
  });
  return rows;
}

// Runs the producer of rows, K-step by K-step.
__device__ inline void run_row_producer(TileSlices slices, const GateUpArgs& args) {
  constexpr u32 kPrefetch = kRowStages - 1, kLoadsPerWait = 4;
  TileSlice slice = slices.next(), next_slice = slices.next();
  issue_list(slice.tile, args);
  wait_vmcnt<0>();
  Rows rows = rows_of(slice.tile, args);
  wait_lgkmcnt();
  issue_list(next_slice.tile, args);
  u32 step = 0, issued = 0;
  u32 in_flight[kPrefetch];  // loads of the items in flight
  const auto issue_next = [&](u32 number) {
    const u32 count = slice.tile.rows;
    rows.issue_step(rows_at(number), step, 0, count);
    issued += count > 0;
    if (++step == args.steps) {
      step = 0, slice = next_slice, next_slice = slices.next();
      if (args.steps < kRowStages) wait_vmcnt<0>();  // for the list; else a later wait covered it
      rows = rows_of(slice.tile, args);
      wait_lgkmcnt();
      issue_list(next_slice.tile, args);
    }
    return Rows::loads_of(count);
  };
#pragma unroll
  for (u32 i = 0; i < kPrefetch; ++i) in_flight[i] = issue_next(i);
  for (u32 i = 0; i < issued; ++i) {
    u32 trailing = 0;
#pragma unroll
    for (u32 a = 1; a < kPrefetch; ++a) trailing += in_flight[a], in_flight[a - 1] = in_flight[a];
    wait_vmcnt_dynamic<kLoadsPerWait, (kPrefetch - 1) * Rows::kMaxLoads / kLoadsPerWait>(
        readfirstlane(trailing / kLoadsPerWait));
    s_barrier();  // item i is in LDS, and all waves have read the one before
    in_flight[kPrefetch - 1] = issue_next(i + kPrefetch);
  }
  wait_vmcnt<0>();
}

// Position of a wave; waves of the same columns are on different SIMDs.
__device__ inline u32 wave_n() { return wave_id() / kMWaves; }
__device__ inline u32 wave_m() { return wave_id() % kMWaves; }

// Multiplies a K-step of a wave's kRowTiles row tiles; without any, only joins the barrier.
template <u32 kRowTiles>
__device__ inline void multiply(F32x4 (&sums)[kRowTiles > 0 ? kRowTiles : 1][kTiles], u32 item,
                                u32 step, const Ring& ring, const Weights& weights) {
  wait_lgkmcnt();
  s_barrier();
  if constexpr (kRowTiles > 0) {
    const u32 lane = lane_id(), row = lane % kTileRows, lane_chunk = lane / kTileRows;
    const LdsBytes* const rows = rows_at(item);
    typename Weights::Fragments fragments;
    ring.read(fragments, item, wave_n(), weights, step, 0);
    const auto read = [&](u32 i, u32 half) {
      const LdsBytes* const row_data = rows + (wave_m() + i * kMWaves) * (kTileRows * kRowBytes);
      return lds_load_b128(row_data + lds_offset_mxfp4(row, lane_chunk + half * (kRowChunks / 2)));
    };
    const auto read_scales = [&](u32 i) {
      const u32 scale_idx = ((wave_m() + i * kMWaves) * kTileRows + row) * 4 + lane_chunk;
      return Scales::load(rows + Rows::kScalesOffset + scale_idx * Rows::Scales::kScalesPerLane);
    };
    U32x4 x[2] = {read(0, 0), read(0, 1)};
    Scales scales = read_scales(0);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {  // each half is replaced by the next tile's when used
      const Scales current_scales = scales;
      if (i + 1 < kRowTiles) scales = read_scales(i + 1);
      multiply_half<Weights, 0, 0>(sums[i], fragments, x, current_scales);
      if (i + 1 < kRowTiles) x[0] = read(i + 1, 0);
      sched_barrier();
      multiply_half<Weights, 0, 1>(sums[i], fragments, x, current_scales);
      if (i + 1 < kRowTiles) x[1] = read(i + 1, 1);
      sched_barrier();
    }
  }
}

struct Out {
  u8 *rows, *scales;
  u32 n, steps;
};

// Computes a slice, of which this wave has `row_tiles` row tiles, from column `column` on.
template <u32 kRowTiles>
__device__ inline void compute_slice(const ExpertTile& tile, u32 row_tiles, u32 column, u32& item,
                                     u32 steps, const Ring& ring, const Weights& weights,
                                     const Out& out) {
  if (kRowTiles > 0 && row_tiles < kRowTiles) {
    return compute_slice<(kRowTiles > 0 ? kRowTiles - 1 : 0)>(tile, row_tiles, column, item, steps,
                                                              ring, weights, out);
  }
  F32x4 sums[kRowTiles > 0 ? kRowTiles : 1][kTiles] = {};
  for (u32 step = 0; step < steps; ++step) multiply<kRowTiles>(sums, item++, step, ring, weights);
  if constexpr (kRowTiles > 0) {
    const u32 row_bytes = out.steps * kRowBytes;
    const u32 scale_bytes = out.steps * Rows::Scales::kStepBlocks;
    const QuantisedRows<Half, Format, RFOPS_OUT_CHUNK, kTiledH> h_rows(
        out.rows + u64{tile.global_row} * row_bytes,
        out.scales + u64{tile.global_row} * scale_bytes, tile.rows, row_bytes, scale_bytes);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      const u32 row = (wave_m() + i * kMWaves) * kTileRows + lane_id() % kTileRows;
      h_rows.store({sums[i][0], sums[i][1]}, {sums[i][2], sums[i][3]}, row, column / kMxBlock);
      sched_barrier();
    }
  }
}

// Runs a consumer wave.
__device__ inline void run_consumer(TileSlices slices, const Ring& ring, const Weights& weights,
                                    u32 steps, const Out& out) {
  u32 item = 0;
  for (TileSlice slice = slices.next(); slice.tile.rows > 0; slice = slices.next()) {
    const u32 column = slice.tile.n * kColumns + (slice.column + wave_n()) * kWaveColumns;
    const u32 tiles = (slice.tile.rows + kTileRows - 1) / kTileRows;
    const bool in_bounds = wave_n() < slice.columns && column < out.n && wave_m() < tiles;
    const u32 row_tiles = in_bounds ? (tiles - wave_m() + kMWaves - 1) / kMWaves : 0;
    compute_slice<kMaxRowTiles>(slice.tile, readfirstlane(row_tiles), column, item, steps, ring,
                                weights, out);
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_gate_up(u32* __restrict__ counts,  // [routed]
               u32 m, u32 routed, u32 experts, u32 n, u32 k, u32 out_steps,
               u32 groups,                                  // a multiple of 8
               const u32* __restrict__ lists,               // [routed, M]
               const u8* __restrict__ x,                    // [m, steps, 128]
               const u8* __restrict__ x_scale,              // [m, blocks of a row]
               const u8* __restrict__ w,                    // [E, 2 N, K]
               const u8* __restrict__ w_scale,              // [E, 2 N, K / 32]
               u32* __restrict__ offsets,                   // [E + 1]; with tiled h the counts
               u8* __restrict__ out,                        // [rows, out_steps, 128]
               u8* __restrict__ out_scale,                  // [rows, blocks of a row]
               u32 w_row, u32 w_scale_row) {                // bytes
  if (wave_id() >= kConsumerWaves) set_wave_priority<3>();  // all other waves wait for producers
  const u32 steps = (k + Format::kStepK - 1) / Format::kStepK;
  // The padding columns of h are computed too, from out-of-range weights, which are zeros.
  const u32 columns = out_steps * Format::kStepK;
  const u32 n_tiles = (columns + kColumns - 1) / kColumns;
  const Experts scheduler(experts, TileSlices::scheduled_n_tiles(n_tiles), m,
                          m * (kTopK + experts - routed),
                          RowsOfExpert<1>(counts, nullptr, m, routed, experts));
  if constexpr (kTiledH) {
    if (workgroup_id_x() == 0 && wave_id() == 0) {
      scheduler.counts(experts, [&](u32 e, u32 rows) { offsets[e] = rows; });
    }
  } else {
    publish_offsets<1>(scheduler, counts, offsets, routed, experts);
  }
  const TileSlices slices(scheduler, n_tiles, routed, groups);
  const Weights weights(k);
  const Ring ring(((RFOPS_LDS Lds*)&lds)->ring);
  const GateUpArgs args = {x, x_scale, w, w_scale, lists, m, routed, n, w_row, w_scale_row, steps};
  if (wave_id() == kConsumerWaves) {
    run_weight_producer(slices, ring, weights, args);
  } else if (wave_id() > kConsumerWaves) {
    run_row_producer(slices, args);
  } else {
    run_consumer(slices, ring, weights, steps, {out, out_scale, columns, out_steps});
  }
}
