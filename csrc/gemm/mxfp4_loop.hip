// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], both MXFP4: e2m1 elements, one e8m0 scale per 32
// along K. Any M and N, K a multiple of 32; for so many rows that MFMA throughput is the limit.
//
// Layout. Four waves, 2 along M and 2 along N, one per SIMD, compute kM x kN of the output, with
// accumulators in AGPRs. A K-step of 256 (rows of 128 bytes) is loaded through registers to LDS, in
// two buffers; preshuffled scales are loaded to registers, raw scales to LDS for four K-steps at a
// time and from there to the same registers (mxfp4_raw_scales.h). A step has two halves of 128 of
// K. In each half a wave multiplies and issues all other instructions one at a time between the
// MFMAs:
//
//   half  multiplies            reads                       also
//     0   first 128 of step t   second 128 of step t        writes step t + 1 to LDS, loads t + 2
//     1   second 128 of step t  first 128 of step t + 1     continues to load
//
// A barrier precedes the second half. Workgroups are persistent: each computes one tile after the
// other, `groups` apart, and the last steps of a tile load the first steps of the next. w is MFMA
// operand A, so a lane holds 4 neighbours of a row of out.
// kSplit workgroups split K; the last to arrive reduces (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config and K. A scale of 255 makes its row or
// column NaN.
// Requires: at most as many workgroups as tiles and splits; x, w and their rows 16-byte aligned,
// preshuffled scales 4-byte aligned; with raw scales K a multiple of 256 and the rows of scales
// 8-byte aligned; the rows of a workgroup span less than 2 GiB (what lies before them may be
// larger).
#include "gemm/bias.h"
#include "gemm/mxfp4_raw_scales.h"
#include "gemm/mxfp4_tile_scheduler.h"
#include "gemm/paired_tile_store.h"
#include "rfops/chip/static_for.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/matrix/mfma_mxfp4.h"
#include "rfops/store/cshuffle_16x16.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/mxfp4_k_step.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_loop is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                         // bf16, f16 or f32
using Bias = RFOPS_BIAS;                       // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;     // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kXShuffled = RFOPS_X_SHUFFLED;  // x is preshuffled
constexpr bool kRawScales = RFOPS_RAW_SCALES;  // scales of w are [N, K/32]
constexpr bool kXRawScales = RFOPS_X_RAW_SCALES;
constexpr u32 kM = RFOPS_M;             // rows of x per workgroup
constexpr u32 kN = RFOPS_N;             // rows of w per workgroup
constexpr u32 kSplit = RFOPS_SPLIT;     // split-K: workgroups per output tile
constexpr u32 kGroupM = RFOPS_GROUP_M;  // tiles along M per raster group (tile_map.h)
constexpr bool kTail = RFOPS_TAIL;      // K ends within a K-step
constexpr bool kHasRawScales = kRawScales || kXRawScales;
constexpr u32 kThreads = 4 * kWaveSize;                                    // 2 x 2 waves
constexpr u32 kMTiles = kM / 2 / kTileRows, kNTiles = kN / 2 / kTileRows;  // per wave
constexpr u32 kTiles = kMTiles * kNTiles;
static_assert(kM % 64 == 0 && kN % 64 == 0, "one dword of scales covers a pair of tiles");

struct Stage {
  u8 x[kM * kRowBytes], w[kN * kRowBytes];
};
using Store = WaveStore<Out, kN / 2>;
struct Epilogue {
  u8 store[4][Store::kBytes];
  F32x4 bias[4][__is_same(Bias, void) ? 0 : kN / 2 / 4];  // of a wave's columns
};
struct Memory {
  Stage stage[2];
  ScaleGroups<kM, kXRawScales> x_scales;
  ScaleGroups<kN, kRawScales> w_scales;
  Epilogue epilogue[kHasRawScales ? 0 : 1];
};
static_assert(sizeof(Epilogue) <= sizeof(Stage), "the epilogue has room in a stage");
static_assert(sizeof(Memory) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Memory memory;

using Item = Fp4Item<kM, kN, kSplit, kGroupM, kXShuffled, kShuffled, kXRawScales, kRawScales>;
using Order = SnakeOrder<kMTiles, kNTiles>;

struct Operands {
  U32x4 x[kMTiles], w[kNTiles];
};

__device__ inline RFOPS_LDS Memory& lds_memory() { return *(RFOPS_LDS Memory*)&memory; }

// Returns the LDS of the epilogue. With raw scales it is the second stage, which no wave uses from
// the barrier of a tile's last K-step on to the next tile's first.
__device__ inline RFOPS_LDS Epilogue& lds_epilogue() {
  if constexpr (kHasRawScales) return *(RFOPS_LDS Epilogue*)&lds_memory().stage[1];
  return lds_memory().epilogue[0];
}

// Returns an LDS stage. Its address is opaque, because LLVM would keep the address of each write to
// the second stage in a VGPR: it is beyond the offsets of LDS instructions.
__device__ inline RFOPS_LDS Stage* lds_stage(u32 i) {
  u32 address = lds_address((LdsBytes*)&lds_memory().stage[i]);
  asm volatile("" : "+s"(address));
  return (RFOPS_LDS Stage*)address;
}

class Wave {
 public:
  u32 m, n;  // the wave's first row of x and of w in the workgroup's tile

  __device__ explicit Wave(const Fp4Args& args)
      : m(wave_id() / 2 * (kM / 2)),
        n(wave_id() % 2 * (kN / 2)),
        x_(args.x_row),
        w_(args.w_row),
        x_scale_(args.x_scale_row, m, lds_memory().x_scales),
        w_scale_(args.w_scale_row, n, lds_memory().w_scales),
        fragment_{lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows),
                  lds_offset_mxfp4(lane_id() % kTileRows, lane_id() / kTileRows + 4)} {}

  // Prologue: brings the first step to LDS and issues the loads of the second.
  __device__ void start(const Item& item) {
    const u32 begin = item.work.begin, end = item.work.end;
    x_scale_.load_group(item.x_scale, begin, 0, lds_memory().x_scales);
    w_scale_.load_group(item.w_scale, begin, 0, lds_memory().w_scales);
    x_.set_k(begin, end);
    w_.set_k(begin, end);
    static_for<kPieces>([&](u32 i) { load(i, item); });
    x_scale_.set_k(begin, end);
    w_scale_.set_k(begin, end);
    static_for<kScales>([&](u32 i) { load_scale(i, 0, item); });
    sched_barrier();
    x_.set_k(begin + kStepK, end);
    w_.set_k(begin + kStepK, end);
    static_for<kPieces>([&](u32 i) {
      write_lds(i, lds_memory().stage[0]);
      load(i, item);
    });
    wait_lgkmcnt();
    s_barrier();
    begin_scale_reads(0, true);
    static_for<kScaleReads>([&](u32 i) { read_scales(i); });
    static_for<kReads>([&](u32 i) { read(i, 0, 0); });
    static_for<kScaleReads>([&](u32 i) {
      select_scales(i);
      combine_scales(i, 0);
    });
  }

  // Computes one tile, two steps at a time; an odd number of steps is completed by a step of zeros.
  // `item`, the source of the loads, becomes item `next` for the last two steps.
  __device__ void run_mainloop(F32x4 (&sums)[kTiles], Item& item, const Fp4Args& args, u32 next) {
    const TileWork work = item.work;
    two_steps<true>(sums, work, work.begin, item, args, next);
    for (u32 k = work.begin + 2 * kStepK; k < work.end; k += 2 * kStepK) {
      two_steps<false>(sums, work, k, item, args, next);
    }
    asm volatile("s_nop 15\n\ts_nop 15");  // until the last accumulators are complete
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) force_agpr(sums[t]);  // none is read in the loop
    sched_barrier();
  }

 private:
  using X = StepLoader<kM, kXShuffled, kTail>;
  using W = StepLoader<kN, kShuffled, kTail>;
  static constexpr u32 kPieces = X::kCount + W::kCount;
  using XScales = WaveScales<kM, kMTiles, kXRawScales, kTail>;
  using WScales = WaveScales<kN, kNTiles, kRawScales, kTail>;
  static constexpr u32 kReads = kMTiles + kNTiles, kScales = kReads / 2;
  static constexpr u32 kScaleReads = XScales::kReads + WScales::kReads;
  using Schedule = IssueSchedule<kTiles, kReads, kPieces, kScales>;
  // Issue slot of a K-step: the i-th load. With raw scales all come a little earlier, because their
  // direct-to-LDS loads delay the last ones (estimated, MI355X, 1024 x 16384 x 2048: 23.12 -> 23.02
  // us).
  static constexpr u32 load_idx(u32 i) {
    return kHasRawScales ? Schedule::write_idx(i) + 3 + i * (kTiles * 7 / 8) / kPieces
                         : Schedule::load_idx(i);
  }
  // Issue slots of a half: the i-th reads of raw scales, where LDS writes and other reads leave
  // room; their selection and combination, when the reads have completed.
  static constexpr u32 scale_read_idx(u32 i) { return (2 * i + 1) * Schedule::kInterval - 1; }
  static constexpr u32 scale_select_idx(u32 i) {
    return scale_read_idx(i) + 3 * Schedule::kInterval;
  }
  static constexpr u32 scale_combine_idx(u32 i) {
    return scale_read_idx(i) + 4 * Schedule::kInterval;
  }

  __device__ void load(u32 i, const Item& src) {
    i < X::kCount ? x_.load(src.x, i) : w_.load(src.w, i - X::kCount);
  }
  __device__ void load_scale(u32 i, u32 stage, const Item& src) {
    i < kMTiles / 2 ? x_scale_.load(src.x_scale, i, stage)
                    : w_scale_.load(src.w_scale, i - kMTiles / 2, stage);
  }
  __device__ void write_lds(u32 i, RFOPS_LDS Stage& stage) const {
    i < X::kCount ? x_.write_lds(i, (LdsBytes*)stage.x)
                  : w_.write_lds(i - X::kCount, (LdsBytes*)stage.w);
  }
  __device__ void begin_scale_reads(u32 step, bool in_bounds) {
    x_scale_.begin_reads(step, in_bounds);
    w_scale_.begin_reads(step, in_bounds);
  }
  __device__ void read_scales(u32 i) {
    i < XScales::kReads ? x_scale_.read(i) : w_scale_.read(i - XScales::kReads);
  }
  __device__ void select_scales(u32 i) {
    i < XScales::kReads ? x_scale_.select(i) : w_scale_.select(i - XScales::kReads);
  }
  __device__ void combine_scales(u32 i, u32 stage) {
    i < XScales::kReads ? x_scale_.combine(stage, i) : w_scale_.combine(stage, i - XScales::kReads);
  }
  // Reads operand i of a half: one of x first, then all of w, then the rest of x, in the order of
  // use.
  __device__ void read(u32 i, u32 half, u32 buffer) {
    const u32 offset = half == 0 ? fragment_.low : fragment_.high;
    const LdsBytes* const x = (LdsBytes*)memory.stage[buffer].x + m * kRowBytes + offset;
    const LdsBytes* const w = (LdsBytes*)memory.stage[buffer].w + n * kRowBytes + offset;
    if (i == 0) {
      operands_[half].x[0] = lds_load_b128(x);
    } else if (i <= kNTiles) {
      operands_[half].w[i - 1] = lds_load_b128(w + (i - 1) * kLdsTile);
    } else {
      operands_[half].x[i - kNTiles] = lds_load_b128(x + (i - kNTiles) * kLdsTile);
    }
  }

  // K-steps that a step loads from: operands two steps ahead, scales one step ahead.
  struct LoadTarget {
    u32 k, end, scale_k, scale_end;
    u32 next_step;           // first of the next pair of K-steps, in its tile
    RFOPS_LDS Stage* stage;  // LDS that the loads of the previous step are written to
  };

  template <bool kFresh>
  __device__ void two_steps(F32x4 (&sums)[kTiles], const TileWork& work, u32 k, Item& item,
                            const Fp4Args& args, u32 next) {
    u32 load_k = k + 2 * kStepK;
    const u32 tile_step = (k - work.begin) / kStepK;  // K-step of the tile
    u32 next_step = tile_step + 2;
    auto x_scale = item.x_scale;
    auto w_scale = item.w_scale;
    if (load_k >= work.end) {
      item.work.begin = item.work.end = 0;  // loads nothing
      asm volatile("" : "+s"(next));        // otherwise LLVM computes the item before the mainloop
      if (next < Item::count(args)) {
        const Item next_item = Item::make(args, next);
        x_scale = next_item.x_scale;
        w_scale = next_item.w_scale;
        if constexpr (kXRawScales) item.x_scale = x_scale;
        if constexpr (kRawScales) item.w_scale = w_scale;
        item.work = next_item.work;
        item.x = next_item.x;
        item.w = next_item.w;
      }
      load_k = item.work.begin;
      next_step = 0;
    }
    const u32 end = item.work.end;
    begin_scale_reads(tile_step + 1, k + kStepK < work.end);
    step<0, kFresh>(sums, work, k, item,
                    {load_k, end, k + kStepK, work.end, next_step, lds_stage(1)});
    asm volatile("" : "+s"(k));  // compares again and branches: selects would stay in each step
    if (k + 2 * kStepK >= work.end) {
      asm volatile("");
      if constexpr (!kXRawScales) item.x_scale = x_scale;
      if constexpr (!kRawScales) item.w_scale = w_scale;
    }
    begin_scale_reads(next_step, true);
    step<1, false>(sums, work, k + kStepK, item,
                   {load_k + kStepK, end, load_k, end, next_step, lds_stage(0)});
  }

  template <u32 kStage, bool kFresh>
  __device__ void step(F32x4 (&sums)[kTiles], const TileWork& work, u32 k, const Item& item,
                       const LoadTarget& target) {
    x_scale_.mask_tail(kStage, k, work.end);
    w_scale_.mask_tail(kStage, k, work.end);
    half<kStage, 0, kFresh>(sums, item, target);
    wait_lgkmcnt();
    s_barrier();
    half<kStage, 1, false>(sums, item, target);
  }

  // Loads the next group of raw scales in two of its predecessor's last K-steps: x, then w. The
  // last pair of a tile loads the next tile's first group in its first K-step. A barrier and loads
  // of chunks follow.
  template <u32 kStage>
  __device__ void load_scale_group(bool is_x, const Item& item, const LoadTarget& target) const {
    static_assert(load_idx(kPieces - 1) >= kTiles + kTiles * 3 / 8,
                  "the last chunk's load follows");
    const u32 step = target.next_step + kStage * 2, k = target.k + kStage * kStepK;
    if (step % kScaleGroupSteps != 0 || k >= target.end) return;
    if (!is_x) {
      w_scale_.load_group(item.w_scale, k, step, lds_memory().w_scales);
    } else if (kStage == 1 || step == 0) {
      x_scale_.load_group(item.x_scale, k, step, lds_memory().x_scales);
    }
  }

  // Issue slot after MFMA q of a half.
  template <u32 kStage, u32 kHalf>
  __device__ void do_issue_slot(u32 q, const Item& item, const LoadTarget& target) {
    if (q % Schedule::kInterval == 0 && q / Schedule::kInterval < kReads) {
      read(q / Schedule::kInterval, 1 - kHalf, kHalf == 0 ? kStage : 1 - kStage);
    }
    if (kHalf == 0) {
      static_for<kPieces>([&](u32 i) {
        if (q == Schedule::write_idx(i)) write_lds(i, *target.stage);
      });
    }
    if (kHalf == kStage) {
      static_for<kScaleReads>([&](u32 i) {
        if (q == scale_read_idx(i)) read_scales(i);
        if (q == scale_select_idx(i)) select_scales(i);
        if (q == scale_combine_idx(i)) combine_scales(i, 1 - kStage);
      });
    }
    if (kScaleReads != 0 && kHalf == 1) {
      if (kStage == 0 && q == 0) load_scale_group<kStage>(false, item, target);
      if (q == kTiles * 3 / 8) load_scale_group<kStage>(true, item, target);
    }
    const u32 issue_idx = kHalf * kTiles + q;  // in the step
    if (issue_idx == Schedule::free_idx_before(load_idx(0))) x_.set_k(target.k, target.end);
    if (issue_idx == Schedule::free_idx_before(load_idx(X::kCount))) w_.set_k(target.k, target.end);
    static_for<kPieces>([&](u32 i) {
      if (issue_idx == load_idx(i)) load(i, item);
    });
    if (issue_idx == Schedule::free_idx_before(Schedule::scale_idx(0)))
      x_scale_.set_k(target.scale_k, target.scale_end);
    if (issue_idx == Schedule::free_idx_before(Schedule::scale_idx(kMTiles / 2)))
      w_scale_.set_k(target.scale_k, target.scale_end);
    static_for<kScales>([&](u32 i) {
      if (issue_idx == Schedule::scale_idx(i)) load_scale(i, 1 - kStage, item);
    });
  }

  template <u32 kStage, u32 kHalf, bool kFresh, u32 kQ = 0>
  __device__ void half(F32x4 (&sums)[kTiles], const Item& item, const LoadTarget& target) {
    if constexpr (kQ < kTiles) {
      constexpr u32 i = Order::m_of(kQ), j = Order::n_of(kQ);
      const Operands& operands = operands_[kHalf];
      mfma_mxfp4_in_place<j % 2 + 2 * kHalf, i % 2 + 2 * kHalf, kFresh>(
          sums[kQ], operands.w[j], w_scale_.scale(kStage, j), operands.x[i],
          x_scale_.scale(kStage, i));
      do_issue_slot<kStage, kHalf>(kQ, item, target);
      sched_barrier();
      half<kStage, kHalf, kFresh, kQ + 1>(sums, item, target);
    }
  }

  X x_;
  W w_;
  XScales x_scale_;
  WScales w_scale_;
  LdsFragmentOffsets fragment_;
  Operands operands_[2];
};

// Stores a tile through LDS, in whole lines, or the last one of a workgroup directly, 16-bit
// elements: that begins sooner, and no loads wait for it.
__device__ inline void store_sums(F32x4 (&sums)[kTiles], Out* out, u32 m, u32 n,
                                  const TileWork& work, const Wave& wave, const BiasRow<Bias>& bias,
                                  bool is_last) {
  const u32 n0 = work.n0 + wave.n;
  const u32 lane = lane_id();
  RFOPS_LDS F32x4* const biases = lds_epilogue().bias[wave_id()];
  if (!__is_same(Bias, void) && lane < kN / 2 / 4) biases[lane] = bias.load(n0 + lane * 4);
  const auto value = [&](u32 i, u32 j) {
    F32x4& sum = sums[Order::index_of(i, j)];
    force_agpr(sum);  // keeps the compiler from reading all AGPRs at once
    return __is_same(Bias, void) ? sum : sum + biases[j * 4 + lane / kTileRows];
  };
  if (sizeof(Out) == 2 && is_last) {
    u32 row = wave.m, column = n0;
    force_vgpr(row);  // otherwise the compiler computes addresses before the mainloop
    force_vgpr(column);
    PairedTileStore<Out>(out, work.m0, m, kM, n)
        .template store<kMTiles, kNTiles>(row, column, value);
  } else {
    LdsBytes* const lds = lds_epilogue().store[wave_id()];
    Store(out, work.m0 + wave.m, m, kM / 2, n, n0, lds).template store<kMTiles>(value);
    if (kHasRawScales) s_barrier();  // before a wave writes to the second stage
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mxfp4_loop(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
               const u8* __restrict__ w_scale,  // [N, K/32], rows w_scale_row apart, or shuffled
               const u8* __restrict__ x,        // [M, K/2], rows x_row bytes apart
               const u8* __restrict__ x_scale,  // [M, K/32], rows x_scale_row apart, or shuffled
               u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
               u32 groups,                     // workgroups of the launch
               Out* __restrict__ out,          // [M, N]
               const void* __restrict__ bias,  // [N]
               void* __restrict__ workspace,   // partials if kSplit > 1 (SplitKReducer)
               u32* __restrict__ counts) {     // [tiles], zeros before and after
  const Fp4Args args = {w, w_scale, x,     x_scale,     m,           n,
                        k, x_row,   w_row, w_scale_row, x_scale_row, groups};
  const u32 items = Item::count(args);
  u32 number = workgroup_id_x();
  stagger_start<kM * kN * sizeof(Out)>(items, groups, k / kStepK / kSplit * kTiles * 32);
  Item item = Item::make(args, number);
  Wave wave(args);
  wave.start(item);
  do {  // not `for`: the compiler would move the loads of start() behind its barrier, to the loop
    const TileWork work = item.work;
    F32x4 sums[kTiles];
    wave.run_mainloop(sums, item, args, number + groups);
    bool is_whole = true;
    if constexpr (kSplit > 1) {
      SplitKReducer<kSplit, kTiles * kThreads, kThreads> tile(workspace, counts, work.tile);
      is_whole = tile.reduce(sums, work.split);
    }
    number += groups;
    if (is_whole) {
      store_sums(sums, out, m, n, work, wave, BiasRow<Bias>(bias, n), number >= items);
    }
  } while (number < items);
}
