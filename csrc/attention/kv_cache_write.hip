// key and value of [T, heads, kDim] written to the slots of their tokens in paged caches
// [pages, page, heads, kDim] of 16 bits, or FP8 of (x / scale).
//
// Slot s begins at (s / page) * page_stride + (s % page) * slot_stride with kNested, otherwise at
// s * page_stride; a head head_stride further. Both caches lie alike. Tokens whose slot is negative
// or outside of the caches are not cached.
//
// Layout. A lane has one unit of one head (attention/row_unit.h). Workgroups of y = 0 have the key,
// of y = 1 the value.
//
// Guarantees: deterministic.
// Requires: no slot twice. kVec == 8: heads 16-byte aligned (8 of FP8), kDim a
// multiple of 16.
#include "attention/row_unit.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;          // bf16 or f16
using SlotIdx = RFOPS_SLOT;      // i32 or Index64
constexpr u32 kVec = RFOPS_VEC;  // elements per load: 8, or 1 where rows are not aligned
constexpr u32 kDim = RFOPS_DIM, kHeads = RFOPS_HEADS, kThreads = RFOPS_THREADS;
constexpr bool kNested = RFOPS_NESTED, kFp8 = RFOPS_CACHE_FP8;
constexpr u32 kUnits = kDim / (2 * kVec);  // of a head
static_assert(kDim % (2 * kVec) == 0 && kHeads > 0);

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
kv_cache_write(const SlotIdx* __restrict__ slot_indices,  // [num_tokens]
               const Input* __restrict__ key,             // [T, heads, kDim]
               const Input* __restrict__ value,           // [T, heads, kDim]
               void* key_cache, void* value_cache, u32 num_tokens, u32 num_cache_slots, u32 page,
               u32 page_stride, u32 slot_stride, u32 head_stride, u32 key_token, u32 key_head,
               u32 value_token, u32 value_head, const f32* __restrict__ key_scale,
               const f32* __restrict__ value_scale) {
  const bool is_value = workgroup_id_y() == 1;
  const HeadUnit<kHeads, kUnits> head_unit(workgroup_id_x() * kThreads + thread_id());
  if (head_unit.token >= num_tokens) return;
  const Index64 slot_idx = static_cast<Index64>(slot_indices[head_unit.token]);
  const u64 row =
      head_unit.row(is_value ? value_token : key_token, is_value ? value_head : key_head);
  const RowUnit<Input, kVec, kDim> elements((is_value ? value : key) + row, head_unit.unit, false);
  const f32 factor = inverse_scale<kFp8>(is_value ? value_scale : key_scale);
  const CacheSlots<kNested> cache{num_cache_slots, page, page_stride, slot_stride};
  if (!cache.contains(slot_idx)) return;
  const u64 cached = cache.offset(slot_idx) + u64{head_unit.head} * head_stride;
  elements.store_as<kFp8>(is_value ? value_cache : key_cache, cached, head_unit.unit, false,
                          factor);
}
