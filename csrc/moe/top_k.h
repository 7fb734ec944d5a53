// Top-k routing of a token: the scores of its logits, and the experts with the highest scores;
// equal scores are ordered by id.
//
// kLanes adjacent lanes share a token's experts: value i of lane l belongs to expert l + kLanes *
// i. Logits are made finite first: NaN and -infinity become the lowest finite number, +infinity the
// largest. So the ids are always different, existing experts.
#pragma once

#include "moe/exp.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

enum class Scoring { kSoftmax, kSigmoid };

// Compile-time options.
struct TopKOptions {
  Scoring scoring;
  bool rounds;        // round scores to the logits' type before they are compared
  bool has_bias;      // a bias is added to the scores for the selection alone
  bool renormalizes;  // the weights of a token add up to 1
  u32 top_k;          // experts per token
  u32 groups,
      groups_taken;  // groups of consecutive experts; only the best groups' experts are eligible
};

struct Best {
  f32 key;
  u32 id;
};

__device__ inline f32 finite(f32 x) {
  const f32 number = x > -kLargest ? x : -kLargest;  // NaN too
  return number < kLargest ? number : kLargest;
}

// A lane's selection keys, kExpertsPerLane values; removed experts have the key -infinity.
template <u32 kLanes, u32 kExpertsPerLane>
class LaneScores {
 public:
  f32 key[kExpertsPerLane];

  __device__ explicit LaneScores(u32 lane) : lane_(lane) {}
  __device__ u32 expert(u32 i) const { return lane_ + kLanes * i; }

  // Returns the best of experts begin to end - 1.
  __device__ Best best(u32 begin = 0, u32 end = ~0u) const {
    f32 max = -kInfinity;
    u32 id = ~0u;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      const bool is_better = key[i] > max && expert(i) >= begin && expert(i) < end;
      max = is_better ? key[i] : max;
      id = is_better ? expert(i) : id;
    }
    const f32 top = max_over_lanes<kLanes>(max);
    return {top, min_over_lanes<kLanes>(max == top ? id : ~0u)};
  }
  __device__ void remove(u32 id) {
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) key[i] = expert(i) == id ? -kInfinity : key[i];
  }
  __device__ void remove_group(u32 begin, u32 end) {
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      key[i] = expert(i) >= begin && expert(i) < end ? -kInfinity : key[i];
    }
  }

 private:
  u32 lane_;
};

namespace details {

// Removes the experts of all but the best groups. A group's score is its best key, with a bias the
// sum of its two best keys.
template <TopKOptions kOptions, u32 kLanes, u32 kExpertsPerLane>
__device__ inline void keep_groups(LaneScores<kLanes, kExpertsPerLane>& keys, u32 experts) {
  const u32 group_size = experts / kOptions.groups;
  f32 score[kOptions.groups];
#pragma unroll
  for (u32 g = 0; g < kOptions.groups; ++g) {
    const u32 begin = g * group_size, end = begin + group_size;
    const Best best = keys.best(begin, end);
    score[g] = best.key;
    if constexpr (kOptions.has_bias) {
      if (group_size > 1) {
        LaneScores<kLanes, kExpertsPerLane> remaining = keys;
        remaining.remove(best.id);
        score[g] = finite(best.key + remaining.best(begin, end).key);
      }
    }
  }
#pragma unroll
  for (u32 g = 0; g < kOptions.groups; ++g) {
    u32 better = 0;
#pragma unroll
    for (u32 h = 0; h < kOptions.groups; ++h) {
      better += h < g ? score[h] >= score[g] : score[h] > score[g];
    }
    if (better >= kOptions.groups_taken)
      keys.remove_group(g * group_size, g * group_size + group_size);
  }
}

}  // namespace details

// The routing of a token, computed by its kLanes lanes and replicated in them.
template <TopKOptions kOptions, u32 kLanes, u32 kExpertsPerLane, class Logit>
struct Token {
  f32 weight[kOptions.top_k];
  u32 id[kOptions.top_k];

  // logit_of(i) and bias_of(i) return the values of expert lane + kLanes * i; they are called for
  // in-range experts only.
  template <class LogitOf, class BiasOf>
  __device__ Token(u32 lane, u32 experts, f32 scale, LogitOf logit_of, BiasOf bias_of) {
    constexpr bool kIsSoftmax = kOptions.scoring == Scoring::kSoftmax;
    // Softmax keeps the order of logits, so logits are compared unless scores are modified.
    constexpr bool kByLogit = kIsSoftmax && !kOptions.rounds && !kOptions.has_bias;
    LaneScores<kLanes, kExpertsPerLane> keys(lane);
    f32 score[kExpertsPerLane];
    f32 max_score = -kInfinity;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      score[i] = keys.expert(i) < experts ? finite(logit_of(i)) : -kInfinity;
      max_score = score[i] > max_score ? score[i] : max_score;
    }
    f32 sum = 1.0f;
    if constexpr (kIsSoftmax) {
      max_score = max_over_lanes<kLanes>(max_score);
      f32 exp_sum = 0.0f;
#pragma unroll
      for (u32 i = 0; i < kExpertsPerLane; ++i) exp_sum += exp_of(score[i] - max_score);
      sum = sum_over_lanes<kLanes>(exp_sum);
    }
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) {
      const bool in_bounds = keys.expert(i) < experts;
      if constexpr (!kByLogit)
        score[i] = kIsSoftmax ? exp_of(score[i] - max_score) / sum : sigmoid(score[i]);
      if constexpr (kOptions.rounds) score[i] = static_cast<Logit>(score[i]);
      f32 key = score[i];
      if constexpr (kOptions.has_bias) key = in_bounds ? finite(key + bias_of(i)) : 0.0f;
      keys.key[i] = in_bounds ? key : -kInfinity;
    }
    if constexpr (kOptions.groups > 1) details::keep_groups<kOptions>(keys, experts);

    f32 total = 0.0f;
#pragma unroll
    for (u32 k = 0; k < kOptions.top_k; ++k) {
      const Best best = keys.best();
      keys.remove(best.id);
      id[k] = best.id;
      if constexpr (kByLogit) {
        weight[k] = exp_of(best.key - max_score) / sum;
      } else if constexpr (kOptions.has_bias) {
        f32 chosen_score = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kExpertsPerLane; ++i)
          chosen_score = keys.expert(i) == best.id ? score[i] : chosen_score;
        weight[k] = max_over_lanes<kLanes>(chosen_score);  // scores are not negative
      } else {
        weight[k] = best.key;
      }
      total += weight[k];
    }
    const f32 divisor = kOptions.renormalizes && total > 0.0f ? total : 1.0f;
#pragma unroll
    for (u32 k = 0; k < kOptions.top_k; ++k) {
      weight[k] = (kOptions.renormalizes ? weight[k] / divisor : weight[k]) * scale;
    }
  }
};

}  // namespace rfops
