// weights[t, j], ids[t, j] = score and id of the j-th best expert of token t
//
// Scores are the softmax, the sigmoid or sqrt(softplus) of a token's logits. With a bias the best
// experts have the largest score + bias; with groups they are chosen from the best groups
// (top_k.h). Weights are the scores, optionally normalised to a sum of 1, times a scale.
//
// Layout. A token has a wave, or up to 16 lanes for few experts; lane j has its j-th choice. Waves
// without a token end at once: one token costs what one wave does.
//
// Floor: the launch, 2.0 us, one cold load, 0.4 us, and 8 chosen by maxima over a wave, 0.35 us.
// Estimated, cold caches, DeepSeek-V3's routing of 256 experts: MI355X 3.51 us, MI300X 3.70.
//
// Guarantees: bitwise deterministic; equal scores are ordered by id. ids are different experts
// below E for any logits: NaN counts as the lowest. logits may have any strides.
#include "moe/top_k.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                      // bf16, f16 or f32
using Bias = RFOPS_BIAS;                     // likewise
constexpr u32 kLanes = RFOPS_LANES;          // per token: 1 to 16, or a wave
constexpr u32 kExpertsPerLane = RFOPS_EACH;  // the last of a group may be out of range
constexpr bool kWhole = RFOPS_WHOLE;         // none is, and load_experts loads them at once
constexpr TopKOptions kOptions = {
    .scoring = Scoring::RFOPS_SCORING,
    .rounds = RFOPS_ROUNDS,
    .has_bias = RFOPS_HAS_BIAS,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = RFOPS_GROUPS,
    .groups_taken = RFOPS_GROUPS_TAKEN,
};
constexpr u32 kThreads = RFOPS_THREADS, kTokens = kThreads / kLanes;  // per workgroup

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_topk(f32* __restrict__ weights,         // [M, top_k]
         i32* __restrict__ ids,             // [M, top_k]
         const Input* __restrict__ logits,  // [M, E], strides row_stride, column_stride
         const Bias* __restrict__ bias,     // [E] or null
         u32 m, u32 experts, u64 row_stride, u32 column_stride, f32 scale) {
  __shared__ f32 scores[kTokens][kLanes * kExpertsPerLane];
  const u32 lane = thread_id() % kLanes, tile_row = thread_id() / kLanes;
  const u32 row = workgroup_id_x() * kTokens + tile_row, wave_row = readfirstlane(row);
  if (wave_row >= m) return;
  // All lanes of a wave stay active; those without a token read the last one.
  const u32 token = kLanes == kWaveSize ? wave_row : row < m ? row : m - 1;
  const Input* token_logits = logits + token * row_stride;
  const Choice choice = route_token<kOptions, kLanes, kExpertsPerLane, Input>(
      lane, experts, scale, scores[tile_row],
      [&](auto& logit, u32 e) {
        load_experts<kWhole>(logit, token_logits, e, experts, column_stride);
      },
      [&](auto& values, u32 e) { load_experts<kWhole>(values, bias, e, experts, 1); });
  if (row >= m || lane >= kOptions.top_k) return;
  weights[u64{row} * kOptions.top_k + lane] = choice.weight;
  ids[u64{row} * kOptions.top_k + lane] = static_cast<i32>(choice.id);
}
