// logits = In(x * w^T),  p = softmax(logits),  weights[t, j], ids[t, j] = the j-th best of p[t]
//
// x and w are f16 or bf16; sums are fp32. With RFOPS_ROUNDS p is rounded to the type of x before
// experts are compared, as torch does (see top_k.h).
//
// Layout. A workgroup has 16 tokens. Its eight waves split K in interleaved K-steps of 32: experts
// are MFMA operand A, tokens operand B, both loaded directly into registers, 16 bytes per lane. The
// eight partials are reduced in LDS, 64 experts at a time, in quads of experts of all 16 tokens; a
// quad is padded so that writes and reads have no bank conflicts. Then 32 lanes route one token.
//
// With kLists each token is also added to the lists of its experts, as in moe_lists.hip.
//
// Guarantees: bitwise deterministic; the eight partials are added in the order of the waves.
// Requires: rows 16-byte aligned; K a multiple of 8; 16 rows of x, and w, span less than 2 GiB.
#include "moe/token_lists.h"
#include "moe/top_k.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;              // f16 or bf16
constexpr u32 kTiles = RFOPS_TILES;  // tiles of 16 experts
constexpr bool kLists = RFOPS_LISTS;
constexpr TopKOptions kOptions = {
    .scoring = Scoring::kSoftmax,
    .rounds = RFOPS_ROUNDS,
    .has_bias = false,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = 1,
    .groups_taken = 1,
};
constexpr u32 kWaves = 8, kThreads = kWaves * kWaveSize, kTokens = kTileRows;
constexpr u32 kStep = 32, kVec = kVecBytes / sizeof(Input);  // elements of K per wave, per lane
constexpr u32 kPrefetch = kTiles <= 2   ? 4
                          : kTiles <= 8 ? 2
                                        : 1;        // K-steps whose loads are in flight
constexpr u32 kLoaded = kTiles < 16 ? kTiles : 16;  // tiles of them; limited by registers
constexpr u32 kLanes = kThreads / kTokens;
constexpr u32 kExpertsPerLane = (kTiles * kTileRows + kLanes - 1) / kLanes;
constexpr u32 kTilesPerPass = kTiles < 4 ? kTiles : 4;  // tiles in LDS
constexpr u32 kQuad = 4 * kTokens + 4;                  // floats of four experts, and padding
static_assert(kLanes == 32, "a token has half a wave, and a lane one expert of each two tiles");

__shared__ f32 partials[kWaves][kTilesPerPass * 4][kQuad];

struct Accumulators {
  F32x4 tile[kTiles];
};

// Multiplies this wave's K-steps.
__device__ inline Accumulators multiply(const Buffer& x, const Buffer& w, u32 x_row, u32 w_row,
                                        u32 k_end) {
  const u32 lane = lane_id(), row = lane % kTileRows, k_lane = lane / kTileRows * kVec;
  const u32 x_offset = row * x_row + k_lane * sizeof(Input),
            w_offset = row * w_row + k_lane * sizeof(Input);
  Accumulators acc = {};
  for (u32 k = wave_id() * kStep; k < k_end; k += kPrefetch * kWaves * kStep) {
    U32x4 tokens[kPrefetch];
    u32 oob_bits[kPrefetch];
#pragma unroll
    for (u32 a = 0; a < kPrefetch; ++a) {
      const u32 k0 = k + a * kWaves * kStep;
      oob_bits[a] = k0 + k_lane < k_end ? 0 : kOutOfBounds;
      tokens[a] = buffer_load_b128(x, x_offset | oob_bits[a], k0 * sizeof(Input));
    }
#pragma unroll
    for (u32 tile_begin = 0; tile_begin < kTiles; tile_begin += kLoaded) {
      U32x4 experts[kPrefetch][kLoaded];
#pragma unroll
      for (u32 i = 0; i < kPrefetch * kLoaded; ++i) {
        const u32 a = i / kLoaded, t = i % kLoaded, k0 = k + a * kWaves * kStep;
        const u32 w_row_offset = (tile_begin + t) * kTileRows * w_row + k0 * sizeof(Input);
        experts[a][t] = buffer_load_b128(w, w_offset | oob_bits[a], w_row_offset);
      }
#pragma unroll
      for (u32 i = 0; i < kPrefetch * kLoaded; ++i) {
        const u32 a = i / kLoaded, t = i % kLoaded;
        if (tile_begin + t >= kTiles) continue;
        F32x4& tile_acc = acc.tile[tile_begin + t];
        tile_acc = mfma_16x16x32<Input>(experts[a][t], tokens[a], tile_acc);
      }
      if constexpr (kLoaded < kTiles) sched_barrier();
    }
  }
  return acc;
}

// The logits of a lane's experts of its token.
struct Logits {
  f32 value[kExpertsPerLane];
};
__device__ inline Logits reduce_partials(const Accumulators& acc) {
  const u32 lane = lane_id(), wave = wave_id();
  const u32 token = thread_id() / kLanes, token_lane = thread_id() % kLanes;
  Logits logits = {};
#pragma unroll
  for (u32 tile_begin = 0; tile_begin < kTiles; tile_begin += kTilesPerPass) {
    if (tile_begin > 0) workgroup_barrier();
#pragma unroll
    for (u32 t = 0; t < kTilesPerPass && tile_begin + t < kTiles; ++t) {
      f32* quad = &partials[wave][t * 4 + lane / kTileRows][lane % kTileRows * 4];
      *reinterpret_cast<F32x4*>(quad) = acc.tile[tile_begin + t];
    }
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < (kTilesPerPass + 1) / 2 && tile_begin / 2 + i < kExpertsPerLane; ++i) {
      const u32 expert = token_lane + kLanes * i;
      if (expert >= kTilesPerPass * kTileRows) continue;
      f32 sum = 0.0f;
#pragma unroll
      for (u32 split = 0; split < kWaves; ++split) {
        sum += partials[split][expert / 4][token * 4 + expert % 4];
      }
      logits.value[tile_begin / 2 + i] = static_cast<Input>(sum);
    }
  }
  return logits;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_router(f32* __restrict__ weights,    // [M, top_k]
           i32* __restrict__ ids,        // [M, top_k]
           const Input* __restrict__ x,  // [M, K], rows x_row bytes apart
           const Input* __restrict__ w,  // [E, K], rows w_row bytes apart
           u32* __restrict__ counts,     // [E]; counts, lists and list_indices are used with kLists
           u32* __restrict__ lists,      // [E, M]
           u32* __restrict__ list_indices,  // [M, top_k]
           u32 m, u32 experts, u32 k, u32 x_row, u32 w_row) {
  const u32 m0 = workgroup_id_x() * kTokens, rows = m - m0 < kTokens ? m - m0 : kTokens;
  const u32 k_bytes = k * sizeof(Input);
  const u8* x_first = reinterpret_cast<const u8*>(x) + u64{m0} * x_row;
  const Buffer x_buffer = make_buffer(x_first, (rows - 1) * x_row + k_bytes);
  const Buffer w_buffer = make_buffer(w, (experts - 1) * w_row + k_bytes);
  const Logits logits = reduce_partials(multiply(x_buffer, w_buffer, x_row, w_row, k));

  const u32 lane = thread_id() % kLanes, row = thread_id() / kLanes;
  const Token<kOptions, kLanes, kExpertsPerLane, Input> token(
      lane, experts, 1.0f, [&](u32 i) { return logits.value[i]; }, [](u32) { return 0.0f; });
  u32 id = 0;  // the expert of assignment `lane`
#pragma unroll
  for (u32 j = 0; j < kOptions.top_k; ++j) {
    if (j != lane || row >= rows) continue;
    id = token.id[j];
    weights[u64{m0 + row} * kOptions.top_k + j] = token.weight[j];
    ids[u64{m0 + row} * kOptions.top_k + j] = static_cast<i32>(id);
  }
  if constexpr (kLists) {
    __shared__ TokenListAllocator<kThreads> allocator;
    const bool in_bounds = row < rows && lane < kOptions.top_k;
    allocator.clear(experts);
    const u32 rank = in_bounds ? allocator.take_rank(id) : 0;
    allocator.reserve(counts, experts);
    if (!in_bounds) return;
    const u32 list_idx = allocator.list_idx(id, rank);
    const bool in_list = list_idx < m;  // counts may be arbitrary after an abort
    if (in_list) lists[u64{id} * m + list_idx] = m0 + row;
    list_indices[u64{m0 + row} * kOptions.top_k + lane] = in_list ? list_idx : ~0u;
  }
}
