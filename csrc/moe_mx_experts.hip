// kStage 1: out[r] = mx(silu(in[t] Wg) * (in[t] Wu))     kStage 2: out[r] = in[r] Wd
//
// r goes over the rows of all experts, expert by expert; t is the token of r, by the expert's list,
// or r's own number where the expert is shared. Rows of stage 2 go where the choice stands: row
// t * kTopK + j, those of shared experts after all of them, expert by expert. W are that expert's.
// in and W are MXFP4, or both MX-FP8 (moe_mx.h); sums are fp32, h is rounded to Half and quantised
// from that, rows of stage 2 are Half.
//
// Layout. A workgroup takes tile after tile: 16 kMTiles rows of an expert by kColumns of the
// result. kNWaves waves lie side by side along these, kKWaves share out K, step by step. A wave has
// kTiles tiles of 16 rows of weights, of stage 1 half of them gate's and half up's of the same
// columns, so that both meet in one lane. Weights go from memory to the registers of that one wave;
// rows of `in` to LDS, a chunk of kChunk steps while another is multiplied. Weights are
// operand A: a lane has 4 neighbours of a row of out, and 4 lanes a block of 32. Of kMTiles tiles
// of rows, a power of two that holds the rows is multiplied.
//
// Promises. Deterministic: a row's sums go along K, part by part, wherever it lies. Memory that is
// not there is not touched. Rows of weights are aligned to 16 bytes, shuffled scales to 4.
#include "rfops/arch.h"
#include "rfops/exp.h"
#include "rfops/experts.h"
#include "rfops/lanes.h"
#include "rfops/moe_mx_rows.h"
#include "rfops/moe_mx_weights.h"
#include "rfops/scattered_store.h"
#include "rfops/waits.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_experts is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

#if !defined(RFOPS_HALF) || !defined(RFOPS_STAGE) || !defined(RFOPS_FORMAT) ||             \
    !defined(RFOPS_BUMP) || !defined(RFOPS_M_TILES) || !defined(RFOPS_N_WAVES) ||          \
    !defined(RFOPS_K_WAVES) || !defined(RFOPS_CHUNK) || !defined(RFOPS_OUT_CHUNK) ||       \
    !defined(RFOPS_SHUFFLED) || !defined(RFOPS_SHUFFLED_SCALES) || !defined(RFOPS_TAIL) || \
    !defined(RFOPS_EACH) || !defined(RFOPS_TOP_K)
#error "moe_mx_experts needs the RFOPS_ constants below"
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
constexpr u32 kEach = RFOPS_EACH;                 // experts of a lane
constexpr u32 kTopK = RFOPS_TOP_K;                // choices of a token
constexpr bool kThroughRegisters = kMTiles <= 2;  // rows of `in` on their way to LDS
constexpr u32 kTiles = 4;
constexpr u32 kWaves = kNWaves * kKWaves, kThreads = kWaves * kWaveSize;
constexpr u32 kRows = kMTiles * kTileRows;
constexpr u32 kOwnColumns = (kStage == 1 ? kTiles / 2 : kTiles) * kTileRows;  // of a wave
constexpr u32 kColumns = kNWaves * kOwnColumns;
static_assert(kChunk % kKWaves == 0, "as many steps of a chunk a wave");

using Experts = ExpertRows<kRows, kEach>;
using Rows = ChunkRows<Format, kRows, kChunk, kWaves>;
using Scales = Rows::Scales;
using Weights = WeightSteps<Format, RFOPS_SHUFFLED, RFOPS_SHUFFLED_SCALES, RFOPS_TAIL, kTiles>;
using OutScales = ScalePlaces<Format, RFOPS_OUT_CHUNK>;
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

template <u32 kOwn>
struct Sums {
  F32x4 of[kOwn][kTiles];
};

// This wave's weights in an expert.
struct Place {
  MatrixBytes from;
  u32 row, n;  // of stage 1 gate's; up's are n rows on
  u32 steps;

  // Loads kFrom .. kTo - 1 of a step.
  template <u32 kFrom, u32 kTo>
  __device__ void load(const Weights& weights, Weights::Held& held, u32 step) const {
    if constexpr (kFrom < kTo) {
      constexpr u32 kTile = Weights::tile_of(kFrom);
      constexpr u32 kOf = kStage == 1 ? kTile % (kTiles / 2) : kTile;  // of its matrix
      const u32 first = row + (kStage == 1 && kTile >= kTiles / 2 ? n : 0);
      const bool is_there = step < steps && (kStage == 2 || row < n);
      weights.load<kFrom>(held, from, first + kOf * kTileRows, step, is_there);
      load<kFrom + 1, kTo>(weights, held, step);
    }
  }
};

template <u32 kT, u32 kH, u32 kByte>
__device__ inline void multiply_tile(F32x4& sum, const Weights::Held& w, const U32x4 (&x)[2],
                                     u32 x_scale) {
  constexpr bool kIsFp4 = Weights::kIsFp4;
  const Tile a = {w.piece[kT][kIsFp4 ? kH : 0], w.piece[kT][kIsFp4 ? kH : 1]};
  const Tile b = {x[kIsFp4 ? kH : 0], x[kIsFp4 ? kH : 1]};
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
      join(a), join(b), sum, Format::kFormat, Format::kFormat, Weights::byte(kT, kH),
      static_cast<i32>(w.scale[Weights::word(kT, kH)]), kByte % 4, static_cast<i32>(x_scale));
}

// A lane's scales of a chunk, of one tile of rows.
constexpr u32 kScaleWords = (Scales::kOfLane + 3) / 4;
struct LaneScales {
  u32 word[kScaleWords];
};
__device__ inline LaneScales load_scales(const LdsBytes* at) {
  LaneScales found = {};
  if constexpr (Scales::kOfLane == 1) {
    found.word[0] = *at;
  } else if constexpr (Scales::kOfLane == 2) {
    found.word[0] = *reinterpret_cast<const RFOPS_LDS u16*>(at);
  } else {
#pragma unroll
    for (u32 i = 0; i < kScaleWords; ++i) {
      found.word[i] = reinterpret_cast<const RFOPS_LDS u32*>(at)[i];
    }
  }
  return found;
}

template <u32 kOwn>
__device__ inline void load_all_scales(LaneScales (&scales)[kOwn], const LdsBytes* chunk) {
  const u32 lane = lane_in_wave(), of_lane = lane % kTileRows * 4 + lane / kTileRows;
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    scales[i] =
        load_scales(chunk + Rows::kScalesAt + (i * kTileRows * 4 + of_lane) * Scales::kOfLane);
  }
}

// Step kS of a chunk in LDS by the weights of a step. Which of a chunk's steps it is depends on the
// wave where waves share out K: then `shift` brings its scales to the bottom.
template <u32 kOwn, u32 kS, u32 kT = 0>
__device__ inline void multiply_tiles(Sums<kOwn>& sums, u32 i, const Weights::Held& w,
                                      const U32x4 (&x)[2], const LaneScales& scales) {
  if constexpr (kT < kTiles) {
    constexpr u32 kByte = kS * (kStepBlocks / 4);
    multiply_tile<kT, 0, kByte>(sums.of[i][kT], w, x, scales.word[kByte / 4]);
    if constexpr (Weights::kIsFp4) {
      multiply_tile<kT, 1, kByte + 1>(sums.of[i][kT], w, x, scales.word[(kByte + 1) / 4]);
    }
    multiply_tiles<kOwn, kS, kT + 1>(sums, i, w, x, scales);
  }
}

// Tile after tile of rows, and beside each some of the loads of the weights that come next.
template <u32 kOwn, u32 kS, u32 kI = 0, class Load>
__device__ inline void multiply_step(Sums<kOwn>& sums, const Weights::Held& w, const LdsBytes* step,
                                     const LaneScales (&scales)[kOwn], const U32x4 (&x)[2],
                                     Load load) {
  if constexpr (kI < kOwn) {
    const u32 lane = lane_in_wave(), row = lane % kTileRows, chunk = lane / kTileRows;
    const LdsBytes* const at = step + (kI + 1) * (kTileRows * kRowBytes);
    U32x4 next[2];
    if constexpr (kI + 1 < kOwn) {
      next[0] = lds_load_16(at + step_at(row, chunk));
      next[1] = lds_load_16(at + step_at(row, chunk + kRowChunks / 2));
    }
    load.template operator()<kI * Weights::kLoads / kOwn, (kI + 1) * Weights::kLoads / kOwn>();
    keep_order();
    multiply_tiles<kOwn, kS>(sums, kI, w, x, scales[kI]);
    keep_order();
    multiply_step<kOwn, kS, kI + 1>(sums, w, step, scales, next, load);
  }
}

// The wave's steps of a chunk: kK of each kKWaves.
template <u32 kOwn, u32 kK, u32 kI = 0>
__device__ inline void multiply_chunk(Sums<kOwn>& sums, Weights::Held& own, const Weights& weights,
                                      const Place& place, u32 first, const LdsBytes* chunk,
                                      LdsBytes* staging, const LaneScales (&scales)[kOwn]) {
  if constexpr (kI < kChunk / kKWaves) {
    constexpr u32 kS = kI * kKWaves + kK;
    Weights::Held next;
    const auto load = [&]<u32 kFrom, u32 kTo>() {
      place.load<kFrom, kTo>(weights, next, first + kS + kKWaves);
    };
    const u32 lane = lane_in_wave(), row = lane % kTileRows, of_row = lane / kTileRows;
    const LdsBytes* const step = chunk + kS * Rows::kStepBytes;
    const U32x4 x[2] = {lds_load_16(step + step_at(row, of_row)),
                        lds_load_16(step + step_at(row, of_row + kRowChunks / 2))};
    weights.turn(own, first + kS, staging);
    multiply_step<kOwn, kS>(sums, own, step, scales, x, load);
    own = next;
    multiply_chunk<kOwn, kK, kI + 1>(sums, own, weights, place, first, chunk, staging, scales);
  }
}
template <u32 kOwn, u32 kK = 0>
__device__ inline void multiply_own(u32 wave_k, Sums<kOwn>& sums, Weights::Held& own,
                                    const Weights& weights, const Place& place, u32 first,
                                    const LdsBytes* chunk, LdsBytes* staging,
                                    const LaneScales (&scales)[kOwn]) {
  if constexpr (kK + 1 < kKWaves) {
    if (wave_k != kK) {
      return multiply_own<kOwn, kK + 1>(wave_k, sums, own, weights, place, first, chunk, staging,
                                        scales);
    }
  }
  multiply_chunk<kOwn, kK>(sums, own, weights, place, first, chunk, staging, scales);
}

// All of K: kOwn tiles of rows by this wave's weights. The first step of these is on its way.
template <u32 kOwn>
__device__ inline void multiply_all(Sums<kOwn>& sums, Weights::Held& own, const Weights& weights,
                                    const Place& place, Rows& rows) {
  RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
  const u32 wave_k = wave_in_group() / kNWaves;
  LdsBytes* const staging = memory->staging[wave_in_group()];
  u32 buffer = 0;
  if constexpr (kThroughRegisters) {
    rows.load(0, true);
    rows.put(memory->memory.chunk[0]);
    rows.load(1, kChunk < place.steps);
    wait_lds();
    meet();
  } else {
    rows.issue(memory->memory.chunk[0], 0);
    wait_loads<0>();
  }
  for (u32 first = 0; first < place.steps; first += kChunk, buffer ^= 1) {
    const LdsBytes* const chunk = memory->memory.chunk[buffer];
    LdsBytes* const other = memory->memory.chunk[buffer ^ 1];
    if constexpr (kThroughRegisters) {
      rows.put(other);
      rows.load(first / kChunk + 2, first + 2 * kChunk < place.steps);
    } else {
      meet();  // this chunk is there, and the other one is read
      if (first + kChunk < place.steps) rows.issue(other, first / kChunk + 1);
      keep_order();
    }
    LaneScales scales[kOwn];
    load_all_scales(scales, chunk);
    multiply_own<kOwn>(wave_k, sums, own, weights, place, first, chunk, staging, scales);
    if constexpr (kThroughRegisters) {
      wait_lds();
      meet();
    } else {
      wait_loads<Weights::kLoads>();  // the next chunk; of weights a step may still be on its way
    }
  }
}

// The sums of the waves that share out K, in their order, in the first of them.
template <u32 kOwn>
__device__ inline void add_parts(Sums<kOwn>& sums, u32 wave_k, u32 wave_n) {
  if constexpr (kKWaves > 1) {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const u32 lane = lane_in_wave();
    const auto at = [&](u32 part, u32 tile) {
      return reinterpret_cast<RFOPS_LDS F32x4*>(memory->memory.part[part][wave_n]) +
             tile * kWaveSize + lane;
    };
    meet();
    if (wave_k > 0) {
#pragma unroll
      for (u32 i = 0; i < kOwn * kTiles; ++i) *at(wave_k - 1, i) = sums.of[i / kTiles][i % kTiles];
    }
    sync_group();
    if (wave_k > 0) return;
#pragma unroll
    for (u32 i = 0; i < kOwn * kTiles; ++i) {
#pragma unroll
      for (u32 part = 0; part + 1 < kKWaves; ++part)
        sums.of[i / kTiles][i % kTiles] += *at(part, i);
    }
  }
}

struct Out {
  u8* rows;    // of stage 2 Half [rows, n]; of stage 1 elements, `steps` steps a row
  u8* scales;  // of stage 1
  u32 n, steps;
};

// 32 columns of 16 rows of h: block number `block` of these rows.
__device__ inline void store_block(const F32x4 (&gate)[2], const F32x4 (&up)[2], const Out& out,
                                   const ExpertTile& tile, u32 row, u32 block) {
  using Pair = Half __attribute__((ext_vector_type(2)));
  const u32 quarter = lane_in_wave() / kTileRows;
  u32 pairs[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 t = i / 2, e = i % 2 * 2;
    const Pair pair = {static_cast<Half>(silu(gate[t][e]) * up[t][e]),
                       static_cast<Half>(silu(gate[t][e + 1]) * up[t][e + 1])};
    pairs[i] = __builtin_bit_cast(u32, pair);
  }
  const auto larger = [](u32 a, u32 b) { return a > b ? a : b; };
  u32 most = Mxfp4From<Half>::most(pairs);
  most = details::fold_across<32>(details::fold_across<16>(most, larger), larger);
  const u32 byte = Format::scale<Half>(most);
  const Format::Eight eight = Format::eight<Half>(pairs, byte);
  const u32 row_bytes = out.steps * kRowBytes, scale_bytes = out.steps * kStepBlocks;
  const Buffer to = make_buffer(out.rows + u64{tile.first} * row_bytes, tile.rows * row_bytes);
  const Buffer scale_to =
      make_buffer(out.scales + u64{tile.first} * scale_bytes, tile.rows * scale_bytes);
  const u32 at = block * kMxBlock + first_of_exchanged(quarter);
  store_eight(exchange(eight), to, row * row_bytes + at * kRowBytes / Format::kStepK);
  const u32 scale_at = row * scale_bytes + OutScales::at(block);
  __builtin_amdgcn_raw_buffer_store_b8(static_cast<u8>(byte), scale_to.rsrc,
                                       quarter == 0 ? scale_at : kOutside, 0, 0);
}

template <u32 kOwn>
__device__ inline void store(const Sums<kOwn>& sums, const Out& out, const ExpertTile& tile, u32 n0,
                             u32 wave_n) {
  const u32 lane = lane_in_wave();
  if constexpr (kStage == 1) {
    if (n0 >= out.n) return;
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const F32x4(&of)[kTiles] = sums.of[i];
      store_block({of[0], of[1]}, {of[2], of[3]}, out, tile, i * kTileRows + lane % kTileRows,
                  n0 / kMxBlock);
      keep_order();
    }
  } else {
    RFOPS_LDS Lds* const memory = (RFOPS_LDS Lds*)&lds;
    const Store to(reinterpret_cast<Half*>(out.rows), memory->to, out.n, n0, memory->store[wave_n]);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
#pragma unroll
      for (u32 t = 0; t < kTiles; ++t) to.put(t, sums.of[i][t]);
      to.store(i);
    }
  }
}

template <u32 kOwn>
__device__ inline void make_tile(const ExpertTile& tile, Weights::Held& own, const Weights& weights,
                                 const Place& place, Rows& rows, const Out& out) {
  if constexpr (kOwn > 1) {
    if (tile.rows <= kOwn / 2 * kTileRows) {
      return make_tile<kOwn / 2>(tile, own, weights, place, rows, out);
    }
  }
  Sums<kOwn> sums = {};
  multiply_all<kOwn>(sums, own, weights, place, rows);
  const u32 wave_k = wave_in_group() / kNWaves, wave_n = wave_in_group() % kNWaves;
  add_parts<kOwn>(sums, wave_k, wave_n);
  if (wave_k == 0) store<kOwn>(sums, out, tile, place.row, wave_n);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_experts(u8* __restrict__ out,        // stage 1: [rows, out_steps, 128]; 2: Half [rows, N]
               u8* __restrict__ out_scale,  // stage 1: [rows, a row's blocks]
               const u8* __restrict__ in,   // [rows, steps, 128]
               const u8* __restrict__ in_scale,  // [rows, a row's blocks]
               const u8* __restrict__ w,         // [E, N or 2 N, K]
               const u8* __restrict__ w_scale,   // [E, N or 2 N, K / 32]
               const u32* __restrict__ lists,    // [routed, M]; stage 1
               u32* __restrict__ counts,         // [routed]; stage 2 leaves them 0
               u32* __restrict__ offsets,        // [E + 1]; stage 1 writes them
               u32 m, u32 routed, u32 experts, u32 n, u32 k, u32 w_row, u32 w_scale_row,  // bytes
               u32 out_steps,
               u32 groups) {  // a multiple of 8
  const u32 steps = (k + Format::kStepK - 1) / Format::kStepK;
  // Columns of h that pad its rows are made too, of weights that are not there: zeros.
  const u32 columns = kStage == 1 ? out_steps * Format::kStepK : n;
  const Experts all(experts, (columns + kColumns - 1) / kColumns, [&](u32 e) {
    if constexpr (kStage == 2) return offsets[e + 1] - offsets[e];
    return e < routed ? counts[e] : m;
  });
  if (group_x() == 0 && wave_in_group() == 0) {
    if constexpr (kStage == 1) {
      all.offsets(experts, [&](u32 e, u32 row) { offsets[e] = row; });
    } else {
      for (u32 e = lane_in_wave(); e < routed; e += kWaveSize) counts[e] = 0;
    }
  }
  const Weights weights(k);
  const Out to = {out, out_scale, columns, out_steps};
  const u32 wave_n = wave_in_group() % kNWaves, wave_k = wave_in_group() / kNWaves;
  // Tiles of an XCD are neighbours, and so are those that its workgroups have at a time.
  const u32 share = (all.tiles() + kXcds - 1) / kXcds, xcd = group_x() % kXcds;
  for (u32 at = group_x() / kXcds; at < share; at += groups / kXcds) {
    const ExpertTile tile = all.tile(xcd * share + at);
    if (tile.rows == 0) break;
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* const list = lists + u64{tile.expert} * m + tile.row;
    const u32 rows = kStage == 1 ? m : tile.rows;
    const u64 first = kStage == 1 ? 0 : tile.first;
    Rows from(in + first * (steps * kRowBytes), in_scale + first * (steps * kStepBlocks), rows,
              steps, [&](u32 row) {
                if (row >= tile.rows) return kOutside;
                return is_list ? list[row] / kTopK : kStage == 1 ? tile.row + row : row;
              });
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
      const u32 row = thread_in_group() + i * kThreads;
      goes_to[i] = kNone;
      if (row >= tile.rows) continue;
      const u32 shared = m * kTopK + (tile.expert - routed) * m + tile.row + row;
      goes_to[i] = tile.expert < routed ? list[row] : shared;
    }
    keep_order();
    Weights::Held own;
    place.load<0, Weights::kLoads>(weights, own, wave_k);
    keep_order();
    meet();  // what was in LDS is stored
#pragma unroll
    for (u32 i = 0; i < kOfThread; ++i) {
      const u32 row = thread_in_group() + i * kThreads;
      if (row < kRows) lds.to[row] = goes_to[i];
    }
    wait_lds();
    make_tile<kMTiles>(tile, own, weights, place, from, to);
  }
}
