// out[t] = sum over j of weights[t, j] * rows[offsets[e] + slots[t, j]] + the rows of t of shared
// e, e = ids[t, j]
//
// Sums in fp32, in the order of j, shared experts last. A slot of -1 adds nothing.
//
// Layout. A workgroup has 2048 columns of a token, a lane 16 bytes of each row.
//
// Promises. Deterministic. Rows are aligned to 16 bytes, N is a multiple of 8.
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using In = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;  // i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K, kShared = RFOPS_SHARED;
constexpr u32 kThreads = 256, kVec = kVecBytes / sizeof(In), kNone = ~0u;
using InVec = In __attribute__((ext_vector_type(kVec)));
using Sums = f32 __attribute__((ext_vector_type(kVec)));

// Counts of a call that was aborted may name rows that are not there.
__device__ inline u64 there(u32 row, u32 all_rows) { return row < all_rows ? row : 0; }

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads))) moe_add(
    In* __restrict__ out,             // [M, N]
    const In* __restrict__ rows,      // [all_rows, N]
    const f32* __restrict__ weights,  // [M, kTopK]
    const Id* __restrict__ ids,       // [M, kTopK]
    const u32* __restrict__ slots,    // [M, kTopK]
    const u32* __restrict__ offsets,  // [routed + kShared + 1]
    u32 n, u32 routed, u32 all_rows) {
  const u32 token = workgroup_id_x(), column = (workgroup_id_y() * kThreads + thread_id()) * kVec;
  if (column >= n) return;
  Sums sum = {};
  InVec row[kTopK + kShared];
  f32 weight[kTopK];
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    const u64 at = u64{token} * kTopK + j;
    const u32 slot = slots[at];
    row[j] = {};
    weight[j] = 0.0f;
    if (slot == kNone) continue;
    weight[j] = weights[at];
    const u64 from = there(offsets[ids[at]] + slot, all_rows);
    row[j] = *reinterpret_cast<const InVec*>(rows + from * n + column);
  }
#pragma unroll
  for (u32 s = 0; s < kShared; ++s) {
    const u64 from = there(offsets[routed + s] + token, all_rows);
    row[kTopK + s] = *reinterpret_cast<const InVec*>(rows + from * n + column);
  }
#pragma unroll
  for (u32 j = 0; j < kTopK + kShared; ++j) {
    const f32 factor = j < kTopK ? weight[j] : 1.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      sum[i] = __builtin_fmaf(factor, static_cast<f32>(row[j][i]), sum[i]);
    }
  }
  *reinterpret_cast<InVec*>(out + u64{token} * n + column) = __builtin_convertvector(sum, InVec);
}
