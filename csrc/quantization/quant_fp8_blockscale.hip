// scale[r, b] = amax / kMaxFp8,  payload[m, k] = fp8(x[m, k] * (kMaxFp8 / amax))
//
// amax is the largest magnitude of a block of kRows rows by 128 of K; kMaxFp8 is the largest FP8
// value: 240 for e4m3fnuz (gfx942), 448 for e4m3 (gfx950). rfops/number/fp8_blockscale.h documents
// amax of zeros and NaN. Any M, K a multiple of 128.
//
// Layout. 16 lanes hold a row of a block, 8 elements each, loaded as 16 bytes (fp32: twice). With
// kRows == 1 a workgroup has 16 blocks, contiguous in memory; with kRows == 128 it has one block, 8
// rows per thread, and the maxima of its rows are combined in LDS.
//
// Guarantees: bit-exact to the torch backend (division is correctly rounded, conversion rounds to
// nearest even).
// Requires: x 16-byte aligned if kAligned, otherwise aligned to its elements.
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce_scatter.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                         // bf16, f16 or f32
constexpr u32 kRows = RFOPS_ROWS;               // rows per block: 1 or 128
constexpr bool kAligned = RFOPS_ALIGNED;        // x is 16-byte aligned
constexpr u32 kBlock = 128;                     // along K
constexpr u32 kThreads = 256, kLanes = 16;      // lanes per row of a block
constexpr u32 kElemsPerLane = kBlock / kLanes;  // per row
constexpr u32 kRowsPerPass = kThreads / kLanes;
constexpr u32 kPasses = kRows == 1 ? 1 : kRows / kRowsPerPass;
static_assert(kRows == 1 || kRows == 128, "1 x 128 or 128 x 128");

using InputVec = Vec8<Input>;
static_assert(kElemsPerLane == 8);
typedef InputVec UnalignedInputVec __attribute__((aligned(sizeof(Input))));

__device__ inline InputVec load(const Input* src) {
  if constexpr (kAligned) return *reinterpret_cast<const InputVec*>(src);
  return *reinterpret_cast<const UnalignedInputVec*>(src);
}

// Returns the bits of the largest magnitude.
__device__ inline u32 max_of_eight(F32x8 values) {
  u32 amax = 0;
#pragma unroll
  for (u32 i = 0; i < kElemsPerLane; ++i)
    amax = Fp8Block::larger(amax, Fp8Block::magnitude(values[i]));
  return amax;
}

// Returns the maximum over the 16 lanes of a row.
__device__ inline u32 max_over_row(u32 amax) {
  const auto fold = [&](f32 partner_amax) {
    const u32 bits = __builtin_bit_cast(u32, partner_amax);
    amax = bits > amax ? bits : amax;
  };
  fold(details::partner<1>(__builtin_bit_cast(f32, amax)));
  fold(details::partner<2>(__builtin_bit_cast(f32, amax)));
  fold(details::partner<4>(__builtin_bit_cast(f32, amax)));
  fold(details::partner<8>(__builtin_bit_cast(f32, amax)));
  return amax;
}

// Returns the maximum over the rows of the workgroup's threads.
__device__ inline u32 max_over_workgroup(u32 amax) {
  __shared__ u32 rows[kRowsPerPass];
  if (thread_id() % kLanes == 0) rows[thread_id() / kLanes] = amax;
  workgroup_barrier();
#pragma unroll
  for (u32 i = 0; i < kRowsPerPass; ++i) amax = rows[i] > amax ? rows[i] : amax;
  return amax;
}

struct Fp8x8 {
  u32 low, high;
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_fp8_blockscale(u8* __restrict__ payload,  // [M, K]
                     f32* __restrict__ scale,   // [M / kRows, K / 128], strides scale_row, scale_k
                     const Input* __restrict__ x,  // [M, K]
                     u32 m, u32 k, u32 scale_row, u32 scale_k) {
  const u32 lane = thread_id() % kLanes, row_in_pass = thread_id() / kLanes;
  const u32 blocks = k / kBlock;
  // Blocks are fewer than 2^32: a division of 64 bits takes as long as all other arithmetic.
  const u32 index = kRows == 1 ? workgroup_id_x() * kRowsPerPass + row_in_pass : workgroup_id_x();
  const u32 block_row = index / blocks, block = index % blocks;
  const u32 row0 = block_row * kRows + (kRows == 1 ? 0 : row_in_pass);
  const u64 offset = u64{row0} * k + block * kBlock + lane * kElemsPerLane;

  F32x8 values[kPasses] = {};
  u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
  for (u32 t = 0; t < kPasses; ++t) {
    if (row0 + t * kRowsPerPass < m) {
      const Input* src = x + offset + u64{t} * kRowsPerPass * k;
      values[t] = __builtin_convertvector(load(src), F32x8);
    }
    const u32 row_amax = max_of_eight(values[t]);
    amax = row_amax > amax ? row_amax : amax;
  }
  amax = max_over_row(amax);
  if constexpr (kRows > 1) amax = max_over_workgroup(amax);

  const Fp8Block quantiser(amax);
#pragma unroll
  for (u32 t = 0; t < kPasses; ++t) {
    if (row0 + t * kRowsPerPass < m) {
      u8* dst = payload + offset + u64{t} * kRowsPerPass * k;
      const F32x8& v = values[t];
      *reinterpret_cast<Fp8x8*>(dst) = {quantiser.convert(v[0], v[1], v[2], v[3]),
                                        quantiser.convert(v[4], v[5], v[6], v[7])};
    }
  }
  if (lane == 0 && row0 < m && (kRows == 1 || row_in_pass == 0)) {
    scale[u64{block_row} * scale_row + u64{block} * scale_k] = quantiser.scale();
  }
}
