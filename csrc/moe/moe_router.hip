// logits = In(x * w^T),  p = softmax(logits),  weights[t, j], ids[t, j] = the j-th best of p[t]
//
// In is f16 or bf16; sums are fp32. With kRounds p is In(p) before experts are compared, as torch
// rounds it (top_k.h says the rest).
//
// Layout. A workgroup has 16 tokens, and its eight waves share out K, 32 in turn: experts are
// operand A, tokens B, both straight from memory into registers, 16 bytes a lane. The eight sums
// meet in LDS, 64 experts at a time, in quads of experts of all 16 tokens, a quad padded so that
// neither side has bank conflicts. Then 32 lanes have a token and choose.
//
// With kLists each token also goes into the lists of its experts, as moe_lists.hip makes them.
//
// Promises. Deterministic: eight sums in the order of waves, each along K. Rows are aligned to 16
// bytes, K is a multiple of 8; 16 rows of x, and w, span less than 2 GiB.
#include "moe/token_lists.h"
#include "moe/top_k.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"

namespace {

using namespace rfops;

using In = RFOPS_IN;                 // f16 or bf16
constexpr u32 kTiles = RFOPS_TILES;  // of 16 experts
constexpr bool kLists = RFOPS_LISTS;
constexpr TopKOptions kHow = {
    .scoring = Scoring::kSoftmax,
    .rounds = RFOPS_ROUNDS,
    .has_bias = false,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = 1,
    .groups_taken = 1,
};
constexpr u32 kWaves = 8, kThreads = kWaves * kWaveSize, kTokens = kTileRows;
constexpr u32 kStep = 32, kVec = kVecBytes / sizeof(In);       // of K: of a wave's turn, of a lane
constexpr u32 kAhead = kTiles <= 2 ? 4 : kTiles <= 8 ? 2 : 1;  // turns whose loads are on their way
constexpr u32 kLoaded = kTiles < 16 ? kTiles : 16;             // tiles of them: registers are few
constexpr u32 kLanes = kThreads / kTokens, kEach = (kTiles * kTileRows + kLanes - 1) / kLanes;
constexpr u32 kAtOnce = kTiles < 4 ? kTiles : 4;  // tiles in LDS
constexpr u32 kQuad = 4 * kTokens + 4;            // floats of four experts, and padding
static_assert(kLanes == 32, "half a wave a token, and of LDS a value of two a tile");

__shared__ f32 parts[kWaves][kAtOnce * 4][kQuad];

struct Sums {
  F32x4 tile[kTiles];
};

// This wave's part of K.
__device__ inline Sums multiply(const Buffer& x, const Buffer& w, u32 x_row, u32 w_row, u32 k_end) {
  const u32 lane = lane_id(), row = lane % kTileRows, k_lane = lane / kTileRows * kVec;
  const u32 x_at = row * x_row + k_lane * sizeof(In), w_at = row * w_row + k_lane * sizeof(In);
  Sums sums = {};
  for (u32 k = wave_id() * kStep; k < k_end; k += kAhead * kWaves * kStep) {
    U32x4 tokens[kAhead];
    u32 outside[kAhead];
#pragma unroll
    for (u32 a = 0; a < kAhead; ++a) {
      const u32 from = k + a * kWaves * kStep;
      outside[a] = from + k_lane < k_end ? 0 : kOutOfBounds;
      tokens[a] = buffer_load_b128(x, x_at | outside[a], from * sizeof(In));
    }
#pragma unroll
    for (u32 first = 0; first < kTiles; first += kLoaded) {
      U32x4 experts[kAhead][kLoaded];
#pragma unroll
      for (u32 i = 0; i < kAhead * kLoaded; ++i) {
        const u32 a = i / kLoaded, t = i % kLoaded, from = k + a * kWaves * kStep;
        const u32 at = (first + t) * kTileRows * w_row + from * sizeof(In);
        experts[a][t] = buffer_load_b128(w, w_at | outside[a], at);
      }
#pragma unroll
      for (u32 i = 0; i < kAhead * kLoaded; ++i) {
        const u32 a = i / kLoaded, t = i % kLoaded;
        if (first + t >= kTiles) continue;
        F32x4& sum = sums.tile[first + t];
        sum = mfma_16x16x32<In>(experts[a][t], tokens[a], sum);
      }
      if constexpr (kLoaded < kTiles) sched_barrier();
    }
  }
  return sums;
}

// Of a lane of a token: the logits of its experts.
struct Logits {
  f32 value[kEach];
};
__device__ inline Logits add_parts(const Sums& sums) {
  const u32 lane = lane_id(), wave = wave_id();
  const u32 token = thread_id() / kLanes, own = thread_id() % kLanes;
  Logits logits = {};
#pragma unroll
  for (u32 first = 0; first < kTiles; first += kAtOnce) {
    if (first > 0) workgroup_barrier();
#pragma unroll
    for (u32 t = 0; t < kAtOnce && first + t < kTiles; ++t) {
      f32* to = &parts[wave][t * 4 + lane / kTileRows][lane % kTileRows * 4];
      *reinterpret_cast<F32x4*>(to) = sums.tile[first + t];
    }
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < (kAtOnce + 1) / 2 && first / 2 + i < kEach; ++i) {
      const u32 expert = own + kLanes * i;
      if (expert >= kAtOnce * kTileRows) continue;
      f32 sum = 0.0f;
#pragma unroll
      for (u32 part = 0; part < kWaves; ++part) {
        sum += parts[part][expert / 4][token * 4 + expert % 4];
      }
      logits.value[first / 2 + i] = static_cast<In>(sum);
    }
  }
  return logits;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_router(f32* __restrict__ weights,  // [M, top_k]
           i32* __restrict__ ids,      // [M, top_k]
           const In* __restrict__ x,   // [M, K], rows x_row bytes apart
           const In* __restrict__ w,   // [E, K], rows w_row bytes apart
           u32* __restrict__ counts,   // [E]; these three with kLists
           u32* __restrict__ lists,    // [E, M]
           u32* __restrict__ slots,    // [M, top_k]
           u32 m, u32 experts, u32 k, u32 x_row, u32 w_row) {
  const u32 m0 = workgroup_id_x() * kTokens, rows = m - m0 < kTokens ? m - m0 : kTokens;
  const u32 k_bytes = k * sizeof(In);
  const u8* x_first = reinterpret_cast<const u8*>(x) + u64{m0} * x_row;
  const Buffer x_buffer = make_buffer(x_first, (rows - 1) * x_row + k_bytes);
  const Buffer w_buffer = make_buffer(w, (experts - 1) * w_row + k_bytes);
  const Logits logits = add_parts(multiply(x_buffer, w_buffer, x_row, w_row, k));

  const u32 lane = thread_id() % kLanes, row = thread_id() / kLanes;
  const Token<kHow, kLanes, kEach, In> token(
      lane, experts, 1.0f, [&](u32 i) { return logits.value[i]; }, [](u32) { return 0.0f; });
  u32 id = 0;  // of the lane's one of top_k
#pragma unroll
  for (u32 j = 0; j < kHow.top_k; ++j) {
    if (j != lane || row >= rows) continue;
    id = token.id[j];
    weights[u64{m0 + row} * kHow.top_k + j] = token.weight[j];
    ids[u64{m0 + row} * kHow.top_k + j] = static_cast<i32>(id);
  }
  if constexpr (kLists) {
    __shared__ TokenListAllocator<kThreads> room;
    const bool is_there = row < rows && lane < kHow.top_k;
    room.clear(experts);
    const u32 place = is_there ? room.place(id) : 0;
    room.reserve(counts, experts);
    if (!is_there) return;
    const u32 slot = room.slot(id, place);
    const bool has_room = slot < m;  // whatever counts were
    if (has_room) lists[u64{id} * m + slot] = m0 + row;
    slots[u64{m0 + row} * kHow.top_k + lane] = has_room ? slot : ~0u;
  }
}
