// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales, of any value, per block of 128 of K; any M and N, K a multiple of 128.
//
// Layout. Eight waves, 2 along M and 4 along N, two per SIMD, compute kM x kN of the output.
// Operands are loaded direct to LDS, two K-steps of them, in halves of their rows: X0, X1, W0, W1.
// A K-step has four phases, one per quarter of the output; each phase has a memory part and a
// compute part, with a barrier after each (ping-pong). The waves of the second half of M run one
// part later: while one wave of a SIMD computes, the other reads LDS and issues loads.
//
//   phase  even K-step: reads    computes    odd: reads       computes    issues, for k + 2
//     0    X0                    X0 x W0     X0               X0 x W1     the W read last
//     1    W1                    X0 x W1     W0               X0 x W0     X0
//     2    X1                    X1 x W1     X1               X1 x W0     the W read in phase 1
//     3    W1 of the next step   X1 x W0     W0 of the next   X1 x W1     X1
//
// The scales of an X are read with the W before it, because a W is half as much data. A load is
// read seven phases after its issue; at the end of each memory part the loads of only the last six
// phases are in flight. Column-major operands are transposed by the LDS reads (col_major_loader.h).
//
// The partial sums of a scale block are promoted one group of tiles later (promotion.h), across
// phases and K-steps; with kPow2 the MFMAs scale and accumulate. w is MFMA operand A, so a lane
// holds 4 neighbours of a row of out and the scale of its tile is one value. kSplit workgroups
// split K; the last to arrive reduces (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config and K.
// Requires: x, w and their rows 16-byte aligned; the rows of a workgroup span less than 2 GiB (what
// lies before them may be larger).
#include "gemm/col_major_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/block_scales.h"
#include "rfops/tile/promotion.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "a8w8_blockscale_pingpong is gfx950-only: it needs 16-byte loads to LDS and 160 KB of it"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kXColMajor =
    RFOPS_X_COLUMNS;  // x is column-major; x_row is then the stride between k and k + 1
constexpr bool kWColMajor = RFOPS_W_COLUMNS;  // w is column-major; w_row likewise
constexpr bool kDense = RFOPS_DENSE;          // x, w and w_scale are contiguous
constexpr u32 kM = RFOPS_M;                   // rows of x per workgroup
constexpr u32 kN = RFOPS_N;                   // rows of w per workgroup
constexpr u32 kSplit = RFOPS_SPLIT;           // split-K: workgroups per output tile
constexpr u32 kGroupM = RFOPS_GROUP_M;        // tiles along M per raster group (tile_map.h)
constexpr bool kPow2 = RFOPS_POW2;            // all scales are positive powers of two
constexpr u32 kMWaves = 2, kNWaves = 4, kWaves = kMWaves * kNWaves;
constexpr u32 kThreads = kWaves * kWaveSize;
constexpr u32 kXHalf = kM / 2, kWHalf = kN / 2;  // rows per half
constexpr u32 kXTiles = kXHalf / kMWaves / kTileRows, kWTiles = kWHalf / kNWaves / kTileRows;
constexpr u32 kQuarter = kXTiles * kWTiles, kTiles = 4 * kQuarter;  // per phase; per wave

using XPath = LdsDmaPath<kXColMajor, kXHalf, kXTiles, kWaves, false>;
using WPath = LdsDmaPath<kWColMajor, kWHalf, kWTiles, kWaves, kShuffled>;
using Loader = LdsDmaLoader<kWaves>;
constexpr u32 kXLoads = kXHalf / Loader::kRowsPerLoad, kWLoads = kWHalf / Loader::kRowsPerLoad;
constexpr u32 kInFlight = 3 * (kXLoads + kWLoads);  // loads of six phases
using Scales = LdsDmaScales<kM, kWaves>;

static_assert(kQuarter % kGroup == 0, "a whole number of groups per phase");
static_assert(kWHalf <= kScaleRows && kScaleRows % kWHalf == 0, "a half of w has one scale");

// Two K-steps of the operands and the ring of x's scales. The buffers of an operand are contiguous,
// so that one address register reaches all of them.
struct Memory {
  u8 x[2][2][kXHalf * kRowBytes], w[2][2][kWHalf * kRowBytes];
  f32 x_scale[Scales::kWords];
};
static_assert(sizeof(Memory) <= kLdsBytes, "LDS holds one workgroup per CU");
using Sums = BlockScaledAcc<kPow2, kTiles>;

// Tile t of a quarter, in the order of promotion: consecutive tiles share an operand.
constexpr u32 x_of(u32 t) { return t / kWTiles; }
constexpr u32 w_of(u32 t) { return x_of(t) % 2 == 0 ? t % kWTiles : kWTiles - 1 - t % kWTiles; }
// Quarter q of the output: its half of x and its half of w; the quarter of a phase in an even or
// odd K-step.
constexpr u32 x_half(u32 q) { return q / 2; }
constexpr u32 w_half(u32 q) { return q == 1 || q == 2; }
constexpr u32 quarter(u32 odd, u32 phase) { return phase ^ odd; }
constexpr u32 last_group(u32 q) { return (q + 1) * kQuarter - kGroup; }  // its first tile

__shared__ Memory memory;

class Wave {
 public:
  const u32 wave_m, wave_n;

  __device__ Wave(const OperandView& x, const OperandView& w, const RowScales& x_scale,
                  const BlockScales (&w_scale)[2], u32 blocks)
      : wave_m(wave_id() / kNWaves),
        wave_n(wave_id() % kNWaves),
        memory_((RFOPS_LDS Memory*)&memory),
        x_(x),
        w_(w),
        w_scale_{w_scale[0], w_scale[1]},
        scales_(x_scale),
        lds_dst_(Loader::wave_lds_base((LdsBytes*)memory_)),
        blocks_(blocks),
        x_reader_((LdsBytes*)memory_->x, lane_id(), wave_m * kXTiles * kTileRows),
        w_reader_((LdsBytes*)memory_->w, lane_id(), wave_n * kWTiles * kTileRows) {
    scale_offset_ = scales_.row_offset(wave_m * kXTiles * kTileRows + lane_id() % kTileRows);
  }

  __device__ void run_mainloop(Sums& sums) {
    scales_.issue(memory_->x_scale, 0, blocks_);
    issue_step<0>(0);
    issue_step<1>(1);
    wait_vmcnt<kInFlight>();
    if (wave_m == 1) s_barrier();
    s_barrier();
    read_w<0, 0>();  // as the phase before the first one would
    set_scale_block(0), read_scales<0>();
    w_block_scale_[0] = w_scale_[0].load(0), w_block_scale_[1] = w_scale_[1].load(0);
    wait_lgkmcnt();
    s_barrier();
    s_barrier();
    u32 block = 0;
    do {  // for an odd number of blocks the last step adds zeros
      do_step<0>(sums, block), do_step<1>(sums, block + 1);
      block += 2;
    } while (block < blocks_);
    sums.template drain<last_group(quarter(1, 3))>();
    if (wave_m == 0) s_barrier();
  }

 private:
  template <u32 kOdd, u32 kHalf>
  __device__ void issue_x(u32 block) const {
    constexpr u32 kLdsOffset = (2 * kOdd + kHalf) * kXHalf * kRowBytes;
    x_.issue<kXHalf, kLdsOffset>(lds_dst_, kHalf * kXHalf, block * kTileK, block < blocks_);
  }
  template <u32 kOdd, u32 kHalf>
  __device__ void issue_w(u32 block) const {
    constexpr u32 kLdsOffset = sizeof(Memory::x) + (2 * kOdd + kHalf) * kWHalf * kRowBytes;
    w_.issue<kWHalf, kLdsOffset>(lds_dst_, kHalf * kWHalf, block * kTileK, block < blocks_);
  }
  template <u32 kOdd>
  __device__ void issue_step(u32 block) const {
    issue_w<kOdd, kOdd>(block), issue_x<kOdd, 0>(block);
    issue_w<kOdd, 1 - kOdd>(block), issue_x<kOdd, 1>(block);
  }

  __device__ void set_scale_block(u32 block) {
    scale_ptr_ =
        memory_->x_scale + scale_offset_ + scales_.step_offset(lane_id() % kTileRows, block);
  }
  template <u32 kHalf>
  __device__ void read_scales() {
#pragma unroll
    for (u32 i = 0; i < kXTiles; ++i) {
      x_scale_[i] = scale_ptr_[(kHalf * kXHalf + i * kTileRows) / Scales::kRowsPerLoad *
                               Scales::kWordsPerLoad];
    }
  }
  template <u32 kOdd, u32 kHalf>
  __device__ void read_x() {
    constexpr u32 kLdsOffset = (2 * kOdd + kHalf) * kXHalf * kRowBytes;
#pragma unroll
    for (u32 i = 0; i < kXTiles; ++i) x_tile_[i] = x_reader_.read<kLdsOffset>(i);
    sched_barrier();
  }
  template <u32 kOdd, u32 kHalf>
  __device__ void read_w() {
    constexpr u32 kLdsOffset = (2 * kOdd + kHalf) * kWHalf * kRowBytes;
#pragma unroll
    for (u32 j = 0; j < kWTiles; ++j) w_tile_[kHalf][j] = w_reader_.read<kLdsOffset>(j);
    sched_barrier();
  }

  // One K-step; the half of w that is used first is number kOdd.
  template <u32 kOdd>
  __device__ void do_step(Sums& sums, u32 block) {
    if (kOdd == 0 && block % Scales::kSteps == 0) {
      scales_.issue(memory_->x_scale, block + Scales::kSteps, blocks_);
    }
    read_x<kOdd, 0>();
    issue_w<kOdd, kOdd>(block + 2);
    compute<kOdd, 0>(sums);
    read_w<kOdd, 1 - kOdd>(), read_scales<1>();
    issue_x<kOdd, 0>(block + 2);
    const bool has_next = block + 1 < blocks_;
    const auto load_w_scale = [&](u32 half) {
      const f32 scale = w_scale_[half].load(has_next ? block + 1 : blocks_ - 1);
      return has_next ? __builtin_bit_cast(u32, scale) : 0;
    };
    const u32 w0 = load_w_scale(0), w1 = load_w_scale(1);
    compute<kOdd, 1>(sums);
    read_x<kOdd, 1>();
    issue_w<kOdd, 1 - kOdd>(block + 2);
    compute<kOdd, 2>(sums);
    read_w<1 - kOdd, 1 - kOdd>(), set_scale_block(block + 1), read_scales<0>();
    issue_x<kOdd, 1>(block + 2);
    compute<kOdd, 3>(sums);
    w_block_scale_[0] = __builtin_bit_cast(f32, readfirstlane(w0));
    w_block_scale_[1] = __builtin_bit_cast(f32, readfirstlane(w1));
  }

  // Ends the memory part of a phase and runs its compute part.
  template <u32 kOdd, u32 kPhase>
  __device__ void compute(Sums& sums) {
    Sums::Scale scale[kXTiles];
    sched_barrier();
    const auto w = Sums::make_factor(w_block_scale_[w_half(quarter(kOdd, kPhase))]);
#pragma unroll
    for (u32 i = 0; i < kXTiles; ++i) {
      if constexpr (kPhase % 2 == 0) x_factor_[i] = Sums::make_factor(x_scale_[i]);
      scale[i] = Sums::make_scale(x_factor_[i], w);
    }
    sched_barrier();
    wait_lgkmcnt();
    wait_vmcnt<kInFlight>();
    set_wave_priority<0>();
    s_barrier();
    constexpr u32 kPrevQuarter = kPhase == 0 ? quarter(1 - kOdd, 3) : quarter(kOdd, kPhase - 1);
    multiply_groups<quarter(kOdd, kPhase), 0, last_group(kPrevQuarter)>(sums, scale);
    set_wave_priority<1>();
    s_barrier();
  }
  template <u32 kQ, u32 kTileBegin, u32 kPrevTile>
  __device__ void multiply_groups(Sums& sums, const Sums::Scale (&scale)[kXTiles]) {
    if constexpr (kTileBegin < kQuarter) {
      sums.multiply<kQ * kQuarter + kTileBegin, kPrevTile>(
          [&](u32 t) -> const Fragment& { return w_tile_[w_half(kQ)][w_of(kTileBegin + t)]; },
          [&](u32 t) -> const Fragment& { return x_tile_[x_of(kTileBegin + t)]; },
          [&](u32 t) { return scale[x_of(kTileBegin + t)]; });
      multiply_groups<kQ, kTileBegin + kGroup, kQ * kQuarter + kTileBegin>(sums, scale);
    }
  }

  RFOPS_LDS Memory* memory_;
  XPath::Loader x_;
  WPath::Loader w_;
  BlockScales w_scale_[2];
  Scales scales_;
  u32 lds_dst_, scale_offset_, blocks_;
  const RFOPS_LDS f32* scale_ptr_;  // this lane's scales of the current K-step
  XPath::Reader x_reader_;
  WPath::Reader w_reader_;
  Fragment x_tile_[kXTiles], w_tile_[2][kWTiles];
  f32 w_block_scale_[2], x_scale_[kXTiles];  // scales of the current K-step
  Sums::Factor x_factor_[kXTiles];
};

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    a8w8_blockscale_pingpong(
        const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
        const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
        const f32* __restrict__ x_scale,  // [M, K/128], strides x_scale_row, x_scale_k
        const f32* __restrict__ w_scale,  // [N/128, K/128], strides w_scale_row, w_scale_k
        u32 m, u32 n, u32 k, u32 x_scale_row, u32 x_scale_k, u32 w_scale_k,
        Out* __restrict__ out,         // [M, N]
        void* __restrict__ workspace,  // partials if kSplit > 1 (SplitKReducer)
        u32* __restrict__ counts,      // [tiles], zeros before and after
        u32 x_row, u32 w_row, u32 w_scale_row) {
  if constexpr (kDense) x_row = kXColMajor ? m : k, w_row = kWColMajor ? n : k;
  if constexpr (kDense) w_scale_row = w_scale_k == 1 ? k / kTileK : 1;
  const u32 m_blocks = (m + kM - 1) / kM, n_blocks = (n + kN - 1) / kN;
  const TileCoord tile = this_tile<kGroupM, kSplit>(m_blocks, n_blocks);
  const u32 m0 = tile.m * kM, n0 = tile.n * kN;
  const u32 k_blocks = k / kTileK;  // splits differ by at most one K-step
  const u32 block_begin = k_blocks * tile.split / kSplit;
  const u32 blocks = k_blocks * (tile.split + 1) / kSplit - block_begin;
  const u32 k0 = block_begin * kTileK, k_bytes = blocks * kTileK;
  // A second half of w that is out of bounds takes the scale of the first half; any scale in bounds
  // would do.
  const u32 n1 = n0 + kWHalf < n ? n0 + kWHalf : n0;
  Wave wave(OperandView::make<kXColMajor>(x, m0, m, kM, x_row, k0, k_bytes),
            OperandView::make<kWColMajor>(w, n0, n, kN, w_row, k0, k_bytes,
                                          OperandLayout<kShuffled>::kKStrideBytes),
            {x_scale, m0, m, kM, x_scale_row, x_scale_k, block_begin, blocks},
            {{w_scale, n0, w_scale_row, w_scale_k, block_begin},
             {w_scale, n1, w_scale_row, w_scale_k, block_begin}},
            blocks);
  Sums sums = {};
  wave.run_mainloop(sums);
  if constexpr (kSplit > 1) {
    SplitKReducer<kSplit, kTiles * kThreads, kThreads, kCounterStride> reducer(
        workspace, counts, tile.m * n_blocks + tile.n);
    if (!reducer.reduce(sums.sum, tile.split)) return;
  }
  const u32 lane = lane_id();
  OutputView<Out>(out, m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      const u32 q = t / kQuarter, i = t % kQuarter;
      const u32 row = x_half(q) * kXHalf + (wave.wave_m * kXTiles + x_of(i)) * kTileRows;
      const u32 column = w_half(q) * kWHalf + (wave.wave_n * kWTiles + w_of(i)) * kTileRows;
      store(sums.sum[t], row + lane % kTileRows, n0 + column + lane / kTileRows * 4);
    }
  });
}
