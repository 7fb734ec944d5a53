// The top-k assignments of a token: the weight of each, and whether it has a row. An assignment
// with an id outside 0..routed-1 has no row; of assignments to the same expert only the first has a
// row, and its weight is the sum of their weights.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"

namespace rfops {

template <u32 kTopK>
struct TopKAssignments {
  f32 weight[kTopK];
  bool has_row[kTopK];

  TopKAssignments() = default;
  template <class Id>
  __device__ TopKAssignments(const f32* weights, const Id* ids, u32 routed) {
    Id id[kTopK];
#pragma unroll
    for (u32 j = 0; j < kTopK; ++j) {
      id[j] = ids[j];
      weight[j] = weights[j];
      bool is_new = true;
      const bool in_bounds = id[j] >= 0 && id[j] < static_cast<Id>(routed);
#pragma unroll
      for (u32 i = 0; i < j; ++i) {
        const bool is_same = in_bounds && has_row[i] && id[i] == id[j];
        weight[i] += is_same ? weight[j] : 0.0f;
        is_new = is_new && !is_same;
      }
      has_row[j] = in_bounds && is_new;
    }
  }
  // Materialises the values here, before the barrier that follows.
  __device__ void force_registers() {
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

// Returns the weighted sum of one vector of a token's rows, in fp32 and in the order of its
// assignments; the rows of shared experts follow with weight 1.
template <u32 kTopK, u32 kNumShared, class Vec>
__device__ inline Vec sum_of_rows(const Vec (&row)[kTopK + kNumShared],
                                  const TopKAssignments<kTopK>& assignments) {
  constexpr u32 kVec = sizeof(Vec) / 2;
  using Sums = f32 __attribute__((ext_vector_type(kVec)));
  Sums sum = {};
#pragma unroll
  for (u32 j = 0; j < kTopK + kNumShared; ++j) {
    if (j < kTopK && !assignments.has_row[j < kTopK ? j : 0]) continue;
    const f32 factor = j < kTopK ? assignments.weight[j < kTopK ? j : 0] : 1.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      sum[i] = __builtin_fmaf(factor, static_cast<f32>(row[j][i]), sum[i]);
    }
  }
  return __builtin_convertvector(sum, Vec);
}

}  // namespace rfops
