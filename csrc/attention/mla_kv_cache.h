// Rows of a latent KV cache: 576 elements per token, of which the first 512 are its value too.
//
// A wave processes tiles of 16 bf16 or 32 FP8 tokens, 18 KiB either way. Lane l = 16 g + c has the
// scores of tokens 4 g + 0..3 (and 16 later) of query row c. K comes in chunks of 16 bytes: chunk 4
// i + g of a row goes to lanes of group g; Q has the same order. A lane reads V^T of the tokens
// whose scores it has, so P is the other MFMA operand without a shuffle.
#pragma once

#include "attention/mfma_bf16.h"
#include "attention/rope.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

constexpr u32 kMlaKey = 576, kMlaValue = 512;
constexpr u32 kQRowsPerTile = 16;
constexpr u32 kMlaOperands = kMlaKey / 32;      // of Q, 32 elements along K each
constexpr u32 kMlaValueTiles = kMlaValue / 16;  // of the result, transposed: 16 x 16 each
using MlaQuery = Bf16x8[kMlaOperands];
using MlaSums = F32x4[kMlaValueTiles];

// Returns lane_id() such that values derived from it are computed after the call, not kept in
// registers from an earlier use. Inlined first, because the compiler otherwise orders the caller's
// code differently.
__device__ __attribute__((always_inline)) inline u32 lane_id_in_vgpr() {
  u32 lane = lane_id();
  force_vgpr(lane);
  return lane;
}

template <bool kFp8>
struct MlaRow {
  static constexpr u32 kElement = kFp8 ? 1 : 2;
  static constexpr u32 kBytes = kMlaKey * kElement;
  static constexpr u32 kValueBytes = kMlaValue * kElement;
  static constexpr u32 kHalves = kFp8 ? 2 : 1;  // 16 tokens each
  static constexpr u32 kTokens = 16 * kHalves;
  // Returns the first element of a lane's fragment of operand `operand`.
  __device__ static u32 element(u32 operand, u32 g) {
    return kFp8 ? (operand / 2 * 4 + g) * 16 + operand % 2 * 8 : (operand * 4 + g) * 8;
  }
};

// Tokens of a sequence that a split may read: those before `end`. Later tokens are clamped to the
// last one; the caller masks their scores.
template <bool kPaged>  // pages of more than one token
struct KvPageTable {
  const u8* kv;
  const i32* pages;  // of the sequence
  u32 end, page_shift;
  const bf16* angles;  // of RoPE: [tokens, 64], where keys are turned as they are read

  __device__ u32 clamp_token(u32 token) const { return token < end - 1 ? token : end - 1; }
  __device__ const i32* entry(u32 token) const { return entry_of(clamp_token(token)); }
  __device__ u32 index_of(u32 clamped_token) const {
    return kPaged ? clamped_token >> page_shift : clamped_token;
  }
  __device__ const i32* entry_of(u32 clamped_token) const {
    return pages + index_of(clamped_token);
  }
  // Returns the cache row of a token; `page` is its page entry.
  __device__ u32 row(u32 page, u32 token) const {
    if constexpr (!kPaged) return page;
    const u32 page_mask = (u32{1} << page_shift) - 1;
    return (page << page_shift) + (clamp_token(token) & page_mask);
  }
  __device__ RopeAngles angles_of(u32 token) const {
    return load_angles(angles + u64{clamp_token(token)} * kRopeDim, lane_id() / 16);
  }
};

#if defined(__gfx950__)
// Reads 8 bytes per lane from LDS, transposed over 16 lanes: FP8 or 16-bit elements.
template <bool kFp8>
__device__ inline U32x2 lds_read_transposed(const LdsBytes* src) {
  if constexpr (kFp8) {
    return __builtin_bit_cast(U32x2, __builtin_amdgcn_ds_read_tr8_b64_v2i32((RFOPS_LDS I32x2*)src));
  } else {
    return __builtin_bit_cast(U32x2,
                              __builtin_amdgcn_ds_read_tr16_b64_v4bf16((RFOPS_LDS Bf16x4*)src));
  }
}
#endif

// Loads a lane's fragments of a row of q; FP8 is converted to bf16.
template <class Row, bool kQueryFp8>
__device__ inline void load_query(MlaQuery& q, const void* q_base, u64 row) {
  const u32 g = lane_id() / 16;
  if constexpr (kQueryFp8) {
    U32x2 raw[kMlaOperands];
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; ++i) {
      const u64 offset = row * kMlaKey + Row::element(i, g);
      raw[i] = *reinterpret_cast<const U32x2*>(static_cast<const u8*>(q_base) + offset);
    }
    // All loads are in flight before the first is waited for, because the compiler otherwise may
    // alternate loads and conversions: one latency of memory for each.
    asm volatile("" ::: "memory");
    sched_barrier();
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; ++i) q[i] = fp8x8_to_bf16x8(raw[i][0], raw[i][1]);
  } else {
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; ++i) {
      const u64 offset = row * kMlaKey + Row::element(i, g);
      q[i] = *reinterpret_cast<const Bf16x8*>(static_cast<const bf16*>(q_base) + offset);
    }
  }
#pragma unroll
  for (u32 i = 0; i < kMlaOperands; ++i) force_vgpr(q[i]);  // waited for here, not in the loop
}

}  // namespace rfops
