// kStage 1: out[r] = mx(silu(x[t] Wg) * (x[t] Wu))     kStage 2: out[r] = x[r] Wd
//
// r is a row of all experts, ordered by expert; t is the token of r by the expert's list, or r's
// index within the expert if the expert is shared; W are that expert's weights. Rows of stage 2 are
// stored in the order of assignments: row t * kTopK + j, then the rows of shared experts, expert by
// expert. x and W are MXFP4, or both MX-FP8 (mx_format.h); sums are fp32; h is rounded to Half and
// quantised from that; rows of stage 2 are Half.
//
// Layout. A workgroup processes tiles of 16 kMTiles rows of an expert by kColumns of the result.
// kNWaves waves are adjacent along the columns, kKWaves split K, interleaved by K-step. A wave has
// kTiles tiles of 16 weight rows, in stage 1 half of gate and half of up with the same columns, so
// that both values are in one lane. Weights are loaded to the registers of the wave that multiplies
// them; rows of x to LDS, a chunk of kChunk K-steps while another is multiplied. Weights are MFMA
// operand A: a lane has 4 adjacent columns of a row of out, and 4 lanes a block of 32. The number
// of row tiles is halved as long as the tile's rows fit.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, split by split, in any
// tile. Out-of-range rows are not accessed.
// Requires: rows of weights 16-byte aligned, shuffled scales 4-byte aligned.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mainloop.h"
#include "moe/mx_mfma.h"
#include "moe/mx_row_loader.h"
#include "moe/mx_silu_requant.h"
#include "moe/mx_weight_loader.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/wave/reduce.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_experts is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

// LDS-shuffled store of a wave's 64 columns to scattered rows, 16 rows at a time: 8 adjacent lanes
// store 128 bytes of a row. The LDS layout is that of cshuffle_16x16.h, which stores contiguous
// rows.
template <class Out>
class ScatteredStore {
 public:
  static constexpr u32 kRowSize = kRowBytes, kElements = kVecBytes / sizeof(Out);
  static constexpr u32 kBytes = kTileRows * kRowSize;  // of LDS per wave
  static constexpr u32 kNoRow = ~0u;
  static_assert(sizeof(Out) == 2, "64 columns are 128 bytes");

  // Row r is stored to row dst_rows[r] of out [.., n], from `column` on; rows with kNoRow are not
  // stored. n is a multiple of 8.
  __device__ ScatteredStore(Out* out, const RFOPS_LDS u32* dst_rows, u32 n, u32 column,
                            LdsBytes* lds)
      : out_(out),
        dst_rows_(dst_rows),
        n_(n),
        column_(column + lane_id() % kRowChunks * kElements),
        lds_(lds) {}

  // Writes the accumulator of 16 rows by the 16 columns from 16 `tile` on to LDS.
  __device__ void write(u32 tile, F32x4 sum) const {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 chunk_offset =
        ((tile * 2 + quarter / 2) ^ row % kRowChunks) * kVecBytes + (quarter % 2 ^ row / 8) * 8;
    *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + row * kRowSize + chunk_offset) =
        __builtin_convertvector(sum, Vec4<Out>);
  }

  // Stores the 16 rows in LDS to the destinations of rows 16 `tile` on.
  __device__ void store(u32 tile) const {
    constexpr u32 kRowsPerStore = kWaveSize / kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kTileRows / kRowsPerStore; ++i) {
      const u32 row = i * kRowsPerStore + lane_id() / kRowChunks;
      const u32 chunk = lane_id() % kRowChunks ^ row % kRowChunks;
      U32x4 chunk_data = lds_load_b128(lds_ + row * kRowSize + chunk * kVecBytes);
      if (i * kRowsPerStore >= 8)
        chunk_data = __builtin_shufflevector(chunk_data, chunk_data, 2, 3, 0, 1);
      const u32 dst_row = dst_rows_[tile * kTileRows + row];
      if (dst_row != kNoRow && column_ < n_) {
        *reinterpret_cast<U32x4*>(out_ + u64{dst_row} * n_ + column_) = chunk_data;
      }
    }
  }

 private:
  Out* out_;
  const RFOPS_LDS u32* dst_rows_;
  u32 n_, column_;
  LdsBytes* lds_;
};

using Half = RFOPS_HALF;                          // bf16 or f16
constexpr u32 kStage = RFOPS_STAGE;               // 1: gate, up and SiLU; 2: down
using Format = RFOPS_FORMAT<RFOPS_BUMP>;          // Mxfp4 or Mxfp8
constexpr u32 kMTiles = RFOPS_M_TILES;            // tiles of 16 rows of an expert
constexpr u32 kNWaves = RFOPS_N_WAVES;            // waves along the result's columns
constexpr u32 kKWaves = RFOPS_K_WAVES;            // waves that split K
constexpr u32 kChunk = RFOPS_CHUNK;               // K-steps of x in LDS at a time
constexpr u32 kPrefetch = RFOPS_AHEAD;            // K-steps of weights in flight
constexpr u32 kExpertsPerLane = RFOPS_EACH;       //
constexpr u32 kTopK = RFOPS_TOP_K;                // assignments per token
constexpr bool kThroughRegisters = kMTiles <= 2;  // how rows of x are loaded to LDS
constexpr u32 kTiles = 4;
constexpr u32 kWaves = kNWaves * kKWaves, kThreads = kWaves * kWaveSize;
constexpr u32 kRows = kMTiles * kTileRows;
constexpr u32 kWaveColumns = (kStage == 1 ? kTiles / 2 : kTiles) * kTileRows;
constexpr u32 kColumns = kNWaves * kWaveColumns;

// With RFOPS_TILED_H, h is stored in tiles of 16 rows of one expert each, as moe_mx_down reads it.
constexpr bool kTiledH = RFOPS_TILED_H;
using Experts = ExpertTileScheduler<kRows, kExpertsPerLane, kRows, kTiledH ? kTileRows : 1>;
using Rows = RowChunkLoader<Format, kRows, kChunk, kWaves, kStage == 1>;
using Scales = Rows::Scales;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Store = ScatteredStore<Half>;
constexpr u32 kNone = Store::kNoRow;
constexpr u32 kStepBlocks = Scales::kStepBlocks;

constexpr u32 kPartialBytes = kMTiles * kTiles * kWaveSize * sizeof(F32x4);  // per wave
union Memory {
  u8 chunk[2][Rows::kBytes];
  u8 partial[kKWaves > 1 ? kKWaves - 1 : 1][kNWaves][kKWaves > 1 ? kPartialBytes : 1];
};
struct Lds {
  Memory memory;
  u8 store[kNWaves][kStage == 2 ? Store::kBytes : 1];
  u32 dst_rows[kStage == 2 ? kRows : 1];  // rows of the result
  alignas(16) u8 staging[kWaves][Weights::kStagingBytes > 0 ? Weights::kStagingBytes : 1];
};
static_assert(sizeof(Lds) <= kLdsBytes, "a workgroup must fit a CU");
__shared__ __attribute__((aligned(16))) Lds lds;

using Loop =
    ExpertLoop<Rows, Weights, kTiles, kStage == 1 ? 2 : 1, kKWaves, kPrefetch, kThroughRegisters>;
using WaveWeights = Loop::WaveWeights;
// Reduces the partials of the waves that split K, in their order, into the first of them.
template <u32 kRowTiles>
__device__ inline void reduce_partials(F32x4 (&sums)[kRowTiles][kTiles], u32 wave_k, u32 wave_n) {
  if constexpr (kKWaves > 1) {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const u32 lane = lane_id();
    const auto partial_ptr = [&](u32 split, u32 tile) {
      return reinterpret_cast<RFOPS_LDS F32x4*>(memory->memory.partial[split][wave_n]) +
             tile * kWaveSize + lane;
    };
    s_barrier();
    if (wave_k > 0) {
#pragma unroll
      for (u32 i = 0; i < kRowTiles * kTiles; ++i)
        *partial_ptr(wave_k - 1, i) = sums[i / kTiles][i % kTiles];
    }
    workgroup_barrier();
    if (wave_k > 0) return;
#pragma unroll
    for (u32 i = 0; i < kRowTiles * kTiles; ++i) {
#pragma unroll
      for (u32 split = 0; split + 1 < kKWaves; ++split)
        sums[i / kTiles][i % kTiles] += *partial_ptr(split, i);
    }
  }
}

struct Out {
  u8* rows;    // stage 2: Half [rows, n]; stage 1: elements, `steps` K-steps per row
  u8* scales;  // stage 1
  u32 n, steps;
};

template <u32 kRowTiles>
__device__ inline void store(const F32x4 (&sums)[kRowTiles][kTiles], const Out& out,
                             const ExpertTile& tile, u32 n0, u32 wave_n) {
  const u32 lane = lane_id();
  if constexpr (kStage == 1) {
    if (n0 >= out.n) return;
    const u32 row_bytes = out.steps * kRowBytes, scale_bytes = out.steps * kStepBlocks;
    const QuantisedRows<Half, Format, RFOPS_OUT_CHUNK, kTiledH> rows_out(
        out.rows + u64{tile.global_row} * row_bytes,
        out.scales + u64{tile.global_row} * scale_bytes, tile.rows, row_bytes, scale_bytes);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      const F32x4(&acc)[kTiles] = sums[i];
      rows_out.store({acc[0], acc[1]}, {acc[2], acc[3]}, i * kTileRows + lane % kTileRows,
                     n0 / kMxBlock);
      sched_barrier();
    }
  } else {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const Store rows_out(reinterpret_cast<Half*>(out.rows), memory->dst_rows, out.n, n0,
                         memory->store[wave_n]);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) rows_out.write(t, sums[i][t]);
      rows_out.store(i);
    }
  }
}

template <u32 kRowTiles>
__device__ inline void make_tile(Loop& loop, const ExpertTile& tile, const Out& out, u32 column) {
  if constexpr (kRowTiles > 1) {
    constexpr u32 kFewer = kRowTiles % 2 == 0 ? kRowTiles / 2 : kRowTiles - 1;
    if (tile.rows <= kFewer * kTileRows) return make_tile<kFewer>(loop, tile, out, column);
  }
  F32x4 sums[kRowTiles][kTiles] = {};
  loop.multiply<kRowTiles>(sums);
  const u32 wave_k = wave_id() / kNWaves, wave_n = wave_id() % kNWaves;
  reduce_partials<kRowTiles>(sums, wave_k, wave_n);
  if (wave_k == 0) store<kRowTiles>(sums, out, tile, column, wave_n);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_experts(u32* __restrict__ counts,  // [routed]; stage 2 leaves them 0
               u32 m, u32 routed, u32 experts, u32 n, u32 k, u32 out_steps,
               u32 groups,                      // a multiple of 8
               const u32* __restrict__ lists,   // [routed, M]; stage 1
               const u8* __restrict__ x,        // [rows, steps, 128]
               const u8* __restrict__ x_scale,  // [rows, blocks of a row]
               const u8* __restrict__ w,        // [E, N or 2 N, K]
               const u8* __restrict__ w_scale,  // [E, N or 2 N, K / 32]
               u32* __restrict__ offsets,   // [E + 1]; written by stage 1; with tiled h the counts
               u8* __restrict__ out,        // stage 1: [rows, out_steps, 128]; 2: Half [rows, N]
               u8* __restrict__ out_scale,  // stage 1: [rows, blocks of a row]
               u32 w_row, u32 w_scale_row) {  // bytes
  const u32 steps = (k + Format::kStepK - 1) / Format::kStepK;
  // The padding columns of h are computed too, from out-of-range weights, which are zeros.
  const u32 columns = kStage == 1 ? out_steps * Format::kStepK : n;
  const u32 all_rows = m * (kTopK + experts - routed);
  const Experts scheduler(experts, (columns + kColumns - 1) / kColumns, m, all_rows,
                          RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  if constexpr (kTiledH) {
    if (workgroup_id_x() == 0 && wave_id() == 0) {
      scheduler.counts(experts, [&](u32 e, u32 rows) { offsets[e] = rows; });
    }
  } else {
    publish_offsets<kStage>(scheduler, counts, offsets, routed, experts);
  }
  const Weights weights(k);
  const Out result = {out, out_scale, columns, out_steps};
  const u32 wave_n = wave_id() % kNWaves, wave_k = wave_id() / kNWaves;
  for_each_tile(scheduler, routed, groups, [&](const ExpertTile& tile) {
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* const list = lists + u64{tile.expert} * m + tile.row;
    const u32 num_rows = kStage == 1 ? m : tile.rows;
    const u64 x_row_begin = kStage == 1 ? 0 : tile.global_row;
    Rows rows_loader(x + x_row_begin * (steps * kRowBytes),
                     x_scale + x_row_begin * (steps * kStepBlocks), num_rows, steps);
    const Buffer listed = make_buffer(list, is_list ? tile.rows * sizeof(u32) : 0);
    rows_loader.load_indices([&](u32 row) {
      return kStage == 1 ? buffer_load_dwords<1>(listed, row * sizeof(u32), 0).dword[0] : row;
    });
    sched_barrier();  // the loads of the list are issued before those of weights
    const u32 matrix_rows = kStage == 1 ? 2 * n : n;
    const u64 row_begin = u64{tile.expert} * matrix_rows;
    const WaveWeights wave_weights = {
        {w + row_begin * w_row, w_scale + row_begin * w_scale_row, matrix_rows, w_row, w_scale_row},
        tile.n * kColumns + wave_n * kWaveColumns,
        n,
        steps};
    constexpr u32 kRowsPerThread = kStage == 2 ? (kRows + kThreads - 1) / kThreads : 0;
    u32 list_rows[kRowsPerThread > 0 ? kRowsPerThread
                                     : 1];  // rows of the result; loaded in advance
#pragma unroll
    for (u32 i = 0; i < kRowsPerThread; ++i) {
      const u32 row = thread_id() + i * kThreads;
      list_rows[i] = kNone;
      if (row >= tile.rows) continue;
      const u32 shared_row = m * kTopK + (tile.expert - routed) * m + tile.row + row;
      list_rows[i] = tile.expert < routed ? list[row] : shared_row;
      if (list_rows[i] >= all_rows) list_rows[i] = kNone;  // an invalid list entry
    }
    sched_barrier();
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    Loop loop(weights, wave_weights, rows_loader, wave_k, memory->memory.chunk[0],
              memory->staging[wave_id()]);
    loop.begin();
    rows_loader.init_offsets([&](u32 row, u32 word) {
      if (row >= tile.rows) return kOutOfBounds;
      return is_list ? word / kTopK : kStage == 1 ? tile.row + row : row;
    });
    s_barrier();  // all waves have stored the previous tile from LDS
#pragma unroll
    for (u32 i = 0; i < kRowsPerThread; ++i) {
      const u32 row = thread_id() + i * kThreads;
      if (row < kRows) lds.dst_rows[row] = list_rows[i];
    }
    wait_lgkmcnt();
    make_tile<kMTiles>(loop, tile, result, wave_weights.row);
  });
}
