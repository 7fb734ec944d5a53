// Room in the lists of experts' tokens, asked for by a workgroup at once.
//
//   room.clear(experts);  place = room.place(e) for each token;  room.claim(counts, experts);
//   the token's slot in the list of e is then room.slot(e, place)
//
// All threads of the workgroup call all but `place`. Places are in any order.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

constexpr u32 kMostExperts = 512;

template <u32 kThreads>
class TokenListAllocator {  // in LDS
 public:
  __device__ void clear(u32 experts) {
    for (u32 e = thread_id(); e < experts; e += kThreads) counted_[e] = 0;
    workgroup_barrier();
  }
  __device__ u32 place(u32 expert) {
    return __hip_atomic_fetch_add(&counted_[expert], 1u, __ATOMIC_RELAXED,
                                  __HIP_MEMORY_SCOPE_WORKGROUP);
  }
  // A workgroup that is alone asks nobody.
  __device__ void reserve(u32* counts, u32 experts, bool is_alone = false) {
    workgroup_barrier();
    constexpr u32 kRounds = (kMostExperts + kThreads - 1) / kThreads;
    u32 first[kRounds] = {};
    const auto each = [&](auto act) {  // two rounds, so that all ask before any waits
#pragma unroll
      for (u32 i = 0; i < kRounds; ++i) {
        const u32 e = thread_id() + i * kThreads;
        if (e < experts && counted_[e] > 0) act(e, first[i]);
      }
    };
    each([&](u32 e, u32& from) {
      if (is_alone) {
        counts[e] = counted_[e];
      } else {
        from = __hip_atomic_fetch_add(counts + e, counted_[e], __ATOMIC_RELAXED,
                                      __HIP_MEMORY_SCOPE_AGENT);
      }
    });
    each([&](u32 e, u32& from) { first_[e] = from; });
    workgroup_barrier();
  }
  __device__ u32 slot(u32 expert, u32 place) const { return first_[expert] + place; }

 private:
  u32 counted_[kMostExperts], first_[kMostExperts];
};

// Of kThreads tokens, a lane a token: calls put(e, slot, token, j) for what is in the list of e,
// and slot_of(token, j, slot) for each choice. A token that names an expert twice is in its list
// once; an id outside 0..E-1 is in none, and has the slot -1.
template <u32 kTopK, u32 kThreads, class Id, class Put, class SlotOf>
__device__ inline void make_lists(TokenListAllocator<kThreads>& room, u32* counts,
                                  const Id* topk_ids, u32 m, u32 experts, bool is_alone, Put put,
                                  SlotOf slot_of) {
  constexpr u32 kNone = ~0u;
  const u32 token = workgroup_id_x() * kThreads + thread_id();
  u32 expert[kTopK], place[kTopK];
  bool is_first[kTopK];
  Id ids[kTopK];  // whoever has none loads the last ones: without a branch they go together
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) ids[j] = topk_ids[u64{token < m ? token : m - 1} * kTopK + j];
  room.clear(experts);
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    const Id id = token < m ? ids[j] : Id{-1};
    expert[j] = id >= 0 && id < static_cast<Id>(experts) ? static_cast<u32>(id) : kNone;
    place[j] = kNone;
#pragma unroll
    for (u32 i = 0; i < j; ++i) place[j] = expert[i] == expert[j] ? place[i] : place[j];
    is_first[j] = expert[j] != kNone && place[j] == kNone;
    if (is_first[j]) place[j] = room.place(expert[j]);
  }
  room.reserve(counts, experts, is_alone);
  if (token >= m) return;
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) {
    u32 slot = expert[j] != kNone ? room.slot(expert[j], place[j]) : kNone;
    slot = slot < m ? slot : kNone;  // whatever counts were
    if (is_first[j] && slot != kNone) put(expert[j], slot, token, j);
    slot_of(token, j, slot);
  }
}

// The same lists by kLanes lanes a token, each of which puts every kLanes-th choice: less of a
// chain.
template <u32 kTopK, u32 kLanes, u32 kThreads, class Id, class Put>
__device__ inline void share_lists(TokenListAllocator<kThreads>& room, u32* counts,
                                   const Id* topk_ids, u32 m, u32 experts, bool is_alone, Put put) {
  constexpr u32 kOwn = (kTopK + kLanes - 1) / kLanes, kNone = ~0u;
  const u32 lane = workgroup_id_x() * kThreads + thread_id();
  const u32 token = lane / kLanes, first = lane % kLanes;
  Id ids[kTopK];
#pragma unroll
  for (u32 j = 0; j < kTopK; ++j) ids[j] = topk_ids[u64{token < m ? token : m - 1} * kTopK + j];
  room.clear(experts);
  u32 expert[kOwn], place[kOwn];
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const u32 own = i * kLanes + first;
    Id id = -1;
#pragma unroll
    for (u32 j = i * kLanes; j < kTopK && j < (i + 1) * kLanes; ++j) id = j == own ? ids[j] : id;
    bool is_there = token < m && id >= 0 && id < static_cast<Id>(experts);
#pragma unroll
    for (u32 j = 0; j < kTopK && j < (i + 1) * kLanes; ++j) {
      is_there = is_there && !(j < own && ids[j] == id);
    }
    expert[i] = is_there ? static_cast<u32>(id) : kNone;
    place[i] = is_there ? room.place(expert[i]) : 0;
  }
  room.reserve(counts, experts, is_alone);
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    if (expert[i] == kNone) continue;
    const u32 slot = room.slot(expert[i], place[i]);
    if (slot < m) put(expert[i], slot, token, i * kLanes + first);  // whatever counts were
  }
}

}  // namespace rfops
