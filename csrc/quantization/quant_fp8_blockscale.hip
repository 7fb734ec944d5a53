// scale[r, b] = amax / kMost,  payload[m, k] = fp8(x[m, k] * (kMost / amax))
//
// amax is the largest magnitude of a block of kRows rows by 128 of K; kMost is the largest FP8: 240
// of e4m3fnuz (gfx942), 448 of e4m3 (gfx950); fp8_blockscale.h has the rest. Any M, K a multiple of
// 128.
//
// Layout. 16 lanes hold a row of a block, 8 elements each, which they load as 16 bytes (fp32:
// twice). With kRows == 1 a workgroup has 16 blocks, which follow each other in memory; with 128 it
// has one block, 8 rows a thread, and the 16 rows' maxima of a turn meet in LDS.
//
// Promises. Bit-exact to the torch route: division is correctly rounded, conversion rounds to
// nearest even. Requires: x 16-byte aligned with kAligned, otherwise aligned to its elements.
#include "rfops/chip/types.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/wave/reduce_scatter.h"

#if !defined(RFOPS_ROWS) || !defined(RFOPS_IN) || !defined(RFOPS_ALIGNED)
#error "quant_fp8_blockscale needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using In = RFOPS_IN;                        // bf16, f16 or f32
constexpr u32 kRows = RFOPS_ROWS;           // of a block: 1 or 128
constexpr bool kAligned = RFOPS_ALIGNED;    // x begins at a multiple of 16 bytes
constexpr u32 kBlock = 128;                 // along K
constexpr u32 kThreads = 256, kLanes = 16;  // of a row of a block
constexpr u32 kEach = kBlock / kLanes;      // elements of a lane and row
constexpr u32 kRowsAtOnce = kThreads / kLanes;
constexpr u32 kTurns = kRows == 1 ? 1 : kRows / kRowsAtOnce;
static_assert(kRows == 1 || kRows == 128, "1 x 128 or 128 x 128");

using InVec = In __attribute__((ext_vector_type(kEach)));
typedef InVec UnalignedInVec __attribute__((aligned(sizeof(In))));
using F32x8 = f32 __attribute__((ext_vector_type(kEach)));

__device__ inline InVec load(const In* from) {
  if constexpr (kAligned) return *reinterpret_cast<const InVec*>(from);
  return *reinterpret_cast<const UnalignedInVec*>(from);
}

// The bits of the largest magnitude.
__device__ inline u32 most_bits(F32x8 values) {
  u32 most = 0;
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) most = Fp8Block::larger(most, Fp8Block::magnitude(values[i]));
  return most;
}

// Over the 16 lanes of a row.
__device__ inline u32 most_of_row(u32 most) {
  const auto fold = [&](f32 other) {
    const u32 bits = __builtin_bit_cast(u32, other);
    most = bits > most ? bits : most;
  };
  fold(details::partner<1>(__builtin_bit_cast(f32, most)));
  fold(details::partner<2>(__builtin_bit_cast(f32, most)));
  fold(details::partner<4>(__builtin_bit_cast(f32, most)));
  fold(details::partner<8>(__builtin_bit_cast(f32, most)));
  return most;
}

// Over the rows that the workgroup's threads hold.
__device__ inline u32 most_of_group(u32 most) {
  __shared__ u32 rows[kRowsAtOnce];
  if (thread_id() % kLanes == 0) rows[thread_id() / kLanes] = most;
  workgroup_barrier();
#pragma unroll
  for (u32 i = 0; i < kRowsAtOnce; ++i) most = rows[i] > most ? rows[i] : most;
  return most;
}

struct Fp8x8 {
  u32 low, high;
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_fp8_blockscale(u8* __restrict__ payload,  // [M, K]
                     f32* __restrict__ scale,   // [M / kRows, K / 128], in steps of
                     const In* __restrict__ x,  // [M, K]
                     u32 m, u32 k, u32 scale_row, u32 scale_k) {
  const u32 lane = thread_id() % kLanes, slot = thread_id() / kLanes;
  const u32 blocks = k / kBlock;
  const u64 index = kRows == 1 ? u64{workgroup_id_x()} * kRowsAtOnce + slot : workgroup_id_x();
  const u32 block_row = static_cast<u32>(index / blocks), block = static_cast<u32>(index % blocks);
  const u32 row0 = block_row * kRows + (kRows == 1 ? 0 : slot);
  const u64 at = u64{row0} * k + block * kBlock + lane * kEach;

  F32x8 values[kTurns] = {};
  u32 most = Fp8Block::kLeast;
#pragma unroll
  for (u32 t = 0; t < kTurns; ++t) {
    if (row0 + t * kRowsAtOnce < m) {
      const In* from = x + at + u64{t} * kRowsAtOnce * k;
      values[t] = __builtin_convertvector(load(from), F32x8);
    }
    const u32 own = most_bits(values[t]);
    most = own > most ? own : most;
  }
  most = most_of_row(most);
  if constexpr (kRows > 1) most = most_of_group(most);

  const Fp8Block own(most);
#pragma unroll
  for (u32 t = 0; t < kTurns; ++t) {
    if (row0 + t * kRowsAtOnce < m) {
      u8* to = payload + at + u64{t} * kRowsAtOnce * k;
      const F32x8& v = values[t];
      *reinterpret_cast<Fp8x8*>(to) = {own.convert(v[0], v[1], v[2], v[3]),
                                       own.convert(v[4], v[5], v[6], v[7])};
    }
  }
  if (lane == 0 && row0 < m && (kRows == 1 || slot == 0)) {
    scale[u64{block_row} * scale_row + u64{block} * scale_k] = own.scale();
  }
}
