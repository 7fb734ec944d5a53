// Output accumulators of all tokens in LDS, kColumns columns each, in fp32; rows of the tokens'
// experts are added, each times its weight. The weights of all top-k assignments are in LDS too.
#pragma once

#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

template <class Half, u32 kColumns, u32 kTopK>
class TokenAccumulators {
  static constexpr u32 kRowBytes = kColumns * sizeof(f32), kChunks = kRowBytes / kVecBytes;

 public:
  // LDS: accumulators [m, kColumns], then weights [m, kTopK].
  __device__ TokenAccumulators(LdsBytes* memory, u32 m) : memory_(memory), m_(m) {}
  __device__ LdsBytes* end() const { return weights() + (m_ * kTopK + 3) / 4 * kVecBytes; }

  // Clears the accumulators and stores the weights: the first assignment of a token to an expert
  // gets the sum of the weights of all its assignments to it. Called by `threads` threads, of which
  // this is number `thread`; one thread handles a token's weights.
  template <class Id>
  __device__ void prepare(const f32* weights_of, const Id* ids, u32 thread, u32 threads) const {
    for (u32 i = thread; i < m_ * kChunks; i += threads) {
      *reinterpret_cast<RFOPS_LDS F32x4*>(memory_ + i * kVecBytes) = F32x4{};
    }
    for (u32 token = thread; token < m_; token += threads) {
      Id id[kTopK];
      f32 weight[kTopK];
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) {
        id[j] = ids[u64{token} * kTopK + j];
        weight[j] = weights_of[u64{token} * kTopK + j];
      }
#pragma unroll
      for (u32 j = 0; j < kTopK; ++j) {
#pragma unroll
        for (u32 i = j + 1; i < kTopK; ++i) weight[j] += id[i] == id[j] ? weight[i] : 0.0f;
        sched_barrier();  // otherwise the masks of all comparisons are live at once
        *weight_at(token * kTopK + j) = weight[j];
      }
    }
  }
  __device__ f32 weight(u32 pair) const { return *weight_at(pair); }
  __device__ u32 tokens() const { return m_; }

  // Adds four columns of a row, from column 4 `chunk` on, rounded to Half first.
  __device__ void add(u32 token, u32 chunk, f32 weight, const F32x4& row) const {
    auto* const ptr = chunk_ptr(token, chunk);
    const F32x4 half = __builtin_convertvector(__builtin_convertvector(row, Vec4<Half>), F32x4);
    F32x4 sum = *ptr;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) sum[i] = __builtin_fmaf(weight, half[i], sum[i]);
    *ptr = sum;
  }

  // Stores the accumulators as columns from `column` on of out [m, n]; a thread stores 16 bytes of
  // a token.
  __device__ void store(Half* out, u32 n, u32 column, u32 thread, u32 threads) const {
    constexpr u32 kVec = kVecBytes / sizeof(Half), kRowVecs = kColumns / kVec;
    using Vec = Half __attribute__((ext_vector_type(kVec)));
    for (u32 i = thread; i < m_ * kRowVecs; i += threads) {
      const u32 token = i / kRowVecs, vec = i % kRowVecs;
      Vec row;
#pragma unroll
      for (u32 c = 0; c < 2; ++c) {
        const F32x4 v4 = *chunk_ptr(token, 2 * vec + c);
#pragma unroll
        for (u32 e = 0; e < 4; ++e) row[4 * c + e] = static_cast<Half>(v4[e]);
      }
      *reinterpret_cast<Vec*>(out + u64{token} * n + column + vec * kVec) = row;
    }
  }

 private:
  __device__ LdsBytes* weights() const { return memory_ + m_ * kRowBytes; }
  __device__ RFOPS_LDS f32* weight_at(u32 pair) const { return (RFOPS_LDS f32*)weights() + pair; }
  // Chunks are swizzled, because chunk c of all tokens would otherwise be in the same banks.
  __device__ RFOPS_LDS F32x4* chunk_ptr(u32 token, u32 chunk) const {
    const u32 offset = token * kRowBytes + (chunk ^ token / 2 % kChunks) * kVecBytes;
    return reinterpret_cast<RFOPS_LDS F32x4*>(memory_ + offset);
  }

  LdsBytes* memory_;
  u32 m_;
};

}  // namespace rfops
