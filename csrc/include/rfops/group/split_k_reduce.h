// Reduces the partial tiles of kSplit workgroups (split-K) in the last workgroup to arrive.
//
// Each workgroup stores its partial to the workspace and increments the tile's arrival counter. The
// workgroup that increments it last reduces the partials in split order, so the result does not
// depend on the order of arrival. No workgroup waits for another. The last workgroup resets the
// counter, so a workspace of zeros can be reused by the next launch.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr int kAgentScope = 4;  // scope operand of __hip_atomic_*: all workgroups of the device

// Increments the arrival counter; returns whether this workgroup is the last of `expected`. The
// last one sees all that the others wrote before they arrived, and resets the counter. `arrived` is
// a word of LDS.
__device__ inline bool arrive_is_last(u32* count, u32 expected,
                                      __attribute__((address_space(3))) u32* arrived) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  __builtin_amdgcn_s_barrier();
  if (thread_id() == 0) {
    *arrived = __hip_atomic_fetch_add(count, 1, __ATOMIC_RELAXED, kAgentScope);
    if (*arrived == expected - 1) *count = 0;  // for the next launch
  }
  workgroup_barrier();
  if (*arrived != expected - 1) return false;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  return true;
}

// As arrive_is_last, for a single wave: all its lanes get the answer, and no other wave is waited
// for.
__device__ inline bool arrive_is_last_wave(u32* count, u32 expected, u32 lane = lane_id()) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  u32 num_arrived = 0;
  if (lane == 0) {
    num_arrived = __hip_atomic_fetch_add(count, 1, __ATOMIC_RELAXED, kAgentScope);
    if (num_arrived == expected - 1) *count = 0;  // for the next launch
  }
  if (readfirstlane(num_arrived) != expected - 1) return false;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  return true;
}

// Words between the counters of two tiles where each counter has a cache line of its own, so that
// XCDs do not contend for the line.
constexpr u32 kCounterStride = 32;

// One tile's partials in the workspace, F32x4[kSplit][kItems], and its arrival counter. Item i
// belongs to thread i % kThreads as its element i / kThreads. With kThreads == kWaveSize one wave
// reduces alone, and the other waves may have ended.
template <u32 kSplit, u32 kItems, u32 kThreads, u32 kCountStep = 1>
struct SplitKReducer {
  static constexpr u32 kItemsPerThread = (kItems + kThreads - 1) / kThreads;
  static constexpr u32 kInFlight = kSplit <= 8 ? 4 : 2;  // items in flight: registers are few
  F32x4* partials;
  u32* count;

  __device__ SplitKReducer(void* workspace, u32* counts, u32 tile)
      : partials(static_cast<F32x4*>(workspace) + u64{tile} * (kSplit * kItems)),
        count(counts + u64{tile} * kCountStep) {}

  // Stores this workgroup's partial. Returns true in the last workgroup of the tile, whose `sum`
  // then holds the reduced tile.
  __device__ bool reduce(F32x4 (&sum)[kItemsPerThread], u32 split) {
    __shared__ u32 arrived;
    return reduce(sum, split, (__attribute__((address_space(3))) u32*)&arrived);
  }
  // As above, with `arrived` a word of LDS that no wave uses any more.
  __device__ bool reduce(F32x4 (&sum)[kItemsPerThread], u32 split,
                         __attribute__((address_space(3))) u32* arrived) {
    for_each_item([&](u32 i, u32 item) { partials[split * kItems + item] = sum[i]; });
    if constexpr (kThreads == kWaveSize) {
      if (!arrive_is_last_wave(count, kSplit)) return false;
    } else {
      if (!arrive_is_last(count, kSplit, arrived)) return false;
    }
    for_each_item([&](u32 i, u32 item) {
      F32x4 partial[kSplit];
#pragma unroll
      for (u32 s = 0; s < kSplit; ++s) partial[s] = partials[s * kItems + item];
      reduce_in_order(sum[i], partial);
    });
    return true;
  }

  // As reduce(), except that a workgroup that finds all others arrived keeps its partial in
  // registers: it saves the write and the read of one partial, at the cost of one load of the
  // counter in each workgroup.
  __device__ bool reduce_if_all_arrived(F32x4 (&sum)[kItemsPerThread], u32 split) {
    __shared__ u32 arrived;
    return reduce_if_all_arrived(sum, split, (__attribute__((address_space(3))) u32*)&arrived);
  }
  __device__ bool reduce_if_all_arrived(F32x4 (&sum)[kItemsPerThread], u32 split,
                                        __attribute__((address_space(3))) u32* arrived) {
    if (!all_peers_arrived(arrived)) return reduce(sum, split, arrived);
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    if (thread_id() % kThreads == 0) *count = 0;
    for_each_item([&](u32 i, u32 item) {
      F32x4 peers[kSplit - 1], partial[kSplit];
#pragma unroll
      for (u32 s = 0; s < kSplit - 1; ++s) peers[s] = partials[(s + (s >= split)) * kItems + item];
#pragma unroll
      for (u32 s = 0; s < kSplit; ++s) {
        const F32x4 prev_peer = peers[s == 0 ? 0 : s - 1],
                    next_peer = peers[s < kSplit - 1 ? s : 0];
        partial[s] = s == split ? sum[i] : s < split ? next_peer : prev_peer;
      }
      reduce_in_order(sum[i], partial);
    });
    return true;
  }

 private:
  __device__ bool all_peers_arrived(__attribute__((address_space(3))) u32* arrived) const {
    if constexpr (kThreads == kWaveSize) {
      return readfirstlane(__hip_atomic_load(count, __ATOMIC_RELAXED, kAgentScope)) == kSplit - 1;
    }
    if (thread_id() == 0) {
      *arrived = __hip_atomic_load(count, __ATOMIC_RELAXED, kAgentScope);
    }
    workgroup_barrier();
    const bool is_last = *arrived == kSplit - 1;
    workgroup_barrier();  // `arrived` is written again
    return is_last;
  }
  template <class Fn>
  __device__ void for_each_item(Fn fn) const {
#pragma unroll
    for (u32 i = 0; i < kItemsPerThread; ++i) {
      const u32 item = i * kThreads + thread_id() % kThreads;
      if ((i + 1) * kThreads <= kItems || item < kItems) fn(i, item);
      if (i % kInFlight == kInFlight - 1) sched_barrier();
    }
  }
  // Adds the partials in split order.
  __device__ static void reduce_in_order(F32x4& total, const F32x4 (&partial)[kSplit]) {
    total = partial[0];
#pragma unroll
    for (u32 s = 1; s < kSplit; ++s) total += partial[s];
  }
};

}  // namespace rfops
