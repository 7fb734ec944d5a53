// out[m, k] = activation(gate[m, k]) * up[m, k]                              (rowwise/activation.h)
//
// x has both: gate is x[m, 0..K) and up x[m, K..2 K), or with kInterleaved x[m, 2 k] and x[m, 2 k +
// 1]. out is rounded to x's type, or that quantised (rfops/store/row_quant.h). Row r of x begins at
// r * x_row elements, of out at r * out_row.
//
// Layout: rfops/store/row_quant.h, of rows of out.
//
// Guarantees: deterministic.
// Requires: kVec == 8: rows of x and of out 16-byte aligned, K a multiple of 8.
#include "rfops/chip/types.h"
#include "rfops/store/row_quant.h"
#include "rowwise/activation.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;          // bf16, f16 or f32
constexpr u32 kVec = RFOPS_VEC;  // elements per load: 8, or 1 where rows are not aligned
constexpr u32 kLanes = RFOPS_LANES, kChunks = RFOPS_CHUNKS, kThreads = RFOPS_THREADS;
constexpr bool kExact = RFOPS_EXACT;  // K == kVec * kLanes * kChunks
constexpr bool kInterleaved = RFOPS_INTERLEAVED;
constexpr Activation kActivation = Activation::RFOPS_ACTIVATION;
constexpr RowQuant kQuant = RowQuant::RFOPS_QUANT;

using Lanes = RowLanes<kLanes, kChunks, kThreads, kExact>;
using InputVec = RowVec<Input, kVec>;

// The two vectors of a unit: gate and up, or pairs of them.
struct Operands {
  InputVec low, high;
};

__device__ inline void load(Operands (&operands)[kChunks], const InputVec* row,
                            const Lanes& lanes) {
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    const u32 unit = lanes.loaded_unit(c);
    operands[c] = {row[kInterleaved ? 2 * unit : unit],
                   row[kInterleaved ? 2 * unit + 1 : lanes.units + unit]};
  }
}

// Returns element i of gate and up: of pairs 2 i and 2 i + 1.
__device__ inline f32 element(const Operands& operands, u32 i, bool is_up) {
  if constexpr (!kInterleaved) {
    return static_cast<f32>(is_up ? operands.high[i] : operands.low[i]);
  } else {
    const u32 pair_idx = 2 * i + (is_up ? 1 : 0);
    return static_cast<f32>(pair_idx < kVec ? operands.low[pair_idx % kVec]
                                            : operands.high[pair_idx % kVec]);
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads))) act_mul(
    const Input* __restrict__ x,  // [M, 2 K]
    void* __restrict__ out,       // [M, K], or payload [M, K] or [M, K / 2]
    void* __restrict__ scale,     // [M, groups], strides scale_row, scale_k
    u32 k, u32 x_row, u32 out_row, u32 m, u32 scale_row, u32 scale_k, f32 alpha, f32 limit,
    f32 beta) {  // last: silu has no load of arguments then
  const Lanes lanes(m, k / kVec);
  Operands operands[kChunks];
  load(operands, reinterpret_cast<const InputVec*>(x + u64{lanes.row} * x_row), lanes);
  RowStore<Input, kQuant, kVec, kChunks, Lanes> rows(lanes, out, u64{lanes.row} * out_row, scale,
                                                     scale_row, scale_k);
  rows.load_scale();
  InputVec y[kChunks];
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    RowVec<f32, kVec> values;
#pragma unroll
    for (u32 i = 0; i < kVec; ++i) {
      values[i] = gated<kActivation>(element(operands[c], i, false), element(operands[c], i, true),
                                     {alpha, limit, beta});
    }
    y[c] = rounded_to<Input, kVec>(values);
  }
  rows.store(y);
}
