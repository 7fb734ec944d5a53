// Counting sort of routed rows by expert, each expert's rows padded to a multiple of `block`:
//
//   sorted_ids[start[e] + i] = the i-th row, in order, of those with topk_ids[row] = e
//   start[e + 1] = start[e] + ceil(count[e] / block) * block,  padding and the tail hold num_rows
//   expert_ids[j] = e for start[e] <= j * block < start[e + 1]
//
// Layout. kWaves waves of each workgroup take consecutive ranges of the rows. Each first counts its
// range by expert in LDS. The position of a row is then the start of its expert, plus the rows of
// that expert in earlier ranges, plus those before it in its own range: 64 rows are ranked at a
// time by comparing their experts bit by bit across lanes. With more than one workgroup,
// moe_align_count first stores each workgroup's counts to `counts`, and every workgroup sums them.
//
// Guarantees: stable and bitwise deterministic, because atomics only count. Experts outside 0..E-1,
// and experts that `map` makes negative, are in no block.
// Requires: dynamic LDS of (kWaves + 2) * E words (moe_align_count: E); all sizes below 2^31.
#include "moe/lanes_like.h"
#include "rfops/chip/types.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

constexpr u32 kWaves = RFOPS_WAVES;
constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kNone = ~0u;
using i64 = long long;
using Id = RFOPS_ID;  // of topk_ids: i32 or i64

static_assert(kThreads <= 1024, "a workgroup has at most 1024 threads");

extern __shared__ u32 lds[];

struct Rows {
  const Id* topk_ids;
  const i32* map;  // null: identity
  u32 num_rows, num_experts;

  // Returns the expert to sort a row by, or kNone if the row is in no block.
  __device__ u32 expert_of(u32 row) const {
    if (row >= num_rows) return kNone;
    const Id id = topk_ids[row];
    if (id < 0 || id >= static_cast<Id>(num_experts)) return kNone;
    if (map == nullptr) return static_cast<u32>(id);
    const u32 mapped = static_cast<u32>(map[id]);
    return mapped < num_experts ? mapped : kNone;
  }
};

// Rows [begin, end) of one wave, a multiple of 64; ranges are ordered by workgroup, then by wave.
struct RowRange {
  u32 begin, end;
};

__device__ inline RowRange row_range(u32 num_rows, u32 wave, u32 num_groups) {
  const u32 ranges = num_groups * kWaves;
  const u32 steps = (num_rows + ranges * kWaveSize - 1) / (ranges * kWaveSize);
  const u32 begin = (workgroup_id_x() * kWaves + wave) * steps * kWaveSize;
  return {begin, begin + steps * kWaveSize};
}

__device__ inline void count_range(u32* counts, const Rows& rows, const RowRange& range, u32 lane) {
  for (u32 row = range.begin; row < range.end; row += kWaveSize) {
    const u32 expert = rows.expert_of(row + lane);
    if (expert == kNone) continue;
    __hip_atomic_fetch_add(&counts[expert], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  }
}

// Exclusive scan of values in place; returns the total. Called by one wave.
__device__ inline u32 scan_exclusive(u32* values, u32 count, u32 lane) {
  u32 sum = 0;
  for (u32 begin = 0; begin < count; begin += kWaveSize) {
    const u32 idx = begin + lane;
    const u32 value = idx < count ? values[idx] : 0;
    const u32 scanned = inclusive_scan(value);
    if (idx < count) values[idx] = sum + scanned - value;
    sum += __builtin_amdgcn_readlane(scanned, kWaveSize - 1);
  }
  return sum;
}

// Returns the last expert whose rows start at or before `list_idx`.
__device__ inline u32 expert_at(const u32* start, u32 num_experts, u32 list_idx) {
  u32 low = 0, high = num_experts;  // start[low] <= list_idx < start[high]
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    (start[middle] <= list_idx ? low : high) = middle;
  }
  return low;
}

// Writes cursor[wave][e]: rows of e before that wave's range; count[e]: rows in all; start[e]: the
// padded count.
__device__ inline void prefix_over_ranges(u32* cursor, u32* start, u32* count, const u32* counts,
                                          u32 num_groups, u32 num_experts, u32 block) {
  for (u32 e = thread_id(); e < num_experts; e += kThreads) {
    u32 rows_before = 0, total = 0;
    for (u32 group = 0; num_groups > 1 && group < num_groups; ++group) {
      rows_before = group == workgroup_id_x() ? total : rows_before;
      total += counts[group * num_experts + e];
    }
    for (u32 wave = 0; wave < kWaves; ++wave) {
      const u32 count_of_wave = cursor[wave * num_experts + e];
      cursor[wave * num_experts + e] = rows_before;
      rows_before += count_of_wave;
    }
    total = num_groups > 1 ? total : rows_before;
    count[e] = total;
    start[e] = (total + block - 1) / block * block;
  }
}

__device__ inline void write_range(u32* sorted_ids, u32* cursor, const u32* start, const Rows& rows,
                                   const RowRange& range, u32 lane) {
  const u32 bits = 32 - __builtin_clz(rows.num_experts);
  for (u32 row = range.begin; row < range.end; row += kWaveSize) {
    const u32 expert = rows.expert_of(row + lane);
    const bool active = expert != kNone;
    const u64 like = lanes_like(expert, active, bits);
    const u32 rank = __builtin_popcountll(like & ((1ull << lane) - 1));
    if (active) {
      const u32 rank_base = cursor[expert];
      sorted_ids[start[expert] + rank_base + rank] = row + lane;
      cursor[expert] = rank_base + __builtin_popcountll(like);  // all lanes write the same value
    }
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_align_count(u32* __restrict__ counts,         // [groups, E]
                const Id* __restrict__ topk_ids,  // [num_rows]
                const i32* __restrict__ row_map,  // [E] or null
                u32 num_rows, u32 num_experts, u32 num_groups) {
  for (u32 e = thread_id(); e < num_experts; e += kThreads) lds[e] = 0;
  workgroup_barrier();
  const Rows rows = {topk_ids, row_map, num_rows, num_experts};
  count_range(lds, rows, row_range(num_rows, wave_id(), num_groups), lane_id());
  workgroup_barrier();
  for (u32 e = thread_id(); e < num_experts; e += kThreads) {
    counts[workgroup_id_x() * num_experts + e] = lds[e];
  }
}

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_align_place(u32* __restrict__ sorted_ids,       // [num_slots]
                i32* __restrict__ expert_ids,       // [num_blocks]
                u32* __restrict__ num_padded,       // [1]
                const Id* __restrict__ topk_ids,    // [num_rows]
                const i32* __restrict__ row_map,    // [E] or null: maps experts before the sort
                const i32* __restrict__ block_map,  // [E] or null: maps the experts in expert_ids
                const u32* __restrict__ counts,     // [groups, E]; read if there are several groups
                u32 num_rows, u32 num_experts, u32 block, u32 num_slots, u32 num_blocks,
                u32 num_groups) {
  const u32 thread = thread_id(), wave = wave_id(), lane = lane_id();
  u32* cursor = lds;
  u32* start = cursor + kWaves * num_experts;
  u32* count = start + num_experts;
  const Rows rows = {topk_ids, row_map, num_rows, num_experts};
  const RowRange range = row_range(num_rows, wave, num_groups);

  for (u32 i = thread; i < kWaves * num_experts; i += kThreads) cursor[i] = 0;
  workgroup_barrier();
  count_range(cursor + wave * num_experts, rows, range, lane);
  workgroup_barrier();
  prefix_over_ranges(cursor, start, count, counts, num_groups, num_experts, block);
  workgroup_barrier();
  __shared__ u32 in_use;
  if (wave == 0) {
    const u32 sum = scan_exclusive(start, num_experts, lane);
    if (lane == 0) in_use = sum;
  }
  workgroup_barrier();

  write_range(sorted_ids, cursor + wave * num_experts, start, rows, range, lane);
  const u32 padded = in_use;
  const u32 all_thread = workgroup_id_x() * kThreads + thread, all_threads = num_groups * kThreads;
  for (u32 list_idx = all_thread; list_idx < num_slots; list_idx += all_threads) {
    if (list_idx < padded) {
      const u32 e = expert_at(start, num_experts, list_idx);
      if (list_idx - start[e] < count[e]) continue;
    }
    sorted_ids[list_idx] = num_rows;
  }
  for (u32 i = all_thread; i < num_blocks; i += all_threads) {
    const u32 e = i * block < padded ? expert_at(start, num_experts, i * block) : 0;
    expert_ids[i] = block_map == nullptr ? static_cast<i32>(e) : block_map[e];
  }
  if (all_thread == 0) *num_padded = padded;
}
