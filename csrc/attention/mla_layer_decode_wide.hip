// out[m, n] = sum_k x[m, k] * w[n, k],  bf16, sums in fp32: the last product of an MLA layer for
// batches of more than 32, whose x lies packed (bf16_row_loaders.h). mla_layer_decode_out.hip has
// the smaller ones.
//
// Layout. A workgroup has 16 kMTiles rows of x, 16 kNTiles of w, and one of kSplit parts of K, in
// chunks of 128 kSteps. Bf16x4 waves fetch w, through registers to LDS (lds_swizzle.h), 256 kSteps
// bytes of a row at once, as a row of memory takes time to open: while one chunk is multiplied the
// next comes to the other buffer of LDS, and two more are on their way. Bf16x4 others multiply: a
// wave has a quarter of the rows of x, which come straight to where matrix cores take them, and all
// of w. So no load waits for a product, and x, which is near, not for w, as loads of one wave come
// back in order. w is operand A: a lane ends with 4 neighbours of a row of out. The workgroups'
// sums meet in a workspace (split_k_reduce.h), wave by wave.
//
// The workgroups of an XCD want the same x at about the same time: each asks for a share of it a
// chunk earlier, or all would wait for memory.
//
// MI300X, 128 rows of DeepSeek-V3's layer, estimated: 67 us; 87 where nobody asks for x earlier;
// 72 where all waves fetch and multiply; memory has the weights in 50.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of w to 16 bytes and of out to 8; K is a multiple of 128, N of 4.
#include "attention/bf16_row_loaders.h"
#include "attention/producer_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/matrix/mfma_f16.h"

namespace {

using namespace rfops;

constexpr u32 kMTiles = RFOPS_M_TILES;                        // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;                        // of 16 rows of w
constexpr u32 kSteps = RFOPS_STEPS;                           // of 128 of K, of a chunk
constexpr u32 kSplit = RFOPS_SPLIT;                           // workgroups along K
constexpr u32 kWaves = 4, kThreads = 2 * kWaves * kWaveSize;  // that multiply; and that fetch
constexpr u32 kMTilesPerWave = kMTiles / kWaves;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows;
constexpr u32 kChunk = kSteps * kStepOfK, kChunkPieces = kSteps * kPieces;
static_assert(kMTilesPerWave * kWaves == kMTiles);

using Weights = ProducerLoader<kN, kSteps, kWaves>;
constexpr u32 kLds = 2 * Weights::kBytes;  // two buffers
static_assert(kLds <= kLdsBytes);

using Rows = PackedRows<kMTilesPerWave, kSteps>;
using Accumulators = F32x4[kMTilesPerWave * kNTiles];
using Split = SplitKReducer<kSplit, kMTilesPerWave * kNTiles * kWaveSize, kWaveSize>;

// This workgroup's share of x of a chunk to come, for L2: 4 bytes of each line.
struct L2Prefetcher {
  static constexpr u32 kSlices = 8, kLine = 128, kPieceLines = kMTiles * kPackedTile / kLine;
  static constexpr u32 kLines = kChunkPieces * kPieceLines / kSlices;
  static_assert(kLines <= kWaveSize);
  Buffer rows;
  u32 tiles, k_end, slice, loaded;

  __device__ void load(u32 k) {
    const u32 lane = lane_id(), line = slice * kLines + lane;
    const u32 offset = line / kPieceLines * (tiles * kPackedTile) + line % kPieceLines * kLine;
    const u32 oob_bits = lane < kLines && k < k_end ? 0 : kOutOfBounds;
    loaded = buffer_load_dwords<1>(rows, offset | oob_bits, k / kPieceOfK * (tiles * kPackedTile))
                 .dword[0];
  }
  __device__ void wait_loaded() const { asm volatile("" ::"v"(loaded)); }
};

// Chunks from k on, each to be seen by all waves before they meet; before the first is what they
// have asked for.
__device__ inline void run_producer(Weights& w, L2Prefetcher& x, u32 k, LdsBytes* lds) {
#pragma unroll
  for (u32 s = 0; s < 2; ++s) {
    x.load(k + s * kChunk);
    for_each(Weights::kLoads, [&](u32 i) { w.load(s, 0, k + s * kChunk, i); });
    if (s == 0) s_barrier();
    x.wait_loaded();
  }
  for (; k < w.k_end; k += 2 * kChunk) {
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
      if (s > 0 && k + kChunk >= w.k_end) break;
      x.load(k + (2 + s) * kChunk);
      for_each(Weights::kLoads, [&](u32 i) {
        w.store(s, lds + s * Weights::kBytes, i);
        w.load(s, 0, k + (2 + s) * kChunk, i);
        sched_barrier();
      });
      wait_lgkmcnt();
      s_barrier();
      x.wait_loaded();
    }
  }
}

// While a piece of 32 is multiplied, the next one of w is read from LDS; x of the next chunk takes
// the place of what is done with.
__device__ inline void run_mainloop(Accumulators& acc, Rows& x, u32 k, LdsBytes* lds) {
  const LdsFragmentOffsets frag_offsets = lds_fragment_offsets(lane_id());
  U32x4 w_frags[2][kNTiles];
  const auto load_x = [&](u32 k0, u32 piece) {
    for_each(kMTilesPerWave, [&](u32 m) {
      x.load(piece / kPieces, k0 + piece / kPieces * kStepOfK, piece % kPieces, m);
    });
  };
  s_barrier();
  for_each(kChunkPieces, [&](u32 p) { load_x(k, p); });
  for (u32 buffer = 0; k < x.k_end; k += kChunk, buffer ^= Weights::kBytes) {
    const auto read = [&](u32 piece, u32 n) {
      w_frags[piece % 2][n] =
          lds_load_b128(lds + buffer + piece / 2 * Weights::kLineBytes + n * kLdsTile +
                        (piece % 2 ? frag_offsets.high : frag_offsets.low));
    };
    s_barrier();
    for_each(kNTiles, [&](u32 n) { read(0, n); });
#pragma unroll
    for (u32 p = 0; p < kChunkPieces; ++p) {
#pragma unroll
      for (u32 n = 0; n < kNTiles; ++n) {
        if (p + 1 < kChunkPieces) read(p + 1, n);
        sched_barrier();
#pragma unroll
        for (u32 m = 0; m < kMTilesPerWave; ++m) {
          F32x4& sum = acc[m * kNTiles + n];
          sum = mfma_16x16x32<bf16>(w_frags[p % 2][n], x.regs[p / kPieces][p % kPieces][m], sum);
        }
      }
      load_x(k + kChunk, p);
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    mla_layer_decode_wide(bf16* __restrict__ out,        // [M, N]
                          const bf16* __restrict__ x,    // [K / 32, M / 16, 64, 8]
                          const bf16* __restrict__ w,    // [N, K]
                          void* __restrict__ workspace,  // SplitKReducer; with kSplit > 1
                          u32* __restrict__ counts,      // [4 tiles], zeros
                          u32 m, u32 n, u32 k) {
  const u32 m_tiles = (m + kM - 1) / kM, n_tiles = (n + kN - 1) / kN;
  const TileCoord pos = this_tile<4, kSplit>(m_tiles, n_tiles);
  const u32 m0 = pos.m * kM, n0 = pos.n * kN, columns = n - n0 < kN ? n - n0 : kN;
  const u32 k_per_split = ((k + kChunk - 1) / kChunk + kSplit - 1) / kSplit * kChunk;
  const u32 begin = pos.split * k_per_split,
            end = begin + k_per_split < k ? begin + k_per_split : k;
  const u32 wave = wave_id(), lane = lane_id();
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  if (wave >= kWaves) {
    const bf16* const w_rows = scalar_address(w + u64{n0} * k);
    Weights weights = {
        make_buffer(w_rows, readfirstlane(columns * k * 2)), k * 2, end, wave - kWaves, {}};
    const auto x_rows = packed_rows<kMTiles, 1>(x, m, pos.m, k);
    const u32 slice = workgroup_id_x() / (kXcds * kSplit * m_tiles) % L2Prefetcher::kSlices;
    L2Prefetcher prefetcher = {x_rows.rows, x_rows.tiles, wave == kWaves ? end : 0, slice, 0};
    return run_producer(weights, prefetcher, begin, lds);
  }
  Rows rows = packed_rows<kMTilesPerWave, kSteps>(x, m, pos.m * kWaves + wave, k);
  rows.k_end = end;
  Accumulators acc = {};
  run_mainloop(acc, rows, begin, lds);
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, (pos.m * n_tiles + pos.n) * kWaves + wave);
    if (!tile.reduce_if_all_arrived(acc, pos.split)) return;
  }
#pragma unroll
  for (u32 i = 0; i < kMTilesPerWave * kNTiles; ++i) {
    const u32 row = m0 + (wave * kMTilesPerWave + i / kNTiles) * kTileRows + lane % kTileRows;
    const u32 column = n0 + i % kNTiles * kTileRows + lane / kTileRows * 4;
    if (row >= m || column >= n) continue;
    *reinterpret_cast<Bf16x4*>(out + u64{row} * n + column) =
        __builtin_convertvector(acc[i], Bf16x4);
  }
}
