// Counting sort of routed rows by expert, each expert's rows padded to a multiple of `block`:
//
//   sorted_ids[start[e] + i] = the i-th row, in order, of those with topk_ids[row] = e
//   start[e + 1] = start[e] + ceil(count[e] / block) * block,  padding and the tail hold num_rows
//   expert_ids[j] = e for start[e] <= j * block < start[e + 1]
//
// Layout. kWaves waves of each workgroup take consecutive parts of the rows. Each first counts its
// part by expert in LDS; a row's place is then its expert's start, the rows of that expert in parts
// before, and those before it in its own part: 64 rows are ranked at a time by comparing their
// experts bit by bit across lanes. With more than one workgroup, moe_align_count has left what each
// counted in `counts`, and every workgroup adds that up for itself.
//
// Promises. Stable and deterministic: atomics count, they never place. Experts outside 0..E-1, as
// well as those that `map` makes negative, are in no block. Dynamic LDS: (kWaves + 2) * E words
// (moe_align_count: E). All sizes are below 2^31.
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
  const i32* map;  // null: experts as they come
  u32 num_rows, num_experts;

  // The expert to sort a row by, kNone if it is to be in no block.
  __device__ u32 expert_of(u32 row) const {
    if (row >= num_rows) return kNone;
    const Id id = topk_ids[row];
    if (id < 0 || id >= static_cast<Id>(num_experts)) return kNone;
    if (map == nullptr) return static_cast<u32>(id);
    const u32 mapped = static_cast<u32>(map[id]);
    return mapped < num_experts ? mapped : kNone;
  }
};

// The rows [first, end) of one wave: a multiple of 64 for each, over all workgroups in turn.
struct Part {
  u32 first, end;
};

__device__ inline Part part_of(u32 num_rows, u32 wave, u32 num_groups) {
  const u32 parts = num_groups * kWaves;
  const u32 turns = (num_rows + parts * kWaveSize - 1) / (parts * kWaveSize);
  const u32 first = (workgroup_id_x() * kWaves + wave) * turns * kWaveSize;
  return {first, first + turns * kWaveSize};
}

__device__ inline void count_part(u32* counts, const Rows& rows, const Part& part, u32 lane) {
  for (u32 row = part.first; row < part.end; row += kWaveSize) {
    const u32 expert = rows.expert_of(row + lane);
    if (expert == kNone) continue;
    __hip_atomic_fetch_add(&counts[expert], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  }
}

// The lanes whose value equals this lane's in its lowest `bits`, among those with `active`.
__device__ inline u64 lanes_like(u32 value, bool active, u32 bits) {
  u64 like = __builtin_amdgcn_ballot_w64(active);
  for (u32 bit = 0; bit < bits; ++bit) {
    const bool set = (value >> bit & 1) != 0;
    const u64 with = __builtin_amdgcn_ballot_w64(set);
    like &= set ? with : ~with;
  }
  return like;
}

// values[e] becomes the sum of those before; returns the sum of all. One wave calls it.
__device__ inline u32 scan_exclusive(u32* values, u32 count, u32 lane) {
  u32 sum = 0;
  for (u32 first = 0; first < count; first += kWaveSize) {
    const u32 at = first + lane;
    const u32 value = at < count ? values[at] : 0;
    const u32 scanned = inclusive_scan(value);
    if (at < count) values[at] = sum + scanned - value;
    sum += __builtin_amdgcn_readlane(scanned, kWaveSize - 1);
  }
  return sum;
}

// The expert in whose rows `slot` lies: the last that starts at or before it.
__device__ inline u32 expert_at(const u32* start, u32 num_experts, u32 slot) {
  u32 low = 0, high = num_experts;  // start[low] <= slot < start[high]
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    (start[middle] <= slot ? low : high) = middle;
  }
  return low;
}

// cursor[wave][e]: rows of e before that wave's part. count[e]: all. start[e]: padded count.
__device__ inline void prefix_over_parts(u32* cursor, u32* start, u32* count, const u32* counts,
                                         u32 num_groups, u32 num_experts, u32 block) {
  for (u32 e = thread_id(); e < num_experts; e += kThreads) {
    u32 before = 0, total = 0;
    for (u32 group = 0; num_groups > 1 && group < num_groups; ++group) {
      before = group == workgroup_id_x() ? total : before;
      total += counts[group * num_experts + e];
    }
    for (u32 wave = 0; wave < kWaves; ++wave) {
      const u32 own = cursor[wave * num_experts + e];
      cursor[wave * num_experts + e] = before;
      before += own;
    }
    total = num_groups > 1 ? total : before;
    count[e] = total;
    start[e] = (total + block - 1) / block * block;
  }
}

__device__ inline void place_part(u32* sorted_ids, u32* cursor, const u32* start, const Rows& rows,
                                  const Part& part, u32 lane) {
  const u32 bits = 32 - __builtin_clz(rows.num_experts);
  for (u32 row = part.first; row < part.end; row += kWaveSize) {
    const u32 expert = rows.expert_of(row + lane);
    const bool active = expert != kNone;
    const u64 like = lanes_like(expert, active, bits);
    const u32 rank = __builtin_popcountll(like & ((1ull << lane) - 1));
    if (active) {
      const u32 first = cursor[expert];
      sorted_ids[start[expert] + first + rank] = row + lane;
      cursor[expert] = first + __builtin_popcountll(like);  // the same in all lanes that write it
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
  count_part(lds, rows, part_of(num_rows, wave_id(), num_groups), lane_id());
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
                const i32* __restrict__ row_map,    // [E] or null: sort by what it makes of experts
                const i32* __restrict__ block_map,  // [E] or null: write what it makes of experts
                const u32* __restrict__ counts,     // [groups, E]; read with several groups
                u32 num_rows, u32 num_experts, u32 block, u32 num_slots, u32 num_blocks,
                u32 num_groups) {
  const u32 thread = thread_id(), wave = wave_id(), lane = lane_id();
  u32* cursor = lds;
  u32* start = cursor + kWaves * num_experts;
  u32* count = start + num_experts;
  const Rows rows = {topk_ids, row_map, num_rows, num_experts};
  const Part part = part_of(num_rows, wave, num_groups);

  for (u32 i = thread; i < kWaves * num_experts; i += kThreads) cursor[i] = 0;
  workgroup_barrier();
  count_part(cursor + wave * num_experts, rows, part, lane);
  workgroup_barrier();
  prefix_over_parts(cursor, start, count, counts, num_groups, num_experts, block);
  workgroup_barrier();
  __shared__ u32 in_use;
  if (wave == 0) {
    const u32 sum = scan_exclusive(start, num_experts, lane);
    if (lane == 0) in_use = sum;
  }
  workgroup_barrier();

  place_part(sorted_ids, cursor + wave * num_experts, start, rows, part, lane);
  const u32 padded = in_use;
  const u32 all_thread = workgroup_id_x() * kThreads + thread, all_threads = num_groups * kThreads;
  for (u32 slot = all_thread; slot < num_slots; slot += all_threads) {
    if (slot < padded) {
      const u32 e = expert_at(start, num_experts, slot);
      if (slot - start[e] < count[e]) continue;
    }
    sorted_ids[slot] = num_rows;
  }
  for (u32 i = all_thread; i < num_blocks; i += all_threads) {
    const u32 e = i * block < padded ? expert_at(start, num_experts, i * block) : 0;
    expert_ids[i] = block_map == nullptr ? static_cast<i32>(e) : block_map[e];
  }
  if (all_thread == 0) *num_padded = padded;
}
