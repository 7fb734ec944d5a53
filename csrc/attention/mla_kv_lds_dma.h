// Direct-to-LDS loads of KV tiles (mla_kv_cache.h), two stages per wave (gfx950).
//
// LDS layout. 1 KiB of values (one bf16 token or two FP8 tokens) every 1,056 bytes, so that rows
// are 8 banks apart; the padding is not loaded. For FP8, the odd token of a pair has adjacent
// 16-byte chunks swapped, and tokens 16 to 31 begin 128 bytes later. The last 64 elements of the
// keys follow, in rows of 128 or 64 bytes with swizzled chunks. The swizzle is in the addresses
// that lanes load from. Reads of K (16 bytes) and of V (8 bytes, transposed) have no bank conflict.
#pragma once

#include "attention/mla_masked.h"

#if defined(__gfx950__)

namespace rfops {

template <bool kFp8, bool kPaged, bool kRope>
class DirectTiles {
  using Row = MlaRow<kFp8>;
  static constexpr u32 kPitch = 1056, kPerLoad = kFp8 ? 2 : 1;  // tokens of a KiB of values
  static constexpr u32 kHalfBytes = 8 * kPitch + 128;           // from FP8 token 0 to 16
  static constexpr u32 kValues = 16 * kPitch + (kFp8 ? 128 : 0);
  static constexpr u32 kRopeBytes = 64 * Row::kElement;  // of a row, behind the values
  static constexpr u32 kRopeChunks = kRopeBytes / kVecBytes, kRopeRows = 64 / kRopeChunks;
  static constexpr u32 kTile = kValues + Row::kTokens * kRopeBytes;
  static constexpr u32 kWaves = 4;
  static constexpr u32 kEntries = 256;  // bytes of what a wave loads of the list of pages
  static constexpr u32 kLoads = 16 + Row::kTokens / kRopeRows;
  static_assert(kLoads == 18, "waits count on it");

 public:
  static constexpr u32 kLds = 2 * (kTile + kEntries);  // of a wave
  static constexpr bool kKnowsLast = true;             // and loads nothing beyond
  static constexpr bool kPrefetchesPages = true;
  static constexpr bool kSharesValues = true;  // a wave reads other waves' first tiles
  // Offsets of a wave's P and statistics that all waves read: after q, which is kept in the second
  // stage.
  static constexpr u32 kWeights = kTile + (kMlaOperands + kWaves - 1) / kWaves * 1024;
  static constexpr u32 kTotals = kWeights + Row::kHalves * kWaveSize * 8;
  static_assert(kTotals + kQRowsPerTile * 8 <= 2 * kTile);

  __device__ DirectTiles(LdsBytes* wave_lds, KvPageTable<kPaged> tokens, u32 token_begin, u32 step)
      : wave_lds_(wave_lds), tokens_(tokens), token_begin_(token_begin), step_(step) {}

  // Issues the loads of the first two tiles' page entries.
  __device__ void issue_page_loads() {
    load_entries(0);
    load_entries(1);
  }
  // Issues this wave's share of the q fragments, into its second stage. After the page entries,
  // which they would delay.
  __device__ void issue_q_loads(const void* q, u64 row) const {
    const u32 wave = wave_id();
    const bf16* const q_row = static_cast<const bf16*>(q) + row * kMlaKey;
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; i += kWaves) {
      if (i + kWaves <= kMlaOperands || i + wave < kMlaOperands) {
        load_lds_b128(reinterpret_cast<const u8*>(q_row + Row::element(i + wave, lane_ / 16)),
                      wave_lds_ + kTile + i / kWaves * 1024);
      }
    }
  }
  // Waits for all but the newest kCount loads.
  template <u32 kCount = 0>
  __device__ static void wait() {
    asm volatile("s_waitcnt vmcnt(%0)" ::"n"(kCount) : "memory");
  }

  // Computes LDS read offsets while loads are in flight, then waits for the page entries: only
  // loads of q are left then, four or five per wave.
  template <bool kSharesQuery>
  __device__ void wait_pages() {
    force_vgpr(lane_);
    const u32 lane = lane_, g = lane / 16, c = lane % 16;
    const u32 odd = kFp8 ? c % 2 : 0;
    const u32 token = kFp8 ? 4 * g + c / 2 % 4 : 4 * g + c / 4;  // whose values it reads
    if constexpr (kFp8) {
      key_ = c / 2 * kPitch + odd * 512 + (g ^ odd) * 16;
      rope_ = kValues + c * kRopeBytes + (g ^ rope_swizzle(c)) * 16;
      value_ = c / 8 * kHalfBytes + token / 2 * kPitch + token % 2 * (512 + 16) + c % 2 * 8;
      odd_value_ = value_ - token % 2 * 32;  // of odd tiles
    } else {
      key_ = c * kPitch + g * 16;
      rope_ = kValues + c * kRopeBytes + (g ^ rope_swizzle(c)) * 16;
      value_ = odd_value_ = token * kPitch + c % 4 * 8;
    }
    force_vgpr(key_), force_vgpr(rope_), force_vgpr(value_), force_vgpr(odd_value_);
    if constexpr (!kSharesQuery) return wait();
    if (wave_id() < kMlaOperands % kWaves) return wait<kMlaOperands / kWaves + 1>();
    wait<kMlaOperands / kWaves>();
  }
  // Waits for this wave's share of q; a tile may have been issued after it.
  __device__ static void wait_query(bool has_tile) {
    if (has_tile) return wait<kLoads>();
    wait();
  }
  // Reads q after all waves have waited for their shares.
  __device__ static void read_query(const LdsBytes* all_lds, MlaQuery& q) {
    const u32 lane = lane_id_in_vgpr();  // after the first loads are issued
    const LdsBytes* const lane_src = all_lds + kTile + lane * kVecBytes;
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; ++i) {
      q[i] = __builtin_bit_cast(Bf16x8,
                                lds_load_b128(lane_src + i % kWaves * kLds + i / kWaves * 1024));
    }
#pragma unroll
    for (u32 i = 0; i < kMlaOperands; ++i) force_vgpr(q[i]);
  }

  // Issues the loads of the first tile; call after wait_pages().
  __device__ void prime() {
    const Entries entries = read_entries(0);
    wait_lgkmcnt();
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) load_rows(0, i, entries);
    if constexpr (kRope) angles_ = tokens_.angles_of(first_token(0) + lane_id() % 16);
  }

  __device__ u32 first_token(u32 tile) const { return token_begin_ + tile * step_; }

  // Waits for tile `tile` and computes its scores. The loads of the next tile are issued in between
  // one by one, because more at once exceeds what a CU can have in flight and delays the other
  // waves.
  template <bool kHasNext, bool kReadsValues = true>
  __device__ void scores(u32 tile, const MlaQuery& q, F32x4 (&s)[Row::kHalves]) {
    constexpr u32 kKeyChunks = Row::kBytes / 64, kChunks = Row::kValueBytes / 64;
    static_assert(Row::kHalves * kKeyChunks == kLoads, "a load for each read");
    // For the last tile, scores of the first half are computed while the second half is in flight.
    constexpr bool kByHalves = kFp8 && !kHasNext;
    base_ = wave_lds_ + tile % 2 * kTile;
    wait<kByHalves ? kLoads / 2 : 0>();  // this tile, and the next one's entries
    if constexpr (kRope)
      force_vgpr(angles_.cos), force_vgpr(angles_.sin);  // no wait of the compiler's own later
    Entries entries;
    if constexpr (kHasNext) entries = read_entries(tile + 1);
    U32x4 k[Row::kHalves][kKeyChunks];
    const auto read_keys = [&](u32 h) {
      const LdsBytes* const key = base_ + key_ + h * kHalfBytes;
#pragma unroll
      for (u32 i = 0; i < kKeyChunks; ++i) {
        const LdsBytes* src = i < kChunks ? key + i * 64 : base_ + rope_ + h * 16 * kRopeBytes;
        // For bf16, the second half of a row: bit 2 of its chunk index is inverted.
        if (i == kChunks + 1) src = base_ + (rope_ ^ 64);
        k[h][i] = lds_load_b128(src);
      }
    };
    read_keys(0);
    if constexpr (Row::kHalves == 2 && !kByHalves) read_keys(1);
    sched_barrier();  // all of it is on its way before the first is waited for
    if constexpr (kHasNext) {
      // LDS reads complete in order, so those of the previous tile's values, which is overwritten,
      // are done.
      asm volatile("s_waitcnt lgkmcnt(15)" ::: "memory");
      load_entries(tile + 2);
    }
#pragma unroll
    for (u32 h = 0; h < Row::kHalves; ++h) {
      if (kByHalves && h == 1) {
        sched_barrier();
        wait();
        read_keys(1);
        sched_barrier();
      }
      F32x4 acc[2] = {};
      Bf16x8 k_bf16[kKeyChunks][2];  // one ahead of products, as in accumulate_pv()
      const auto widen = [&](u32 i) {
        k_bf16[i][0] = fp8x8_to_bf16x8(k[h][i][0], k[h][i][1]);
        k_bf16[i][1] = fp8x8_to_bf16x8(k[h][i][2], k[h][i][3]);
        sched_barrier();
      };
      if constexpr (kFp8) widen(0);
#pragma unroll
      for (u32 i = 0; i < kKeyChunks; ++i) {
        if (kRope && i == kChunks) rotate(k[h][i], k[h][i + 1], angles_);
        if constexpr (kFp8) {
          if (i + 1 < kKeyChunks) widen(i + 1);
          acc[0] = mfma_bf16_16x16x32(k_bf16[i][0], q[2 * i], acc[0]);
          acc[1] = mfma_bf16_16x16x32(k_bf16[i][1], q[2 * i + 1], acc[1]);
          sched_barrier();
        } else {
          acc[i % 2] = mfma_bf16_16x16x32(__builtin_bit_cast(Bf16x8, k[h][i]), q[i], acc[i % 2]);
        }
        if constexpr (kHasNext) load_rows(tile + 1, h * kKeyChunks + i, entries);
      }
      s[h] = acc[0] + acc[1];
    }
    if constexpr (kHasNext && kRope)
      angles_ = tokens_.angles_of(first_token(tile + 1) + lane_id() % 16);
    if constexpr (kReadsValues) read_values();  // they arrive while the caller works on scores
  }

  // Replaces NaN and inf of masked tokens' values in the last tile, and reads the values again.
  __device__ void mask_values(u32 tokens) {
    make_finite(tokens);
    read_values();
  }
  // The same before the values are read.
  __device__ void make_finite(u32 tokens) const {
    make_values_finite<kFp8>(tokens, [&](u32 token) {
      if constexpr (!kFp8) return base_ + token * kPitch;
      return base_ + token / 16 * kHalfBytes + token % 16 / 2 * kPitch + token % 2 * 512;
    });
  }

  __device__ void accumulate_pv(const Bf16x4 (&p)[Row::kHalves], MlaSums& o) const {
    if constexpr (kFp8) {
      const Bf16x8 p_pair = concat(p[0], p[1]);
      // Converted two ahead: an MFMA waits 8 clk for an operand converted just before it, and the
      // conversion would wait for the previous MFMA: 40 clk per MFMA, 24 with this distance.
      constexpr u32 kPrefetch = 2;
      Bf16x8 v_bf16[kMlaValueTiles];
      const auto widen = [&](u32 d) {
        v_bf16[d] = fp8x8_to_bf16x8(values_[d][0], values_[d][1]);
        sched_barrier();
      };
#pragma unroll
      for (u32 d = 0; d < kPrefetch; ++d) widen(d);
#pragma unroll
      for (u32 d = 0; d < kMlaValueTiles; ++d) {
        if (d + kPrefetch < kMlaValueTiles) widen(d + kPrefetch);
        o[d] = mfma_bf16_16x16x32(v_bf16[d], p_pair, o[d]);
        sched_barrier();
      }
    } else {
#pragma unroll
      for (u32 d = 0; d < kMlaValueTiles; ++d) {
        o[d] = mfma_bf16_16x16x16(__builtin_bit_cast(Bf16x4, values_[d]), p[0], o[d]);
      }
    }
  }

  // Values of the first tile of each of `tiles` waves: eight quads of this wave's 128 columns.
  using SharedValues = U32x2[kWaves][8];
  __device__ void read_shared(const LdsBytes* all_lds, u32 tiles, SharedValues& v) const {
    const u32 slice = wave_id() * 8 * (kFp8 ? 16 : 32);
#pragma unroll
    for (u32 w = 0; w < kWaves; ++w) {
      if (!is_read(w, tiles)) continue;
      const LdsBytes* const tile = all_lds + (w < tiles ? w : 0) * kLds + slice;
#pragma unroll
      for (u32 d = 0; d < 8; ++d) v[w][d] = read_value(tile + value_, tile + odd_value_, d);
    }
    sched_barrier();
  }
  __device__ static void add_shared(const SharedValues& v, u32 tiles,
                                    const Bf16x4 (&p)[kWaves][Row::kHalves], F32x4 (&o)[8]) {
    if constexpr (kFp8) {
#pragma unroll
      for (u32 w = 0; w < kWaves; ++w) {
        if (!is_read(w, tiles)) continue;
        const Bf16x8 p_pair = concat(p[w][0], p[w][1]);
#pragma unroll
        for (u32 d = 0; d < 8; ++d)
          o[d] = mfma_bf16_16x16x32(fp8x8_to_bf16x8(v[w][d][0], v[w][d][1]), p_pair, o[d]);
      }
    } else {
#pragma unroll
      for (u32 w = 0; w < kWaves; w += 2) {
        if (!is_read(w, tiles)) continue;
        const Bf16x8 p_pair = concat(p[w][0], p[w + 1][0]);
#pragma unroll
        for (u32 d = 0; d < 8; ++d) {
          const auto v_lo = __builtin_bit_cast(Bf16x4, v[w][d]);
          o[d] = mfma_bf16_16x16x32(concat(v_lo, __builtin_bit_cast(Bf16x4, v[w + 1][d])), p_pair,
                                    o[d]);
        }
      }
    }
  }

  // Calls fn(x, quad) for the eight quads of a lane in a slice of 128 output columns.
  template <class Fn>
  __device__ static void each_quad(const MlaSums& o, u32 slice, Fn fn) {
#pragma unroll
    for (u32 x = 0; x < 8; ++x) fn(x, o[slice * 8 + x]);
  }
  // Returns the first column of the x-th quad.
  __device__ static u32 quad_at(u32 x, u32 lane) { return x * 16 + lane / 16 * 4; }

 private:
  struct Entries {
    U32x4 values[4];  // pages of the tokens whose values this lane loads
    u32 rope[2];
  };

  // Swizzle: as in lds_swizzle.h for rows of 128 bytes; for 64 bytes, any four rows of a phase
  // differ.
  __device__ static u32 rope_swizzle(u32 row) {
    return kFp8 ? (4 - row / 4 % 4) % 4 : lds_swizzle(row % 16);
  }

  // Returns whether the values of wave w's first tile are read; a short split skips some.
  __device__ static bool is_read(u32 w, u32 tiles) {
    constexpr u32 kAlwaysRead = kFp8 ? 1 : 2;
    return w < kAlwaysRead || tiles > kAlwaysRead;
  }

  __device__ void read_values() {
    sched_barrier();
#pragma unroll
    for (u32 d = 0; d < kMlaValueTiles; ++d)
      values_[d] = read_value(base_ + value_, base_ + odd_value_, d);
    sched_barrier();
  }
  // Reads the fragment of output tile d.
  __device__ static U32x2 read_value(const LdsBytes* even, const LdsBytes* odd, u32 d) {
    if constexpr (kFp8) return lds_read_transposed<true>((d % 2 ? odd : even) + d * 16);
    return lds_read_transposed<false>(even + d * 32);
  }

  // M0 needs one instruction between its write and its use.
  __device__ static void load_lds_b128(const u8* src, const LdsBytes* lds_dst) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tglobal_load_lds_dwordx4 %1, off" ::"s"(
                     readfirstlane(lds_address(lds_dst))),
                 "v"(src)
                 : "memory");
  }
  __device__ static void load_lds_b32(const i32* src, const LdsBytes* lds_dst) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tglobal_load_lds_dword %1, off" ::"s"(
                     readfirstlane(lds_address(lds_dst))),
                 "v"(src)
                 : "memory");
  }

  __device__ LdsBytes* entries_of(u32 tile) const {
    return wave_lds_ + 2 * kTile + tile % 2 * kEntries;
  }
  // Token t's entry is word t; for FP8, even tokens come before odd ones.
  __device__ void load_entries(u32 tile) {
    const u32 lane_token = lane_ % Row::kTokens;
    const u32 token = kFp8 ? lane_token % 16 * 2 + lane_token / 16 : lane_token;
    load_lds_b32(tokens_.entry(first_token(tile) + token), entries_of(tile));
  }
  __device__ Entries read_entries(u32 tile) const {
    const LdsBytes* const entries = entries_of(tile);
    const u32 lane = lane_;
    Entries loaded;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      loaded.values[i] = lds_load_b128(entries + (kFp8 ? lane / 32 * 64 : 0) + i * 16);
    }
#pragma unroll
    for (u32 i = 0; i < kLoads - 16; ++i) {
      const u32 token = i * kRopeRows + lane / kRopeChunks;
      const u32 word = kFp8 ? token % 2 * 16 + token / 2 : token;
      loaded.rope[i] = *reinterpret_cast<const RFOPS_LDS u32*>(entries + word * 4);
    }
    return loaded;
  }

  // Returns which of the kLoads is issued at `issue_idx`: for FP8, those of the first 16 tokens
  // come first.
  __device__ static u32 load_index(u32 issue_idx) {
    constexpr u32 kOfHalf = kLoads / 2 - 1;  // of values
    if (!kFp8 || issue_idx < kOfHalf || issue_idx == kLoads - 1) return issue_idx;
    return issue_idx == kOfHalf ? 2 * kOfHalf : issue_idx - 1;
  }
  __device__ void load_rows(u32 tile, u32 issue_idx, const Entries& entries) const {
    const u32 i = load_index(issue_idx);
    LdsBytes* const lds_dst = wave_lds_ + tile % 2 * kTile;
    const u32 lane = lane_, token_begin = first_token(tile);
    if (i < 16) {
      const u32 odd_token = kFp8 ? lane / 32 : 0;  // of two tokens
      const u32 chunk = kFp8 ? (lane % 32) ^ odd_token : lane;
      const u32 row =
          tokens_.row(entries.values[i / 4][i % 4], token_begin + i * kPerLoad + odd_token);
      load_lds_b128(tokens_.kv + (u64{row} * Row::kBytes + chunk * kVecBytes),
                    lds_dst + i * kPitch + (kFp8 && i >= 8 ? 128 : 0));
    } else {
      const u32 token = (i - 16) * kRopeRows + lane / kRopeChunks;
      const u32 row = tokens_.row(entries.rope[i - 16], token_begin + token);
      const u32 chunk = (lane % kRopeChunks) ^ rope_swizzle(token);
      load_lds_b128(tokens_.kv + (u64{row} * Row::kBytes + Row::kValueBytes + chunk * kVecBytes),
                    lds_dst + kValues + (i - 16) * 1024);
    }
  }

  LdsBytes *wave_lds_, *base_ = nullptr;
  KvPageTable<kPaged> tokens_;
  u32 token_begin_, step_, lane_ = lane_id();
  u32 key_, rope_, value_, odd_value_;
  U32x2 values_[kMlaValueTiles];
  RopeAngles angles_;
};

}  // namespace rfops

#endif
