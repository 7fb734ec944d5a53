// RoPE of a tile's keys where they lie in LDS: a wave turns those of its own rows, before others
// see them, so that each is turned once. A lane has 2 pairs of elements on gfx942, 4 on gfx950.
#pragma once

#include "attention/mla_kv_cache.h"
#include "attention/rope.h"

namespace rfops {

// Slot: how a tile lies (mla_kv_stage.h). A wave has kOwn rows, and kLanes lanes have one of them.
#if defined(__gfx950__)
template <class Slot, bool kPaged, u32 kOwn>
class SlotTurner {
  static constexpr u32 kLanes = kWaveSize / kOwn, kPairs = kRopePairs / kLanes;
  using Pairs = details::Bf16Rounding<kPairs>;
  using Narrow = typename Pairs::Narrow;
  using Floats = typename Pairs::Floats;
  using At = RFOPS_LDS Narrow*;

 public:
  // Asks for what keys of a tile are turned by; `token` is the one of this lane's row. By inline
  // assembly, as the compiler would wait for all loads on their way: `read` waits.
  __device__ void ask(const KvPageTable<kPaged>& tokens, u32 token) {
    const u32 at = tokens.clamped(token);
    const bf16* const from = tokens.angles + (u64{at} * kRopeDim + lane_id() % kLanes * kPairs);
    asm volatile("global_load_dwordx2 %0, %2, off\n\tglobal_load_dwordx2 %1, %2, off offset:64"
                 : "=&v"(cos_), "=v"(sin_)
                 : "v"(from)
                 : "memory");
  }
  // Of the tile in `slot`, this lane's row; kLater loads have been asked for after the angles.
  template <u32 kLater>
  __device__ void read(LdsBytes* slot, u32 first_row) {
    asm volatile("s_waitcnt vmcnt(%2)" : "+v"(cos_), "+v"(sin_) : "i"(kLater) : "memory");
    const u32 lane = lane_id(), row = first_row + lane / kLanes, d = lane % kLanes * kPairs;
    LdsBytes* const inside = slot + d * 2 % kVecBytes;
    low_at_ = (At)(inside + Slot::rope_at(row, d / 8));
    high_at_ = (At)(inside + Slot::rope_at(row, d / 8 + 4));
    low_ = *low_at_;
    high_ = *high_at_;
  }
  // The lower or the higher elements of the pairs.
  template <bool kHigh>
  __device__ void turn() {
#pragma clang fp contract(off)
    const Floats a = Pairs::widen(kHigh ? high_ : low_) * Pairs::widen(cos_);
    const Floats b = Pairs::widen(kHigh ? low_ : high_) * Pairs::widen(sin_);
    const Floats all =
        kHigh ? Pairs::rounded(a) + Pairs::rounded(b) : Pairs::rounded(a) - Pairs::rounded(b);
    *(kHigh ? high_at_ : low_at_) = Pairs::narrow_rounded(all);
  }
  __device__ void turn_all() { turn<false>(), turn<true>(); }

 private:
  Narrow cos_, sin_, low_, high_;
  At low_at_, high_at_;
};

#else
// gfx942 has no conversions, and its matrix cores leave room for few instructions at a time: what
// turns a lane's two pairs is done one instruction after the other, each where there is room. What
// follows from another is never right behind it.
template <class Slot, bool kPaged, u32 kOwn>
class SlotTurner {
  static constexpr u32 kLanes = kWaveSize / kOwn, kPairs = kRopePairs / kLanes;
  static_assert(kPairs == 2);
  using Words = RFOPS_LDS u32*;
  static constexpr u32 kCos = 0, kSin = 2, kLow = 4, kHigh = 6;               // of wide_
  static constexpr u32 kLowCos = 0, kHighSin = 2, kHighCos = 4, kLowSin = 6;  // of made_
  static constexpr u32 kProducts = 8, kRounds = 16, kSums = 40, kEnds = kSums + 4;

 public:
  static constexpr u32 kAskSteps = 6, kReadSteps = 2, kSteps = kEnds + 12;
  static constexpr u32 kAngles = 4;  // steps that read angles, the first

  __device__ void place(u32 first_row) {
    const u32 lane = lane_id(), d = lane % kLanes * kPairs;
    place_ = Slot::rope_at(first_row + lane / kLanes, d / 8) + d * 2 % kVecBytes;
  }
  // Asks for what keys of a tile are turned by; `token` is the one of this lane's row. By inline
  // assembly, as the compiler would wait for all loads on their way: the caller waits.
  template <u32 kStep, bool kFirst = false>
  __device__ void ask(const KvPageTable<kPaged>& tokens, u32 token) {
    Angles& to = kFirst ? first_ : angles_;
    if constexpr (kStep == 0) token_ = token;
    if constexpr (kStep == 1) token_ = tokens.clamped(token_);
    if constexpr (kStep < 2) force_vgpr(token_);
    if constexpr (kStep == 2) from_ = u64{token_} * (kRopeDim * 2);
    if constexpr (kStep == 3)
      from_ += reinterpret_cast<u64>(tokens.angles + lane_id() % kLanes * kPairs);
    if constexpr (kStep == 2 || kStep == 3) force_vgpr(from_);
    if constexpr (kStep == 4)
      asm volatile("global_load_dword %0, %1, off" : "=v"(to.cos) : "v"(from_) : "memory");
    if constexpr (kStep == 5)
      asm volatile("global_load_dword %0, %1, off offset:64"
                   : "=v"(to.sin)
                   : "v"(from_)
                   : "memory");
  }
  // The caller has waited.
  __device__ void arrive() { asm volatile("" : "+v"(angles_.cos), "+v"(angles_.sin)); }

  // Of the tile in `slot`, this lane's row.
  template <u32 kStep>
  __device__ void read(const LdsBytes* slot) {
    if constexpr (kStep == 0) {
      at_ = lds_address(slot) + place_;
      force_vgpr(at_);
    } else {
      low_ = *low_at();
      high_ = *high_at();
    }
  }
  template <u32 kStep, bool kFirst = false>
  __device__ void turn() {
    if constexpr (kStep < kProducts) {
      const Angles& angles = kFirst ? first_ : angles_;
      widen<kStep>(kStep < kSin    ? angles.cos
                   : kStep < kLow  ? angles.sin
                   : kStep < kHigh ? low_
                                   : high_);
    } else if constexpr (kStep < kRounds) {
      constexpr u32 kMade = kStep - kProducts, kPair = kMade % 2;
      constexpr bool kOfHigh = kMade / 2 == kHighSin / 2 || kMade / 2 == kHighCos / 2;
      constexpr bool kOfSin = kMade / 2 == kHighSin / 2 || kMade / 2 == kLowSin / 2;
      made_[kMade] =
          wide_[(kOfHigh ? kHigh : kLow) + kPair] * wide_[(kOfSin ? kSin : kCos) + kPair];
      force_vgpr(made_[kMade]);
    } else if constexpr (kStep < kSums) {
      constexpr u32 kPart = (kStep - kRounds) % 6;
      round<(kStep - kRounds) / 6 * 2 + kPart % 2, kPart / 2>();
    } else if constexpr (kStep < kEnds) {
      constexpr u32 kSum = kStep - kSums, kPair = kSum % 2;
      if constexpr (kSum < 2) made_[kLowCos + kPair] -= made_[kHighSin + kPair];
      if constexpr (kSum >= 2) made_[kHighCos + kPair] += made_[kLowSin + kPair];
      force_vgpr(made_[kSum < 2 ? kLowCos + kPair : kHighCos + kPair]);
    } else {
      end<kStep - kEnds>();
    }
  }
  __device__ void rotate_first_tile(const LdsBytes* slot) {
    asm volatile("" : "+v"(first_.cos), "+v"(first_.sin));  // not before
    read<0>(slot), read<1>(slot);
    turn_from<0>();
  }

 private:
  struct Angles {
    u32 cos, sin;
  };
  template <u32 kStep>
  __device__ void turn_from() {
    turn<kStep, true>();
    if constexpr (kStep + 1 < kSteps) turn_from<kStep + 1>();
  }
  __device__ Words low_at() const { return (Words)at_; }
  __device__ Words high_at() const { return (Words)(at_ + Slot::kRopeHalf); }

  template <u32 kAt>
  __device__ void widen(u32 two) {
    wide_[kAt] = __builtin_bit_cast(f32, kAt % 2 == 0 ? two << 16 : two & 0xffff0000);
    force_vgpr(wide_[kAt]);
  }
  // To bf16, as details::Turned does it.
  template <u32 kMade, u32 kPart>
  __device__ void round() {
    u32 bits = __builtin_bit_cast(u32, made_[kMade]);
    if constexpr (kPart == 0) {
      odd_[kMade % 2] = bits >> 16 & 1;
      force_vgpr(odd_[kMade % 2]);
      return;
    }
    bits = kPart == 1 ? bits + odd_[kMade % 2] + 0x7fff : bits & 0xffff0000;
    made_[kMade] = __builtin_bit_cast(f32, bits);
    force_vgpr(made_[kMade]);
  }
  template <u32 kMade>
  __device__ void concat() {
    const auto bits = [&](u32 i) { return __builtin_bit_cast(u32, made_[kMade + i]); };
    both_ = upper_halves(bits(0), bits(1));
    force_vgpr(both_);
  }
  // The sums are rounded, and go where they are from.
  template <u32 kPart>
  __device__ void end() {
    // Of those below the next ones are begun before they are joined.
    if constexpr (kPart < 4) round<kLowCos + kPart % 2, kPart / 2>();
    if constexpr (kPart == 4 || kPart == 5) round<kHighCos + kPart % 2, 0>();
    if constexpr (kPart == 6) concat<kLowCos>();
    if constexpr (kPart == 7 || kPart == 8) round<kHighCos + (kPart + 1) % 2, 1>();
    if constexpr (kPart == 9) *low_at() = both_;
    if constexpr (kPart == 10) concat<kHighCos>();
    if constexpr (kPart == 11) *high_at() = both_;
  }

  Angles angles_, first_;  // of the tile that is turned next; of the first
  u32 place_, at_, low_, high_, token_;
  u64 from_;
  f32 wide_[8], made_[8];
  u32 odd_[2], both_;
};

#endif

}  // namespace rfops
