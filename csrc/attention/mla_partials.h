// Partials of a sequence whose tokens are split over workgroups.
//
// A workgroup stores 512 sums, the row max and the row sum of each query row, in lane order, at an
// index of its own (work_partition.h). Up to kMaxShared partials are reduced in slices
// (mla_combine_slices.h). More are reduced in a tree: of kFanIn neighbours, or of all once at most
// kMaxFanIn are left, the last to arrive combines the partials in order into the first one's place
// and goes on to the next level; the last of all stores the output. Which workgroup is last changes
// no bit.
#pragma once

#include "attention/mfma_bf16.h"
#include "attention/mla_kv_cache.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/wave/reduce.h"

namespace rfops {

constexpr u32 kFanIn = 4, kMaxFanIn = 8, kFanLevels = 6;  // 4096 workers
constexpr u32 kMaxShared = 40;
constexpr u32 kNotKept = ~0u;
constexpr f32 kMinScore = -1e30f;  // finite lower bound of scores
constexpr f32 kLog2E = 1.44269504088896f;

__device__ inline f32 max_of(f32 a, f32 b) { return __builtin_fmaxf(a, b); }

// Statistics of a query row: maximum of the scores (as powers of two), and sum of 2^(score -
// row_max).
struct SoftmaxStats {
  f32 row_max, sum;
};

// Combines the statistics of kCount parts of a query row; the sums of part i get weights[i].
template <u32 kCount>
__device__ inline SoftmaxStats combine_stats(const SoftmaxStats (&parts)[kCount],
                                             f32 (&weights)[kCount]) {
  SoftmaxStats total = {kMinScore, 0.0f};
#pragma unroll
  for (const SoftmaxStats& part : parts) total.row_max = max_of(total.row_max, part.row_max);
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) {
    weights[i] = __builtin_amdgcn_exp2f(parts[i].row_max - total.row_max);
    total.sum += weights[i] * parts[i].sum;
  }
  return total;
}

// Scales of the values, and of the scores as powers of two; null scales are 1.
struct MlaScales {
  f32 value, score;

  __device__ MlaScales(f32 sm_scale, const f32* kv_scale, const f32* q_scale)
      : value(kv_scale == nullptr ? 1.0f : *kv_scale),
        score(sm_scale * kLog2E * value * (q_scale == nullptr ? 1.0f : *q_scale)) {}
};

// Fields of the arrival counter of a sequence's partials: arrivals, slices or workgroups that are
// finished with the partials, and one bit per abandoned output slice.
struct ArrivalWord {
  static constexpr u32 kCountRange = 64;
  static constexpr u64 kArrived = 1, kFinished = kCountRange,
                       kAbandoned = kCountRange * kCountRange;

  __device__ static u32 arrived(u64 word) { return static_cast<u32>(word) % kCountRange; }
  __device__ static u32 finished(u64 word) {
    return static_cast<u32>(word / kFinished) % kCountRange;
  }
  // Adds to a word and returns its old value.
  __device__ static u64 add(u64* word, u64 increment) {
    return __hip_atomic_fetch_add(word, increment, __ATOMIC_RELAXED, kAgentScope);
  }
  // Spins until is_all(lower half of `word`), at most kMaxSpins times. Returns whether it was.
  template <u32 kMaxSpins, class IsAll>
  __device__ static bool spin_until(const u64* word, IsAll is_all) {
    const u32* const low = reinterpret_cast<const u32*>(word);
#pragma nounroll
    for (u32 spin = 0; spin < kMaxSpins; ++spin) {
      if (is_all(__hip_atomic_load(low, __ATOMIC_RELAXED, kAgentScope))) return true;
      __builtin_amdgcn_s_sleep(1);
    }
    return false;
  }
  // Zeroes a word that no workgroup reads any more, for the next launch.
  __device__ static void reset(u64* word) {
    __hip_atomic_fetch_and(word, u64{0}, __ATOMIC_RELAXED, kAgentScope);
  }
};

// 32 sums of a lane as a partial stores them: fp16, scaled by a power of two that brings the
// largest to 2^14 .. 2^15. Sums above 2^-28 of the largest keep eleven bits, a relative error of
// 2^-12. Partials of 38 CUs then stay in L2 until they are read; with 24 bits they did not. (A sum
// is never inf alone, because values are part of the keys.)
template <u32 kQuads>
struct MlaQuads {
  Vec4<f16> quads[kQuads];
  f32 unit;

  __device__ static MlaQuads make(const F32x4 (&sums)[kQuads]) {
    f32 amax = 0.0f;
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
      amax = max_magnitude(amax, sums[i][0], sums[i][1]);
      amax = max_magnitude(amax, sums[i][2], sums[i][3]);
    }
    const i32 bits = __builtin_amdgcn_frexp_expf(amax),
              exponent = 15 - (bits > kMinExponent ? bits : kMinExponent);
    const f32 factor = __builtin_ldexpf(1.0f, exponent);
    MlaQuads packed;
    packed.unit = __builtin_ldexpf(1.0f, -exponent);
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
      packed.quads[i] = __builtin_convertvector(sums[i] * factor, Vec4<f16>);
    }
    return packed;
  }
  __device__ void add_to(F32x4 (&sums)[kQuads], f32 weight) const {
    const f32 scale = weight * unit;
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        sums[i][e] = __builtin_fmaf(static_cast<f32>(quads[i][e]), scale, sums[i][e]);
      }
    }
  }

 private:
  static constexpr i32 kMinExponent = -100;  // 2^(15 - kMinExponent) is a number
  __device__ static f32 max_magnitude(f32 amax, f32 a, f32 b) {
    asm("v_max3_f32 %0, %0, |%1|, |%2|" : "+v"(amax) : "v"(a), "v"(b));
    return amax;
  }
};
using MlaBlock = MlaQuads<8>;

// Output of kColumns query rows of a sequence, a multiple of 16. Each lane has one row, in quads of
// four adjacent columns, eight quads per block.
template <u32 kColumns>
struct SplitOutput {
  static constexpr u32 kBlocks = kColumns / 16;  // of a lane

  bf16* out;      // of these columns
  f32* lse;       // likewise, or null
  f32* partials;  // [slots][4 waves, kBlocks] MlaBlock of lanes, then [slots, kColumns, 2]
  u32* counts;    // [kFanLevels, slots] of 64 bits, zeros
  u32 columns;    // that are there
  u32 num_partials;
  f32 value_scale;

  // A block has the quads of all lanes one after the other, then their units.
  static constexpr u32 kQuads = 8, kQuadsBytes = kQuads * kWaveSize * 8;
  static constexpr u32 kBlockBytes = kQuadsBytes + kWaveSize * 4;
  static constexpr u32 kPartialWords = 4 * kBlocks * kBlockBytes / 4;  // words of a slot
  __device__ u8* partial_ptr(u32 partial_idx, u32 block) const {
    return reinterpret_cast<u8*>(partials + u64{partial_idx} * kPartialWords) +
           (wave_id() * kBlocks + block) * kBlockBytes;
  }
  __device__ f32* totals(u32 partial_idx, u32 column) const {
    return partials +
           (u64{num_partials} * kPartialWords + (u64{partial_idx} * kColumns + column) * 2);
  }
  __device__ u64* counter(u32 level, u32 partial_idx) const {
    return reinterpret_cast<u64*>(counts) + (level * num_partials + partial_idx);
  }
  __device__ void store_partial(u32 partial_idx, u32 block, const MlaBlock& block_quads) const {
    auto* const dst = reinterpret_cast<Vec4<f16>*>(partial_ptr(partial_idx, block)) + lane_id();
#pragma unroll
    for (u32 i = 0; i < kQuads; ++i) dst[i * kWaveSize] = block_quads.quads[i];
    reinterpret_cast<f32*>(partial_ptr(partial_idx, block) + kQuadsBytes)[lane_id()] =
        block_quads.unit;
  }
  // Loads kCount quads of a block, from quad_begin on.
  template <u32 kCount>
  __device__ void load_partial(u32 partial_idx, u32 block, u32 quad_begin,
                               MlaQuads<kCount>& block_quads) const {
    const u8* const begin = partial_ptr(partial_idx, block);
    const auto* const src = reinterpret_cast<const Vec4<f16>*>(begin) + quad_begin * kWaveSize;
#pragma unroll
    for (u32 i = 0; i < kCount; ++i) block_quads.quads[i] = src[i * kWaveSize + lane_id()];
    block_quads.unit = reinterpret_cast<const f32*>(begin + kQuadsBytes)[lane_id()];
  }
  __device__ void store_totals(u32 partial_idx, u32 column, SoftmaxStats stats) const {
    totals(partial_idx, column)[0] = stats.row_max;
    totals(partial_idx, column)[1] = stats.sum;
  }
  // Returns the factor that normalises the sums of a row.
  __device__ f32 factor(SoftmaxStats stats) const {
    return stats.sum == 0.0f ? 0.0f : value_scale / stats.sum;
  }
  __device__ void store_lse(u32 column, SoftmaxStats stats) const {
    constexpr f32 kLn2 = 0.693147180559945f;
    if (lse == nullptr || column >= columns) return;
    const f32 log = (stats.row_max + __builtin_amdgcn_logf(stats.sum)) * kLn2;
    lse[column] = stats.sum == 0.0f ? -__builtin_inff() : log;
  }
  __device__ static void store(F32x4 four, bf16* dst) {
    *reinterpret_cast<Bf16x4*>(dst) = details::Bf16Rounding<4>::narrow_rounded(four);
  }
  __device__ void store(F32x4 four, u32 column, u32 d) const {
    if (column < columns) store(four, out + u64{column} * kMlaValue + d);
  }
  // The same with rows known in scalars: the buffer drops stores to rows that do not exist.
  __device__ Buffer result() const {
    const u32 num_rows = columns < kColumns ? columns : kColumns;
    return make_buffer(out, num_rows * kMlaValue * 2);
  }
  __device__ static void store(const Buffer& result, F32x4 four, u32 column, u32 d) {
    const auto narrow = __builtin_bit_cast(U32x2, details::Bf16Rounding<4>::narrow_rounded(four));
    __builtin_amdgcn_raw_buffer_store_b64(narrow, result.rsrc, (column * kMlaValue + d) * 2, 0, 0);
  }
};
using MlaTarget = SplitOutput<kQRowsPerTile>;

namespace details {

// Index of the weight of partial i of a row; padded against bank conflicts.
constexpr u32 kWeighers = 8;  // threads of a column
template <u32 kColumns>
constexpr u32 kWeightPitch = kColumns + kLdsBanks / kWeighers;
template <u32 kColumns>
constexpr u32 weight_at(u32 i, u32 column) {
  return i * kWeightPitch<kColumns> + column;
}

// Computes the factors of the partials partial_of(0 .. count - 1), at most kMaxShared, into
// `weights`. If `is_root`, they normalise too. Calls leave(column, stats) once per row.
template <u32 kColumns, class PartialOf, class Leave>
__device__ inline void weigh_columns(const SplitOutput<kColumns>& target, u32 count, bool is_root,
                                     PartialOf partial_of, RFOPS_LDS f32* weights, Leave leave) {
  constexpr u32 kColumnsPerPass = 4 * kWaveSize / kWeighers, kSteps = kColumns / kColumnsPerPass;
  constexpr u32 kPasses = kMaxShared / kWeighers;
  u32 thread = thread_id();
  force_vgpr(
      thread);  // what follows from it is computed here, not kept in registers from the beginning
  const u32 weigher = thread % kWeighers, thread_column = thread / kWeighers;
  SoftmaxStats split_stats[kPasses][kSteps];
#pragma unroll
  for (u32 t = 0; t < kPasses; ++t) {
    if (t > 0 && t * kWeighers >= count) break;
    const u32 i = t * kWeighers + weigher;
    const f32* const src = target.totals(partial_of(i < count ? i : 0), thread_column);
#pragma unroll
    for (u32 g = 0; g < kSteps; ++g) {
      split_stats[t][g] = {src[g * kColumnsPerPass * 2], src[g * kColumnsPerPass * 2 + 1]};
    }
  }
  sched_barrier();
#pragma unroll
  for (u32 g = 0; g < kSteps; ++g) {
    const u32 column = g * kColumnsPerPass + thread_column;
    SoftmaxStats stats = {kMinScore, 0.0f};
#pragma unroll
    for (u32 t = 0; t < kPasses; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      if (t * kWeighers + weigher >= count) split_stats[t][g] = {kMinScore, 0.0f};
      stats.row_max = max_of(stats.row_max, split_stats[t][g].row_max);
    }
    stats.row_max = max_over_lanes<kWeighers>(stats.row_max);
#pragma unroll
    for (u32 t = 0; t < kPasses; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      split_stats[t][g].row_max = __builtin_amdgcn_exp2f(split_stats[t][g].row_max - stats.row_max);
      stats.sum += split_stats[t][g].row_max * split_stats[t][g].sum;
    }
    stats.sum = sum_over_lanes<kWeighers>(stats.sum);
    const f32 times = is_root ? target.factor(stats) : 1.0f;
#pragma unroll
    for (u32 t = 0; t < kPasses; ++t) {
      if (t > 0 && t * kWeighers >= count) break;
      weights[weight_at<kColumns>(t * kWeighers + weigher, column)] =
          split_stats[t][g].row_max * times;
    }
    if (weigher == 0) leave(column, stats);
  }
}

// Range of quads of a block, and the lane's query row.
struct QuadRange {
  u32 block, quad_begin, column;  // the column is this lane's
};

// Adds `count` weighted partials in order, kInFlight loads at a time. Partial own_idx, if any, is
// computed by make_own(quads) meanwhile; the others are loaded.
template <u32 kInFlight, u32 kQuads, u32 kColumns, class PartialOf, class MakeOwn>
__device__ inline void combine_partials(F32x4 (&sums)[kQuads], const SplitOutput<kColumns>& target,
                                        const QuadRange& range, u32 count, PartialOf partial_of,
                                        const RFOPS_LDS f32* weights, u32 own_idx,
                                        MakeOwn make_own) {
  const auto weight_of = [&](u32 i) { return weights[weight_at<kColumns>(i, range.column)]; };
  const u32 num_loaded = count - (own_idx < count ? 1 : 0);
  MlaQuads<kQuads> mine, loaded[kInFlight];
#pragma unroll
  for (F32x4& sum : sums) sum = F32x4{};
#pragma nounroll
  for (u32 i = 0; i < num_loaded; i += kInFlight) {
    const auto idx_of = [&](u32 n) { return i + n + (i + n >= own_idx ? 1 : 0); };
#pragma unroll
    for (u32 n = 0; n < kInFlight; ++n) {
      if (i + n < num_loaded)
        target.load_partial(partial_of(idx_of(n)), range.block, range.quad_begin, loaded[n]);
    }
    sched_barrier();
    if (i == 0 && own_idx < count) make_own(mine);
    sched_barrier();
#pragma unroll
    for (u32 n = 0; n < kInFlight; ++n) {
      if (i + n >= num_loaded) continue;
      if (i + n == own_idx) mine.add_to(sums, weight_of(own_idx));
      loaded[n].add_to(sums, weight_of(idx_of(n)));
    }
  }
  if (own_idx == num_loaded) mine.add_to(sums, weight_of(own_idx));
}

}  // namespace details

// Partials `begin` to begin + count - 1 at a level of the tree, `stride` indices apart.
struct PartialRange {
  u32 begin, stride, count;

  template <class PartialOf>
  __device__ auto select(const PartialOf& partial_of) const {
    return [=, *this](u32 i) { return partial_of((begin + i) * stride); };
  }
};

// Walks up the tree after this workgroup stored partial_of(split_idx). Returns whether it stores
// the output, from `range`.
template <u32 kColumns, class PartialOf>
__device__ inline bool reduce_upward(const SplitOutput<kColumns>& target, u32 split_idx, u32 count,
                                     u32 column, PartialOf partial_of, LdsBytes* lds,
                                     PartialRange& range) {
  auto* const weights = reinterpret_cast<RFOPS_LDS f32*>(lds);
  range = {0, 1, 0};
  for (u32 level = 0;; ++level) {
    const bool is_root = count <= kMaxFanIn;
    const u32 begin = is_root ? 0 : split_idx / kFanIn * kFanIn;
    const u32 fan_in = is_root || count - begin < kFanIn ? count - begin : kFanIn;
    range = {begin, range.stride, readfirstlane(fan_in)};
    const auto child = range.select(partial_of);
    if (fan_in > 1) {
      auto* const counter = reinterpret_cast<u32*>(target.counter(level, child(0)));
      if (!arrive_is_last(counter, fan_in, reinterpret_cast<RFOPS_LDS u32*>(lds))) return false;
      workgroup_barrier();
      if (is_root) return true;
      details::weigh_columns(
          target, fan_in, false, child, weights,
          [&](u32 column, SoftmaxStats stats) { target.store_totals(child(0), column, stats); });
      workgroup_barrier();
#pragma nounroll
      for (u32 block = 0; block < target.kBlocks; ++block) {
        F32x4 sums[8];
        details::combine_partials<kFanIn>(sums, target, {block, 0, column}, fan_in, child, weights,
                                          kNotKept, [](auto&) {});
        target.store_partial(child(0), block, MlaBlock::make(sums));
      }
      workgroup_barrier();  // LDS is the next level's
    }
    split_idx /= kFanIn;
    count = (count + kFanIn - 1) / kFanIn;
    range.stride *= kFanIn;
  }
}

}  // namespace rfops
