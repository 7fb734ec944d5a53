// Prepares the operands of moe_fp8_stream_up.hip and _down.hip: the experts that have a row, and x
// quantised once per row.
//
//   hits = how many experts, which (hit_experts.h)
//   q[t], scale[t] = x[t] in FP8 with one scale per 128 (quantise_rows.h)
//
// Layout. The first workgroup finds the experts, the others quantise.
//
// Guarantees: q and scale equal those of quant_fp8_blockscale bit for bit; hits are in ascending
// order after the shared ones.
// Requires: x 16-byte aligned; K a multiple of 128.
#include "moe/hit_experts.h"
#include "moe/quantise_rows.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;  // bf16 or f16
using Id = RFOPS_ID;     // of topk_ids: i32 or i64
constexpr u32 kThreads = 512;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_fp8_stream_prepare(u32* __restrict__ hits,           // [1 + E]
                       u8* __restrict__ q,               // [M, K]
                       f32* __restrict__ scale,          // [M, K/128]
                       const Id* __restrict__ topk_ids,  // [count]
                       const Input* __restrict__ x,      // [M, K]
                       u32 m, u32 k, u32 count, u32 routed, u32 experts) {
  if (workgroup_id_x() == 0) {
    __shared__ HitBits bits;
    find_hit_experts<kThreads>(bits, hits, topk_ids, count, routed, experts);
  } else {
    quantise_rows<kThreads>(q, scale, x, m, k, workgroup_id_x() - 1);
  }
}
