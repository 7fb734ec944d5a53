// z = x, or x + residual rounded to x's type, which replaces residual;
// y[m, k] = z[m, k] * (1 / sqrt(mean_k(z[m, k]^2) + eps)) * weight[k]
//
// out is y rounded to x's type, or that quantised (rfops/store/row_quant.h). Rows may lie anywhere:
// with kNested row r of x begins at (r / inner) * x_outer + (r % inner) * x_inner, else at
// r * x_outer; so do those of out where it is not quantised.
//
// Layout: rfops/store/row_quant.h. A row stays in registers from its one load to its store, so out
// may be x itself.
//
// Guarantees: deterministic; a sum is one of chunks, then lanes, then waves.
// Requires: kVec == 8: rows 16-byte aligned. residual [M, K] contiguous.
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/store/row_quant.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;          // bf16, f16 or f32
using Weight = RFOPS_WEIGHT;     // bf16, f16 or f32
constexpr u32 kVec = RFOPS_VEC;  // elements per load: 8, or 1 where rows are not aligned
constexpr u32 kLanes = RFOPS_LANES, kChunks = RFOPS_CHUNKS, kThreads = RFOPS_THREADS;
constexpr bool kExact = RFOPS_EXACT;  // K == kVec * kLanes * kChunks
constexpr bool kNested = RFOPS_NESTED, kResidual = RFOPS_RESIDUAL;
constexpr RowQuant kQuant = RowQuant::RFOPS_QUANT;
// Weights are loaded with the row if they take few registers: a lone row is bound by latency.
constexpr bool kEarlyWeights = kChunks <= 2;

using Lanes = RowLanes<kLanes, kChunks, kThreads, kExact>;
using InputVec = RowVec<Input, kVec>;
using WeightVec = RowVec<Weight, kVec>;
using Floats = RowVec<f32, kVec>;

__device__ inline u64 row_offset(u32 row, u32 inner, u32 outer_stride, u32 inner_stride) {
  if constexpr (!kNested) return u64{row} * outer_stride;
  return u64{row / inner} * outer_stride + u64{row % inner} * inner_stride;
}

template <class Vec>
__device__ inline void load(Vec (&values)[kChunks], const Vec* row, const Lanes& lanes) {
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) values[c] = row[lanes.loaded_unit(c)];
}

// Replaces z by z + residual, whose row is loaded, and stores that.
__device__ inline void add_residual(InputVec (&z)[kChunks], const InputVec (&added)[kChunks],
                                    InputVec* residual, const Lanes& lanes) {
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    z[c] = rounded_to<Input, kVec>(__builtin_convertvector(z[c], Floats) +
                                   __builtin_convertvector(added[c], Floats));
    if (lanes.stores(c)) residual[lanes.unit(c)] = z[c];
  }
}

__device__ inline f32 sum_of_squares(const InputVec (&z)[kChunks], const Lanes& lanes) {
  f32 sum = 0.0f;
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    const Floats values = __builtin_convertvector(z[c], Floats);
    f32 squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) squares = __builtin_fmaf(values[i], values[i], squares);
    sum += lanes.in_row(c) ? squares : 0.0f;
  }
  return lanes.sum(sum);
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
rms_norm(const Input* x,                     // [M, K]
         const Weight* __restrict__ weight,  // [K]
         Input* residual,                    // [M, K]
         void* out,                          // [M, K], or payload [M, K] or [M, K / 2]
         u32 k, f32 inverse_k, f32 eps, u32 x_outer, u32 out_outer, u32 m, u32 inner, u32 x_inner,
         u32 out_inner, u32 scale_row, u32 scale_k,
         void* __restrict__ scale) {  // [M, groups], strides scale_row, scale_k
  const Lanes lanes(m, k / kVec);
  InputVec z[kChunks];
  WeightVec w[kChunks];
  const auto* weights = reinterpret_cast<const WeightVec*>(weight);
  load(z, reinterpret_cast<const InputVec*>(x + row_offset(lanes.row, inner, x_outer, x_inner)),
       lanes);
  RowStore<Input, kQuant, kVec, kChunks, Lanes> rows(
      lanes, out, row_offset(lanes.row, inner, out_outer, out_inner), scale, scale_row, scale_k);
  rows.load_scale();
  auto* const residual_row = reinterpret_cast<InputVec*>(residual + u64{lanes.row} * k);
  InputVec added[kChunks];
  if constexpr (kResidual) load(added, residual_row, lanes);
  // All loads come before the first is waited for, with a residual those of the weights last in all
  // waves: one row of 7,168 is 43 KB then, of which a CU has 27 KB in flight. Floor, MI355X, cold
  // caches: the launch, 2.0 us, two latencies of 0.42, the sum and the product, 0.3; estimated 3.59
  // us. Without a residual 28 KB are just above what is in flight: 3.27 us.
  sched_barrier();
  if constexpr (kResidual && kEarlyWeights && Lanes::kWaves > 1) s_barrier();
  if constexpr (kEarlyWeights) load(w, weights, lanes);
  sched_barrier();
  if constexpr (kResidual) add_residual(z, added, residual_row, lanes);
  const f32 factor =
      __builtin_amdgcn_rsqf(__builtin_fmaf(sum_of_squares(z, lanes), inverse_k, eps));
  if constexpr (!kEarlyWeights) load(w, weights, lanes);
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    z[c] = rounded_to<Input, kVec, Weight>(__builtin_convertvector(z[c], Floats) * factor *
                                           __builtin_convertvector(w[c], Floats));
  }
  rows.store(z);
}
