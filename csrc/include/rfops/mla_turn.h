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
  // Of the tile in `slot`, this lane's row; kLater loads have been asked for after its keys.
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
  __device__ void turn_low() const {
#pragma clang fp contract(off)
    *low_at_ = sum(low_, cos_, -Pairs::widen(high_), sin_);
  }
  __device__ void turn_high() const { *high_at_ = sum(high_, cos_, Pairs::widen(low_), sin_); }

 private:
  using Wide = typename Pairs::Wide;
  // one * a + other * b, as bf16 rounds it.
  __device__ static Narrow sum(Narrow one, Narrow a, Wide other, Narrow b) {
#pragma clang fp contract(off)
    const Wide first = Pairs::rounded(Pairs::widen(one) * Pairs::widen(a));
    const Wide second = Pairs::rounded(other * Pairs::widen(b));
    return Pairs::narrow(Pairs::rounded(first + second));
  }

  Narrow cos_, sin_, low_, high_;
  At low_at_, high_at_;
};

}  // namespace rfops
