// out[row] = sum_w 2^(m_w - M) o_w / sum_w 2^(m_w - M) l_w,  M = max_w m_w, of the workers w that
// share a sequence: what mla_decode_flow left of each in `parts`.
//
// Layout. A workgroup is one column of one sequence, four elements a thread. Which workers those
// are follows from the schedule, computed again (split_schedule.h); one that had all of a sequence
// has written its result.
//
// Promises. Deterministic: workers are added up in their order.
#include "rfops/matrix.h"
#include "rfops/split_schedule.h"

#if !defined(RFOPS_GRANULE) || !defined(RFOPS_LEAST)
#error "mla_decode_reduce needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

constexpr u32 kGranule = RFOPS_GRANULE;  // tokens that a cut is rounded up to
constexpr u32 kLeast = RFOPS_LEAST;      // tokens of a worker at least
constexpr u32 kColumns = 16, kValue = 512, kThreads = kValue / 4;
constexpr f32 kLn2 = 0.693147180559945f, kLowest = -1e30f;

// Where sequence `b` starts, and its length.
struct Place {
  u32 start, length;

  __device__ Place(const Sequences& all, u32 b) {
    u32 base = 0, first = all.lens == nullptr ? b / kWaveSize * kWaveSize : 0;
    for (; first + kWaveSize <= b; first += kWaveSize) base = SequenceChunk(all, first, base).next;
    const SequenceChunk chunk(all, first, base);
    start = lane_value(chunk.start, b - first);
    length = lane_value(chunk.length, b - first);
  }
};

}  // namespace

// Grid: columns, sequences.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mla_decode_reduce(bf16* __restrict__ out, f32* __restrict__ lse, const f32* __restrict__ parts,
                  const i32* __restrict__ kv_indptr, const i32* __restrict__ kv_lens,
                  const f32* __restrict__ kv_scale, u32 batch, u32 columns, u32 page_shift,
                  u32 workers) {
  const u32 column = group_x(), b = group_y() + group_z() * 65535;
  if (b >= batch) return;
  const Sequences all = {kv_indptr, kv_lens, batch, page_shift};
  const Shares shares(all.total(), workers, kLeast);
  const Place place(all, b);
  if (place.length == 0) return;
  const u32 zero = place.start + kItemCost;  // its first token
  const u32 first = shares.owner(zero);
  const u32 last = shares.owner(zero + (place.length - 1) / kGranule * kGranule);
  if (first == last) return;

  const u32 group = column / kColumns, groups = (columns + kColumns - 1) / kColumns;
  const auto slot_of = [&](u32 w) { return (group * workers + w) * 2 + (w == first ? 1 : 0); };
  const auto has_tokens = [&](u32 w) {
    return token_at<kGranule>(shares.begin(w), place.start, place.length) <
           token_at<kGranule>(shares.begin(w + 1), place.start, place.length);
  };
  const f32* const totals = parts + u64{groups} * workers * 2 * kValue * kColumns;
  const auto total_at = [&](u32 w) {
    return totals + (u64{slot_of(w)} * kColumns + column % kColumns) * 2;
  };
  f32 most = kLowest;
  for (u32 w = first; w <= last; ++w) {
    most = has_tokens(w) ? __builtin_fmaxf(most, total_at(w)[0]) : most;
  }
  f32 sum = 0.0f;
  F32x4 o = {};
  for (u32 w = first; w <= last; ++w) {
    if (!has_tokens(w)) continue;
    const f32 weight = __builtin_amdgcn_exp2f(total_at(w)[0] - most);
    const u64 at = (u64{slot_of(w)} * kColumns + column % kColumns) * kValue;
    sum += weight * total_at(w)[1];
    o += weight * *reinterpret_cast<const F32x4*>(parts + at + thread_in_group() * 4);
  }
  const bool is_none = sum == 0.0f;
  const f32 factor = is_none ? 0.0f : (kv_scale == nullptr ? 1.0f : *kv_scale) / sum;
  using Bf16x4 = bf16 __attribute__((ext_vector_type(4)));
  const u64 row = u64{b} * columns + column;
  *reinterpret_cast<Bf16x4*>(out + row * kValue + thread_in_group() * 4) =
      __builtin_convertvector(o * factor, Bf16x4);
  if (lse != nullptr && thread_in_group() == 0) {
    lse[row] = is_none ? -__builtin_inff() : (most + __builtin_amdgcn_logf(sum)) * kLn2;
  }
}
