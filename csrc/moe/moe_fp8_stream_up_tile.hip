// h[t, j] = T(silu(x[t] Wg) * (x[t] Wu)),  W of expert topk_ids[t, j], or of the shared expert j -
// TOP_K
//
// For up to 16 tokens in one launch, without moe_fp8_stream_prepare.hip: x has T's type and is
// quantised here, with fp32 scales per 1 x 128. Weights are read once, from memory to registers;
// they are FP8 (e4m3fnuz on gfx942, e4m3 on gfx950) with fp32 scales per 128 x 128. T is f16 or
// bf16.
//
// Layout. A workgroup has 16 columns of gate and the same 16 of up of a slot's expert: a shared
// one, the first choice of an expert, or, if there are fewer experts than choices, one of them. Its
// kWaves waves interleave along K in spans of kSpan blocks of 128. Loads bring 128 kSpan bytes of a
// row, which the wave reorders to fragments through its own LDS: with 256 bytes HBM opens twice as
// many rows as with 512 (estimated, MI355X, 16 tokens, 257 experts of 7168 x 256, x quantised
// before: 73.0 us with 256 bytes, 67.2 with 512), but a CU has more waves. Weights are MFMA operand
// A, tokens operand B, zeros for a token that did not choose the expert (quantise_hit_rows.h). The
// waves' partials are reduced in LDS in the order of the waves. One slot more lists the experts for
// moe_fp8_stream_down.hip.
//
// Guarantees: bitwise deterministic; hits are ascending after the shared ones.
// Requires: N and K multiples of 128; rows 16-byte aligned; at most 16 tokens.
#include "moe/hit_experts.h"
#include "moe/quantise_hit_rows.h"
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
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kSums = 2;  // gate and up

constexpr u32 kSpan = RFOPS_SPAN;  // blocks of K, cache lines of a row, that a load brings
using Order = WaveOrder<kSpan>;
using WeightRows = WaveTileLoader<RFOPS_SHUFFLED, kSpan>;
using XRows = HitRows<Input, kSpan, kSpan>;  // four rows at once: of more, SGPRs spill
constexpr u32 kLoads = kSpan / WeightRows::kTiles;
static_assert(kLoads * WeightRows::kTiles == kSpan, "a whole number of loads");
using OutVec = Input __attribute__((ext_vector_type(4)));

constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }
constexpr u32 kSumBytes = kSums * kWaveSize * sizeof(F32x4);  // of a wave
constexpr u32 kUsedBytes = larger(larger(kSumBytes, Order::kBytes), XRows::kBytes);
constexpr u32 kWaveBytes = (kUsedBytes + kLdsTile - 1) / kLdsTile * kLdsTile;
static_assert(kWaves * kWaveBytes <= 64 << 10, "a workgroup fits a CU");
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

constexpr u32 kNoExpert = ~0u;

// Returns a slot's expert, kNoExpert if the slot has no work.
__device__ inline u32 expert_of(u32 slot, const LaneChoices<kTopK, 1, Id>& choices,
                                const Id* topk_ids, u32 m, u32 routed, u32 shared) {
  if (slot < shared) return routed + slot;
  const u32 number = slot - shared;
  if (m * kTopK >= routed) return choices.any_before(~0u, number) ? number : kNoExpert;
  const Id id = topk_ids[number];
  if (id < 0 || id >= static_cast<Id>(routed)) return kNoExpert;
  const u32 expert = readfirstlane(static_cast<u32>(id));
  return choices.any_before(number, expert) ? kNoExpert : expert;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(2)))
moe_fp8_stream_up_tile(const Id* __restrict__ topk_ids,  // [M, kTopK]
                       u32 m, u32 routed, u32 shared, u32 n, u32 k,
                       const u8* __restrict__ w,         // [E, 2 N, K], gate and then up
                       const Input* __restrict__ x,      // [M, K]
                       const f32* __restrict__ w_scale,  // [E, 2 N/128, K/128]
                       Input* __restrict__ h,            // [M, kTopK + shared, N]
                       u32* __restrict__ hits)           // [1 + E]: how many experts, which
{
  const u32 n0 = workgroup_id_x() * kTileRows, slot = workgroup_id_y();
  const u32 wave = wave_id(), lane = lane_id(), blocks = k / kTileK, choices_of_all = m * kTopK;
  if (slot == shared + (choices_of_all < routed ? choices_of_all : routed)) {
    if (n0 == 0)
      find_hit_experts<kThreads>(reinterpret_cast<HitBits&>(memory), hits, topk_ids, choices_of_all,
                                 routed, routed + shared);
    return;
  }
  const LaneChoices<kTopK, 1, Id> choices(topk_ids, m, routed);
  const u32 expert = expert_of(slot, choices, topk_ids, m, routed, shared);
  if (expert == kNoExpert) return;
  const bool is_shared = expert >= routed;
  const u8* const rows = w + u64{expert} * 2 * n * k;
  const WeightRows gate_rows({rows, n0, n, kTileRows, k, 0, k, WeightRows::kKStrideBytes}, lane);
  const WeightRows up_rows(
      {rows + u64{n} * k, n0, n, kTileRows, k, 0, k, WeightRows::kKStrideBytes}, lane);
  const f32* const gate_scales = w_scale + (u64{expert} * 2 * n + n0) / kTileK * blocks;
  const f32* const up_scales = gate_scales + n / kTileK * blocks;

  const u32 row_bytes = k * u32{sizeof(Input)};
  const Buffer x_buffer = make_buffer(x, m * row_bytes);
  const u32 token = lane % kTileRows;
  const u32 choice =
      is_shared ? (token < m ? kTopK + expert - routed : ~0u) : choices.first(0, expert);
  constexpr u32 kRowMask = (1u << kTileRows) - 1;
  const u32 hit_rows = static_cast<u32>(__builtin_amdgcn_ballot_w64(choice != ~0u)) & kRowMask;

  F32x4 sums[kSums] = {};
  const Order order((LdsBytes*)memory, wave * kWaveBytes, lane);
  for (u32 begin = wave * kSpan; begin < blocks; begin += kWaves * kSpan) {
    Fragment gate[kSpan], up[kSpan];
    f32 gate_scale[kSpan], up_scale[kSpan];
    // x first: it comes from L2 and is quantised before the weights are there.
    XRows x_rows(x_buffer, token * row_bytes, hit_rows);
    x_rows.load(begin, blocks);
#pragma unroll
    for (u32 l = 0; l < kLoads; ++l) {
      const u32 s = l * WeightRows::kTiles;
      gate_rows.template load<kStreamed>(&gate[s], 0, begin + s, blocks);
      up_rows.template load<kStreamed>(&up[s], 0, begin + s, blocks);
    }
#pragma unroll
    for (u32 s = 0; s < kSpan; ++s) {
      const u32 block = begin + s < blocks ? begin + s : 0;
      gate_scale[s] = gate_scales[block];
      up_scale[s] = up_scales[block];
    }
    sched_barrier();
    Fragment x_tile[kSpan];
    f32 x_scale[kSpan];
    x_rows.quantise(x_tile, x_scale, (LdsBytes*)memory[wave], begin, blocks);
    sched_barrier();
#pragma unroll
    for (u32 l = 0; l < kLoads; ++l) {
      WeightRows::arrange(&gate[l * WeightRows::kTiles], order);
      WeightRows::arrange(&up[l * WeightRows::kTiles], order);
    }
#pragma unroll
    for (u32 s = 0; s < kSpan; ++s) {
      F32x4 of_gate = {}, of_up = {};
#pragma unroll
      for (u32 q = 0; q < kMatrixSteps; ++q) {
        of_gate = mfma_fp8_step(q, gate[s], x_tile[s], of_gate);
        of_up = mfma_fp8_step(q, up[s], x_tile[s], of_up);
      }
      const f32 of_gate_scale = x_scale[s] * gate_scale[s];
      const f32 of_up_scale = x_scale[s] * up_scale[s];
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        sums[0][e] = __builtin_fmaf(of_gate[e], of_gate_scale, sums[0][e]);
        sums[1][e] = __builtin_fmaf(of_up[e], of_up_scale, sums[1][e]);
      }
    }
  }

#pragma unroll
  for (u32 t = 0; t < kSums; ++t) memory[wave][t * kWaveSize + lane] = sums[t];
  workgroup_barrier();
  using Partials = LdsPartials<F32x4, kWaves, kWaveBytes / sizeof(F32x4)>;
  const auto& partials = reinterpret_cast<const Partials&>(memory);
  if (wave != 0 || choice == ~0u) return;
  const F32x4 gate = partials.sum(lane), up = partials.sum(kWaveSize + lane);
  OutVec out;
#pragma unroll
  for (u32 e = 0; e < 4; ++e) out[e] = static_cast<Input>(silu(gate[e]) * up[e]);
  const u64 row = u64{token} * (kTopK + shared) + choice;
  *reinterpret_cast<OutVec*>(h + row * n + n0 + lane / kTileRows * 4) = out;
}
