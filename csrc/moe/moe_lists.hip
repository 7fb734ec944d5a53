// rows[e, i] = the i-th token of expert e,  slots[t, j] = where t is among those of topk_ids[t, j]
//
// counts[e] is how many e has; the caller sees to it that it was 0. A token that names an expert
// twice is in its list once. An id outside 0..E-1 is in none, and has the slot -1.
//
// Layout. A lane has a token. A workgroup counts in LDS, and asks for room in each list once.
//
// Promises. Lists are in any order, which nothing that is computed by them depends on. No list is
// longer than M.
#include "moe/token_lists.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using i64 = long long;
using Id = RFOPS_ID;  // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 256;

__shared__ TokenListAllocator<kThreads> room;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_lists(u32* __restrict__ counts,         // [E]
          u32* __restrict__ rows,           // [E, M]
          u32* __restrict__ slots,          // [M, kTopK]
          const Id* __restrict__ topk_ids,  // [M, kTopK]
          u32 m, u32 experts) {
  make_lists<kTopK>(
      room, counts, topk_ids, m, experts, false,
      [&](u32 e, u32 slot, u32 token, u32) { rows[u64{e} * m + slot] = token; },
      [&](u32 token, u32 j, u32 slot) { slots[u64{token} * kTopK + j] = slot; });
}
