// Online softmax and Q loads for 32 query rows of a wave; shared by mla_wave_gfx942.h,
// mla_wave_gfx950.h and mla_wave_fp8.h.
//
// A wave has Q, the scores and the whole output in registers, the output alone in 256 of 512. While
// MFMAs compute the scores of one tile, the P of the previous tile is computed in their issue
// slots; then its values are accumulated.
//
// P = exp2(S - row_max). row_max is updated lazily, when a score exceeds it by
// kRescaleThresholdLog2, which bounds output values by 2^80. So the output is almost never
// rescaled, and the lanes of a row are compared only then.
#pragma once

#include "attention/mla_kv_stage.h"
#include "attention/mla_masked.h"
#include "attention/mla_partials.h"
#include "rfops/wave/reduce.h"

namespace rfops {

constexpr u32 kQRowsPerWave = 32;
constexpr f32 kRescaleThresholdLog2 = 32.0f;

// Inline assembly, because fmax adds instructions that quiet NaNs; there are no signalling NaNs
// here.
__device__ inline f32 max_of(f32 a, f32 b, f32 c) {
  f32 result;
  asm("v_max3_f32 %0, %1, %2, %3" : "=v"(result) : "v"(a), "v"(b), "v"(c));
  return result;
}

// Statistics of one query row, replicated in all its lanes; `sum` covers only this lane's tokens.
// row_max is 0 until the first tile's scores.
struct OnlineSoftmax {
  f32 row_max = 0.0f, sum = 0.0f;

  // `tile_max`: maximum of a tile over all lanes, relative to row_max. Scores of the tile must be
  // lowered by `max_delta`; returns the factor that rescales the output.
  __device__ f32 update_max(f32 tile_max, bool is_first, f32& max_delta) {
    const f32 raised_max = row_max + (is_first ? tile_max : max_of(tile_max, 0.0f));
    const f32 next = tile_max == -__builtin_inff() ? row_max : raised_max;
    max_delta = next - row_max;  // as it was rounded
    row_max = next;
    const f32 rescale_factor = is_first ? 0.0f : __builtin_amdgcn_exp2f(-max_delta);
    sum *= rescale_factor;
    return rescale_factor;
  }
  __device__ SoftmaxStats totals(f32 row_sum) const {
    return {row_sum == 0.0f ? kMinScore : row_max, row_sum};
  }
};

// Decides when row_max is updated: a lane has a score above the threshold, or the tile is the
// first.
class RescaleThreshold {
 public:
  __device__ bool is_first() const { return threshold_ < 0.0f; }
  __device__ bool is_over(f32 tile_max) const {
    return __builtin_amdgcn_ballot_w64(tile_max >= threshold_) != 0;
  }
  // Sets the threshold. Returns whether this was the first tile, in an SGPR.
  __device__ u32 leave() {
    const u32 was_first = __builtin_amdgcn_readfirstlane(is_first() ? 1 : 0);
    threshold_ = kRescaleThresholdLog2;
    return was_first;
  }
  // tile_max before the first tile: exceeds no threshold.
  static constexpr f32 kNothing = __builtin_nanf("");

 private:
  f32 threshold_ = -__builtin_inff();
};

// Token of register r of a 32-row MFMA result, in the lower half of the lanes.
__device__ constexpr u32 column_token(u32 r) { return r / 4 * 8 + r % 4; }

#define RFOPS_UNLIKELY(condition) __builtin_expect(condition, 0)

// Multiplies four accumulators by `factor`, or none if they are zeros. Inline assembly, because the
// compiler would move the accumulators from AGPRs to VGPRs and copy all of them at the branch.
__device__ inline void scale_accumulators(f32 (&v4)[4], f32 factor, u32 are_zeros) {
  f32 a, b, c, d;
  asm volatile(
      "s_cmp_lg_u32 %9, 0\n\ts_cbranch_scc1 zeros%=\n\t"
      "v_accvgpr_read_b32 %0, %4\n\tv_accvgpr_read_b32 %1, %5\n\t"
      "v_accvgpr_read_b32 %2, %6\n\tv_accvgpr_read_b32 %3, %7\n\t"
      "v_mul_f32 %0, %8, %0\n\tv_mul_f32 %1, %8, %1\n\t"
      "v_mul_f32 %2, %8, %2\n\tv_mul_f32 %3, %8, %3\n\t"
      "v_accvgpr_write_b32 %4, %0\n\tv_accvgpr_write_b32 %5, %1\n\t"
      "v_accvgpr_write_b32 %6, %2\n\tv_accvgpr_write_b32 %7, %3\nzeros%=:"
      : "=&v"(a), "=&v"(b), "=&v"(c), "=&v"(d), "+a"(v4[0]), "+a"(v4[1]), "+a"(v4[2]), "+a"(v4[3])
      : "v"(factor), "s"(are_zeros)
      : "scc");
}

// Rescales the whole output.
template <u32 kTiles, class Tile>
__device__ inline void scale_output(Tile (&acc)[kTiles], f32 factor, u32 are_zeros) {
  static_for<kTiles * 4>([&](auto i) {
    Tile& tile = acc[i / 4];
    constexpr u32 kRegBegin = i % 4 * 4;
    f32 v4[4] = {tile[kRegBegin], tile[kRegBegin + 1], tile[kRegBegin + 2], tile[kRegBegin + 3]};
    scale_accumulators(v4, factor, are_zeros);
    tile[kRegBegin] = v4[0], tile[kRegBegin + 1] = v4[1];
    tile[kRegBegin + 2] = v4[2], tile[kRegBegin + 3] = v4[3];
  });
}

// Ends the accumulation: waits for the last MFMA, so that the compiler may read the output.
template <u32 kTiles, class Tile>
__device__ inline void finish_output(Tile (&acc)[kTiles]) {
  asm volatile("s_nop 15\n\ts_nop 3");
  static_for<kTiles>([&](auto t) {
    Tile& tile = acc[t];
    asm volatile("" : "+a"(tile));
  });
}

__device__ inline F32x4 from_accumulators(F32x4 v4) {
  f32 a, b, c, d;
  asm volatile(
      "v_accvgpr_read_b32 %0, %4\n\tv_accvgpr_read_b32 %1, %5\n\t"
      "v_accvgpr_read_b32 %2, %6\n\tv_accvgpr_read_b32 %3, %7"
      : "=&v"(a), "=&v"(b), "=&v"(c), "=v"(d)
      : "a"(v4[0]), "a"(v4[1]), "a"(v4[2]), "a"(v4[3]));
  return {a, b, c, d};
}

// Masks the scores of one query row from `kv_end` on. Returns bit r if register r had such a score
// that was not finite.
template <u32 kRegisters, class Scores>
__device__ inline u32 mask_column(Scores& s, i32 token_begin, i32 kv_end) {
  const u32 lane = lane_id_in_vgpr();  // few tiles are masked
  const i32 g = static_cast<i32>(lane / 32);
  u32 not_finite = 0;
#pragma unroll
  for (u32 r = 0; r < kRegisters; ++r) {
    const i32 token = token_begin + static_cast<i32>(column_token(r)) + 4 * g;
    const bool is_visible = token < kv_end;
    not_finite |= !is_visible && !is_finite(s[r]) ? u32{1} << r : 0;
    f32 masked = is_visible ? s[r] : -__builtin_inff();
    force_vgpr(not_finite),
        force_vgpr(masked);  // otherwise all masks are live at once, which are more than SGPRs
    s[r] = masked;
  }
  return not_finite;
}

// Loads Q of a wave: kBytesPerLoad bytes per lane of rows lane / 4 and 16 + lane / 4; four lanes
// load adjacent bytes, because 32 rows at once would take the L1 four times as long. chunk() waits
// for the loads.
constexpr u32 kQueryRows = 2;
__device__ constexpr u32 query_column(u32 lane, u32 n) { return lane / 4 + n * 16; }
struct WaveQuery {
  const void* q;
  f32 scale;  // of scores
  u64 rows[kQueryRows];
};
template <u32 kElement, u32 kBytesPerLoad>
class QueryLoads {
  using Raw = u32 __attribute__((ext_vector_type(kBytesPerLoad / 4)));

 public:
  static constexpr u32 kCount = kMlaKey * kElement / (4 * kBytesPerLoad) * kQueryRows;

  __device__ void issue(const WaveQuery& query) {
    const u8* src[kQueryRows];
    static_for<kQueryRows>([&](auto n) {
      const u8* const row_ptr =
          static_cast<const u8*>(query.q) + query.rows[n] * (kMlaKey * kElement);
      src[n] = pointer_in_vgpr(row_ptr + lane_id() % 4 * kBytesPerLoad);
    });
    static_for<kCount>([&](auto i) {
      raw_[i] =
          *reinterpret_cast<const Raw*>(src[i % kQueryRows] + i / kQueryRows * (4 * kBytesPerLoad));
    });
    asm volatile("" ::: "memory");  // asked for here
    sched_barrier();
  }
  // Returns 16 bytes of row i % 2, converted to bf16 if fewer were loaded.
  template <u32 i>
  __device__ U32x4 chunk() const {
    if constexpr (kBytesPerLoad == kVecBytes) return raw_[i];
    if constexpr (kBytesPerLoad != kVecBytes)
      return __builtin_bit_cast(U32x4, fp8x8_to_bf16x8(raw_[i][0], raw_[i][1]));
  }

 private:
  Raw raw_[kCount];
};

// Flips the signs of Q (`bits` of each word) if the scale is negative.
template <u32 kCount, class Operand>
__device__ inline void negate_if(Operand (&q_frags)[kCount], f32 scale, u32 bits) {
  if (RFOPS_UNLIKELY(readfirstlane(__builtin_bit_cast(u32, scale)) >> 31 != 0)) {
    static_for<kCount>([&](auto i) {
      q_frags[i] = __builtin_bit_cast(Operand, __builtin_bit_cast(U32x4, q_frags[i]) ^ bits);
    });
  }
  static_for<kCount>([&](auto i) { force_vgpr(q_frags[i]); });
}

}  // namespace rfops
