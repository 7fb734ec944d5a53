// The experts of a token: scores of its logits, and of them the highest, the lowest id among
// equals.
//
// kLanes neighbouring lanes have a token's experts: value i of lane l is of expert l + kLanes * i.
// What a logit is not (NaN, an infinity) it becomes first: NaN and -infinity the least finite
// number, infinity the largest. So ids are always different experts that there are.
#pragma once

#include "moe/exp.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace rfops {

enum class Scoring { kSoftmax, kSigmoid };

// What is done, all of it known to the compiler.
struct TopKOptions {
  Scoring scoring;
  bool rounds;               // scores to the logits' type before they are compared
  bool has_bias;             // added to scores for the choice alone
  bool renormalizes;         // the weights add up to 1
  u32 top_k;                 // experts of a token
  u32 groups, groups_taken;  // of neighbouring experts; only the best groups' may be chosen
};

struct Best {
  f32 key;
  u32 id;
};

__device__ inline f32 finite(f32 x) {
  const f32 number = x > -kLargest ? x : -kLargest;  // NaN too
  return number < kLargest ? number : kLargest;
}

// kEach values a lane of kExperts in all; those beyond are taken from the start.
template <u32 kLanes, u32 kEach>
class LaneScores {
 public:
  f32 key[kEach];

  __device__ explicit LaneScores(u32 lane) : lane_(lane) {}
  __device__ u32 expert(u32 i) const { return lane_ + kLanes * i; }

  // Of experts first to last - 1 that are not taken.
  __device__ Best best(u32 first = 0, u32 last = ~0u) const {
    f32 most = -kInfinity;
    u32 at = ~0u;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const bool is_better = key[i] > most && expert(i) >= first && expert(i) < last;
      most = is_better ? key[i] : most;
      at = is_better ? expert(i) : at;
    }
    const f32 top = max_over_lanes<kLanes>(most);
    return {top, min_over_lanes<kLanes>(most == top ? at : ~0u)};
  }
  __device__ void take(u32 id) {
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) key[i] = expert(i) == id ? -kInfinity : key[i];
  }
  __device__ void take_group(u32 first, u32 last) {
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      key[i] = expert(i) >= first && expert(i) < last ? -kInfinity : key[i];
    }
  }

 private:
  u32 lane_;
};

namespace details {

// Leaves the experts of the best groups: by their best key, with a bias by the sum of the best two.
template <TopKOptions kHow, u32 kLanes, u32 kEach>
__device__ inline void keep_groups(LaneScores<kLanes, kEach>& keys, u32 experts) {
  const u32 each = experts / kHow.groups;
  f32 score[kHow.groups];
#pragma unroll
  for (u32 g = 0; g < kHow.groups; ++g) {
    const u32 first = g * each, last = first + each;
    const Best one = keys.best(first, last);
    score[g] = one.key;
    if constexpr (kHow.has_bias) {
      if (each > 1) {
        LaneScores<kLanes, kEach> rest = keys;
        rest.take(one.id);
        score[g] = finite(one.key + rest.best(first, last).key);
      }
    }
  }
#pragma unroll
  for (u32 g = 0; g < kHow.groups; ++g) {
    u32 better = 0;
#pragma unroll
    for (u32 h = 0; h < kHow.groups; ++h) {
      better += h < g ? score[h] >= score[g] : score[h] > score[g];
    }
    if (better >= kHow.groups_taken) keys.take_group(g * each, g * each + each);
  }
}

}  // namespace details

// What the kLanes lanes of a token hold of it, and what they find.
template <TopKOptions kHow, u32 kLanes, u32 kEach, class Logit>
struct Token {
  f32 weight[kHow.top_k];
  u32 id[kHow.top_k];

  // logit(i) of expert lane + kLanes * i, bias(i) likewise; neither is asked for experts beyond.
  template <class LogitOf, class BiasOf>
  __device__ Token(u32 lane, u32 experts, f32 scale, LogitOf logit_of, BiasOf bias_of) {
    constexpr bool kIsSoftmax = kHow.scoring == Scoring::kSoftmax;
    // Softmax orders as logits do: they are compared where nothing is done to scores.
    constexpr bool kByLogit = kIsSoftmax && !kHow.rounds && !kHow.has_bias;
    LaneScores<kLanes, kEach> keys(lane);
    f32 score[kEach];
    f32 most = -kInfinity;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      score[i] = keys.expert(i) < experts ? finite(logit_of(i)) : -kInfinity;
      most = score[i] > most ? score[i] : most;
    }
    f32 sum = 1.0f;
    if constexpr (kIsSoftmax) {
      most = max_over_lanes<kLanes>(most);
      f32 own = 0.0f;
#pragma unroll
      for (u32 i = 0; i < kEach; ++i) own += exp_of(score[i] - most);
      sum = sum_over_lanes<kLanes>(own);
    }
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const bool is_there = keys.expert(i) < experts;
      if constexpr (!kByLogit)
        score[i] = kIsSoftmax ? exp_of(score[i] - most) / sum : sigmoid(score[i]);
      if constexpr (kHow.rounds) score[i] = static_cast<Logit>(score[i]);
      f32 key = score[i];
      if constexpr (kHow.has_bias) key = is_there ? finite(key + bias_of(i)) : 0.0f;
      keys.key[i] = is_there ? key : -kInfinity;
    }
    if constexpr (kHow.groups > 1) details::keep_groups<kHow>(keys, experts);

    f32 total = 0.0f;
#pragma unroll
    for (u32 k = 0; k < kHow.top_k; ++k) {
      const Best best = keys.best();
      keys.take(best.id);
      id[k] = best.id;
      if constexpr (kByLogit) {
        weight[k] = exp_of(best.key - most) / sum;
      } else if constexpr (kHow.has_bias) {
        f32 own = 0.0f;
#pragma unroll
        for (u32 i = 0; i < kEach; ++i) own = keys.expert(i) == best.id ? score[i] : own;
        weight[k] = max_over_lanes<kLanes>(own);  // no score is below 0
      } else {
        weight[k] = best.key;
      }
      total += weight[k];
    }
    const f32 divisor = kHow.renormalizes && total > 0.0f ? total : 1.0f;
#pragma unroll
    for (u32 k = 0; k < kHow.top_k; ++k) {
      weight[k] = (kHow.renormalizes ? weight[k] / divisor : weight[k]) * scale;
    }
  }
};

}  // namespace rfops
