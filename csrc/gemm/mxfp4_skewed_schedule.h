// The order in which a workgroup makes tiles of an MXFP4 product whose rows are in parts, each a
// pair of K-steps behind the one before (gfx950).
//
// A run is tiles that have their rows of w in common, one after the other along M. A tile has
// `pairs` pairs of K-steps, and part p begins a tile at its pair p: it takes pairs p, p + 1, ... of
// K and at last pairs 0 to p - 1, when part 0 is in the next tile. Behind a run's last tile comes a
// drain of kParts - 1 pairs, in which parts end one after the other.
#pragma once

#include "gemm/mxfp4_tile_scheduler.h"

namespace rfops {

constexpr u32 kParts = 4;           // of a tile's rows
constexpr u32 kPairK = 2 * kStepK;  // elements
constexpr u32 kMostApart = 2048;    // rows from a tile of a run to the next

// Parts that work in a pair: all, but where a run begins or ends.
struct Parts {
  u32 first, end;
  constexpr bool have(u32 part) const { return part >= first && part < end; }
};
constexpr Parts kAllParts = {0, kParts}, kFirstPart = {0, 1};

// What comes behind a pair of K-steps: one of the same tile, of that or the next one or of the
// drain, of another run.
enum Behind : u32 { kSameTile, kSameRun, kOtherRun };

// What is known of a pair of K-steps when the kernel is compiled.
struct PairSchedule {
  u32 begins = kParts, leaves = kParts;  // the part that begins a tile; whose sums leave
  Parts own = kAllParts;                 // who works in it
  Parts next = kAllParts;                // and in the one behind
  Behind behind = kSameTile;
};

// The kernel's arguments, from memory: few scalar registers are left to keep them in.
__device__ inline Fp4Args arguments() {
  auto at =
      (const __attribute__((address_space(4))) Fp4Args*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(at));
  return *at;
}

// A pair of K-steps.
struct Turn {
  u32 next;           // number of the first tile of the next run
  u32 at, count;      // which pair of the tile or of the drain; how many it has
  u32 old_m, m0, n0;  // rows of x of the tile before, in which late parts are; of this one; of w
  u32 stride, left;   // rows to the next tile of the run; how many are left
  u32 drains;         // whether it is a drain
};

struct TileOrigin {
  u32 m0, n0;
  bool is_there;
};
template <class T>
__device__ inline bool is_tile(const Fp4Args& a, u32 item) {
  return item < (a.m + T::kM - 1) / T::kM * ((a.n + T::kN - 1) / T::kN);
}
template <class T>
__device__ inline TileOrigin place_of(const Fp4Args& a, u32 item) {
  const u32 m_blocks = (a.m + T::kM - 1) / T::kM, n_blocks = (a.n + T::kN - 1) / T::kN;
  const bool is_there = is_tile<T>(a, item);
  const Block found = block_of<T::kGroupN, 1>(is_there ? item : 0, n_blocks, m_blocks);
  return {readfirstlane(found.n) * T::kM, readfirstlane(found.m) * T::kN, is_there};
}
// The first pair of a run, of which no more is known than its first tile.
template <class T>
__device__ inline Turn first_turn(const Fp4Args& a, u32 item) {
  const TileOrigin at = place_of<T>(a, item);
  return {item + a.groups, 0, at.is_there ? a.k / kPairK : 0, at.m0, at.m0, at.n0, 0, 0, 0};
}
// How far the run goes.
template <class T>
__device__ inline void extend_run(const Fp4Args& a, Turn& t) {
  const TileOrigin next = place_of<T>(a, t.next);
  const u32 apart = next.m0 - t.m0;
  const bool goes_on = next.is_there && next.n0 == t.n0 && apart - 1 < kMostApart &&
                       a.groups % kXcds == 0;  // and on, from here as far
  t.stride = apart;
  if (goes_on) {
    const u32 items = (a.m + T::kM - 1) / T::kM * ((a.n + T::kN - 1) / T::kN);
    const u32 by_rows = (a.m - 1 - t.m0) / apart, by_items = (items - 1 - t.next) / a.groups + 1;
    t.left = readfirstlane(by_rows < by_items ? by_rows : by_items);
    t.next += t.left * a.groups;
  }
}
// The first pair of the next tile of the run, or of the drain.
__device__ inline void advance(Turn& t) {
  t.at = 0;
  t.old_m = t.m0;
  if (readfirstlane(t.left)) {
    --t.left;
    t.m0 += t.stride;
  } else {
    t.drains = 1;
    t.count = kParts - 1;
  }
}

// Where operands and their scales lie, x's from the old tile on. T: the kernel's constants.
template <class T>
struct Source {
  Buffer x, w, x_scale, w_scale;
  u32 further, scale_further;  // bytes from the old tile's rows of x to the new one's

  __device__ Source(const Fp4Args& a, const Turn& t) {
    aim_x(a, t);
    const bool is_there = t.count != 0;
    const OperandView rows(a.w, t.n0, a.n, T::kN, a.w_row, 0, a.k / 2,
                           OperandLayout<T::kShuffled>::kUnit);
    const u32 wave_n = t.n0 + wave_id() % 2 * (T::kN / 2);
    w = make_buffer(rows.first, is_there ? rows.bytes : 0);
    w_scale = scale_rows(a.w_scale, wave_n, a.n, T::kN / 2, a.w_scale_row, is_there);
  }
  __device__ void aim_x(const Fp4Args& a, const Turn& t) {
    const u32 apart = t.m0 - t.old_m;
    const bool is_there = t.count != 0;
    const u32 x_rows =
        T::kXShuffled ? (a.m + 15) / 16 * 16 : a.m;  // shuffled ones come in sixteens
    const OperandView rows(a.x, t.old_m, x_rows, apart + T::kM, a.x_row, 0, a.k / 2,
                           OperandLayout<T::kXShuffled>::kUnit);
    const u32 wave_m = t.old_m + wave_id() / 2 * (T::kM / 2);
    x = make_buffer(rows.first, is_there ? rows.bytes : 0);
    x_scale = scale_rows(a.x_scale, wave_m, a.m, apart + T::kM / 2, a.x_scale_row, is_there);
    further = apart * a.x_row;
    scale_further = apart * a.x_scale_row;
  }
};

}  // namespace rfops
