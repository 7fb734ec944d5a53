// out[id, n] = weight[id] * sum_k a[id / kADiv, k] * w[e, n, k], for each id in a block of expert e
//
// The grouped GEMM of a mixture of experts in OCP MX-FP8: e4m3 payloads, one e8m0 scale per 32
// elements of K. sorted_token_ids holds rows' ids in blocks of kBlockM, a block of one expert and
// padded with ids >= num_valid; expert_ids has each block's expert, -1 for none (zeros come out).
// Decoding is bound by reading w, so a block's weights are read once, for all of its rows.
//
// Layout. A workgroup owns a block's rows and kColumns tiles of kTileN rows of w[e]; its waves take
// turns along K. w is the A of mfma_mxfp8.h, a its B, so that a lane's four results are neighbours
// in n. At kTileN = 8 a tile is folded (mxfp8_k_chunk.h), for twice the workgroups where there are
// few. A chunk of K is 256, and 128 where K is no multiple of that.
//
// Promises. Deterministic: the order of sums is fixed by (kChunk, kSteps, kWaves, kTileN) and K.
// No load and no MFMA for tiles of rows behind the last valid id; padding is neither read for nor
// written. The caller aligns a and w to 16 bytes, the scales to 4 where a chunk is 256. Descriptors
// of w start at the workgroup's rows: w and out have no limit, but a, sorted_token_ids and kGroupN
// rows of w are below 2 GiB each.
#include "moe/mxfp8_k_chunk.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/store/row_major_store.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp8_moe is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

constexpr u32 kBlockM = RFOPS_BLOCK_M;      // rows of a block
constexpr u32 kTileN = RFOPS_TILE_N;        // rows of w, and of the block, in a tile: 16 or 8
constexpr u32 kColumns = RFOPS_COLUMNS;     // tiles of w of a workgroup
constexpr u32 kSteps = RFOPS_STEPS;         // chunks of K a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;         // waves of a workgroup, side by side along K
constexpr u32 kChunk = RFOPS_CHUNK;         // elements of K that a lane's scale load serves
constexpr u32 kADiv = RFOPS_A_DIV;          // routed rows that share a row of a
constexpr bool kWeighted = RFOPS_WEIGHTED;  // multiply by the routed weight
using Out = RFOPS_OUT;                      // bf16, f16 or f32

using Chunk = MxChunk<kTileN, kChunk>;
constexpr u32 kRowTiles = (kBlockM + kTileN - 1) / kTileN;
constexpr u32 kGroupN = kColumns * kTileN;      // rows of w of a workgroup
constexpr u32 kWaveK = Chunk::kStepK * kSteps;  // elements of K that a wave has in flight
constexpr u32 kHolders = Chunk::kHolders;       // lanes that hold a tile's result, 4 n each
constexpr u32 kResults = kRowTiles * kColumns * kHolders;
constexpr u32 kPartials = kWaves * Chunk::kFold;  // parts of a result's sum
constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kOwnRows = (kRowTiles * kTileN + kThreads - 1) / kThreads;
constexpr u32 kNoId = ~0u;

static_assert(kTileN == 16 || (kTileN == 8 && kBlockM <= 8), "a folded tile has 8 rows");
static_assert(kRowTiles <= 8, "sums and a's rows of more tiles do not fit the registers");
static_assert(kThreads <= 1024, "a workgroup has at most 1024 threads");

using Partial = LdsPartials<F32x4, kPartials, kResults>;

struct Operands {
  MxRows w, a;
  u32 k;
};

// Where a lane's part of a row of K lies; kNoId is no row.
__device__ inline Chunk::At row_at(const Chunk& chunk, u32 row, u32 k) {
  const bool none = row == kNoId;
  return chunk.at(none ? kOutOfBounds : row * k, none ? kOutOfBounds : row * (k / kMxBlock));
}

// A lane's part of what a wave has in flight: kDepth steps.
template <u32 kTiles, u32 kDepth>
struct KStepFragments {
  Fragment w[kDepth][kColumns][Chunk::kCount];
  Fragment a[kDepth][kTiles][Chunk::kCount];
  u32 w_scale[kDepth][kColumns];
  u32 a_scale[kDepth][kTiles];
};

// Issues all loads of kDepth steps from k0 on; w last, as a comes from L2. kWhole: they end
// within K. Rows are in the lanes' offsets, which are range-checked, K in the scalar ones.
template <u32 kTiles, u32 kDepth, bool kWhole>
__device__ inline void load(KStepFragments<kTiles, kDepth>& part, const Operands& in,
                            const Chunk& chunk, const Chunk::At* a_at, const Chunk::At* w_at,
                            u32 k0) {
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    const u32 k = k0 + s * Chunk::kStepK;
    const auto outside = kWhole ? Chunk::Beyond{} : chunk.beyond(k, in.k);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      Chunk::load(part.a[s][t], in.a.payload, a_at[t].payload, outside, k);
      part.a_scale[s][t] = Chunk::load_scales(in.a.scales, a_at[t].scale, outside, k);
    }
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      part.w_scale[s][c] = Chunk::load_scales(in.w.scales, w_at[c].scale, outside, k);
    }
  }
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    sched_barrier();  // a step's w is used as it arrives, while later steps are on their way
    const u32 k = k0 + s * Chunk::kStepK;
    const auto outside = kWhole ? Chunk::Beyond{} : chunk.beyond(k, in.k);
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      Chunk::load<kStreamed>(part.w[s][c], in.w.payload, w_at[c].payload, outside, k);
    }
  }
  sched_barrier();  // nothing is waited for before the last load is issued
}

// Adds the products of kDepth steps from k0 on.
template <u32 kTiles, u32 kDepth, bool kWhole>
__device__ inline void add_steps(F32x4 (&sums)[kTiles][kColumns], const Operands& in,
                                 const Chunk& chunk, const Chunk::At* a_at, const Chunk::At* w_at,
                                 u32 k0) {
  KStepFragments<kTiles, kDepth> part;
  load<kTiles, kDepth, kWhole>(part, in, chunk, a_at, w_at, k0);
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    u32 w_scale[kColumns];
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) w_scale[c] = chunk.own_scales(part.w_scale[s][c]);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      const u32 a_scale = chunk.own_scales(part.a_scale[s][t]);
#pragma unroll
      for (u32 c = 0; c < kColumns; ++c) {
        sums[t][c] = Chunk::multiply(part.w[s][c], w_scale[c], part.a[s][t], a_scale, sums[t][c]);
      }
    }
  }
}

// A wave's share of the first kTiles tiles of rows, left in LDS for the other waves.
template <u32 kTiles>
__device__ inline void sum_tiles(Partial& shared, const Operands& in, const Chunk::At* a_at,
                                 u32 wave, u32 lane) {
  const Chunk chunk(lane);
  Chunk::At w_at[kColumns];
#pragma unroll
  for (u32 c = 0; c < kColumns; ++c) w_at[c] = row_at(chunk, c * kTileN + chunk.row, in.k);
  F32x4 sums[kTiles][kColumns] = {};
  u32 k0 = wave * kWaveK;
  for (; k0 + kWaveK <= in.k; k0 += kWaves * kWaveK) {
    add_steps<kTiles, kSteps, true>(sums, in, chunk, a_at, w_at, k0);
  }
  for (; k0 < in.k; k0 += Chunk::kStepK) {  // what is left of K falls to one wave
    add_steps<kTiles, 1, false>(sums, in, chunk, a_at, w_at, k0);
  }
  if (!chunk.is_holder()) return;
  auto& part = shared.items[wave * Chunk::kFold + chunk.chunk];
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      part[(t * kColumns + c) * kHolders + chunk.holder()] = sums[t][c];
    }
  }
}

// sum_tiles for as many tiles as hold a valid row, at most kTiles.
template <u32 kTiles>
__device__ inline void sum_used_tiles(u32 used, Partial& shared, const Operands& in,
                                      const Chunk::At* a_at, u32 wave, u32 lane) {
  if constexpr (kTiles > 1) {
    if (used < kTiles) return sum_used_tiles<kTiles - 1>(used, shared, in, a_at, wave, lane);
  }
  sum_tiles<kTiles>(shared, in, a_at, wave, lane);
}

// What is loaded of a block before anything is known of it: ids in the order of a's tiles, ids of
// the rows that this thread leaves in LDS, the expert.
struct Block {
  u32 lane_ids[kRowTiles], own_ids[kOwnRows], expert;
};

struct Layout {
  Buffer sorted_ids;
  const u32* expert_ids;
};

__device__ inline Block load_block(const Layout& layout, u32 block, u32 thread) {
  Block loaded;
  const auto id_of = [&](u32 row) {
    const u32 at = row < kBlockM ? (block * kBlockM + row) * 4 : kOutOfBounds;
    return buffer_load_dwords<1>(layout.sorted_ids, at, 0).dword[0];
  };
#pragma unroll
  for (u32 t = 0; t < kRowTiles; ++t) loaded.lane_ids[t] = id_of(t * kTileN + thread % kTileN);
#pragma unroll
  for (u32 i = 0; i < kOwnRows; ++i) loaded.own_ids[i] = id_of(thread + i * kThreads);
  loaded.expert = load_uniform(layout.expert_ids + block);
  return loaded;
}

// What a workgroup's waves share of a block.
struct Shared {
  Partial partial;
  u32 ids[kRowTiles * kTileN];
  f32 weights[kRowTiles * kTileN];
};

// Adds the partial sums of `used` tiles up and writes them; without an expert, zeros.
__device__ inline void store_block(Out* out, const Shared& shared, u32 used, u32 n0, u32 n,
                                   bool has_expert) {
  const bool is_aligned = are_rows_aligned(out, n);
  for (u32 i = thread_id(); i < used * kColumns * kHolders; i += kThreads) {
    const u32 tile = i / kHolders;
    const u32 row = tile / kColumns * kTileN + i % kTileN;
    const u32 at_n = n0 + tile % kColumns * kTileN + i % kHolders / kTileN * 4;
    const u32 id = shared.ids[row];
    if (id == kNoId || at_n >= n) continue;
    F32x4 total = {};
    if (has_expert) {
      total = shared.partial.sum(i);
      if constexpr (kWeighted) total *= shared.weights[row];
    }
    store_x4(out + u64{id} * n, total, at_n, n, is_aligned);
  }
}

}  // namespace

// Arguments in the order in which the first loads want them: the first 14 words come in registers.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp8_moe(const u32* __restrict__ sorted_ids,  // [num_ids]
          const u32* __restrict__ expert_ids,  // [ceil(num_ids / kBlockM)]
          const u32* __restrict__ num_padded,  // [1], ids of sorted_ids that are in use
          u32 num_ids, u32 num_valid, u32 num_experts,
          u32 group_blocks,                 // workgroups along y: each takes every such block
          const u8* __restrict__ w,         // [E, N, K] e4m3
          const u8* __restrict__ a,         // [a_rows, K] e4m3
          const u8* __restrict__ w_scale,   // [E, N, K/32] e8m0
          const u8* __restrict__ a_scale,   // [a_rows, K/32] e8m0
          const f32* __restrict__ weights,  // [num_valid]; read if kWeighted
          Out* __restrict__ out,            // [num_valid, N]
          u32 n, u32 k, u32 a_rows) {
  __shared__ Shared shared;
  const u32 thread = thread_id(), wave = wave_id(), lane = lane_id();
  const Layout layout = {make_buffer(sorted_ids, num_ids * 4), expert_ids};
  u32 block = workgroup_id_y();
  Block loaded = load_block(layout, block, thread);
  sched_barrier();  // these loads do not wait for num_padded: one latency instead of two
  const u32 padded = load_uniform(num_padded);  // int32's bits; below 0, nothing is in use
  const u32 in_use = static_cast<i32>(padded) < 0 ? 0 : padded < num_ids ? padded : num_ids;
  const u32 n0 = workgroup_id_x() * kGroupN;

  const Chunk chunk(lane);
  while (true) {
    const auto is_valid = [&](u32 row, u32 id) {
      return row < kBlockM && block * kBlockM + row < in_use && id < num_valid;
    };
    Chunk::At a_at[kRowTiles];
    u32 used = 0;
#pragma unroll
    for (u32 t = 0; t < kRowTiles; ++t) {
      const u32 id = loaded.lane_ids[t];
      const bool valid = is_valid(t * kTileN + chunk.row, id);
      a_at[t] = row_at(chunk, valid ? id / kADiv : kNoId, k);
      if (__builtin_amdgcn_ballot_w64(valid) != 0) used = t + 1;
    }
    if (used != 0) {
      u32 own_id[kOwnRows];
      f32 own_weight[kOwnRows];
#pragma unroll
      for (u32 i = 0; i < kOwnRows; ++i) {
        const u32 id = loaded.own_ids[i];
        own_id[i] = is_valid(thread + i * kThreads, id) ? id : kNoId;
        if constexpr (kWeighted) own_weight[i] = own_id[i] == kNoId ? 0.0f : weights[id];
      }
      const bool has_expert = loaded.expert < num_experts;
      if (has_expert) {
        const u64 row = u64{loaded.expert} * n + n0;  // of w: this workgroup's first
        const u32 rows = n - n0 < kGroupN ? n - n0 : kGroupN;
        const Operands in = {{w, w_scale, row, rows, k}, {a, a_scale, 0, a_rows, k}, k};
        sum_used_tiles<kRowTiles>(used, shared.partial, in, a_at, wave, lane);
      }
#pragma unroll
      for (u32 i = 0; i < kOwnRows; ++i) {
        const u32 row = thread + i * kThreads;
        if (row >= kRowTiles * kTileN) continue;
        shared.ids[row] = own_id[i];
        if constexpr (kWeighted) shared.weights[row] = own_weight[i];
      }
      workgroup_barrier();
      store_block(out, shared, used, n0, n, has_expert);
    }
    block += group_blocks;
    if (block * kBlockM >= in_use) return;
    loaded = load_block(layout, block, thread);
    workgroup_barrier();  // LDS is free for the next block
  }
}
