// weights[t, j], ids[t, j] = the j-th best expert of token t, and its score
//
// Scores are the softmax or the sigmoid of a token's logits; with a bias the best are those of the
// largest score + bias, with groups those of the best groups (top_k.h). Weights are scores, which
// may be made to add up to 1, times a scale.
//
// Layout. kLanes neighbouring lanes have a token, each every kLanes-th of its experts; a wave has
// 64 / kLanes tokens. All lanes of a token know all it finds, and share its stores.
//
// Promises. Deterministic; of equals the lowest id. ids are different experts below E whatever the
// logits are: NaN counts as the least. logits may have any strides.
#include "moe/top_k.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using In = RFOPS_IN;                 // bf16, f16 or f32
using Bias = RFOPS_BIAS;             // likewise
constexpr u32 kLanes = RFOPS_LANES;  // of a token
constexpr u32 kEach = RFOPS_EACH;    // experts of a lane, the last of which may not be there
constexpr TopKOptions kHow = {
    .scoring = RFOPS_SIGMOID ? Scoring::kSigmoid : Scoring::kSoftmax,
    .rounds = RFOPS_ROUNDS,
    .has_bias = RFOPS_HAS_BIAS,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = RFOPS_GROUPS,
    .groups_taken = RFOPS_GROUPS_TAKEN,
};
constexpr u32 kThreads = 256, kTokens = kThreads / kLanes;  // of a workgroup

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_topk(f32* __restrict__ weights,      // [M, top_k]
         i32* __restrict__ ids,          // [M, top_k]
         const In* __restrict__ logits,  // [M, E], in steps of
         const Bias* __restrict__ bias,  // [E] or null
         u32 m, u32 experts, u64 row_stride, u64 column_stride, f32 scale) {
  const u32 lane = thread_id() % kLanes;
  const u32 row = workgroup_id_x() * kTokens + thread_id() / kLanes;
  const bool is_there = row < m;  // all lanes are needed: one that is not reads what the last does
  const In* from = logits + (is_there ? row : m - 1) * row_stride;
  const Token<kHow, kLanes, kEach, In> token(
      lane, experts, scale,
      [&](u32 i) { return static_cast<f32>(from[(lane + kLanes * i) * column_stride]); },
      [&](u32 i) { return static_cast<f32>(bias[lane + kLanes * i]); });
  if (!is_there) return;
#pragma unroll
  for (u32 k = 0; k < kHow.top_k; ++k) {
    if (k % kLanes != lane) continue;
    weights[u64{row} * kHow.top_k + k] = token.weight[k];
    ids[u64{row} * kHow.top_k + k] = static_cast<i32>(token.id[k]);
  }
}
