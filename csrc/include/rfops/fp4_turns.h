// The order in which a workgroup makes tiles of an MXFP4 product whose rows are in parts, each a
// pair of K-steps behind the one before (gfx950).
//
// A run is tiles that have their rows of w in common, one after the other along M. A tile has
// `pairs` pairs of K-steps, and part p begins a tile at its pair p: it takes pairs p, p + 1, ... of
// K and at last pairs 0 to p - 1, when part 0 is in the next tile. Behind a run's last tile comes a
// drain of kParts - 1 pairs, in which parts end one after the other.
#pragma once

#include "rfops/fp4_items.h"

namespace rfops {

constexpr u32 kParts = 4;           // of a tile's rows
constexpr u32 kPairK = 2 * kStepK;  // elements
constexpr u32 kMostApart = 2048;    // rows from a tile of a run to the next

// The kernel's arguments, from memory: few scalar registers are left to keep them in.
__device__ inline Fp4Args arguments() {
  auto at =
      (const __attribute__((address_space(4))) Fp4Args*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(at));
  return *at;
}

// A pair of K-steps.
struct Turn {
  u32 number;           // of the tile
  u32 at, count;        // which pair of the tile or of the drain; how many it has
  u32 old_m, m0, n0;    // rows of x of the tile before, in which late parts are; of this one; of w
  u32 stride, left;     // rows to the next tile of the run; how many are left
  u32 has_old, drains;  // whether there is a tile before; whether it is a drain
};

struct TilePlace {
  u32 m0, n0;
  bool is_there;
};
template <class T>
__device__ inline TilePlace place_of(const Fp4Args& a, u32 item) {
  const u32 m_blocks = (a.m + T::kM - 1) / T::kM, n_blocks = (a.n + T::kN - 1) / T::kN;
  const bool is_there = item < m_blocks * n_blocks;
  const Block found = block_of<T::kGroupN, 1>(is_there ? item : 0, n_blocks, m_blocks);
  return {as_scalar(found.n) * T::kM, as_scalar(found.m) * T::kN, is_there};
}
// The first pair of a run.
template <class T>
__device__ inline Turn first_turn(const Fp4Args& a, u32 item) {
  const TilePlace at = place_of<T>(a, item), next = place_of<T>(a, item + a.groups);
  const u32 apart = next.m0 - at.m0;
  const bool goes_on = next.is_there && next.n0 == at.n0 && apart - 1 < kMostApart &&
                       a.groups % kXcds == 0;  // and on, from here as far
  u32 left = 0;
  if (goes_on) {
    const u32 items = (a.m + T::kM - 1) / T::kM * ((a.n + T::kN - 1) / T::kN);
    const u32 by_rows = (a.m - 1 - at.m0) / apart, by_items = (items - 1 - item) / a.groups;
    left = as_scalar(by_rows < by_items ? by_rows : by_items);
  }
  return {item, 0, at.is_there ? a.k / kPairK : 0, at.m0, at.m0, at.n0, apart, left, 0, 0};
}
// The first pair of what comes behind all of `t`.
template <class T>
__device__ inline Turn behind(const Fp4Args& a, Turn t) {
  if (as_scalar(t.drains)) return first_turn<T>(a, t.number + a.groups);
  t.at = 0;
  t.has_old = 1;
  t.old_m = t.m0;
  if (as_scalar(t.left)) {
    --t.left;
    t.number += a.groups;
    t.m0 += t.stride;
  } else {
    t.drains = 1;
    t.count = kParts - 1;
  }
  return t;
}

// Where operands and their scales lie, x's from the old tile on. T: the kernel's constants.
template <class T>
struct Source {
  Buffer x, w, x_scale, w_scale;
  u32 further, scale_further;  // bytes from the old tile's rows of x to the new one's

  __device__ static Source of(const Fp4Args& a, const Turn& t) {
    const u32 apart = t.m0 - t.old_m;
    const bool is_there = t.count != 0;
    const u32 x_rows =
        T::kXShuffled ? (a.m + 15) / 16 * 16 : a.m;  // shuffled ones come in sixteens
    const OperandRows x(a.x, t.old_m, x_rows, apart + T::kM, a.x_row, 0, a.k / 2,
                        MemoryOrder<T::kXShuffled>::kUnit);
    const OperandRows w(a.w, t.n0, a.n, T::kN, a.w_row, 0, a.k / 2,
                        MemoryOrder<T::kShuffled>::kUnit);
    const u32 wave_m = t.old_m + wave_in_group() / 2 * (T::kM / 2);
    const u32 wave_n = t.n0 + wave_in_group() % 2 * (T::kN / 2);
    return {make_buffer(x.first, is_there ? x.bytes : 0),
            make_buffer(w.first, is_there ? w.bytes : 0),
            scale_rows(a.x_scale, wave_m, a.m, apart + T::kM / 2, a.x_scale_row, is_there),
            scale_rows(a.w_scale, wave_n, a.n, T::kN / 2, a.w_scale_row, is_there),
            apart * a.x_row,
            apart * a.x_scale_row};
  }
};

}  // namespace rfops
