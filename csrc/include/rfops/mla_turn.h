// RoPE of a tile's keys where they lie in LDS: a wave turns those of its own rows, before others
// see them, so that each is turned once. A lane has 2 pairs of elements on gfx942, 4 on gfx950.
#pragma once

#include "rfops/mla_cache.h"
#include "rfops/rope.h"

namespace rfops {

// Slot: how a tile lies (mla_slot.h). A wave has kOwn rows, and kLanes lanes have one of them.
template <class Slot, bool kPaged, u32 kOwn>
class SlotTurner {
  static constexpr u32 kLanes = kWaveSize / kOwn, kPairs = kTurnedHalf / kLanes;
  using Pairs = details::Turned<kPairs>;
  using Narrow = typename Pairs::Narrow;
  using At = RFOPS_LDS Narrow*;

 public:
  // Asks for what keys of a tile are turned by; `token` is the one of this lane's row. By inline
  // assembly, as the compiler would wait for all loads on their way: `read` waits.
  __device__ void ask(const MlaTokens<kPaged>& tokens, u32 token) {
    const u32 at = tokens.clamped(token);
    const bf16* const from = tokens.angles + (u64{at} * kTurned + lane_in_wave() % kLanes * kPairs);
    if constexpr (kPairs == 4) {
      asm volatile("global_load_dwordx2 %0, %2, off\n\tglobal_load_dwordx2 %1, %2, off offset:64"
                   : "=&v"(cos_), "=v"(sin_)
                   : "v"(from)
                   : "memory");
    } else {
      asm volatile("global_load_dword %0, %2, off\n\tglobal_load_dword %1, %2, off offset:64"
                   : "=&v"(cos_), "=v"(sin_)
                   : "v"(from)
                   : "memory");
    }
  }
  // Of the tile in `slot`, this lane's row; kLater loads have been asked for after the angles.
  template <u32 kLater>
  __device__ void read(LdsBytes* slot, u32 first_row) {
    asm volatile("s_waitcnt vmcnt(%2)" : "+v"(cos_), "+v"(sin_) : "i"(kLater) : "memory");
    const u32 lane = lane_in_wave(), row = first_row + lane / kLanes, d = lane % kLanes * kPairs;
    LdsBytes* const inside = slot + d * 2 % kVecBytes;
    low_at_ = (At)(inside + Slot::rope_at(row, d / 8));
    high_at_ = (At)(inside + Slot::rope_at(row, d / 8 + 4));
    low_ = *low_at_;
    high_ = *high_at_;
  }
  // A piece of what turns it, for the caller to have others between.
  static constexpr u32 kPieces = 12;
  template <u32 kPiece>
  __device__ void turn() {
#pragma clang fp contract(off)
    constexpr bool kHigh = kPiece >= kPieces / 2;
    constexpr u32 kAt = kPiece % (kPieces / 2);
    if constexpr (kPairs == 4) {  // gfx950 has conversions: few instructions, and few registers
      if constexpr (kAt == 0) {
        const Wide a = Pairs::widen(kHigh ? high_ : low_) * Pairs::widen(cos_);
        const Wide b = Pairs::widen(kHigh ? low_ : high_) * Pairs::widen(sin_);
        first_ =
            kHigh ? Pairs::rounded(a) + Pairs::rounded(b) : Pairs::rounded(a) - Pairs::rounded(b);
        *(kHigh ? high_at_ : low_at_) = Pairs::narrow_rounded(first_);
      }
      return;
    }
    if constexpr (kAt == 0) first_ = product(kHigh ? high_ : low_, cos_);
    if constexpr (kAt == 1) second_ = product(kHigh ? low_ : high_, sin_);
    if constexpr (kAt == 2) first_ = Pairs::rounded(first_);
    if constexpr (kAt == 3) second_ = Pairs::rounded(second_);
    if constexpr (kAt == 4) first_ = sum(first_, kHigh ? second_ : -second_);
    if constexpr (kAt < 5) {
      pin(first_);  // here
      if constexpr (kAt == 1 || kAt == 3) pin(second_);
    } else {
      *(kHigh ? high_at_ : low_at_) = Pairs::narrow_rounded(first_);
    }
  }
  __device__ void turn_all() { turn_from<0>(); }

 private:
  using Wide = typename Pairs::Wide;
  template <u32 kPiece>
  __device__ void turn_from() {
    turn<kPiece>();
    if constexpr (kPiece + 1 < kPieces) turn_from<kPiece + 1>();
  }
  // One by one: packed arithmetic waits for the matrix cores.
  template <class Act>
  __device__ static Wide each(Wide a, Wide b, Act act) {
    Wide all;
#pragma unroll
    for (u32 i = 0; i < kPairs; ++i) {
      f32 own = a[i];
      pin(own);
      all[i] = act(own, b[i]);
    }
    return all;
  }
  __device__ static Wide product(Narrow a, Narrow b) {
    return each(Pairs::widen(a), Pairs::widen(b), [](f32 x, f32 y) { return x * y; });
  }
  __device__ static Wide sum(Wide a, Wide b) {
#pragma clang fp contract(off)
    return each(a, b, [](f32 x, f32 y) { return x + y; });
  }

  Wide first_, second_;
  Narrow cos_, sin_, low_, high_;
  At low_at_, high_at_;
};

}  // namespace rfops
