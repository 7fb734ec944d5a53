// out[m, n] = sum_k x[m, k] * w[n, k],  bf16, sums in fp32: the last product of an MLA layer for
// batches of more than 64, whose x lies packed (product_rows.h). mla_layer_decode_out.hip has the
// smaller ones.
//
// Layout. A workgroup has 128 rows of x and 16 kNTiles of w, and every kSplit-th block of 128
// kParts of K: what the kSplit read at a time lies side by side. A wave has 32 of these rows of x,
// straight to where matrix cores take them, and all of w, which goes through registers to LDS
// (lds_tile.h), a kParts-th of its rows at a time, 256 kParts bytes of each: a row of memory takes
// time to open, and little is needed before the first product. That is a chunk. While one is
// multiplied the next goes to the other buffer of LDS, and two more are on their way. w is operand
// A: a lane ends with 4 neighbours of a row of out. The workgroups' sums meet in a workspace
// (split_reduce.h).
//
// Tiles are wider than waves with steps of K of their own have registers for, so x is loaded less
// often: MI300X 77 to 74 us of a stream's 59, estimated, 128 rows of DeepSeek-V3's layer.
//
// Promises. Deterministic: the order of sums is fixed by the config and K. The caller aligns rows
// of w to 16 bytes and of out to 8; K is a multiple of 128, N of 4.
#include "rfops/block_map.h"
#include "rfops/matrix16.h"
#include "rfops/product_rows.h"
#include "rfops/split_reduce.h"
#include "rfops/waits.h"

#if !defined(RFOPS_M_TILES) || !defined(RFOPS_N_TILES) || !defined(RFOPS_PARTS) || \
    !defined(RFOPS_SPLIT)
#error "mla_layer_decode_wide needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

constexpr u32 kMTiles = RFOPS_M_TILES;  // of 16 rows of x
constexpr u32 kNTiles = RFOPS_N_TILES;  // of 16 rows of w
constexpr u32 kParts = RFOPS_PARTS;     // of the rows of w, one after the other
constexpr u32 kSplit = RFOPS_SPLIT;     // workgroups along K
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kOwnM = kMTiles / kWaves, kPartTiles = kNTiles / kParts;
constexpr u32 kM = kMTiles * kTileRows, kN = kNTiles * kTileRows, kPartN = kN / kParts;
constexpr u32 kBlockOfK = kParts * kStepOfK, kBlockPieces = kParts * kPieces;
constexpr u32 kTurn = kSplit * kBlockOfK;  // of K: each of the workgroups has a block of it
constexpr u32 kSlots = 2, kUnroll = kSlots * kParts / (kParts % 2 == 0 ? 2 : 1);  // chunks
static_assert(kOwnM * kWaves == kMTiles && kPartTiles * kParts == kNTiles && kParts <= 4);

// LDS: two buffers of a chunk, each of lines of 128 bytes of all its rows one after the other.
constexpr u32 kLineBytes = kPartN * kRowBytes, kBufferBytes = 2 * kParts * kLineBytes;
constexpr u32 kLds = 2 * kBufferBytes;
static_assert(kLds <= kLdsBytes);

using Rows = PackedRows<kOwnM, kParts>;
using Sums = F32x4[kOwnM * kNTiles];
using Split = SplitTile<kSplit, kOwnM * kNTiles * kThreads, kThreads>;
using Four = bf16 __attribute__((ext_vector_type(4)));

// This wave's share of a chunk of w: kAtOnce rows a load.
struct Weights {
  static constexpr u32 kChunks = kPairChunks * kParts, kAtOnce = kWaveSize / kChunks;
  static constexpr u32 kLoads = kPartN / (kWaves * kAtOnce);
  Buffer rows;
  u32 row, k_end;
  U32x4 own[kSlots][kLoads];

  __device__ static u32 first(u32 i) { return (i * kWaves + wave_in_group()) * kAtOnce; }
  __device__ void load(u32 s, u32 k, u32 part, u32 i) {
    const u32 lane = lane_in_wave(), chunk = lane % kChunks;
    const u32 outside = k + chunk * 8 < k_end ? 0 : kOutside;
    own[s][i] = load_16<kStreamed>(rows, (lane / kChunks * row + chunk * kVecBytes) | outside,
                                   (part * kPartN + first(i)) * row + k * 2);
  }
  __device__ void store(u32 s, LdsBytes* to, u32 i) const {
    const u32 lane = lane_in_wave(), chunk = lane % kChunks;
    const u32 at = lds_at(first(i) + lane / kChunks, chunk % kRowChunks);
    *reinterpret_cast<RFOPS_LDS U32x4*>(to + chunk / kRowChunks * kLineBytes + at) = own[s][i];
  }
};

template <class Act>
__device__ inline void each(u32 count, Act act) {
#pragma unroll
  for (u32 i = 0; i < count; ++i) act(i);
}

// Blocks from k on. Loads come back in order: each is asked for behind those that are waited for
// earlier. While a piece of 32 is multiplied, the next one of w is read from LDS.
__device__ inline void multiply_all(Sums& sums, Weights& w, Rows& x, u32 k, LdsBytes* lds) {
  constexpr u32 kLoads = Weights::kLoads, kShares = kBlockPieces / 2;
  const LdsPieces places = lds_pieces(lane_in_wave());
  U32x4 of_w[2][kPartTiles];
  const auto read = [&](const LdsBytes* from, u32 piece, u32 n) {
    of_w[piece % 2][n] = lds_load_16(from + piece / 2 * kLineBytes + n * kLdsTile +
                                     (piece % 2 ? places.high : places.low));
  };
  // Chunks from that at k on.
  const auto load_w = [&](u32 chunk, u32 i) {
    w.load(chunk % kSlots, k + chunk / kParts * kTurn, chunk % kParts, i);
  };
  const auto load_x = [&](u32 at, u32 piece) {
    each(kOwnM, [&](u32 m) {
      x.load(piece / kPieces, at + piece / kPieces * kStepOfK, piece % kPieces, m);
    });
  };
  each(kLoads, [&](u32 i) { load_w(0, i); });
  each(kBlockPieces, [&](u32 p) { load_x(k, p); });
  each(kLoads, [&](u32 i) { load_w(1, i); });
  keep_order();
  each(kLoads, [&](u32 i) { w.store(0, lds, i); });
  each(kLoads, [&](u32 i) { load_w(2, i); });
  wait_lds();
  meet();
  const auto take = [&](u32 chunk) {
    const u32 part = chunk % kParts, own_k = k + chunk / kParts * kTurn;
    const LdsBytes* const from = lds + chunk % 2 * kBufferBytes;
    LdsBytes* const to = lds + (chunk + 1) % 2 * kBufferBytes;
    each(kPartTiles, [&](u32 n) { read(from, 0, n); });
#pragma unroll
    for (u32 p = 0; p < kBlockPieces; ++p) {
      if (p >= kBlockPieces - kShares) {
        const u32 share = p - (kBlockPieces - kShares);
#pragma unroll
        for (u32 i = share * kLoads / kShares; i < (share + 1) * kLoads / kShares; ++i) {
          w.store((chunk + 1) % kSlots, to, i);
          load_w(chunk + 3, i);
        }
      }
#pragma unroll
      for (u32 n = 0; n < kPartTiles; ++n) {
        if (p + 1 < kBlockPieces) read(from, p + 1, n);
        keep_order();
#pragma unroll
        for (u32 m = 0; m < kOwnM; ++m) {
          F32x4& sum = sums[m * kNTiles + part * kPartTiles + n];
          sum = multiply_16x16<bf16>(of_w[p % 2][n], x.own[p / kPieces][p % kPieces][m], sum);
        }
      }
      if (part == kParts - 1) load_x(own_k + kTurn, p);
    }
    wait_lds();
    meet();
  };
  for (; k < w.k_end; k += kUnroll / kParts * kTurn) {
#pragma unroll
    for (u32 c = 0; c < kUnroll; ++c) {
      if (c > 0 && c % kParts == 0 && k + c / kParts * kTurn >= w.k_end) break;
      take(c);
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(1, 1)))
    mla_layer_decode_wide(bf16* __restrict__ out,        // [M, N]
                          const bf16* __restrict__ x,    // [K / 32, M / 16, 64, 8]
                          const bf16* __restrict__ w,    // [N, K]
                          void* __restrict__ workspace,  // SplitTile; with kSplit > 1
                          u32* __restrict__ counts,      // [tiles], zeros
                          u32 m, u32 n, u32 k) {
  const u32 n_tiles = (n + kN - 1) / kN;
  const Block at = own_block<4, kSplit>((m + kM - 1) / kM, n_tiles);
  const u32 m0 = at.m * kM, n0 = at.n * kN, columns = n - n0 < kN ? n - n0 : kN;
  const u32 wave = wave_in_group(), lane = lane_in_wave();
  Rows rows = packed_rows<kOwnM, kParts>(x, m, at.m * kWaves + wave, k);
  Weights weights = {
      make_buffer(scalar_address(w + u64{n0} * k), as_scalar(columns * k * 2)), k * 2, k, {}};
  Sums sums = {};
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  multiply_all(sums, weights, rows, at.split * kBlockOfK, lds);
  if constexpr (kSplit > 1) {
    Split tile(workspace, counts, at.m * n_tiles + at.n);
    if (!tile.reduce_late(sums, at.split, reinterpret_cast<RFOPS_LDS u32*>(lds))) return;
  }
#pragma unroll
  for (u32 i = 0; i < kOwnM * kNTiles; ++i) {
    const u32 row = m0 + (wave * kOwnM + i / kNTiles) * kTileRows + lane % kTileRows;
    const u32 column = n0 + i % kNTiles * kTileRows + lane / kTileRows * 4;
    if (row >= m || column >= n) continue;
    *reinterpret_cast<Four*>(out + u64{row} * n + column) = __builtin_convertvector(sums[i], Four);
  }
}
