// Tiles of an FP8 latent cache in LDS as memory has them, for all waves of a workgroup (gfx950),
// and what brings them there: each of four waves 16 of 64 rows, straight from memory.
//
// Of a token 512 bytes of values, and behind all of them the keys' last 64 bytes. 16-byte chunks
// are permuted by the row: neither K's reads (16 bytes) nor V's (8 bytes, transposed) have a bank
// conflict. Permutations are in the places that lanes load from.
#pragma once

#include "attention/mla_kv_stage.h"

#if defined(__gfx950__)

namespace rfops {

struct MlaFp8Slot {
  static constexpr u32 kTokens = 64, kPitch = kMlaValue, kRopePitch = kMlaKey - kMlaValue;
  static constexpr u32 kRope = kTokens * kPitch, kBytes = kRope + kTokens * kRopePitch;
  // Of 16 rows that one read of K takes each has another; of 8 rows of V's read, two by two.
  static constexpr u32 swizzle(u32 row) { return row % 4 * 2 + row / 8 % 2 * 8 + row / 4 % 2; }
  static constexpr u32 value_at(u32 row, u32 chunk) {
    return row * kPitch + (chunk ^ swizzle(row)) * kVecBytes;
  }
  static constexpr u32 rope_chunk(u32 row, u32 chunk) { return chunk ^ row / 4 % 4; }
  static constexpr u32 rope_at(u32 row, u32 chunk) {
    return kRope + row * kRopePitch + rope_chunk(row, chunk) * kVecBytes;
  }
};

// The same as DirectSlots (mla_kv_stage_load.h). A lane knows two rows: of values those that it
// shares with 31 others, one load after the other, and of keys' ends its own.
template <bool kPaged>
class Fp8Slots {
  using Slot = MlaFp8Slot;
  static constexpr u32 kOwn = Slot::kTokens / 4, kRowLoads = kOwn / 2;  // two rows a load
  static constexpr u32 kOfScores = 5;  // loads among the scores, the others among the values

 public:
  static constexpr u32 kLoads = kRowLoads + 1;  // of a wave and tile
  static constexpr u32 kSlots = 4, kBefore = 2;
  static_assert(kSlots * Slot::kBytes <= kLdsBytes);

  __device__ Fp8Slots(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : lds_(lds), tokens_(tokens), own_row_(wave_id() * kOwn) {
    const u32 lane = lane_id();
    tokens_of_[0] = begin + own_row_ + lane % kRowLoads * 2 + lane / 32;
    tokens_of_[1] = begin + own_row_ + lane / 4;
    value_ = Slot::value_at(lane / 32, lane % 32) % Slot::kPitch;
    rope_ = tokens.kv + kMlaValue + Slot::rope_chunk(lane / 4, lane % 4) * kVecBytes;
  }

  // The first tiles. Then turn n makes the scores of tile n and begins the loads of n + kBefore.
  template <class AskQuery>
  __device__ void prime(AskQuery issue_q_loads) {
    u32 pages[kBefore + 1][2];
#pragma unroll
    for (u32 t = 0; t <= kBefore; ++t) {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) pages[t][i] = static_cast<u32>(*entry(t, i));
    }
    sched_barrier();
    issue_q_loads();  // while pages are looked up
#pragma unroll
    for (u32 t = 0; t <= kBefore; ++t) force_vgpr(pages[t][0]), force_vgpr(pages[t][1]);
#pragma unroll
    for (u32 t = 0; t < kBefore; ++t) {
      find<0>(pages[t][0], t);
      find<1>(pages[t][1], t);
      static_for<kLoads>([&](auto i) {
        aim<i>(lds_ + t * Slot::kBytes);
        asm volatile("s_nop 0");
        load<i>();
      });
    }
    find<0>(pages[kBefore][0], kBefore);
    find<1>(pages[kBefore][1], kBefore);
  }
  __device__ void widen_first() const {}
  __device__ void rotate_first_tile() const { wait_vmcnt<0>(); }

  // A piece of what a turn loads, into `slot`, for the caller to have others between.
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* slot, LdsBytes*) {
    if constexpr (kPiece < 2) {
      asm volatile("global_load_dword %0, %1, off"
                   : "=v"(pages_[kPiece])
                   : "v"(entry(kBefore + 1, kPiece))
                   : "memory");
    } else {
      constexpr u32 kLoad = (kPiece - 2) / 3;
      if constexpr (kLoad < kOfScores && kPiece % 3 == 2) aim<kLoad>(slot);
      if constexpr (kLoad < kOfScores && kPiece % 3 == 0) load<kLoad>();
    }
    if constexpr (kPiece == 2) slot_ = slot;
  }
  // The rest, and behind `wait` the rows that the next turn loads.
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes*) {
    constexpr u32 kLoad = kOfScores + kStep / 4 * 4 / (kSteps / 4);
    if constexpr (kStep % 4 == 0) aim<kLoad>(slot_);
    if constexpr (kStep % 4 == 1) load<kLoad>();
    if constexpr (kStep >= kSteps - 2) {
      constexpr u32 i = kStep + 2 - kSteps;
      asm volatile("" : "+v"(pages_[i]));  // it is there: `wait`
      tokens_of_[i] += Slot::kTokens;
      find<i>(pages_[i], kBefore);
    }
  }
  // At a turn's end, until this wave's part of tile turn + 1 is in LDS.
  __device__ void wait() const { wait_vmcnt<kLoads>(); }
  __device__ void drain() const { wait_vmcnt<0>(); }

 private:
  __device__ const i32* entry(u32 tile, u32 i) const {
    return tokens_.entry(tokens_of_[i] + tile * Slot::kTokens);
  }
  // Where the rows of a tile are: of values, or of keys' ends.
  template <u32 i>
  __device__ void find(u32 page, u32 tile) {
    const u32 row = tokens_.row(page, tokens_of_[i] + tile * Slot::kTokens);
    const u8* const base = i == 0 ? tokens_.kv : rope_;
    places_[i] = reinterpret_cast<u64>(base) + u64{row} * kMlaKey;
    force_vgpr(places_[i]);
  }
  // What lane kLane of 16 has, in all of them.
  template <u32 kLane>
  __device__ static u32 spread(u32 value) {
    constexpr int kBroadcast = 0x150 + kLane;
    return static_cast<u32>(
        __builtin_amdgcn_update_dpp(0, static_cast<int>(value), kBroadcast, 0xf, 0xf, true));
  }
  // The first load is of keys' ends; then two rows each. Loads go to where m0 says; a step is to
  // lie between the two.
  template <u32 kLoad>
  __device__ void aim(LdsBytes* slot) {
    constexpr u32 kRow = kLoad == 0 ? 0 : kLoad * 2 - 2;
    u32 place = own_row_ * Slot::kRopePitch + Slot::kRope;
    if constexpr (kLoad != 0) place = (own_row_ + kRow) * Slot::kPitch;
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(readfirstlane(lds_address(slot))), "s"(place)
                 : "scc");
    if constexpr (kLoad == 0) {
      from_ = places_[1];
    } else {
      const u32 inside = value_ ^ Slot::swizzle(kRow) * kVecBytes;
      from_ = (u64{spread<kLoad - 1>(static_cast<u32>(places_[0] >> 32))} << 32 |
               spread<kLoad - 1>(static_cast<u32>(places_[0]))) +
              inside;
    }
    force_vgpr(from_);
  }
  template <u32 kLoad>
  __device__ void load() {
    asm volatile("global_load_lds_dwordx4 %0, off" ::"v"(from_) : "memory");
  }

  LdsBytes *lds_, *slot_;
  KvPageTable<kPaged> tokens_;
  u32 own_row_, tokens_of_[2], value_;
  const u8* rope_;
  u32 pages_[2];
  u64 places_[2], from_;
};

}  // namespace rfops

#endif
