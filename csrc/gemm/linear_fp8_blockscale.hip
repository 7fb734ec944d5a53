// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x_q[m, k] * w[n, k]
//
// x_q, x_scale = x [M, K] in FP8 with an fp32 scale per 1 x 128 (rfops/number/fp8_blockscale.h),
// quantised here: x has Input's type. w is FP8 with fp32 scales per 128 x 128, read once, from
// memory to registers. M up to 16, any N, K a multiple of 128.
//
// Layout. A workgroup computes all rows of x by 16 kNTiles rows of w. Its kWaves waves interleave
// along K in K-steps of kSteps blocks of 128. A lane loads the elements of x of its own fragments,
// 32 of a block, four lanes have a row's block; x comes from L2 and is quantised while w comes from
// memory. w is loaded by whole lines and put into order by the wave's own LDS (wave_loader.h). w is
// MFMA operand A, so a lane holds 4 neighbours of a row of out. The waves' partials are reduced in
// LDS in the order of the waves.
//
// Guarantees: bitwise deterministic; x_q and x_scale are those of quant_fp8_blockscale, bit for
// bit. Requires: rows of x and w 16-byte aligned; x and the rows of w of a workgroup below 2 GiB.
#include "rfops/chip/buffer.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/fp8_blockscale.h"
#include "rfops/tile/wave_loader.h"
#include "rfops/wave/mx_block_amax.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                 // bf16 or f16
using Out = RFOPS_OUT;                  // bf16, f16 or f32
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w
constexpr u32 kSteps = RFOPS_STEPS;     // blocks along K that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;     // along K
constexpr u32 kThreads = kWaves * kWaveSize, kN = kNTiles * kTileRows;
static_assert(kTileK % kN == 0, "a workgroup's rows of w have one scale per block");

using Order = WaveOrder<kSteps>;
using WRows = WaveTileLoader<RFOPS_SHUFFLED, kSteps>;
constexpr u32 kSumBytes = kWaves > 1 ? kNTiles * kWaveSize * sizeof(F32x4) : kVecBytes;
constexpr u32 kWaveBytes = kSumBytes > Order::kBytes ? kSumBytes : Order::kBytes;
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveBytes / sizeof(F32x4)];

// A lane's 32 elements of a block of its row of x.
class XBlock {
 public:
  __device__ void load(const Buffer& x, u32 offset, u32 block) {
#pragma unroll
    for (u32 i = 0; i < kEights; ++i) {
      const u32 elem = i / 2 * kPieceK + i % 2 * kVec;
      const U32x4 loaded =
          buffer_load_b128(x, offset, (block * kTileK + elem) * u32{sizeof(Input)});
#pragma unroll
      for (u32 d = 0; d < 4; ++d) eights_[i].words[d] = loaded[d];
    }
  }
  // Returns the lane's fragment, and the scale of the block of its row.
  __device__ Fragment quantise(f32& scale) const {
    u32 amax = Fp8Block::kMinAmaxBits;
#pragma unroll
    for (u32 i = 0; i < kEights; ++i) {
      using Element = MxFloat<Input>;
      const f32 of_eight = Element::amax_value(Element::amax_bits(eights_[i].words));
      amax = Fp8Block::larger(amax, __builtin_bit_cast(u32, of_eight));
    }
    const Fp8Block block(reduce_lanes<kWaveSize, kTileRows>(amax, Fp8Block::larger));
    scale = block.scale();
    U32x4 halves[2];
#pragma unroll
    for (u32 d = 0; d < kWords; ++d) {
      const Eight<Input>& eight = eights_[d / 2];
      const u32 i = d % 2 * 4;
      halves[d / 4][d % 4] = block.convert(eight.element(i), eight.element(i + 1),
                                           eight.element(i + 2), eight.element(i + 3));
    }
    return {halves[0], halves[1]};
  }

 private:
  static constexpr u32 kVec = 8, kEights = 4, kWords = 8;
  Eight<Input> eights_[kEights];
};

// Stores four neighbours of a row, of which those before column n.
__device__ inline void store(Out* row, u32 column, u32 n, F32x4 sum) {
  const auto values = __builtin_convertvector(sum, Vec4<Out>);
  if (n % 4 == 0) {
    if (column < n) *reinterpret_cast<Vec4<Out>*>(row + column) = values;
    return;
  }
#pragma unroll
  for (u32 e = 0; e < 4; ++e)
    if (column + e < n) row[column + e] = values[e];
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
linear_fp8_blockscale(const u8* __restrict__ w,     // [N, K], rows w_row bytes apart
                      const Input* __restrict__ x,  // [M, K], rows x_row elements apart
                      u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 w_scale_k,
                      const f32* __restrict__ w_scale,  // [N/128, K/128]
                      Out* __restrict__ out) {          // [M, N]
  const u32 n0 = workgroup_id_x() * kN, wave = kWaves == 1 ? 0 : wave_id(), lane = lane_id();
  const u32 blocks = k / kTileK, token = lane % kTileRows;
  const Buffer x_buffer = make_buffer(x, ((m - 1) * x_row + k) * u32{sizeof(Input)});
  const u32 x_offset = (token * x_row + lane / kTileRows * kVecBytes) * u32{sizeof(Input)};
  const WRows w_rows({w, n0, n, kN, w_row, 0, k, WRows::kKStrideBytes}, lane);
  const f32* const scales = w_scale + u64{n0 / kTileK} * w_scale_row;
  const Order order((LdsBytes*)memory, wave * kWaveBytes, lane);
  F32x4 sums[kNTiles] = {};
  for (u32 begin = wave * kSteps; begin < blocks; begin += kWaves * kSteps) {
    XBlock x_blocks[kSteps];
    Fragment w_tiles[kNTiles][kSteps];
    f32 w_scales[kSteps];
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      const bool is_loaded = token < m && begin + s < blocks;
      x_blocks[s].load(x_buffer, is_loaded ? x_offset : kOutOfBounds, begin + s);
      sched_barrier();
    }
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
#pragma unroll
      for (u32 s = 0; s < kSteps; s += WRows::kTiles)
        w_rows.template load<kStreamed>(&w_tiles[j][s], j * kTileRows, begin + s, blocks);
    }
    sched_barrier();
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s)
      w_scales[s] = scales[(begin + s < blocks ? begin + s : 0) * w_scale_k];
    Fragment x_tiles[kSteps];
    f32 x_scales[kSteps];
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) x_tiles[s] = x_blocks[s].quantise(x_scales[s]);
    sched_barrier();
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
#pragma unroll
      for (u32 s = 0; s < kSteps; s += WRows::kTiles) WRows::arrange(&w_tiles[j][s], order);
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s) {
        F32x4 partial = {};
#pragma unroll
        for (u32 q = 0; q < kMatrixSteps; ++q)
          partial = mfma_fp8_step(q, w_tiles[j][s], x_tiles[s], partial);
        const f32 scale = begin + s < blocks ? x_scales[s] * w_scales[s] : 0.0f;
#pragma unroll
        for (u32 e = 0; e < 4; ++e) sums[j][e] = __builtin_fmaf(partial[e], scale, sums[j][e]);
      }
    }
  }
  reduce_waves(memory, sums, wave, wave, lane, [&](u32, u32 t, F32x4 total) {
    const u32 column = n0 + t * kTileRows + lane / kTileRows * 4;
    if (token < m) store(out + u64{token} * n, column, n, total);
  });
}
