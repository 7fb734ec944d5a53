// out[t] = sum over j of weights[t, j] * row(h[t, j], Wd of ids[t, j]) + the same of shared experts
//
// row(h, Wd) = Half(h Wd), as stage 2 of moe_mx_experts and then moe_add_pairs give it, bit for
// bit, but rows never leave the chip. h and Wd are MXFP4, or both MX-FP8 (mx_format.h); sums along
// K and over a token's rows are fp32.
//
// Layout. A workgroup has kColumns columns of out, of all tokens, and room for all their rows in
// LDS. Its waves share out the rows of all experts: kRowTiles tiles of 16 rows of one expert at a
// time, with that expert's weights, all of K in registers; those of the next are on their way
// meanwhile. No wave waits for another until all rows are there; then each token's are added.
// Weights are operand A: a lane has 4 neighbours of a row.
//
// Promises. Deterministic: a row's sums go along K, a token's rows are added in the order of its
// choices. Memory that is not there is not touched. Rows of weights and of out are aligned to 16
// bytes, shuffled scales to 4; N is a multiple of kColumns.
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
constexpr u32 kTiles = RFOPS_TILES;         // of 16 columns
constexpr u32 kRowTiles = RFOPS_ROW_TILES;  // of 16 rows of an expert, at a time
constexpr u32 kSteps = RFOPS_STEPS;         // of K
constexpr u32 kWaves = RFOPS_WAVES;
constexpr u32 kChunk = RFOPS_CHUNK;  // steps whose scales lie together
constexpr u32 kTopK = RFOPS_TOP_K, kShared = RFOPS_SHARED;
constexpr u32 kThreads = kWaves * kWaveSize, kColumns = kTiles * kTileRows;
static_assert(kSteps % kChunk == 0, "chunks are whole");

using Experts = ExpertTileScheduler<kRowTiles * kTileRows, RFOPS_EACH, kTileRows, kTileRows>;
using Weights = WeightLoader<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using Places = ScaleLayout<Format, kChunk>;
using Scales = LaneScales<Places>;
constexpr u32 kPiece = kWaveSize * kVecBytes;  // of a tile's rows, half a step
constexpr u32 kRowSize = kSteps * kRowBytes, kRowScales = kSteps * Places::kStepBlocks;

// Loads end in order: what comes from L2 goes before weights, as far as there are registers for it.
constexpr bool kRowsFirst =
    RFOPS_SHUFFLED && kSteps <= 2 && kWaves * kSteps * (kTiles + kRowTiles) <= 64;

// For raw weights a part of each wave's own, then rows [all pairs, kColumns] of Half.
extern __shared__ __attribute__((aligned(16))) u8 lds[];
constexpr u32 kPairSize = kColumns * sizeof(Half);
__device__ inline LdsBytes* pairs() { return (LdsBytes*)lds + kWaves * Weights::kStagingBytes; }

// Behind them the tiles there are.
__device__ inline RFOPS_LDS TileWords* tiles_at(u32 m) {
  return (RFOPS_LDS TileWords*)(pairs() + m * (kTopK + kShared) * kPairSize);
}

// Goes through a wave's tiles; the next one is on its way.
class Cursor {
 public:
  __device__ Cursor(const TileTable& all, u32 first)
      : all_(all), at_(first), next_(all.words(first)) {}
  __device__ ExpertTile take() {
    const ExpertTile tile = TileTable::tile(next_);
    next_ = all_.words(at_ += kWaves);
    return tile;
  }

 private:
  const TileTable& all_;
  u32 at_;
  TileWords next_;
};

struct Given {
  Buffer h, h_scale, lists;  // of all experts
  const u8 *w, *w_scale;
  u32 m, routed, n, w_row, w_scale_row, column;
};

// Rows of one expert and its weights for this workgroup's columns, on their way.
struct Item {
  ExpertTile tile;
  Weights::Held w[kSteps];
  U32x4 x[kRowTiles][kSteps][2];
  Scales scales[kRowTiles][kSteps / kChunk];
  u32 listed[kRowTiles];  // which pair this lane's row is of, of a routed expert

  // The same loads whatever there is, so that the compiler knows how many are on their way.
  __device__ void load(const Weights& weights, const ExpertTile& of, const Given& given) {
    tile = of;
    if constexpr (kRowsFirst) load_rows(given);
    sched_barrier();
    const u64 before = u64{tile.expert} * given.n;
    const MatrixBytes from(given.w + before * given.w_row,
                           given.w_scale + before * given.w_scale_row, given.n, given.w_row,
                           given.w_scale_row);
    load_weights<0>(weights, from, given.column, tile.rows > 0);
    if constexpr (!kRowsFirst) load_rows(given);
    sched_barrier();
  }

  __device__ void multiply(const Weights& weights, LdsBytes* staging, const Given& given) {
    const u32 lane = lane_id(), row = lane % kTileRows;
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) weights.turn(w[s], s, staging, given.column);
    u32 pair[kRowTiles];
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {  // all of them, else the next loads wait for these
      const u32 own = tile.row + r * kTileRows + row;
      const u32 shared = given.m * kTopK + (tile.expert - given.routed) * given.m + own;
      pair[r] = tile.expert < given.routed ? listed[r] : shared;
      force_vgpr(pair[r]);
    }
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {
      if (r > 0 && r * kTileRows >= tile.rows) break;
      F32x4 sums[kTiles] = {};
      multiply_steps<0>(sums, r);
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t)
        force_vgpr(sums[t]);  // by all lanes, not by those alone that store
      if (r * kTileRows + row >= tile.rows) continue;
      if (pair[r] >= given.m * (kTopK + kShared)) continue;  // of a list that nobody wrote
      LdsBytes* const at = pairs() + pair[r] * kPairSize + lane / kTileRows * sizeof(Vec4<Half>);
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) {
        *reinterpret_cast<RFOPS_LDS Vec4<Half>*>(at + t * kTileRows * sizeof(Half)) =
            __builtin_convertvector(sums[t], Vec4<Half>);
      }
    }
    sched_barrier();
  }

 private:
  __device__ void load_rows(const Given& given) {
    const u32 lane = lane_id(), row = lane % kTileRows, quarter = lane / kTileRows;
    const u32 list = tile.expert * given.m + tile.row;  // beyond all, of a shared expert
#pragma unroll
    for (u32 r = 0; r < kRowTiles; ++r) {
      const u32 before = r * kTileRows, outside = before + row < tile.rows ? 0 : kOutOfBounds;
#pragma unroll
      for (u32 s = 0; s < 2 * kSteps; ++s) {
        x[r][s / 2][s % 2] = buffer_load_b128(given.h, lane * kVecBytes | outside,
                                              (tile.first + before) * kRowSize + s * kPiece);
      }
#pragma unroll
      for (u32 c = 0; c < kSteps / kChunk; ++c) {
        const u32 at = row * kRowScales + c * Places::kBlocks + quarter * Places::kScalesPerLane;
        scales[r][c] =
            Scales::from(given.h_scale, at | outside, (tile.first + before) * kRowScales);
      }
      listed[r] =
          buffer_load_dwords<1>(given.lists, row * sizeof(u32), (list + before) * sizeof(u32))
              .dword[0];
    }
  }
  template <u32 kQ>
  __device__ void load_weights(const Weights& weights, const MatrixBytes& from, u32 column,
                               bool is_there) {
    if constexpr (kQ < kSteps * Weights::kLoads) {
      constexpr u32 kLoad = kQ % Weights::kLoads, kStep = kQ / Weights::kLoads;
      weights.load<kLoad>(w[kStep], from, column + Weights::tile_of(kLoad) * kTileRows, kStep,
                          is_there);
      load_weights<kQ + 1>(weights, from, column, is_there);
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

constexpr u32 kVec = kVecBytes / sizeof(Half), kParts = kColumns / kVec;  // of a row

// What the token of a thread chose, on its way.
struct Chosen {
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
  __device__ Choices<kTopK> choices(u32 routed) const { return {weight, id, routed}; }
};

// Each token's rows, 16 bytes of them a thread. `choices` are of a thread's first token.
__device__ inline void add(Half* out, Choices<kTopK> choices, const f32* weights, const Id* ids,
                           u32 m, u32 routed, u32 n, u32 column) {
  using Vec = Half __attribute__((ext_vector_type(kVec)));
  u32 i = thread_id();
  while (i < m * kParts) {
    const u32 token = i / kParts, part = i % kParts;
    Vec row[kTopK + kShared];
#pragma unroll
    for (u32 j = 0; j < kTopK + kShared; ++j) {
      const u32 pair = j < kTopK ? token * kTopK + j : m * j + token;
      row[j] =
          *reinterpret_cast<const RFOPS_LDS Vec*>(pairs() + pair * kPairSize + part * kVecBytes);
    }
    *reinterpret_cast<Vec*>(out + u64{token} * n + column + part * kVec) =
        sum_of_rows<kTopK, kShared>(row, choices);
    i += kThreads;
    if (i >= m * kParts) break;
    Chosen next;
    next.load(weights, ids, i / kParts);
    choices = next.choices(routed);
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_down(const u32* __restrict__ rows_of,  // [E]
            u32 m, u32 routed, u32 experts, u32 n,
            const f32* __restrict__ weights,      // [M, kTopK]
            const Id* __restrict__ ids,           // [M, kTopK]
            const u8* __restrict__ h,             // [tiles of 16 rows, kSteps * 8, 16, 16 bytes]
            const u8* __restrict__ h_scale,       // [rows, a row's blocks]
            const u8* __restrict__ w,             // [E, N, K]
            const u8* __restrict__ w_scale,       // [E, N, K / 32]
            const u32* __restrict__ lists,        // [routed, M]
            u32* __restrict__ counts,             // [routed]; left 0
            Half* __restrict__ out,               // [M, N]
            u32 k, u32 w_row, u32 w_scale_row) {  // bytes
  // Columns of an XCD are neighbours, which share lines of out.
  const u32 share = (n / kColumns + kXcds - 1) / kXcds;
  const u32 number = workgroup_id_x() % kXcds * share + workgroup_id_x() / kXcds;
  const u32 wave = wave_id();
  const Experts all(experts, 1, m, m * (kTopK + kShared), ExpertArray(rows_of, experts));
  if (number >= n / kColumns) return;
  const Weights unit(k);
  const u32 column = number * kColumns;
  const u32 rows = m * (kTopK + kShared) + experts * (kTileRows - 1);
  const Buffer all_h = make_buffer(h, rows * kRowSize);
  const Buffer all_scales = make_buffer(h_scale, rows * kRowScales);
  const Buffer all_lists = make_buffer(lists, routed * m * sizeof(u32));
  const Given given = {all_h,  all_scales, all_lists, w,           w_scale, m,
                       routed, n,          w_row,     w_scale_row, column};
  LdsBytes* const staging = (LdsBytes*)lds + wave * Weights::kStagingBytes;
  // Workgroups of an XCD begin with different experts: what one has read is in L2 for the others.
  const u32 tiles = all.tiles(), first = workgroup_id_x() / kXcds * tiles / share;
  const u32 own = wave + first < tiles ? wave + first : wave + first - tiles;
  const ExpertTile tile = all.tile(wave < tiles ? own : tiles);
  if (tiles <= kWaves) {
    Item item;
    item.load(unit, tile, given);
    item.multiply(unit, staging, given);
  } else {
    Item item, next;  // registers of their own, not those of one item alone
    item.load(unit, tile, given);
    const TileTable table(tiles_at(m), tiles, first);
    if (wave == 0) table.fill(all);
    wait_lgkmcnt();
    s_barrier();
    Cursor cursor(table, wave + kWaves);
    do {  // one way out, else the compiler waits for what is on its way
      next.load(unit, cursor.take(), given);
      item.multiply(unit, staging, given);
      item.load(unit, cursor.take(), given);
      next.multiply(unit, staging, given);
    } while (readfirstlane(item.tile.rows) > 0);
  }
  const u32 token = thread_id() / kParts;
  const bool adds = wave * kWaveSize / kParts < m;
  Chosen chosen;
  if (adds) chosen.load(weights, ids, token < m ? token : m - 1);
  Choices<kTopK> choices = {};
  if (adds) choices = chosen.choices(routed), choices.keep();
  workgroup_barrier();
  add(out, choices, weights, ids, m, routed, n, column);
  if (workgroup_id_x() == 0) {
    for (u32 e = thread_id(); e < routed; e += kThreads) counts[e] = 0;
  }
}
