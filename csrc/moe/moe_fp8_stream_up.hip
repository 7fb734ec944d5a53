// h[t, j] = T(silu(x[t] Wg) * (x[t] Wu)),  W of expert topk_ids[t, j], or of the shared expert j -
// TOP_K
//
// For up to 16 kTiles tokens, whose experts have few rows each: weights are read once, from memory
// to registers. FP8 (e4m3fnuz on gfx942, e4m3 on gfx950) with fp32 scales per 1 x 128 of x and per
// 128 x 128 of W. T is f16 or bf16.
//
// Layout. A workgroup has an expert of `hits` (hit_experts.h) and 16
// columns of gate and the same 16 of up. Its kWaves waves interleave along K in blocks of 128, of
// which a wave has kSteps in flight. Loads bring kLines whole cache lines of a row, which the wave
// reorders to fragments through its own LDS. Weights are MFMA operand A, tokens operand B: a row of
// a token that did not choose the expert is loaded as zeros without a memory access, and 16 tokens
// of whom none did are skipped. The waves' partials are reduced in LDS in the order of the waves.
//
// Guarantees: bitwise deterministic.
// Requires: N and K multiples of 128; rows 16-byte aligned; at most 16 kTiles tokens.
#include "moe/hit_experts.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/exp.h"
#include "rfops/tile/wave_loader.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;     // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kTiles = RFOPS_TILES;  // of 16 tokens
constexpr u32 kSteps = RFOPS_STEPS;  // blocks of K that a wave has in flight
constexpr u32 kWaves = 8, kThreads = kWaves * kWaveSize;
constexpr u32 kSums = 2 * kTiles;  // gate and up of each tile

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

// Operands of kSteps blocks of K.
struct Step {
  Fragment gate[kSteps], up[kSteps], x[kTiles][kSteps];
  f32 x_scale[kTiles][kSteps], gate_scale[kSteps], up_scale[kSteps];
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(kSteps* kTiles <= 4 ? 4 : 2)))
moe_fp8_stream_up(Input* __restrict__ h,            // [M, kTopK + shared, N]
                  const u8* __restrict__ x,         // [M, K]
                  const f32* __restrict__ x_scale,  // [M, K/128]
                  const u8* __restrict__ w,         // [E, 2 N, K], gate and then up
                  const f32* __restrict__ w_scale,  // [E, 2 N/128, K/128]
                  const Id* __restrict__ topk_ids,  // [M, kTopK]
                  const u32* __restrict__ hits,     // [1 + slots]: how many experts, which
                  u32 m, u32 routed, u32 shared, u32 n, u32 k) {
  const u32 n0 = workgroup_id_x() * kTileRows, slot = workgroup_id_y();
  const u32 wave = wave_id(), lane = lane_id(), blocks = k / kTileK;
  const u32 expert = load_uniform(hits + 1 + slot);
  if (slot >= load_uniform(hits)) return;
  const bool is_shared = expert >= routed;
  const u8* const rows = w + u64{expert} * 2 * n * k;
  const WeightRows gate_rows({rows, n0, n, kTileRows, k, 0, k, WeightRows::kKStrideBytes}, lane);
  const WeightRows up_rows(
      {rows + u64{n} * k, n0, n, kTileRows, k, 0, k, WeightRows::kKStrideBytes}, lane);
  const f32* const gate_scales = w_scale + (u64{expert} * 2 * n + n0) / kTileK * blocks;
  const f32* const up_scales = gate_scales + n / kTileK * blocks;

  const LaneChoices<kTopK, kTiles, Id> choices(topk_ids, m, routed);
  const Buffer x_buffer = make_buffer(x, m * k);
  const Buffer x_scale_buffer = make_buffer(x_scale, m * blocks * u32{sizeof(f32)});
  u32 place[kTiles], x_offset[kTiles], scale_offset[kTiles];
  bool has_rows[kTiles];
#pragma unroll
  for (u32 i = 0; i < kTiles; ++i) {
    const u32 token = i * kTileRows + lane % kTileRows;
    place[i] = is_shared ? (token < m ? kTopK + expert - routed : ~0u) : choices.first(i, expert);
    const bool has_row = place[i] != ~0u;
    has_rows[i] = __builtin_amdgcn_ballot_w64(has_row) != 0;
    x_offset[i] = has_row ? token * k + lane / kTileRows * kVecBytes : kOutOfBounds;
    scale_offset[i] = has_row ? token * blocks * u32{sizeof(f32)} : kOutOfBounds;
  }

  F32x4 sums[kSums] = {};
  const Order order((LdsBytes*)memory, wave * kWaveBytes, lane);
  for (u32 begin = wave * kSpan; begin < blocks; begin += kWaves * kSteps) {
    const auto block_of = [&](u32 s) { return begin + s / kSpan * kWaves * kSpan + s % kSpan; };
    Step step;
#pragma unroll
    for (u32 s = 0; s < kSteps; s += kSpan) {
      const u32 block = block_of(s);
      gate_rows.template load<kStreamed>(&step.gate[s], 0, block, blocks);
      up_rows.template load<kStreamed>(&step.up[s], 0, block, blocks);
    }
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      const u32 block = block_of(s);
      const bool in_bounds = block < blocks;
      step.gate_scale[s] = gate_scales[in_bounds ? block : 0];
      step.up_scale[s] = up_scales[in_bounds ? block : 0];
#pragma unroll
      for (u32 i = 0; i < kTiles; ++i) {
        const u32 offset = in_bounds ? x_offset[i] : kOutOfBounds;
        step.x[i][s] = load_fragment(x_buffer, offset, block * kTileK);
        const u32 scale = in_bounds ? scale_offset[i] : kOutOfBounds;
        step.x_scale[i][s] = __builtin_bit_cast(
            f32, buffer_load_dwords<1>(x_scale_buffer, scale, block * u32{sizeof(f32)}).dword[0]);
      }
    }
    sched_barrier();
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      if (s % kSpan == 0) {
        WeightRows::arrange(&step.gate[s], order);
        WeightRows::arrange(&step.up[s], order);
      }
#pragma unroll
      for (u32 i = 0; i < kTiles; ++i) {
        if (kTiles > 1 && !has_rows[i]) continue;
        F32x4 gate = {}, up = {};
#pragma unroll
        for (u32 q = 0; q < kMatrixSteps; ++q) {
          gate = mfma_fp8_step(q, step.gate[s], step.x[i][s], gate);
          up = mfma_fp8_step(q, step.up[s], step.x[i][s], up);
        }
        const f32 gate_scale = step.x_scale[i][s] * step.gate_scale[s];
        const f32 up_scale = step.x_scale[i][s] * step.up_scale[s];
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          sums[2 * i][e] = __builtin_fmaf(gate[e], gate_scale, sums[2 * i][e]);
          sums[2 * i + 1][e] = __builtin_fmaf(up[e], up_scale, sums[2 * i + 1][e]);
        }
      }
    }
  }

#pragma unroll
  for (u32 t = 0; t < kSums; ++t) memory[wave][t * kWaveSize + lane] = sums[t];
  workgroup_barrier();
  using Partials = LdsPartials<F32x4, kWaves, kWaveBytes / sizeof(F32x4)>;
  const auto& partials = reinterpret_cast<const Partials&>(memory);
#pragma unroll
  for (u32 i = 0; i < kTiles; ++i) {
    if (i % kWaves != wave || place[i] == ~0u) continue;
    const F32x4 gate = partials.sum(2 * i * kWaveSize + lane);
    const F32x4 up = partials.sum((2 * i + 1) * kWaveSize + lane);
    OutVec out;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) out[e] = static_cast<Input>(silu(gate[e]) * up[e]);
    const u64 row = u64{i * kTileRows + lane % kTileRows} * (kTopK + shared) + place[i];
    *reinterpret_cast<OutVec*>(h + row * n + n0 + lane / kTileRows * 4) = out;
  }
}
