// out[t] = sum over j of weights[t, j] * rows[offsets[e] + list_indices[t, j]] + the rows of t of
// shared e, e = ids[t, j]
//
// Sums in fp32, in the order of j, shared experts last. A list index of -1 adds nothing.
//
// Layout. A workgroup computes 2048 columns of a token, a lane 16 bytes of each row.
//
// Guarantees: bitwise deterministic.
// Requires: rows 16-byte aligned; N a multiple of 8.
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // f16 or bf16
using Id = RFOPS_ID;     // i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K, kNumShared = RFOPS_SHARED;
constexpr u32 kThreads = 256, kVec = kVecBytes / sizeof(Input), kInvalid = ~0u;
using InputVec = Input __attribute__((ext_vector_type(kVec)));
using Sums = f32 __attribute__((ext_vector_type(kVec)));

// Clamps a row index, because counts that an aborted call left may be arbitrary.
__device__ inline u64 clamp_row(u32 row, u32 all_rows) { return row < all_rows ? row : 0; }

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads))) moe_add(
    Input* __restrict__ out,               // [M, N]
    const Input* __restrict__ rows,        // [all_rows, N]
    const f32* __restrict__ weights,       // [M, kTopK]
    const Id* __restrict__ ids,            // [M, kTopK]
    const u32* __restrict__ list_indices,  // [M, kTopK]
    const u32* __restrict__ offsets,       // [routed + kShared + 1]
    u32 n, u32 routed, u32 all_rows) {
  const u32 token = workgroup_id_x(), column = (workgroup_id_y() * kThreads + thread_id()) * kVec;
  if (column >= n) return;
  Sums sum = {};
  InputVec row[kTopK + kNumShared];
  f32 weight[kTopK];
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    const u64 idx = u64{token} * kTopK + j;
    const u32 list_idx = list_indices[idx];
    row[j] = {};
    weight[j] = 0.0f;
    if (list_idx == kInvalid) continue;
    weight[j] = weights[idx];
    const u64 row_idx = clamp_row(offsets[ids[idx]] + list_idx, all_rows);
    row[j] = *reinterpret_cast<const InputVec*>(rows + row_idx * n + column);
  }
#pragma unroll
  for (u32 s = 0; s < kNumShared; ++s) {
    const u64 row_idx = clamp_row(offsets[routed + s] + token, all_rows);
    row[kTopK + s] = *reinterpret_cast<const InputVec*>(rows + row_idx * n + column);
  }
#pragma unroll
  for (u32 j = 0; j < kTopK + kNumShared; ++j) {
    const f32 factor = j < kTopK ? weight[j] : 1.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      sum[i] = __builtin_fmaf(factor, static_cast<f32>(row[j][i]), sum[i]);
    }
  }
  *reinterpret_cast<InputVec*>(out + u64{token} * n + column) =
      __builtin_convertvector(sum, InputVec);
}
