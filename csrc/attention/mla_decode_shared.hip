// out[b, t, h] = sum_n P[n] * kv[n, :512],  P = softmax_n(sm_scale * q[b, t, h] . kv[n])
//
// MLA decode for up to 128 query rows (a head of a query each) per workgroup, where MFMAs take as
// long as memory. Q and P are bf16 for every cache type; sums are fp32. mla_decode_flow.hip is for
// few query rows; mla_decode_shared_fp8.hip has P in FP8.
//
// Layout. work_partition.h partitions the tokens of all sequences over workgroups. A workgroup goes
// through the KV tiles of its split; a tile is in LDS once for both products (mla_kv_stage.h), and
// each of the four waves has 32 query rows (mla_online_softmax.h). If the split is the whole
// sequence, the workgroup stores the output. Otherwise it stores a partial in fp16; a combine tree
// reduces many partials (mla_partials.h), and of up to kMaxShared partials each workgroup reduces
// an output slice (mla_output.h).
//
// Guarantees: deterministic; the order of sums depends only on lengths, workers and config.
// Requires: rows of q and kv 16-byte aligned; a page is a power of two of tokens.
#include "attention/mla_kv_stage_load.h"
#include "attention/mla_kv_stage_widen.h"
#include "attention/mla_output.h"
#include "attention/mla_wave_gfx942.h"
#include "attention/mla_wave_gfx950.h"

namespace {

using namespace rfops;

constexpr bool kFp8 = RFOPS_KV_FP8, kRope = RFOPS_ROPE, kPFp8 = false;
constexpr bool kPaged = RFOPS_PAGED, kRagged = RFOPS_RAGGED, kEven = RFOPS_EVEN;
constexpr u32 kMinTokens = RFOPS_LEAST, kMaxSpins = RFOPS_TURNS;
static_assert(!(kFp8 && kRope), "keys of FP8 are not rotated");

template <bool kWidened>
struct Loaders {
  using Type = DirectStages<kPaged, kRope>;
};
template <>
struct Loaders<true> {
  using Type = WidenedStages<kPaged>;
};
using StageLayout = KvStageLayout;
using Stages = Loaders<kFp8>::Type;
using Attention = WaveAttention<RFOPS_Q_FP8, kFp8 ? 6 : 18>;

}  // namespace

// After its types, which it is compiled for.
#include "attention/mla_decode_many_rows.h"
