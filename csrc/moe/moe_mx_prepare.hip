// Prepares the operands of moe_mx_experts.hip: the token lists of experts, and x quantised once per
// row.
//
//   lists[e, i] = t * kTopK + j of the i-th assignment (t, j) of expert e
//   q[t], scale[t] = x[t] in MXFP4 or MX-FP8, rows padded to whole K-steps of 128 bytes
//   (mx_format.h)
//
// counts[e] is how many tokens e has.
//
// Layout. The first list_groups workgroups make the lists, 4 lanes per token (token_lists.h). In
// the others a lane has 8 elements, and 4 lanes share a block of 32.
//
// Guarantees: elements and scales of the padding of a row are 0. A block with an infinity or a NaN
// has scale 255 and elements 0. The order of a list is arbitrary; no result depends on it.
// Requires: counts are 0; rows of x 16-byte aligned; K a multiple of 8.
#include "moe/mx_format.h"
#include "moe/token_lists.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "moe_mx_prepare is gfx950-only: it needs v_cvt_scalef32_pk"
#endif

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;                   // bf16 or f16
using Id = RFOPS_ID;                      // of topk_ids: i32 or i64
using Format = RFOPS_FORMAT<RFOPS_BUMP>;  // Mxfp4 or Mxfp8
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 512, kLanesPerToken = 4;
constexpr u32 kElemsPerLane = 8, kLanes = kMxBlock / kElemsPerLane;  // lanes per block
using Scales = ScaleLayout<Format, RFOPS_CHUNK>;

__shared__ TokenListAllocator<kThreads> allocator;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_prepare(const Id* __restrict__ topk_ids,     // [M, kTopK]
               const Input* __restrict__ x,         // [M, K], rows x_row apart
               u32 m, u32 k, u32 x_row, u32 steps,  // K-steps per row of q
               u32 experts, u32 list_groups,
               Format::Payload8* __restrict__ q,  // [M, steps, 128 bytes]
               u32* __restrict__ counts,          // [E]
               u32* __restrict__ lists,           // [E, M]
               u8* __restrict__ scale) {          // [M, blocks of a row], layout of mx_format.h
  if (workgroup_id_x() < list_groups) {
    make_lists_by_lanes<kTopK, kLanesPerToken>(allocator, counts, topk_ids, m, experts,
                                               list_groups == 1,
                                               [&](u32 e, u32 list_idx, u32 token, u32 j) {
                                                 lists[u64{e} * m + list_idx] = token * kTopK + j;
                                               });
    return;
  }
  const u32 payloads = steps * Format::kStepK / kElemsPerLane;  // per row
  const u32 index = (workgroup_id_x() - list_groups) * kThreads + thread_id();
  const u32 row = index / payloads, payload_idx = index % payloads;
  if (row >= m) return;  // uniform over the lanes of a block
  u32 pairs[4] = {};
  if (payload_idx * kElemsPerLane < k) {
    const U32x4 v4 =
        *reinterpret_cast<const U32x4*>(x + u64{row} * x_row + payload_idx * kElemsPerLane);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) pairs[i] = v4[i];
  }
  const auto larger = [](u32 a, u32 b) { return a > b ? a : b; };
  const u32 amax = reduce_lanes<kLanes>(Mxfp4Float<Input>::amax_bits(pairs), larger);
  const u32 byte = Format::template scale<Input>(amax);
  q[index] = Format::template quantise8<Input>(pairs, byte);
  if (payload_idx % kLanes == 0) {
    scale[Scales::x_offset(payload_idx / kLanes, row, m, steps)] = static_cast<u8>(byte);
  }
}
