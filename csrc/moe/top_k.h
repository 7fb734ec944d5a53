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

// The j-th choice of a token, in its lane j; in lanes from top_k on weight is 0.
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

// An expert: its key's order, and where it is among those of a token: kExpertsPerLane for each
// lane. Two registers, because clang selects the halves of one i64 by a comparison each.
struct Item {
  i32 order;
  u32 inverse_idx;  // ~item_idx: of equal keys the lower index is the larger item
};
__device__ inline bool is_larger(const Item& a, const Item& b) {
  return (i64{a.order} << 32 | a.inverse_idx) > (i64{b.order} << 32 | b.inverse_idx);
}
__device__ inline Item select(bool condition, const Item& a, const Item& b) {
  return {condition ? a.order : b.order, condition ? a.inverse_idx : b.inverse_idx};
}

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
__device__ inline void sort(Item (&items)[kCount]) {
  constexpr SortingNetwork<kCount> kNetwork;
  static_for<kNetwork.pairs>([&](auto pair) {
    constexpr u32 kLow = kNetwork.low[decltype(pair){}], kHigh = kNetwork.high[decltype(pair){}];
    const Item a = items[kLow], b = items[kHigh];
    const bool is_sorted = is_larger(a, b);
    items[kLow] = select(is_sorted, a, b);
    items[kHigh] = select(is_sorted, b, a);
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
__device__ inline bool is_in_best_groups(const Item (&items)[kExpertsPerLane], u32 group_size) {
  i32 best = items[0].order, runner_up = order_of(-kInfinity);
  if constexpr (kExpertsPerLane > 1) runner_up = items[1].order;
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

// Takes the best item of a token away, whose order is `best`, and returns its index. kUsed items of
// a lane may still be among the best.
template <u32 kLanes, u32 kUsed, u32 kExpertsPerLane>
__device__ inline u32 take(Item (&items)[kExpertsPerLane], i32 best, u32 lane) {
  const bool is_best = items[0].order == best;
  u32 item_idx;
  bool is_taken;
  if constexpr (kLanes == kWaveSize) {
    const u64 best_lanes = __builtin_amdgcn_ballot_w64(is_best);
    const u32 winner = static_cast<u32>(__builtin_ctzll(best_lanes));
    item_idx = ~readlane(items[0].inverse_idx, winner);
    is_taken = lane == winner;
  } else {
    item_idx = min_over_lanes<kLanes>(is_best ? ~items[0].inverse_idx : ~0u);
    is_taken = is_best && item_idx == ~items[0].inverse_idx;
  }
#pragma unroll
  for (u32 i = 0; i + 1 < kExpertsPerLane && i < kUsed; ++i) {
    const Item next = items[i + 1], current = items[i];  // values: no choice between addresses
    items[i] = select(is_taken, next, current);
  }
  i32& tail = items[kExpertsPerLane - 1].order;
  tail = is_taken ? kLowest : tail;
  return item_idx;
}

// The best items of a token: in lane j the index, and the key's order, of the j-th.
struct BestItems {
  u32 item_idx = 0, order = 0;
};

// Takes the top_k best items of a token. Requires: items are sorted. A wave finds two at a time,
// whose chains of DPP moves fill each other's wait states.
template <u32 kTopK, u32 kLanes, u32 kExpertsPerLane>
__device__ inline BestItems take_best(Item (&items)[kExpertsPerLane], u32 lane) {
  BestItems chosen;
  if constexpr (kLanes == kWaveSize) {
    static_for<(kTopK + 1) / 2>([&](auto pair) {
      constexpr u32 kBest = 2 * decltype(pair){}, kRunnerUp = kBest + 1;
      i32 runner_up = kLowest;
      if constexpr (kExpertsPerLane > 1) runner_up = items[1].order;
      const BestTwo two = best_two_of_wave(items[0].order, runner_up);
      const auto take_one = [&](auto idx, i32 order) {
        constexpr u32 kIdx = decltype(idx){};
        write_lane(chosen.item_idx, take<kLanes, kTopK - 1 - kIdx>(items, order, lane), kIdx);
        write_lane(chosen.order, static_cast<u32>(order), kIdx);
      };
      take_one(Number<kBest>{}, two.best);
      if constexpr (kRunnerUp < kTopK) take_one(Number<kRunnerUp>{}, two.runner_up);
    });
  } else {
    static_for<kTopK>([&](auto idx) {
      constexpr u32 kIdx = decltype(idx){};
      const i32 best = max_of_token<kLanes>(items[0].order);
      const u32 item_idx = take<kLanes, kTopK - 1 - kIdx>(items, best, lane);
      chosen.item_idx = lane == kIdx ? item_idx : chosen.item_idx;
      chosen.order = lane == kIdx ? static_cast<u32>(best) : chosen.order;
    });
  }
  return chosen;
}

}  // namespace details

// Routes a token by its kLanes lanes. load_logits(logits, e) and load_bias(bias, e) load the values
// of experts from e on, for those that do not exist any existing one's. scores: with a bias
// kLanes * kExpertsPerLane floats in LDS for the token, otherwise unused.
template <TopKOptions kOptions, u32 kLanes, u32 kExpertsPerLane, class Logit, class LoadLogits,
          class LoadBias>
__device__ inline Choice route_token(u32 lane, u32 experts, f32 scale, f32* scores,
                                     LoadLogits load_logits, LoadBias load_bias) {
  using namespace details;
  constexpr bool kIsSoftmax = kOptions.scoring == Scoring::kSoftmax;
  // Softmax keeps the order of logits, so logits are compared unless scores are modified.
  constexpr bool kByLogit = kIsSoftmax && !kOptions.rounds && !kOptions.has_bias;
  constexpr u32 kGroupLanes = lanes_of_group(kLanes, kOptions.groups);
  static_assert(kLanes == kWaveSize || kOptions.groups == 1, "groups are compared by a wave");
  static_assert(kLanes >= kOptions.top_k, "a lane has one choice");
  const u32 group_size = experts / kOptions.groups, group = lane / kGroupLanes;
  const u32 begin = lane % kGroupLanes * kExpertsPerLane;  // in the group
  const u32 first_idx = lane * kExpertsPerLane;
  const auto is_expert = [&](u32 i) { return group < kOptions.groups && begin + i < group_size; };
  const auto expert_at = [&](u32 item_idx) {
    constexpr u32 kGroupItems = kGroupLanes * kExpertsPerLane;  // of a group
    return kOptions.groups == 1 ? item_idx
                                : item_idx / kGroupItems * group_size + item_idx % kGroupItems;
  };

  f32 logit[kExpertsPerLane], bias[kExpertsPerLane] = {};
  load_logits(logit, group * group_size + begin);
  if constexpr (kOptions.has_bias) load_bias(bias, group * group_size + begin);
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

  Item items[kExpertsPerLane];
#pragma unroll
  for (u32 i = 0; i < kExpertsPerLane; ++i) {
    f32 key = logit[i] + 0.0f;  // makes one of the two zeros
    if constexpr (!kByLogit) key = score_of(logit[i]);
    if constexpr (kOptions.has_bias) {
      scores[first_idx + i] = key;
      key = finite(key + bias[i]);
    }
    items[i] = {order_of(is_expert(i) ? key : -kInfinity), ~(first_idx + i)};
  }
  sort(items);
  if constexpr (kOptions.groups > 1) {
    // The first two of the lane: those behind them are looked at only when one is taken.
    const bool is_eligible = is_in_best_groups<kOptions, kGroupLanes>(items, group_size);
#pragma unroll
    for (u32 i = 0; i < kExpertsPerLane && i < 2; ++i) {
      items[i].order = is_eligible ? items[i].order : kLowest;
    }
  }
  const BestItems chosen = take_best<kOptions.top_k, kLanes>(items, lane);
  const bool has_choice = lane < kOptions.top_k;
  f32 weight = value_of(static_cast<i32>(chosen.order));
  if constexpr (kOptions.has_bias) {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");  // the lanes' scores
    weight = scores[chosen.item_idx];
  }
  if constexpr (kByLogit) weight = score_of(weight);
  weight = has_choice ? weight : 0.0f;
  if constexpr (kOptions.renormalizes) {
    f32 total = sum_over_lanes<pow2_ceil(kOptions.top_k)>(weight);
    if constexpr (kOptions.has_bias && kIsSoftmax) {  // a bias may choose what is subnormal
      const f32 power = total < 0x1p-64f ? 0x1p64f : 1.0f;
      weight *= power, total *= power;
    }
    weight = total > 0.0f ? quotient(weight, total) : weight;
  }
  return {weight * scale, expert_at(chosen.item_idx)};
}

// Loads values[e * stride] .. of kCount experts from e on, of those behind the last one the last;
// by 32-bit offsets from a scalar. kWhole: all exist and are neighbours, and those of a lane are
// aligned to their number of bytes, as far as that is a power of two, or to its largest such
// factor.
template <bool kWhole, u32 kCount, class T>
__device__ inline void load_experts(f32 (&loaded)[kCount], const T* values, u32 e, u32 experts,
                                    u32 stride) {
  const u8* const bytes = reinterpret_cast<const u8*>(values);
  if constexpr (kWhole) {
    constexpr u32 kBytes = kCount * sizeof(T), kFactor = kBytes & -kBytes;
    struct alignas(kFactor < kVecBytes ? kFactor : kVecBytes) Values {
      T value[kCount];
    };
    const Values row = *reinterpret_cast<const Values*>(bytes + e * static_cast<u32>(sizeof(T)));
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) loaded[i] = static_cast<f32>(row.value[i]);
  } else {
    const u32 last = (experts - 1) * stride;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) {
      const u32 idx = e * stride + i * stride;
      const u32 offset = (idx < last ? idx : last) * sizeof(T);
      loaded[i] = static_cast<f32>(*reinterpret_cast<const T*>(bytes + offset));
    }
  }
}

}  // namespace rfops
