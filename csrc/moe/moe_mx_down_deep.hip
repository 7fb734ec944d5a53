// out[t] = sum over the experts e of t, shared ones too, of weight(t, e) * row(h[t, e], Wd of e)
//
// row(h, Wd) = Half(h Wd), as in moe_mx_experts.hip. This is moe_mx_down_sums.hip for an h that
// does not fit in L2: the workgroups of an XCD process the experts in the same order and prefetch
// the rows of later tiles to L2 together. h and Wd are MXFP4, or both MX-FP8 (mx_format.h); sums
// along K and over a token's experts are fp32.
//
// Layout. A workgroup computes kColumns columns of out and processes all experts in tiles of up to
// kRows rows of one. kWaves consumer waves share a tile's rows, kRowTiles tiles of 16 each, and
// hold all of K in registers: when an item, kItemSteps K-steps, has been multiplied, its registers
// receive the next tile's rows. The last wave is the producer: it loads weights, kNumStages items
// ahead, to a ring in LDS, and prefetches the rows of the tile after the next to L2. A barrier
// before each item orders the sums of consecutive tiles. Weights are MFMA operand A: a lane has 4
// adjacent columns.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, the rows of a token are
// added in the order of their experts. Out-of-range rows are not accessed.
// Requires: rows of weights and of out 16-byte aligned, shuffled scales 4-byte aligned; N a
// multiple of kColumns.
#include "moe/expert_tile_scheduler.h"
#include "moe/mx_mfma.h"
#include "moe/mx_register_rows.h"
#include "moe/mx_weight_ring.h"
#include "moe/tile_table.h"
#include "moe/token_accumulators.h"
#include "rfops/chip/arch.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_down_deep is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using i64 = long long;
using Half = RFOPS_HALF;                    // bf16 or f16
using Id = RFOPS_ID;                        // of ids: i32 or i64
using Format = RFOPS_FORMAT<0>;             // Mxfp4 or Mxfp8
constexpr u32 kTiles = RFOPS_TILES;         // tiles of 16 columns
constexpr u32 kRowTiles = RFOPS_ROW_TILES;  // tiles of 16 rows, per wave
constexpr u32 kSteps = RFOPS_STEPS;         // K-steps
constexpr u32 kWaves = RFOPS_WAVES;         // consumer waves
constexpr u32 kChunk = RFOPS_CHUNK;         // K-steps whose scales are contiguous
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = (kWaves + 1) * kWaveSize, kColumns = kTiles * kTileRows;
constexpr u32 kRows = kWaves * kRowTiles * kTileRows;
constexpr u32 kItemSteps = kChunk < 2 ? kChunk : 2, kItems = kSteps / kItemSteps;  // of a tile
static_assert(kSteps % kChunk == 0 && kSteps % kItemSteps == 0, "K must be whole chunks and items");

using Experts = ExpertTileScheduler<kRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Ring =
    WeightRing<Weights, kTiles, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, kItemSteps, RFOPS_SLOTS>;
using HRows = TiledRows<Format, kSteps, kChunk>;
using Rows = RegisterRows<HRows, kRowTiles, kSteps, kWaves>;
using Prefetcher = L2Prefetcher<HRows, kRows>;
using Sums = TokenAccumulators<Half, kColumns, kTopK>;

// LDS: the ring, 256 bytes that are not read, sums and weights of assignments, then the tile table.
extern __shared__ __attribute__((aligned(16))) u8 lds[];
__device__ inline u32 unread() { return lds_address((LdsBytes*)lds + Ring::kBytes); }
__device__ inline Sums token_sums(u32 m) {
  return {(LdsBytes*)lds + Ring::kBytes + kWaveSize * sizeof(u32), m};
}

struct DownArgs {
  HRows h;  // of all experts
  const u32* lists;
  u32 m, routed, column;
};

// A wave that multiplies.
class ConsumerWave {
 public:
  __device__ ConsumerWave(const TileTable& table, const DownArgs& args, const Ring& ring,
                          const Weights& weights)
      : table_(table),
        lists_(make_buffer(args.lists, args.routed * args.m * sizeof(u32))),
        ring_(ring),
        weights_(weights),
        args_(args),
        rows_(args.h) {}

  __device__ void run(u32 tiles) {
    current_ = TileTable::tile(table_.words(0));
    scales_ = rows_.load_scales(current_);
    rows_.template load<0, kSteps>(current_);
    TileWords next_words = table_.words(1);
    u32 t = 0;
    do {  // a single exit, because the compiler would otherwise wait for all loads in flight
      next_ = TileTable::tile(next_words);
      next_words = table_.words(t + 2);
      load_lists();
      const Rows::TileScales scales = rows_.load_scales(next_);
      F32x4 sums[kRowTiles][kTiles] = {};
      multiply_items<0>(sums, t);
      add(sums);
      scales_ = scales, current_ = next_;
    } while (++t < tiles);
  }

 private:
  __device__ void load_lists() {
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      const u32 list = current_.expert * args_.m + current_.row + Rows::tile_row(i);
      listed_[i] =
          buffer_load_dwords<1>(lists_, lane_id() % kTileRows * sizeof(u32), list * sizeof(u32))
              .dword[0];
    }
    sched_barrier();
  }

  template <u32 kItem>
  __device__ void multiply_items(F32x4 (&sums)[kRowTiles][kTiles], u32 t) {
    if constexpr (kItem < kItems) {
      wait_lgkmcnt();  // the sums of the previous item are in LDS
      s_barrier();     // for all waves, and the weights of this item are in LDS
      const u32 number = t * kItems + kItem;
      if (Rows::tile_row(0) < current_.rows) {
        typename Weights::Fragments w[kItemSteps];
#pragma unroll
        for (u32 i = 0; i < kItemSteps; ++i) {
          ring_.read(w[i], number, i, weights_, kItem * kItemSteps + i, args_.column);
        }
#pragma unroll
        for (u32 i = 0; i < kRowTiles; ++i) {
          if (i == 0 || Rows::tile_row(i) < current_.rows)
            steps<kItem * kItemSteps, 0>(sums[i], w, i);
        }
      }
      sched_barrier();
      rows_.template load<kItem * kItemSteps, (kItem + 1) * kItemSteps>(next_);
      multiply_items<kItem + 1>(sums, t);
    }
  }
  template <u32 kStepBegin, u32 kI>
  __device__ void steps(F32x4 (&sums)[kTiles], const typename Weights::Fragments (&w)[kItemSteps],
                        u32 i) {
    if constexpr (kI < kItemSteps) {
      constexpr u32 kStep = kStepBegin + kI;
      multiply_tiles<Weights, kStep % kChunk>(sums, w[kI], rows_.x[i][kStep],
                                              scales_.chunk[i][kStep / kChunk]);
      steps<kStepBegin, kI + 1>(sums, w, i);
    }
  }

  // Adds the tile's rows to the accumulators of their tokens.
  __device__ void add(const F32x4 (&sums)[kRowTiles][kTiles]) const {
    const u32 lane = lane_id(), row = lane % kTileRows;
    const bool is_routed = current_.expert < args_.routed;
    const Sums token_acc = token_sums(args_.m);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
      const u32 tile_row = Rows::tile_row(i) + row;
      const u32 token = is_routed ? listed_[i] / kTopK : current_.row + tile_row;
      if (tile_row >= current_.rows || token >= args_.m) continue;  // or an invalid list entry
      const f32 weight = is_routed ? token_acc.weight(listed_[i]) : 1.0f;
#pragma unroll
      for (u32 tile = 0; tile < kTiles; ++tile) {
        token_acc.add(token, tile * 4 + lane / kTileRows, weight, sums[i][tile]);
      }
    }
  }

  const TileTable& table_;
  Buffer lists_;
  const Ring ring_;
  const Weights weights_;
  const DownArgs args_;
  ExpertTile current_, next_;
  Rows rows_;
  Rows::TileScales scales_;
  u32 listed_[kRowTiles];  // the pairs of this lane's rows, if the expert is routed
};

// The producer wave loads weights.
struct DownWeights {
  const u8 *w, *w_scale;
  u32 n, w_row, w_scale_row;
};
__device__ inline void run_producer(const TileTable& table, u32 tiles, const Ring& ring,
                                    const Weights& weights, const DownWeights& down,
                                    const DownArgs& args, const Prefetcher& prefetcher) {
  TileCursor<kItems> cursor(table, 0);
  u32 prefetched = 0;
  const auto issue_next = [&](u32 number) {
    const TileItem& item = cursor.current();
    const u64 row_begin = u64{item.tile.expert} * down.n;
    const MatrixWords matrix(down.w + row_begin * down.w_row,
                             down.w_scale + row_begin * down.w_scale_row, down.n, down.w_row,
                             down.w_scale_row);
    ring.issue(number, weights, matrix, [&](u32 i, u32 tile) {
      return TileOrigin{args.column + tile * kTileRows, item.number * kItemSteps + i,
                        item.tile.rows > 0};
    });
    if (item.number == 0) prefetcher.prefetch(TileTable::tile(table.words(++prefetched)));
    cursor.advance();
  };
  set_wave_priority<3>();  // all other waves wait for this one
  prefetcher.prefetch(cursor.current().tile);
  for (u32 i = 0; i + 1 < RFOPS_SLOTS; ++i) issue_next(i);
  for (u32 i = 0; i < tiles * kItems; ++i) {
    wait_vmcnt<(RFOPS_SLOTS - 2) * Ring::kItemLoads>();
    s_barrier();  // item i is in LDS, and all waves have read the one before
    issue_next(i + RFOPS_SLOTS - 1);
  }
  wait_vmcnt<0>();  // LDS must not be released before
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down_deep(const u32* __restrict__ rows_of,  // [E]
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
  const u32 groups_per_xcd = (n / kColumns + kXcds - 1) / kXcds,
            idx_in_xcd = workgroup_id_x() / kXcds;
  const u32 number = workgroup_id_x() % kXcds * groups_per_xcd + idx_in_xcd;
  const u32 wave = wave_id(), column = number * kColumns;
  const Sums sums = token_sums(m);
  if (wave < kWaves) sums.prepare(weights, ids, thread_id(), kWaves * kWaveSize);
  const Experts scheduler(experts, 1, m, m * (kTopK + experts - routed),
                          ExpertArray(rows_of, experts));
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
  if (number >= n / kColumns) return;
  const Weights loader(k);
  const Ring ring((LdsBytes*)lds);
  const TileTable table((RFOPS_LDS TileWords*)sums.end(), scheduler.tiles(), 0);
  const u32 tiles = scheduler.tiles() > 0 ? scheduler.tiles() : 1;
  if (wave == kWaves) table.fill(scheduler);
  workgroup_barrier();
  const HRows all_h = {h, h_scale, m * (kTopK + experts - routed) + experts * (kTileRows - 1)};
  const DownArgs args = {all_h, lists, m, routed, column};
  if (wave == kWaves) {
    run_producer(table, tiles, ring, loader, {w, w_scale, n, w_row, w_scale_row}, args,
                 Prefetcher(all_h, idx_in_xcd, groups_per_xcd, unread()));
  } else {
    ConsumerWave(table, args, ring, loader).run(tiles);
  }
  workgroup_barrier();
  sums.store(out, n, column, thread_id(), kThreads);
}
