// Room in the lists of experts' tokens, asked for by a workgroup at once.
//
//   room.clear(experts);  place = room.place(e) for each token;  room.claim(counts, experts);
//   the token's slot in the list of e is then room.slot(e, place)
//
// All threads of the workgroup call all but `place`. Places are in any order.
#pragma once

#include "rfops/types.h"

namespace rfops {

constexpr u32 kMostExperts = 512;

template <u32 kThreads>
class ListRoom {  // in LDS
 public:
  __device__ void clear(u32 experts) {
    for (u32 e = thread_in_group(); e < experts; e += kThreads) counted_[e] = 0;
    sync_group();
  }
  __device__ u32 place(u32 expert) {
    return __hip_atomic_fetch_add(&counted_[expert], 1u, __ATOMIC_RELAXED,
                                  __HIP_MEMORY_SCOPE_WORKGROUP);
  }
  __device__ void claim(u32* counts, u32 experts) {
    sync_group();
    for (u32 e = thread_in_group(); e < experts; e += kThreads) {
      if (counted_[e] == 0) continue;
      first_[e] = __hip_atomic_fetch_add(counts + e, counted_[e], __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
    }
    sync_group();
  }
  __device__ u32 slot(u32 expert, u32 place) const { return first_[expert] + place; }

 private:
  u32 counted_[kMostExperts], first_[kMostExperts];
};

}  // namespace rfops
