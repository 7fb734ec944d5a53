// Loads bf16 KV tiles to LDS (mla_kv_stage.h) in the issue slots between MFMAs: direct-to-LDS, 16
// bytes per lane on gfx950, 4 on gfx942. Each of the four waves loads a quarter of a tile's rows.
// mla_kv_stage_widen.h is for FP8.
#pragma once

#include "attention/mla_issue_slots_gfx942.h"
#include "attention/mla_kv_stage.h"
#include "attention/mla_rope_keys.h"

namespace rfops {

// Inline assembly, because the compiler inserts s_waitcnt vmcnt(0) before every LDS read; `wait`
// counts the loads. Tiles after the last repeat its last row. With kRope, keys are rotated in LDS
// as soon as they arrive, on gfx942 one instruction per issue slot of the next scores.
template <bool kPaged, bool kRope>
class DirectStages : StageRows<kPaged> {
  using Base = StageRows<kPaged>;
  using Base::kRowsPerWave, Base::kLanes, Base::own_row_, Base::token_, Base::tokens_;
  using Rotator = KeyRotator<KvStageLayout, kPaged, kRowsPerWave>;
  static constexpr u32 kRowBytes = kMlaKey * 2, kValueBytes = kMlaValue * 2;
#if defined(__gfx950__)
  static constexpr u32 kBytesPerLane = 16, kEnds = 1, kFindSteps = 2;
#else
  static constexpr u32 kBytesPerLane = 4, kEnds = 2, kFindSteps = 3;
#endif
  static constexpr u32 kRowLoads = kValueBytes / (kBytesPerLane * kWaveSize);
  static constexpr u32 kRowPieces = kRowLoads == 1 ? 2 : 3, kEndPieces = 2;
  static constexpr u32 kOfRows = kRowsPerWave * kRowPieces, kOfEnds = kEnds * kEndPieces;
#if defined(__gfx950__)
  static constexpr bool kFills = false;   // `fill` is used
  static constexpr u32 kEarlyPieces = 3;  // pieces before those
#else
  static constexpr bool kFills = true;
  static constexpr u32 kEarlyPieces = 0;
#endif

 public:
  static constexpr u32 kLoads = kRowsPerWave * kRowLoads + kEnds;  // of a wave and tile
  static constexpr u32 kPieces = kEarlyPieces + kOfRows + kOfEnds;
  // The last elements of the keys are prefetched two tiles ahead: one iteration to load them, one
  // to rotate them. The stage they go to has no values yet.
  static constexpr u32 kNumStages = kLdsBytes / KvStageLayout::kBytes, kPrefetch = kNumStages - 2,
                       kEndsPrefetch = 2;
  static_assert(kPrefetch == kEndsPrefetch || kPrefetch == 1);
  static constexpr u32 kLoadsPerTile = kLoads + 1;  // an iteration, after RoPE angles

  __device__ DirectStages(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : Base(tokens, begin), lds_(lds) {
    u32 lane = lane_id();
    force_vgpr(
        lane);  // what follows from it is computed here, not kept in registers from the beginning
    const u32 value_chunk = lane * kBytesPerLane / kVecBytes,
              offset_in_chunk = lane * kBytesPerLane % 16;
    value_ = (value_chunk ^ KvStageLayout::swizzle(own_row_)) * kVecBytes + offset_in_chunk;
    const u32 row = own_row_ + lane / kLanes, chunk = lane % kLanes * kBytesPerLane / kVecBytes;
    if constexpr (kRope && kFills) rotator_.init_offset(own_row_);
    rope_ = tokens.kv + kValueBytes + KvStageLayout::rope_chunk(row, chunk) * kVecBytes +
            offset_in_chunk;
  }

  // Issues the first tiles. Iteration n then computes the scores of tile n and accumulates tile n -
  // 1; it issues the loads of tile n + kPrefetch and those of the key ends of tile n + 2.
  template <class IssueQLoads>
  __device__ void prime(IssueQLoads issue_q_loads) {
    u32 pages[kEndsPrefetch + 1];
#pragma unroll
    for (u32 t = 0; t <= kEndsPrefetch; ++t) pages[t] = static_cast<u32>(*this->entry(t));
    sched_barrier();
    issue_q_loads();  // while pages are looked up
#pragma unroll
    for (u32 t = 0; t <= kEndsPrefetch; ++t) force_vgpr(pages[t]);
#pragma unroll
    for (u32 t = 0; t < kEndsPrefetch; ++t) {
      row_ = this->row_of(pages[t], t);
      rows_ = row_address(tokens_.kv);
      ends_ = row_address(rope_);
      static_for<kOfEnds + kOfRows>([&](auto i) {
        asm volatile("s_nop 4");  // what `load_row` wants between its pieces
        LdsBytes* const stage = lds_ + t * KvStageLayout::kBytes;
        if (i < kOfEnds || t < kPrefetch) in_scores<kEarlyPieces + i>(stage, stage);
      });
    }
    page_ = pages[kEndsPrefetch];
    set_rows<0, kEndsPrefetch>();
    set_rows<1, kEndsPrefetch>();
    if constexpr (kRope && kFills) {
      static_for<Rotator::kLoadSteps>(
          [&](auto i) { rotator_.template issue_loads<i, true>(tokens_, token_); });
      static_for<Rotator::kLoadSteps>([&](auto i) {
        rotator_.template issue_loads<i>(tokens_, token_ + KvStageLayout::kTokens);
      });
    } else if constexpr (kRope) {
      rotator_.issue_loads(tokens_, token_);
    }
  }
  __device__ void widen_first() {}
  // Rotates the first tile's keys after all loads of prime() have arrived.
  __device__ void rotate_first_tile() {
    wait_vmcnt<0>();
    if constexpr (kRope && kFills) {
      rotator_.rotate_first_tile(lds_);
    } else if constexpr (kRope) {
      rotator_.template read<0>(lds_, own_row_);
      rotator_.rotate_all();
    }
  }

  // Issues piece kPiece of an iteration's loads, to `stage` and `ends`. In pieces, because all
  // loads at once exceed what a CU can have in flight and stall the MFMAs.
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* stage, LdsBytes* ends) {
    constexpr u32 kRowPiece = kPiece - kEarlyPieces;
    if constexpr (kPiece >= kFill) {
      if constexpr (kFills) fill<kPiece - kFill>(stage);
    } else if constexpr (kPiece == 0 && !kFills) {
      if constexpr (kRope) rotator_.issue_loads(tokens_, token_ + KvStageLayout::kTokens);
    } else if constexpr (kPiece == 1 && !kFills) {
      next_entry_ = tokens_.clamp_token(token_ + (kEndsPrefetch + 1) * KvStageLayout::kTokens);
      force_vgpr(next_entry_);
    } else if constexpr (kPiece == 2 && !kFills) {
      asm volatile("global_load_dword %0, %1, off"
                   : "=v"(page_)
                   : "v"(tokens_.entry_of(next_entry_))
                   : "memory");
    } else if constexpr (kRowPiece < kOfEnds) {
      load_end<kRowPiece / kEndPieces, kRowPiece % kEndPieces>(ends);
    } else if constexpr (kPiece < kPieces) {
      constexpr u32 kRow = kRowPiece - kOfEnds;
      load_row<kRow / kRowPieces, kRow % kRowPieces>(stage);
    }
  }
  // Computes the row addresses of the next iteration, after `wait`; gfx950 also rotates the next
  // tile's keys.
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes* next) {
    constexpr u32 kFindBegin = kSteps - kFindSteps;
    if constexpr (kStep >= kFindBegin && kStep < kFindBegin + 2)
      set_rows<kStep - kFindBegin, kEndsPrefetch + 1>();
    if constexpr (kStep == kSteps - 1) this->advance();
    // In steps in which the caller issues fewer instructions.
    constexpr u32 kBegin = kSteps / 8;
    if constexpr (kRope && !kFills) {
      if constexpr (kStep == kBegin - 2) rotator_.template read<kLoadsPerTile>(next, own_row_);
      if constexpr (kStep == kBegin + 1) rotator_.template rotate<false>();
      if constexpr (kStep == kBegin + 13) rotator_.template rotate<true>();
    }
  }
  // Waits at the end of an iteration until this wave's part of the next tile is in LDS.
  __device__ void wait() {
    wait_vmcnt<(kNumStages - 3) * kLoads>();
    if constexpr (kRope && kFills) rotator_.arrive();
  }
  __device__ void drain() const { wait_vmcnt<0>(); }

 private:
  // Step of rotating the next tile's keys and loading the angles of the one after, one instruction
  // each.
  template <u32 kStep>
  __device__ void fill(const LdsBytes* stage) {
    if constexpr (!kRope) return fill_entry<kStep>();
    constexpr u32 kRead = Rotator::kReadSteps, kLoadBegin = kRead + Rotator::kAngles;
    constexpr u32 kRotateBegin = kLoadBegin + Rotator::kLoadSteps + kEntrySteps,
                  kLoadStep = kStep - kLoadBegin;
    static_assert(kRotateBegin + Rotator::kSteps - Rotator::kAngles <= IssueSlots::count_before(72),
                  "room for all");
    if constexpr (kStep < 2 * kRead && kStep % 2 == 0) {
      rotator_.template read<kStep / 2>(stage);
    } else if constexpr (kStep < kLoadBegin) {
      rotator_.template rotate<(kStep < 2 * kRead ? kStep / 2 : kStep - kRead)>();
    } else if constexpr (kStep >= kRotateBegin) {
      constexpr u32 kRotateStep = kStep - kRotateBegin + Rotator::kAngles;
      if constexpr (kRotateStep < Rotator::kSteps) rotator_.template rotate<kRotateStep>();
    } else if constexpr (kLoadStep < 2 * kEntrySteps && kLoadStep % 2 == 1) {
      fill_entry<kLoadStep / 2>();
    } else {
      constexpr u32 kAngleStep =
          kLoadStep < 2 * kEntrySteps ? kLoadStep / 2 : kLoadStep - kEntrySteps;
      rotator_.template issue_loads<kAngleStep>(tokens_, token_ + 2 * KvStageLayout::kTokens);
    }
  }
  static constexpr u32 kEntrySteps = 4;  // by 32 bits: a sequence has less than 2^30 entries
  template <u32 kStep>
  __device__ void fill_entry() {
    if constexpr (kStep == 0) next_entry_ = token_ + (kEndsPrefetch + 1) * KvStageLayout::kTokens;
    if constexpr (kStep == 1) next_entry_ = tokens_.clamp_token(next_entry_);
    if constexpr (kStep == 2) next_entry_ = tokens_.index_of(next_entry_) * 4;
    if constexpr (kStep < 3) force_vgpr(next_entry_);
    if constexpr (kStep == 3) {
      asm volatile("global_load_dword %0, %1, %2"
                   : "=v"(page_)
                   : "v"(next_entry_), "s"(tokens_.pages)
                   : "memory");
    }
  }
  // Computes, in two pieces, the addresses from which the next iteration loads.
  template <u32 kPiece, u32 kTile>
  __device__ void set_rows() {
    if constexpr (kPiece == 0) {
      if constexpr (kPrefetch != kEndsPrefetch) rows_ = row_address(tokens_.kv);
      asm volatile("" : "+v"(page_));  // it is there: `wait`
      row_ = this->row_of(page_, kTile);
    } else {
      if constexpr (kPrefetch == kEndsPrefetch) rows_ = row_address(tokens_.kv);
      ends_ = row_address(rope_);
    }
  }
  // Returns the address of this lane's row, relative to `base`.
  __device__ u64 row_address(const u8* base) const {
    u64 address = reinterpret_cast<u64>(base) + u64{row_} * kRowBytes;
    force_vgpr(address);
    return address;
  }
  // Sets the LDS destination in M0; one instruction must come between this and the load.
  __device__ static void set_m0(LdsBytes* stage, u32 offset) {
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(readfirstlane(lds_address(stage))), "s"(offset)
                 : "scc");
  }

  // Loads the i-th of this wave's rows of values. Five instructions must come between the address
  // and the load.
  template <u32 i, u32 kPiece>
  __device__ void load_row(LdsBytes* stage) {
    constexpr u32 kSwizzle = (KvStageLayout::swizzle(i) ^ KvStageLayout::swizzle(0)) * kVecBytes;
    if constexpr (kPiece == 0) {
      row_src_ = u64{this->row_at(static_cast<u32>(rows_ >> 32), i)} << 32 |
                 this->row_at(static_cast<u32>(rows_), i);
      asm volatile("" : "+s"(row_src_));
      set_m0(stage, (own_row_ + i) * KvStageLayout::kPitch);
    } else {
      u32 value = value_ ^ kSwizzle;
      // In a register made here: with RoPE, one register per row would exceed what there is.
      if constexpr (kRope && !kFills)
        asm volatile("v_xor_b32 %0, %2, %1" : "=v"(value) : "v"(value_), "i"(kSwizzle));
#if defined(__gfx950__)
      asm volatile("global_load_lds_dwordx4 %0, %1" ::"v"(value), "s"(row_src_) : "memory");
#else
      // The offset field applies to both addresses.
      asm volatile(
          "global_load_lds_dword %0, %1 offset:%2\n\tglobal_load_lds_dword %0, %1 offset:%3" ::"v"(
              value),
          "s"(row_src_), "i"((kPiece - 1) * 512), "i"((kPiece - 1) * 512 + 256)
          : "memory");
#endif
    }
  }
  // Loads the last elements of all this wave's keys, or half of them.
  template <u32 i, u32 kPiece>
  __device__ void load_end(LdsBytes* stage) {
    constexpr u32 kHalf = 64;  // of a row; the offset is LDS's too
    if constexpr (kPiece == 0) {
      set_m0(stage, KvStageLayout::kRope + own_row_ * KvStageLayout::kRopePitch +
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
  u32 next_entry_, page_, row_;
  u64 rows_, ends_, row_src_;
  Rotator rotator_;
};

}  // namespace rfops
