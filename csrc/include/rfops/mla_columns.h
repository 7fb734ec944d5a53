// What is alike in a wave's 32 columns (a query's head each) of attention with a latent cache,
// whichever matrix instructions compute them: mla_columns32.h on gfx950, mla_columns16.h on gfx942.
//
// A wave has Q, scores and all of the result in registers, the result alone 256 of 512. While the
// matrix cores make the scores of one tile, the weights of the tile before are computed, a piece
// between two instructions; then its values are added.
//
// Weights are 2^(score - most), and `most` follows the scores only where it must: when one is
// 2^kRoom above it. So the result is almost never multiplied, and lanes of a column compare what
// they have only then.
#pragma once

#include "rfops/lanes.h"
#include "rfops/mla_parts.h"
#include "rfops/mla_slot.h"

namespace rfops {

constexpr u32 kWaveColumns = 32;
constexpr f32 kRoom = 8.0f;

__device__ inline f32 max_of(f32 a, f32 b) { return __builtin_fmaxf(a, b); }
// Without the instructions by which fmax makes NaNs quiet: none here are loud.
__device__ inline f32 max_of(f32 a, f32 b, f32 c) {
  f32 most;
  asm("v_max3_f32 %0, %1, %2, %3" : "=v"(most) : "v"(a), "v"(b), "v"(c));
  return most;
}

// Of a column, in all lanes that have some of it; `sum` is of the lane's own tokens. Until the
// first tile's scores `most` is 0, whatever they are.
struct MlaWeights {
  f32 most = 0.0f, sum = 0.0f;

  // `found` is the most of a tile, over all lanes, above `most`. Scores of that tile are to become
  // smaller by `rise`; the result is to be multiplied by what is given back.
  __device__ f32 raise(f32 found, bool is_first, f32& rise) {
    const f32 wanted = most + (is_first ? found : max_of(found, 0.0f));
    const f32 next = found == -__builtin_inff() ? most : wanted;
    rise = next - most;  // as it was rounded
    most = next;
    const f32 decay = is_first ? 0.0f : __builtin_amdgcn_exp2f(-rise);
    sum *= decay;
    return decay;
  }
  __device__ MlaTotals totals(f32 all) const { return {all == 0.0f ? kLowest : most, all}; }
};

// When `most` must follow: some lane has a score above it by `room`, or it is the first tile.
class MlaRoom {
 public:
  __device__ bool is_first() const { return room_ < 0.0f; }
  __device__ bool is_over(f32 found) const {
    return __builtin_amdgcn_ballot_w64(found >= room_) != 0;
  }
  __device__ void leave() { room_ = kRoom; }
  // What no room is too little for: before the first tile.
  static constexpr f32 kNothing = __builtin_nanf("");

 private:
  f32 room_ = -__builtin_inff();
};

#define RFOPS_SELDOM(condition) __builtin_expect(condition, 0)

// Four of a result's registers times `factor`, where 0 times anything is 0. By assembly, as the
// compiler would have all of a result where arithmetic has its registers.
__device__ inline void scale_accumulators(f32 (&four)[4], f32 factor) {
  f32 a, b, c, d;
  asm volatile(
      "v_accvgpr_read_b32 %0, %4\n\tv_accvgpr_read_b32 %1, %5\n\t"
      "v_accvgpr_read_b32 %2, %6\n\tv_accvgpr_read_b32 %3, %7\n\t"
      "v_mul_legacy_f32 %0, %8, %0\n\tv_mul_legacy_f32 %1, %8, %1\n\t"
      "v_mul_legacy_f32 %2, %8, %2\n\tv_mul_legacy_f32 %3, %8, %3\n\t"
      "v_accvgpr_write_b32 %4, %0\n\tv_accvgpr_write_b32 %5, %1\n\t"
      "v_accvgpr_write_b32 %6, %2\n\tv_accvgpr_write_b32 %7, %3"
      : "=&v"(a), "=&v"(b), "=&v"(c), "=&v"(d), "+a"(four[0]), "+a"(four[1]), "+a"(four[2]),
        "+a"(four[3])
      : "v"(factor));
}

// Zeros in all accumulation registers, at a kernel's beginning: the result's first turn adds to
// what they hold (and multiplies it by 0 later), which nobody might have written.
#define RFOPS_TEN(ten)                                                                \
  "a" #ten "0", "a" #ten "1", "a" #ten "2", "a" #ten "3", "a" #ten "4", "a" #ten "5", \
      "a" #ten "6", "a" #ten "7", "a" #ten "8", "a" #ten "9"
__device__ inline void clear_accumulators() {
  asm volatile(".set at, 0\n\t.rept 256\n\tv_accvgpr_write_b32 a[at], 0\n\t.set at, at + 1\n\t.endr"
               :
               :
               : RFOPS_TEN(), RFOPS_TEN(1), RFOPS_TEN(2), RFOPS_TEN(3), RFOPS_TEN(4), RFOPS_TEN(5),
                 RFOPS_TEN(6), RFOPS_TEN(7), RFOPS_TEN(8), RFOPS_TEN(9), RFOPS_TEN(10),
                 RFOPS_TEN(11), RFOPS_TEN(12), RFOPS_TEN(13), RFOPS_TEN(14), RFOPS_TEN(15),
                 RFOPS_TEN(16), RFOPS_TEN(17), RFOPS_TEN(18), RFOPS_TEN(19), RFOPS_TEN(20),
                 RFOPS_TEN(21), RFOPS_TEN(22), RFOPS_TEN(23), RFOPS_TEN(24), "a250", "a251", "a252",
                 "a253", "a254", "a255");
}
#undef RFOPS_TEN

// A lane's part of a row of q, in its sign where scores are to be turned round.
template <bool kQueryFp8>
__device__ inline Bf16x8 query_at(const void* all, u64 at, bool is_negative) {
  U32x4 eight;
  if constexpr (kQueryFp8) {
    const U32x2 bytes = *reinterpret_cast<const U32x2*>(static_cast<const u8*>(all) + at);
    eight = __builtin_bit_cast(U32x4, widen_8(bytes[0], bytes[1]));
  } else {
    eight = *reinterpret_cast<const U32x4*>(static_cast<const bf16*>(all) + at);
  }
  eight ^= is_negative ? 0x80008000u : 0u;
  return __builtin_bit_cast(Bf16x8, eight);
}

}  // namespace rfops
