// What csrc/moe/moe_experts_fp8.hip wants: the tokens of each expert, and x quantised, each row
// once.
//
//   lists[e, i] = the i-th token of expert e,  slots[t, j] = where t is among those of topk_ids[t,
//   j] q[t], scale[t] = x[t] in FP8 with a scale for each 128 (fp8_blockscale.h)
//
// counts[e] is how many tokens e has; the caller sees to it that it was 0.
//
// Layout. The first workgroups make lists, a lane a token (token_lists.h). Of the others 16 lanes
// have a block of 128, 8 elements each.
//
// Promises. Lists are in any order, which nothing that is computed by them depends on; q and scale
// are quant_fp8_blockscale's to the bit. The caller aligns x to 16 bytes; K is a multiple of 128.
#include "moe/token_lists.h"
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using i64 = long long;
using In = RFOPS_IN;  // bf16 or f16
using Id = RFOPS_ID;  // of topk_ids: i32 or i64
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 256, kBlock = 128, kEach = 8, kLanes = kBlock / kEach;  // of a block
using InVec = In __attribute__((ext_vector_type(kEach)));

__shared__ TokenListAllocator<kThreads> room;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_fp8_prepare(u32* __restrict__ counts,         // [E]; these three and ids with list_groups
                u32* __restrict__ lists,          // [E, M]
                u32* __restrict__ slots,          // [M, kTopK]
                u8* __restrict__ q,               // [M, K]
                f32* __restrict__ scale,          // [M, K/128]
                const Id* __restrict__ topk_ids,  // [M, kTopK]
                const In* __restrict__ x,         // [M, K]
                u32 m, u32 k, u32 experts, u32 list_groups) {
  if (workgroup_id_x() < list_groups) {
    make_lists<kTopK>(
        room, counts, topk_ids, m, experts, false,
        [&](u32 e, u32 slot, u32 token, u32) { lists[u64{e} * m + slot] = token; },
        [&](u32 token, u32 j, u32 slot) { slots[u64{token} * kTopK + j] = slot; });
    return;
  }
  const u32 thread = thread_id(), lane = thread % kLanes;
  const u64 index = u64{workgroup_id_x() - list_groups} * (kThreads / kLanes) + thread / kLanes;
  if (index >= u64{m} * (k / kBlock)) return;  // whole blocks, so that lanes of one go together
  const u64 at = index * kBlock + lane * kEach;
  const InVec own = *reinterpret_cast<const InVec*>(x + at);
  f32 v[kEach];
  u32 most = Fp8Block::kMinAmaxBits;
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) {
    v[i] = static_cast<f32>(own[i]);
    most = Fp8Block::larger(most, Fp8Block::magnitude(v[i]));
  }
  const Fp8Block block(reduce_lanes<kLanes>(most, Fp8Block::larger));
  *reinterpret_cast<U32x2*>(q + at) =
      U32x2{block.convert(v[0], v[1], v[2], v[3]), block.convert(v[4], v[5], v[6], v[7])};
  if (lane == 0) scale[index] = block.scale();
}
