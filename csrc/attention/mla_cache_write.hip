// A token's row of the latent KV cache, kv_c | k_pe, written to the slot of the token; k_pe, and
// with it q_pe, are rotated first if kRotates (RoPE, attention/row_unit.h).
//
//     kv[slot]    = kv_c | rope(k_pe)          of 16 bits, or FP8 of (x / kv_scale)
//     kQuery:       kNone     nothing else
//                   kInPlace  q_pe = rope(q_pe)
//                   kConcat   q = q_nope | rope(q_pe), of 16 bits, or FP8 of (x / q_scale)
//
// and k_pe_out = rope(k_pe) with kKeyOut, which may be k_pe itself.
//
// Slot s begins at (s / page) * page_stride + (s % page) * slot_stride with kNested, otherwise at
// s * page_stride. Tokens from num_slots on, and those whose slot is negative or outside of
// the cache, are not cached. A position outside of the table counts as the last.
//
// Layout. A lane has one unit of a row (attention/row_unit.h). The first num_key_groups workgroups
// have the tokens' rows of the cache, k_pe before kv_c; the next num_q_pe_groups q_pe, the others
// q_nope. So all waves of a workgroup run the same code. One token with 16 heads to an FP8 cache,
// estimated, MI355X, cold caches: 4.4 us where waves have units of several kinds, 3.6 so.
//
// Guarantees: deterministic; the bits are those of rope, then of the cache write.
// Requires: no slot twice. kVec == 8: all rows 16-byte aligned (8 of FP8), kRotary and kLatent
// multiples of 16.
#include "attention/row_unit.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

enum class Query { kNone, kInPlace, kConcat };

using Input = RFOPS_IN;           // bf16, f16 or f32
using Angle = RFOPS_ANGLE;        // bf16, f16 or f32
using Position = RFOPS_POSITION;  // i32 or Index64
using SlotIdx = RFOPS_SLOT;       // i32 or Index64
constexpr u32 kVec = RFOPS_VEC;   // elements per load: 8, or 1 where rows are not aligned
constexpr u32 kRotary = RFOPS_ROTARY, kLatent = RFOPS_LATENT, kThreads = RFOPS_THREADS;
constexpr u32 kHeads = RFOPS_HEADS;  // of q; 1 without q
constexpr bool kInterleaved = RFOPS_INTERLEAVED, kNested = RFOPS_NESTED;
constexpr bool kCacheFp8 = RFOPS_CACHE_FP8, kQueryFp8 = RFOPS_QUERY_FP8;
constexpr bool kKeyOut = RFOPS_KEY_OUT;
constexpr Query kQuery = Query::RFOPS_QUERY;
constexpr bool kRotates = kQuery != Query::kNone, kHalves = kRotates && !kInterleaved;
constexpr u32 kRotaryUnits = kRotary / (2 * kVec), kLatentUnits = kLatent / (2 * kVec);
constexpr u32 kKeyUnits = kRotaryUnits + kLatentUnits;
static_assert(kRotary % (2 * kVec) == 0 && kLatent % (2 * kVec) == 0 && kHeads > 0);

using Unit = RowUnit<Input, kVec, kRotary>;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mla_cache_write(u32 num_key_groups, u32 num_tokens, u32 num_slots, u32 k_pe_row,
                const SlotIdx* __restrict__ slot_indices,  // [num_slots]
                const Position* __restrict__ positions,    // [T]
                const Input* k_pe,                         // [T, kRotary]
                const Input* __restrict__ kv_c,            // [T, kLatent]
                // Up to here arguments are preloaded: what others are loaded by comes first.
                const f32* __restrict__ kv_scale, u32 kv_c_row, u32 num_q_pe_groups, void* kv,
                u32 num_cache_slots, u32 page, u32 page_stride, u32 slot_stride,
                const Angle* __restrict__ cos_sin, const Angle* __restrict__ sin, u32 angle_row,
                u32 num_positions,
                u32 sin_offset,  // of row 0 of the sines, from `sin` on
                u32 k_pe_out_row,
                Input* k_pe_out,                   // [T, kRotary]
                Input* q_pe,                       // [T, heads, kRotary]
                const Input* __restrict__ q_nope,  // [T, heads, kLatent]
                void* q,                           // [T, heads, kLatent + kRotary]
                u32 q_pe_token, u32 q_pe_head, u32 q_nope_token, u32 q_nope_head, u32 q_token,
                u32 q_head, const f32* __restrict__ q_scale) {
  u32 group = workgroup_id_x();
  UnitAngles<Angle, kVec> angles;
  const auto load_angles = [&](Position position, u32 unit) {
    const u64 row = angle_row_offset(position, num_positions, angle_row);
    angles.load(cos_sin + row, sin + (row + sin_offset), unit);
  };
  if (!kRotates || group < num_key_groups) {
    const u32 index = group * kThreads + thread_id();
    const u32 token = index / kKeyUnits, unit_of_token = index % kKeyUnits;
    if (token >= num_tokens) return;
    // Every load that needs no other comes first, because a lone token is bound by latency.
    f32 scale = kCacheFp8 ? *kv_scale : 1.0f;
    const Index64 slot_idx = token < num_slots ? static_cast<Index64>(slot_indices[token]) : -1;
    Position position = kRotates ? positions[token] : 0;
    const bool is_pe = unit_of_token < kRotaryUnits, in_halves = kHalves && is_pe;
    const u32 unit = is_pe ? unit_of_token : unit_of_token - kRotaryUnits;
    const u64 row = u64{token} * (is_pe ? k_pe_row : kv_c_row);
    Unit elements((is_pe ? k_pe : kv_c) + row, unit, in_halves);
    // Arguments, the scale, the position and, without RoPE, the row are waited for here: the
    // compiler would load each where it is used, behind the wait for another. Floor with RoPE, cold
    // caches: the launch, 2.0 us, the position, then the angles, 0.41 us each on MI355X, the
    // rotation, 0.15 us. One token of 16 heads, estimated: in place 3.19 us, to FP8 3.43,
    // concatenated 3.13; MI300X 3.36 in place, 3.29 concatenated. Without RoPE 3.02.
    wait_arguments(kv, num_cache_slots, page_stride);
    if constexpr (kNested) wait_arguments(page, slot_stride);
    if constexpr (kCacheFp8) force_vgpr(scale);
    if constexpr (kRotates)
      force_vgpr(position);
    else
      elements.keep();
    const f32 factor = 1.0f / scale;
    if (kRotates && is_pe) load_angles(position, unit);
    if (kRotates && is_pe) {
      elements.rotate<kInterleaved>(angles);
      if constexpr (kKeyOut) elements.store(k_pe_out + u64{token} * k_pe_out_row, unit, in_halves);
    }
    const CacheSlots<kNested> cache{num_cache_slots, page, page_stride, slot_stride};
    if (!cache.contains(slot_idx)) return;
    const u64 cached = cache.offset(slot_idx);
    elements.store_as<kCacheFp8>(kv, cached + (is_pe ? kLatent : 0), unit, in_halves, factor);
    return;
  }
  group -= num_key_groups;
  if (kRotates && (kQuery != Query::kConcat || group < num_q_pe_groups)) {
    const HeadUnit<kHeads, kRotaryUnits> head_unit(group * kThreads + thread_id());
    if (head_unit.token >= num_tokens) return;
    const Position position = positions[head_unit.token];
    Input* const row = q_pe + head_unit.row(q_pe_token, q_pe_head);
    Unit elements(row, head_unit.unit, kHalves);
    if constexpr (kQuery == Query::kConcat) wait_arguments(q, q_token, q_head);
    load_angles(position, head_unit.unit);
    const f32 factor = inverse_scale<kQueryFp8>(q_scale);
    elements.rotate<kInterleaved>(angles);
    if constexpr (kQuery == Query::kInPlace)
      elements.store(row, head_unit.unit, kHalves);
    else
      elements.store_as<kQueryFp8>(q, head_unit.row(q_token, q_head) + kLatent, head_unit.unit,
                                   kHalves, factor);
    return;
  }
  if constexpr (kQuery == Query::kConcat) {
    const HeadUnit<kHeads, kLatentUnits> head_unit((group - num_q_pe_groups) * kThreads +
                                                   thread_id());
    if (head_unit.token >= num_tokens) return;
    const Unit elements(q_nope + head_unit.row(q_nope_token, q_nope_head), head_unit.unit, false);
    const f32 factor = inverse_scale<kQueryFp8>(q_scale);
    elements.store_as<kQueryFp8>(q, head_unit.row(q_token, q_head), head_unit.unit, false, factor);
  }
}
