// Loads FP8 KV tiles through registers and writes them to LDS as bf16 (mla_kv_stage.h), in the
// issue slots between MFMAs: converted once for all waves. Each of the four waves loads a quarter
// of a tile's rows.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_kv_stage.h"

namespace rfops {

// During a tile's scores, loaded registers are converted and written to LDS; then the next loads
// are issued.
template <bool kPaged>
class WidenedStages : StageRows<kPaged> {
  using Base = StageRows<kPaged>;
  using Base::kRowsPerWave, Base::kLanes, Base::own_row_, Base::tokens_;
  static constexpr u32 kRowBytes = kMlaKey, kValueBytes = kMlaValue;
  static constexpr u32 kRopeBytes = 64 / kLanes;  // of a lane
  // gfx942 converts one word of a load's 8 bytes per piece, because its issue slots are short.
  static constexpr bool kByWords = kRowsPerWave == 4;
  static constexpr u32 kWordsPerLoad = kByWords ? 4 : 1;
  // The last load is for the key ends and has fewer bytes; a piece finishes what the previous one
  // began.
  static constexpr u32 kCommits =
      kByWords ? kRowsPerWave * kWordsPerLoad + kRopeBytes / 2 + 1 : kRowsPerWave + 1;

 public:
  static constexpr u32 kLoads = kRowsPerWave + 1;
  static constexpr u32 kNumStages = 3, kPrefetch = 1;

  __device__ WidenedStages(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_id();
    force_vgpr(
        lane);  // what follows from it is computed here, not kept in registers from the beginning
    const u32 row = own_row_ + lane / kLanes, lane_in_row = lane % kLanes;
    value_ = KvStageLayout::value_offset(own_row_, lane);
    row_offset_ = lane * 8;
    rope_ = KvStageLayout::rope_offset(row, lane_in_row * kRopeBytes / 8) +
            lane_in_row * kRopeBytes % 8 * 2;
  }

  // Issues the first loads. Q is in flight while the first rows are looked up, and exchanged while
  // they are in flight.
  template <class IssueQLoads>
  __device__ void prime(IssueQLoads issue_q_loads) {
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
  __device__ void in_scores(LdsBytes* stage, LdsBytes*) {
    // Late, because the loads of the previous iteration are in flight until then.
    constexpr u32 kCommitBegin = kByWords ? 13 : 10;
    constexpr u32 kHalves = kFill + kCommitBegin;  // pieces before those, that gfx950 does half in
    if constexpr (!kByWords && kPiece >= kHalves && kPiece < kHalves + kCommits) {
      begin_commit<kPiece - kHalves>();
    }
    if constexpr (kPiece >= kCommitBegin && kPiece < kCommitBegin + kCommits) {
      commit<kPiece - kCommitBegin>(stage);
    }
  }
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes*) {
    constexpr u32 kStepsPerLoad = kSteps / (kLoads + 2), kLoad = kStep / kStepsPerLoad;
    constexpr u32 kLoadStep = kByWords ? 2 : 1;  // in such steps gfx942 reads no V
    // Later on gfx950, where loads begin at scalar addresses.
    constexpr u32 kFind = kByWords ? 0 : kSteps * 3 / 4, kAimPage = kByWords ? 0 : kFind - 2;
    if constexpr (kStep == 0) find_rows(2);
    if constexpr (kStep == kAimPage) aim_page(2);
    if constexpr (kStep == kFind) find_page();
    if constexpr (kStep == kSteps - 1) this->advance();
    if constexpr (kLoad >= 1 && kLoad <= kLoads) {
      if constexpr (kByWords && kStep % kStepsPerLoad == 0) pick<kLoad - 1>();
      if constexpr (kStep % kStepsPerLoad == kLoadStep - 1) set_src<kLoad - 1>();
      if constexpr (kStep % kStepsPerLoad == kLoadStep) load<kLoad - 1>();
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
  // Computes the next tile's page entry early, because its address takes several instructions.
  __device__ void aim_page(u32 tile) {
    next_entry_ = tokens_.clamp_token(this->token_ + (tile + 1) * KvStageLayout::kTokens);
    if constexpr (!kByWords) force_vgpr(next_entry_);
  }
  __device__ void find_page() { page_ = static_cast<u32>(*tokens_.entry_of(next_entry_)); }
  template <u32 i>
  __device__ void pick() {
    if constexpr (i < kRowsPerWave) {
      row_ = this->row_at(rows_, i);
      if constexpr (kByWords) force_sgpr(row_);
    }
  }
  // Computes the address of a load: on gfx950 a scalar, to which a lane adds its offset in the row;
  // for key ends, one address per lane.
  template <u32 i>
  __device__ void set_src() {
    const u32 lane = lane_id();
    const u32 offset_in_row =
        i < kRowsPerWave ? lane * 8 : kValueBytes + lane % kLanes * kRopeBytes;
    if constexpr (!kByWords) {
      if constexpr (i < kRowsPerWave) {
        scalar_src_ = u64{this->row_at(static_cast<u32>(row_places_ >> 32), i)} << 32 |
                      this->row_at(static_cast<u32>(row_places_), i);
        asm volatile("" : "+s"(scalar_src_));
      } else {
        src_ = row_places_ + offset_in_row;
        force_vgpr(src_);
      }
    } else {
      src_ = u64{i < kRowsPerWave ? row_ : rows_} * kRowBytes +
             reinterpret_cast<u64>(tokens_.kv + offset_in_row);
      force_vgpr(src_);
    }
  }
  template <u32 i>
  __device__ void load() {
    using Global = __attribute__((address_space(1))) const u8;
    if constexpr (!kByWords && i < kRowsPerWave) {
      force_vgpr(row_offset_);  // 32 bits beside a scalar address
      staged_[i] =
          *(__attribute__((address_space(1))) const U32x2*)((Global*)scalar_src_ + row_offset_);
    } else if constexpr (i < kRowsPerWave || kRopeBytes == 8) {
      staged_[i] = *(__attribute__((address_space(1))) const U32x2*)src_;
    } else {
      staged_[i] = {*(__attribute__((address_space(1))) const u32*)src_, 0};
    }
  }
  __device__ void load_all(u32 tile) {
    find_rows(tile);
    aim_page(tile), find_page();
    static_for<kLoads>([&](auto i) { pick<i>(), set_src<i>(), load<i>(); });
  }
  // First half of a piece on gfx950.
  template <u32 kPiece>
  __device__ void begin_commit() {
    if constexpr (!kByWords) {
      // Waits once for four loads.
      if constexpr (kPiece % 4 == 0) wait_vmcnt<(kPiece < 4 ? 6 : kPiece < 8 ? 2 : 1)>();
      sched_barrier();
      const u32 word = staged_[kPiece][0];
      low_ = widen_pair<false>(word), high_ = widen_pair<true>(word);
      force_vgpr(low_), force_vgpr(high_);
    }
  }
  // Piece kPiece, of kCommits, of converting and writing a tile.
  template <u32 kPiece>
  __device__ void commit(LdsBytes* stage) {
    if constexpr (!kByWords) {
      const u32 word = staged_[kPiece][1];
      widened_ = {low_, high_, widen_pair<false>(word), widen_pair<true>(word)};
      return write<kPiece>(dst<kPiece>(stage));
    }
    constexpr u32 i = kPiece / kWordsPerLoad, kWord = kPiece % kWordsPerLoad;
    if constexpr (kPiece > 0) {
      widened_[(kPiece - 1) % kWordsPerLoad] = upper_halves(low_, high_);
      force_vgpr(widened_);  // here, not all at the end
    }
    if constexpr (kPiece + 1 < kCommits) {
      const F32x2 pair =
          __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(staged_[i][kWord / 2]), kWord % 2);
      low_ = __builtin_bit_cast(u32, f32{pair[0]}), high_ = __builtin_bit_cast(u32, f32{pair[1]});
      force_vgpr(low_), force_vgpr(high_);
    }
    if constexpr (kWord + 1 == kWordsPerLoad) {
      lds_dst_ = dst<i>(stage);
      force_vgpr(lds_dst_);
    }
    if constexpr (kPiece > 0 && kWord == 0) write<i - 1>(lds_dst_);
    if constexpr (kPiece + 1 == kCommits) write<i>(dst<i>(stage));
  }
  template <u32 i>
  __device__ LdsBytes* dst(LdsBytes* stage) const {
    constexpr u32 kSwizzle = (KvStageLayout::swizzle(i) ^ KvStageLayout::swizzle(0)) * kVecBytes;
    return i < kRowsPerWave ? stage + (value_ ^ kSwizzle) : stage + rope_;
  }
  template <u32 i>
  __device__ void write(LdsBytes* lds_dst) const {
    if constexpr (i < kRowsPerWave) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst + i * KvStageLayout::kPitch) = widened_;
    } else if constexpr (kRopeBytes == 8) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst) = widened_;
    } else {
      *reinterpret_cast<RFOPS_LDS U32x2*>(lds_dst) = {widened_[0], widened_[1]};
    }
  }

  LdsBytes* lds_;
  u32 value_, rope_, next_entry_, page_, rows_;
  u64 src_;  // in global memory, which a pinned pointer would not say
  u64 row_places_, scalar_src_;
  u32 row_offset_;  // of a row, a lane's bytes
  U32x2 staged_[kLoads];
  U32x4 widened_;
  u32 low_, high_;     // on their way to a word of that
  LdsBytes* lds_dst_;  // and where it goes
  u32 row_;
};

}  // namespace rfops
