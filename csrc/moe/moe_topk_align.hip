// The choice of moe_topk.hip and the layout of moe_align_block_size.hip in one launch, for few
// tokens:
//
//   weights[t, j], ids[t, j] = score and id of the j-th best expert of token t
//   sorted_ids[start[e] + i] = the i-th row t * top_k + j, in order, of those with ids[t, j] = e
//   start[e + 1] = start[e] + ceil(count[e] / block) * block,  padding and the tail hold m * top_k
//   expert_ids[b] = e for start[e] <= b * block < start[e + 1]
//
// Layout. The first kRoutingWaves waves of a workgroup choose, a wave or up to 16 lanes per token
// (top_k.h); the other waves fill sorted_ids. The workgroup that arrives last sorts, a row per
// thread: 64 rows are ranked by comparing their experts bit by bit across lanes, and each expert
// has a byte in LDS for the rows of each wave. A single workgroup passes ids through LDS.
//
// Several pass them through memory, at agent scope, so that no cache is written back or
// invalidated. The fill is complete before a workgroup arrives. Its ids need not be: expert e is
// passed as e + 1 where 0 was, and the workgroup that sorts loads again what is still 0. That is in
// flight, so no workgroup waits for what another has yet to do.
//
// Floor of several workgroups, cold caches: the choice (moe_topk.hip), then an atomic and a load at
// agent scope, 0.35 us each on MI355X, and the sort, 0.5 us. Estimated, 36 tokens, DeepSeek-V3's
// routing of 256 experts: MI355X 5.32 us, MI300X 5.68; Kimi K2's of 384: 5.47, 5.76.
//
// Guarantees: bitwise deterministic; weights and ids are those of moe_topk, the layout is that of
// moe_align_block_size. All of `arrivals` is 0 again at the end.
// Requires: m * top_k <= 1024; arrivals are 0; num_groups * kRoutingWaves waves hold all tokens.
#include "moe/lanes_like.h"
#include "moe/top_k.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                      // bf16, f16 or f32
using Bias = RFOPS_BIAS;                     // likewise
constexpr u32 kLanes = RFOPS_LANES;          // per token: 1 to 16, or a wave
constexpr u32 kExpertsPerLane = RFOPS_EACH;  // the last of a group may be out of range
constexpr bool kWhole = RFOPS_WHOLE;         // none is, and load_experts loads them at once
constexpr TopKOptions kOptions = {
    .scoring = Scoring::RFOPS_SCORING,
    .rounds = RFOPS_ROUNDS,
    .has_bias = RFOPS_HAS_BIAS,
    .renormalizes = RFOPS_RENORMALIZES,
    .top_k = RFOPS_TOP_K,
    .groups = RFOPS_GROUPS,
    .groups_taken = RFOPS_GROUPS_TAKEN,
};
constexpr u32 kRoutingWaves = RFOPS_ROUTING_WAVES;
constexpr u32 kWaves = 16, kThreads = kWaves * kWaveSize;
constexpr u32 kTokensPerWave = kWaveSize / kLanes, kTokens = kRoutingWaves * kTokensPerWave;
constexpr u32 kMaxExperts = kLanes * kExpertsPerLane;
// With an expert per lane. Experts are up to a workgroup's threads, lanes of groups for more.
constexpr u32 kExpertWaves =
    kMaxExperts < kThreads ? (kMaxExperts + kWaveSize - 1) / kWaveSize : kWaves;
constexpr u32 kNone = ~0u;
constexpr u32 kPassed = 32;  // where ids are in `arrivals`: a line of 128 bytes on
static_assert(kRoutingWaves < kWaves, "some waves fill");

// Bits of an expert's number.
constexpr u32 bits_of(u32 count) { return count <= 1 ? 0 : 1 + bits_of((count + 1) / 2); }

using RowCounts = Vec4<u32>;  // a byte for each wave

__shared__ f32 scores[kTokens][kMaxExperts];
__shared__ u32 local_ids[kTokens * kOptions.top_k];
__shared__ RowCounts row_counts[kMaxExperts];  // by expert
__shared__ u32 begin_in_wave[kMaxExperts];     // by expert: blocks of lower experts of its wave
__shared__ i32 expert_map[kMaxExperts];
__shared__ u32 blocks_of_wave[kExpertWaves];
__shared__ u32 arrived;

template <class T>
__device__ inline void store_at_agent(T* ptr, T value) {
  __hip_atomic_store(ptr, value, __ATOMIC_RELAXED, kAgentScope);
}

__device__ inline u32 load_at_agent(const u32* ptr) {
  return __hip_atomic_load(ptr, __ATOMIC_RELAXED, kAgentScope);
}

// Returns what another workgroup passes, which has stored it before, and leaves 0.
__device__ inline u32 take_passed(u32* ptr) {
  u32 value = load_at_agent(ptr);
  while (value == 0) value = load_at_agent(ptr);
  *ptr = 0;
  return value - 1;
}

// Returns the sum of the bytes of `counts`, of waves below `num_waves`.
__device__ inline u32 rows_below(const RowCounts& counts, u32 num_waves) {
  u32 sum = 0;
#pragma unroll
  for (u32 i = 0; i < kWaves / 4; ++i) {
    const u32 bytes = num_waves > 4 * i ? num_waves - 4 * i : 0;
    const u32 mask = bytes >= 4 ? ~0u : (1u << 8 * bytes) - 1;
    sum = __builtin_amdgcn_sad_u8(counts[i] & mask, 0, sum);
  }
  return sum;
}

// Returns ceil(count / block) for count up to 1024: half a unit keeps the quotient away from whole
// numbers by more than the error of the reciprocal.
__device__ inline u32 blocks_for(u32 count, f32 inverse_block) {
  return count > 0 ? static_cast<u32>((static_cast<f32>(count) - 0.5f) * inverse_block) + 1 : 0;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
moe_topk_align(f32* __restrict__ weights,         // [M, top_k]
               i32* __restrict__ ids,             // [M, top_k]
               const Input* __restrict__ logits,  // [M, E], strides row_stride, column_stride
               const Bias* __restrict__ bias,     // [E] or null
               u32 m, u32 experts, u64 row_stride, u32 column_stride, f32 scale,
               u32* __restrict__ sorted_ids,       // [num_slots]
               i32* __restrict__ expert_ids,       // [num_blocks]
               u32* __restrict__ num_padded,       // [1]
               const i32* __restrict__ local_map,  // [E] or null: the local expert, or negative
               u32* __restrict__ arrivals,  // [kPassed + m * top_k], or null for one workgroup
               u32 is_sorted_by_local,      // else blocks' experts are mapped alone
               u32 block, u32 num_slots, u32 num_blocks, u32 num_groups) {
  const u32 thread = thread_id(), wave = wave_id(), lane = lane_id(), rows = m * kOptions.top_k;
  u32* const passed = arrivals + kPassed;
  if (wave < kRoutingWaves) {
    const u32 tile_row = wave * kTokensPerWave + lane / kLanes;
    const u32 row = workgroup_id_x() * kTokens + tile_row, wave_row = readfirstlane(row);
    const u32 token_lane = lane % kLanes;
    if (wave_row < m) {
      // All lanes of a wave stay active; those without a token read the last one.
      const u32 token = kLanes == kWaveSize ? wave_row : row < m ? row : m - 1;
      const Input* token_logits = logits + token * row_stride;
      const Choice choice = route_token<kOptions, kLanes, kExpertsPerLane, Input>(
          token_lane, experts, scale, scores[tile_row],
          [&](auto& logit, u32 e) {
            load_experts<kWhole>(logit, token_logits, e, experts, column_stride);
          },
          [&](auto& values, u32 e) { load_experts<kWhole>(values, bias, e, experts, 1); });
      if (row < m && token_lane < kOptions.top_k) {
        const u32 idx = row * kOptions.top_k + token_lane;
        if (num_groups > 1) store_at_agent(passed + idx, choice.id + 1);
        ids[idx] = static_cast<i32>(choice.id);
        weights[idx] = choice.weight;
        local_ids[tile_row * kOptions.top_k + token_lane] = choice.id;
      }
    }
  }
  // A condition of its own, because the compiler would place the waves that fill first, and let
  // those that choose wait for the arguments of both.
  u32 filling_wave = wave;
  force_sgpr(filling_wave);
  if (filling_wave >= kRoutingWaves) {
    constexpr u32 kFilling = kThreads - kRoutingWaves * kWaveSize;
    const u32 filler = thread - kRoutingWaves * kWaveSize;
    for (u32 e = filler; e < kMaxExperts; e += kFilling) {
      row_counts[e] = RowCounts{};
      if (e < experts) expert_map[e] = local_map == nullptr ? static_cast<i32>(e) : local_map[e];
    }
    const u32 step = num_groups * kFilling;
    for (u32 i = workgroup_id_x() * kFilling + filler; i < num_slots; i += step) {
      store_at_agent(sorted_ids + i, rows);
    }
  }
  if (filling_wave >= kRoutingWaves) wait_vmcnt<0>();  // the fill is in memory
  workgroup_barrier();
  if (num_groups > 1) {
    if (thread == 0) {
      arrived = __hip_atomic_fetch_add(arrivals, 1u, __ATOMIC_RELAXED, kAgentScope);
    }
    workgroup_barrier();
    if (arrived != num_groups - 1) return;
    if (thread == 0) *arrivals = 0;
  }

  u32 expert = kNone, rank = 0;
  if (wave * kWaveSize < rows) {  // waves without rows do not delay those of their SIMD
    if (thread < rows) {
      const u32 id = num_groups > 1 ? take_passed(passed + thread) : local_ids[thread];
      const u32 mapped = is_sorted_by_local != 0 ? static_cast<u32>(expert_map[id]) : id;
      expert = mapped < experts ? mapped : kNone;
    }
    const u64 like = lanes_like(expert, expert != kNone, bits_of(kMaxExperts));
    rank = static_cast<u32>(__builtin_popcountll(like & ((1ull << lane) - 1)));
    if (expert != kNone && rank == 0) {
      reinterpret_cast<u8*>(&row_counts[expert])[wave] =
          static_cast<u8>(__builtin_popcountll(like));
    }
  }
  // Rows are in the first waves, experts in the last: few waves have both.
  const u32 expert_wave = kWaves - 1 - wave, lane_expert = expert_wave * kWaveSize + lane;
  const bool has_expert = lane_expert < kMaxExperts;
  const f32 inverse_block = __builtin_amdgcn_rcpf(static_cast<f32>(block));
  workgroup_barrier();

  u32 blocks = 0, scanned = 0;  // of `lane_expert`, and of all up to it in the wave
  if (expert_wave < kExpertWaves) {
    const u32 count = has_expert ? rows_below(row_counts[lane_expert], kWaves) : 0;
    blocks = blocks_for(count, inverse_block);
    scanned = inclusive_scan(blocks);
    if (has_expert) begin_in_wave[lane_expert] = scanned - blocks;
    if (lane == kWaveSize - 1) blocks_of_wave[expert_wave] = scanned;
  }
  if (expert != kNone) rank += rows_below(row_counts[expert], wave);
  workgroup_barrier();
  // In lane w: the blocks of waves of experts up to w, and of those below it.
  const u32 wave_blocks = lane < kExpertWaves ? blocks_of_wave[lane] : 0;
  const u32 end_of_wave = inclusive_scan(wave_blocks), begin_of_wave = end_of_wave - wave_blocks;
  const u32 used_blocks = readlane(end_of_wave, kExpertWaves - 1);
  if (wave * kWaveSize < rows) {
    const u32 begin = static_cast<u32>(__builtin_amdgcn_ds_bpermute(
        static_cast<int>(expert / kWaveSize * 4), static_cast<int>(begin_of_wave)));
    if (expert != kNone) {
      sorted_ids[(begin + begin_in_wave[expert]) * block + rank] = thread;
    }
  }
  const auto shown = [&](u32 e) {
    return is_sorted_by_local != 0 ? static_cast<i32>(e) : expert_map[e];
  };
  if (expert_wave < kExpertWaves) {
    const u32 begin = readlane(begin_of_wave, expert_wave) + scanned - blocks;
    const i32 shown_expert = lane_expert < experts ? shown(lane_expert) : 0;
    for (u32 b = 0; b < blocks; ++b) expert_ids[begin + b] = shown_expert;
  }
  for (u32 b = used_blocks + thread; b < num_blocks; b += kThreads) expert_ids[b] = shown(0);
  if (thread == 0) *num_padded = used_blocks * block;
}
