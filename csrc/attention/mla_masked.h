// Replaces NaN and inf in values of masked tokens.
//
// P is 0 for a token that is masked for a query row, but 0 * NaN is NaN. So NaN and inf of such
// tokens' values are replaced by zeros in LDS before they are multiplied. Rows that see the token
// lose nothing: values are part of the key, so their score is NaN (then P is NaN) or +-inf (then P
// is NaN or 0). Few tiles have masked tokens, and this runs only if a masked score is not finite; q
// may be the cause, so each element is tested.
#pragma once

#include "attention/mla_kv_cache.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

__device__ inline bool is_finite(f32 value) {
  constexpr int kNanOrInf = 0x207;
  return !__builtin_amdgcn_classf(value, kNanOrInf);
}

// Returns a bit for each token of a tile whose bit is set in some lane: bit i of lane_bits is for
// token token_of(i) + 4 (lane / kLanes). Uniform.
template <u32 kCount, u32 kLanes, class TokenOf>
__device__ inline u64 tokens_of_lanes(u32 lane_bits, TokenOf token_of) {
  if (__builtin_amdgcn_ballot_w64(lane_bits != 0) == 0) return 0;
  constexpr u64 kGroup = (u64{1} << kLanes) - 1;
  u64 tokens = 0;
#pragma nounroll
  for (u32 i = 0; i < kCount; ++i) {
    const u64 lanes = __builtin_amdgcn_ballot_w64((lane_bits >> i & 1) != 0);
#pragma unroll
    for (u32 g = 0; g < kWaveSize / kLanes; ++g) {
      if ((lanes >> g * kLanes & kGroup) != 0) tokens |= u64{1} << (token_of(i) + 4 * g);
    }
  }
  return tokens;
}

// Returns two bf16 or four FP8 elements with NaN and inf replaced by zeros.
template <bool kFp8>
__device__ inline u32 finite_elements(u32 word) {
  constexpr u32 kCount = kFp8 ? 4 : 2, kBits = 32 / kCount;
#if defined(__gfx950__)
  constexpr u32 kMagnitude = kFp8 ? 0x7f : 0x7f80, kNotFinite = kMagnitude;  // e4m3fn, bf16
#else
  constexpr u32 kMagnitude = kFp8 ? 0xff : 0x7f80, kNotFinite = kFp8 ? 0x80 : 0x7f80;
#endif
  u32 mask = 0;
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) {
    const bool is_kept = (word >> i * kBits & kMagnitude) != kNotFinite;
    if (is_kept) mask |= ((u32{1} << kBits) - 1) << i * kBits;
  }
  return word & mask;
}

// Replaces them in the values of `tokens` in LDS; row_of(token) is where a token's values begin.
// All lanes of a wave call it.
template <bool kFp8, class RowOf>
__device__ inline void make_values_finite(u64 tokens, RowOf row_of) {
  constexpr u32 kWords = kFp8 ? 2 : 4;  // of a lane
  using Words = u32 __attribute__((ext_vector_type(kWords)));
#pragma nounroll
  for (; tokens != 0; tokens &= tokens - 1) {
    LdsBytes* const row = row_of(static_cast<u32>(__builtin_ctzll(tokens)));
    auto* const row_words = reinterpret_cast<RFOPS_LDS Words*>(row) + lane_id();
    Words words = *row_words;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) words[i] = finite_elements<kFp8>(words[i]);
    *row_words = words;
  }
}

}  // namespace rfops
