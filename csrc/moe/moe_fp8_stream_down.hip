// out[t] = T(sum_j weights[t, j] * (h[t, j] Wd) + sum over shared experts of h[t, j] Wd),  Wd of
// expert topk_ids[t, j], or of the shared expert j - TOP_K
//
// The second launch after moe_fp8_stream_up.hip, for the same few tokens. h is quantised to FP8
// with one scale per 1 x 128 (fp8_blockscale.h) where it is loaded; weights have fp32 scales per
// 128 x 128. T is f16 or bf16. Of choices of the same expert by a token the first has the row, and
// its weight is their sum.
//
// Layout. A workgroup computes 16 kColumnTiles columns of all tokens. Its kWaves waves interleave
// over the experts of `hits` (hit_experts.h); a wave loads an expert's weights for kSteps blocks of
// K while it multiplies those before. Weights are MFMA operand A, tokens operand B; a token's row
// is zeros where it did not choose the expert. The waves' sums are reduced in LDS in the order of
// the waves.
//
// Guarantees: bitwise deterministic.
// Requires: N and K multiples of 128; rows 16-byte aligned; at most 16 kTiles tokens.
#include "moe/hit_experts.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/tile/wave_loader.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;     // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kTiles = RFOPS_TILES;               // of 16 tokens
constexpr u32 kSteps = RFOPS_STEPS;               // blocks of K that are loaded together
constexpr u32 kColumnTiles = RFOPS_COLUMN_TILES;  // of 16 columns
constexpr u32 kWaves = 8, kThreads = kWaves * kWaveSize, kColumns = kColumnTiles * kTileRows;
constexpr u32 kSums = kTiles * kColumnTiles;
static_assert(kTileK % kColumns == 0, "a workgroup's columns have one scale per block");

constexpr u32 kLines = RFOPS_LINES;  // cache lines of a row per load, or 0 (wave_loader.h)
using Order = WaveOrder<kLines>;
using WeightRows = WaveTileLoader<RFOPS_SHUFFLED, kLines>;
constexpr u32 kSpan = Order::kTiles;  // neighbouring blocks that are loaded together
static_assert(kSteps % kSpan == 0, "a whole number of loads");
using OutVec = Input __attribute__((ext_vector_type(4)));

constexpr u32 kSumBytes = kSums * kWaveSize * sizeof(F32x4);  // of a wave
constexpr u32 kWaveBytes = kSumBytes > Order::kBytes ? kSumBytes : Order::kBytes;
static_assert(kWaves * kWaveBytes <= 64 << 10, "a workgroup fits a CU");
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

// What a wave loads at a time: kSteps blocks of K of an expert.
struct Task {
  Fragment w[kColumnTiles][kSteps];
  Fragment h[kTiles][kSteps];
  f32 w_scale[kSteps], h_scale[kTiles][kSteps], weight[kTiles];
  bool has_row[kTiles];
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_fp8_stream_down(Input* __restrict__ out,               // [M, N]
                    const u8* __restrict__ h,              // [M, kTopK + shared, K]
                    const f32* __restrict__ h_scale,       // [M, kTopK + shared, K/128]
                    const u8* __restrict__ w,              // [E, N, K]
                    const f32* __restrict__ w_scale,       // [E, N/128, K/128]
                    const Id* __restrict__ topk_ids,       // [M, kTopK]
                    const f32* __restrict__ topk_weights,  // [M, kTopK]
                    const u32* __restrict__ hits,          // [1 + slots]: how many experts, which
                    u32 m, u32 routed, u32 shared, u32 n, u32 k) {
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
  const u32 all_rows = m * (kTopK + shared);
  const Buffer h_buffer = make_buffer(h, all_rows * k);
  const Buffer h_scales = make_buffer(h_scale, all_rows * blocks * u32{sizeof(f32)});

  const auto load = [&](Task& task, u32 number) {
    const u32 index = wave + number / chunks * kWaves, first_block = number % chunks * kSteps;
    const bool is_done = index >= count;
    const u32 expert = is_done ? 0 : load_uniform(hits + 1 + index);
    const bool is_shared = expert >= routed;
    const u32 end = is_done ? 0 : blocks;
    const WeightRows rows(
        {w + u64{expert} * n * k, n0, n, kColumns, k, 0, k, WeightRows::kKStrideBytes}, lane);
#pragma unroll
    for (u32 s = 0; s < kSteps; s += kSpan) {
#pragma unroll
      for (u32 j = 0; j < kColumnTiles; ++j) {
        rows.template load<kStreamed>(&task.w[j][s], j * kTileRows, first_block + s, end);
      }
    }
    const f32* const scales = w_scale + (u64{expert} * n + n0) / kTileK * blocks;
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      task.w_scale[s] = scales[first_block + s < blocks ? first_block + s : 0];
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
    sched_barrier();
  };

  F32x4 sums[kSums] = {};
  const Order order((LdsBytes*)memory, wave * kWaveBytes, lane);
  const auto multiply = [&](Task& task) {
#pragma unroll
    for (u32 s = 0; s < kSteps; s += kSpan) {
#pragma unroll
      for (u32 j = 0; j < kColumnTiles; ++j) WeightRows::arrange(&task.w[j][s], order);
    }
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      if (kTiles > 1 && __builtin_amdgcn_ballot_w64(task.has_row[i]) == 0) continue;
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
        const f32 scale = task.h_scale[i][s] * task.w_scale[s] * task.weight[i];
#pragma unroll
        for (u32 j = 0; j < kColumnTiles; ++j) {
          F32x4 partial = {};
#pragma unroll
          for (u32 q = 0; q < kMatrixSteps; ++q) {
            partial = mfma_fp8_step(q, task.w[j][s], task.h[i][s], partial);
          }
          F32x4& sum = sums[i * kColumnTiles + j];
#pragma unroll
          for (u32 e = 0; e < 4; ++e) {  // 0 times a NaN of weights that a token did not choose
            sum[e] = task.has_row[i] ? __builtin_fmaf(partial[e], scale, sum[e]) : sum[e];
          }
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
    const u32 token = t / kColumnTiles * kTileRows + lane % kTileRows;
    if (token >= m) return;
    OutVec values;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) values[e] = static_cast<Input>(total[e]);
    const u32 column = n0 + t % kColumnTiles * kTileRows + lane / kTileRows * 4;
    *reinterpret_cast<OutVec*>(out + u64{token} * n + column) = values;
  });
}
