// rows[e, i] = the i-th token of expert e,  list_indices[t, j] = index of t in the list of
// topk_ids[t, j]
//
// counts[e] is how many tokens e has. A token that names an expert twice is in its list once. For
// an id outside 0..E-1 the list index is -1.
//
// Layout. One token per lane. A workgroup counts in LDS and reserves entries in each list once.
//
// Guarantees: no list is longer than M. The order of a list is arbitrary; no result depends on it.
// Requires: counts are 0.
#include "moe/token_lists.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using Id = RFOPS_ID;  // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 256;

__shared__ TokenListAllocator<kThreads> allocator;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_lists(u32* __restrict__ counts,         // [E]
          u32* __restrict__ rows,           // [E, M]
          u32* __restrict__ list_indices,   // [M, kTopK]
          const Id* __restrict__ topk_ids,  // [M, kTopK]
          u32 m, u32 experts) {
  make_lists<kTopK>(
      allocator, counts, topk_ids, m, experts, false,
      [&](u32 e, u32 list_idx, u32 token, u32) { rows[u64{e} * m + list_idx] = token; },
      [&](u32 token, u32 j, u32 list_idx) { list_indices[u64{token} * kTopK + j] = list_idx; });
}
