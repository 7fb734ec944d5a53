// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales of blocks of 128 of K; any M and N, K a multiple of 128, scales of any
// value.
//
// Layout. Eight waves, 2 along M and 4 along N, two a SIMD, make kM x kN of the result. Operands
// come straight from memory to LDS, two K-steps of them, in halves of rows: X0, X1, W0, W1. A
// K-step has four phases, one for each quarter of the result, and a phase a memory part and a
// compute part with a barrier after each. The waves of the second half of M are a phase's part
// behind: while one wave of a SIMD computes the other one reads LDS and starts loads.
//
//   phase  reads      starts            computes
//     0    W0 X0      X1 of k + 1       X0 x W0
//     1    W1         X0 of k + 2       X0 x W1
//     2    X1         W0 of k + 2       X1 x W1
//     3               W1 of k + 2       X1 x W0      and all but the last three have arrived
//
// Partial sums of a block are promoted as promote.h has it, a group of tiles late, across phases
// and K-steps; with kPow2 the matrix cores scale and sum themselves. w is operand A, so that a lane
// holds 4 neighbours of a row of out, and the scale of its tile is one value. kSplit workgroups
// share out K; the last of a tile adds up.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns x, w
// and their rows to 16 bytes; a workgroup's rows span less than 2 GiB, what lies before them may be
// more.
#include "rfops/block_map.h"
#include "rfops/epilogue.h"
#include "rfops/lds_tile.h"
#include "rfops/loader.h"
#include "rfops/promote.h"
#include "rfops/scales.h"
#include "rfops/split_reduce.h"
#include "rfops/waits.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "a8w8_blockscale_pingpong is gfx950-only: it needs 16-byte loads to LDS and 160 KB of it"
#endif

#if !defined(RFOPS_M) || !defined(RFOPS_N) || !defined(RFOPS_SPLIT) || !defined(RFOPS_GROUP_M) || \
    !defined(RFOPS_OUT) || !defined(RFOPS_SHUFFLED) || !defined(RFOPS_POW2)
#error "a8w8_blockscale_pingpong needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w lies in tiles of 16 rows by 16 bytes
constexpr u32 kM = RFOPS_M;                 // rows of x of a workgroup
constexpr u32 kN = RFOPS_N;                 // rows of w of a workgroup
constexpr u32 kSplit = RFOPS_SPLIT;         // workgroups along K
constexpr u32 kGroupM = RFOPS_GROUP_M;      // tiles along M of a group of workgroups
constexpr bool kPow2 = RFOPS_POW2;          // all scales are positive powers of two
constexpr u32 kMWaves = 2, kNWaves = 4, kWaves = kMWaves * kNWaves;
constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kXHalf = kM / 2, kWHalf = kN / 2;  // rows
constexpr u32 kXTiles = kXHalf / kMWaves / kTileRows, kWTiles = kWHalf / kNWaves / kTileRows;
constexpr u32 kQuarter = kXTiles * kWTiles;  // tiles of a wave in a phase
constexpr u32 kTiles = 4 * kQuarter;

using Loader = DirectLoader<kWaves>;
using WLoader = DirectLoader<kWaves, kShuffled>;
constexpr u32 kXLoads = kXHalf / Loader::kRowsAtOnce, kWLoads = kWHalf / Loader::kRowsAtOnce;
constexpr u32 kInFlight = kXLoads + 2 * kWLoads;  // what phases 1 to 3 start
constexpr u32 kScaleRows8 = kM / kWaves;          // rows whose scales a wave loads

static_assert(kQuarter % kGroup == 0, "whole groups in a phase");
static_assert(kWHalf <= kScaleRows && kScaleRows % kWHalf == 0, "a half of w has one scale");

// Two K-steps of the operands and of x's scales.
struct Stage {
  u8 x[2][kXHalf * kRowBytes], w[2][kWHalf * kRowBytes];
};
struct Memory {
  Stage stage[2];
  f32 x_scale[2][kM];
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");

// A tile's sums, and what the wave holds of its scale.
template <bool kOfExponents>
struct Summing {
  using Sums = Promoted<kTiles>;
  using Scale = f32;
  static __device__ Scale product(f32 x, f32 w) {
    f32 scale = x * w;
    pin(scale);  // here, where the matrix cores are the other wave's
    return scale;
  }
};
template <>
struct Summing<true> {
  using Sums = Exponents<kTiles>;
  using Scale = Sums::Scale;
  static __device__ Scale product(f32 x, f32 w) {
    constexpr u32 kMantissaBits = 23;
    return {as_scalar(__builtin_bit_cast(u32, w)) >> kMantissaBits,
            __builtin_bit_cast(u32, x) >> kMantissaBits};
  }
};
using Sums = Summing<kPow2>::Sums;
using Scale = Summing<kPow2>::Scale;

// Tile t of a quarter, in the order of promotion: neighbours share an operand.
constexpr u32 x_of(u32 t) { return t / kWTiles; }
constexpr u32 w_of(u32 t) { return x_of(t) % 2 == 0 ? t % kWTiles : kWTiles - 1 - t % kWTiles; }
// The quarter of a phase: which half of x and of w.
constexpr u32 x_half(u32 phase) { return phase / 2; }
constexpr u32 w_half(u32 phase) { return phase == 1 || phase == 2; }

__shared__ Memory memory;

class Wave {
 public:
  __device__ Wave(const OperandRows& x, const OperandRows& w, const RowScales& x_scale,
                  const BlockScales (&w_scale)[2], u32 blocks)
      : memory_((RFOPS_LDS Memory*)&memory),
        x_(x),
        w_(w),
        w_scale_{w_scale[0], w_scale[1]},
        scale_buffer_(make_words(x_scale.first, x_scale.bytes)),
        scale_step_(x_scale.k_step),
        blocks_(blocks) {
    const u32 lane = lane_in_wave();
    wave_m = wave_in_group() / kNWaves;
    wave_n = wave_in_group() % kNWaves;
    pieces_ = lds_pieces(lane);
    scale_from_ = (wave_in_group() * kScaleRows8 + lane) * x_scale.row_step;
  }

  __device__ void multiply_all(Sums& sums) {
    start_x(0, 0, 0);
    start_w(0, 0, 0);
    start_w(0, 1, 0);
    start_x(0, 1, 0);
    start_scales(0, 0);
    start_x(1, 0, 1);
    start_w(1, 0, 1);
    start_w(1, 1, 1);
    wait_loads<kInFlight>();
    if (wave_m == 1) meet();
    meet();
    u32 block = 0;
    do {
      step<0>(sums, block);
      step<1>(sums, block + 1);
      block += 2;
    } while (block + 1 < blocks_);
    if (block < blocks_) step<0>(sums, block);
    sums.drain();
    if (wave_m == 0) meet();
  }

  u32 wave_m, wave_n;

 private:
  __device__ void start_x(u32 stage, u32 half, u32 block) const {
    x_.issue<kXHalf>((LdsBytes*)memory_->stage[stage].x[half], half * kXHalf, block * kTileK,
                     block < blocks_);
  }
  __device__ void start_w(u32 stage, u32 half, u32 block) const {
    w_.issue<kWHalf>((LdsBytes*)memory_->stage[stage].w[half], half * kWHalf, block * kTileK,
                     block < blocks_);
  }
  __device__ void start_scales(u32 stage, u32 block) const {
    U32x4 buffer = scale_buffer_;
    buffer[2] = block < blocks_ ? buffer[2] : 0;
    load_direct_4<kScaleRows8>(buffer, scale_from_, block * scale_step_,
                               (LdsBytes*)&memory_->x_scale[stage][wave_in_group() * kScaleRows8]);
  }

  __device__ void read_x(u32 stage, u32 half) {
    const LdsBytes* from = (LdsBytes*)memory_->stage[stage].x[half] + wave_m * kXTiles * kLdsTile;
    const RFOPS_LDS f32* scales = memory_->x_scale[stage] + half * kXHalf +
                                  wave_m * kXTiles * kTileRows + lane_in_wave() % kTileRows;
#pragma unroll
    for (u32 i = 0; i < kXTiles; ++i) {
      x_tile_[i] = lds_tile(from + i * kLdsTile, pieces_);
      x_scale_[i] = scales[i * kTileRows];
    }
  }
  __device__ void read_w(u32 stage, u32 half) {
    const LdsBytes* from = (LdsBytes*)memory_->stage[stage].w[half] + wave_n * kWTiles * kLdsTile;
#pragma unroll
    for (u32 j = 0; j < kWTiles; ++j) w_tile_[half][j] = lds_tile(from + j * kLdsTile, pieces_);
  }

  template <u32 kStage>
  __device__ void step(Sums& sums, u32 block) {
    const u32 last = block < blocks_ ? block : blocks_ - 1;
    const f32 w_scale[2] = {w_scale_[0].at(last), w_scale_[1].at(last)};
    read_w(kStage, 0);
    read_x(kStage, 0);
    start_x(1 - kStage, 1, block + 1);
    start_scales(1 - kStage, block + 1);
    compute<0>(sums, w_scale);
    read_w(kStage, 1);
    start_x(kStage, 0, block + 2);
    compute<1>(sums, w_scale);
    read_x(kStage, 1);
    start_w(kStage, 0, block + 2);
    compute<2>(sums, w_scale);
    start_w(kStage, 1, block + 2);
    compute<3>(sums, w_scale);
  }

  // The end of a phase's memory part, and its compute part.
  template <u32 kPhase>
  __device__ void compute(Sums& sums, const f32 (&w_scale)[2]) {
    Scale scale[kXTiles];
    wait_lds();
#pragma unroll
    for (u32 i = 0; i < kXTiles; ++i) {
      scale[i] = Summing<kPow2>::product(x_scale_[i], w_scale[w_half(kPhase)]);
    }
    if constexpr (kPhase == 3) wait_loads<kInFlight>();
    prio<0>();
    meet();
    groups<kPhase, 0>(sums, scale);
    prio<1>();
    meet();
  }
  template <u32 kPhase, u32 kFirst>
  __device__ void groups(Sums& sums, const Scale (&scale)[kXTiles]) {
    if constexpr (kFirst < kQuarter) {
      sums.multiply<kPhase * kQuarter + kFirst>(
          [&](u32 t) -> const Tile& { return w_tile_[w_half(kPhase)][w_of(kFirst + t)]; },
          [&](u32 t) -> const Tile& { return x_tile_[x_of(kFirst + t)]; },
          [&](u32 t) { return scale[x_of(kFirst + t)]; });
      groups<kPhase, kFirst + kGroup>(sums, scale);
    }
  }

  RFOPS_LDS Memory* memory_;
  Loader x_;
  WLoader w_;
  BlockScales w_scale_[2];
  U32x4 scale_buffer_;
  u32 scale_step_, scale_from_, blocks_;
  LdsPieces pieces_;
  Tile x_tile_[kXTiles], w_tile_[2][kWTiles];
  f32 x_scale_[kXTiles];
};

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    a8w8_blockscale_pingpong(Out* __restrict__ out,            // [M, N]
                             const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
                             const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
                             const f32* __restrict__ x_scale,  // [M, K/128], in steps of
                             const f32* __restrict__ w_scale,  // [N/128, K/128], likewise
                             void* __restrict__ workspace,     // SplitTile; with kSplit > 1
                             u32* __restrict__ counts,         // [tiles], zeros
                             u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 x_scale_row,
                             u32 x_scale_k, u32 w_scale_row, u32 w_scale_k) {
  const u32 m_blocks = (m + kM - 1) / kM, n_blocks = (n + kN - 1) / kN;
  const Block at = own_block<kGroupM, kSplit>(m_blocks, n_blocks);
  const u32 m0 = at.m * kM, n0 = at.n * kN;
  const u32 all = k / kTileK;  // shared out in parts that differ by one K-step at most
  const u32 first = all * at.split / kSplit;
  const u32 blocks = all * (at.split + 1) / kSplit - first;

  // A second half of w that is not there has the scale of the first: any that is.
  const u32 n1 = n0 + kWHalf < n ? n0 + kWHalf : n0;
  Wave wave(
      {x, m0, m, kM, x_row, first * kTileK, blocks * kTileK},
      {w, n0, n, kN, w_row, first * kTileK, blocks * kTileK, WLoader::Order::kUnit},
      {x_scale, m0, m, kM, x_scale_row, x_scale_k, first, blocks},
      {{w_scale, n0, w_scale_row, w_scale_k, first}, {w_scale, n1, w_scale_row, w_scale_k, first}},
      blocks);
  Sums sums = {};
  wave.multiply_all(sums);
  if constexpr (kSplit > 1) {
    SplitTile<kSplit, kTiles * kThreads, kThreads> tile(workspace, counts, at.m * n_blocks + at.n);
    if (!tile.reduce(sums.sum, at.split)) return;
  }
  const u32 lane = lane_in_wave();
  OutRows<Out>(out, m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      const u32 phase = t / kQuarter, q = t % kQuarter;
      const u32 row = x_half(phase) * kXHalf + (wave.wave_m * kXTiles + x_of(q)) * kTileRows;
      const u32 column = w_half(phase) * kWHalf + (wave.wave_n * kWTiles + w_of(q)) * kTileRows;
      store(sums.sum[t], row + lane % kTileRows, n0 + column + lane / kTileRows * 4);
    }
  });
}
