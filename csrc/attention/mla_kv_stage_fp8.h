// FP8 KV tiles in LDS, and their direct-to-LDS loads (gfx950): each of the four waves loads 16 of
// 64 rows.
//
// 512 bytes of values per token, then the last 64 bytes of the keys. Chunks of 16 bytes are
// swizzled by the row: reads of K (16 bytes) and of V (8 bytes, transposed) have no bank conflict.
// The swizzle is in the addresses that lanes load from.
#pragma once

#include "attention/mla_kv_stage.h"

#if defined(__gfx950__)

namespace rfops {

struct Fp8StageLayout {
  static constexpr u32 kTokens = 64, kPitch = kMlaValue, kRopePitch = kMlaKey - kMlaValue;
  static constexpr u32 kRope = kTokens * kPitch, kBytes = kRope + kTokens * kRopePitch;
  // Differs for all 16 rows of one read of K, and for pairs of the 8 rows of one read of V.
  static constexpr u32 swizzle(u32 row) { return row % 4 * 2 + row / 8 % 2 * 8 + row / 4 % 2; }
  static constexpr u32 value_offset(u32 row, u32 chunk) {
    return row * kPitch + (chunk ^ swizzle(row)) * kVecBytes;
  }
  static constexpr u32 rope_chunk(u32 row, u32 chunk) { return chunk ^ row / 4 % 4; }
  static constexpr u32 rope_offset(u32 row, u32 chunk) {
    return kRope + row * kRopePitch + rope_chunk(row, chunk) * kVecBytes;
  }
};

// Interface of DirectStages (mla_kv_stage_load.h). A lane knows two rows: one of values, which it
// shares with 31 other lanes, and one of key ends.
template <bool kPaged>
class Fp8Stages {
  using Layout = Fp8StageLayout;
  static constexpr u32 kRowsPerWave = Layout::kTokens / 4,
                       kRowLoads = kRowsPerWave / 2;  // two rows a load
  static constexpr u32 kLoadsInScores = 5;  // loads among the scores, the others among the values

 public:
  static constexpr u32 kLoads = kRowLoads + 1;  // of a wave and tile
  static constexpr u32 kNumStages = 4, kPrefetch = 2;
  static_assert(kNumStages * Layout::kBytes <= kLdsBytes);

  __device__ Fp8Stages(LdsBytes* lds, const KvPageTable<kPaged>& tokens, u32 begin)
      : lds_(lds), tokens_(tokens), own_row_(wave_id() * kRowsPerWave) {
    const u32 lane = lane_id();
    lane_tokens_[0] = begin + own_row_ + lane % kRowLoads * 2 + lane / 32;
    lane_tokens_[1] = begin + own_row_ + lane / 4;
    value_ = Layout::value_offset(lane / 32, lane % 32) % Layout::kPitch;
    rope_ = tokens.kv + kMlaValue + Layout::rope_chunk(lane / 4, lane % 4) * kVecBytes;
  }

  // Issues the first tiles. Iteration n then computes the scores of tile n and issues the loads of
  // tile n + kPrefetch.
  template <class IssueQLoads>
  __device__ void prime(IssueQLoads issue_q_loads) {
    u32 pages[kPrefetch + 1][2];
#pragma unroll
    for (u32 t = 0; t <= kPrefetch; ++t) {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) pages[t][i] = static_cast<u32>(*entry(t, i));
    }
    sched_barrier();
    issue_q_loads();  // while pages are looked up
#pragma unroll
    for (u32 t = 0; t <= kPrefetch; ++t) force_vgpr(pages[t][0]), force_vgpr(pages[t][1]);
#pragma unroll
    for (u32 t = 0; t < kPrefetch; ++t) {
      set_row<0>(pages[t][0], t);
      set_row<1>(pages[t][1], t);
      static_for<kLoads>([&](auto i) {
        set_load<i>(lds_ + t * Layout::kBytes);
        asm volatile("s_nop 0");
        load<i>();
      });
    }
    set_row<0>(pages[kPrefetch][0], kPrefetch);
    set_row<1>(pages[kPrefetch][1], kPrefetch);
  }
  __device__ void widen_first() const {}
  __device__ void rotate_first_tile() const { wait_vmcnt<0>(); }

  // Issues piece kPiece of an iteration's loads, to `stage`.
  template <u32 kPiece>
  __device__ void in_scores(LdsBytes* stage, LdsBytes*) {
    if constexpr (kPiece < 2) {
      asm volatile("global_load_dword %0, %1, off"
                   : "=v"(pages_[kPiece])
                   : "v"(entry(kPrefetch + 1, kPiece))
                   : "memory");
    } else {
      constexpr u32 kLoad = (kPiece - 2) / 3;
      if constexpr (kLoad < kLoadsInScores && kPiece % 3 == 2) set_load<kLoad>(stage);
      if constexpr (kLoad < kLoadsInScores && kPiece % 3 == 0) load<kLoad>();
    }
    if constexpr (kPiece == 2) stage_ = stage;
  }
  // Issues the other loads; after `wait`, computes the rows of the next iteration.
  template <u32 kStep, u32 kSteps>
  __device__ void in_values(LdsBytes*) {
    constexpr u32 kLoad = kLoadsInScores + kStep / 4 * 4 / (kSteps / 4);
    if constexpr (kStep % 4 == 0) set_load<kLoad>(stage_);
    if constexpr (kStep % 4 == 1) load<kLoad>();
    if constexpr (kStep >= kSteps - 2) {
      constexpr u32 i = kStep + 2 - kSteps;
      asm volatile("" : "+v"(pages_[i]));  // it is there: `wait`
      lane_tokens_[i] += Layout::kTokens;
      set_row<i>(pages_[i], kPrefetch);
    }
  }
  // Waits at the end of an iteration until this wave's part of the next tile is in LDS.
  __device__ void wait() const { wait_vmcnt<kLoads>(); }
  __device__ void drain() const { wait_vmcnt<0>(); }

 private:
  __device__ const i32* entry(u32 tile, u32 i) const {
    return tokens_.entry(lane_tokens_[i] + tile * Layout::kTokens);
  }
  // Computes the addresses of a tile's rows: values (0) or key ends (1).
  template <u32 i>
  __device__ void set_row(u32 page, u32 tile) {
    const u32 row = tokens_.row(page, lane_tokens_[i] + tile * Layout::kTokens);
    const u8* const base = i == 0 ? tokens_.kv : rope_;
    row_addresses_[i] = reinterpret_cast<u64>(base) + u64{row} * kMlaKey;
    force_vgpr(row_addresses_[i]);
  }
  // Broadcasts the value of lane kLane of 16.
  template <u32 kLane>
  __device__ static u32 spread(u32 value) {
    constexpr int kBroadcast = 0x150 + kLane;
    return static_cast<u32>(
        __builtin_amdgcn_update_dpp(0, static_cast<int>(value), kBroadcast, 0xf, 0xf, true));
  }
  // Sets source and M0 of a load: the first is for key ends, the others for two rows each. One
  // instruction must come between this and the load.
  template <u32 kLoad>
  __device__ void set_load(LdsBytes* stage) {
    constexpr u32 kRow = kLoad == 0 ? 0 : kLoad * 2 - 2;
    u32 offset = own_row_ * Layout::kRopePitch + Layout::kRope;
    if constexpr (kLoad != 0) offset = (own_row_ + kRow) * Layout::kPitch;
    asm volatile("s_add_u32 m0, %0, %1" ::"s"(readfirstlane(lds_address(stage))), "s"(offset)
                 : "scc");
    if constexpr (kLoad == 0) {
      src_ = row_addresses_[1];
    } else {
      const u32 offset_in_row = value_ ^ Layout::swizzle(kRow) * kVecBytes;
      src_ = (u64{spread<kLoad - 1>(static_cast<u32>(row_addresses_[0] >> 32))} << 32 |
              spread<kLoad - 1>(static_cast<u32>(row_addresses_[0]))) +
             offset_in_row;
    }
    force_vgpr(src_);
  }
  template <u32 kLoad>
  __device__ void load() {
    asm volatile("global_load_lds_dwordx4 %0, off" ::"v"(src_) : "memory");
  }

  LdsBytes *lds_, *stage_;
  KvPageTable<kPaged> tokens_;
  u32 own_row_, lane_tokens_[2], value_;
  const u8* rope_;
  u32 pages_[2];
  u64 row_addresses_[2], src_;
};

}  // namespace rfops

#endif
