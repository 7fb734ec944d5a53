// Rotates the keys of a tile in LDS (RoPE): each wave rotates its own rows before other waves read
// them, so each key is rotated once. A lane has 2 pairs of elements on gfx942, 4 on gfx950.
#pragma once

#include "attention/mla_kv_cache.h"
#include "attention/rope.h"

namespace rfops {

// Layout: of a tile (mla_kv_stage.h). A wave has kRowsPerWave rows, kLanes lanes per row.
#if defined(__gfx950__)
template <class Layout, bool kPaged, u32 kRowsPerWave>
class KeyRotator {
  static constexpr u32 kLanes = kWaveSize / kRowsPerWave, kPairs = kRopePairs / kLanes;
  using Pairs = details::Bf16Rounding<kPairs>;
  using Narrow = typename Pairs::Narrow;
  using Floats = typename Pairs::Floats;
  using PairPtr = RFOPS_LDS Narrow*;

 public:
  // Issues the loads of the angles of `token`, the token of this lane's row. Inline assembly,
  // because the compiler would wait for all loads in flight; `read` waits.
  __device__ void issue_loads(const KvPageTable<kPaged>& tokens, u32 token) {
    const u32 token_idx = tokens.clamp_token(token);
    const bf16* const src =
        tokens.angles + (u64{token_idx} * kRopeDim + lane_id() % kLanes * kPairs);
    asm volatile("global_load_dwordx2 %0, %2, off\n\tglobal_load_dwordx2 %1, %2, off offset:64"
                 : "=&v"(cos_), "=v"(sin_)
                 : "v"(src)
                 : "memory");
  }
  // Reads this lane's pairs from the tile in `stage`; kLaterLoads loads were issued after the
  // angles.
  template <u32 kLaterLoads>
  __device__ void read(LdsBytes* stage, u32 first_row) {
    asm volatile("s_waitcnt vmcnt(%2)" : "+v"(cos_), "+v"(sin_) : "i"(kLaterLoads) : "memory");
    const u32 lane = lane_id(), row = first_row + lane / kLanes, d = lane % kLanes * kPairs;
    LdsBytes* const row_ptr = stage + d * 2 % kVecBytes;
    low_ptr_ = (PairPtr)(row_ptr + Layout::rope_offset(row, d / 8));
    high_ptr_ = (PairPtr)(row_ptr + Layout::rope_offset(row, d / 8 + 4));
    low_ = *low_ptr_;
    high_ = *high_ptr_;
  }
  // Rotates the lower or the higher elements of the pairs.
  template <bool kHigh>
  __device__ void rotate() {
#pragma clang fp contract(off)
    const Floats a = Pairs::widen(kHigh ? high_ : low_) * Pairs::widen(cos_);
    const Floats b = Pairs::widen(kHigh ? low_ : high_) * Pairs::widen(sin_);
    const Floats rotated =
        kHigh ? Pairs::rounded(a) + Pairs::rounded(b) : Pairs::rounded(a) - Pairs::rounded(b);
    *(kHigh ? high_ptr_ : low_ptr_) = Pairs::narrow_rounded(rotated);
  }
  __device__ void rotate_all() { rotate<false>(), rotate<true>(); }

 private:
  Narrow cos_, sin_, low_, high_;
  PairPtr low_ptr_, high_ptr_;
};

#else
// gfx942 has no bf16 conversions, and issue slots for few instructions: a lane's two pairs are
// rotated one instruction per slot. An instruction never directly follows one that it depends on.
template <class Layout, bool kPaged, u32 kRowsPerWave>
class KeyRotator {
  static constexpr u32 kLanes = kWaveSize / kRowsPerWave, kPairs = kRopePairs / kLanes;
  static_assert(kPairs == 2);
  using Words = RFOPS_LDS u32*;
  static constexpr u32 kCos = 0, kSin = 2, kLow = 4, kHigh = 6;               // of wide_
  static constexpr u32 kLowCos = 0, kHighSin = 2, kHighCos = 4, kLowSin = 6;  // of made_
  static constexpr u32 kProducts = 8, kRounds = 16, kSums = 40, kEnds = kSums + 4;

 public:
  static constexpr u32 kLoadSteps = 6, kReadSteps = 2, kSteps = kEnds + 12;
  static constexpr u32 kAngles = 4;  // steps that read angles, the first

  __device__ void init_offset(u32 first_row) {
    const u32 lane = lane_id(), d = lane % kLanes * kPairs;
    offset_ = Layout::rope_offset(first_row + lane / kLanes, d / 8) + d * 2 % kVecBytes;
  }
  // Issues the loads of the angles of `token`, one instruction per step. Inline assembly, because
  // the compiler would wait for all loads in flight; the caller waits.
  template <u32 kStep, bool kFirstTile = false>
  __device__ void issue_loads(const KvPageTable<kPaged>& tokens, u32 token) {
    Angles& dst = kFirstTile ? first_angles_ : angles_;
    if constexpr (kStep == 0) token_ = token;
    if constexpr (kStep == 1) token_ = tokens.clamp_token(token_);
    if constexpr (kStep < 2) force_vgpr(token_);
    if constexpr (kStep == 2) src_ = u64{token_} * (kRopeDim * 2);
    if constexpr (kStep == 3)
      src_ += reinterpret_cast<u64>(tokens.angles + lane_id() % kLanes * kPairs);
    if constexpr (kStep == 2 || kStep == 3) force_vgpr(src_);
    if constexpr (kStep == 4)
      asm volatile("global_load_dword %0, %1, off" : "=v"(dst.cos) : "v"(src_) : "memory");
    if constexpr (kStep == 5)
      asm volatile("global_load_dword %0, %1, off offset:64"
                   : "=v"(dst.sin)
                   : "v"(src_)
                   : "memory");
  }
  // The caller has waited for the angles.
  __device__ void arrive() { asm volatile("" : "+v"(angles_.cos), "+v"(angles_.sin)); }

  // Reads this lane's pairs from the tile in `stage`.
  template <u32 kStep>
  __device__ void read(const LdsBytes* stage) {
    if constexpr (kStep == 0) {
      stage_offset_ = lds_address(stage) + offset_;
      force_vgpr(stage_offset_);
    } else {
      low_ = *low_ptr();
      high_ = *high_ptr();
    }
  }
  template <u32 kStep, bool kFirstTile = false>
  __device__ void rotate() {
    if constexpr (kStep < kProducts) {
      const Angles& angles = kFirstTile ? first_angles_ : angles_;
      widen<kStep>(kStep < kSin    ? angles.cos
                   : kStep < kLow  ? angles.sin
                   : kStep < kHigh ? low_
                                   : high_);
    } else if constexpr (kStep < kRounds) {
      constexpr u32 kProduct = kStep - kProducts, kPair = kProduct % 2;
      constexpr bool kUsesHigh = kProduct / 2 == kHighSin / 2 || kProduct / 2 == kHighCos / 2;
      constexpr bool kUsesSin = kProduct / 2 == kHighSin / 2 || kProduct / 2 == kLowSin / 2;
      products_[kProduct] =
          widened_[(kUsesHigh ? kHigh : kLow) + kPair] * widened_[(kUsesSin ? kSin : kCos) + kPair];
      force_vgpr(products_[kProduct]);
    } else if constexpr (kStep < kSums) {
      constexpr u32 kSubstep = (kStep - kRounds) % 6;
      round<(kStep - kRounds) / 6 * 2 + kSubstep % 2, kSubstep / 2>();
    } else if constexpr (kStep < kEnds) {
      constexpr u32 kSum = kStep - kSums, kPair = kSum % 2;
      if constexpr (kSum < 2) products_[kLowCos + kPair] -= products_[kHighSin + kPair];
      if constexpr (kSum >= 2) products_[kHighCos + kPair] += products_[kLowSin + kPair];
      force_vgpr(products_[kSum < 2 ? kLowCos + kPair : kHighCos + kPair]);
    } else {
      end<kStep - kEnds>();
    }
  }
  __device__ void rotate_first_tile(const LdsBytes* stage) {
    asm volatile("" : "+v"(first_angles_.cos), "+v"(first_angles_.sin));  // not before
    read<0>(stage), read<1>(stage);
    rotate_from<0>();
  }

 private:
  struct Angles {
    u32 cos, sin;
  };
  template <u32 kStep>
  __device__ void rotate_from() {
    rotate<kStep, true>();
    if constexpr (kStep + 1 < kSteps) rotate_from<kStep + 1>();
  }
  __device__ Words low_ptr() const { return (Words)stage_offset_; }
  __device__ Words high_ptr() const { return (Words)(stage_offset_ + Layout::kRopeHalf); }

  template <u32 kIndex>
  __device__ void widen(u32 two) {
    widened_[kIndex] = __builtin_bit_cast(f32, kIndex % 2 == 0 ? two << 16 : two & 0xffff0000);
    force_vgpr(widened_[kIndex]);
  }
  // Rounds to bf16, as details::Bf16Rounding does.
  template <u32 kProduct, u32 kSubstep>
  __device__ void round() {
    u32 bits = __builtin_bit_cast(u32, products_[kProduct]);
    if constexpr (kSubstep == 0) {
      odd_[kProduct % 2] = bits >> 16 & 1;
      force_vgpr(odd_[kProduct % 2]);
      return;
    }
    bits = kSubstep == 1 ? bits + odd_[kProduct % 2] + 0x7fff : bits & 0xffff0000;
    products_[kProduct] = __builtin_bit_cast(f32, bits);
    force_vgpr(products_[kProduct]);
  }
  template <u32 kProduct>
  __device__ void concat() {
    const auto bits = [&](u32 i) { return __builtin_bit_cast(u32, products_[kProduct + i]); };
    pair_ = upper_halves(bits(0), bits(1));
    force_vgpr(pair_);
  }
  // Rounds the sums and writes them back.
  template <u32 kSubstep>
  __device__ void end() {
    // The next sums are begun before these are packed.
    if constexpr (kSubstep < 4) round<kLowCos + kSubstep % 2, kSubstep / 2>();
    if constexpr (kSubstep == 4 || kSubstep == 5) round<kHighCos + kSubstep % 2, 0>();
    if constexpr (kSubstep == 6) concat<kLowCos>();
    if constexpr (kSubstep == 7 || kSubstep == 8) round<kHighCos + (kSubstep + 1) % 2, 1>();
    if constexpr (kSubstep == 9) *low_ptr() = pair_;
    if constexpr (kSubstep == 10) concat<kHighCos>();
    if constexpr (kSubstep == 11) *high_ptr() = pair_;
  }

  Angles angles_, first_angles_;  // of the tile to rotate next; of the first
  u32 offset_, stage_offset_, low_, high_, token_;
  u64 src_;
  f32 widened_[8], products_[8];
  u32 odd_[2], pair_;
};

#endif

}  // namespace rfops
