// out[t] = sum over the experts e of t, shared ones too, of weight(t, e) * row(h[t, e], Wd of e)
//
// row(h, Wd) = Half(h Wd), as moe_mx_experts.hip gives it. Sums of all tokens stay in LDS, so that
// many tokens fit; moe_mx_down.hip, for few, keeps rows. h and Wd are MXFP4, or both MX-FP8
// (mx_format.h); sums along K and over a token's experts are fp32.
//
// Layout. A workgroup has kColumns columns of out and goes through all experts: tiles of up to
// kRows rows of one. kWaves waves share out a tile's rows in sixteens, and have those of the next
// item, kItemSteps steps of K, on their way while they multiply this one's; the last wave brings
// weights, kSlots items ahead, to a ring in LDS. All meet before each item, so that sums of one
// tile are added before those of the next. Weights are operand A: a lane has 4 neighbours of a row.
//
// Promises. Deterministic: a row's sums go along K, a token's rows are added in the order of their
// experts, from one on that the columns decide. Memory that is not there is not touched. Rows of
// weights and of out are aligned to 16 bytes, shuffled scales to 4; N is a multiple of kColumns.
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
constexpr u32 kTiles = RFOPS_TILES;  // of 16 columns
constexpr u32 kSteps = RFOPS_STEPS;  // of K
constexpr u32 kWaves = RFOPS_WAVES;  // that multiply
constexpr u32 kChunk = RFOPS_CHUNK;  // steps whose scales lie together
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = (kWaves + 1) * kWaveSize, kColumns = kTiles * kTileRows;
constexpr u32 kRows = kWaves * kTileRows;
constexpr u32 kItemSteps = kChunk < 2 ? kChunk : 2, kItems = kSteps / kItemSteps;  // of a tile
constexpr u32 kParts = kChunk / kItemSteps;  // items of a chunk
constexpr u32 kAtATime = 3;                  // items in registers
static_assert(kSteps % kChunk == 0, "chunks are whole");

using Experts = ExpertTileScheduler<kRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Ring =
    WeightRing<Weights, kTiles, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, kItemSteps, RFOPS_SLOTS>;
using Places = ScaleLayout<Format, kChunk>;
using ItemPlaces = ScaleLayout<Format, kItemSteps>;  // a lane's of an item lie together too
using Scales = LaneScales<ItemPlaces>;
constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * Places::kStepBlocks;

// The ring, sums [M, kColumns] fp32, weights [M, kTopK] of the choices, then the tiles there are.
extern __shared__ __attribute__((aligned(16))) u8 lds[];
using OutSums = TokenAccumulators<Half, kColumns, kTopK>;
__device__ inline OutSums sums_of(u32 m) { return {(LdsBytes*)lds + Ring::kBytes, m}; }
using Cursor = TileCursor<kItems>;

struct Given {
  Buffer h, h_scale, lists;    // of all experts
  u32 m, routed, column, own;  // the wave's first row of a tile
};

// A wave's rows of an item, on their way: 16, a row a lane.
struct Rows {
  static constexpr u32 kNone = ~0u;
  u32 own, rows, number;  // the wave's first row of those of the tile; which item of it
  u32 shared;             // token of the wave's first row, of a shared expert; else kNone
  U32x4 x[kItemSteps][2];
  Scales scales;
  u32 listed;  // which pair this lane's row is of, of a routed expert

  // The same loads whatever there is, so that the compiler knows how many are on their way.
  __device__ void load(const TileItem& item, const Given& given) {
    const ExpertTile& tile = item.tile;
    own = given.own, rows = tile.rows, number = item.number;
    shared = tile.expert < given.routed ? kNone : tile.row + own;
    const u32 lane = lane_id(), row = lane % kTileRows, first = tile.first + own;
    const u32 outside = own + row < rows ? 0 : kOutOfBounds;
#pragma unroll
    for (u32 i = 0; i < 2 * kItemSteps; ++i) {
      constexpr u32 kPiece = kWaveSize * kVecBytes;
      x[i / 2][i % 2] = buffer_load_b128(given.h, (lane * kVecBytes | outside) + i * kPiece,
                                         first * kRowSize + number * (2 * kItemSteps * kPiece));
    }
    const u32 of_lane = row * kRowScales + lane / kTileRows * Places::kScalesPerLane;
    const u32 of_item =
        number / kParts * Places::kBlocks + number % kParts * ItemPlaces::kScalesPerLane;
    scales = Scales::from(given.h_scale, of_lane | outside, first * kRowScales + of_item);
    const u32 list = tile.expert * given.m + tile.row + own;  // beyond all, of a shared expert
    listed = buffer_load_dwords<1>(given.lists, row * sizeof(u32), list * sizeof(u32)).dword[0];
    sched_barrier();
  }
};

using Sums = F32x4[kTiles];

// Rows of one tile, each to its token's sums.
__device__ inline void add(const Sums& sums, const Rows& rows, u32 m) {
  const u32 lane = lane_id(), row = lane % kTileRows;
  if (rows.own + row >= rows.rows) return;
  const bool is_routed = rows.shared == Rows::kNone;
  const u32 token = is_routed ? rows.listed / kTopK : rows.shared + row;
  if (token >= m) return;  // of a list that nobody wrote
  const OutSums to = sums_of(m);
  const f32 weight = is_routed ? to.weight(rows.listed) : 1.0f;
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) to.add(token, t * 4 + lane / kTileRows, weight, sums[t]);
}

// Item `number` of all, and rows of the one after the next on their way. Half of the waves ask for
// them before they multiply and half after, so that the memory pipe always has something to do.
template <bool kLoadFirst>
__device__ inline void multiply(Sums& sums, const Rows& rows, Rows& later, Cursor& cursor,
                                u32 number, const Ring& ring, const Weights& weights,
                                const Given& given) {
  wait_lgkmcnt();  // sums of the item before are added
  s_barrier();     // by all, and weights of this one are there
  const bool is_there = rows.own < rows.rows;
  typename Weights::Held w[kItemSteps];
  if (is_there) {
#pragma unroll
    for (u32 i = 0; i < kItemSteps; ++i) {
      ring.read(w[i], number, i, weights, rows.number * kItemSteps + i, given.column);
    }
  }
  cursor.advance();
  sched_barrier();
  if constexpr (kLoadFirst) later.load(cursor.here(), given);
  if (is_there) {
    if (rows.number == 0) {
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) sums[t] = {};
    }
    multiply_tiles<Weights, 0>(sums, w[0], rows.x[0], rows.scales);
    if constexpr (kItemSteps > 1) {
      multiply_tiles<Weights, 1>(sums, w[1], rows.x[1], rows.scales);
    }
    if (rows.number + 1 == kItems) add(sums, rows, given.m);
  }
  sched_barrier();
  if constexpr (!kLoadFirst) later.load(cursor.here(), given);
}

// Those that multiply.
template <bool kLoadFirst>
__device__ inline void take(const TileTable& all, u32 items, const Ring& ring,
                            const Weights& weights, const Given& given) {
  Cursor cursor(all, 0);
  Rows rows[kAtATime];
  Sums sums = {};
  rows[0].load(cursor.here(), given);
  cursor.advance();
  rows[1].load(cursor.here(), given);
  u32 i = 0;
  do {  // one way out, else the compiler waits for what is on its way
    multiply<kLoadFirst>(sums, rows[0], rows[2], cursor, i, ring, weights, given);
    multiply<kLoadFirst>(sums, rows[1], rows[0], cursor, i + 1, ring, weights, given);
    multiply<kLoadFirst>(sums, rows[2], rows[1], cursor, i + 2, ring, weights, given);
    i += kAtATime;
  } while (i < items);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down_sums(const u32* __restrict__ rows_of,  // [E]
                 u32 m, u32 routed, u32 experts, u32 n,
                 const f32* __restrict__ weights,  // [M, kTopK]
                 const Id* __restrict__ ids,       // [M, kTopK]
                 const u8* __restrict__ h,         // [tiles of 16 rows, kSteps * 8, 16, 16 bytes]
                 const u8* __restrict__ h_scale,   // [rows, a row's blocks]
                 const u8* __restrict__ w,         // [E, N, K]
                 const u8* __restrict__ w_scale,   // [E, N, K / 32]
                 const u32* __restrict__ lists,    // [routed, M]
                 u32* __restrict__ counts,         // [routed]; left 0
                 Half* __restrict__ out,           // [M, N]
                 u32 k, u32 w_row, u32 w_scale_row) {  // bytes
  // Columns of an XCD are neighbours, which share lines of out.
  const u32 share = (n / kColumns + kXcds - 1) / kXcds;
  const u32 number = workgroup_id_x() % kXcds * share + workgroup_id_x() / kXcds;
  const u32 wave = wave_id(), column = number * kColumns;
  const OutSums sums = sums_of(m);
  if (wave < kWaves) sums.prepare(weights, ids, thread_id(), kWaves * kWaveSize);
  const Experts all(experts, 1, m, m * (kTopK + experts - routed), ExpertArray(rows_of, experts));
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
  if (number >= n / kColumns) return;
  const Weights unit(k);
  const Ring ring((LdsBytes*)lds);
  // Workgroups of an XCD begin with different experts: what one has read is in L2 for the others.
  const u32 first_expert = workgroup_id_x() / kXcds * experts / share;
  const TileTable table((RFOPS_LDS TileWords*)sums.end(), all.tiles(),
                        all.tiles_before(first_expert));
  const u32 own = all.tiles() > 0 ? all.tiles() * kItems : 1;
  const u32 items = (own + kAtATime - 1) / kAtATime * kAtATime;
  if (wave == kWaves) table.fill(all);
  workgroup_barrier();
  if (wave == kWaves) {
    ring.run_producer<Cursor>(table, items, unit, {w, w_scale, n, w_row, w_scale_row, column});
  } else {
    const u32 rows = m * (kTopK + experts - routed) + experts * (kTileRows - 1);
    const Given given = {make_buffer(h, rows * kRowSize),
                         make_buffer(h_scale, rows * kRowScales),
                         make_buffer(lists, routed * m * sizeof(u32)),
                         m,
                         routed,
                         column,
                         wave * kTileRows};
    if (wave / 4 % 2 == 0) {  // both kinds on each SIMD
      take<true>(table, items, ring, unit, given);
    } else {
      take<false>(table, items, ring, unit, given);
    }
  }
  workgroup_barrier();
  sums.store(out, n, column, thread_id(), kThreads);
}
