// What mla_layer_decode_query.hip makes, for batches of more than 32 and many heads:
// q[m, h] = [nope[m, h] . kv_up[h] | RoPE(q_lora[m] . q_up[h, 128:192])],  512 and 64 elements,
// nope[m, h] = q_lora[m] . q_up[h, :128],  bf16, sums in fp32: q of an MLA layer, kv_up absorbed.
//
// Layout. A workgroup has 64 rows of q_lora and a head. Four waves fetch q_up (producer_loader.h),
// in chunks of 48 of its 192 rows and 256 of K; four multiply: a wave has 16 rows of q_lora,
// straight to where matrix cores take them, and all of q_up. So no load waits for a product, and
// q_lora, which is near, not for q_up, as loads of one wave come back in order; at first all
// workgroups of an XCD ask for shares of it, as they want the same at the same time. Who has
// multiplied leaves nope in LDS and turns the rest; who has fetched has kv_up in registers by then,
// and absorbs (mla_absorb.h). Workgroups of a head are neighbours in an L2, so that memory gives
// its weights once.
//
// Promises. Deterministic: sums are in the order of K. The caller aligns all rows to 16 bytes; K is
// a multiple of 32.
#include "attention/mla_absorb.h"
#include "attention/producer_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/tile_map.h"

namespace {

using namespace rfops;

constexpr u32 kWaves = 4, kThreads = 2 * kWaves * kWaveSize;  // that multiply; and that fetch
constexpr u32 kMTiles = kWaves, kM = kMTiles * kTileRows, kNTiles = kRoped / kTileRows;
constexpr u32 kSteps = 2, kBlock = kSteps * kStepOfK, kBlockPieces = kSteps * kPieces;
constexpr u32 kChunks = 4, kTilesPerChunk = kNTiles / kChunks, kRowsPerChunk = kRoped / kChunks;

using Weights = ProducerLoader<kRowsPerChunk, kSteps, kWaves>;
using Rows = PackedRows<1, kSteps>;
using Accumulators = F32x4[kNTiles];
constexpr u32 kLds = 2 * Weights::kBytes + Nope<kMTiles>::kBytes;  // two buffers, then nope
static_assert(kLds <= kLdsBytes);

// This wave's share of all q_lora that the workgroup wants, for L2: 4 bytes of each line.
__device__ inline u32 prefetch_slice(const Buffer& rows, u32 tiles, u32 slice, u32 k) {
  constexpr u32 kLine = 128, kPieceLines = kMTiles * kPackedTile / kLine, kSlices = 8 * kWaves;
  const u32 lane = lane_id(), lines = k / kPieceOfK * kPieceLines / kSlices;
  const u32 line = slice * lines + lane;
  const u32 offset = line / kPieceLines * (tiles * kPackedTile) + line % kPieceLines * kLine;
  return buffer_load_dwords<1>(rows, lane < lines ? offset : kOutOfBounds, 0).dword[0];
}

// All of q_up, each chunk to be seen by all waves before they meet, and then kv_up.
__device__ inline void run_producer(Weights& w, Absorbed& up, const bf16* kv_up, LdsBytes* lds) {
  const auto load = [&](u32 s, u32 k, u32 chunk) {
    for_each(Weights::kLoads, [&](u32 i) { w.load(s, chunk * kRowsPerChunk, k, i); });
  };
  load(0, 0, 0);
  s_barrier();
  load(1, 0, 1);
  for (u32 k = 0; k < w.k_end; k += kBlock) {
#pragma unroll
    for (u32 chunk = 0; chunk < kChunks; ++chunk) {
      const u32 s = chunk % 2, next = chunk + 2;
      for_each(Weights::kLoads, [&](u32 i) {
        w.store(s, lds + s * Weights::kBytes, i);
        w.load(s, next % kChunks * kRowsPerChunk, k + next / kChunks * kBlock, i);
        sched_barrier();
      });
      if (chunk == kChunks - 2 && k + kBlock >= w.k_end) up.load(kv_up);
      wait_lgkmcnt();
      s_barrier();
    }
  }
}

// While a piece of 32 is multiplied, the next one of q_up is read from LDS; in a block's last chunk
// the next block of q_lora takes the place of what is done with.
__device__ inline void run_mainloop(Accumulators& acc, Rows& x, const LdsBytes* lds) {
  const LdsFragmentOffsets frag_offsets = lds_fragment_offsets(lane_id());
  U32x4 w_frags[2][kTilesPerChunk];
  const auto load_x = [&](u32 k, u32 piece) {
    x.load(piece / kPieces, k + piece / kPieces * kStepOfK, piece % kPieces, 0);
  };
  s_barrier();
  for_each(kBlockPieces, [&](u32 p) { load_x(0, p); });
  for (u32 k = 0; k < x.k_end; k += kBlock) {
#pragma unroll
    for (u32 chunk = 0; chunk < kChunks; ++chunk) {
      const LdsBytes* const lds_src = lds + chunk % 2 * Weights::kBytes;
      const auto read = [&](u32 piece, u32 n) {
        w_frags[piece % 2][n] =
            lds_load_b128(lds_src + piece / 2 * Weights::kLineBytes + n * kLdsTile +
                          (piece % 2 ? frag_offsets.high : frag_offsets.low));
      };
      s_barrier();
      for_each(kTilesPerChunk, [&](u32 n) { read(0, n); });
#pragma unroll
      for (u32 p = 0; p < kBlockPieces; ++p) {
        if (p + 1 < kBlockPieces) for_each(kTilesPerChunk, [&](u32 n) { read(p + 1, n); });
        sched_barrier();
        for_each(kTilesPerChunk, [&](u32 n) {
          F32x4& sum = acc[chunk * kTilesPerChunk + n];
          sum = mfma_16x16x32<bf16>(w_frags[p % 2][n], x.regs[p / kPieces][p % kPieces][0], sum);
        });
        if (chunk == kChunks - 1) load_x(k + kBlock, p);
      }
    }
  }
}

}  // namespace

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    mla_layer_decode_query_wide(const bf16* __restrict__ q_lora,  // [K / 32, M / 16, 64, 8]
                                const bf16* __restrict__ q_up,    // [heads, 192, K]
                                const bf16* __restrict__ kv_up,   // [heads, 256, 512]
                                u32 m, u32 heads, u32 k, u32 start,
                                bf16* __restrict__ q,               // [M, heads, 576]
                                const bf16* __restrict__ angles,    // [L or more, 64]
                                const i32* __restrict__ positions,  // [M], or null: `start`
                                u32 length) {
  const u32 m_tiles = (m + kM - 1) / kM;
  const TileCoord pos = this_tile<4, 1>(m_tiles, heads);
  const u32 head = pos.n, m0 = pos.m * kM, rows = m - m0 < kM ? m - m0 : kM;
  const u32 wave = wave_id(), own_wave = wave % kWaves, lane = lane_id();
  const u64 row_of_q = u64{heads} * kCacheRow;
  bf16* const own_q = q + u64{m0} * row_of_q + head * kCacheRow;
  __shared__ __attribute__((aligned(16))) u8 memory[kLds];
  LdsBytes* const lds = (LdsBytes*)memory;
  const Nope<kMTiles> nope = {lds + 2 * Weights::kBytes};
  if (wave >= kWaves) {
    const auto x_rows = packed_rows<kMTiles, 1>(q_lora, m, pos.m, k);
    const u32 slice = workgroup_id_x() / (kXcds * m_tiles) % 8 * kWaves + own_wave;
    const u32 prefetched = prefetch_slice(x_rows.rows, x_rows.tiles, slice, k);
    const bf16* const w_rows = scalar_address(q_up + u64{head} * kRoped * k);
    Weights weights = {make_buffer(w_rows, kRoped * k * 2), k * 2, k, own_wave, {}};
    Absorbed up;
    run_producer(weights, up,
                 scalar_address(kv_up + u64{head} * (kUpRows * kLatent) + own_wave * kOwnLatent),
                 lds);
    asm volatile("" ::"v"(prefetched));
    for_each(kPieces, [&](u32 p) { up.transpose(p); });
    s_barrier();
    return absorb(up, nope, own_q + own_wave * kOwnLatent, rows, row_of_q);
  }
  const u32 row = wave * kTileRows + lane % kTileRows, d = lane / kTileRows * 4;
  const Buffer position_buffer = make_buffer(positions, positions == nullptr ? 0 : m * 4);
  const u32 position = start + buffer_load_dwords<1>(position_buffer, (m0 + row) * 4, 0).dword[0];
  Rows x = packed_rows<1, kSteps>(q_lora, m, pos.m * kMTiles + wave, k);
  Accumulators acc = {};
  run_mainloop(acc, x, lds);
  for_each(kNopeTiles, [&](u32 tile) { nope.store(tile, wave, acc[tile]); });
  wait_lgkmcnt();
  s_barrier();
  const Buffer all_angles = make_buffer(angles, length * (kRopeDim * 2));
  Angles angle[2];
  for_each(
      2, [&](u32 i) { angle[i].load(all_angles, (position * kRopeDim + i * kTileRows + d) * 2); });
  if (row >= rows) return;
  for_each(2, [&](u32 i) {
    const F32x4 pair[] = {acc[kNopeTiles + i], acc[kNopeTiles + 2 + i]};
    store_rotated(own_q + row * row_of_q + kLatent + i * kTileRows + d, pair, angle[i]);
  });
}
