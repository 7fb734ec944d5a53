// out[t] = T(sum_j weights[t, j] * (h[t, j] Wd) + sum over shared experts of h[t, j] Wd),  Wd of
// expert topk_ids[t, j], or of the shared expert j - TOP_K
//
// The launch after moe_fp8_stream_up.hip, for the same few tokens. h is FP8 with one scale per
// 1 x 128 (fp8_blockscale.h), or, with kRaw, of T's type and quantised so here, for K up to kSteps
// blocks and 16 tokens; weights have fp32 scales per 128 x 128. T is f16 or bf16. Of choices of the
// same expert by a token the first has the row, and its weight is their sum.
//
// Layout. A workgroup computes kColumns columns of all tokens, up to 16: fewer where that gives
// each CU as many workgroups. Its kWaves waves interleave over the experts of `hits`
// (hit_experts.h); a wave loads an expert's weights for kSteps blocks of K while it multiplies
// those before. Weights are MFMA operand A, tokens operand B; a token's row is zeros where it did
// not choose the expert. The waves' sums are reduced in LDS in the order of the waves.
//
// Guarantees: bitwise deterministic.
// Requires: N and K multiples of 128; rows 16-byte aligned; at most 16 kTiles tokens.
#include "moe/hit_experts.h"
#include "moe/quantise_hit_rows.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/wave_loader.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;     // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kTiles = RFOPS_TILES;      // of 16 tokens
constexpr u32 kSteps = RFOPS_STEPS;      // blocks of K that are loaded together
constexpr u32 kColumns = RFOPS_COLUMNS;  // of a workgroup
constexpr u32 kWaves = 8, kThreads = kWaves * kWaveSize;
constexpr bool kRaw = RFOPS_RAW;  // h is not quantised
static_assert(!kRaw || (kTiles == 1 && kSteps == 2), "raw rows of a tile of tokens, whole");
static_assert(kColumns % 2 == 0 && kColumns <= kTileRows && (kColumns == 16 || !RFOPS_SHUFFLED),
              "pairs of columns of an MFMA tile");
// Column blocks of 128, each with a scale of its own, that a workgroup's columns may be in.
constexpr u32 kScales = kTileK % kColumns == 0 ? 1 : 2;

constexpr u32 kLines = RFOPS_LINES;  // cache lines of a row per load, or 0 (wave_loader.h)
using Order = WaveOrder<kLines>;
using WeightRows = WaveTileLoader<RFOPS_SHUFFLED, kLines>;
constexpr u32 kSpan = Order::kTiles;  // neighbouring blocks that are loaded together
static_assert(kSteps % kSpan == 0, "a whole number of loads");
constexpr u32 kStored = kColumns % 4 == 0 ? 4 : 2;  // neighbours that are stored together
using OutVec = Input __attribute__((ext_vector_type(kStored)));
using RawRows = HitRows<Input, 2, 1>;

constexpr u32 kRowMask = (1u << kTileRows) - 1;
constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }
constexpr u32 kSumBytes = kTiles * kWaveSize * sizeof(F32x4);  // of a wave
constexpr u32 kUsedBytes = larger(larger(kSumBytes, Order::kBytes), kRaw ? RawRows::kBytes : 0);
constexpr u32 kWaveBytes = (kUsedBytes + kLdsTile - 1) / kLdsTile * kLdsTile;
static_assert(kWaves * kWaveBytes <= 64 << 10, "a workgroup fits a CU");
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

// What a wave loads at a time: kSteps blocks of K of an expert.
struct Task {
  Fragment w[kSteps];
  Fragment h[kTiles][kSteps];
  RawRows raw_h;
  f32 w_scale[kScales][kSteps], h_scale[kTiles][kSteps], weight[kTiles];
  bool has_row[kTiles];
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_fp8_stream_down(const u32* __restrict__ hits,  // [1 + slots]: how many experts, which
                    u32 m, u32 routed, u32 shared,
                    const Id* __restrict__ topk_ids,       // [M, kTopK]
                    const f32* __restrict__ topk_weights,  // [M, kTopK]
                    const u8* __restrict__ w,              // [E, N, K]
                    u32 n, u32 k,
                    const void* __restrict__ h,       // [M, kTopK + shared, K]
                    const f32* __restrict__ w_scale,  // [E, N/128, K/128]
                    const f32* __restrict__ h_scale,  // [M, kTopK + shared, K/128] if not raw
                    Input* __restrict__ out) {        // [M, N]
  const u32 n0 = workgroup_id_x() * kColumns, wave = wave_id(), lane = lane_id();
  const u32 blocks = k / kTileK, chunks = (blocks + kSteps - 1) / kSteps;
  const LaneChoices<kTopK, kTiles, Id> choices(topk_ids, m, routed);
  f32 weights[kTiles][kTopK];
#pragma unroll
  for (u32 i = 0; i < kTiles; ++i) {
    const u32 token = i * kTileRows + lane % kTileRows;
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) {
      weights[i][j] = topk_weights[(token < m ? token : 0) * kTopK + j];
    }
  }
  const u32 count = load_uniform(hits);
  const u32 last_column = (n - n0 < kColumns ? n : n0 + kColumns) - 1;
  const u32 first_column = lane / kTileRows * 4;  // of the lane's four results
  const u32 all_rows = m * (kTopK + shared);
  const Buffer h_buffer = make_buffer(h, all_rows * k * u32{kRaw ? sizeof(Input) : 1});
  const Buffer h_scales = make_buffer(h_scale, all_rows * blocks * u32{sizeof(f32)});

  const auto load = [&](Task& task, u32 number) {
    const u32 index = wave + number / chunks * kWaves, first_block = number % chunks * kSteps;
    // What lies beyond the count is loaded and not used, so that no load waits for the count.
    const u32 slot = index < routed + shared ? index : 0, listed = load_uniform(hits + 1 + slot);
    const bool is_done = index >= count;
    const u32 expert = is_done ? 0 : listed;
    const bool is_shared = expert >= routed;
    const u32 end = is_done ? 0 : blocks;
    const WeightRows rows(
        {w + u64{expert} * n * k, n0, n, kColumns, k, 0, k, WeightRows::kKStrideBytes}, lane);
    const auto load_weights = [&] {
#pragma unroll
      for (u32 s = 0; s < kSteps; s += kSpan) {
        rows.template load<kStreamed>(&task.w[s], 0, first_block + s, end);
      }
    };
    if (!kRaw) load_weights();
#pragma unroll
    for (u32 b = 0; b < kScales; ++b) {
      const u32 column = b == 0 ? n0 : last_column;
      const f32* const scales = w_scale + (u64{expert} * n + column) / kTileK * blocks;
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
        task.w_scale[b][s] = scales[first_block + s < blocks ? first_block + s : 0];
      }
    }
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      const u32 token = i * kTileRows + lane % kTileRows;
      const u32 place =
          is_shared ? (token < m ? kTopK + expert - routed : ~0u) : choices.first(i, expert);
      const bool has_row = place != ~0u && !is_done;
      f32 weight = is_shared ? 1.0f : 0.0f;
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) {
        weight += !is_shared && choices.id[i][j] == expert ? weights[i][j] : 0.0f;
      }
      task.weight[i] = weight;
      task.has_row[i] = has_row;
      const u32 row = token * (kTopK + shared) + place;
      if constexpr (kRaw) {
        const u32 hit_rows = static_cast<u32>(__builtin_amdgcn_ballot_w64(has_row)) & kRowMask;
        task.raw_h = RawRows(h_buffer, row * k * u32{sizeof(Input)}, hit_rows);
        task.raw_h.load(0, blocks);
        continue;
      }
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
        const u32 block = first_block + s;
        const bool is_loaded = has_row && block < blocks;
        const u32 offset = is_loaded ? row * k + lane / kTileRows * kVecBytes : kOutOfBounds;
        task.h[i][s] = load_fragment(h_buffer, offset, block * kTileK);
        const u32 scale = is_loaded ? row * blocks * u32{sizeof(f32)} : kOutOfBounds;
        task.h_scale[i][s] = __builtin_bit_cast(
            f32, buffer_load_dwords<1>(h_scales, scale, block * u32{sizeof(f32)}).dword[0]);
      }
    }
    if (kRaw) {
      sched_barrier();
      load_weights();
    }
    sched_barrier();
  };

  F32x4 sums[kTiles] = {};
  // Of the lane's results those from this one on have the last column's scale.
  const u32 last_block_begin = last_column / kTileK * kTileK;
  const u32 first_result = n0 + first_column;
  const u32 last_scale_begin =
      last_block_begin > first_result ? last_block_begin - first_result : 0;
  const Order order((LdsBytes*)memory, wave * kWaveBytes, lane);
  const auto multiply = [&](auto& task) {
    if constexpr (kRaw)  // before the weights, which are loaded after it
      task.raw_h.quantise(task.h[0], task.h_scale[0], (LdsBytes*)memory[wave], 0, blocks);
#pragma unroll
    for (u32 s = 0; s < kSteps; s += kSpan) WeightRows::arrange(&task.w[s], order);
    // Opaque: hoisted out of the loop, the comparisons take more SGPRs than there are.
    u32 begin = last_scale_begin;
    if constexpr (kScales > 1) force_vgpr(begin);
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      if (kTiles > 1 && __builtin_amdgcn_ballot_w64(task.has_row[i]) == 0) continue;
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
        f32 scales[kScales];
#pragma unroll
        for (u32 b = 0; b < kScales; ++b)
          scales[b] = task.h_scale[i][s] * task.w_scale[b][s] * task.weight[i];
        F32x4 partial = {};
#pragma unroll
        for (u32 q = 0; q < kMatrixSteps; ++q) {
          partial = mfma_fp8_step(q, task.w[s], task.h[i][s], partial);
        }
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {  // 0 times a NaN of weights that a token did not choose
          const f32 scale = e >= begin ? scales[kScales - 1] : scales[0];
          sums[i][e] = task.has_row[i] ? __builtin_fmaf(partial[e], scale, sums[i][e]) : sums[i][e];
        }
      }
    }
  };
  const u32 tasks = wave < count ? (count - wave + kWaves - 1) / kWaves * chunks : 0;
  Task first, second;
  load(first, 0);
  for (u32 number = 0; number < tasks; number += 2) {
    load(second, number + 1);
    multiply(first);
    load(first, number + 2);
    multiply(second);
  }

  reduce_waves(memory, sums, wave, wave, lane, [&](u32, u32 t, F32x4 total) {
    const u32 token = t * kTileRows + lane % kTileRows;
    if (token >= m) return;
#pragma unroll
    for (u32 begin = 0; begin < 4; begin += kStored) {
      const u32 column = n0 + first_column + begin;
      OutVec values;
#pragma unroll
      for (u32 e = 0; e < kStored; ++e) values[e] = static_cast<Input>(total[begin + e]);
      if (column <= last_column) *reinterpret_cast<OutVec*>(out + u64{token} * n + column) = values;
    }
  });
}
