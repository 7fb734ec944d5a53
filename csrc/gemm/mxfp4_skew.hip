// out[m, n] = sum_k x~[m, k] * w~[n, k], both MXFP4: e2m1 elements, one e8m0 scale for 32 along K.
// Any M, rows of out a multiple of 16 bytes, K a multiple of 512 from 2560 on; for so many tiles
// that a workgroup makes several.
//
// Layout. Four waves, 2 along M and 2 along N, one a SIMD, make 256 x 256 of the result; sums are
// in accumulation registers. K-steps of 256 go through registers to LDS, in two buffers; scales,
// shuffled, to registers. A step has two halves, of 128 of K each, in which a wave multiplies while
// all else is on its way, an instruction at a time, and a barrier between them:
//
//   half  multiplies            reads                       also
//     0   first 128 of step t   second 128 of step t        writes step t + 1 to LDS, loads t + 2
//     1   second 128 of step t  first 128 of step t + 1     goes on loading
//
// A wave's rows are in four parts of 32, and a part begins and ends a tile two steps (a pair)
// behind the part before (mxfp4_skewed_schedule.h): w is the same for all tiles of a run, and where
// a part is along K does not matter to a sum. So one part's sums leave at a time, between
// multiplications, and stores of all workgroups do not come at once, which would hold their loads
// up. Sums leave in the last half of their tile, and while the next one begins: fp32 from
// accumulation registers to LDS, 16 rows at a time, and from there as elements of out. Where a run
// begins and ends, parts that are not in a tile do nothing. Each kind of step is code of its own:
// 62 to 64 KB in all, as much as the instruction cache holds.
//
// Promises. Deterministic: the order of sums is fixed by K and a row's part: part p adds pairs p,
// p + 1, ..., and at last 0 to p - 1. A scale of 255 is NaN in its row or column. The caller aligns
// x, w, out and their rows to 16 bytes, scales to 4; what lies within 2304 rows is less than 2 GiB.
#include "gemm/cshuffle_interleaved.h"
#include "gemm/mxfp4_skewed_steps.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_skew is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

#if !defined(RFOPS_GROUP_N) || !defined(RFOPS_OUT) || !defined(RFOPS_SHUFFLED) || \
    !defined(RFOPS_X_SHUFFLED)
#error "mxfp4_skew needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;  // bf16, f16 or f32
constexpr u32 kM = 256, kN = 256, kThreads = 4 * kWaveSize;
constexpr u32 kPartRows = kM / 2 / kParts;  // of a wave
using Rows = InterleavedStore<Out, kN / 2, kPartRows>;

struct Memory {
  struct {
    u8 x[kM * kRowBytes], w[kN * kRowBytes];
  } stage[2];
  u8 rows[4][Rows::kLds];
};
static_assert(sizeof(Memory) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Memory memory;

struct Constants {
  static constexpr u32 kM = ::kM, kN = ::kN;
  static constexpr u32 kGroupN = RFOPS_GROUP_N;         // tiles along N of a group of workgroups
  static constexpr bool kShuffled = RFOPS_SHUFFLED;     // w lies in tiles of 16 rows by 16 bytes
  static constexpr bool kXShuffled = RFOPS_X_SHUFFLED;  // the same of x
  __device__ static LdsBytes* x(u32 buffer) { return (LdsBytes*)memory.stage[buffer].x; }
  __device__ static LdsBytes* w(u32 buffer) { return (LdsBytes*)memory.stage[buffer].w; }
};
using From = Source<Constants>;
using Steps = PartSteps<Constants>;
constexpr u32 kTiles = Steps::kTiles, kOwnTiles = kTiles / kParts;  // of a wave; of a part
using Order = SnakeOrder<Steps::kMTiles, Steps::kNTiles>;

// Where the sums of an old tile go; no rows where there is none.
struct Result {
  Out* out;
  u32 m, n, m0, n0;
};

// What a step needs of one that loads scales of the tile before.
__device__ void swap_scales(From& a, From& b) {
  const From kept = a;
  a.x_scale = b.x_scale;
  a.w_scale = b.w_scale;
  a.scale_further = b.scale_further;
  b = kept;
}

class Wave {
 public:
  __device__ Wave(const Fp4Args& args, Turn& turn, const From& from)
      : steps_(args), rows_((LdsBytes*)memory.rows[wave_id()]) {
    steps_.start(from, [&] { extend_run<Constants>(args, turn); });
  }

  __device__ void aim_columns(const Turn& turn, u32 n) { rows_.aim_columns(turn.n0 + steps_.n, n); }
  // The first pairs of a run, but for the last step: parts begin one after the other.
  template <u32 kPart = 0>
  __device__ void begin(F32x4 (&sums)[kTiles], Turn& turn, From& from) {
    constexpr Parts kBefore = {0, kPart}, kOwn = {0, kPart + 1};
    if constexpr (kPart != 0) {
      second<PairSchedule{.begins = kPart, .own = kBefore, .next = kOwn}>(sums, turn, from);
    }
    if constexpr (kPart < kParts - 1) {
      first<PairSchedule{.begins = kPart, .own = kOwn, .next = {0, kPart + 2}}>(sums, turn, from);
      begin<kPart + 1>(sums, turn, from);
    } else {
      first<PairSchedule{.begins = kPart}>(sums, turn, from);
    }
  }
  // The last step of a pair and the first of the next one, where no part begins.
  __device__ void pair(F32x4 (&sums)[kTiles], Turn& turn, From& from) {
    constexpr PairSchedule kPair = {.behind = kSameRun};
    second<kPair>(sums, turn, from);
    first<kPair>(sums, turn, from);
  }
  // The same for each part that ends a tile, whose sums leave, and begins another.
  template <u32 kPart = 0>
  __device__ void change(F32x4 (&sums)[kTiles], Turn& turn, From& from, const Result& result) {
    if constexpr (kPart < kParts) {
      aim(result, kPart);
      second<PairSchedule{.begins = kPart, .leaves = kPart}>(sums, turn, from);
      first<PairSchedule{.begins = kPart, .leaves = kPart}>(sums, turn, from);
      change<kPart + 1>(sums, turn, from, result);
    }
  }
  // The same where a run ends; the last part's sums leave at once.
  template <u32 kPart = 0>
  __device__ void end(F32x4 (&sums)[kTiles], Turn& turn, From& from, const Result& result) {
    aim(result, kPart);
    constexpr Parts kOwn = {kPart, kParts}, kNext = {kPart + 1, kParts},
                    kLater = {kPart + 2, kParts};
    if constexpr (kPart < kParts - 1) {
      constexpr bool kLast = kPart == kParts - 2;
      second<PairSchedule{.leaves = kPart, .own = kOwn, .next = kNext}>(sums, turn, from);
      first<PairSchedule{.leaves = kPart,
                         .own = kNext,
                         .next = kLast ? kFirstPart : kLater,
                         .behind = kLast ? kOtherRun : kSameTile}>(sums, turn, from);
      end<kPart + 1>(sums, turn, from, result);
    } else {
      second<PairSchedule{.own = kOwn, .next = kFirstPart}>(sums, turn, from);
      asm volatile("s_nop 15\n\ts_nop 15");  // until the last sums are there
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        each<kOwnTiles / 2>(
            [&](u32 t) { leave(sums, kTiles - kOwnTiles + i * kOwnTiles / 2 + t); });
        each<Rows::kReads>([&](u32 read) {
          each<8>([&](u32 at) { come(at, 0, i, read); });
          sched_barrier();
        });
      }
    }
  }

 private:
  __device__ void aim(const Result& to, u32 part) {
    rows_.aim(to.out, to.m, to.n, to.m0 + steps_.m + part * kPartRows, to.n0 + steps_.n);
  }

  // Steps of a pair.
  template <PairSchedule kPair>
  __device__ void second(F32x4 (&sums)[kTiles], const Turn& turn, const From& from) {
    const u32 k = turn.at * kPairK;
    step<1, kPair>(sums, from, {k + kStepK, k, from.further, 0});
  }
  // It also loads for the pair behind, which may be of another tile: then scales, which are loaded
  // a step later, are still of this one.
  template <PairSchedule kPair>
  __device__ void first(F32x4 (&sums)[kTiles], Turn& turn, From& from) {
    const u32 k = turn.at++ * kPairK + kStepK;
    From scales = from;
    if constexpr (kPair.behind == kSameTile) {
      step<0, kPair>(sums, from, {k + kStepK, k, from.further, 0});
    } else if constexpr (kPair.behind == kSameRun) {
      if (readfirstlane(turn.at) == readfirstlane(turn.count)) {
        advance(turn);
        from.aim_x(arguments(), turn);
        swap_scales(from, scales);
      }
      const u32 later = turn.at == 0 ? 0 : from.further;
      step<0, kPair>(sums, from, {turn.at * kPairK, k, later, from.further - later});
      u32 at = turn.at;
      force_sgpr(at);  // compared once more, and a branch: selects would be in each step
      if (at == 0) {
        asm volatile("");
        swap_scales(from, scales);
      }
    } else {
      turn.count = 0;
      from.w = from.x = make_buffer(nullptr, 0);
      from.x_scale = from.w_scale = from.x;
      if (is_tile<Constants>(arguments(), turn.next)) {
        asm volatile("");
        const Fp4Args args = arguments();
        turn = first_turn<Constants>(args, turn.next);
        extend_run<Constants>(args, turn);
        from = From(args, turn);
      }
      swap_scales(from, scales);
      step<0, kPair>(sums, from, {0, k, 0, 0});
      swap_scales(from, scales);
    }
  }
  template <u32 kStage, PairSchedule kPair>
  __device__ void step(F32x4 (&sums)[kTiles], const From& from, const Steps::Ahead& ahead) {
    half<kStage, 0, kPair>(sums, from, ahead);
    wait_lgkmcnt();
    s_barrier();
    half<kStage, 1, kPair>(sums, from, ahead);
  }
  // Inlined before the optimiser runs, because it would optimise each of the 64 levels again with
  // those that it calls: compiling took 13 to 16 s instead of 5, for the same code.
  template <u32 kStage, u32 kHalf, PairSchedule kPair, u32 kAt = 0>
  __device__ __attribute__((always_inline)) void half(F32x4 (&sums)[kTiles], const From& from,
                                                      const Steps::Ahead& ahead) {
    if constexpr (kAt < kTiles) {
      constexpr u32 kHalves = 2 * kStage + kHalf, kLeaves = kPair.leaves;
      // A part that leaves is the first in the last half.
      constexpr u32 kQ =
          (kAt + (kHalves == 3 && kLeaves < kParts ? kLeaves * kOwnTiles : 0)) % kTiles;
      constexpr bool kFresh = kHalves == 0 && kQ / kOwnTiles == kPair.begins;
      if constexpr (kLeaves < kParts) go<kHalves, kLeaves>(sums, kAt);
      if constexpr (kPair.own.have(kQ / kOwnTiles)) {
        steps_.multiply<kStage, kHalf, Order::m_of(kQ), Order::n_of(kQ), kFresh>(sums[kQ]);
      }
      steps_.between<kStage, kHalf, kPair>(kAt, from, ahead);
      sched_barrier();
      half<kStage, kHalf, kPair, kAt + 1>(sums, from, ahead);
    }
  }

  // What leaves in front of multiplication `at` of a half: through LDS the part's first 16 rows,
  // then the others, which come back in the next step.
  template <u32 kHalves, u32 kLeaves>
  __device__ void go(F32x4 (&sums)[kTiles], u32 at) {
    if (kHalves == 3) {
      each<kOwnTiles / 2>([&](u32 t) {
        if (at == 5 + 3 * t) leave(sums, kLeaves * kOwnTiles + t);
        if (at == 51 + t * 8 / 5) leave(sums, kLeaves * kOwnTiles + kOwnTiles / 2 + t);
      });
      each<Rows::kReads>([&](u32 read) { come(at, 28 + 7 * read, 0, read); });
    } else if (kHalves < 2) {
      come(at, 14, 1, 2 * kHalves);
      come(at, 44, 1, 2 * kHalves + 1);
    }
  }
  __device__ void leave(F32x4 (&sums)[kTiles], u32 q) const {
    asm volatile("" : : "a"(sums[q]));  // from accumulation registers
    rows_.put(Order::n_of(q), sums[q]);
    sched_barrier();
  }
  __device__ void come(u32 at, u32 first, u32 i, u32 read) {
    if (at == first) rows_.fetch_low(read);
    if (at == first + 1) rows_.fetch_high(read);
    if (at == first + 5) rows_.convert_low();
    if (at == first + 6) rows_.convert_high();
    if (at == first + 7) rows_.store(i, read);
  }

  Steps steps_;
  Rows rows_;
};

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mxfp4_skew(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
               const u8* __restrict__ w_scale,  // [N, K/32] shuffled, w_scale_row columns
               const u8* __restrict__ x,        // [M, K/2], rows x_row bytes apart
               const u8* __restrict__ x_scale,  // [M, K/32] shuffled, x_scale_row columns
               u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
               u32 groups,                // workgroups of the launch
               Out* __restrict__ out,     // [M, N]
               const void* __restrict__,  // the other MXFP4 kernels' bias, workspace and counts
               void* __restrict__, u32* __restrict__) {
  const Fp4Args args = {w, w_scale, x,     x_scale,     m,           n,
                        k, x_row,   w_row, w_scale_row, x_scale_row, groups};
  // Workgroups of an XCD begin one after the other, over the time of a pair: so do their stores.
  for (u32 i = 0; i < workgroup_id_x() / kXcds; ++i) __builtin_amdgcn_s_sleep(2);
  Turn turn = first_turn<Constants>(args, workgroup_id_x());
  From from(args, turn);
  Wave wave(args, turn, from);
  F32x4 sums[kTiles];
  while (readfirstlane(turn.count) != 0) {
    const u32 count = turn.count;
    wave.aim_columns(turn, n);
    wave.begin(sums, turn, from);
    Result result;
    while (true) {
      u32 at = kParts;
      do {
        wave.pair(sums, turn, from);
      } while (++at < count);
      result = {out, m, n, turn.old_m, turn.n0};
      if (readfirstlane(turn.drains)) break;
      wave.change(sums, turn, from, result);
    }
    wave.end(sums, turn, from, result);
  }
}
