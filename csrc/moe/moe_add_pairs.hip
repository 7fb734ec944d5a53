// out[t] = sum over j of weights[t, j] * rows[t * kTopK + j] + the rows of t of shared experts
//
// Sums in fp32, in the order of j, shared experts last; their rows follow those of all assignments,
// expert by expert. An id outside 0..routed-1 adds nothing; of assignments to the same expert only
// the first has a row, and its weight is the sum of their weights. Rows of other assignments may
// hold arbitrary values.
//
// Layout. A workgroup computes 2048 columns of a token, a lane 16 bytes of each row.
//
// Guarantees: bitwise deterministic.
// Requires: rows 16-byte aligned; N a multiple of 8.
#include "moe/topk_weights.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;     // i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K, kNumShared = RFOPS_SHARED;
constexpr u32 kThreads = 256, kVec = kVecBytes / sizeof(Input);
using InputVec = Input __attribute__((ext_vector_type(kVec)));

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_add_pairs(Input* __restrict__ out,          // [M, N]
              const Input* __restrict__ rows,   // [M * kTopK + kShared * M, N]
              const f32* __restrict__ weights,  // [M, kTopK]
              const Id* __restrict__ ids,       // [M, kTopK]
              u32 m, u32 n, u32 routed) {
  const u32 token = workgroup_id_x(), column = (workgroup_id_y() * kThreads + thread_id()) * kVec;
  if (column >= n) return;
  // All loads before the first wait: those of rows do not need the ids.
  Id token_ids[kTopK];
  f32 token_weights[kTopK];
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    token_ids[j] = ids[u64{token} * kTopK + j];
    token_weights[j] = weights[u64{token} * kTopK + j];
  }
  InputVec row[kTopK + kNumShared];
#pragma unroll
  for (u32 j = 0; j < kTopK + kNumShared; ++j) {
    const u64 row_idx = j < kTopK ? u64{token} * kTopK + j : u64{m} * j + token;
    row[j] = *reinterpret_cast<const InputVec*>(rows + row_idx * n + column);
  }
  sched_barrier();
  TopKAssignments<kTopK> assignments(token_weights, token_ids, routed);
  // Masks instead of branches, into which the compiler would move loads.
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    const u32 mask = assignments.has_row[j] ? ~0u : 0;
    const u32 weight = __builtin_bit_cast(u32, assignments.weight[j]) & mask;
    row[j] = __builtin_bit_cast(InputVec, __builtin_bit_cast(U32x4, row[j]) & mask);
    assignments.weight[j] = __builtin_bit_cast(f32, weight);
    assignments.has_row[j] = true;
  }
  *reinterpret_cast<InputVec*>(out + u64{token} * n + column) =
      sum_of_rows<kTopK, kNumShared>(row, assignments);
}
