// out[m, n] = sum_b x_scale[m, b] * w_scale[n / 128, b] * sum_{k in block b} x[m, k] * w[n, k]
//
// FP8 with fp32 scales, of any value, per block of 128 of K, for results of so few tiles that a CU
// has one or two of them. Any M and N, K a multiple of 128.
//
// Layout. Four waves, 2 x 2 or all along N, compute kM x kN of the output. LDS holds two K-steps
// of both operands, and registers hold the operands of two more: while a wave multiplies K-step k,
// it reads k + 1 from LDS, writes k + 2 to where k was, and loads k + 4. Each of these instructions
// is issued beside a matrix instruction, so that a CU needs no second workgroup to be busy; of
// small tiles a CU takes two where its LDS has room. Scales of x for four K-steps are loaded four
// K-steps ahead, as loads complete in order: a wait for them is then for no operand that is needed
// later. The partial sums of a scale block are promoted as in promotion.h. w is MFMA operand A, so
// a lane holds 4 neighbours of a row of out and the scale of its tile is one value. The rows of w
// of two tiles alternate by four, so that a lane holds 8 neighbours in both and stores them at
// once.
//
// A CU has only so many bytes of loads in flight. What counts is how many bytes the CU with most
// tiles loads, (kM + kN) * K / kSplit for each: hence tiles of many sizes, and kSplit workgroups
// that split K; the last to arrive reduces (split_k_reduce.h).
//
// Guarantees: bitwise deterministic for a given config and K.
// Requires: x, w and their rows 16-byte aligned; the rows of a workgroup span less than 2 GiB (what
// lies before them may be larger).
#include "rfops/chip/static_for.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/promotion.h"

namespace {

using namespace rfops;

using Out = RFOPS_OUT;                      // bf16, f16 or f32
constexpr bool kShuffled = RFOPS_SHUFFLED;  // w is preshuffled: tiles of 16 rows by 16 bytes
constexpr bool kDense = RFOPS_DENSE;        // x, w and w_scale are contiguous
constexpr u32 kM = RFOPS_M;                 // rows of x per workgroup
constexpr u32 kN = RFOPS_N;                 // rows of w per workgroup
constexpr u32 kSplit = RFOPS_SPLIT;         // split-K: workgroups per output tile
constexpr u32 kGroupM = RFOPS_GROUP_M;      // tiles along M per raster group (tile_map.h)
constexpr u32 kMinWaves = kM * kN <= 64 * 128 ? 2 : 1;  // of a SIMD, as registers allow
constexpr u32 kStages = 2;                              // K-steps in LDS, and in registers
constexpr u32 kUnroll = LaneBlockScales::kSteps;        // K-steps of an iteration
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
// Of the two arrangements the one whose waves read fewer rows from LDS.
constexpr u32 kWavesM = kM % (2 * kTileRows) == 0 && (kM + kN) / 2 <= kM + kN / 4 ? 2 : 1;
constexpr u32 kWavesN = kWaves / kWavesM;
constexpr u32 kWaveM = kM / kWavesM, kWaveN = kN / kWavesN;
constexpr u32 kMTiles = kWaveM / kTileRows, kNTiles = kWaveN / kTileRows;  // per wave
constexpr u32 kTiles = kMTiles * kNTiles;
constexpr u32 kTilesPerGroup = kTiles % kGroup == 0 ? kGroup : kTiles / 2;  // of promotion.h
constexpr u32 kMfmas = kTiles * kMatrixSteps;                               // per K-step
constexpr u32 kFragments = kMTiles + kNTiles;                               // of a wave per K-step
constexpr u32 kRowsPerLoad = kThreads / kRowChunks;
constexpr u32 kXRows = (kM + kRowsPerLoad - 1) / kRowsPerLoad * kRowsPerLoad;  // in LDS
constexpr u32 kStageBytes = (kXRows + kN) * kRowBytes;                         // LDS of a K-step

static_assert(kM % kTileRows == 0 && kN % 64 == 0 && kN <= kScaleRows, "one scale of w per K-step");
static_assert(kStages * kStageBytes < kLdsBytes, "LDS holds two K-steps");
static_assert(kUnroll % kStages == 0, "stages return in an iteration");

// Tile t of a wave, in the order of promotion: consecutive tiles share an operand.
constexpr u32 m_of(u32 t) { return t / kNTiles; }
constexpr u32 n_of(u32 t) { return m_of(t) % 2 == 0 ? t % kNTiles : kNTiles - 1 - t % kNTiles; }

struct Wave {
  u32 m, n, lane;  // the wave's first row of x and of w in the workgroup's tile
};

// Whether tiles of a wave are in pairs: w's row 8 q + i of a pair, and 8 q + 4 + i, i below 4, is
// row 4 q + i of its first and of its second tile.
constexpr bool kPairs = kNTiles % 2 == 0;
// Returns the row of w of a row of tiles, and the reverse.
constexpr u32 w_row_of(u32 tile_row) {
  if constexpr (!kPairs) return tile_row;
  return tile_row / 32 * 32 + tile_row % 16 / 4 * 8 + tile_row / 16 % 2 * 4 + tile_row % 4;
}
constexpr u32 tile_row_of(u32 w_row) {
  if constexpr (!kPairs) return w_row;
  return w_row / 32 * 32 + w_row / 4 % 2 * 16 + w_row % 32 / 8 * 4 + w_row % 4;
}

// The row and the 16-byte chunk of it that a thread loads: neighbours load neighbouring bytes of
// memory, which of a preshuffled operand are rows.
struct LoadedChunk {
  u32 row, chunk;
};
template <bool kIsShuffled>
constexpr LoadedChunk loaded_chunk(u32 thread) {
  if constexpr (!kIsShuffled) return {thread / kRowChunks, thread % kRowChunks};
  constexpr u32 kThreadsOfTile = kTileRows * kRowChunks;
  return {thread / kThreadsOfTile * kTileRows + thread % kTileRows,
          thread % kThreadsOfTile / kTileRows};
}

// LDS tiles of w are swizzled by row % 8 on all chips, and the second tile of a pair by 4 more, so
// that eight neighbouring rows of w are in different banks too, which threads write at once.
constexpr u32 w_lds_offset(u32 tile_row, u32 chunk) {
  const u32 swizzle = tile_row % kRowChunks ^ (kPairs ? tile_row / kTileRows % 2 * 4 : 0);
  return tile_row * kRowBytes + (chunk ^ swizzle) * kVecBytes;
}
constexpr u32 w_lds_write_offset(u32 thread) {
  const LoadedChunk loaded = loaded_chunk<kShuffled>(thread);
  return w_lds_offset(tile_row_of(loaded.row), loaded.chunk);
}
static_assert(details::conflict_free(details::kWritePhases, 32, w_lds_write_offset),
              "writes of w have no bank conflict");
static_assert(details::conflict_free(details::kReadPhases, kLdsBanks,
                                     [](u32 l) { return w_lds_offset(l % 16, l / 16); }) &&
                  details::conflict_free(details::kReadPhases, kLdsBanks,
                                         [](u32 l) { return w_lds_offset(l % 16, l / 16 + 4); }),
              "reads of w have no bank conflict");

// Reads a wave's fragments of w from the LDS tile of w at `memory`.
class WReader {
 public:
  __device__ WReader(const LdsBytes* memory, u32 lane, u32 row_begin)
      : base_(memory + row_begin * kRowBytes),
        fragment_{w_lds_offset(lane % kTileRows, lane / kTileRows),
                  w_lds_offset(lane % kTileRows, lane / kTileRows + kRowChunks / 2)} {}
  template <u32 kOffsetBytes>
  __device__ Fragment read(u32 tile) const {
    const bool is_second = kPairs && tile % 2 != 0;
    const LdsFragmentOffsets offsets = {is_second ? fragment_.high : fragment_.low,
                                        is_second ? fragment_.low : fragment_.high};
    return lds_load_fragment(base_ + kOffsetBytes + tile * kLdsTile, offsets);
  }

 private:
  const LdsBytes* base_;
  LdsFragmentOffsets fragment_;  // of the first tile of a pair
};

// Loads an operand's rows of one K-step at a time through registers to LDS, a load at a time;
// registers hold kStages K-steps. Rows beyond the view's are zeros.
template <u32 kRows, bool kIsShuffled>
class Loader {
  using Layout = OperandLayout<kIsShuffled>;
  static_assert(kRows % kRowsPerLoad == 0, "a whole number of loads");

 public:
  static constexpr u32 kLoads = kRows / kRowsPerLoad;

  __device__ Loader(const OperandView& rows, u32 lds_dst) : rows_(rows), lds_dst_(lds_dst) {
    const LoadedChunk loaded = loaded_chunk<kIsShuffled>(thread_id());
    src_offset_ = Layout::offset(loaded.row, loaded.chunk, rows.row_bytes);
    // Before loads: what computes them may read half of a register pair that one of these writes.
    force_vgpr(src_offset_);
    force_vgpr(lds_dst_);
  }
  // Issues load i of K-step `block`; zeros if not in_bounds.
  template <u32 kStage>
  __device__ void issue(u32 i, u32 block, bool in_bounds) {
    const Buffer buffer = make_buffer(rows_.base, in_bounds ? rows_.bytes : 0);
    staged_[kStage][i] = buffer_load_b128(
        buffer, src_offset_,
        i * kRowsPerLoad * rows_.row_bytes + block * kTileK * Layout::kKStrideBytes);
  }
  // Waits for load i and writes it to the LDS tile.
  template <u32 kStage>
  __device__ void commit(u32 i, LdsBytes* tile) const {
    *reinterpret_cast<RFOPS_LDS U32x4*>(tile + lds_dst_ + i * kRowsPerLoad * kRowBytes) =
        staged_[kStage][i];
  }

 private:
  OperandView rows_;
  u32 src_offset_, lds_dst_;
  U32x4 staged_[kStages][kLoads];
};
using XLoader = Loader<kXRows, false>;
using WLoader = Loader<kN, kShuffled>;
constexpr u32 kLoads = XLoader::kLoads + WLoader::kLoads;

using Sums = PromotedAcc<kTiles, kTilesPerGroup>;

// What a wave multiplies in a K-step.
struct Operands {
  Fragment x[kMTiles], w[kNTiles];
  f32 scale[kMTiles];  // x's times w's
};

template <u32 kTileBegin = 0, class Interleave>
__device__ inline void multiply(Sums& sums, const Operands& operands, Interleave interleave) {
  if constexpr (kTileBegin < kTiles) {
    sums.multiply<kTileBegin>(
        [&](u32 t) -> const Fragment& { return operands.w[n_of(kTileBegin + t)]; },
        [&](u32 t) -> const Fragment& { return operands.x[m_of(kTileBegin + t)]; },
        [&](u32 t) { return operands.scale[m_of(kTileBegin + t)]; },
        [&](u32 i) { interleave(kTileBegin * kMatrixSteps + i); });
    multiply<kTileBegin + kTilesPerGroup>(sums, operands, interleave);
  }
}

// Multiplies the K-steps of a workgroup, in pairs: an even one has the first of two stages of LDS,
// of staged loads and of operands.
class Pipeline {
 public:
  __device__ Pipeline(LdsBytes* memory, const OperandView& x_rows, const OperandView& w_rows,
                      const RowScales& x_scale, const BlockScales& w_scale, u32 blocks,
                      const Wave& wave)
      : memory_(memory),
        x_reader_(memory, wave.lane, wave.m),
        w_reader_(memory + kXRows * kRowBytes, wave.lane, wave.n),
        x_(x_rows, lds_offset(thread_id() / kRowChunks, thread_id() % kRowChunks)),
        w_(w_rows, w_lds_write_offset(thread_id())),
        x_scale_loader_(x_scale),
        w_scale_(w_scale),
        blocks_(blocks),
        wave_m_(wave.m) {}

  __device__ void run(Sums& sums) {
    load_scales(0);
    static_for<kStages>([&](auto i) { issue_all<i>(i); });
    static_for<kStages>([&](auto i) {
      commit_all<i>();
      issue_all<i>(i + kStages);
    });
    wait_lgkmcnt();
    s_barrier();
#pragma unroll
    for (u32 i = 0; i < kFragments; ++i) read<0>(i);
#pragma unroll
    for (u32 step = 0; step < kUnroll; ++step) select_scales(step);
    load_scales(kUnroll);
    set_scales<0>(w_scale_.load(0));
    u32 block = 0;
    for (; block + kUnroll <= blocks_; block += kUnroll) {
      static_for<kUnroll>([&](auto i) { do_step<i, true>(sums, block + i); });
    }
    do_last_steps<0>(sums, block);
  }

 private:
  // Loads the scales of the kUnroll K-steps from `block` on.
  __device__ void load_scales(u32 block) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      loaded_scales_[i] = x_scale_loader_.load(wave_m_ + i * kTileRows, block, blocks_);
    }
    sched_barrier();
  }
  // Takes those of K-step `step` from what was loaded.
  __device__ void select_scales(u32 step) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      x_scale_[step][i] = x_scale_loader_.select(loaded_scales_[i], step);
    }
  }
  template <u32 kIdx>
  __device__ void set_scales(f32 w_block_scale) {
#pragma unroll
    for (u32 i = 0; i < kMTiles; ++i) {
      operands_[kIdx % kStages].scale[i] = x_scale_[kIdx][i] * w_block_scale;
    }
  }
  // Load i of both operands.
  template <u32 kStage>
  __device__ void issue(u32 i, u32 block) {
    const bool in_bounds = block < blocks_;
    if (i < WLoader::kLoads) {
      w_.template issue<kStage>(i, block, in_bounds);
    } else {
      x_.template issue<kStage>(i - WLoader::kLoads, block, in_bounds);
    }
  }
  template <u32 kStage>
  __device__ void commit(u32 i) {
    LdsBytes* const stage = memory_ + kStage * kStageBytes;
    if (i < WLoader::kLoads) {
      w_.template commit<kStage>(i, stage + kXRows * kRowBytes);
    } else {
      x_.template commit<kStage>(i - WLoader::kLoads, stage);
    }
  }
  template <u32 kStage>
  __device__ void issue_all(u32 block) {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) issue<kStage>(i, block);
    sched_barrier();
  }
  template <u32 kStage>
  __device__ void commit_all() {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) commit<kStage>(i);
    sched_barrier();
  }
  template <u32 kStage>
  __device__ void read(u32 i) {
    Operands& operands = operands_[kStage];
    if (i < kNTiles) {
      operands.w[i] = w_reader_.template read<kStage * kStageBytes>(i);
    } else {
      operands.x[i - kNTiles] = x_reader_.template read<kStage * kStageBytes>(i - kNTiles);
    }
  }

  // Multiplies the K-steps that are fewer than an iteration, from number kIdx on. No loads are
  // left for them to issue.
  template <u32 kIdx>
  __device__ void do_last_steps(Sums& sums, u32 block) {
    if constexpr (kIdx + 1 < kUnroll) {
      if (block == blocks_) return;
      do_step<kIdx, false>(sums, block);
      do_last_steps<kIdx + 1>(sums, block + 1);
    }
  }
  // Multiplies K-step `block`, number kIdx of an iteration, whose operands are in registers.
  template <u32 kIdx, bool kIssues>
  __device__ void do_step(Sums& sums, u32 block) {
    constexpr u32 kStage = kIdx % kStages, kNext = (kIdx + 1) % kStages;
    const u32 next = block + 1;
    wait_lgkmcnt();
    s_barrier();  // all waves have read this K-step from LDS and written the next one
    const f32 w_block_scale = w_scale_.load(next < blocks_ ? next : block);
    sched_barrier();
    // Reads and writes alternate, evenly over the K-step.
    multiply(sums, operands_[kStage], [&](u32 mfma_idx) {
      const auto is_at = [&](u32 i, u32 count, u32 offset) {
        return mfma_idx == (2 * i + offset) * kMfmas / (2 * count);
      };
#pragma unroll
      for (u32 i = 0; i < kFragments; ++i) {
        if (is_at(i, kFragments, 0)) read<kNext>(i);
      }
#pragma unroll
      for (u32 i = 0; i < kLoads; ++i) {
        if (is_at(i, kLoads, 1)) {
          commit<kStage>(i);
          if constexpr (kIssues) issue<kStage>(i, block + 2 * kStages);
        }
      }
#pragma unroll
      for (u32 i = 0; i < kUnroll && kIdx == kUnroll - 1; ++i) {
        if (mfma_idx == (kUnroll + i) * kMfmas / (2 * kUnroll)) select_scales(i);
      }
    });
    // Scales are loaded an iteration before they are selected: waiting for them then does not wait
    // for the operands' loads of these K-steps.
    if constexpr (kIssues && kIdx == kUnroll - 1) load_scales(next + kUnroll);
    set_scales<(kIdx + 1) % kUnroll>(w_block_scale);
  }

  LdsBytes* memory_;
  RowReader x_reader_;
  WReader w_reader_;
  XLoader x_;
  WLoader w_;
  LaneBlockScales x_scale_loader_;
  BlockScales w_scale_;
  u32 blocks_, wave_m_;
  Operands operands_[2];
  f32 x_scale_[kUnroll][kMTiles];  // of this iteration's K-steps
  f32 loaded_scales_[kMTiles];     // of the next iteration's
};

// Stores a wave's sums to the workgroup's rows of out[m, n] from row m0 and column n0 on. Eight
// neighbours of 16 bits are one store where all rows are aligned for it.
template <class Element>
__device__ inline void store_sums(const Sums& sums, Element* out, u32 m0, u32 m, u32 n, u32 n0,
                                  const Wave& wave) {
  const u32 row = wave.m + wave.lane % kTileRows, tile_row = wave.lane / kTileRows * 4;
  const u32 row_bytes = n * sizeof(Element), column = n0 + wave.n;
  if constexpr (kPairs && sizeof(Element) == 2) {
    if ((row_bytes | static_cast<u32>(reinterpret_cast<u64>(out))) % kVecBytes == 0) {
      const u32 num_rows = m - m0 < kM ? m - m0 : kM;
      const Buffer buffer = make_buffer(out + u64{m0} * n, num_rows * row_bytes);
#pragma unroll
      for (u32 t = 0; t < kTiles; t += 2) {
        // Of two neighbours in the order of promotion the even one along N is first in memory.
        const u32 first = n_of(t) % 2 == 0 ? t : t + 1, second = first ^ 1;
        const u32 pair_column = column + w_row_of(n_of(first) * kTileRows + tile_row);
        u32 oob_bits = pair_column < n ? 0 : kOutOfBounds;
        force_vgpr(oob_bits);  // otherwise the compiler makes branches of it
        const u32 offset = (row + m_of(t) * kTileRows) * row_bytes + pair_column * sizeof(Element);
        const auto low = __builtin_convertvector(sums.sum[first], Vec4<Element>);
        const auto high = __builtin_convertvector(sums.sum[second], Vec4<Element>);
        const auto both = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(U32x4, both), buffer.rsrc,
                                               offset | oob_bits, 0, 0);
      }
      return;
    }
  }
  OutputView<Element>(out, m0, m, kM, n).store([&](auto store) {
#pragma unroll
    for (u32 t = 0; t < kTiles; ++t) {
      store(sums.sum[t], row + m_of(t) * kTileRows,
            column + w_row_of(n_of(t) * kTileRows + tile_row));
    }
  });
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(kMinWaves)))
    a8w8_blockscale_deep(
        const u8* __restrict__ x,         // [M, K], rows x_row bytes apart
        const u8* __restrict__ w,         // [N, K], rows w_row bytes apart
        const f32* __restrict__ x_scale,  // [M, K/128], strides x_scale_row, x_scale_k
        const f32* __restrict__ w_scale,  // [N/128, K/128], strides w_scale_row, w_scale_k
        u32 m, u32 n, u32 k, u32 x_scale_row, u32 x_scale_k, u32 w_scale_k,
        Out* __restrict__ out,         // [M, N]
        void* __restrict__ workspace,  // partials if kSplit > 1 (SplitKReducer)
        u32* __restrict__ counts,      // [tiles], zeros before and after
        u32 x_row, u32 w_row, u32 w_scale_row) {
  if constexpr (kDense) x_row = w_row = k;
  if constexpr (kDense) w_scale_row = w_scale_k == 1 ? k / kTileK : 1;
  const u32 m_blocks = (m + kM - 1) / kM, n_blocks = (n + kN - 1) / kN;
  const TileCoord tile = this_tile<kGroupM, kSplit>(m_blocks, n_blocks);
  const u32 m0 = tile.m * kM, n0 = tile.n * kN;
  const u32 k_blocks = k / kTileK;  // splits differ by at most one K-step
  const u32 block_begin = k_blocks * tile.split / kSplit;
  const u32 blocks = k_blocks * (tile.split + 1) / kSplit - block_begin;
  const u32 wave_idx = wave_id();
  const Wave wave = {wave_idx / kWavesN * kWaveM, wave_idx % kWavesN * kWaveN, lane_id()};

  const u32 k0 = block_begin * kTileK, k_bytes = blocks * kTileK;
  __shared__ u8 memory[kStages * kStageBytes];
  Pipeline pipeline((LdsBytes*)memory, {x, m0, m, kM, x_row, k0, k_bytes},
                    {w, n0, n, kN, w_row, k0, k_bytes, OperandLayout<kShuffled>::kKStrideBytes},
                    {x_scale, m0, m, kM, x_scale_row, x_scale_k, block_begin, blocks},
                    {w_scale, n0, w_scale_row, w_scale_k, block_begin}, blocks, wave);
  Sums sums = {};
  pipeline.run(sums);
  sums.drain();
  if constexpr (kSplit > 1) {
    SplitKReducer<kSplit, kTiles * kThreads, kThreads, kCounterStride> reducer(
        workspace, counts, tile.m * n_blocks + tile.n);
    if (!reducer.reduce(sums.sum, tile.split, (RFOPS_LDS u32*)memory)) return;
  }
  store_sums(sums, out, m0, m, n, n0, wave);
}
