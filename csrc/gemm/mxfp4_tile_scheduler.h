// Tile scheduler of MXFP4 GEMMs: the output tile and split of K of a work item, and the addresses
// of its operands and preshuffled scales (gfx950).
#pragma once

#include "gemm/mxfp4_raw_scales.h"
#include "rfops/chip/arch.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/tile_map.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

struct Fp4Args {
  const u8 *w, *w_scale, *x, *x_scale;
  u32 m, n, k, x_row, w_row, w_scale_row, x_scale_row;
  u32 groups;  // workgroups of the launch
};

// An output tile, or one split of its K.
struct TileWork {
  u32 m0, n0, tile, split;
  u32 begin, end;  // elements of K
};

// Returns work item `item` of all tiles of kM x kN and their splits.
template <u32 kM, u32 kN, u32 kSplit, u32 kGroupM>
__device__ inline TileWork fp4_tile_work(const Fp4Args& a, u32 item) {
  const u32 m_blocks = (a.m + kM - 1) / kM, n_blocks = (a.n + kN - 1) / kN;
  const TileCoord lane_tile = tile_coord<kGroupM, kSplit>(item, m_blocks, n_blocks);
  const TileCoord tile = {readfirstlane(lane_tile.m), readfirstlane(lane_tile.n),
                          readfirstlane(lane_tile.split)};
  const u32 steps = (a.k + kStepK - 1) / kStepK;  // splits differ by at most one
  const u32 begin = steps * tile.split / kSplit * kStepK;
  const u32 padded_end = steps * (tile.split + 1) / kSplit * kStepK;
  const u32 end = padded_end < a.k ? padded_end : a.k;
  return {tile.m * kM, tile.n * kN, tile.m * n_blocks + tile.n, tile.split, begin, end};
}

// Returns the buffer of the preshuffled scales of at most max_rows rows from `row` on, a multiple
// of 32.
__device__ inline Buffer scale_rows(const u8* scales, u32 row, u32 rows, u32 max_rows,
                                    u32 row_bytes, bool in_bounds) {
  const u32 remaining = row < rows ? rows - row : 0;
  const u32 num_rows = remaining < max_rows ? remaining : max_rows;
  return make_buffer(scales + u64{row / 32} * (32 * row_bytes),
                     in_bounds ? (num_rows + 31) / 32 * 32 * row_bytes : 0);
}

// Returns the buffer of an operand's scales for a workgroup whose rows begin at `row`, raw, or for
// its wave whose rows begin at wave_row; of max_rows rows each.
template <bool kRaw>
__device__ inline ScaleBuffer<kRaw>::Type item_scales(const u8* scales, u32 row, u32 wave_row,
                                                      u32 rows, u32 max_rows, u32 max_wave_rows,
                                                      u32 row_bytes, u32 k) {
  if constexpr (kRaw) {
    const OperandView view(scales, row, rows, max_rows, row_bytes, 0, k / kFp4Block);
    return make_buffer_words(view.base, view.bytes);
  } else {
    return scale_rows(scales, wave_row, rows, max_wave_rows, row_bytes, wave_row < rows);
  }
}

// A work item with the buffers of a workgroup of 2 x 2 waves.
template <u32 kM, u32 kN, u32 kSplit, u32 kGroupM, bool kXShuffled, bool kShuffled,
          bool kXRawScales, bool kRawScales>
struct Fp4Item {
  TileWork work;
  Buffer x, w;  // of the workgroup
  ScaleBuffer<kXRawScales>::Type x_scale;
  ScaleBuffer<kRawScales>::Type w_scale;

  __device__ static u32 count(const Fp4Args& a) {
    return (a.m + kM - 1) / kM * ((a.n + kN - 1) / kN) * kSplit;
  }

  __device__ static Fp4Item make(const Fp4Args& a, u32 item) {
    const TileWork work = fp4_tile_work<kM, kN, kSplit, kGroupM>(a, item);
    const u32 m0 = work.m0, n0 = work.n0;
    const u32 x_rows =
        kXShuffled ? (a.m + 15) / 16 * 16 : a.m;  // preshuffled rows are padded to 16
    const OperandView x(a.x, m0, x_rows, kM, a.x_row, 0, a.k / 2,
                        OperandLayout<kXShuffled>::kKStrideBytes);
    const OperandView w(a.w, n0, a.n, kN, a.w_row, 0, a.k / 2,
                        OperandLayout<kShuffled>::kKStrideBytes);
    const u32 wave_m = m0 + wave_id() / 2 * (kM / 2);
    const u32 wave_n = n0 + wave_id() % 2 * (kN / 2);
    return {work, make_buffer(x.base, x.bytes), make_buffer(w.base, w.bytes),
            item_scales<kXRawScales>(a.x_scale, m0, wave_m, a.m, kM, kM / 2, a.x_scale_row, a.k),
            item_scales<kRawScales>(a.w_scale, n0, wave_n, a.n, kN, kN / 2, a.w_scale_row, a.k)};
  }
};

// Delays the start of workgroups so that they do not all store at the same time. Workgroups that
// start together store together, which occupies the memory for kStoreClocks, and loads wait. So if
// each workgroup computes at least four long tiles, those of an XCD start one after the other; the
// last one starts 2 kStoreClocks late, which lengthens the launch by as much. Estimated, MI355X,
// 16384 x 8192 x 8192: MFMA utilisation 81 -> 85 %.
template <u32 kTileBytes>
__device__ inline void stagger_start(u32 items, u32 groups, u32 clocks) {
  constexpr u32 kStoreClocks = kTileBytes / 13;            // from the bytes per clock of one CU
  constexpr u32 kSleepUnits = 2 * kStoreClocks / 32 / 64;  // s_sleep counts 64 clocks
  if (kSleepUnits == 0 || items < 4 * groups || clocks < 6 * kStoreClocks) return;
  for (u32 i = 0; i < workgroup_id_x() / kXcds; ++i) __builtin_amdgcn_s_sleep(kSleepUnits);
}

}  // namespace rfops
