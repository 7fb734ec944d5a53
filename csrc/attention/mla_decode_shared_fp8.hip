// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// MLA decode for up to 128 query rows per workgroup with q, the cache and P in FP8 (gfx950): twice
// the MFMA rate of mla_decode_shared.hip. P is e4m3 with a power-of-two scale per tile and query
// row (mla_wave_fp8.h); sums are fp32.
//
// Layout. work_partition.h partitions the tokens of all sequences over workgroups. A workgroup goes
// through the KV tiles of its split; a tile is in LDS once for both products (mla_kv_stage_fp8.h),
// and each of the four waves has 32 query rows (mla_wave_fp8.h). If the split is the whole
// sequence, the workgroup stores the output. Otherwise it stores a partial in fp16; a combine tree
// reduces many partials (mla_partials.h), and of up to kMaxShared partials each workgroup reduces
// an output slice (mla_output.h).
//
// Guarantees: deterministic; the order of sums depends only on lengths, workers and config.
// Requires: rows of q and kv 16-byte aligned; a page is a power of two of tokens.
#include "attention/mla_decode_many_rows.h"
#include "attention/mla_kv_stage_fp8.h"
#include "attention/mla_wave_fp8.h"

namespace {

using namespace rfops;

struct Types {
  static constexpr bool kPaged = RFOPS_PAGED, kRagged = RFOPS_RAGGED, kP_Fp8 = true;
  static constexpr u32 kMinTokens = RFOPS_LEAST, kMaxSpins = RFOPS_TURNS;
  using StageLayout = Fp8StageLayout;
  using Stages = Fp8Stages<kPaged>;
  using Attention = Fp8WaveAttention;
};
using Decode = ManyRowsDecode<Types>;

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(Decode::kThreads, Decode::kThreads),
                   amdgpu_waves_per_eu(1, 1)))
    mla_decode_shared_fp8(const i32* __restrict__ kv_indptr, const i32* __restrict__ kv_lens,
                          u32 batch, u32 workers, u32 page_shift, u32 width,
                          const i32* __restrict__ kv_indices, const void* __restrict__ q,
                          const u8* __restrict__ kv, const f32* __restrict__ kv_scale,
                          const f32* __restrict__ q_scale, bf16* __restrict__ out,
                          f32* __restrict__ lse, f32* __restrict__ partials,
                          u32* __restrict__ counts, const bf16* __restrict__ angles, f32 sm_scale,
                          u32 columns, u32 heads, u32 unseen, const i32* __restrict__ qo_indptr) {
  __shared__ __attribute__((aligned(16))) u8 memory[Decode::kLds];
  Decode::run((LdsBytes*)memory,
              {kv_indptr, kv_lens, batch,    workers, page_shift, width,  kv_indices,
               q,         kv,      kv_scale, q_scale, out,        lse,    partials,
               counts,    angles,  sm_scale, columns, heads,      unseen, qo_indptr});
}
