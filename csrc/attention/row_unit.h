// A unit: 2 kVec elements of a row in one lane, as two vectors. It is rotated by its position
// (RoPE), and stored as it is or to FP8.
//
//     low' = low cos - high sin,  high' = high cos + low sin       of kVec pairs (low, high)
//     fp8(x * (1 / scale)), saturated                              of the caller's scale
//
// Layout. Pairs of `kHalves` (NeoX style) are elements d and d + R / 2 of a row of R: unit u has
// those from kVec u on, and their partners. Pairs of `kNeighbours` (interleaved, GPT-J style) are
// 2 d and 2 d + 1: unit u has elements 2 kVec u and on, as units that are copied have (`kNone`).
// Either way unit u takes the cosines and sines of pairs kVec u to kVec u + kVec - 1.
//
// Guarantees: computed in fp32 and rounded once, to Input; what is stored as FP8 is rounded to
// Input before, so that it has the bits of a row that was stored in between.
// Requires: kVec == 8: rows 16-byte aligned.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/store/row_quant.h"

namespace rfops {

using Index64 = long long;  // of positions and slots

enum class Pairs { kNone, kHalves, kNeighbours };

// The place of a unit of [T, kHeads, elements], by its index.
template <u32 kHeads, u32 kUnitsPerHead>
struct HeadUnit {
  u32 token, head, unit;

  __device__ explicit HeadUnit(u32 index)
      : token(index / (kHeads * kUnitsPerHead)),
        head(index / kUnitsPerHead % kHeads),
        unit(index % kUnitsPerHead) {}
  __device__ u64 row(u32 token_stride, u32 head_stride) const {
    return u64{token} * token_stride + u64{head} * head_stride;
  }
};

// Returns where the row of a position begins; a position outside of the table counts as its last.
template <class Position>
__device__ inline u64 angle_row_offset(Position position, u32 num_positions, u32 row_stride) {
  const u32 row = static_cast<u32>(position), last_row = num_positions - 1;
  return u64{row < last_row ? row : last_row} * row_stride;
}

// The slots of a paged cache; `offset` in elements.
template <bool kNested>
struct CacheSlots {
  u32 num_slots, page, page_stride, slot_stride;

  __device__ bool contains(Index64 slot_idx) const {
    return static_cast<u64>(slot_idx) < num_slots;
  }
  __device__ u64 offset(Index64 slot_idx) const {
    const u32 index = static_cast<u32>(slot_idx);
    if constexpr (!kNested) return u64{index} * page_stride;
    return u64{index / page} * page_stride + u64{index % page} * slot_stride;
  }
};

// Returns 1 / scale, while loads are in flight: the compiler would load the scale where it is used
// (one token, MI355X, estimated: 3.18 us with cold caches, 2.84 so). Without FP8 there is none.
template <bool kFp8>
__device__ inline f32 inverse_scale(const f32* scale) {
  f32 factor = 1.0f;
  if constexpr (kFp8) {
    factor /= *scale;
    force_vgpr(factor);
  }
  return factor;
}

// Cosines and sines of one unit's pairs.
template <class Angle, u32 kVec>
struct UnitAngles {
  RowVec<Angle, kVec> cos, sin;

  __device__ void load(const Angle* cos_row, const Angle* sin_row, u32 unit) {
    cos = reinterpret_cast<const RowVec<Angle, kVec>*>(cos_row)[unit];
    sin = reinterpret_cast<const RowVec<Angle, kVec>*>(sin_row)[unit];
    // Waits for both: the compiler would load one behind the wait for another load.
    force_vgpr(cos), force_vgpr(sin);
  }
};

// Weights of a norm of one unit that is copied.
template <class Weight, u32 kVec>
struct UnitWeights {
  RowVec<Weight, kVec> vec0, vec1;

  __device__ void load(const Weight* row, u32 unit) {
    vec0 = reinterpret_cast<const RowVec<Weight, kVec>*>(row)[2 * unit];
    vec1 = reinterpret_cast<const RowVec<Weight, kVec>*>(row)[2 * unit + 1];
  }
  // Waits for them here: the compiler would load them where they are used, behind a reduction.
  __device__ void keep() { force_vgpr(vec0), force_vgpr(vec1); }
};

// kRotary: elements of a row that rotate.
template <class Input, u32 kVec, u32 kRotary>
class RowUnit {
 public:
  using Vec = RowVec<Input, kVec>;

  __device__ RowUnit(const Input* row, u32 unit, bool in_halves)
      : vec0_(load(row + offset(unit, in_halves, false))),
        vec1_(load(row + offset(unit, in_halves, true))) {}

  // Waits for the elements here: the compiler would load them behind a branch.
  __device__ void keep() { force_vgpr(vec0_), force_vgpr(vec1_); }

  template <bool kInterleaved, class Angle>
  __device__ void rotate(const UnitAngles<Angle, kVec>& angles) {
    const Floats cos = __builtin_convertvector(angles.cos, Floats);
    const Floats sin = __builtin_convertvector(angles.sin, Floats);
    const Floats low = __builtin_convertvector(kInterleaved ? alternate<0>() : vec0_, Floats);
    const Floats high = __builtin_convertvector(kInterleaved ? alternate<1>() : vec1_, Floats);
    const Vec turned_low = narrow<Angle>(__builtin_elementwise_fma(low, cos, -(high * sin)));
    const Vec turned_high = narrow<Angle>(__builtin_elementwise_fma(high, cos, low * sin));
    vec0_ = kInterleaved ? merged<false>(turned_low, turned_high) : turned_low;
    vec1_ = kInterleaved ? merged<true>(turned_low, turned_high) : turned_high;
  }

  // Replaces the row, of which kLanes neighbouring lanes have a unit each, by it over its root mean
  // square, times the weights. Requires: all lanes active.
  template <u32 kLanes, class Weight>
  __device__ void normalise(const UnitWeights<Weight, kVec>& weights, f32 eps) {
    const Floats low = __builtin_convertvector(vec0_, Floats);
    const Floats high = __builtin_convertvector(vec1_, Floats);
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      sum = __builtin_fmaf(low[i], low[i], sum);
      sum = __builtin_fmaf(high[i], high[i], sum);
    }
    constexpr f32 kInverse = 1.0f / (kLanes * 2 * kVec);
    const f32 factor =
        __builtin_amdgcn_rsqf(__builtin_fmaf(sum_over_lanes<kLanes>(sum), kInverse, eps));
    vec0_ = narrow<Weight>(low * factor * __builtin_convertvector(weights.vec0, Floats));
    vec1_ = narrow<Weight>(high * factor * __builtin_convertvector(weights.vec1, Floats));
  }

  __device__ void store(Input* row, u32 unit, bool in_halves) const {
    *reinterpret_cast<Vec*>(row + offset(unit, in_halves, false)) = vec0_;
    *reinterpret_cast<Vec*>(row + offset(unit, in_halves, true)) = vec1_;
  }
  // Stores to the row that begins `row` elements from `rows` on, of Input or of FP8.
  template <bool kFp8>
  __device__ void store_as(void* rows, u64 row, u32 unit, bool in_halves, f32 factor) const {
    if constexpr (kFp8) {
      u8* const dst = static_cast<u8*>(rows) + row;
      store_fp8(dst + offset(unit, in_halves, false), vec0_, factor);
      store_fp8(dst + offset(unit, in_halves, true), vec1_, factor);
    } else {
      store(static_cast<Input*>(rows) + row, unit, in_halves);
    }
  }

 private:
  using Floats = RowVec<f32, kVec>;

  static __device__ u32 offset(u32 unit, bool in_halves, bool is_second) {
    const u32 begin = in_halves ? kVec * unit : 2 * kVec * unit;
    return begin + (!is_second ? 0 : in_halves ? kRotary / 2 : kVec);
  }
  static __device__ Vec load(const Input* src) { return *reinterpret_cast<const Vec*>(src); }
  // Rounds results of arithmetic on Input and Other.
  template <class Other>
  static __device__ Vec narrow(Floats values) {
    return rounded_to<Input, kVec, Other>(values);
  }

  // Returns the even or the odd elements of both vectors.
  template <u32 kOdd>
  __device__ Vec alternate() const {
    Vec values;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      const u32 elem = 2 * i + kOdd;
      values[i] = elem < kVec ? vec0_[elem % kVec] : vec1_[elem % kVec];
    }
    return values;
  }
  // Returns the first or the second vector of the pairs in order.
  template <bool kSecond>
  static __device__ Vec merged(const Vec& low, const Vec& high) {
    Vec values;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      const u32 elem = kSecond ? kVec + i : i;
      values[i] = elem % 2 == 0 ? low[elem / 2] : high[elem / 2];
    }
    return values;
  }

  static __device__ void store_fp8(u8* dst, const Vec& values, f32 factor) {
    const auto element = [&](u32 i) { return static_cast<f32>(values[i % kVec]) * factor; };
    if constexpr (kVec == 1) {
      *dst = static_cast<u8>(fp8_saturated(element(0), 0.0f, 0.0f, 0.0f));
    } else {
      static_assert(kVec == 8);
      *reinterpret_cast<U32x2*>(dst) = {
          fp8_saturated(element(0), element(1), element(2), element(3)),
          fp8_saturated(element(4), element(5), element(6), element(7))};
    }
  }

  Vec vec0_, vec1_;
};

}  // namespace rfops
