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
#include "attention/mla_kv_stage_fp8.h"
#include "attention/mla_output.h"
#include "attention/mla_wave_fp8.h"

namespace {

using namespace rfops;

constexpr bool kPaged = RFOPS_PAGED, kRagged = RFOPS_RAGGED;
constexpr bool kEven = RFOPS_EVEN, kPFp8 = true;
constexpr u32 kMinTokens = RFOPS_LEAST, kMaxSpins = RFOPS_TURNS;
using StageLayout = Fp8StageLayout;
using Stages = Fp8Stages<kPaged>;
using Attention = Fp8WaveAttention;

}  // namespace

// After its types, which it is compiled for.
#include "attention/mla_decode_many_rows.h"
