// The rows of one expert, found by its workgroup from all tokens' choices: no launch lists them.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

// Rows of an expert are ordered by token; row number kTopK * t + j is that of the j-th choice of
// token t. A token that names an expert twice has a row at its first choice alone. A shared expert
// has all tokens; its rows follow those of all choices.
template <u32 kTopK, u32 kThreads, u32 kTokensPerThread, u32 kCapacity>
class ExpertRows {
 public:
  struct Memory {
    u32 counts[kTokensPerThread * kThreads / kWaveSize], rows[kCapacity];
  };
  static constexpr u32 kNoRow = ~0u;

  // Counts the rows of `expert`. Called by all threads of the workgroup; `memory` is free again
  // after the next barrier.
  template <class Id>
  __device__ ExpertRows(RFOPS_LDS Memory* memory, const Id* topk_ids, u32 m, u32 routed, u32 expert)
      : memory_(memory), m_(m), shared_(expert - routed), is_shared_(expert >= routed) {
    if (is_shared_) {
      total_ = m;
      return;
    }
    Id ids[kTokensPerThread][kTopK];
#pragma unroll
    for (u32 i = 0; i < kTokensPerThread; ++i) {
      const u32 token = i * kThreads + thread_id();
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) ids[i][j] = topk_ids[(token < m ? token : 0) * kTopK + j];
    }
#pragma unroll
    for (u32 i = 0; i < kTokensPerThread; ++i) {
      const u32 token = i * kThreads + thread_id();
      u32 choice = kTopK;
#pragma unroll
      for (u32 j = kTopK; j-- > 0;) choice = ids[i][j] == static_cast<Id>(expert) ? j : choice;
      const bool has_row = token < m && choice < kTopK;
      const u64 mask = __builtin_amdgcn_ballot_w64(has_row);
      row_[i] = has_row ? token * kTopK + choice : kNoRow;
      rank_[i] = static_cast<u32>(__builtin_popcountll(mask & ((1ull << lane_id()) - 1)));
      if (lane_id() == 0)
        memory->counts[i * kWaves + wave_id()] = static_cast<u32>(__builtin_popcountll(mask));
    }
    workgroup_barrier();
    u32 before = 0;
#pragma unroll
    for (u32 w = 0; w < kTokensPerThread * kWaves; ++w) {
      if (w % kWaves == wave_id()) rank_[w / kWaves] += before;
      before += memory->counts[w];
    }
    total_ = readfirstlane(before);
  }
  __device__ u32 total() const { return total_; }

  // Lists kCapacity rows from row `begin` of the expert on. Called by all threads, with a barrier
  // before row() and another before the memory's next use.
  __device__ void list(u32 begin) const {
    if (is_shared_) return;
#pragma unroll
    for (u32 i = 0; i < kTokensPerThread; ++i) {
      const u32 index = rank_[i] - begin;
      if (row_[i] != kNoRow && index < kCapacity) memory_->rows[index] = row_[i];
    }
  }
  // Returns the number of row begin + i, below the total, and its token.
  __device__ u32 row(u32 begin, u32 i) const {
    return is_shared_ ? m_ * (kTopK + shared_) + begin + i : memory_->rows[i];
  }
  __device__ u32 token(u32 row) const {
    return is_shared_ ? row - m_ * (kTopK + shared_) : row / kTopK;
  }
  // Returns the number that a row has where a token's rows follow each other, those of its choices
  // and then of all `num_shared` shared experts.
  __device__ u32 number_by_token(u32 row, u32 num_shared) const {
    return is_shared_ ? token(row) * (kTopK + num_shared) + kTopK + shared_
                      : row + token(row) * num_shared;
  }

 private:
  static constexpr u32 kWaves = kThreads / kWaveSize;
  RFOPS_LDS Memory* memory_;
  u32 m_, shared_, total_;
  bool is_shared_;
  u32 row_[kTokensPerThread], rank_[kTokensPerThread];
};

}  // namespace rfops
