// What brings tiles of a latent cache to LDS (mla_slot.h), a piece between two instructions of the
// matrix cores. Each of four waves brings a quarter of a tile's rows, one after the other: bf16
// straight to LDS, 16 bytes a lane on gfx950, 4 on gfx942; FP8 by registers, where it is widened,
// once for all waves.
#pragma once

#include "rfops/mla_slot.h"
#include "rfops/mla_turn.h"

namespace rfops {

// bf16, straight to LDS. By inline assembly, as the compiler would drain all loads before each read
// of LDS; `wait` counts them. Tiles beyond the last are its last row again. With kRope keys are
// turned as soon as they are there.
template <bool kPaged, bool kRope>
class DirectSlots : MlaSlotRows<kPaged> {
  using Base = MlaSlotRows<kPaged>;
  using Base::kOwn, Base::kLanes, Base::own_row_, Base::token_, Base::tokens_;
  using Turner = SlotTurner<MlaSlot, kPaged, kOwn>;
  static constexpr u32 kRowBytes = kMlaKey * 2, kValueBytes = kMlaValue * 2;
#if defined(__gfx950__)
  static constexpr u32 kWide = 16, kEnds = 1, kBehind = 2;
#else
  static constexpr u32 kWide = 4, kEnds = 2, kBehind = 4;
#endif
  static constexpr u32 kRowLoads = kValueBytes / (kWide * kWaveSize);
  static constexpr u32 kRowPieces = kRowLoads == 1 ? 2 : 3, kEndPieces = 2;
  static constexpr u32 kOfRows = kOwn * kRowPieces, kOfEnds = kEnds * kEndPieces;
  static constexpr u32 kFirst = 3;  // pieces before those

 public:
  static constexpr u32 kLoads = kOwn * kRowLoads + kEnds;  // of a wave and tile
  static constexpr u32 kPieces = kFirst + kOfRows + kOfEnds;
  // Keys' ends are loaded two tiles ahead, for one turn to load and another to turn them: they have
  // no values beside them in the slot that they come to.
  static constexpr u32 kSlots = kLdsBytes / MlaSlot::kBytes, kBefore = kSlots - 2, kEndsBefore = 2;
  static_assert(kBefore == kEndsBefore || kBefore == 1);
  static constexpr u32 kAsked = kLoads + 1;  // in a turn, after what keys are turned by

  __device__ DirectSlots(LdsBytes* lds, const MlaTokens<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_in_wave();
    pin(lane);  // what follows from it is computed here, not kept in registers from the beginning
    const u32 chunk = lane * kWide / kVecBytes, inside = lane * kWide % 16;
    value_ = (chunk ^ MlaSlot::swizzle(own_row_)) * kVecBytes + inside;
    const u32 row = own_row_ + lane / kLanes, place = lane % kLanes * kWide / kVecBytes;
    rope_ = tokens.kv + kValueBytes + MlaSlot::rope_chunk(row, place) * kVecBytes + inside;
  }

  // The first tiles. Then turn n, 0 first, makes the scores of tile n, and adds the values of the
  // one before; the loads of tile n + kBefore begin in it, of its keys' ends those of n + 2.
  __device__ void prime() {
    u32 pages[kEndsBefore + 1];
#pragma unroll
    for (u32 t = 0; t <= kEndsBefore; ++t) pages[t] = static_cast<u32>(*this->entry(t));
#pragma unroll
    for (u32 t = 0; t <= kEndsBefore; ++t) pin(pages[t]);
#pragma unroll
    for (u32 t = 0; t < kEndsBefore; ++t) {
      row_ = this->row_of(pages[t], t);
      rows_ = place_of(tokens_.kv);
      ends_ = place_of(rope_);
      each_number<kOfEnds + kOfRows>([&](auto i) {
        asm volatile("s_nop 4");  // what `load_row` wants between its pieces
        LdsBytes* const slot = lds_ + t * MlaSlot::kBytes;
        if (i < kOfEnds || t < kBefore) in_scores<kFirst + i>(slot, slot);
      });
    }
    page_ = pages[kEndsBefore];
    find<0>();
    find<1>();
    if constexpr (kRope) turner_.ask(tokens_, token_);
  }
  // The first tile's keys, after `drain`.
  __device__ void turn_first() {
    if constexpr (kRope) {
      turner_.template read<0>(lds_, own_row_);
      turner_.turn_all();
    }
  }

  // A piece of what a turn loads, into `slot`, and `ends`, for the caller to have others between:
  // at once it would be more than a CU can have on its way, and keep the matrix cores waiting.
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* slot, LdsBytes* ends) {
    constexpr u32 kAt = kPiece - kFirst;
    if constexpr (kPiece == 0) {
      if constexpr (kRope) turner_.ask(tokens_, token_ + MlaSlot::kTokens);
    } else if constexpr (kPiece == 1) {
      asked_ = tokens_.clamped(token_ + (kEndsBefore + 1) * MlaSlot::kTokens);
      pin(asked_);
    } else if constexpr (kPiece == 2) {
      asm volatile("global_load_dword %0, %1, off"
                   : "=v"(page_)
                   : "v"(tokens_.entry_of(asked_))
                   : "memory");
    } else if constexpr (kAt < kOfEnds) {
      load_end<kAt / kEndPieces, kAt % kEndPieces>(ends);
    } else if constexpr (kPiece < kPieces) {
      constexpr u32 kRow = kAt - kOfEnds;
      load_row<kRow / kRowPieces, kRow % kRowPieces>(slot);
    }
  }
  // Turns keys of the next tile, and finds the rows that the next turn loads, behind `wait`.
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes* next) {
    constexpr u32 kFind = kSteps - kBehind;
    if constexpr (kStep == kFind) this->next_turn();
    if constexpr (kStep >= kFind && kStep < kFind + 2) find<kStep - kFind>();
    // A piece in two of four steps, where the caller has fewer instructions of its own.
    constexpr u32 kBegin = kSteps / 8, kPiece = (kStep - kBegin) / 4 * 2 + kStep % 4 - 1;
    constexpr bool is_quiet = kStep % 4 == 1 || kStep % 4 == 2;
    if constexpr (kRope && kStep == kBegin - 2) turner_.template read<kAsked>(next, own_row_);
    if constexpr (kRope && kStep >= kBegin && is_quiet && kPiece < Turner::kPieces) {
      turner_.template turn<kPiece>();
    }
  }
  // At a turn's end, until this wave's part of tile turn + 1 is in LDS.
  __device__ void wait() const { wait_loads<(kSlots - 3) * kLoads>(); }
  __device__ void drain() const { wait_loads<0>(); }

 private:
  // In two pieces, where the rows are from which a turn loads.
  template <u32 kPiece>
  __device__ void find() {
    if constexpr (kPiece == 0) {
      if constexpr (kBefore != kEndsBefore) rows_ = place_of(tokens_.kv);
      asm volatile("" : "+v"(page_));  // it is there: `wait`
      row_ = this->row_of(page_, kEndsBefore);
    } else {
      if constexpr (kBefore == kEndsBefore) rows_ = place_of(tokens_.kv);
      ends_ = place_of(rope_);
    }
  }
  // Of the row that this lane knows, behind `base`.
  __device__ u64 place_of(const u8* base) const {
    u64 place = reinterpret_cast<u64>(base) + u64{row_} * kRowBytes;
    pin(place);
    return place;
  }
  // Loads go to where m0 says; a step is to lie between the two.
  __device__ static void aim(LdsBytes* slot, u32 place) {
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(as_scalar(lds_address(slot))), "s"(place) : "scc");
  }

  // Of the i-th of this wave's rows of values. Five steps are to lie between what a lane says and
  // the loads from there.
  template <u32 i, u32 kPiece>
  __device__ void load_row(LdsBytes* slot) {
    constexpr u32 kTurn = (MlaSlot::swizzle(i) ^ MlaSlot::swizzle(0)) * kVecBytes;
    if constexpr (kPiece == 0) {
      from_ = u64{this->row_at(static_cast<u32>(rows_ >> 32), i)} << 32 |
              this->row_at(static_cast<u32>(rows_), i);
      asm volatile("" : "+s"(from_));
      aim(slot, (own_row_ + i) * MlaSlot::kPitch);
    } else {
      u32 value = value_ ^ kTurn;
      // Turning keys wants registers: without this each row has one of its own.
      if constexpr (kRope)
        asm volatile("v_xor_b32 %0, %2, %1" : "=v"(value) : "v"(value_), "i"(kTurn));
#if defined(__gfx950__)
      asm volatile("global_load_lds_dwordx4 %0, %1" ::"v"(value), "s"(from_) : "memory");
#else
      // The offset is memory's and LDS's.
      asm volatile(
          "global_load_lds_dword %0, %1 offset:%2\n\tglobal_load_lds_dword %0, %1 offset:%3" ::"v"(
              value),
          "s"(from_), "i"((kPiece - 1) * 512), "i"((kPiece - 1) * 512 + 256)
          : "memory");
#endif
    }
  }
  // Of the keys' last elements of all of them, or half of these.
  template <u32 i, u32 kPiece>
  __device__ void load_end(LdsBytes* slot) {
    constexpr u32 kHalf = 64;  // of a row; the offset is LDS's too
    if constexpr (kPiece == 0) {
      aim(slot, MlaSlot::kRope + own_row_ * MlaSlot::kRopePitch + i * (MlaSlot::kRopeHalf - kHalf));
    } else {
#if defined(__gfx950__)
      asm volatile("global_load_lds_dwordx4 %0, off" ::"v"(ends_) : "memory");
#else
      asm volatile("global_load_lds_dword %0, off offset:%1" ::"v"(ends_), "i"(i * kHalf)
                   : "memory");
#endif
    }
  }

  LdsBytes* lds_;
  u32 value_;       // a lane's place in a row
  const u8* rope_;  // and in the first row's end
  u32 asked_, page_, row_;
  u64 rows_, ends_, from_;
  Turner turner_;
};

// FP8, by registers: what a tile's scores find there goes to LDS, and the next one is asked for.
template <bool kPaged>
class WidenedSlots : MlaSlotRows<kPaged> {
  using Base = MlaSlotRows<kPaged>;
  using Base::kOwn, Base::kLanes, Base::own_row_, Base::tokens_;
  static constexpr u32 kRowBytes = kMlaKey, kValueBytes = kMlaValue;
  static constexpr u32 kRopeBytes = 64 / kLanes;      // of a lane
  static constexpr u32 kCommits = kOwn == 8 ? 1 : 4;  // pieces: there is less room between gfx942's

 public:
  static constexpr u32 kLoads = kOwn + 1;
  static constexpr u32 kSlots = 3, kBefore = 1;

  __device__ WidenedSlots(LdsBytes* lds, const MlaTokens<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_in_wave();
    pin(lane);  // as above
    const u32 row = own_row_ + lane / kLanes, place = lane % kLanes;
    value_ = MlaSlot::value_at(own_row_, lane);
    rope_ = MlaSlot::rope_at(row, place * kRopeBytes / 8) + place * kRopeBytes % 8 * 2;
  }

  __device__ void prime() {
    page_ = static_cast<u32>(*this->entry(0));
    load_all(0);
    each_number<kLoads * kCommits>([&](auto i) { commit<i>(lds_); });
    load_all(1);
  }
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* slot, LdsBytes*) {
    // Late: what the last turn asked for is on its way until then.
    constexpr u32 kFirst = kCommits == 1 ? 10 : 15;
    if constexpr (kPiece >= kFirst && kPiece < kFirst + kLoads * kCommits) {
      commit<kPiece - kFirst>(slot);
    }
  }
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes*) {
    constexpr u32 kApart = kSteps / (kLoads + 2), kLoad = kStep / kApart;
    constexpr u32 kAim = kCommits == 1 ? 0 : 1;  // gfx942 has V to turn in the step before
    if constexpr (kStep == 0) find_rows(2);
    if constexpr (kStep == kSteps - 1) this->next_turn();
    if constexpr (kLoad >= 1 && kLoad <= kLoads) {
      if constexpr (kStep % kApart == kAim) aim<kLoad - 1>();
      if constexpr (kStep % kApart == 1) load<kLoad - 1>();
    }
  }
  __device__ void wait() const {}
  __device__ void drain() const {}
  __device__ void turn_first() {}

 private:
  __device__ void find_rows(u32 tile) {
    rows_ = this->row_of(page_, tile);
    page_ = static_cast<u32>(*this->entry(tile + 1));
  }
  template <u32 i>
  __device__ void aim() {
    const u32 row = i < kOwn ? this->row_at(rows_, i) : rows_;
    const u32 lane = lane_in_wave();
    const u32 inside = i < kOwn ? lane * 8 : kValueBytes + lane % kLanes * kRopeBytes;
    from_ = u64{row} * kRowBytes + reinterpret_cast<u64>(tokens_.kv + inside);
    pin(from_);
  }
  template <u32 i>
  __device__ void load() {
    if constexpr (i < kOwn || kRopeBytes == 8) {
      staged_[i] = *(__attribute__((address_space(1))) const U32x2*)from_;
    } else {
      staged_[i] = {*(__attribute__((address_space(1))) const u32*)from_, 0};
    }
  }
  __device__ void load_all(u32 tile) {
    find_rows(tile);
    each_number<kLoads>([&](auto i) { aim<i>(), load<i>(); });
  }
  // Piece kPiece of widening and writing all of a tile, kCommits of a load.
  template <u32 kPiece>
  __device__ void commit(LdsBytes* slot) {
    constexpr u32 i = kPiece / kCommits, kPart = kPiece % kCommits;
    each_number<4 / kCommits>([&](auto n) {
      constexpr u32 kWord = kPart * (4 / kCommits) + n;
      wide_[kWord] = widen_pair<kWord % 2 == 1>(staged_[i][kWord / 2]);
    });
    if constexpr (kCommits != 1) pin(wide_);  // here, not all at the end
    if constexpr (kPart + 1 < kCommits) return;
    if constexpr (i < kOwn) {
      const u32 turn = (MlaSlot::swizzle(i) ^ MlaSlot::swizzle(0)) * kVecBytes;
      *reinterpret_cast<RFOPS_LDS U32x4*>(slot + (value_ ^ turn) + i * MlaSlot::kPitch) = wide_;
    } else if constexpr (kRopeBytes == 8) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(slot + rope_) = wide_;
    } else {
      *reinterpret_cast<RFOPS_LDS U32x2*>(slot + rope_) = {wide_[0], wide_[1]};
    }
  }

  LdsBytes* lds_;
  u32 value_, rope_, page_, rows_;
  u64 from_;  // in global memory, which a pinned pointer would not say
  U32x2 staged_[kLoads];
  U32x4 wide_;
};

}  // namespace rfops
