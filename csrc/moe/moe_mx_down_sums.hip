// out[t] = sum over the experts e of t, shared ones too, of weight(t, e) * row(h[t, e], Wd of e)
//
// row(h, Wd) = Half(h Wd), as in moe_mx_experts.hip. The sums of all tokens stay in LDS, so that
// many tokens fit; moe_mx_down.hip, for few tokens, keeps rows. h and Wd are MXFP4, or both MX-FP8
// (mx_format.h); sums along K and over a token's experts are fp32.
//
// Layout. A workgroup computes kColumns columns of out and processes all experts in tiles of up to
// kRows rows of one. kWaves consumer waves share a tile's rows, 16 each; the rows of the next
// items, kItemSteps K-steps each, are in flight while an item is multiplied. The last wave is the
// producer: it loads weights, up to the ring's stages ahead, to a ring in LDS. A barrier before
// each item orders the sums of consecutive tiles. Weights are MFMA operand A: a lane has 4 adjacent
// columns.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, the rows of a token are
// added in the order of their experts, starting with an expert that depends on the columns.
// Out-of-range rows are not accessed.
// Requires: rows of weights and of out 16-byte aligned, shuffled scales 4-byte aligned; N a
// multiple of kColumns.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "moe/mx_weight_ring.h"
#include "moe/tile_table.h"
#include "moe/token_accumulators.h"
#include "rfops/chip/arch.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_down_sums is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using i64 = long long;
using Half = RFOPS_HALF;             // bf16 or f16
using Id = RFOPS_ID;                 // of ids: i32 or i64
using Format = RFOPS_FORMAT<0>;      // Mxfp4 or Mxfp8
constexpr u32 kTiles = RFOPS_TILES;  // tiles of 16 columns
constexpr u32 kSteps = RFOPS_STEPS;  // K-steps
constexpr u32 kWaves = RFOPS_WAVES;  // consumer waves
constexpr u32 kChunk = RFOPS_CHUNK;  // K-steps whose scales are contiguous
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = (kWaves + 1) * kWaveSize, kColumns = kTiles * kTileRows;
constexpr u32 kRows = kWaves * kTileRows;
constexpr u32 kItemSteps = kChunk < 2 ? kChunk : 2, kItems = kSteps / kItemSteps;  // of a tile
constexpr u32 kItemsPerChunk = kChunk / kItemSteps;
constexpr u32 kStages = 3;  // items in registers
static_assert(kSteps % kChunk == 0, "K must be whole chunks");

using Experts = ExpertTileScheduler<kRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Ring =
    WeightRing<Weights, kTiles, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, kItemSteps, RFOPS_SLOTS>;
using RowScaleLayout = ScaleLayout<Format, kChunk>;
using ItemScaleLayout =
    ScaleLayout<Format, kItemSteps>;  // a lane's scales of an item are contiguous
using Scales = LaneScales<ItemScaleLayout>;
constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * RowScaleLayout::kStepBlocks;

// LDS: the ring, sums [M, kColumns] fp32, weights [M, kTopK] of assignments, then the tile table.
extern __shared__ __attribute__((aligned(16))) u8 lds[];
using OutSums = TokenAccumulators<Half, kColumns, kTopK>;
__device__ inline OutSums token_sums(u32 m) { return {(LdsBytes*)lds + Ring::kBytes, m}; }
using Cursor = TileCursor<kItems>;

struct DownArgs {
  Buffer h, h_scale, lists;         // for all experts
  u32 m, routed, column, wave_row;  // the wave's first row of a tile
};

// A wave's rows of an item: 16, one row per lane.
struct Rows {
  static constexpr u32 kNone = ~0u;
  u32 wave_row, rows, number;  // the wave's first row, the tile's rows, the item of the tile
  u32 shared_token;            // token of the wave's first row if the expert is shared, else kNone
  U32x4 x[kItemSteps][2];
  Scales scales;
  u32 listed;  // the pair of this lane's row, if the expert is routed

  // Issues the same loads for any item, so that the compiler knows the wait counts.
  __device__ void load(const TileItem& item, const DownArgs& args) {
    const ExpertTile& tile = item.tile;
    wave_row = args.wave_row, rows = tile.rows, number = item.number;
    shared_token = tile.expert < args.routed ? kNone : tile.row + wave_row;
    const u32 lane = lane_id(), row = lane % kTileRows, row_begin = tile.global_row + wave_row;
    const u32 oob_bits = wave_row + row < rows ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 i = 0; i < 2 * kItemSteps; ++i) {
      constexpr u32 kPiece = kWaveSize * kVecBytes;
      x[i / 2][i % 2] = buffer_load_b128(args.h, (lane * kVecBytes | oob_bits) + i * kPiece,
                                         row_begin * kRowSize + number * (2 * kItemSteps * kPiece));
    }
    const u32 lane_offset = row * kRowScales + lane / kTileRows * RowScaleLayout::kScalesPerLane;
    const u32 item_offset = number / kItemsPerChunk * RowScaleLayout::kBlocks +
                            number % kItemsPerChunk * ItemScaleLayout::kScalesPerLane;
    scales =
        Scales::load(args.h_scale, lane_offset | oob_bits, row_begin * kRowScales + item_offset);
    const u32 list =
        tile.expert * args.m + tile.row + wave_row;  // out of range for a shared expert
    listed = buffer_load_dwords<1>(args.lists, row * sizeof(u32), list * sizeof(u32)).dword[0];
    sched_barrier();
  }
};

using Sums = F32x4[kTiles];

// Adds the rows of one tile to the accumulators of their tokens.
__device__ inline void add(const Sums& sums, const Rows& rows, u32 m) {
  const u32 lane = lane_id(), row = lane % kTileRows;
  if (rows.wave_row + row >= rows.rows) return;
  const bool is_routed = rows.shared_token == Rows::kNone;
  const u32 token = is_routed ? rows.listed / kTopK : rows.shared_token + row;
  if (token >= m) return;  // an invalid list entry
  const OutSums token_acc = token_sums(m);
  const f32 weight = is_routed ? token_acc.weight(rows.listed) : 1.0f;
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) token_acc.add(token, t * 4 + lane / kTileRows, weight, sums[t]);
}

// Multiplies item `number` and issues the loads of the rows of the item after the next. Half of the
// waves issue them before they multiply and half after, which keeps the memory pipe busy.
template <bool kLoadFirst>
__device__ inline void multiply(Sums& sums, const Rows& rows, Rows& prefetched, Cursor& cursor,
                                u32 number, const Ring& ring, const Weights& weights,
                                const DownArgs& args) {
  wait_lgkmcnt();  // the sums of the previous item are in LDS
  s_barrier();     // for all waves, and the weights of this item are in LDS
  const bool in_bounds = rows.wave_row < rows.rows;
  typename Weights::Fragments w[kItemSteps];
  if (in_bounds) {
#pragma unroll
    for (u32 i = 0; i < kItemSteps; ++i) {
      ring.read(w[i], number, i, weights, rows.number * kItemSteps + i, args.column);
    }
  }
  cursor.advance();
  sched_barrier();
  if constexpr (kLoadFirst) prefetched.load(cursor.current(), args);
  if (in_bounds) {
    if (rows.number == 0) {
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) sums[t] = {};
    }
    multiply_tiles<Weights, 0>(sums, w[0], rows.x[0], rows.scales);
    if constexpr (kItemSteps > 1) {
      multiply_tiles<Weights, 1>(sums, w[1], rows.x[1], rows.scales);
    }
    if (rows.number + 1 == kItems) add(sums, rows, args.m);
  }
  sched_barrier();
  if constexpr (!kLoadFirst) prefetched.load(cursor.current(), args);
}

// Runs a consumer wave.
template <bool kLoadFirst>
__device__ inline void run_consumer(const TileTable& table, u32 items, const Ring& ring,
                                    const Weights& weights, const DownArgs& args) {
  Cursor cursor(table, 0);
  Rows rows[kStages];
  Sums sums = {};
  rows[0].load(cursor.current(), args);
  cursor.advance();
  rows[1].load(cursor.current(), args);
  u32 i = 0;
  do {  // a single exit, because the compiler would otherwise wait for all loads in flight
    multiply<kLoadFirst>(sums, rows[0], rows[2], cursor, i, ring, weights, args);
    multiply<kLoadFirst>(sums, rows[1], rows[0], cursor, i + 1, ring, weights, args);
    multiply<kLoadFirst>(sums, rows[2], rows[1], cursor, i + 2, ring, weights, args);
    i += kStages;
  } while (i < items);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down_sums(const u32* __restrict__ rows_of,  // [E]
                 u32 m, u32 routed, u32 experts, u32 n,
                 const f32* __restrict__ weights,  // [M, kTopK]
                 const Id* __restrict__ ids,       // [M, kTopK]
                 const u8* __restrict__ h,         // [tiles of 16 rows, kSteps * 8, 16, 16 bytes]
                 const u8* __restrict__ h_scale,   // [rows, blocks of a row]
                 const u8* __restrict__ w,         // [E, N, K]
                 const u8* __restrict__ w_scale,   // [E, N, K / 32]
                 const u32* __restrict__ lists,    // [routed, M]
                 u32* __restrict__ counts,         // [routed]; left 0
                 Half* __restrict__ out,           // [M, N]
                 u32 k, u32 w_row, u32 w_scale_row) {  // bytes
  // An XCD has adjacent columns, which share cache lines of out.
  const u32 groups_per_xcd = (n / kColumns + kXcds - 1) / kXcds;
  const u32 number = workgroup_id_x() % kXcds * groups_per_xcd + workgroup_id_x() / kXcds;
  const u32 wave = wave_id(), column = number * kColumns;
  const OutSums sums = token_sums(m);
  if (wave < kWaves) sums.prepare(weights, ids, thread_id(), kWaves * kWaveSize);
  const Experts scheduler(experts, 1, m, m * (kTopK + experts - routed),
                          ExpertArray(rows_of, experts));
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
  if (number >= n / kColumns) return;
  const Weights loader(k);
  const Ring ring((LdsBytes*)lds);
  // Workgroups of an XCD start with different experts, so that what one reads is in L2 for others.
  const u32 first_expert = workgroup_id_x() / kXcds * experts / groups_per_xcd;
  const TileTable table((RFOPS_LDS TileWords*)sums.end(), scheduler.tiles(),
                        scheduler.tiles_before(first_expert));
  const u32 num_items = scheduler.tiles() > 0 ? scheduler.tiles() * kItems : 1;
  const u32 items = (num_items + kStages - 1) / kStages * kStages;
  if (wave == kWaves) table.fill(scheduler);
  workgroup_barrier();
  if (wave == kWaves) {
    ring.run_producer<Cursor>(table, items, loader, {w, w_scale, n, w_row, w_scale_row, column});
  } else {
    const u32 rows = m * (kTopK + experts - routed) + experts * (kTileRows - 1);
    const DownArgs args = {make_buffer(h, rows * kRowSize),
                           make_buffer(h_scale, rows * kRowScales),
                           make_buffer(lists, routed * m * sizeof(u32)),
                           m,
                           routed,
                           column,
                           wave * kTileRows};
    if (wave / 4 % 2 == 0) {  // both variants on each SIMD
      run_consumer<true>(table, items, ring, loader, args);
    } else {
      run_consumer<false>(table, items, ring, loader, args);
    }
  }
  workgroup_barrier();
  sums.store(out, n, column, thread_id(), kThreads);
}
