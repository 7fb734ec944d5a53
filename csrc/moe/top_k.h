// Top-k routing of a token: the scores of its logits, and the experts with the highest scores;
// equal scores are ordered by id.
//
// kLanes adjacent lanes share a token: a wave, or 1 to 16 lanes for few experts. Each group of
// experts has the same number of adjacent lanes, a power of two, and each of these lanes
// kExpertsPerLane consecutive experts of the group. A lane sorts its experts once; each of the
// top_k rounds then takes the best of the lanes' first ones: six DPP maxima, and the lowest lane
// that has the maximum, which has the lowest id.
//
// Logits are made finite first: NaN and -infinity become the lowest finite number, +infinity the
// largest. So the ids are always different, existing experts.
#pragma once

#include "rfops/chip/static_for.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/number/exp.h"
#include "rfops/wave/reduce.h"

namespace rfops {

enum class Scoring { kSoftmax, kSigmoid, kSqrtSoftplus };

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

// The j-th choice of a token, in its lane j; in lanes from top_k on id is 0 and weight is 0.
struct Choice {
  f32 weight;
  u32 id;
};

// The lowest power of two that is not below n, and the lanes of each of a token's groups.
constexpr u32 pow2_ceil(u32 n) { return n <= 1 ? 1 : 2 * pow2_ceil((n + 1) / 2); }
constexpr u32 lanes_of_group(u32 lanes, u32 groups) { return lanes / pow2_ceil(groups); }

namespace details {

using i64 = long long;
constexpr i32 kLowest = -0x7fffffff - 1;  // below the order of all numbers

__device__ inline f32 finite(f32 x) {  // of NaN the least number: the median is the minimum then
  return __builtin_amdgcn_fmed3f(x, -kLargest, kLargest);
}

// An integer that is ordered as x is, -0 just below 0.
__device__ inline i32 order_of(f32 x) {
  const i32 bits = __builtin_bit_cast(i32, x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ inline f32 value_of(i32 order) {
  return __builtin_bit_cast(f32, order ^ ((order >> 31) & 0x7fffffff));
}

// An expert with its key's order above; of equal keys the lower id is the larger.
__device__ inline i64 pack(i32 order, u32 id) { return i64{order} << 32 | ~id; }
__device__ inline i32 order_of(i64 item) { return static_cast<i32>(item >> 32); }
__device__ inline u32 id_of(i64 item) { return ~static_cast<u32>(item); }

// Batcher's merge exchange for kCount items (Knuth, The Art of Computer Programming 3, 5.2.2,
// algorithm M): the pairs to compare, in order.
template <u32 kCount>
struct SortingNetwork {
  u32 low[kCount * kCount / 2 + 1] = {}, high[kCount * kCount / 2 + 1] = {}, pairs = 0;

  constexpr SortingNetwork() {
    u32 top = 1;
    while (2 * top < kCount) top *= 2;
    for (u32 p = kCount > 1 ? top : 0; p > 0; p /= 2) {
      u32 q = top, r = 0, d = p;
      while (true) {
        for (u32 i = 0; i + d < kCount; ++i) {
          if ((i & p) != r) continue;
          low[pairs] = i;
          high[pairs++] = i + d;
        }
        if (q == p) break;
        d = q - p;
        q /= 2;
        r = p;
      }
    }
  }
};

// Sorts in descending order.
template <u32 kCount>
__device__ inline void sort(i64 (&items)[kCount]) {
  constexpr SortingNetwork<kCount> kNetwork;
  static_for<kNetwork.pairs>([&](auto pair) {
    constexpr u32 kLow = kNetwork.low[decltype(pair){}], kHigh = kNetwork.high[decltype(pair){}];
    const i64 a = items[kLow], b = items[kHigh];
    // Halves are selected one by one, as clang compares twice for a minimum and a maximum.
    const bool is_sorted = a > b;
    items[kLow] = pack(is_sorted ? order_of(a) : order_of(b), is_sorted ? id_of(a) : id_of(b));
    items[kHigh] = pack(is_sorted ? order_of(b) : order_of(a), is_sorted ? id_of(b) : id_of(a));
  });
}

// The maximum of a token's lanes, in all of them.
template <u32 kLanes>
__device__ inline i32 max_of_token(i32 value) {
  if constexpr (kLanes == kWaveSize) {
    return max_of_wave(value);
  } else {
    return reduce_lanes<kLanes>(value, larger);
  }
}

// The value that another lane has: whose number differs in bit kBit, and maybe in lower ones.
template <u32 kBit>
__device__ inline i32 value_of_partner(i32 value) {
  if constexpr (kBit < 16) {
    return __builtin_bit_cast(i32, partner<kBit>(__builtin_bit_cast(f32, value)));
  } else {
    return __builtin_amdgcn_ds_bpermute(static_cast<int>((lane_id() ^ kBit) * 4), value);
  }
}

// The two largest values over kLanes lanes, in all of them.
template <u32 kLanes, u32 kBit = 1>
__device__ inline void merge_best_two(i32& best, i32& runner_up) {
  if constexpr (kBit < kLanes) {
    const i32 other_score = value_of_partner<kBit>(best);
    const i32 smaller = best < other_score ? best : other_score;
    best = larger(best, other_score);
    runner_up = larger(larger(runner_up, value_of_partner<kBit>(runner_up)), smaller);
    merge_best_two<kLanes, 2 * kBit>(best, runner_up);
  }
}

// Whether this lane's group is among the best: by its best key, with a bias by the sum of its two
// best ones. Requires: a token is a wave; items are sorted.
template <TopKOptions kOptions, u32 kGroupLanes, u32 kExpertsPerLane>
__device__ inline bool is_in_best_groups(const i64 (&items)[kExpertsPerLane], u32 group_size) {
  i32 best = order_of(items[0]), runner_up = order_of(-kInfinity);
  if constexpr (kExpertsPerLane > 1) runner_up = order_of(items[1]);
  merge_best_two<kGroupLanes>(best, runner_up);
  if constexpr (kOptions.has_bias) {
    const i32 sum = order_of(finite(value_of(best) + value_of(runner_up)));
    best = group_size > 1 ? sum : best;
  }
  const u32 group = lane_id() / kGroupLanes;
  u32 better = 0;
#pragma unroll
  for (u32 g = 0; g < kOptions.groups; ++g) {
    const i32 other_score = __builtin_amdgcn_readlane(best, static_cast<int>(g * kGroupLanes));
    better += other_score > (g < group ? best - 1 : best);  // an equal lower group is better too
  }
  return better < kOptions.groups_taken;
}

// e^x for x <= 0.
__device__ inline f32 exp_of_negative(f32 x) {
  return exp_in_range(x > kMinExpArg ? x : kMinExpArg);
}

// a / b, both normal and the quotient too: half the instructions of a division in full.
__device__ inline f32 quotient(f32 a, f32 b) {
  const f32 estimate = __builtin_amdgcn_rcpf(b);
  const f32 inverse = __builtin_fmaf(__builtin_fmaf(-b, estimate, 1.0f), estimate, estimate);
  const f32 result = a * inverse;
  return __builtin_fmaf(__builtin_fmaf(-b, result, a), inverse, result);
}

// 1 / (1 + e^-x) for any finite x; 0 where it is subnormal.
__device__ inline f32 sigmoid_of(f32 x) {
  constexpr f32 kMinNormal = -87.3f;
  const f32 exp = exp_in_range(__builtin_amdgcn_fmed3f(-x, kMinExpArg, -kMinNormal));
  return x < kMinNormal ? 0.0f : quotient(1.0f, 1.0f + exp);
}

// log(1 + y) for 0 <= y <= 1: the rounding of 1 + y is made good by its quotient (Kahan).
__device__ inline f32 log1p_of(f32 y) {
  constexpr f32 kLn2 = 0.693147182f;
  const f32 sum = 1.0f + y;
  const f32 rounded = sum - 1.0f;
  return rounded == 0.0f ? y : __builtin_amdgcn_logf(sum) * kLn2 * (y / rounded);
}

__device__ inline f32 sqrt_softplus(f32 x) {
  const f32 magnitude = x < 0.0f ? -x : x;
  return __builtin_sqrtf((x > 0.0f ? x : 0.0f) + log1p_of(exp_of_negative(-magnitude)));
}

// Replaces one lane's value by a scalar.
__device__ inline void write_lane(u32& value, u32 scalar, u32 lane) {
  asm("v_writelane_b32 %0, %1, %2" : "+v"(value) : "s"(scalar), "n"(lane));
}

// Takes the best item of a token away, whose order is `best`, and returns its id.
template <u32 kLanes, u32 kExpertsPerLane>
__device__ inline u32 take(i64 (&items)[kExpertsPerLane], i32 best, u32 lane) {
  const bool is_best = order_of(items[0]) == best;
  u32 id;
  bool is_taken;
  if constexpr (kLanes == kWaveSize) {
    const u64 best_lanes = __builtin_amdgcn_ballot_w64(is_best);
    const u32 winner = static_cast<u32>(__builtin_ctzll(best_lanes));
    id = ~readlane(static_cast<u32>(items[0]), winner);
    is_taken = lane == winner;
  } else {
    id = min_over_lanes<kLanes>(is_best ? id_of(items[0]) : ~0u);
    is_taken = is_best && id == id_of(items[0]);
  }
#pragma unroll
  for (u32 i = 0; i + 1 < kExpertsPerLane; ++i) {
    const i64 next = items[i + 1], current = items[i];  // values: no choice between addresses
    items[i] = is_taken ? next : current;
  }
  i64& tail = items[kExpertsPerLane - 1];
  tail = pack(is_taken ? kLowest : order_of(tail), id_of(tail));
  return id;
}

// Takes the top_k best items of a token: in lane j the id of the j-th. Requires: items are sorted.
// A wave finds two at a time, whose chains of DPP moves fill each other's wait states.
template <u32 kTopK, u32 kLanes, u32 kExpertsPerLane>
__device__ inline u32 take_best(i64 (&items)[kExpertsPerLane], u32 lane) {
  constexpr bool kByTwo = kLanes == kWaveSize;
  u32 chosen = 0;
#pragma unroll
  for (u32 k = 0; k < kTopK; k += kByTwo ? 2 : 1) {
    if constexpr (kByTwo) {
      i32 runner_up = kLowest;
      if constexpr (kExpertsPerLane > 1) runner_up = order_of(items[1]);
      const BestTwo two = best_two_of_wave(order_of(items[0]), runner_up);
      write_lane(chosen, take<kLanes>(items, two.best, lane), k);
      if (k + 1 < kTopK) write_lane(chosen, take<kLanes>(items, two.runner_up, lane), k + 1);
    } else {
      const i32 best = max_of_token<kLanes>(order_of(items[0]));
      const u32 id = take<kLanes>(items, best, lane);
      chosen = lane == k ? id : chosen;
    }
  }
  return chosen;
}

}  // namespace details

// Routes a token by its kLanes lanes. logit_of(e, i) and bias_of(e, i) return the values of expert
// e + i, for e + i >= experts any existing expert's. scores: a float in LDS for each expert of the
// token; logit_of may read there too.
template <TopKOptions kOptions, u32 kLanes, u32 kExpertsPerLane, class Logit, class LogitOf,
          class BiasOf>
__device__ inline Choice route_token(u32 lane, u32 experts, f32 scale, f32* scores,
                                     LogitOf logit_of, BiasOf bias_of) {
  using namespace details;
  constexpr bool kIsSoftmax = kOptions.scoring == Scoring::kSoftmax;
  // Softmax keeps the order of logits, so logits are compared unless scores are modified.
  constexpr bool kByLogit = kIsSoftmax && !kOptions.rounds && !kOptions.has_bias;
  constexpr u32 kGroupLanes = lanes_of_group(kLanes, kOptions.groups);
  static_assert(kLanes == kWaveSize || kOptions.groups == 1, "groups are compared by a wave");
  static_assert(kLanes >= kOptions.top_k, "a lane has one choice");
  const u32 group_size = experts / kOptions.groups, group = lane / kGroupLanes;
  const u32 begin = lane % kGroupLanes * kExpertsPerLane;  // in the group
  const auto expert = [&](u32 i) { return group * group_size + begin + i; };
  const auto is_expert = [&](u32 i) { return group < kOptions.groups && begin + i < group_size; };

  f32 logit[kExpertsPerLane], bias[kExpertsPerLane];
#pragma unroll
  for (u32 i = 0; i < kExpertsPerLane; ++i) {
    logit[i] = logit_of(expert(0), i);
    bias[i] = kOptions.has_bias ? bias_of(expert(0), i) : 0.0f;
  }
  sched_barrier();  // all loads are issued before the first is waited for
  f32 max = -kInfinity;
#pragma unroll
  for (u32 i = 0; i < kExpertsPerLane; ++i) {
    logit[i] = is_expert(i) ? finite(logit[i]) : -kInfinity;
    max = logit[i] > max ? logit[i] : max;
  }
  f32 sum = 1.0f;
  if constexpr (kIsSoftmax) {
    max = value_of(max_of_token<kLanes>(order_of(max)));
    f32 exp_sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane; ++i) exp_sum += exp_of_negative(logit[i] - max);
    sum = sum_over_lanes<kLanes>(exp_sum);
  }
  const auto score_of = [&](f32 x) {
    f32 score;
    if constexpr (kIsSoftmax) {
      score = exp_of_negative(x - max) / sum;
    } else {
      score = kOptions.scoring == Scoring::kSigmoid ? sigmoid_of(x) : sqrt_softplus(x);
    }
    return kOptions.rounds ? static_cast<f32>(static_cast<Logit>(score)) : score;
  };

  i64 items[kExpertsPerLane];
#pragma unroll
  for (u32 i = 0; i < kExpertsPerLane; ++i) {
    f32 key = logit[i] + 0.0f;  // makes one of the two zeros
    if constexpr (!kByLogit) key = score_of(logit[i]);
    if (is_expert(i)) scores[expert(i)] = key;
    if constexpr (kOptions.has_bias) key = finite(key + bias[i]);
    items[i] = pack(is_expert(i) ? order_of(key) : order_of(-kInfinity), expert(i));
  }
  sort(items);
  if constexpr (kOptions.groups > 1) {
    // The first two of the lane: those behind them are looked at only when one is taken.
    const bool is_eligible = is_in_best_groups<kOptions, kGroupLanes>(items, group_size);
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane && i < 2; ++i) {
      items[i] = pack(is_eligible ? order_of(items[i]) : kLowest, id_of(items[i]));
    }
  }
  const u32 id = take_best<kOptions.top_k, kLanes>(items, lane);
  const bool has_choice = lane < kOptions.top_k;
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");  // the lanes' scores
  f32 weight = scores[has_choice ? id : 0];
  if constexpr (kByLogit) weight = score_of(weight);
  weight = has_choice ? weight : 0.0f;
  if constexpr (kOptions.renormalizes) {
    const f32 total = sum_over_lanes<pow2_ceil(kOptions.top_k)>(weight);
    weight = total > 0.0f ? quotient(weight, total) : weight;
  }
  return {weight * scale, id};
}

}  // namespace rfops
