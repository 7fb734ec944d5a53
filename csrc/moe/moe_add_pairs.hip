// out[t] = sum over j of weights[t, j] * rows[t * kTopK + j] + the rows of t of shared experts
//
// Sums in fp32, in the order of j, shared experts last; their rows follow those of all choices,
// expert by expert. An id outside 0..routed-1 adds nothing; of choices that name one expert twice
// only the first has a row, and it gets the sum of their weights. What has no row may hold
// anything.
//
// Layout. A workgroup has 2048 columns of a token, a lane 16 bytes of each row.
//
// Promises. Deterministic. Rows are aligned to 16 bytes, N is a multiple of 8.
#include "moe/topk_weights.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using In = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;  // i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K, kShared = RFOPS_SHARED;
constexpr u32 kThreads = 256, kVec = kVecBytes / sizeof(In);
using InVec = In __attribute__((ext_vector_type(kVec)));

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_add_pairs(In* __restrict__ out,             // [M, N]
              const In* __restrict__ rows,      // [M * kTopK + kShared * M, N]
              const f32* __restrict__ weights,  // [M, kTopK]
              const Id* __restrict__ ids,       // [M, kTopK]
              u32 m, u32 n, u32 routed) {
  const u32 token = workgroup_id_x(), column = (workgroup_id_y() * kThreads + thread_id()) * kVec;
  if (column >= n) return;
  InVec row[kTopK + kShared];
#pragma unroll
  for (u32 j = 0; j < kTopK + kShared; ++j) {
    const u64 from = j < kTopK ? u64{token} * kTopK + j : u64{m} * j + token;
    row[j] = *reinterpret_cast<const InVec*>(rows + from * n + column);
  }
  const Choices<kTopK> choices(weights + u64{token} * kTopK, ids + u64{token} * kTopK, routed);
  *reinterpret_cast<InVec*>(out + u64{token} * n + column) =
      sum_of_rows<kTopK, kShared>(row, choices);
}
