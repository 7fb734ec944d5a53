// out[t] = sum over j of weights[t, j] * row(h[t, j], Wd of ids[t, j]) + the same of shared experts
//
// row(h, Wd) = Half(h Wd), bitwise equal to stage 2 of moe_mx_experts followed by moe_add_pairs,
// but rows are not written to memory. h and Wd are MXFP4, or both MX-FP8 (mx_format.h); sums along
// K and over a token's rows are fp32.
//
// Layout. A workgroup computes kColumns columns of out for all tokens and holds all their rows in
// LDS. Its waves share the rows of all experts: a wave multiplies kRowTiles tiles of 16 rows of one
// expert at a time by that expert's weights, with all of K in registers; the operands of its next
// tile are in flight meanwhile. The only barrier is after the last row, before the rows of each
// token are added. Weights are MFMA operand A: a lane has 4 adjacent columns of a row.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, the rows of a token are
// added in the order of its assignments. Out-of-range rows are not accessed.
// Requires: rows of weights and of out 16-byte aligned, shuffled scales 4-byte aligned; N a
// multiple of kColumns.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "moe/mx_weight_loader.h"
#include "moe/tile_table.h"
#include "moe/topk_weights.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/sync.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_down is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using i64 = long long;
using Half = RFOPS_HALF;                    // bf16 or f16
using Id = RFOPS_ID;                        // of ids: i32 or i64
using Format = RFOPS_FORMAT<0>;             // Mxfp4 or Mxfp8
constexpr u32 kTiles = RFOPS_TILES;         // tiles of 16 columns
constexpr u32 kRowTiles = RFOPS_ROW_TILES;  // tiles of 16 rows of an expert, at a time
constexpr u32 kSteps = RFOPS_STEPS;         // K-steps
constexpr u32 kWaves = RFOPS_WAVES;
constexpr u32 kChunk = RFOPS_CHUNK;  // K-steps whose scales are contiguous
constexpr u32 kTopK = RFOPS_TOP_K, kNumShared = RFOPS_SHARED;
constexpr u32 kThreads = kWaves * kWaveSize, kColumns = kTiles * kTileRows;
static_assert(kSteps % kChunk == 0, "K must be whole chunks");

using Experts = ExpertTileScheduler<kRowTiles * kTileRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using RowScaleLayout = ScaleLayout<Format, kChunk>;
using Scales = LaneScales<RowScaleLayout>;
constexpr u32 kPiece = kWaveSize * kVecBytes;  // bytes of half a K-step of a row tile
constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * RowScaleLayout::kStepBlocks;

// Loads complete in order, so rows, which come from L2, are loaded before weights if there are
// registers for both.
constexpr bool kRowsFirst =
    RFOPS_SHUFFLED && kSteps <= 2 && kWaves * kSteps * (kTiles + kRowTiles) <= 64;

// LDS: for row-major weights the staging buffer of each wave; then rows [all pairs, kColumns] of
// Half, where a pair is an assignment or a (token, shared expert).
extern __shared__ __attribute__((aligned(16))) u8 lds[];
constexpr u32 kPairSize = kColumns * sizeof(Half);
__device__ inline LdsBytes* pairs() { return (LdsBytes*)lds + kWaves * Weights::kStagingBytes; }

// The tile table follows in LDS.
__device__ inline RFOPS_LDS TileWords* tiles_at(u32 m) {
  return (RFOPS_LDS TileWords*)(pairs() + m * (kTopK + kNumShared) * kPairSize);
}

// Iterates over a wave's tiles; the read of the next one is in flight.
class Cursor {
 public:
  __device__ Cursor(const TileTable& table, u32 tile_idx)
      : table_(table), tile_idx_(tile_idx), next_(table.words(tile_idx)) {}
  __device__ ExpertTile next() {
    const ExpertTile tile = TileTable::tile(next_);
    next_ = table_.words(tile_idx_ += kWaves);
    return tile;
  }

 private:
  const TileTable& table_;
  u32 tile_idx_;
  TileWords next_;
};

struct DownArgs {
  Buffer h, h_scale, lists;  // for all experts
  const u8 *w, *w_scale;
  u32 m, routed, n, w_row, w_scale_row, column;
};

// Operands of a wave's tile: rows of one expert and its weights for this workgroup's columns.
struct TileOperands {
  ExpertTile tile;
  Weights::Fragments w[kSteps];
  U32x4 x[kRowTiles][kSteps][2];
  Scales scales[kRowTiles][kSteps / kChunk];
  u32 listed[kRowTiles];  // the pair of this lane's row, if the expert is routed

  // Issues the same loads for any tile, so that the compiler knows the wait counts.
  __device__ void load(const Weights& weights, const ExpertTile& next_tile, const DownArgs& args) {
    tile = next_tile;
    if constexpr (kRowsFirst) load_rows(args);
    sched_barrier();
    const u64 first_row = u64{tile.expert} * args.n;
    const MatrixBytes matrix(args.w + first_row * args.w_row,
                             args.w_scale + first_row * args.w_scale_row, args.n, args.w_row,
                             args.w_scale_row);
    load_weights<0>(weights, matrix, args.column, tile.rows > 0);
    if constexpr (!kRowsFirst) load_rows(args);
    sched_barrier();
  }

  __device__ void multiply(const Weights& weights, LdsBytes* staging, const DownArgs& args) {
    const u32 lane = lane_id(), row = lane % kTileRows;
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) weights.to_fragment(w[s], s, staging, args.column);
    u32 pair[kRowTiles];
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {  // all at once, otherwise the next loads wait for these
      const u32 expert_row = tile.row + r * kTileRows + row;
      const u32 shared_pair = args.m * kTopK + (tile.expert - args.routed) * args.m + expert_row;
      pair[r] = tile.expert < args.routed ? listed[r] : shared_pair;
      force_vgpr(pair[r]);
    }
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {
      if (r > 0 && r * kTileRows >= tile.rows) break;
      F32x4 sums[kTiles] = {};
      multiply_steps<0>(sums, r);
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t)
        force_vgpr(sums[t]);  // before lanes are masked for the store
      if (r * kTileRows + row >= tile.rows) continue;
      if (pair[r] >= args.m * (kTopK + kNumShared)) continue;  // an invalid list entry
      LdsBytes* const dst = pairs() + pair[r] * kPairSize + lane / kTileRows * sizeof(Vec4<Half>);
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) {
        *reinterpret_cast<RFOPS_LDS Vec4<Half>*>(dst + t * kTileRows * sizeof(Half)) =
            __builtin_convertvector(sums[t], Vec4<Half>);
      }
    }
    sched_barrier();
  }

 private:
  __device__ void load_rows(const DownArgs& args) {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 list = tile.expert * args.m + tile.row;  // out of range for a shared expert
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {
      const u32 row_begin = r * kTileRows,
                oob_bits = row_begin + row < tile.rows ? 0 : kOutOfBounds;
#pragma unroll
      for (u32 s = 0; s < 2 * kSteps; ++s) {
        x[r][s / 2][s % 2] =
            buffer_load_b128(args.h, lane * kVecBytes | oob_bits,
                             (tile.global_row + row_begin) * kRowSize + s * kPiece);
      }
#pragma unroll
      for (u32 c = 0; c < kSteps / kChunk; ++c) {
        const u32 lane_offset = row * kRowScales + c * RowScaleLayout::kBlocks +
                                quarter * RowScaleLayout::kScalesPerLane;
        scales[r][c] = Scales::load(args.h_scale, lane_offset | oob_bits,
                                    (tile.global_row + row_begin) * kRowScales);
      }
      listed[r] =
          buffer_load_dwords<1>(args.lists, row * sizeof(u32), (list + row_begin) * sizeof(u32))
              .dword[0];
    }
  }
  template <u32 kQ>
  __device__ void load_weights(const Weights& weights, const MatrixBytes& matrix, u32 column,
                               bool in_bounds) {
    if constexpr (kQ < kSteps * Weights::kLoads) {
      constexpr u32 kLoad = kQ % Weights::kLoads, kStep = kQ / Weights::kLoads;
      weights.load<kLoad>(w[kStep], matrix, column + Weights::tile_of(kLoad) * kTileRows, kStep,
                          in_bounds);
      load_weights<kQ + 1>(weights, matrix, column, in_bounds);
    }
  }
  template <u32 kS>
  __device__ void multiply_steps(F32x4 (&sums)[kTiles], u32 r) {
    if constexpr (kS < kSteps) {
      multiply_tiles<Weights, kS % kChunk>(sums, w[kS], x[r][kS], scales[r][kS / kChunk]);
      multiply_steps<kS + 1>(sums, r);
    }
  }
};

constexpr u32 kVec = kVecBytes / sizeof(Half), kRowVecs = kColumns / kVec;  // per row

// The assignments of a token, loaded in advance.
struct LoadedAssignments {
  Id id[kTopK];
  f32 weight[kTopK];

  __device__ void load(const f32* weights, const Id* ids, u32 token) {
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) {
      id[j] = ids[u64{token} * kTopK + j];
      weight[j] = weights[u64{token} * kTopK + j];
    }
    sched_barrier();
  }
  __device__ TopKAssignments<kTopK> assignments(u32 routed) const { return {weight, id, routed}; }
};

// Adds each token's rows and stores them, 16 bytes per thread. `assignments` are those of the
// thread's first token.
__device__ inline void add(Half* out, TopKAssignments<kTopK> assignments, const f32* weights,
                           const Id* ids, u32 m, u32 routed, u32 n, u32 column) {
  using Vec = Half __attribute__((ext_vector_type(kVec)));
  u32 i = thread_id();
  while (i < m * kRowVecs) {
    const u32 token = i / kRowVecs, vec = i % kRowVecs;
    Vec row[kTopK + kNumShared];
#pragma unroll
    for (u32 j = 0; j < kTopK + kNumShared; ++j) {
      const u32 pair = j < kTopK ? token * kTopK + j : m * j + token;
      row[j] =
          *reinterpret_cast<const RFOPS_LDS Vec*>(pairs() + pair * kPairSize + vec * kVecBytes);
    }
    *reinterpret_cast<Vec*>(out + u64{token} * n + column + vec * kVec) =
        sum_of_rows<kTopK, kNumShared>(row, assignments);
    i += kThreads;
    if (i >= m * kRowVecs) break;
    LoadedAssignments next;
    next.load(weights, ids, i / kRowVecs);
    assignments = next.assignments(routed);
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down(const u32* __restrict__ rows_of,  // [E]
            u32 m, u32 routed, u32 experts, u32 n,
            const f32* __restrict__ weights,      // [M, kTopK]
            const Id* __restrict__ ids,           // [M, kTopK]
            const u8* __restrict__ h,             // [tiles of 16 rows, kSteps * 8, 16, 16 bytes]
            const u8* __restrict__ h_scale,       // [rows, blocks of a row]
            const u8* __restrict__ w,             // [E, N, K]
            const u8* __restrict__ w_scale,       // [E, N, K / 32]
            const u32* __restrict__ lists,        // [routed, M]
            u32* __restrict__ counts,             // [routed]; left 0
            Half* __restrict__ out,               // [M, N]
            u32 k, u32 w_row, u32 w_scale_row) {  // bytes
  // An XCD has adjacent columns, which share cache lines of out.
  const u32 tiles_per_xcd = (n / kColumns + kXcds - 1) / kXcds;
  const u32 number = workgroup_id_x() % kXcds * tiles_per_xcd + workgroup_id_x() / kXcds;
  const u32 wave = wave_id();
  const Experts scheduler(experts, 1, m, m * (kTopK + kNumShared), ExpertArray(rows_of, experts));
  if (number >= n / kColumns) return;
  const Weights loader(k);
  const u32 column = number * kColumns;
  const u32 rows = m * (kTopK + kNumShared) + experts * (kTileRows - 1);
  const Buffer all_h = make_buffer(h, rows * kRowSize);
  const Buffer all_scales = make_buffer(h_scale, rows * kRowScales);
  const Buffer all_lists = make_buffer(lists, routed * m * sizeof(u32));
  const DownArgs args = {all_h,  all_scales, all_lists, w,           w_scale, m,
                         routed, n,          w_row,     w_scale_row, column};
  LdsBytes* const staging = (LdsBytes*)lds + wave * Weights::kStagingBytes;
  // Workgroups of an XCD start with different experts, so that what one reads is in L2 for others.
  const u32 tiles = scheduler.tiles(),
            tile_begin = workgroup_id_x() / kXcds * tiles / tiles_per_xcd;
  const u32 wave_tile = wave + tile_begin < tiles ? wave + tile_begin : wave + tile_begin - tiles;
  const ExpertTile tile = scheduler.tile(wave < tiles ? wave_tile : tiles);
  if (tiles <= kWaves) {
    TileOperands current;
    current.load(loader, tile, args);
    current.multiply(loader, staging, args);
  } else {
    TileOperands current, next;  // two variables, so that each has registers of its own
    current.load(loader, tile, args);
    const TileTable table(tiles_at(m), tiles, tile_begin);
    if (wave == 0) table.fill(scheduler);
    wait_lgkmcnt();
    s_barrier();
    Cursor cursor(table, wave + kWaves);
    do {  // a single exit, because the compiler would otherwise wait for all loads in flight
      next.load(loader, cursor.next(), args);
      current.multiply(loader, staging, args);
      current.load(loader, cursor.next(), args);
      next.multiply(loader, staging, args);
    } while (readfirstlane(current.tile.rows) > 0);
  }
  const u32 token = thread_id() / kRowVecs;
  const bool adds = wave * kWaveSize / kRowVecs < m;
  LoadedAssignments loaded;
  if (adds) loaded.load(weights, ids, token < m ? token : m - 1);
  TopKAssignments<kTopK> assignments = {};
  if (adds) assignments = loaded.assignments(routed), assignments.force_registers();
  workgroup_barrier();
  add(out, assignments, weights, ids, m, routed, n, column);
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
}
