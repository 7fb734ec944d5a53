// A small kernel for each header of the device library that GEMMs stand on: test_device_library.py.
#include "gemm/col_major_loader.h"
#include "rfops/chip/sync.h"
#include "rfops/group/split_k_reduce.h"
#include "rfops/group/tile_map.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/store/row_major_store.h"
#include "rfops/tile/block_scales.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"
#include "rfops/tile/promotion.h"
#if defined(__gfx950__)
#include "gemm/paired_tile_store.h"
#include "moe/mxfp8_k_chunk.h"
#endif

using namespace rfops;

namespace {

constexpr u32 kRows = 128, kThreads = 256;

template <class Loader>
__device__ inline void load(Loader& loader, LdsBytes* tile, u32 k) {
  loader.issue(k, true);
  loader.commit(tile);
}

}  // namespace

// global_to_lds.h, lds_swizzle.h, col_major_loader.h: a K-step of 128 rows through LDS;
// out[tile][lane] is what a lane reads of each operand of 16 rows. kind: 0 rows, 1 shuffled, 2
// straight to LDS; 3 column-major, 4 that of 64 rows, 5 straight to LDS, 6 that of 64 rows.
template <class Reader>
__device__ inline void read_tiles(Fragment* out, const Reader& reader, u32 tiles) {
  wait_lgkmcnt();
  s_barrier();
#pragma unroll
  for (u32 t = 0; t < tiles; ++t) {
    if (t % (kThreads / kWaveSize) == wave_id()) {
      out[t * kWaveSize + lane_id()] = reader.read(t);
    }
  }
}
template <u32 kNumRows>
__device__ inline void read_columns(Fragment* out, const u8* operand, u32 rows, u32 k0,
                                    bool is_direct, LdsBytes* tile) {
  const auto view = OperandView::make<true>(operand, 0, rows, kNumRows, rows, 0, 0);
  using Path = StagedPath<true, kNumRows, kNumRows / kTileRows, kThreads, false>;
  if (!is_direct) {
    typename Path::Loader loader(view);
    loader.issue(k0, true);
#pragma unroll
    for (u32 i = 0; i < Path::Loader::kTransposeOps; ++i) loader.transpose(i);
    loader.commit(tile);
  }
#if defined(__gfx950__)
  if (is_direct) {
    using Direct =
        LdsDmaPath<true, kNumRows, kNumRows / kTileRows, kThreads / kWaveSize, false>::Loader;
    Direct(view).template issue<kNumRows>(LdsDmaLoader<4>::wave_lds_base(tile), 0, k0, true);
    wait_vmcnt<0>();
  }
#endif
  read_tiles(out, typename Path::Reader(tile, lane_id(), 0), kNumRows / kTileRows);
}

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
load_tile_by(Fragment* out, const u8* operand, u32 rows, u32 k, u32 step, u32 kind) {
  __shared__ u8 memory[kRows * kRowBytes];
  LdsBytes* const tile = (LdsBytes*)memory;
  const u32 k0 = step * kTileK;
  if (kind == 3 || kind == 5) return read_columns<128>(out, operand, rows, k0, kind == 5, tile);
  if (kind == 4 || kind == 6) return read_columns<64>(out, operand, rows, k0, kind == 6, tile);
  if (kind == 0) {
    StagedLoader<kRows, kThreads> loader({operand, 0, rows, kRows, k, 0, k});
    load(loader, tile, k0);
  } else if (kind == 1) {
    StagedLoader<kRows, kThreads, true> loader({operand, 0, rows, kRows, k, 0, k, 16});
    load(loader, tile, k0);
  }
#if defined(__gfx950__)
  if (kind == 2) {
    using Loader = LdsDmaLoader<4>;
    const Loader loader({operand, 0, rows, kRows, k, 0, k});
    loader.issue<kRows>(Loader::wave_lds_base(tile), 0, k0, true);
    wait_vmcnt<0>();
  }
#endif
  read_tiles(out, RowReader(tile, lane_id(), 0), kRows / kTileRows);
}

// mfma_fp8.h, promotion.h, block_scales.h: out[16, 64] of x [16, K] and w [64, K], four tiles of
// one wave.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kWaveSize, kWaveSize)))
promote_tiles(f32* out, const u8* x, const u8* w, const f32* x_scale, const f32* w_scale, u32 k) {
  const u32 lane = lane_id(), blocks = k / kTileK, offset = fragment_offset(lane, k);
  const Buffer x_rows = make_buffer(x, 16 * k), w_rows = make_buffer(w, 64 * k);
  const BlockScales w_blocks(w_scale, 0, blocks, 1, 0);
  PromotedAcc<4> sums = {};
  for (u32 b = 0; b < blocks; ++b) {
    const Fragment x_tile = load_fragment(x_rows, offset, b * kTileK);
    Fragment tiles[4];
#pragma unroll
    for (u32 t = 0; t < 4; ++t) tiles[t] = load_fragment(w_rows, offset, t * 16 * k + b * kTileK);
    const f32 scale = x_scale[lane % 16 * blocks + b] * w_blocks.load(b);
    sums.multiply<0>([&](u32 t) -> const Fragment& { return tiles[t]; },
                     [&](u32) -> const Fragment& { return x_tile; }, [&](u32) { return scale; });
  }
  sums.drain();
#pragma unroll
  for (u32 t = 0; t < 4; ++t) {
    *reinterpret_cast<F32x4*>(out + lane % 16 * 64 + t * 16 + lane / 16 * 4) = sums.sum[t];
  }
}

// tile_map.h: out[id] = {m, n, split}.
extern "C" __global__ void place_blocks(u32* out, u32 m_tiles, u32 n_tiles) {
  const TileCoord tile = this_tile<4, 3>(m_tiles, n_tiles);
  u32* const dst = out + workgroup_id_x() * 3;
  dst[0] = tile.m, dst[1] = tile.n, dst[2] = tile.split;
}

// split_k_reduce.h: three workgroups a tile, of 100 items each; parts are [tile][split][item].
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(64, 64))) reduce_parts(
    F32x4* out, const F32x4* parts, void* workspace, u32* counts) {
  using Split = SplitKReducer<3, 100, 64>;
  const u32 tile = workgroup_id_x() / 3, split = workgroup_id_x() % 3, thread = thread_id();
  F32x4 sums[Split::kItemsPerThread] = {};
  for (u32 i = 0; i < Split::kItemsPerThread; ++i) {
    const u32 item = i * 64 + thread;
    if (item < 100) sums[i] = parts[(tile * 3 + split) * 100 + item];
  }
  if (!Split(workspace, counts, tile).reduce(sums, split)) return;
  for (u32 i = 0; i < Split::kItemsPerThread; ++i) {
    const u32 item = i * 64 + thread;
    if (item < 100) out[tile * 100 + item] = sums[i];
  }
}

// row_major_store.h: out[m, n] = its row * 1000 + its column, by one wave a 16 x 16 tile.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kWaveSize, kWaveSize)))
store_rows(RFOPS_OUT* out, u32 m, u32 n) {
  const u32 row = lane_id() % 16, column = workgroup_id_x() * 16 + lane_id() / 16 * 4;
  const f32 value = static_cast<f32>((workgroup_id_y() * 16 + row) * 1000 + column);
  OutputView<RFOPS_OUT>(out, workgroup_id_y() * 16, m, 16, n).store([&](auto store) {
    store(F32x4{value, value + 1, value + 2, value + 3}, row, column);
  });
}

// The same one by one, rows in the order of `rows`, which come as scalars.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kWaveSize, kWaveSize)))
store_each_row(RFOPS_OUT* out, const u32* rows, u32 n) {
  const u32 row = load_uniform(rows + workgroup_id_y()),
            column = (workgroup_id_x() * 64 + lane_id()) * 4;
  if (column >= n) return;
  const f32 value = static_cast<f32>(row * 1000 + column);
  store_x4(out + u64{row} * n, F32x4{value, value + 1, value + 2, value + 3}, column, n,
           are_rows_aligned(out, n));
}

// wave_reduce.h: out[tile] is the sum of parts[wave][tile], by as many waves as the workgroup has.
namespace {
template <u32 kWaves>
__device__ inline void sum_parts(F32x4* out, const F32x4* parts) {
  constexpr u32 kTiles = 5;
  const u32 wave = wave_id(), lane = lane_id();
  F32x4 sums[kTiles];
  for (u32 t = 0; t < kTiles; ++t) sums[t] = parts[(wave * kTiles + t) * kWaveSize + lane];
  reduce_waves<kWaves>(sums, wave, lane, [&](u32 i, u32 t, F32x4 total) {
    if (t == wave + i * kWaves) out[t * kWaveSize + lane] = total;
  });
}
}  // namespace
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(64, 512))) sum_waves(
    F32x4* out, const F32x4* parts, u32 waves) {
  if (waves == 1) sum_parts<1>(out, parts);
  if (waves == 3) sum_parts<3>(out, parts);
  if (waves == 8) sum_parts<8>(out, parts);
}

#if defined(__gfx950__)
// paired_tile_store.h: the values of store_rows, by one wave 32 rows of 64 columns.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kWaveSize, kWaveSize)))
store_tile_pairs(RFOPS_OUT* out, u32 m, u32 n) {
  const u32 first_row = workgroup_id_y() * 32, first_column = workgroup_id_x() * 64;
  PairedTileStore<RFOPS_OUT>(out, first_row, m, 32, n)
      .template store<2, 4>(0, first_column, [&](u32 i, u32 j) {
        const u32 row = first_row + i * 16 + lane_id() % 16;
        const f32 value = static_cast<f32>(row * 1000 + first_column + j * 16 + lane_id() / 16 * 4);
        return F32x4{value, value + 1, value + 2, value + 3};
      });
}

// mxfp8_k_chunk.h: out[m, kRows] of x [m, K] and w [kRows, K], a tile by one wave, a step after the
// other.
namespace {
template <u32 kRows, u32 kChunk>
__device__ inline void multiply_chunks(f32* out, const MxRows& x, const MxRows& w, u32 m, u32 k) {
  using Chunk = MxChunk<kRows, kChunk>;
  __shared__ LdsPartials<F32x4, Chunk::kFold, Chunk::kHolders> partials;
  const Chunk chunk(lane_id());
  const u32 scales_k = k / kMxBlock;
  const auto w_at = chunk.offsets(chunk.row * k, chunk.row * scales_k);
  const auto x_at = chunk.row < m ? w_at : chunk.offsets(kOutOfBounds, kOutOfBounds);
  F32x4 sum = {};
  for (u32 step = 0; step < k; step += Chunk::kStepK) {
    const auto outside = chunk.oob_bits(step, k);
    Fragment a[Chunk::kCount], b[Chunk::kCount];
    Chunk::load(a, w.payload, w_at.payload, outside, step);
    Chunk::load(b, x.payload, x_at.payload, outside, step);
    const u32 a_scale = chunk.own_scales(Chunk::load_scales(w.scales, w_at.scale, outside, step));
    const u32 b_scale = chunk.own_scales(Chunk::load_scales(x.scales, x_at.scale, outside, step));
    sum = Chunk::multiply(a, a_scale, b, b_scale, sum);
  }
  if (chunk.is_holder()) partials.items[chunk.chunk][chunk.holder()] = sum;
  workgroup_barrier();
  const u32 i = lane_id(), row = i % kRows;
  if (i >= Chunk::kHolders || row >= m) return;
  *reinterpret_cast<F32x4*>(out + row * kRows + i / kRows * 4) = partials.sum(i);
}
}  // namespace
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kWaveSize, kWaveSize)))
multiply_tile(f32* out, const u8* x, const u8* w, const u8* x_scale, const u8* w_scale, u32 m,
              u32 n, u32 k, u32 chunk) {
  const MxRows x_rows(x, x_scale, 0, m, k), w_rows(w, w_scale, 0, n, k);
  if (n == 16 && chunk == 128) multiply_chunks<16, 128>(out, x_rows, w_rows, m, k);
  if (n == 16 && chunk == 256) multiply_chunks<16, 256>(out, x_rows, w_rows, m, k);
  if (n == 8 && chunk == 128) multiply_chunks<8, 128>(out, x_rows, w_rows, m, k);
  if (n == 8 && chunk == 256) multiply_chunks<8, 256>(out, x_rows, w_rows, m, k);
}
#endif
