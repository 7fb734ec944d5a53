// out[id, n] = weight[id] * sum_k a[id / kADiv, k] * w[e, n, k], for each id in a block of expert e
//
// Grouped GEMM of a mixture of experts in OCP MX-FP8: e4m3 payloads, one e8m0 scale per 32 elements
// of K. sorted_token_ids has row ids in blocks of kBlockM; a block belongs to one expert and is
// padded with ids >= num_valid. expert_ids has the expert of each block, -1 for none (the results
// are zeros). Decoding is bound by reading w, so a block's weights are read once for all its rows.
//
// Layout. A workgroup owns a block's rows and kColumns tiles of kTileN rows of w[e]; its waves take
// interleaved K-steps. w is the A of mfma_mxfp8.h, a its B, so a lane's four results are adjacent
// in n. With kTileN = 8 a tile is folded (mxfp8_k_chunk.h), which doubles the number of workgroups
// when there are few. A chunk of K is 256, or 128 if K is not a multiple of that.
//
// Guarantees: bitwise deterministic: the order of sums is fixed by (kChunk, kSteps, kWaves, kTileN)
// and K. No load and no MFMA for row tiles after the last valid id; padding is neither read for nor
// written.
// Requires: a and w 16-byte aligned, scales 4-byte aligned with chunks of 256; a, sorted_token_ids
// and kGroupN rows of w below 2 GiB each. w and out have no limit, because buffer descriptors of w
// start at the workgroup's rows.
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
constexpr u32 kWaves = RFOPS_WAVES;         // waves of a workgroup; they split K
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

// Returns the offsets of a lane's parts of a row; kNoId is no row.
__device__ inline Chunk::ChunkOffsets row_offsets(const Chunk& chunk, u32 row, u32 k) {
  const bool none = row == kNoId;
  return chunk.offsets(none ? kOutOfBounds : row * k, none ? kOutOfBounds : row * (k / kMxBlock));
}

// Fragments of the kDepth K-steps that a wave has in flight.
template <u32 kTiles, u32 kDepth>
struct KStepFragments {
  Fragment w[kDepth][kColumns][Chunk::kCount];
  Fragment a[kDepth][kTiles][Chunk::kCount];
  u32 w_scale[kDepth][kColumns];
  u32 a_scale[kDepth][kTiles];
};

// Issues all loads of kDepth K-steps from k0 on; w last, because a comes from L2. kInBounds: all
// K-steps end within K. Rows are in the lanes' offsets, which are range-checked, K in the scalar
// ones.
template <u32 kTiles, u32 kDepth, bool kInBounds>
__device__ inline void load(KStepFragments<kTiles, kDepth>& fragments, const Operands& operands,
                            const Chunk& chunk, const Chunk::ChunkOffsets* a_offsets,
                            const Chunk::ChunkOffsets* w_offsets, u32 k0) {
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    const u32 k = k0 + s * Chunk::kStepK;
    const auto oob = kInBounds ? Chunk::OobBits{} : chunk.oob_bits(k, operands.k);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      Chunk::load(fragments.a[s][t], operands.a.payload, a_offsets[t].payload, oob, k);
      fragments.a_scale[s][t] = Chunk::load_scales(operands.a.scales, a_offsets[t].scale, oob, k);
    }
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      fragments.w_scale[s][c] = Chunk::load_scales(operands.w.scales, w_offsets[c].scale, oob, k);
    }
  }
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    sched_barrier();  // a K-step's w is used as it arrives, while later K-steps are in flight
    const u32 k = k0 + s * Chunk::kStepK;
    const auto oob = kInBounds ? Chunk::OobBits{} : chunk.oob_bits(k, operands.k);
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      Chunk::load<kStreamed>(fragments.w[s][c], operands.w.payload, w_offsets[c].payload, oob, k);
    }
  }
  sched_barrier();  // all loads are issued before the first wait
}

// Accumulates kDepth K-steps from k0 on.
template <u32 kTiles, u32 kDepth, bool kInBounds>
__device__ inline void add_steps(F32x4 (&sums)[kTiles][kColumns], const Operands& operands,
                                 const Chunk& chunk, const Chunk::ChunkOffsets* a_offsets,
                                 const Chunk::ChunkOffsets* w_offsets, u32 k0) {
  KStepFragments<kTiles, kDepth> fragments;
  load<kTiles, kDepth, kInBounds>(fragments, operands, chunk, a_offsets, w_offsets, k0);
#pragma unroll
  for (u32 s = 0; s < kDepth; ++s) {
    u32 w_scale[kColumns];
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) w_scale[c] = chunk.own_scales(fragments.w_scale[s][c]);
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      const u32 a_scale = chunk.own_scales(fragments.a_scale[s][t]);
#pragma unroll
      for (u32 c = 0; c < kColumns; ++c) {
        sums[t][c] =
            Chunk::multiply(fragments.w[s][c], w_scale[c], fragments.a[s][t], a_scale, sums[t][c]);
      }
    }
  }
}

// Multiplies a wave's K-steps of the first kTiles row tiles and stores the partials to LDS.
template <u32 kTiles>
__device__ inline void sum_tiles(Partial& partials, const Operands& operands,
                                 const Chunk::ChunkOffsets* a_offsets, u32 wave, u32 lane) {
  const Chunk chunk(lane);
  Chunk::ChunkOffsets w_offsets[kColumns];
#pragma unroll
  for (u32 c = 0; c < kColumns; ++c)
    w_offsets[c] = row_offsets(chunk, c * kTileN + chunk.row, operands.k);
  F32x4 sums[kTiles][kColumns] = {};
  u32 k0 = wave * kWaveK;
  for (; k0 + kWaveK <= operands.k; k0 += kWaves * kWaveK) {
    add_steps<kTiles, kSteps, true>(sums, operands, chunk, a_offsets, w_offsets, k0);
  }
  for (; k0 < operands.k; k0 += Chunk::kStepK) {  // one wave takes the remaining K-steps
    add_steps<kTiles, 1, false>(sums, operands, chunk, a_offsets, w_offsets, k0);
  }
  if (!chunk.is_holder()) return;
  auto& partial = partials.items[wave * Chunk::kFold + chunk.chunk];
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) {
#pragma unroll
    for (u32 c = 0; c < kColumns; ++c) {
      partial[(t * kColumns + c) * kHolders + chunk.holder()] = sums[t][c];
    }
  }
}

// Calls sum_tiles for the tiles that hold a valid row, at most kTiles.
template <u32 kTiles>
__device__ inline void sum_used_tiles(u32 used, Partial& partials, const Operands& operands,
                                      const Chunk::ChunkOffsets* a_offsets, u32 wave, u32 lane) {
  if constexpr (kTiles > 1) {
    if (used < kTiles)
      return sum_used_tiles<kTiles - 1>(used, partials, operands, a_offsets, wave, lane);
  }
  sum_tiles<kTiles>(partials, operands, a_offsets, wave, lane);
}

// What is loaded of a block in advance: ids in the order of a's tiles, ids of the rows that this
// thread stores to LDS, and the expert.
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
    const u32 offset = row < kBlockM ? (block * kBlockM + row) * 4 : kOutOfBounds;
    return buffer_load_dwords<1>(layout.sorted_ids, offset, 0).dword[0];
  };
#pragma unroll
  for (u32 t = 0; t < kRowTiles; ++t) loaded.lane_ids[t] = id_of(t * kTileN + thread % kTileN);
#pragma unroll
  for (u32 i = 0; i < kOwnRows; ++i) loaded.own_ids[i] = id_of(thread + i * kThreads);
  loaded.expert = load_uniform(layout.expert_ids + block);
  return loaded;
}

// LDS of a workgroup for one block.
struct BlockLds {
  Partial partial;
  u32 ids[kRowTiles * kTileN];
  f32 weights[kRowTiles * kTileN];
};

// Reduces and stores the partials of `used` tiles; without an expert, stores zeros.
__device__ inline void store_block(Out* out, const BlockLds& block_lds, u32 used, u32 n0, u32 n,
                                   bool has_expert) {
  const bool is_aligned = are_rows_aligned(out, n);
  for (u32 i = thread_id(); i < used * kColumns * kHolders; i += kThreads) {
    const u32 tile = i / kHolders;
    const u32 row = tile / kColumns * kTileN + i % kTileN;
    const u32 col = n0 + tile % kColumns * kTileN + i % kHolders / kTileN * 4;
    const u32 id = block_lds.ids[row];
    if (id == kNoId || col >= n) continue;
    F32x4 sum = {};
    if (has_expert) {
      sum = block_lds.partial.sum(i);
      if constexpr (kWeighted) sum *= block_lds.weights[row];
    }
    store_x4(out + u64{id} * n, sum, col, n, is_aligned);
  }
}

}  // namespace

// The first 14 argument words are preloaded into registers; the arguments are in the order in which
// the first loads need them.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp8_moe(const u32* __restrict__ sorted_ids,  // [num_ids]
          const u32* __restrict__ expert_ids,  // [ceil(num_ids / kBlockM)]
          const u32* __restrict__ num_padded,  // [1], ids of sorted_ids that are in use
          u32 num_ids, u32 num_valid, u32 num_experts,
          u32 group_blocks,          // workgroups along y: each takes every group_blocks-th block
          const u8* __restrict__ w,  // [E, N, K] e4m3
          const u8* __restrict__ a,  // [a_rows, K] e4m3
          const u8* __restrict__ w_scale,   // [E, N, K/32] e8m0
          const u8* __restrict__ a_scale,   // [a_rows, K/32] e8m0
          const f32* __restrict__ weights,  // [num_valid]; read if kWeighted
          Out* __restrict__ out,            // [num_valid, N]
          u32 n, u32 k, u32 a_rows) {
  __shared__ BlockLds block_lds;
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
    Chunk::ChunkOffsets a_offsets[kRowTiles];
    u32 used = 0;
#pragma unroll
    for (u32 t = 0; t < kRowTiles; ++t) {
      const u32 id = loaded.lane_ids[t];
      const bool valid = is_valid(t * kTileN + chunk.row, id);
      a_offsets[t] = row_offsets(chunk, valid ? id / kADiv : kNoId, k);
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
        const Operands operands = {{w, w_scale, row, rows, k}, {a, a_scale, 0, a_rows, k}, k};
        sum_used_tiles<kRowTiles>(used, block_lds.partial, operands, a_offsets, wave, lane);
      }
#pragma unroll
      for (u32 i = 0; i < kOwnRows; ++i) {
        const u32 row = thread + i * kThreads;
        if (row >= kRowTiles * kTileN) continue;
        block_lds.ids[row] = own_id[i];
        if constexpr (kWeighted) block_lds.weights[row] = own_weight[i];
      }
      workgroup_barrier();
      store_block(out, block_lds, used, n0, n, has_expert);
    }
    block += group_blocks;
    if (block * kBlockM >= in_use) return;
    loaded = load_block(layout, block, thread);
    workgroup_barrier();  // LDS is free for the next block
  }
}
