// Token lists of experts: a workgroup reserves entries with one global atomic per expert.
//
//   allocator.clear(experts);  rank = allocator.take_rank(e) for each token;
//   allocator.reserve(counts, experts);
//   the token's index in the list of e is then allocator.list_idx(e, rank)
//
// All threads of the workgroup call all functions except take_rank. The order of ranks is
// arbitrary.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kMaxExperts = 512;

template <u32 kThreads>
class TokenListAllocator {  // in LDS
 public:
  __device__ void clear(u32 experts) {
    for (u32 e = thread_id(); e < experts; e += kThreads) local_counts_[e] = 0;
    workgroup_barrier();
  }
  __device__ u32 take_rank(u32 expert) {
    return __hip_atomic_fetch_add(&local_counts_[expert], 1u, __ATOMIC_RELAXED,
                                  __HIP_MEMORY_SCOPE_WORKGROUP);
  }
  // Reserves the entries counted so far. With a single workgroup no global atomic is needed.
  __device__ void reserve(u32* counts, u32 experts, bool is_alone = false) {
    workgroup_barrier();
    constexpr u32 kRounds = (kMaxExperts + kThreads - 1) / kThreads;
    u32 begin[kRounds] = {};
    const auto for_each = [&](auto fn) {  // two passes: all atomics are issued before any wait
#pragma unroll
      for (u32 i = 0; i < kRounds; ++i) {
        const u32 e = thread_id() + i * kThreads;
        if (e < experts && local_counts_[e] > 0) fn(e, begin[i]);
      }
    };
    for_each([&](u32 e, u32& list_begin) {
      if (is_alone) {
        counts[e] = local_counts_[e];
      } else {
        list_begin = __hip_atomic_fetch_add(counts + e, local_counts_[e], __ATOMIC_RELAXED,
                                            __HIP_MEMORY_SCOPE_AGENT);
      }
    });
    for_each([&](u32 e, u32& list_begin) { list_begin_[e] = list_begin; });
    workgroup_barrier();
  }
  __device__ u32 list_idx(u32 expert, u32 rank) const { return list_begin_[expert] + rank; }

 private:
  u32 local_counts_[kMaxExperts], list_begin_[kMaxExperts];
};

// Makes the lists for kThreads tokens, one token per lane: calls store(e, list_idx, token, j) for
// each entry of the list of e, and store_idx(token, j, list_idx) for each assignment. A token that
// names an expert twice is in its list once; for an id outside 0..E-1 list_idx is -1.
template <u32 kTopK, u32 kThreads, class Id, class Store, class StoreIdx>
__device__ inline void make_lists(TokenListAllocator<kThreads>& allocator, u32* counts,
                                  const Id* topk_ids, u32 m, u32 experts, bool is_alone,
                                  Store store, StoreIdx store_idx) {
  constexpr u32 kInvalid = ~0u;
  const u32 token = workgroup_id_x() * kThreads + thread_id();
  u32 expert[kTopK], rank[kTopK];
  bool is_new[kTopK];
  Id ids[kTopK];  // lanes without a token load the last token's: no branch delays the loads
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) ids[j] = topk_ids[u64{token < m ? token : m - 1} * kTopK + j];
  allocator.clear(experts);
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    const Id id = token < m ? ids[j] : Id{-1};
    expert[j] = id >= 0 && id < static_cast<Id>(experts) ? static_cast<u32>(id) : kInvalid;
    rank[j] = kInvalid;
#pragma unroll
    for (u32 i = 0; i < j; ++i) rank[j] = expert[i] == expert[j] ? rank[i] : rank[j];
    is_new[j] = expert[j] != kInvalid && rank[j] == kInvalid;
    if (is_new[j]) rank[j] = allocator.take_rank(expert[j]);
  }
  allocator.reserve(counts, experts, is_alone);
  if (token >= m) return;
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    u32 list_idx = expert[j] != kInvalid ? allocator.list_idx(expert[j], rank[j]) : kInvalid;
    list_idx = list_idx < m ? list_idx : kInvalid;  // counts may be arbitrary after an abort
    if (is_new[j] && list_idx != kInvalid) store(expert[j], list_idx, token, j);
    store_idx(token, j, list_idx);
  }
}

// Makes the same lists with kLanes lanes per token; each stores every kLanes-th assignment, which
// shortens the dependency chain.
template <u32 kTopK, u32 kLanes, u32 kThreads, class Id, class Store>
__device__ inline void make_lists_by_lanes(TokenListAllocator<kThreads>& allocator, u32* counts,
                                           const Id* topk_ids, u32 m, u32 experts, bool is_alone,
                                           Store store) {
  constexpr u32 kPerLane = (kTopK + kLanes - 1) / kLanes, kInvalid = ~0u;
  const u32 lane = workgroup_id_x() * kThreads + thread_id();
  const u32 token = lane / kLanes, token_lane = lane % kLanes;
  Id ids[kTopK];
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) ids[j] = topk_ids[u64{token < m ? token : m - 1} * kTopK + j];
  allocator.clear(experts);
  u32 expert[kPerLane], rank[kPerLane];
#pragma unroll
  for (u32 i = 0; i < kPerLane; ++i) {
    const u32 topk_idx = i * kLanes + token_lane;
    Id id = -1;
#pragma unroll
    for (u32 j = i * kLanes; j < kTopK && j < (i + 1) * kLanes; ++j)
      id = j == topk_idx ? ids[j] : id;
    bool is_new = token < m && id >= 0 && id < static_cast<Id>(experts);
#pragma unroll
    for (u32 j = 0; j < kTopK && j < (i + 1) * kLanes; ++j) {
      is_new = is_new && !(j < topk_idx && ids[j] == id);
    }
    expert[i] = is_new ? static_cast<u32>(id) : kInvalid;
    rank[i] = is_new ? allocator.take_rank(expert[i]) : 0;
  }
  allocator.reserve(counts, experts, is_alone);
#pragma unroll
  for (u32 i = 0; i < kPerLane; ++i) {
    if (expert[i] == kInvalid) continue;
    const u32 list_idx = allocator.list_idx(expert[i], rank[i]);
    if (list_idx < m) {  // counts may be arbitrary after an abort
      store(expert[i], list_idx, token, i * kLanes + token_lane);
    }
  }
}

}  // namespace rfops
