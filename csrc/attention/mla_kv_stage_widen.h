// What brings tiles of a latent cache of FP8 to LDS as bf16 (mla_kv_stage.h), a piece between two
// instructions of the matrix cores: by registers, where it is widened, once for all waves. Each of
// four waves brings a quarter of a tile's rows.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_kv_stage.h"

namespace rfops {

// What a tile's scores find in registers goes to LDS, and the next one is asked for.
template <bool kPaged>
class WidenedSlots : MlaSlotRows<kPaged> {
  using Base = MlaSlotRows<kPaged>;
  using Base::kOwn, Base::kLanes, Base::own_row_, Base::tokens_;
  static constexpr u32 kRowBytes = kMlaKey, kValueBytes = kMlaValue;
  static constexpr u32 kRopeBytes = 64 / kLanes;  // of a lane
  // Of a load's 8 bytes a word at a time, where there is less room: on gfx942.
  static constexpr bool kByWords = kOwn == 4;
  static constexpr u32 kWordsOf = kByWords ? 4 : 1;
  // The last load's are the keys' ends, of fewer bytes; what a piece began the next one ends.
  static constexpr u32 kCommits = kByWords ? kOwn * kWordsOf + kRopeBytes / 2 + 1 : kOwn + 1;

 public:
  static constexpr u32 kLoads = kOwn + 1;
  static constexpr u32 kSlots = 3, kBefore = 1;

  __device__ WidenedSlots(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_id();
    force_vgpr(
        lane);  // what follows from it is computed here, not kept in registers from the beginning
    const u32 row = own_row_ + lane / kLanes, place = lane % kLanes;
    value_ = KvStageLayout::value_at(own_row_, lane);
    inside_ = lane * 8;
    rope_ = KvStageLayout::rope_at(row, place * kRopeBytes / 8) + place * kRopeBytes % 8 * 2;
  }

  // Q on its way while the first rows are found, which is exchanged while these are.
  template <class AskQuery>
  __device__ void prime(AskQuery issue_q_loads) {
    page_ = static_cast<u32>(*this->entry(0));
    issue_q_loads();
    load_all(0);
    sched_barrier();  // all loads on their way at once
  }
  __device__ void widen_first() {
    static_for<kCommits>([&](auto i) { begin_commit<i>(), commit<i>(lds_); });
    sched_barrier();
    load_all(1);
  }
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* slot, LdsBytes*) {
    // Late: what the last turn asked for is on its way until then.
    constexpr u32 kFirst = kByWords ? 13 : 10;
    constexpr u32 kHalves = kFill + kFirst;  // pieces before those, that gfx950 does half in
    if constexpr (!kByWords && kPiece >= kHalves && kPiece < kHalves + kCommits) {
      begin_commit<kPiece - kHalves>();
    }
    if constexpr (kPiece >= kFirst && kPiece < kFirst + kCommits) {
      commit<kPiece - kFirst>(slot);
    }
  }
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes*) {
    constexpr u32 kApart = kSteps / (kLoads + 2), kLoad = kStep / kApart;
    constexpr u32 kAt = kByWords ? 2 : 1;  // in such steps gfx942 reads no V
    // Later where loads begin at scalar addresses: then rows are where lanes know them.
    constexpr u32 kFind = kByWords ? 0 : kSteps * 3 / 4, kAimPage = kByWords ? 0 : kFind - 2;
    if constexpr (kStep == 0) find_rows(2);
    if constexpr (kStep == kAimPage) aim_page(2);
    if constexpr (kStep == kFind) find_page();
    if constexpr (kStep == kSteps - 1) this->next_turn();
    if constexpr (kLoad >= 1 && kLoad <= kLoads) {
      if constexpr (kByWords && kStep % kApart == 0) pick<kLoad - 1>();
      if constexpr (kStep % kApart == kAt - 1) aim<kLoad - 1>();
      if constexpr (kStep % kApart == kAt) load<kLoad - 1>();
    }
  }
  __device__ void wait() const {}
  __device__ void drain() const {}
  __device__ void rotate_first_tile() {}

 private:
  __device__ void find_rows(u32 tile) {
    rows_ = this->row_of(page_, tile);
    if constexpr (!kByWords) {
      row_places_ = u64{rows_} * kRowBytes + reinterpret_cast<u64>(tokens_.kv);
      force_vgpr(row_places_);
    }
  }
  // The next tile's page; where it is said is not known at once.
  __device__ void aim_page(u32 tile) {
    asked_ = tokens_.clamped(this->token_ + (tile + 1) * KvStageLayout::kTokens);
    if constexpr (!kByWords) force_vgpr(asked_);
  }
  __device__ void find_page() { page_ = static_cast<u32>(*tokens_.entry_of(asked_)); }
  template <u32 i>
  __device__ void pick() {
    if constexpr (i < kOwn) {
      row_ = this->row_at(rows_, i);
      if constexpr (kByWords) force_sgpr(row_);
    }
  }
  // Where a load begins: a scalar of gfx950, to which a lane adds its own place in a row; of the
  // keys' ends each lane has its own.
  template <u32 i>
  __device__ void aim() {
    const u32 lane = lane_id();
    const u32 inside = i < kOwn ? lane * 8 : kValueBytes + lane % kLanes * kRopeBytes;
    if constexpr (!kByWords) {
      if constexpr (i < kOwn) {
        scalar_from_ = u64{this->row_at(static_cast<u32>(row_places_ >> 32), i)} << 32 |
                       this->row_at(static_cast<u32>(row_places_), i);
        asm volatile("" : "+s"(scalar_from_));
      } else {
        from_ = row_places_ + inside;
        force_vgpr(from_);
      }
    } else {
      from_ = u64{i < kOwn ? row_ : rows_} * kRowBytes + reinterpret_cast<u64>(tokens_.kv + inside);
      force_vgpr(from_);
    }
  }
  template <u32 i>
  __device__ void load() {
    using Global = __attribute__((address_space(1))) const u8;
    if constexpr (!kByWords && i < kOwn) {
      force_vgpr(inside_);  // 32 bits beside a scalar address
      staged_[i] =
          *(__attribute__((address_space(1))) const U32x2*)((Global*)scalar_from_ + inside_);
    } else if constexpr (i < kOwn || kRopeBytes == 8) {
      staged_[i] = *(__attribute__((address_space(1))) const U32x2*)from_;
    } else {
      staged_[i] = {*(__attribute__((address_space(1))) const u32*)from_, 0};
    }
  }
  __device__ void load_all(u32 tile) {
    find_rows(tile);
    aim_page(tile), find_page();
    static_for<kLoads>([&](auto i) { pick<i>(), aim<i>(), load<i>(); });
  }
  // The first half of such a piece on gfx950.
  template <u32 kPiece>
  __device__ void begin_commit() {
    if constexpr (!kByWords) {
      // For four at once, of those and the next page.
      if constexpr (kPiece % 4 == 0) wait_vmcnt<(kPiece < 4 ? 6 : kPiece < 8 ? 2 : 1)>();
      sched_barrier();
      const u32 four = staged_[kPiece][0];
      low_ = widen_pair<false>(four), high_ = widen_pair<true>(four);
      force_vgpr(low_), force_vgpr(high_);
    }
  }
  // Piece kPiece of widening and writing all of a tile, of kCommits.
  template <u32 kPiece>
  __device__ void commit(LdsBytes* slot) {
    if constexpr (!kByWords) {
      const u32 four = staged_[kPiece][1];
      wide_ = {low_, high_, widen_pair<false>(four), widen_pair<true>(four)};
      return write<kPiece>(place<kPiece>(slot));
    }
    constexpr u32 i = kPiece / kWordsOf, kWord = kPiece % kWordsOf;
    if constexpr (kPiece > 0) {
      wide_[(kPiece - 1) % kWordsOf] = upper_halves(low_, high_);
      force_vgpr(wide_);  // here, not all at the end
    }
    if constexpr (kPiece + 1 < kCommits) {
      const F32x2 pair =
          __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(staged_[i][kWord / 2]), kWord % 2);
      low_ = __builtin_bit_cast(u32, f32{pair[0]}), high_ = __builtin_bit_cast(u32, f32{pair[1]});
      force_vgpr(low_), force_vgpr(high_);
    }
    if constexpr (kWord + 1 == kWordsOf) {
      at_ = place<i>(slot);
      force_vgpr(at_);
    }
    if constexpr (kPiece > 0 && kWord == 0) write<i - 1>(at_);
    if constexpr (kPiece + 1 == kCommits) write<i>(place<i>(slot));
  }
  template <u32 i>
  __device__ LdsBytes* place(LdsBytes* slot) const {
    constexpr u32 kTurn = (KvStageLayout::swizzle(i) ^ KvStageLayout::swizzle(0)) * kVecBytes;
    return i < kOwn ? slot + (value_ ^ kTurn) : slot + rope_;
  }
  template <u32 i>
  __device__ void write(LdsBytes* to) const {
    if constexpr (i < kOwn) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(to + i * KvStageLayout::kPitch) = wide_;
    } else if constexpr (kRopeBytes == 8) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(to) = wide_;
    } else {
      *reinterpret_cast<RFOPS_LDS U32x2*>(to) = {wide_[0], wide_[1]};
    }
  }

  LdsBytes* lds_;
  u32 value_, rope_, asked_, page_, rows_;
  u64 from_;  // in global memory, which a pinned pointer would not say
  u64 row_places_, scalar_from_;
  u32 inside_;  // of a row, a lane's bytes
  U32x2 staged_[kLoads];
  U32x4 wide_;
  u32 low_, high_;  // on their way to a word of that
  LdsBytes* at_;    // and where it goes
  u32 row_;
};

}  // namespace rfops
