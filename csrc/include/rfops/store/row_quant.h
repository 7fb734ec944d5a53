// Rows of floats that lanes hold in registers, and their store: as they are, or quantised.
//
//     none       out[i]   = y[i]
//     fp8_group  scale[g] = amax / kMaxFp8 of 128 elements,  out[i] = fp8(y[i] * (kMaxFp8 / amax))
//     fp8_token  the same with one scale per row
//     fp8_tensor out[i]   = fp8(y[i] * (1 / scale)), saturated; the caller's scale
//     mxfp4, mxfp8  as quant_mxfp4 and quant_mxfp8, one e8m0 scale per 32 elements
//
// Layout. kLanes lanes hold a row; chunk c of lane l are its elements from (c kLanes + l) kVec on.
// A row of more than 64 lanes has whole waves and a workgroup of its own, otherwise a wave has
// several rows. Lanes beyond the end of a row, and rows beyond the last, load what is before and
// store nothing, so that no load waits for a branch; a sum must leave their values out, a maximum
// need not.
//
// Guarantees: what quantises takes y as rounded to Input, so its results have the bits that the op
// of that quantisation gives for a stored y. Sums and maxima have a fixed order.
// Requires: kVec == 8 and 16-byte aligned rows for what quantises; K a multiple of 128 or of 32 for
// groups and blocks.
#pragma once

#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/number/mxfp4.h"
#include "rfops/number/mxfp8_quant.h"
#include "rfops/wave/reduce.h"

namespace rfops {

enum class RowQuant { kNone, kFp8Group, kFp8Token, kFp8Tensor, kMxfp4, kMxfp8 };

// A row that a thread has a part of.
template <u32 kLanes, u32 kChunks, u32 kThreads, bool kExact>
struct RowLanes {
  static constexpr u32 kRows = kThreads / kLanes;                             // of a workgroup
  static constexpr u32 kWaves = kLanes > kWaveSize ? kLanes / kWaveSize : 1;  // of a row
  static_assert(kWaves == 1 || kRows == 1, "a row of several waves has the workgroup");
  static_assert(kLanes % kWaveSize == 0 || kWaveSize % kLanes == 0, "whole waves or parts of one");

  u32 lane, row, units;  // units of kVec elements in a row
  bool has_row;

  // The rows of one workgroup of `rows` in all; workgroup_id is that of the grid, or any other.
  __device__ RowLanes(u32 rows, u32 units_of_row, u32 workgroup_id = workgroup_id_x())
      : units(units_of_row) {
    lane = kRows == 1 ? thread_id() : thread_id() % kLanes;
    const u32 index = workgroup_id * kRows + (kRows == 1 ? 0 : thread_id() / kLanes);
    has_row = kRows == 1 || index < rows;
    row = has_row ? index : rows - 1;
  }

  // The unit of chunk c, whether it is in the row, and the one to load: the last where it is not.
  __device__ u32 unit(u32 c) const { return c * kLanes + lane; }
  __device__ bool in_row(u32 c) const { return kExact || unit(c) < units; }
  __device__ u32 loaded_unit(u32 c) const { return in_row(c) ? unit(c) : units - 1; }
  __device__ bool stores(u32 c) const { return has_row && in_row(c); }

  // Reduces a value of each lane over the row; all of its lanes get the result, which has the order
  // of lanes, then of waves.
  template <class T, class Op>
  __device__ T reduce(T value, Op op) const {
    value = reduce_lanes<(kLanes < kWaveSize ? kLanes : kWaveSize)>(value, op);
    if constexpr (kWaves > 1) {
      __shared__ T partials[kWaves];
      if (lane_id() == 0) partials[wave_id()] = value;
      wait_lgkmcnt();  // not for memory: stores of the row and loads stay in flight
      s_barrier();
      T values[kWaves];
#pragma unroll
      for (u32 i = 0; i < kWaves; ++i) values[i] = partials[i];
#pragma unroll
      for (u32 step = 1; step < kWaves; step *= 2)
#pragma unroll
        for (u32 i = 0; i + step < kWaves; i += 2 * step)
          values[i] = op(values[i], values[i + step]);
      value = values[0];
    }
    return value;
  }
  __device__ f32 sum(f32 value) const {
    return reduce(value, [](f32 a, f32 b) { return a + b; });
  }
  __device__ u32 max(u32 value) const {
    return reduce(value, [](u32 a, u32 b) { return a > b ? a : b; });
  }
};

// kVec neighbouring elements, loaded and stored by one instruction a 16 bytes.
template <class T, u32 kVec>
using RowVec = T __attribute__((ext_vector_type(kVec)));

// Returns results of arithmetic on values of T and Other, rounded to T. gfx942 has no conversion to
// bf16: the compiler's takes 5.5 instructions per element, because it keeps any NaN, and this 2.5.
// A NaN that came of a bf16 has 16 zeros below, as has one that arithmetic makes: it stays a NaN.
template <class T, u32 kVec, class Other = T>
__device__ inline RowVec<T, kVec> rounded_to(RowVec<f32, kVec> values) {
#if !defined(__gfx950__)
  if constexpr (__is_same(T, bf16) && __is_same(Other, bf16) && kVec % 2 == 0) {
    using Words = RowVec<u32, kVec / 2>;
    const auto rounded = [&](u32 i) {
      const u32 bits = __builtin_bit_cast(u32, static_cast<f32>(values[i]));
      return bits + 0x7fff + (bits >> 16 & 1);
    };
    constexpr u32 kUpperHalves = 0x07060302;
    Words words;
#pragma unroll
    for (u32 i = 0; i < kVec / 2; ++i) {
      words[i] = __builtin_amdgcn_perm(rounded(2 * i + 1), rounded(2 * i), kUpperHalves);
    }
    return __builtin_bit_cast(RowVec<T, kVec>, words);
  }
#endif
  return __builtin_convertvector(values, RowVec<T, kVec>);
}

// Returns the largest magnitude of eight elements as bits of fp32.
template <class Input>
__device__ inline u32 magnitude_bits(const Eight<Input>& y) {
  return __builtin_bit_cast(u32, MxFloat<Input>::amax_value(MxFloat<Input>::amax_bits(y.words)));
}

// Stores the chunks of a row, y[kChunks].
template <class Input, RowQuant kQuant, u32 kVec, u32 kChunks, class Lanes>
class RowStore {
 public:
  // out: row 0 of the results, whose rows begin `out_row` elements (bytes where they are quantised)
  // apart; scale [row * scale_row + group * scale_k].
  __device__ RowStore(const Lanes& lanes, void* out, u64 out_row, void* scale, u32 scale_row,
                      u32 scale_k)
      : lanes_(lanes),
        out_(out),
        out_row_(out_row),
        scale_(scale),
        scale_row_(scale_row),
        scale_k_(scale_k) {}

  // Loads the caller's scale, while loads of the row are in flight: the compiler would load it
  // after them. Comes before store().
  __device__ void load_scale() {
    if constexpr (kQuant == RowQuant::kFp8Tensor) {
      factor_ = 1.0f / *static_cast<const f32*>(scale_);
      force_vgpr(factor_);
    }
  }

  __device__ void store(const RowVec<Input, kVec> (&y)[kChunks]) const {
    if constexpr (kQuant == RowQuant::kNone) {
      auto* row = reinterpret_cast<RowVec<Input, kVec>*>(static_cast<Input*>(out_) + out_row_);
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c)
        if (lanes_.stores(c)) row[lanes_.unit(c)] = y[c];
    } else {
      static_assert(kVec == Eight<Input>::kElems, "quantised by eights");
      Eight<Input> eights[kChunks];
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) eights[c] = __builtin_bit_cast(Eight<Input>, y[c]);
      store_quantised(eights);
    }
  }

  // Stores a row by a scale that is known.
  __device__ void store_by(const Fp8Block& block, const RowVec<Input, kVec> (&y)[kChunks]) const {
#pragma unroll
    for (u32 c = 0; c < kChunks; ++c) put(c, codes(block, __builtin_bit_cast(Eight<Input>, y[c])));
  }

 private:
  static constexpr u32 kLanesPerGroup = 16, kLanesPerBlock = 4;  // 128 and 32 elements

  __device__ void store_quantised(const Eight<Input> (&y)[kChunks]) const {
    if constexpr (kQuant == RowQuant::kFp8Token) {
      u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) amax = Fp8Block::larger(amax, magnitude_bits(y[c]));
      const Fp8Block block(lanes_.max(amax));
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) put(c, codes(block, y[c]));
      if (lanes_.lane == 0 && lanes_.has_row) put_scale(0, block.scale());
    } else if constexpr (kQuant == RowQuant::kFp8Tensor) {
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) {
        const auto four = [&](u32 i) {
          return fp8_saturated(y[c].element(i) * factor_, y[c].element(i + 1) * factor_,
                               y[c].element(i + 2) * factor_, y[c].element(i + 3) * factor_);
        };
        put(c, U32x2{four(0), four(4)});
      }
    } else {
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) store_blocks(c, y[c]);
    }
  }

  // Formats whose scales are of neighbouring lanes.
  __device__ void store_blocks(u32 c, const Eight<Input>& y) const {
    const u32 unit = lanes_.unit(c);
    if constexpr (kQuant == RowQuant::kFp8Group) {
      const u32 amax = max_over_lanes<kLanesPerGroup>(
          Fp8Block::larger(Fp8Block::kMinAmaxBits, magnitude_bits(y)));
      const Fp8Block block(amax);
      put(c, codes(block, y));
      if (unit % kLanesPerGroup == 0 && lanes_.stores(c))
        put_scale(unit / kLanesPerGroup, block.scale());
    } else {
      const u32 amax = max_over_lanes<kLanesPerBlock>(MxFloat<Input>::amax_bits(y.words));
      u8 byte;
      if constexpr (kQuant == RowQuant::kMxfp4) {
        const u32 scale = Mxfp4Float<Input>::template scale<Even>(amax);
        put(c, scale == kE8m0NanByte ? 0 : quant_x8<Input>(y.words, scale));
        byte = static_cast<u8>(scale);
      } else {
        constexpr u32 kUp = 0x1fffff;  // quant_mxfp8's default rounding of scales
        const Mxfp8Block<Input, kUp> block(amax);
        put(c, block.convert(y));
        byte = block.scale();
      }
      if (unit % kLanesPerBlock == 0 && lanes_.stores(c)) put_scale(unit / kLanesPerBlock, byte);
    }
  }

  static __device__ U32x2 codes(const Fp8Block& block, const Eight<Input>& y) {
    return {block.convert(y.element(0), y.element(1), y.element(2), y.element(3)),
            block.convert(y.element(4), y.element(5), y.element(6), y.element(7))};
  }
  template <class T>
  __device__ void put(u32 c, T codes) const {
    auto* row = reinterpret_cast<T*>(static_cast<u8*>(out_) + out_row_);
    if (lanes_.stores(c)) row[lanes_.unit(c)] = codes;
  }
  template <class T>
  __device__ void put_scale(u32 group, T scale) const {
    static_cast<T*>(scale_)[u64{lanes_.row} * scale_row_ + u64{group} * scale_k_] = scale;
  }

  const Lanes& lanes_;
  void* out_;
  u64 out_row_;
  void* scale_;
  u32 scale_row_, scale_k_;
  f32 factor_ = 1.0f;  // 1 / scale of kFp8Tensor
};

}  // namespace rfops
