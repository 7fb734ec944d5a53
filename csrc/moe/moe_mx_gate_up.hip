// h[r] = mx(silu(x[t] Wg) * (x[t] Wu))
//
// Stage 1 of moe_mx_experts.hip with its bits, for experts with many rows, MXFP4, shuffled: weights
// are read once by one CU, which has all rows of an expert, and shared by its waves through LDS. r
// goes over the rows of all experts, expert by expert; t is the token of r, by the expert's list,
// or r's own number where the expert is shared.
//
// Layout. A workgroup takes part after part: up to kRows rows of an expert by kColumns columns of
// h. kNWaves waves side by side along these, 32 columns of gate and of up each, times kMWaves that
// share out the sixteens of rows, multiply. One wave more brings weights, another one rows, steps
// of K ahead of those that multiply, in the order of the parts: the next part's are on their way
// while this one's h is made. All meet before each step. Weights are operand A: a lane has 4
// neighbours of a row of h, and 4 lanes a block of 32.
//
// Promises. Deterministic: a row's sums go along K, wherever it lies. Memory that is not there is
// not touched. Weights are aligned to 16 bytes, scales to 4; K is in 256s; up to 64 experts.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "moe/mx_silu_requant.h"
#include "moe/mx_weight_ring.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_gate_up is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Half = RFOPS_HALF;            // bf16 or f16
using Format = Mxfp4<RFOPS_BUMP>;   //
constexpr u32 kTopK = RFOPS_TOP_K;  // choices of a token
constexpr bool kTiledH = RFOPS_TILED_H;
constexpr u32 kMTiles = 9;                // tiles of 16 rows of an expert: what fits in LDS
constexpr u32 kSlots = 3, kRowSlots = 3;  // steps of weights and of rows in LDS
constexpr u32 kMultiply = 8, kNWaves = 4, kMWaves = kMultiply / kNWaves;
constexpr u32 kThreads = (kMultiply + 2) * kWaveSize;
constexpr u32 kTiles = 4, kQRowsPerWave = kTiles / 2 * kTileRows,
              kColumns = kNWaves * kQRowsPerWave;
constexpr u32 kRows = kMTiles * kTileRows;
constexpr u32 kMostOwn = (kMTiles + kMWaves - 1) / kMWaves;  // tiles of rows of a wave

using Experts = ExpertTileScheduler<kRows, 1, kTileRows, kTiledH ? kTileRows : 1>;
using Parts = ExpertParts<Experts, kNWaves, kTileRows>;
using Rows = RowChunkLoader<Format, kRows, 1, 1, true>;
using Scales = LaneScales<Rows::Scales>;
using Weights = WeightLoader<Format, true, true, false, kTiles>;
using Ring = WeightRing<Weights, kTiles, true, true, kNWaves, kSlots>;  // a step of each column's

struct Lds {
  u8 rows[kRowSlots][Rows::kBytes];
  u32 list[kRows];  // of the next part's rows
  alignas(16) u8 ring[Ring::kBytes];
};
static_assert(sizeof(Lds) <= kLdsBytes, "a workgroup fits a CU");
__shared__ __attribute__((aligned(16))) Lds lds;
__device__ inline LdsBytes* rows_at(u32 item) {
  return ((RFOPS_LDS Lds*)&lds)->rows[item % kRowSlots];
}

struct Given {
  const u8 *x, *x_scale, *w, *w_scale;
  const u32* lists;
  u32 m, routed, n, w_row, w_scale_row, steps;
};

// Brings weights, items in the order of the parts; as many steps of each as the part has columns.
__device__ inline void bring_weights(Parts parts, const Ring& ring, const Weights& weights,
                                     const Given& given) {
  constexpr u32 kAhead = kSlots - 1;
  RowSlice part = parts.next();
  u32 step = 0, brought = 0;
  u32 on_way[kAhead];  // steps of the items that are on their way
  const auto issue_next = [&](u32 number) {
    const u64 before = u64{part.tile.expert} * (2 * given.n);
    const MatrixWords from(given.w + before * given.w_row,
                           given.w_scale + before * given.w_scale_row, 2 * given.n, given.w_row,
                           given.w_scale_row);
    const u32 first = part.tile.n * kColumns + part.column * kQRowsPerWave, count = part.columns;
    ring.issue(
        number, weights, from,
        [&](u32 wave, u32 tile) {
          const u32 column = first + wave * kQRowsPerWave;
          return RingPlace{column + tile / 2 * given.n + tile % 2 * kTileRows, step,
                           column < given.n};
        },
        count);
    brought += part.tile.rows > 0;
    if (++step == given.steps) step = 0, part = parts.next();
    return count;
  };
#pragma unroll
  for (u32 i = 0; i < kAhead; ++i) on_way[i] = issue_next(i);
  for (u32 i = 0; i < brought; ++i) {
    u32 behind = 0;
#pragma unroll
    for (u32 a = 1; a < kAhead; ++a) behind += on_way[a], on_way[a - 1] = on_way[a];
    wait_vmcnt_dynamic<Weights::kLoads, (kAhead - 1) * kNWaves>(readfirstlane(behind));
    s_barrier();  // item i is there, and the one before has been read
    on_way[kAhead - 1] = issue_next(i + kAhead);
  }
  wait_vmcnt<0>();  // LDS is not given back before
}

// The list of a part's rows, on its way to LDS.
__device__ inline void bring_list(const ExpertTile& tile, const Given& given) {
  const bool is_list = tile.rows > 0 && tile.expert < given.routed;
  const U32x4 list = make_buffer_words(given.lists + u64{is_list ? tile.expert : 0} * given.m,
                                       is_list ? given.m * sizeof(u32) : 0);
  const u32 to = lds_address((LdsBytes*)((RFOPS_LDS Lds*)&lds)->list);
  const u32 lane = lane_id() * sizeof(u32);
  constexpr u32 kWhole = kRows / kWaveSize, kLeft = kRows % kWaveSize;
#pragma unroll
  for (u32 i = 0; i < kWhole; ++i) {
    buffer_load_lds_b32<kWaveSize>(list, lane, (tile.row + i * kWaveSize) * sizeof(u32),
                                   to + i * kWaveSize * sizeof(u32));
  }
  if constexpr (kLeft > 0) {
    buffer_load_lds_b32<kLeft>(list, lane, (tile.row + kWhole * kWaveSize) * sizeof(u32),
                               to + kWhole * kWaveSize * sizeof(u32));
  }
}
// Where a part's rows lie, by its list in LDS.
__device__ inline Rows rows_of(const ExpertTile& tile, const Given& given) {
  const bool is_list = tile.expert < given.routed;
  Rows rows(given.x, given.x_scale, given.m, given.steps);
  rows.ask([](u32 row) { return ((RFOPS_LDS Lds*)&lds)->list[row < kRows ? row : 0]; });
  sched_barrier();  // all of them, then what waits for them
  rows.scale_and_mask([&](u32 row, u32 listed) {
    if (row >= tile.rows) return kOutOfBounds;
    return is_list ? listed / kTopK : tile.row + row;
  });
  return rows;
}

// Brings rows, step by step.
__device__ inline void bring_rows(Parts parts, const Given& given) {
  constexpr u32 kAhead = kRowSlots - 1, kEach = 4;
  RowSlice part = parts.next(), later = parts.next();
  bring_list(part.tile, given);
  wait_vmcnt<0>();
  Rows rows = rows_of(part.tile, given);
  wait_lgkmcnt();
  bring_list(later.tile, given);
  u32 step = 0, brought = 0;
  u32 on_way[kAhead];  // loads of the items that are on their way
  const auto issue_next = [&](u32 number) {
    const u32 count = part.tile.rows;
    rows.issue_step(rows_at(number), step, 0, count);
    brought += count > 0;
    if (++step == given.steps) {
      step = 0, part = later, later = parts.next();
      if (given.steps < kRowSlots) wait_vmcnt<0>();  // its list; else a step since was waited for
      rows = rows_of(part.tile, given);
      wait_lgkmcnt();
      bring_list(later.tile, given);
    }
    return Rows::loads_of(count);
  };
#pragma unroll
  for (u32 i = 0; i < kAhead; ++i) on_way[i] = issue_next(i);
  for (u32 i = 0; i < brought; ++i) {
    u32 behind = 0;
#pragma unroll
    for (u32 a = 1; a < kAhead; ++a) behind += on_way[a], on_way[a - 1] = on_way[a];
    wait_vmcnt_dynamic<kEach, (kAhead - 1) * Rows::kMostLoads / kEach>(
        readfirstlane(behind / kEach));
    s_barrier();  // item i is there, and the one before has been read
    on_way[kAhead - 1] = issue_next(i + kAhead);
  }
  wait_vmcnt<0>();
}

// A wave's place, such that waves of the same columns are on SIMDs of their own.
__device__ inline u32 wave_n() { return wave_id() / kMWaves; }
__device__ inline u32 wave_m() { return wave_id() % kMWaves; }

// A step of K of all kOwn tiles of rows of a wave; none: it meets the others.
template <u32 kOwn>
__device__ inline void multiply(F32x4 (&sums)[kOwn > 0 ? kOwn : 1][kTiles], u32 item, u32 step,
                                const Ring& ring, const Weights& weights) {
  wait_lgkmcnt();
  s_barrier();
  if constexpr (kOwn > 0) {
    const u32 lane = lane_id(), row = lane % kTileRows, of_row = lane / kTileRows;
    const LdsBytes* const rows = rows_at(item);
    typename Weights::Held held;
    ring.read(held, item, wave_n(), weights, step, 0);
    const auto read = [&](u32 i, u32 half) {
      const LdsBytes* const at = rows + (wave_m() + i * kMWaves) * (kTileRows * kRowBytes);
      return lds_load_b128(at + lds_offset_mxfp4(row, of_row + half * (kRowChunks / 2)));
    };
    const auto read_scales = [&](u32 i) {
      const u32 at = ((wave_m() + i * kMWaves) * kTileRows + row) * 4 + of_row;
      return Scales::from(rows + Rows::kScalesAt + at * Rows::Scales::kScalesPerLane);
    };
    U32x4 x[2] = {read(0, 0), read(0, 1)};
    Scales scales = read_scales(0);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {  // the next tile's halves come where this one's were
      const Scales own = scales;
      if (i + 1 < kOwn) scales = read_scales(i + 1);
      multiply_half<Weights, 0, 0>(sums[i], held, x, own);
      if (i + 1 < kOwn) x[0] = read(i + 1, 0);
      sched_barrier();
      multiply_half<Weights, 0, 1>(sums[i], held, x, own);
      if (i + 1 < kOwn) x[1] = read(i + 1, 1);
      sched_barrier();
    }
  }
}

struct Out {
  u8 *rows, *scales;
  u32 n, steps;
};

// A part, of which this wave has `own` tiles of rows, from column `column` on.
template <u32 kOwn>
__device__ inline void make_part(const ExpertTile& tile, u32 own, u32 column, u32& item, u32 steps,
                                 const Ring& ring, const Weights& weights, const Out& out) {
  if (kOwn > 0 && own < kOwn) {
    return make_part<(kOwn > 0 ? kOwn - 1 : 0)>(tile, own, column, item, steps, ring, weights, out);
  }
  F32x4 sums[kOwn > 0 ? kOwn : 1][kTiles] = {};
  for (u32 step = 0; step < steps; ++step) multiply<kOwn>(sums, item++, step, ring, weights);
  if constexpr (kOwn > 0) {
    const u32 row_bytes = out.steps * kRowBytes;
    const u32 scale_bytes = out.steps * Rows::Scales::kStepBlocks;
    const QuantisedRows<Half, Format, RFOPS_OUT_CHUNK, kTiledH> to(
        out.rows + u64{tile.first} * row_bytes, out.scales + u64{tile.first} * scale_bytes,
        tile.rows, row_bytes, scale_bytes);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 row = (wave_m() + i * kMWaves) * kTileRows + lane_id() % kTileRows;
      to.store({sums[i][0], sums[i][1]}, {sums[i][2], sums[i][3]}, row, column / kMxBlock);
      sched_barrier();
    }
  }
}

// The waves that multiply.
__device__ inline void take(Parts parts, const Ring& ring, const Weights& weights, u32 steps,
                            const Out& out) {
  u32 item = 0;
  for (RowSlice part = parts.next(); part.tile.rows > 0; part = parts.next()) {
    const u32 column = part.tile.n * kColumns + (part.column + wave_n()) * kQRowsPerWave;
    const u32 tiles = (part.tile.rows + kTileRows - 1) / kTileRows;
    const bool is_there = wave_n() < part.columns && column < out.n && wave_m() < tiles;
    const u32 own = is_there ? (tiles - wave_m() + kMWaves - 1) / kMWaves : 0;
    make_part<kMostOwn>(part.tile, readfirstlane(own), column, item, steps, ring, weights, out);
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_gate_up(u32* __restrict__ counts,  // [routed]
               u32 m, u32 routed, u32 experts, u32 n, u32 k, u32 out_steps,
               u32 groups,                             // a multiple of 8
               const u32* __restrict__ lists,          // [routed, M]
               const u8* __restrict__ in,              // [m, steps, 128]
               const u8* __restrict__ in_scale,        // [m, a row's blocks]
               const u8* __restrict__ w,               // [E, 2 N, K]
               const u8* __restrict__ w_scale,         // [E, 2 N, K / 32]
               u32* __restrict__ offsets,              // [E + 1]; of tiled h the counts
               u8* __restrict__ out,                   // [rows, out_steps, 128]
               u8* __restrict__ out_scale,             // [rows, a row's blocks]
               u32 w_row, u32 w_scale_row) {           // bytes
  if (wave_id() >= kMultiply) set_wave_priority<3>();  // all others wait for what these bring
  const u32 steps = (k + Format::kStepK - 1) / Format::kStepK;
  // Columns of h that pad its rows are made too, of weights that are not there: zeros.
  const u32 columns = out_steps * Format::kStepK;
  const u32 n_tiles = (columns + kColumns - 1) / kColumns;
  const Experts all(experts, (n_tiles + kXcds - 1) / kXcds, m, m * (kTopK + experts - routed),
                    RowsOfExpert<1>(counts, nullptr, m, routed, experts));
  if constexpr (kTiledH) {
    if (workgroup_id_x() == 0 && wave_id() == 0) {
      all.counts(experts, [&](u32 e, u32 rows) { offsets[e] = rows; });
    }
  } else {
    publish_offsets<1>(all, counts, offsets, routed, experts);
  }
  const Parts parts(all, groups);
  const Weights weights(k);
  const Ring ring(((RFOPS_LDS Lds*)&lds)->ring);
  const Given given = {in, in_scale, w, w_scale, lists, m, routed, n, w_row, w_scale_row, steps};
  if (wave_id() == kMultiply) {
    bring_weights(parts, ring, weights, given);
  } else if (wave_id() > kMultiply) {
    bring_rows(parts, given);
  } else {
    take(parts, ring, weights, steps, {out, out_scale, columns, out_steps});
  }
}
