// The choices of a token: of each its weight, and whether it has a row. An id outside 0..routed-1
// has none; of choices that name one expert twice only the first has one, and it gets the sum of
// their weights.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"

namespace rfops {

template <u32 kTopK>
struct Choices {
  f32 weight[kTopK];
  bool has_row[kTopK];

  Choices() = default;
  template <class Id>
  __device__ Choices(const f32* weights, const Id* ids, u32 routed) {
    Id id[kTopK];
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) {
      id[j] = ids[j];
      weight[j] = weights[j];
      bool is_new = true;
      const bool is_there = id[j] >= 0 && id[j] < static_cast<Id>(routed);
#pragma unroll
      for (u32 i = 0; i < j; ++i) {
        const bool is_same = is_there && has_row[i] && id[i] == id[j];
        weight[i] += is_same ? weight[j] : 0.0f;
        is_new = is_new && !is_same;
      }
      has_row[j] = is_there && is_new;
    }
  }
  // Computed here, before a barrier that follows.
  __device__ void keep() {
    u32 rows = 0;
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) rows |= u32{has_row[j]} << j;
    force_vgpr(rows);
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) {
      force_vgpr(weight[j]);
      has_row[j] = rows >> j & 1;
    }
  }
};

// The sum of a token's rows in fp32, a vector of each, in the order of its choices; those of shared
// experts follow with weight 1.
template <u32 kTopK, u32 kShared, class Vec>
__device__ inline Vec sum_of_rows(const Vec (&row)[kTopK + kShared],
                                  const Choices<kTopK>& choices) {
  constexpr u32 kVec = sizeof(Vec) / 2;
  using Sums = f32 __attribute__((ext_vector_type(kVec)));
  Sums sum = {};
#pragma unroll
  for (u32 j = 0; j < kTopK + kShared; ++j) {
    if (j < kTopK && !choices.has_row[j < kTopK ? j : 0]) continue;
    const f32 factor = j < kTopK ? choices.weight[j < kTopK ? j : 0] : 1.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      sum[i] = __builtin_fmaf(factor, static_cast<f32>(row[j][i]), sum[i]);
    }
  }
  return __builtin_convertvector(sum, Vec);
}

}  // namespace rfops
