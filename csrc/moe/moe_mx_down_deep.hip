// out[t] = sum over the experts e of t, shared ones too, of weight(t, e) * row(h[t, e], Wd of e)
//
// row(h, Wd) = Half(h Wd), as moe_mx_experts.hip gives it. moe_mx_down_sums.hip for h that does not
// fit in L2: workgroups go through the experts side by side, and ask together for the rows of those
// that come. h and Wd are MXFP4, or both MX-FP8 (mx_format.h); sums along K and over a token's
// experts are fp32.
//
// Layout. A workgroup has kColumns columns of out and goes through all experts: tiles of up to
// kRows rows of one. kWaves waves share out a tile's rows, kOwn sixteens each, whose registers hold
// all of K: where a part of it, kPartSteps steps, is multiplied, the next tile's come. The last
// wave brings weights, kSlots parts ahead, to a ring in LDS, and touches the lines of rows of the
// tile after the next. All meet before each part, so that sums of one tile are added before those
// of the next. Weights are operand A: a lane has 4 neighbours of a row.
//
// Promises. Deterministic: a row's sums go along K, a token's rows are added in the order of their
// experts. Memory that is not there is not touched. Rows of weights and of out are aligned to 16
// bytes, shuffled scales to 4; N is a multiple of kColumns.
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
using Half = RFOPS_HALF;               // bf16 or f16
using Id = RFOPS_ID;                   // of ids: i32 or i64
using Format = RFOPS_FORMAT<0>;        // Mxfp4 or Mxfp8
constexpr u32 kTiles = RFOPS_TILES;    // of 16 columns
constexpr u32 kOwn = RFOPS_ROW_TILES;  // of 16 rows, of a wave
constexpr u32 kSteps = RFOPS_STEPS;    // of K
constexpr u32 kWaves = RFOPS_WAVES;    // that multiply
constexpr u32 kChunk = RFOPS_CHUNK;    // steps whose scales lie together
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = (kWaves + 1) * kWaveSize, kColumns = kTiles * kTileRows;
constexpr u32 kRows = kWaves * kOwn * kTileRows;
constexpr u32 kPartSteps = kChunk < 2 ? kChunk : 2, kParts = kSteps / kPartSteps;  // of a tile
static_assert(kSteps % kChunk == 0 && kSteps % kPartSteps == 0, "chunks and parts are whole");

using Experts = ExpertTileScheduler<kRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Ring =
    WeightRing<Weights, kTiles, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, kPartSteps, RFOPS_SLOTS>;
using All = TiledRows<Format, kSteps, kChunk>;
using Rows = RegisterRows<All, kOwn, kSteps, kWaves>;
using Toucher = L2Prefetcher<All, kRows>;
using Sums = TokenAccumulators<Half, kColumns, kTopK>;

// The ring, 256 bytes that nobody reads, sums and weights of choices, then the tiles there are.
extern __shared__ __attribute__((aligned(16))) u8 lds[];
__device__ inline u32 unread() { return lds_address((LdsBytes*)lds + Ring::kBytes); }
__device__ inline Sums sums_of(u32 m) {
  return {(LdsBytes*)lds + Ring::kBytes + kWaveSize * sizeof(u32), m};
}

struct Given {
  All h;  // of all experts
  const u32* lists;
  u32 m, routed, column;
};

// Those that multiply.
class ConsumerWave {
 public:
  __device__ ConsumerWave(const TileTable& table, const Given& given, const Ring& ring,
                          const Weights& weights)
      : table_(table),
        lists_(make_buffer(given.lists, given.routed * given.m * sizeof(u32))),
        ring_(ring),
        weights_(weights),
        given_(given),
        rows_(given.h) {}

  __device__ void take(u32 tiles) {
    here_ = TileTable::tile(table_.words(0));
    scales_ = rows_.load_scales(here_);
    rows_.template load<0, kSteps>(here_);
    TileWords later = table_.words(1);
    u32 t = 0;
    do {  // one way out, else the compiler waits for what is on its way
      next_ = TileTable::tile(later);
      later = table_.words(t + 2);
      load_lists();
      const Rows::OwnScales scales = rows_.load_scales(next_);
      F32x4 sums[kOwn][kTiles] = {};
      parts<0>(sums, t);
      add(sums);
      scales_ = scales, here_ = next_;
    } while (++t < tiles);
  }

 private:
  __device__ void load_lists() {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 list = here_.expert * given_.m + here_.row + Rows::first(i);
      listed_[i] =
          buffer_load_dwords<1>(lists_, lane_id() % kTileRows * sizeof(u32), list * sizeof(u32))
              .dword[0];
    }
    sched_barrier();
  }

  template <u32 kPart>
  __device__ void parts(F32x4 (&sums)[kOwn][kTiles], u32 t) {
    if constexpr (kPart < kParts) {
      wait_lgkmcnt();  // sums of the part before are added
      s_barrier();     // by all, and weights of this one are there
      const u32 number = t * kParts + kPart;
      if (Rows::first(0) < here_.rows) {
        typename Weights::Held w[kPartSteps];
#pragma unroll
        for (u32 i = 0; i < kPartSteps; ++i) {
          ring_.read(w[i], number, i, weights_, kPart * kPartSteps + i, given_.column);
        }
#pragma unroll
        for (u32 i = 0; i < kOwn; ++i) {
          if (i == 0 || Rows::first(i) < here_.rows) steps<kPart * kPartSteps, 0>(sums[i], w, i);
        }
      }
      sched_barrier();
      rows_.template load<kPart * kPartSteps, (kPart + 1) * kPartSteps>(next_);
      parts<kPart + 1>(sums, t);
    }
  }
  template <u32 kFirst, u32 kI>
  __device__ void steps(F32x4 (&sums)[kTiles], const typename Weights::Held (&w)[kPartSteps],
                        u32 i) {
    if constexpr (kI < kPartSteps) {
      constexpr u32 kStep = kFirst + kI;
      multiply_tiles<Weights, kStep % kChunk>(sums, w[kI], rows_.x[i][kStep],
                                              scales_.of[i][kStep / kChunk]);
      steps<kFirst, kI + 1>(sums, w, i);
    }
  }

  // Rows of the tile, each to its token's sums.
  __device__ void add(const F32x4 (&sums)[kOwn][kTiles]) const {
    const u32 lane = lane_id(), row = lane % kTileRows;
    const bool is_routed = here_.expert < given_.routed;
    const Sums to = sums_of(given_.m);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 own = Rows::first(i) + row;
      const u32 token = is_routed ? listed_[i] / kTopK : here_.row + own;
      if (own >= here_.rows || token >= given_.m) continue;  // or of a list that nobody wrote
      const f32 weight = is_routed ? to.weight(listed_[i]) : 1.0f;
#pragma unroll
      for (u32 tile = 0; tile < kTiles; ++tile) {
        to.add(token, tile * 4 + lane / kTileRows, weight, sums[i][tile]);
      }
    }
  }

  const TileTable& table_;
  Buffer lists_;
  const Ring ring_;
  const Weights weights_;
  const Given given_;
  ExpertTile here_, next_;
  Rows rows_;
  Rows::OwnScales scales_;
  u32 listed_[kOwn];  // which pair this lane's rows are of, of a routed expert
};

// The one that brings weights.
struct DownWeights {
  const u8 *w, *w_scale;
  u32 n, w_row, w_scale_row;
};
__device__ inline void run_producer(const TileTable& table, u32 tiles, const Ring& ring,
                                    const Weights& weights, const DownWeights& down,
                                    const Given& given, const Toucher& toucher) {
  TileCursor<kParts> cursor(table, 0);
  u32 touched = 0;
  const auto issue_next = [&](u32 number) {
    const TileItem& item = cursor.here();
    const u64 before = u64{item.tile.expert} * down.n;
    const MatrixWords from(down.w + before * down.w_row, down.w_scale + before * down.w_scale_row,
                           down.n, down.w_row, down.w_scale_row);
    ring.issue(number, weights, from, [&](u32 i, u32 tile) {
      return RingPlace{given.column + tile * kTileRows, item.number * kPartSteps + i,
                       item.tile.rows > 0};
    });
    if (item.number == 0) toucher.touch(TileTable::tile(table.words(++touched)));
    cursor.advance();
  };
  set_wave_priority<3>();  // all others wait for it
  toucher.touch(cursor.here().tile);
  for (u32 i = 0; i + 1 < RFOPS_SLOTS; ++i) issue_next(i);
  for (u32 i = 0; i < tiles * kParts; ++i) {
    wait_vmcnt<(RFOPS_SLOTS - 2) * Ring::kItemLoads>();
    s_barrier();  // item i is there, and the one before has been read
    issue_next(i + RFOPS_SLOTS - 1);
  }
  wait_vmcnt<0>();  // LDS is not given back before
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down_deep(const u32* __restrict__ rows_of,  // [E]
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
  const u32 share = (n / kColumns + kXcds - 1) / kXcds, of_xcd = workgroup_id_x() / kXcds;
  const u32 number = workgroup_id_x() % kXcds * share + of_xcd;
  const u32 wave = wave_id(), column = number * kColumns;
  const Sums sums = sums_of(m);
  if (wave < kWaves) sums.prepare(weights, ids, thread_id(), kWaves * kWaveSize);
  const Experts all(experts, 1, m, m * (kTopK + experts - routed), ExpertArray(rows_of, experts));
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
  if (number >= n / kColumns) return;
  const Weights unit(k);
  const Ring ring((LdsBytes*)lds);
  const TileTable table((RFOPS_LDS TileWords*)sums.end(), all.tiles(), 0);
  const u32 tiles = all.tiles() > 0 ? all.tiles() : 1;
  if (wave == kWaves) table.fill(all);
  workgroup_barrier();
  const All all_h = {h, h_scale, m * (kTopK + experts - routed) + experts * (kTileRows - 1)};
  const Given given = {all_h, lists, m, routed, column};
  if (wave == kWaves) {
    run_producer(table, tiles, ring, unit, {w, w_scale, n, w_row, w_scale_row}, given,
                 Toucher(all_h, of_xcd, share, unread()));
  } else {
    ConsumerWave(table, given, ring, unit).take(tiles);
  }
  workgroup_barrier();
  sums.store(out, n, column, thread_id(), kThreads);
}
