// out[m, n] = bias[n] + sum_k x~[m, k] * w~[n, k], both MXFP4: e2m1 elements, one e8m0 scale for 32
// along K. Any M and N, K a multiple of 32; for so many rows that the matrix cores are the limit.
//
// Layout. Four waves, 2 along M and 2 along N, one a SIMD, make kM x kN of the result; sums are in
// accumulation registers. A K-step of 256, rows of 128 bytes, goes through registers to LDS, in two
// buffers; scales, shuffled, go to registers. A step has two halves, of 128 of K each, in which a
// wave multiplies while all else is on its way, an instruction at a time between those of the
// matrix cores:
//
//   half  multiplies            reads                       also
//     0   first 128 of step t   second 128 of step t        writes step t + 1 to LDS, loads t + 2
//     1   second 128 of step t  first 128 of step t + 1     goes on loading
//
// and a barrier before the second half. A workgroup makes one tile of the result after the other,
// `groups` apart: the last steps of one load the first of the next. w is operand A, so that a lane
// holds 4 neighbours of a row of out. kSplit workgroups share out K; the last of a tile adds up
// (split_reduce.h).
//
// Promises. Deterministic: the order of sums is fixed by the config and K. A scale of 255 is NaN in
// its row or column. The caller aligns x, w and their rows to 16 bytes, scales to 4; a workgroup's
// rows span less than 2 GiB, what lies before them may be more.
#include "rfops/bias.h"
#include "rfops/block_map.h"
#include "rfops/fp4.h"
#include "rfops/fp4_steps.h"
#include "rfops/lds_tile.h"
#include "rfops/loader.h"
#include "rfops/split_reduce.h"
#include "rfops/waits.h"
#include "rfops/wave_store.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx950__)
#error "mxfp4_loop is gfx950-only: it needs v_mfma_scale_f32_16x16x128_f8f6f4"
#endif

#if !defined(RFOPS_M) || !defined(RFOPS_N) || !defined(RFOPS_SPLIT) || !defined(RFOPS_GROUP_M) || \
    !defined(RFOPS_OUT) || !defined(RFOPS_BIAS) || !defined(RFOPS_SHUFFLED) ||                    \
    !defined(RFOPS_X_SHUFFLED) || !defined(RFOPS_TAIL)
#error "mxfp4_loop needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                         // bf16, f16 or f32
using Bias = RFOPS_BIAS;                       // void, bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;     // w lies in tiles of 16 rows by 16 bytes
constexpr bool kXShuffled = RFOPS_X_SHUFFLED;  // the same of x
constexpr u32 kM = RFOPS_M;                    // rows of x of a workgroup
constexpr u32 kN = RFOPS_N;                    // rows of w of a workgroup
constexpr u32 kSplit = RFOPS_SPLIT;            // workgroups along K
constexpr u32 kGroupM = RFOPS_GROUP_M;         // tiles along M of a group of workgroups
constexpr bool kTail = RFOPS_TAIL;             // K ends within a K-step
constexpr u32 kThreads = 4 * kWaveSize;        // waves 2 x 2
constexpr u32 kMTiles = kM / 2 / kTileRows, kNTiles = kN / 2 / kTileRows;  // of a wave
constexpr u32 kTiles = kMTiles * kNTiles;

static_assert(kM % 64 == 0 && kN % 64 == 0, "pairs of tiles, whose scales are one dword");

struct Stage {
  u8 x[kM * kRowBytes], w[kN * kRowBytes];
};
using Store = WaveStore<Out, kN / 2>;
struct Memory {
  Stage stage[2];
  u8 store[4][Store::kBytes];
};
static_assert(sizeof(Memory) <= kLdsBytes, "a workgroup fits a CU");
__shared__ Memory memory;

struct Args {
  const u8 *w, *w_scale, *x, *x_scale;
  u32 m, n, k, x_row, w_row, w_scale_row, x_scale_row, groups;
};

// A tile of the result, or a part of its K.
struct Place {
  u32 m0, n0, tile, split;
  u32 first, end;  // elements of K
};

// And where its operands lie; of those beyond the last nothing is loaded.
struct Item {
  Place place;
  OperandRows x, w;
  ScaleRange x_scale, w_scale;

  __device__ static Item of(const Args& a, u32 item) {
    const u32 m_blocks = (a.m + kM - 1) / kM, n_blocks = (a.n + kN - 1) / kN;
    const bool is_there = item < m_blocks * n_blocks * kSplit;
    const Block found = block_of<kGroupM, kSplit>(is_there ? item : 0, m_blocks, n_blocks);
    const Block at = {as_scalar(found.m), as_scalar(found.n), as_scalar(found.split)};
    const u32 m0 = at.m * kM, n0 = at.n * kN;
    const u32 all = (a.k + kStepK - 1) / kStepK;  // shared out in parts that differ by one at most
    const u32 first = all * at.split / kSplit * kStepK,
              last = all * (at.split + 1) / kSplit * kStepK;
    const u32 wave_m = m0 + wave_in_group() / 2 * (kM / 2);
    const u32 wave_n = n0 + wave_in_group() % 2 * (kN / 2);
    const u32 x_rows = kXShuffled ? (a.m + 15) / 16 * 16 : a.m;  // shuffled ones come in sixteens
    const u32 end = !is_there ? first : last < a.k ? last : a.k;
    return {{m0, n0, at.m * n_blocks + at.n, at.split, first, end},
            {a.x, m0, x_rows, kM, a.x_row, 0, a.k / 2, MemoryOrder<kXShuffled>::kUnit},
            {a.w, n0, a.n, kN, a.w_row, 0, a.k / 2, MemoryOrder<kShuffled>::kUnit},
            {a.x_scale, wave_m, a.m, kM / 2, a.x_scale_row},
            {a.w_scale, wave_n, a.n, kN / 2, a.w_scale_row}};
  }
};

// Tile t of a wave in the order of multiplication: neighbours share an operand.
constexpr u32 m_of(u32 t) { return t / kNTiles; }
constexpr u32 n_of(u32 t) { return m_of(t) % 2 == 0 ? t % kNTiles : kNTiles - 1 - t % kNTiles; }

constexpr u32 place_of(u32 i, u32 j) { return i * kNTiles + (i % 2 == 0 ? j : kNTiles - 1 - j); }

struct Operands {
  U32x4 x[kMTiles], w[kNTiles];
};

class Wave {
 public:
  u32 m, n;  // its first row of x and of w in the workgroup

  __device__ explicit Wave(const Args& args)
      : m(wave_in_group() / 2 * (kM / 2)),
        n(wave_in_group() % 2 * (kN / 2)),
        x_(args.x_row),
        w_(args.w_row),
        x_scale_(args.x_scale_row),
        w_scale_(args.w_scale_row),
        at_{step_at(lane_in_wave() % kTileRows, lane_in_wave() / kTileRows),
            step_at(lane_in_wave() % kTileRows, lane_in_wave() / kTileRows + 4)} {}

  // The first step to LDS, the second on its way.
  __device__ void start(const Item& item) {
    begin_x(item, item.place.first);
    begin_w(item, item.place.first);
    for_pieces([&](u32 i) { load(i); });
    for_scales([&](u32 i) { load_scale(i, 0, scales_of(item), item.place.first); });
    keep_order();
    begin_x(item, item.place.first + kStepK);
    begin_w(item, item.place.first + kStepK);
    for_pieces([&](u32 i) {
      put(i, 0);
      load(i);
    });
    wait_lds();
    meet();
#pragma unroll
    for (u32 i = 0; i < kReads; ++i) read(i, 0, 0);
  }

  // All of an item, two steps at a time: one more than it has, of zeros, where that is odd. `item`,
  // from which is loaded, becomes item `next` for the last two.
  __device__ void multiply_all(F32x4 (&sums)[kTiles], Item& item, const Args& args, u32 next) {
    const Place own = item.place;
    two_steps<true>(sums, own, own.first, item, args, next);
    for (u32 k = own.first + 2 * kStepK; k < own.end; k += 2 * kStepK) {
      two_steps<false>(sums, own, k, item, args, next);
    }
    asm volatile("s_nop 15\n\ts_nop 15");  // until the last sums are there
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) pin_accumulator(sums[t]);  // none is read in the loop
    keep_order();
  }

 private:
  using X = Pieces<kM, kXShuffled, kTail>;
  using W = Pieces<kN, kShuffled, kTail>;
  static constexpr u32 kPieces = X::kCount + W::kCount;
  static constexpr u32 kReads = kMTiles + kNTiles;

  static constexpr u32 kScales = (kMTiles + kNTiles) / 2;

  template <class Act>
  __device__ void for_pieces(Act act) {
#pragma unroll
    for (u32 i = 0; i < kPieces; ++i) act(i);
  }
  template <class Act>
  __device__ void for_scales(Act act) {
#pragma unroll
    for (u32 i = 0; i < kScales; ++i) act(i);
  }
  __device__ void begin_x(const Item& item, u32 k) { x_.begin(item.x, k, item.place.end); }
  __device__ void begin_w(const Item& item, u32 k) { w_.begin(item.w, k, item.place.end); }
  __device__ void load(u32 i) { i < X::kCount ? x_.load(i) : w_.load(i - X::kCount); }
  __device__ void put(u32 i, u32 buffer) const {
    i < X::kCount ? x_.put(i, (LdsBytes*)memory.stage[buffer].x)
                  : w_.put(i - X::kCount, (LdsBytes*)memory.stage[buffer].w);
  }
  // Both operands' scales of an item.
  struct ScaleRanges {
    ScaleRange x, w;
    u32 end;
  };
  __device__ static ScaleRanges scales_of(const Item& item) {
    return {item.x_scale, item.w_scale, item.place.end};
  }
  __device__ void load_scale(u32 i, u32 stage, const ScaleRanges& from, u32 k) {
    i < kMTiles / 2 ? x_scale_.load(i, stage, from.x, k, from.end)
                    : w_scale_.load(i - kMTiles / 2, stage, from.w, k, from.end);
  }
  // Operand i of a half: first one of each, then those of w, then of x, as they are used.
  __device__ void read(u32 i, u32 half, u32 buffer) {
    const u32 at = half == 0 ? at_.low : at_.high;
    const LdsBytes* const x = (LdsBytes*)memory.stage[buffer].x + m * kRowBytes + at;
    const LdsBytes* const w = (LdsBytes*)memory.stage[buffer].w + n * kRowBytes + at;
    if (i == 0) {
      operands_[half].x[0] = lds_load_16(x);
    } else if (i <= kNTiles) {
      operands_[half].w[i - 1] = lds_load_16(w + (i - 1) * kLdsTile);
    } else {
      operands_[half].x[i - kNTiles] = lds_load_16(x + (i - kNTiles) * kLdsTile);
    }
  }

  // What a step loads: operands two steps on, scales one step on.
  struct Ahead {
    const Item& item;
    u32 k;
    ScaleRanges scales;
    u32 scale_k;
  };

  template <bool kFresh>
  __device__ void two_steps(F32x4 (&sums)[kTiles], const Place& own, u32 k, Item& item,
                            const Args& args, u32 next) {
    const ScaleRanges scales = scales_of(item);
    u32 on = k + 2 * kStepK;
    if (on >= own.end) {
      item = Item::of(args, next);
      on = item.place.first;
    }
    step<0, kFresh>(sums, own, k, {item, on, scales, k + kStepK});
    step<1, false>(sums, own, k + kStepK, {item, on + kStepK, scales_of(item), on});
  }

  template <u32 kStage, bool kFresh>
  __device__ void step(F32x4 (&sums)[kTiles], const Place& own, u32 k, const Ahead& ahead) {
    x_scale_.begin(kStage, k, own.end);
    w_scale_.begin(kStage, k, own.end);
    half<kStage, 0, kFresh>(sums, ahead);
    wait_lds();
    meet();
    half<kStage, 1, false>(sums, ahead);
  }

  // After multiplication q of a half: what else is done there. Loads are spread over both halves,
  // so that the memory pipe has time; writes end early, so that the barrier finds them done.
  template <u32 kStage, u32 kHalf>
  __device__ void between(u32 q, const Ahead& ahead) {
    if (q % kPitch == 0 && q / kPitch < kReads) {
      read(q / kPitch, 1 - kHalf, kHalf == 0 ? kStage : 1 - kStage);
    }
    if (kHalf == 0) {
      for_pieces([&](u32 i) {
        if (q == write_at(i)) put(i, 1 - kStage);
      });
    }
    const u32 at = kHalf * kTiles + q;  // in the step
    if (at == load_at(0) - 1) begin_x(ahead.item, ahead.k);
    if (at == load_at(X::kCount) - 1) begin_w(ahead.item, ahead.k);
    for_pieces([&](u32 i) {
      if (at == load_at(i)) load(i);
    });
    for_scales([&](u32 i) {
      if (at == 3 + i * (kTiles / kScales)) {
        load_scale(i, 1 - kStage, ahead.scales, ahead.scale_k);
      }
    });
  }
  static constexpr u32 kMost = kReads > kPieces ? kReads : kPieces;
  static constexpr u32 kPitch = (kTiles - 8) / kMost;  // from one read or write to the next
  static_assert(kPitch >= 1, "reads and writes end before their half");
  static constexpr u32 write_at(u32 i) { return i * kPitch + (kPitch > 1 ? 1 : 0); }

  static constexpr u32 load_at(u32 i) { return write_at(i) + 2 + i * (kTiles + 8) / kPieces; }

  template <u32 kStage, u32 kHalf, bool kFresh, u32 kQ = 0>
  __device__ void half(F32x4 (&sums)[kTiles], const Ahead& ahead) {
    if constexpr (kQ < kTiles) {
      constexpr u32 i = m_of(kQ), j = n_of(kQ);
      const Operands& own = operands_[kHalf];
      multiply_in_place<j % 2 + 2 * kHalf, i % 2 + 2 * kHalf, kFresh>(
          sums[kQ], own.w[j], w_scale_.of(kStage, j), own.x[i], x_scale_.of(kStage, i));
      between<kStage, kHalf>(kQ, ahead);
      keep_order();
      half<kStage, kHalf, kFresh, kQ + 1>(sums, ahead);
    }
  }

  X x_;
  W w_;
  Scales<kMTiles, kTail> x_scale_;
  Scales<kNTiles, kTail> w_scale_;
  LdsPieces at_;
  Operands operands_[2];
};

__device__ inline void store_sums(F32x4 (&sums)[kTiles], Out* out, u32 m, u32 n, const Place& at,
                                  const Wave& wave, const BiasRow<Bias>& bias) {
  const u32 n0 = at.n0 + wave.n;
  F32x4 added[kNTiles];
#pragma unroll
  for (u32 j = 0; j < kNTiles; ++j) {
    added[j] = bias.load(n0 + j * kTileRows + lane_in_wave() / kTileRows * 4);
  }
  LdsBytes* const lds = (LdsBytes*)memory.store[wave_in_group()];
  const Store store(out, at.m0 + wave.m, m, kM / 2, n, n0, lds);
#pragma unroll
  for (u32 i = 0; i < kMTiles; ++i) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      F32x4& sum = sums[place_of(i, j)];
      pin_accumulator(sum);  // not all at once from accumulation registers
      store.put(j, sum + added[j]);
    }
    store.store(i);
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mxfp4_loop(const u8* __restrict__ w,        // [N, K/2], rows w_row bytes apart
               const u8* __restrict__ w_scale,  // [N, K/32] shuffled, w_scale_row columns
               const u8* __restrict__ x,        // [M, K/2], rows x_row bytes apart
               const u8* __restrict__ x_scale,  // [M, K/32] shuffled, x_scale_row columns
               u32 m, u32 n, u32 k, u32 x_row, u32 w_row, u32 w_scale_row, u32 x_scale_row,
               u32 groups,                     // workgroups of the launch
               Out* __restrict__ out,          // [M, N]
               const void* __restrict__ bias,  // [N]
               void* __restrict__ workspace,   // SplitTile; with kSplit > 1
               u32* __restrict__ counts) {     // [tiles], zeros
  const Args args = {w, w_scale, x,     x_scale,     m,           n,
                     k, x_row,   w_row, w_scale_row, x_scale_row, groups};
  const u32 items = (m + kM - 1) / kM * ((n + kN - 1) / kN) * kSplit;
  u32 number = group_x();
  Item item = Item::of(args, number);
  Wave wave(args);
  wave.start(item);
  for (; number < items; number += groups) {
    const Place own = item.place;
    F32x4 sums[kTiles];
    wave.multiply_all(sums, item, args, number + groups);
    bool is_whole = true;
    if constexpr (kSplit > 1) {
      SplitTile<kSplit, kTiles * kThreads, kThreads> tile(workspace, counts, own.tile);
      is_whole = tile.reduce(sums, own.split);
    }
    if (is_whole) store_sums(sums, out, m, n, own, wave, BiasRow<Bias>(bias, n));
  }
}
