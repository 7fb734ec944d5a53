// weights[t, j], ids[t, j] = score and id of the j-th best expert of token t
//
// Scores are the softmax or the sigmoid of a token's logits. With a bias the best experts have the
// largest score + bias; with groups they are chosen from the best groups (top_k.h). Weights are the
// scores, optionally normalised to a sum of 1, times a scale.
//
// Layout. kLanes adjacent lanes share a token, each has every kLanes-th of its experts; a wave has
// 64 / kLanes tokens. The routing of a token is replicated in its lanes, which share its stores.
//
// Guarantees: bitwise deterministic; equal scores are ordered by id. ids are different experts
// below E for any logits: NaN counts as the lowest. logits may have any strides.
#include "moe/top_k.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                      // bf16, f16 or f32
using Bias = RFOPS_BIAS;                     // likewise
constexpr u32 kLanes = RFOPS_LANES;          // per token
constexpr u32 kExpertsPerLane = RFOPS_EACH;  // the last of them may be out of range
constexpr TopKOptions kOptions = {
    .scoring = RFOPS_SIGMOID ? Scoring::kSigmoid : Scoring::kSoftmax,
    .rounds = RFOPS_ROUNDS,
    .has_bias = RFOPS_HAS_BIAS,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = RFOPS_GROUPS,
    .groups_taken = RFOPS_GROUPS_TAKEN,
};
constexpr u32 kThreads = 256, kTokens = kThreads / kLanes;  // per workgroup

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_topk(f32* __restrict__ weights,         // [M, top_k]
         i32* __restrict__ ids,             // [M, top_k]
         const Input* __restrict__ logits,  // [M, E], strides row_stride, column_stride
         const Bias* __restrict__ bias,     // [E] or null
         u32 m, u32 experts, u64 row_stride, u64 column_stride, f32 scale) {
  const u32 lane = thread_id() % kLanes;
  const u32 row = workgroup_id_x() * kTokens + thread_id() / kLanes;
  const bool in_bounds = row < m;  // all lanes stay active; out-of-range ones read the last token
  const Input* token_logits = logits + (in_bounds ? row : m - 1) * row_stride;
  const Token<kOptions, kLanes, kExpertsPerLane, Input> token(
      lane, experts, scale,
      [&](u32 i) { return static_cast<f32>(token_logits[(lane + kLanes * i) * column_stride]); },
      [&](u32 i) { return static_cast<f32>(bias[lane + kLanes * i]); });
  if (!in_bounds) return;
#pragma unroll
  for (u32 k = 0; k < kOptions.top_k; ++k) {
    if (k % kLanes != lane) continue;
    weights[u64{row} * kOptions.top_k + k] = token.weight[k];
    ids[u64{row} * kOptions.top_k + k] = static_cast<i32>(token.id[k]);
  }
}
