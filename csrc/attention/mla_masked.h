// Values of masked tokens that are NaN or inf.
//
// A token that some column does not see has P = 0 there, and 0 times NaN is NaN. So NaN and inf
// among its values become zeros in LDS before they are multiplied. A column that sees the token
// loses nothing: the values are part of the key, so its score is NaN, and P too, or +-inf, where P
// is NaN or 0. Few tiles have masked tokens, and only scores that are not finite lead here: q may
// be the reason too, so elements are looked at one by one.
#pragma once

#include "attention/mla_kv_cache.h"
#include "rfops/chip/types.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

__device__ inline bool is_finite(f32 value) {
  constexpr int kNanOrInf = 0x207;
  return !__builtin_amdgcn_classf(value, kNanOrInf);
}

// Which tokens of a tile have their bit set in some lane: bit i of `lane_bits` is of token
// token_of(i) + 4 (lane / kLanes), in all lanes alike.
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

// NaN and inf of two elements of bf16, or of four of FP8, as zeros.
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

// The same of values in LDS, of the tokens whose bits are set; row_of(token) is where a token's
// begin. All lanes of a wave.
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
