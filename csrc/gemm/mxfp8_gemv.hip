// out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in block b} x[m, k] * w[n, k]
//
// OCP MX-FP8: e4m3 payloads, one e8m0 scale per block of 32 along K, bf16 out; M = 1..16 rows of x.
// The decode path of a linear layer: reading w is the limit, so each byte of w is read once, for
// all M.
//
// Layout. A workgroup computes kTileN rows of w; its waves interleave along K. In a wave, kLanes
// lanes span K with 16 bytes each (a K-step), the 64 / kLanes lane groups take neighbouring rows,
// and kRows such sets of rows by kSteps K-steps are in flight: kRows * kSteps KiB of w per wave.
// Elements are widened to f16 (exact) and multiplied by v_dot2_f32_f16 (exact products, fp32 sums),
// and the sum of each half block is scaled once by v_ldexp_f32: nothing overflows or underflows
// that does not in the formula above. A lane's 16 elements never straddle a block. That costs about
// 10 + 12 M VALU instructions per 16 bytes of w in a lane; HBM at 8 TB/s leaves time for 78 (256
// CUs, 2.4 GHz), so above M = 5 the VALU is the limit.
//
// Guarantees: bitwise deterministic for given kLanes, kSteps, kWaves and K. Ragged K (any multiple
// of 32) and N read zeros by the range check. A scale of 255 is NaN.
// Requires: x and w 16-byte aligned; each tensor below 2 GiB.
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_mxfp8.h"
#include "rfops/number/mxfp8.h"
#include "rfops/wave/reduce_scatter.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp8_gemv is gfx950-only: it needs OCP e4m3 conversions and v_permlane*_swap"
#endif

namespace {

using namespace rfops;

constexpr u32 kM = RFOPS_M;          // rows of x
constexpr u32 kLanes = RFOPS_LANES;  // lanes along K
constexpr u32 kRows = RFOPS_ROWS;    // rows of w that a lane sums at once
constexpr u32 kSteps = RFOPS_STEPS;  // K-steps that a wave has in flight
constexpr u32 kWaves = RFOPS_WAVES;  // waves per workgroup, interleaved along K

constexpr u32 kGroups = kWaveSize / kLanes;  // lane groups, one row of w each
constexpr u32 kTileN = kRows * kGroups;      // rows of w per workgroup
constexpr u32 kStepK = kLanes * kVecBytes;   // elements of K per K-step
constexpr u32 kWaveK = kSteps * kStepK;      // elements of K that a wave has in flight
constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kSums = kRows * kM;  // per lane
constexpr u32 kSumsPerLane =
    (kSums + kLanes - 1) / kLanes;  // sums that a lane keeps after reduce_scatter

// Rows of x that are widened at a time, at 8 registers per row; w is widened once per pass over the
// tile.
constexpr u32 kPasses = (kM + 7) / 8;
constexpr u32 kTileM = (kM + kPasses - 1) / kPasses;

static_assert(kM >= 1 && kM <= 16, "more rows of x belong to a matrix-core kernel");
static_assert(kLanes == 16 || kLanes == 32 || kLanes == 64, "lane groups are rows of 16 lanes");
static_assert(kVecBytes * 2 == kMxBlock, "a lane's 16 bytes are half a block: one scale each");
static_assert(kThreads <= 1024, "a workgroup has at most 1024 threads");
static_assert(2 * kSteps * (kM + kRows) <= 63, "vmcnt counts at most 63 loads in flight");

// One lane's part of what a wave loads at once.
struct KStepFragments {
  U32x4 x[kSteps][kM];
  U32x4 w[kSteps][kRows];
  u32 x_scale[kSteps][kM];
  u32 w_scale[kSteps][kRows];
};

struct Operands {
  MxRows x, w;
  u32 k;
};

// Loads in the order of use with w last: x comes from L2 and is widened while w is in flight, and
// each row of w is used as it arrives (vmcnt counts loads in order) instead of after the last
// scale.
__device__ inline void load(KStepFragments& frags, const Operands& args, u32 n0, u32 k0, u32 lane) {
  const u32 group = lane / kLanes;
  const u32 scales_k = args.k / kMxBlock;
  u32 offset[kSteps], scale_offset[kSteps];
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
    const u32 k = k0 + s * kStepK + (lane % kLanes) * kVecBytes;
    offset[s] = k < args.k ? k : kOutOfBounds;
    scale_offset[s] = k < args.k ? k / kMxBlock : kOutOfBounds;
#pragma unroll
    for (u32 m = 0; m < kM; ++m) {
      frags.x[s][m] = buffer_load_b128(args.x.payload, offset[s], m * args.k);
      frags.x_scale[s][m] = buffer_load_u8(args.x.scales, scale_offset[s], m * scales_k);
    }
#pragma unroll
    for (u32 r = 0; r < kRows; ++r) {
      frags.w_scale[s][r] = buffer_load_u8(args.w.scales, scale_offset[s] + group * scales_k,
                                           (n0 + r * kGroups) * scales_k);
    }
  }
  sched_barrier();
#pragma unroll
  for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
    for (u32 r = 0; r < kRows; ++r) {
      frags.w[s][r] = buffer_load_b128<kStreamed>(args.w.payload, offset[s] + group * args.k,
                                                  (n0 + r * kGroups) * args.k);
    }
  }
  sched_barrier();  // all loads are issued before the first wait
}

// Adds the products of K-step s with the rows of x from m0 on.
__device__ inline void multiply(f32* sums, const KStepFragments& frags, u32 s, u32 m0) {
  Half16 x[kTileM];
  i32 x_exponent[kTileM];
#pragma unroll
  for (u32 i = 0; i < kTileM; ++i) {
    const u32 m = m0 + i < kM ? m0 + i : kM - 1;
    x[i] = widen_e4m3(apply_nan_scale(frags.x[s][m], frags.x_scale[s][m]));
    x_exponent[i] = static_cast<i32>(frags.x_scale[s][m]) - 2 * kE8m0Bias;
  }
#pragma unroll
  for (u32 r = 0; r < kRows; ++r) {
    const Half16 w = widen_e4m3(apply_nan_scale(frags.w[s][r], frags.w_scale[s][r]));
#pragma unroll
    for (u32 i = 0; i < kTileM; ++i) {
      if (m0 + i >= kM) continue;
      const i32 exponent = x_exponent[i] + static_cast<i32>(frags.w_scale[s][r]);
      sums[r * kM + m0 + i] += __builtin_ldexpf(dot_16(x[i], w), exponent);
    }
  }
}

// Reduces over the lanes, then over the waves through LDS, and stores the tile.
__device__ inline void store_tile(bf16* out, f32* sums, u32 n, u32 n0, u32 wave, u32 lane) {
  __shared__ LdsPartials<f32, kWaves, kSums * kGroups> lds;
  reduce_scatter<kLanes, kSums>(sums, lane);
#pragma unroll
  for (u32 p = 0; p < kSumsPerLane; ++p) {
    const u32 index = scattered_index<kLanes>(lane) + p * kLanes;
    if (index < kSums) lds.items[wave][index * kGroups + lane / kLanes] = sums[p];
  }
  workgroup_barrier();
  for (u32 t = thread_id(); t < kSums * kGroups; t += kThreads) {
    const u32 group = t % kGroups, m = t / kGroups % kM, r = t / kGroups / kM;
    const u32 row = n0 + r * kGroups + group;
    if (row < n) out[static_cast<u64>(m) * n + row] = static_cast<bf16>(lds.sum(t));
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mxfp8_gemv(bf16* __restrict__ out,          // [M, N]
           const u8* __restrict__ x,        // [M, K] e4m3
           const u8* __restrict__ w,        // [N, K] e4m3
           const u8* __restrict__ x_scale,  // [M, K/32] e8m0
           const u8* __restrict__ w_scale,  // [N, K/32] e8m0
           u32 n, u32 k) {
  const Operands args = {{x, x_scale, 0, kM, k}, {w, w_scale, 0, n, k}, k};
  const u32 n0 = workgroup_id_x() * kTileN;
  const u32 wave = wave_id();
  const u32 lane = lane_id();

  // At least one iteration: a wave wholly beyond K reads zeros, and no branch precedes the loads.
  f32 sums[kSums] = {};
  u32 k0 = wave * kWaveK;
  do {
    KStepFragments frags;
    load(frags, args, n0, k0, lane);
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
#pragma unroll
      for (u32 m0 = 0; m0 < kM; m0 += kTileM) multiply(sums, frags, s, m0);
    }
    k0 += kWaves * kWaveK;
  } while (k0 < k);
  store_tile(out, sums, n, n0, wave, lane);
}
