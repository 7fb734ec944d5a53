// A workgroup of four waves computes 128 x 128 outputs, a wave 64 x 64 of them. All threads load a
// K-step of 64 elements (128 bytes of a row) to LDS, whence each row is read by two waves.
#include "rfops/chip/buffer.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/lds_swizzle.h"
using namespace rfops;

constexpr u32 kTile = RFOPS_TILE, kThreads = RFOPS_THREADS, kLoads = kTile * kRowChunks / kThreads;

// Where 16-byte chunk c of a row is in LDS. Swizzled (lds_swizzle.h), the lanes that LDS serves
// together find their chunks in different banks.
__device__ u32 chunk_offset(u32 row, u32 chunk) {
  return RFOPS_SWIZZLE ? lds_offset(row, chunk) : row * kRowBytes + chunk * kVecBytes;
}

struct Operand {
  Buffer rows;
  u32 row_bytes;
  U32x4 staged[kLoads];

  __device__ void load(u32 k_bytes) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      const u32 index = i * kThreads + thread_id();
      const u32 offset = index / kRowChunks * row_bytes + index % kRowChunks * kVecBytes;
      staged[i] = buffer_load_b128(rows, offset, k_bytes);
    }
  }
  __device__ void store(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      const u32 index = i * kThreads + thread_id();
      const u32 offset = chunk_offset(index / kRowChunks, index % kRowChunks);
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + offset) = staged[i];
    }
  }
};

// Loads 16 rows from `row` on: the lane's chunk of half a K-step, 32 elements.
__device__ U32x4 read_fragment(const LdsBytes* tile, u32 row, u32 half) {
  const u32 lane = lane_id();
  return lds_load_b128(tile + chunk_offset(row + lane % 16, half * 4 + lane / 16));
}

__shared__ u8 x_tile[kTile * kRowBytes], w_tile[kTile * kRowBytes];

extern "C" __global__ void gemm_tile(bf16* out, const bf16* x, const bf16* w, u32, u32 n, u32 k) {
  const u32 row = workgroup_id_y() * kTile, col = workgroup_id_x() * kTile, row_bytes = k * 2;
  const u32 wave_row = wave_id() / 2 * 64, wave_col = wave_id() % 2 * 64, lane = lane_id();
  Operand x_rows{make_buffer(x + u64{row} * k, kTile * row_bytes), row_bytes, {}};
  Operand w_rows{make_buffer(w + u64{col} * k, kTile * row_bytes), row_bytes, {}};
  auto* const x_lds = (LdsBytes*)x_tile;
  auto* const w_lds = (LdsBytes*)w_tile;
  F32x4 sum[4][4] = {};
  for (u32 i = 0; i < row_bytes; i += kRowBytes) {
    x_rows.load(i), w_rows.load(i);
    workgroup_barrier();  // all waves have read the step before
    x_rows.store(x_lds), w_rows.store(w_lds);
    workgroup_barrier();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      U32x4 x_part[4], w_part[4];
#pragma unroll
      for (u32 t = 0; t < 4; ++t) x_part[t] = read_fragment(x_lds, wave_row + 16 * t, half);
#pragma unroll
      for (u32 t = 0; t < 4; ++t) w_part[t] = read_fragment(w_lds, wave_col + 16 * t, half);
#pragma unroll
      for (u32 a = 0; a < 4; ++a) {
#pragma unroll
        for (u32 b = 0; b < 4; ++b)
          sum[a][b] = mfma_16x16x32<bf16>(w_part[b], x_part[a], sum[a][b]);
      }
    }
  }
  out += u64{row + wave_row + lane % 16} * n + col + wave_col + lane / 16 * 4;
#pragma unroll
  for (u32 a = 0; a < 4; ++a) {
#pragma unroll
    for (u32 b = 0; b < 4; ++b) {
      *reinterpret_cast<Bf16x4*>(out + u64{a} * 16 * n + b * 16) =
          __builtin_convertvector(sum[a][b], Bf16x4);
    }
  }
}
