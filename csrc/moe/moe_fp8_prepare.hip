// Prepares the operands of moe_experts_fp8.hip: the token lists of experts, and x quantised once
// per row.
//
//   lists[e, i] = the i-th token of expert e
//   list_indices[t, j] = index of t in the list of topk_ids[t, j]
//   q[t], scale[t] = x[t] in FP8 with one scale per 128 (fp8_blockscale.h)
//
// counts[e] is how many tokens e has.
//
// Layout. The first list_groups workgroups make the lists, one token per lane (token_lists.h). The
// others quantise (quantise_rows.h).
//
// Guarantees: q and scale equal those of quant_fp8_blockscale bit for bit. The order of a list is
// arbitrary; no result depends on it.
// Requires: counts are 0; x 16-byte aligned; K a multiple of 128.
#include "moe/quantise_rows.h"
#include "moe/token_lists.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // bf16 or f16
using Id = RFOPS_ID;     // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 256;

__shared__ TokenListAllocator<kThreads> allocator;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_fp8_prepare(u32* __restrict__ counts,         // [E]; used with list_groups, as the next two are
                u32* __restrict__ lists,          // [E, M]
                u32* __restrict__ list_indices,   // [M, kTopK]
                u8* __restrict__ q,               // [M, K]
                f32* __restrict__ scale,          // [M, K/128]
                const Id* __restrict__ topk_ids,  // [M, kTopK]
                const Input* __restrict__ x,      // [M, K]
                u32 m, u32 k, u32 experts, u32 list_groups) {
  if (workgroup_id_x() < list_groups) {
    make_lists<kTopK>(
        allocator, counts, topk_ids, m, experts, false,
        [&](u32 e, u32 list_idx, u32 token, u32) { lists[u64{e} * m + list_idx] = token; },
        [&](u32 token, u32 j, u32 list_idx) { list_indices[u64{token} * kTopK + j] = list_idx; });
    return;
  }
  quantise_rows<kThreads>(q, scale, x, m, k, workgroup_id_x() - list_groups);
}
