// fp8_token   scale[m] = amax_k(x[m, k]) / kMaxFp8,  payload[m, k] = fp8(x[m, k] * (kMaxFp8 /
// amax)) fp8_tensor  payload[m, k] = fp8(x[m, k] * (1 / scale)), saturated
//
// The scale of fp8_tensor is the caller's, or found before: with kAmax a workgroup leaves the
// largest magnitude of its rows in partials, as bits; with kFromPartials it takes the largest of
// these, and workgroup 0 stores the scale.
//
// Layout: rfops/store/row_quant.h; row r of x begins at r * x_row elements.
//
// Guarantees: bit-exact to the torch backend; deterministic, because a maximum has no order.
// Requires: each row of x 16-byte aligned, K a multiple of 8; num_partials > 0 with kFromPartials.
#include "rfops/chip/types.h"
#include "rfops/store/row_quant.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;  // bf16, f16 or f32
constexpr u32 kVec = RFOPS_VEC, kLanes = RFOPS_LANES, kChunks = RFOPS_CHUNKS;
constexpr u32 kThreads = RFOPS_THREADS;
constexpr bool kExact = RFOPS_EXACT;
enum class Pass { kQuantise, kAmax, kFromPartials };
constexpr Pass kPass = Pass::RFOPS_PASS;
constexpr RowQuant kQuant = RowQuant::RFOPS_QUANT;

using Lanes = RowLanes<kLanes, kChunks, kThreads, kExact>;
using InputVec = RowVec<Input, kVec>;

// Returns the largest of a value of each thread; all threads get it.
__device__ inline u32 max_over_workgroup(u32 value) {
  return RowLanes<kThreads, 1, kThreads, true>(1, kThreads).max(value);
}

__device__ inline u32 largest_partial(const u32* partials, u32 num_partials) {
  u32 amax = Fp8Block::kMinAmaxBits;
  for (u32 i = thread_id(); i < num_partials; i += kThreads)
    amax = Fp8Block::larger(amax, partials[i]);
  return max_over_workgroup(amax);
}

__device__ inline void load(InputVec (&row)[kChunks], const Input* x, const Lanes& lanes,
                            u32 x_row) {
  const auto* src = reinterpret_cast<const InputVec*>(x + u64{lanes.row} * x_row);
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) row[c] = src[lanes.loaded_unit(c)];
}

// Returns the largest magnitude of a lane's part of a row.
__device__ inline u32 max_of_rows(const Input* x, const Lanes& lanes, u32 x_row) {
  InputVec row[kChunks];
  load(row, x, lanes, x_row);
  u32 amax = 0;
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c)
    amax = Fp8Block::larger(amax, magnitude_bits(__builtin_bit_cast(Eight<Input>, row[c])));
  return amax;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_fp8(const Input* __restrict__ x,  // [M, K], row stride x_row in elements
          u8* __restrict__ payload,     // [M, K]
          f32* scale,                   // [M], or [1]
          u32* partials,                // [num_partials]: magnitudes as bits
          u32 k, u32 x_row, u32 m, u32 num_partials) {
  if constexpr (kPass == Pass::kAmax) {
    u32 amax = Fp8Block::kMinAmaxBits;
    for (u32 group = workgroup_id_x(); group * Lanes::kRows < m; group += num_partials)
      amax = Fp8Block::larger(amax, max_of_rows(x, Lanes(m, k / kVec, group), x_row));
    amax = max_over_workgroup(amax);
    if (thread_id() == 0) partials[workgroup_id_x()] = amax;
    return;
  }
  const Lanes lanes(m, k / kVec);
  InputVec row[kChunks];
  load(row, x, lanes, x_row);
  constexpr bool kFound = kPass == Pass::kFromPartials;
  RowStore<Input, kQuant, kVec, kChunks, Lanes> rows(lanes, payload, u64{lanes.row} * k,
                                                     kFound ? nullptr : scale, kFound ? 0 : 1, 0);
  if constexpr (kFound) {
    const Fp8Block block(largest_partial(partials, num_partials));
    if (workgroup_id_x() == 0 && thread_id() == 0) *scale = block.scale();
    rows.store_by(block, row);
  } else {
    rows.load_scale();
    rows.store(row);
  }
}
