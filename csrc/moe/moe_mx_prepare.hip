// What csrc/moe/moe_mx_experts.hip wants: the tokens of each expert, and x quantised, each row
// once.
//
//   lists[e, i] = the i-th token of expert e,  slots[t, j] = where t is among those of topk_ids[t,
//   j] q[t], scale[t] = x[t] in MXFP4 or MX-FP8, rows of whole steps of 128 bytes (mx_format.h)
//
// counts[e] is how many tokens e has; the caller sees to it that it was 0.
//
// Layout. The first workgroups make lists, 4 lanes a token (token_lists.h). Of the others a lane
// has 8 elements, 4 lanes a block of 32.
//
// Promises. Lists are in any order, which nothing that is computed by them depends on. Elements and
// scales of what pads a row are 0. A block with an infinity or a NaN has scale 255 and elements 0.
// The caller aligns each row of x to 16 bytes; K is a multiple of 8.
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
using In = RFOPS_IN;                      // bf16 or f16
using Id = RFOPS_ID;                      // of topk_ids: i32 or i64
using Format = RFOPS_FORMAT<RFOPS_BUMP>;  // Mxfp4 or Mxfp8
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kThreads = 512, kOfToken = 4;          // lanes
constexpr u32 kEach = 8, kLanes = kMxBlock / kEach;  // of a block
using Scales = ScaleLayout<Format, RFOPS_CHUNK>;

__shared__ TokenListAllocator<kThreads> room;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_mx_prepare(const Id* __restrict__ topk_ids,     // [M, kTopK]
               const In* __restrict__ x,            // [M, K], rows x_row apart
               u32 m, u32 k, u32 x_row, u32 steps,  // of a row of q
               u32 experts, u32 list_groups,
               Format::Eight* __restrict__ q,  // [M, steps, 128 bytes]
               u32* __restrict__ counts,       // [E]
               u32* __restrict__ lists,        // [E, M]
               u8* __restrict__ scale) {       // [M, a row's blocks], or as mx_format.h says
  if (workgroup_id_x() < list_groups) {
    share_lists<kTopK, kOfToken>(
        room, counts, topk_ids, m, experts, list_groups == 1,
        [&](u32 e, u32 slot, u32 token, u32 j) { lists[u64{e} * m + slot] = token * kTopK + j; });
    return;
  }
  const u32 eights = steps * Format::kStepK / kEach;  // of a row
  const u32 index = (workgroup_id_x() - list_groups) * kThreads + thread_id();
  const u32 row = index / eights, at = index % eights;
  if (row >= m) return;  // whole blocks, so that lanes of one go together
  u32 pairs[4] = {};
  if (at * kEach < k) {
    const U32x4 four = *reinterpret_cast<const U32x4*>(x + u64{row} * x_row + at * kEach);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) pairs[i] = four[i];
  }
  const auto larger = [](u32 a, u32 b) { return a > b ? a : b; };
  const u32 most = reduce_lanes<kLanes>(Mxfp4Float<In>::amax_bits(pairs), larger);
  const u32 byte = Format::template scale<In>(most);
  q[index] = Format::template eight<In>(pairs, byte);
  if (at % kLanes == 0) {
    scale[Scales::at_of_x(at / kLanes, row, m, steps)] = static_cast<u8>(byte);
  }
}
