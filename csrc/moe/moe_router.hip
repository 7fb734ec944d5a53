// logits = In(x * w^T),  p = softmax(logits),  weights[t, j], ids[t, j] = the j-th best of p[t]
//
// x and w are f16 or bf16; sums are fp32. With RFOPS_ROUNDS p is rounded to the type of x before
// experts are compared, as torch does (see top_k.h).
//
// Layout. A workgroup has 16 tokens. Its eight waves split K in interleaved K-steps of 32: experts
// are MFMA operand A, tokens operand B, both loaded directly into registers, 16 bytes per lane. The
// eight partials are reduced in LDS, 64 experts at a time, in quads of experts of all 16 tokens; a
// quad is padded so that writes and reads have no bank conflicts. Then each wave routes two tokens,
// whose logits have taken the place of the partials.
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

constexpr u32 kTokensPerWave = kTokens / kWaves;

union Workspace {
  f32 partials[kWaves][kTilesPerPass * 4][kQuad];
  f32 logits[kTokens][kTiles * kTileRows];
};
__shared__ Workspace workspace;

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
      f32* quad = &workspace.partials[wave][t * 4 + lane / kTileRows][lane % kTileRows * 4];
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
        sum += workspace.partials[split][expert / 4][token * 4 + expert % 4];
      }
      logits.value[tile_begin / 2 + i] = static_cast<Input>(sum);
    }
  }
  return logits;
}

// Puts all logits where the partials were.
__device__ inline void write_logits(const Logits& logits) {
  const u32 token = thread_id() / kLanes, token_lane = thread_id() % kLanes;
  workgroup_barrier();
#pragma unroll
  for (u32 i = 0; i < kExpertsPerLane; ++i) {
    const u32 expert = token_lane + kLanes * i;
    if (expert < kTiles * kTileRows) workspace.logits[token][expert] = logits.value[i];
  }
  workgroup_barrier();
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

  write_logits(logits);

  const u32 lane = lane_id(), first_row = wave_id() * kTokensPerWave;
  Choice choices[kTokensPerWave];
#pragma unroll
  for (u32 t = 0; t < kTokensPerWave; ++t) {
    const u32 row = first_row + t;
    const auto load_logits = [&](auto& logit, u32 e) {
      load_experts<false>(logit, workspace.logits[row], e, experts, 1);
    };
    constexpr u32 kExpertsOfLane = (kTiles * kTileRows + kWaveSize - 1) / kWaveSize;
    choices[t] = route_token<kOptions, kWaveSize, kExpertsOfLane, Input>(
        lane, experts, 1.0f, nullptr, load_logits, [](auto&, u32) {});
    if (row >= rows || lane >= kOptions.top_k) continue;
    weights[u64{m0 + row} * kOptions.top_k + lane] = choices[t].weight;
    ids[u64{m0 + row} * kOptions.top_k + lane] = static_cast<i32>(choices[t].id);
  }
  if constexpr (kLists) {
    __shared__ TokenListAllocator<kThreads> allocator;
    const auto is_listed = [&](u32 t) { return first_row + t < rows && lane < kOptions.top_k; };
    u32 rank[kTokensPerWave];
    allocator.clear(experts);
#pragma unroll
    for (u32 t = 0; t < kTokensPerWave; ++t) {
      rank[t] = is_listed(t) ? allocator.take_rank(choices[t].id) : 0;
    }
    allocator.reserve(counts, experts);
#pragma unroll
    for (u32 t = 0; t < kTokensPerWave; ++t) {
      if (!is_listed(t)) continue;
      const u32 token = m0 + first_row + t, id = choices[t].id;
      const u32 list_idx = allocator.list_idx(id, rank[t]);
      const bool in_list = list_idx < m;  // counts may be arbitrary after an abort
      if (in_list) lists[u64{id} * m + list_idx] = token;
      list_indices[u64{token} * kOptions.top_k + lane] = in_list ? list_idx : ~0u;
    }
  }
}
