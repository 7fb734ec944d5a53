// Sums of one tile from several workgroups, added up by the last of them to arrive.
//
// Each writes its part to a workspace and counts up; the one that finds the others done adds the
// parts in the order of K, whoever it is: the result does not depend on who was last. Nobody waits
// for another workgroup. The count goes back to zero, so that a workspace of zeros stays one.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_fp8.h"

namespace rfops {

constexpr int kAgentScope = 4;  // of __hip_atomic_*: all workgroups of a device

// Whether this workgroup is the last of `expected` to come here; what the others wrote before is
// visible then. The count is zero again after that. `arrived` is a word that threads share.
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

// The same of a wave, whose lanes all get the answer: what other waves do is not waited for.
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

// Words from a tile's count to the next one's, where each has a line of its own: XCDs need not take
// it from one another.
constexpr u32 kCounterStride = 32;

// One tile's place in the workspace: F32x4[kSplit][kItems], and its count. Item i of a part is with
// thread i % kThreads, as its number i / kThreads. Where a wave has all items the others may be
// gone.
template <u32 kSplit, u32 kItems, u32 kThreads, u32 kCountStep = 1>
struct SplitKReducer {
  static constexpr u32 kItemsPerThread = (kItems + kThreads - 1) / kThreads;
  static constexpr u32 kInFlight = kSplit <= 8 ? 4 : 2;  // items on their way: registers are few
  F32x4* partials;
  u32* count;

  __device__ SplitKReducer(void* workspace, u32* counts, u32 tile)
      : partials(static_cast<F32x4*>(workspace) + u64{tile} * (kSplit * kItems)),
        count(counts + u64{tile} * kCountStep) {}

  // Gives away this workgroup's part; true in the last workgroup of the tile, with all of the sum.
  __device__ bool reduce(F32x4 (&sum)[kItemsPerThread], u32 split) {
    __shared__ u32 arrived;
    return reduce(sum, split, (__attribute__((address_space(3))) u32*)&arrived);
  }
  // `arrived` is a word of LDS that nobody needs any more.
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

  // The same sum, but who comes when all others are done keeps its part in registers: what others
  // need not read is not written. Costs the others a look at the count.
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
  // In the order of K.
  __device__ static void reduce_in_order(F32x4& total, const F32x4 (&partial)[kSplit]) {
    total = partial[0];
#pragma unroll
    for (u32 s = 1; s < kSplit; ++s) total += partial[s];
  }
};

}  // namespace rfops
