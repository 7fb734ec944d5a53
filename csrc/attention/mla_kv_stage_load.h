// What brings tiles of a latent cache of bf16 to LDS (mla_kv_stage.h), a piece between two
// instructions of the matrix cores: straight there, 16 bytes a lane on gfx950, 4 on gfx942. Each of
// four waves brings a quarter of a tile's rows, one after the other. FP8 is mla_kv_stage_widen.h's.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_kv_stage.h"
#include "attention/mla_rope_keys.h"

namespace rfops {

// By inline assembly, as the compiler would drain all loads before each read of LDS; `wait` counts
// them. Tiles beyond the last are its last row again. With kRope keys are turned as soon as they
// are there: on gfx942 an instruction at a time beside the next scores, where there is room.
template <bool kPaged, bool kRope>
class DirectSlots : MlaSlotRows<kPaged> {
  using Base = MlaSlotRows<kPaged>;
  using Base::kOwn, Base::kLanes, Base::own_row_, Base::token_, Base::tokens_;
  using Turner = SlotTurner<KvStageLayout, kPaged, kOwn>;
  static constexpr u32 kRowBytes = kMlaKey * 2, kValueBytes = kMlaValue * 2;
#if defined(__gfx950__)
  static constexpr u32 kWide = 16, kEnds = 1, kBehind = 2;
#else
  static constexpr u32 kWide = 4, kEnds = 2, kBehind = 3;
#endif
  static constexpr u32 kRowLoads = kValueBytes / (kWide * kWaveSize);
  static constexpr u32 kRowPieces = kRowLoads == 1 ? 2 : 3, kEndPieces = 2;
  static constexpr u32 kOfRows = kOwn * kRowPieces, kOfEnds = kEnds * kEndPieces;
#if defined(__gfx950__)
  static constexpr bool kFills = false;  // `fill` is used
  static constexpr u32 kFirst = 3;       // pieces before those
#else
  static constexpr bool kFills = true;
  static constexpr u32 kFirst = 0;
#endif

 public:
  static constexpr u32 kLoads = kOwn * kRowLoads + kEnds;  // of a wave and tile
  static constexpr u32 kPieces = kFirst + kOfRows + kOfEnds;
  // Keys' ends are loaded two tiles ahead, for one turn to load and another to turn them: they have
  // no values beside them in the slot that they come to.
  static constexpr u32 kSlots = kLdsBytes / KvStageLayout::kBytes, kBefore = kSlots - 2,
                       kEndsBefore = 2;
  static_assert(kBefore == kEndsBefore || kBefore == 1);
  static constexpr u32 kAsked = kLoads + 1;  // in a turn, after what keys are turned by

  __device__ DirectSlots(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_id();
    force_vgpr(
        lane);  // what follows from it is computed here, not kept in registers from the beginning
    const u32 chunk = lane * kWide / kVecBytes, inside = lane * kWide % 16;
    value_ = (chunk ^ KvStageLayout::swizzle(own_row_)) * kVecBytes + inside;
    const u32 row = own_row_ + lane / kLanes, place = lane % kLanes * kWide / kVecBytes;
    if constexpr (kRope && kFills) turner_.place(own_row_);
    rope_ = tokens.kv + kValueBytes + KvStageLayout::rope_chunk(row, place) * kVecBytes + inside;
  }

  // The first tiles. Then turn n, 0 first, makes the scores of tile n, and adds the values of the
  // one before; the loads of tile n + kBefore begin in it, of its keys' ends those of n + 2.
  template <class AskQuery>
  __device__ void prime(AskQuery issue_q_loads) {
    u32 pages[kEndsBefore + 1];
#pragma unroll
    for (u32 t = 0; t <= kEndsBefore; ++t) pages[t] = static_cast<u32>(*this->entry(t));
    sched_barrier();
    issue_q_loads();  // while pages are looked up
#pragma unroll
    for (u32 t = 0; t <= kEndsBefore; ++t) force_vgpr(pages[t]);
#pragma unroll
    for (u32 t = 0; t < kEndsBefore; ++t) {
      row_ = this->row_of(pages[t], t);
      rows_ = place_of(tokens_.kv);
      ends_ = place_of(rope_);
      static_for<kOfEnds + kOfRows>([&](auto i) {
        asm volatile("s_nop 4");  // what `load_row` wants between its pieces
        LdsBytes* const slot = lds_ + t * KvStageLayout::kBytes;
        if (i < kOfEnds || t < kBefore) in_scores<kFirst + i>(slot, slot);
      });
    }
    page_ = pages[kEndsBefore];
    find<0, kEndsBefore>();
    find<1, kEndsBefore>();
    if constexpr (kRope && kFills) {
      static_for<Turner::kAskSteps>(
          [&](auto i) { turner_.template ask<i, true>(tokens_, token_); });
      static_for<Turner::kAskSteps>(
          [&](auto i) { turner_.template ask<i>(tokens_, token_ + KvStageLayout::kTokens); });
    } else if constexpr (kRope) {
      turner_.ask(tokens_, token_);
    }
  }
  __device__ void widen_first() {}
  // The first tile's keys; what `prime` has asked for is there.
  __device__ void rotate_first_tile() {
    wait_vmcnt<0>();
    if constexpr (kRope && kFills) {
      turner_.rotate_first_tile(lds_);
    } else if constexpr (kRope) {
      turner_.template read<0>(lds_, own_row_);
      turner_.turn_all();
    }
  }

  // A piece of what a turn loads, into `slot`, and `ends`, for the caller to have others between:
  // at once it would be more than a CU can have on its way, and keep the matrix cores waiting.
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* slot, LdsBytes* ends) {
    constexpr u32 kAt = kPiece - kFirst;
    if constexpr (kPiece >= kFill) {
      if constexpr (kFills) fill<kPiece - kFill>(slot);
    } else if constexpr (kPiece == 0 && !kFills) {
      if constexpr (kRope) turner_.ask(tokens_, token_ + KvStageLayout::kTokens);
    } else if constexpr (kPiece == 1 && !kFills) {
      asked_ = tokens_.clamped(token_ + (kEndsBefore + 1) * KvStageLayout::kTokens);
      force_vgpr(asked_);
    } else if constexpr (kPiece == 2 && !kFills) {
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
  // Finds the rows that the next turn loads, behind `wait`; gfx950 turns keys of the next tile too.
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes* next) {
    constexpr u32 kFind = kSteps - kBehind;
    if constexpr (kStep >= kFind && kStep < kFind + 2) find<kStep - kFind, kEndsBefore + 1>();
    if constexpr (kStep == kSteps - 1) this->next_turn();
    // A piece in two of four steps, where the caller has fewer instructions of its own.
    constexpr u32 kBegin = kSteps / 8;
    if constexpr (kRope && !kFills) {
      if constexpr (kStep == kBegin - 2) turner_.template read<kAsked>(next, own_row_);
      if constexpr (kStep == kBegin + 1) turner_.template turn<false>();
      if constexpr (kStep == kBegin + 13) turner_.template turn<true>();
    }
  }
  // At a turn's end, until this wave's part of tile turn + 1 is in LDS.
  __device__ void wait() {
    wait_vmcnt<(kSlots - 3) * kLoads>();
    if constexpr (kRope && kFills) turner_.arrive();
  }
  __device__ void drain() const { wait_vmcnt<0>(); }

 private:
  // Of what turns keys of the next tile, in `slot`, and asks for what the one behind wants, one
  // instruction each.
  template <u32 kStep>
  __device__ void fill(const LdsBytes* slot) {
    if constexpr (!kRope) return fill_entry<kStep>();
    constexpr u32 kRead = Turner::kReadSteps, kAsk = kRead + Turner::kAngles;
    constexpr u32 kTurn = kAsk + Turner::kAskSteps + kEntrySteps, kAt = kStep - kAsk;
    static_assert(kTurn + Turner::kSteps - Turner::kAngles <= Room16::before(72), "room for all");
    if constexpr (kStep < 2 * kRead && kStep % 2 == 0) {
      turner_.template read<kStep / 2>(slot);
    } else if constexpr (kStep < kAsk) {
      turner_.template turn<(kStep < 2 * kRead ? kStep / 2 : kStep - kRead)>();
    } else if constexpr (kStep >= kTurn) {
      constexpr u32 kOfTurn = kStep - kTurn + Turner::kAngles;
      if constexpr (kOfTurn < Turner::kSteps) turner_.template turn<kOfTurn>();
    } else if constexpr (kAt < 2 * kEntrySteps && kAt % 2 == 1) {
      fill_entry<kAt / 2>();
    } else {
      constexpr u32 kOfAsk = kAt < 2 * kEntrySteps ? kAt / 2 : kAt - kEntrySteps;
      turner_.template ask<kOfAsk>(tokens_, token_ + 2 * KvStageLayout::kTokens);
    }
  }
  static constexpr u32 kEntrySteps = 4;  // by 32 bits: a sequence has less than 2^30 entries
  template <u32 kStep>
  __device__ void fill_entry() {
    if constexpr (kStep == 0) asked_ = token_ + (kEndsBefore + 1) * KvStageLayout::kTokens;
    if constexpr (kStep == 1) asked_ = tokens_.clamped(asked_);
    if constexpr (kStep == 2) asked_ = tokens_.index_of(asked_) * 4;
    if constexpr (kStep < 3) force_vgpr(asked_);
    if constexpr (kStep == 3) {
      asm volatile("global_load_dword %0, %1, %2"
                   : "=v"(page_)
                   : "v"(asked_), "s"(tokens_.pages)
                   : "memory");
    }
  }
  // In two pieces, where the rows are from which a turn loads.
  template <u32 kPiece, u32 kTile>
  __device__ void find() {
    if constexpr (kPiece == 0) {
      if constexpr (kBefore != kEndsBefore) rows_ = place_of(tokens_.kv);
      asm volatile("" : "+v"(page_));  // it is there: `wait`
      row_ = this->row_of(page_, kTile);
    } else {
      if constexpr (kBefore == kEndsBefore) rows_ = place_of(tokens_.kv);
      ends_ = place_of(rope_);
    }
  }
  // Of the row that this lane knows, behind `base`.
  __device__ u64 place_of(const u8* base) const {
    u64 place = reinterpret_cast<u64>(base) + u64{row_} * kRowBytes;
    force_vgpr(place);
    return place;
  }
  // Loads go to where m0 says; a step is to lie between the two.
  __device__ static void aim(LdsBytes* slot, u32 place) {
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(readfirstlane(lds_address(slot))), "s"(place)
                 : "scc");
  }

  // Of the i-th of this wave's rows of values. Five steps are to lie between what a lane says and
  // the loads from there.
  template <u32 i, u32 kPiece>
  __device__ void load_row(LdsBytes* slot) {
    constexpr u32 kTurn = (KvStageLayout::swizzle(i) ^ KvStageLayout::swizzle(0)) * kVecBytes;
    if constexpr (kPiece == 0) {
      from_ = u64{this->row_at(static_cast<u32>(rows_ >> 32), i)} << 32 |
              this->row_at(static_cast<u32>(rows_), i);
      asm volatile("" : "+s"(from_));
      aim(slot, (own_row_ + i) * KvStageLayout::kPitch);
    } else {
      u32 value = value_ ^ kTurn;
      // Turning keys wants registers: without this each row has one of its own.
      if constexpr (kRope && !kFills)
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
      aim(slot, KvStageLayout::kRope + own_row_ * KvStageLayout::kRopePitch +
                    i * (KvStageLayout::kRopeHalf - kHalf));
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

}  // namespace rfops
