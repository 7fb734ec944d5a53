// out[b, m, n] = sum_k x[b, m, k] * w[b, n, k]
//
// x and w are bf16 or f16, sums are fp32, out is bf16, f16 or f32. For products that reading w
// limits: gates (few n, long k) and the absorbed weights of MLA by heads (b), which lie [N, K] or,
// with kColumns, [K, N].
//
// Layout. w is MFMA operand A, x operand B, both loaded straight to registers, 16 bytes of K per
// lane. A workgroup has kTileM rows of x by kTileN rows of w: kWaves waves interleave along K,
// kWavesN groups of them lie along N. A wave has kSteps K-steps in flight and loads the next one
// into the registers of each step that it has multiplied.
//   Row r of the wave's MFMA tile j is row r * kNTiles + j of its rows of w, so that a lane's
// results are 4 * kNTiles neighbours of a row of out. With kColumns a lane loads kNTiles neighbours
// of each of 8 k and transposes them by byte permutations.
//   With kSlices above 1 the 16 rows of an MFMA tile are 16 / kSlices rows by kSlices slices of K:
// only products of equal slices count. That gives a long K to more workgroups, as far as there are
// few rows of x.
//   With kLines above 0 a load takes kLines lines of 128 bytes of fewer rows of w, so HBM opens
// fewer; the wave brings 2 * kLines K-steps into fragment order through LDS.
//
// Guarantees: bitwise deterministic for a given config; partials of waves and splits are added in
// their order. Rows and columns beyond the end read zeros and are not written.
// Requires: rows of x and w 16-byte aligned, K a multiple of 8; a batch of each tensor below 2 GiB,
// x_row >= K, w_row >= K (kColumns: N), out_row >= N where there are several rows.
#include "gemm/split_k_wave_reduce.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/group/tile_map.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/wave_loader.h"
#include "rfops/wave/reduce.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;
using Out = RFOPS_OUT;
constexpr bool kColumns = RFOPS_W_COLUMNS;  // w is [K, N]
constexpr u32 kMTiles = RFOPS_M_TILES;      // MFMA tiles along M of a workgroup
constexpr u32 kNTiles = RFOPS_N_TILES;      // MFMA tiles along N of a wave
constexpr u32 kSlices = RFOPS_SLICES;       // of K in an MFMA tile
constexpr u32 kSteps = RFOPS_STEPS;         // K-steps in flight in a wave
constexpr u32 kWaves = RFOPS_WAVES;         // along K
constexpr u32 kWavesN = RFOPS_WAVES_N;      // along N
constexpr u32 kSplit = RFOPS_SPLIT;         // workgroups along K
constexpr u32 kLines = RFOPS_LINES;         // lines of a row of w that a load takes; 0: half a one

constexpr u32 kRows = kTileRows / kSlices;  // of an operand in an MFMA tile
constexpr u32 kTileM = kMTiles * kRows, kWaveN = kNTiles * kRows, kTileN = kWavesN * kWaveN;
constexpr u32 kVec = kVecBytes / sizeof(Input);  // elements of K in a lane
constexpr u32 kStepK = kSlices * (kWaveSize / kTileRows) * kVec, kWaveK = kSteps * kStepK;
constexpr u32 kGroup = kLines > 0 ? 2 * kLines : 1;  // K-steps that are loaded at once
constexpr u32 kGroups = kSteps / kGroup, kGroupK = kGroup * kStepK;
constexpr u32 kTiles = kMTiles * kNTiles, kThreads = kWaves * kWavesN * kWaveSize;
constexpr u32 kLoads = kSteps * (kMTiles + (kColumns ? kVec : kNTiles));

static_assert(kSlices == 1 || kSlices == 4 || kSlices == 16, "an MFMA's result has rows of four");
static_assert(kSlices == 1 || (!kColumns && kWavesN == 1 && kSplit == 1),
              "slices are for a long K that lies side by side, in one workgroup");
static_assert(kLines == 0 || (!kColumns && kSlices == 1 && kSteps % kGroup == 0),
              "lines are of rows of w, and a step along K is half a line");
static_assert(!kColumns || kNTiles == 2 || kNTiles == 4 || kNTiles == 8, "whole dwords of columns");
static_assert(kThreads <= 1024 && kLoads <= 63, "vmcnt counts at most 63 loads in flight");

struct Operands {
  Buffer x, w;
  u32 k, x_row, w_row;  // elements, bytes, bytes
};

// A lane's part of kNTiles tiles of w by kGroup K-steps, as it is loaded.
struct Weights {
  static constexpr u32 kRowsLoaded = kColumns ? kVec : kNTiles * kGroup;
  static constexpr u32 kDwords = kColumns ? kNTiles / 2 : 4;
  Dwords<kDwords> row[kRowsLoaded];

  // Brings whole lines into the order of fragments.
  __device__ void arrange(const WaveOrder<kLines>& order) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      Fragment tiles[WaveOrder<kLines>::kTiles];
#pragma unroll
      for (u32 i = 0; i < kGroup; ++i) {
        (i % 2 ? tiles[i / 2].high : tiles[i / 2].low) = fragment(j, i);
      }
      order.arrange(tiles);
#pragma unroll
      for (u32 i = 0; i < kGroup; ++i) {
        const U32x4 arranged = i % 2 ? tiles[i / 2].high : tiles[i / 2].low;
#pragma unroll
        for (u32 d = 0; d < kDwords; ++d) row[j * kGroup + i].dword[d] = arranged[d];
      }
    }
  }

  // Returns the lane's fragment of tile j in K-step s of the group.
  __device__ U32x4 fragment(u32 j, u32 s) const {
    U32x4 result;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if constexpr (kColumns) {
        const u32 selector = j % 2 ? 0x07060302 : 0x05040100;  // the upper, or lower, 16 bits
        result[i] =
            __builtin_amdgcn_perm(row[2 * i + 1].dword[j / 2], row[2 * i].dword[j / 2], selector);
      } else {
        result[i] = row[j * kGroup + s].dword[i];
      }
    }
    return result;
  }
};

struct KGroup {
  U32x4 x[kGroup][kMTiles];
  Weights w;
};

// Where a lane's rows begin, in bytes, and its first k in a K-step of x, and of the lines of w.
struct LaneOffsets {
  u32 x, w, x_k, w_k;

  __device__ LaneOffsets(const Operands& args, u32 n0, u32 lane) {
    const u32 row = lane % kTileRows / kSlices;
    x_k = (lane % kSlices * (kWaveSize / kTileRows) + lane / kTileRows) * kVec;
    x = row * args.x_row + x_k * sizeof(Input);
    w_k = kLines > 0 ? WaveOrder<kLines>::chunk(lane) * kVec : x_k;
    const u32 w_row = (kLines > 0 ? WaveOrder<kLines>::row(lane) : row) * kNTiles;
    w = kColumns ? w_k * args.w_row + (n0 + w_row) * sizeof(Input)
                 : (n0 + w_row) * args.w_row + w_k * sizeof(Input);
  }
};

__device__ inline u32 oob_bits(u32 k, u32 k_end) { return k < k_end ? 0 : kOutOfBounds; }

__device__ inline void load(KGroup& group, const Operands& args, const LaneOffsets& lane, u32 k0) {
  constexpr u32 kSize = sizeof(Input);
#pragma unroll
  for (u32 s = 0; s < kGroup; ++s) {
    const u32 k = k0 + s * kStepK, offset = lane.x | oob_bits(k + lane.x_k, args.k);
#pragma unroll
    for (u32 t = 0; t < kMTiles; ++t) {
      group.x[s][t] = buffer_load_b128(args.x, offset, t * kRows * args.x_row + k * kSize);
    }
  }
  const u32 offset = lane.w | oob_bits(k0 + lane.w_k, args.k);
#pragma unroll
  for (u32 r = 0; r < Weights::kRowsLoaded; ++r) {
    const u32 row = r / kGroup + r % kGroup * (kTileRows / kGroup) * kNTiles;
    const u32 row_offset = kColumns ? (k0 + r) * args.w_row : row * args.w_row + k0 * kSize;
    group.w.row[r] = buffer_load_dwords<Weights::kDwords>(args.w, offset, row_offset);
  }
  sched_barrier();  // loads stay in the order of use
}

struct Accumulators {
  F32x4 tile[kMTiles][kNTiles];
};

__device__ inline void multiply(Accumulators& acc, KGroup& group, const WaveOrder<kLines>& order) {
  if constexpr (kLines > 0) group.w.arrange(order);
#pragma unroll
  for (u32 s = 0; s < kGroup; ++s) {
#pragma unroll
    for (u32 j = 0; j < kNTiles; ++j) {
      const U32x4 w = group.w.fragment(j, s);
#pragma unroll
      for (u32 t = 0; t < kMTiles; ++t) {
        acc.tile[t][j] = mfma_16x16x32<Input>(w, group.x[s][t], acc.tile[t][j]);
      }
    }
  }
  sched_barrier();
}

// Multiplies this wave's K-steps, from wave_k of all waves along K on.
__device__ inline Accumulators multiply_all(const Operands& args, u32 n0, u32 wave_k, u32 lane) {
  constexpr u32 kStride = kSplit * kWaves * kWaveK, kOrderBytes = WaveOrder<kLines>::kBytes;
  __shared__ U32x4 lines[kLines > 0 ? kThreads / kWaveSize * kOrderBytes / kVecBytes : 1];
  const WaveOrder<kLines> order((LdsBytes*)lines, wave_id() * kOrderBytes, lane);
  const LaneOffsets offsets(args, n0, lane);
  u32 k0 = wave_k * kWaveK;
  KGroup groups[kGroups];
#pragma unroll
  for (u32 g = 0; g < kGroups; ++g) load(groups[g], args, offsets, k0 + g * kGroupK);
  Accumulators acc = {};
  for (k0 += kStride; k0 < args.k; k0 += kStride) {
#pragma unroll
    for (u32 g = 0; g < kGroups; ++g) {
      multiply(acc, groups[g], order);
      load(groups[g], args, offsets, k0 + g * kGroupK);
    }
  }
#pragma unroll
  for (u32 g = 0; g < kGroups; ++g) multiply(acc, groups[g], order);
  return acc;
}

// A workgroup's tile of out, whose elements are T.
template <class T>
class OutTile {
 public:
  __device__ OutTile(T* begin, u32 rows, u32 n, u32 row_stride)
      : rows_(rows), n_(n), row_stride_(row_stride) {
    const u32 in_tile = rows < kTileM ? rows : kTileM;
    buffer_ = make_buffer(begin, ((in_tile - 1) * row_stride + n) * sizeof(T));
    const u32 bits = (row_stride | n) * sizeof(T) | static_cast<u32>(reinterpret_cast<u64>(begin));
    is_aligned_ = bits % sizeof(Vec4<T>) == 0;
  }

  // Stores four neighbours of a row.
  __device__ void store(F32x4 sum, u32 row, u32 column) const {
    const Vec4<T> values = __builtin_convertvector(sum, Vec4<T>);
    if (is_aligned_) {
      using Bits = u32 __attribute__((ext_vector_type(sizeof(values) / 4)));
      const Bits bits = __builtin_bit_cast(Bits, values);
      if constexpr (sizeof(values) == 16) {
        __builtin_amdgcn_raw_buffer_store_b128(bits, buffer_.rsrc, offset(row, column), 0, 0);
      } else {
        __builtin_amdgcn_raw_buffer_store_b64(bits, buffer_.rsrc, offset(row, column), 0, 0);
      }
      return;
    }
#pragma unroll
    for (u32 e = 0; e < 4; ++e) store_one(values[e], row, column + e);
  }
  __device__ void store(f32 sum, u32 row, u32 column) const {
    store_one(static_cast<T>(sum), row, column);
  }

 private:
  __device__ u32 offset(u32 row, u32 column) const {
    const u32 oob_bits = row < rows_ && column < n_ ? 0 : kOutOfBounds;
    return (row * row_stride_ + column) * sizeof(T) | oob_bits;
  }
  __device__ void store_one(T value, u32 row, u32 column) const {
    if constexpr (sizeof(T) == 4) {
      __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(u32, value), buffer_.rsrc,
                                            offset(row, column), 0, 0);
    } else {
      __builtin_amdgcn_raw_buffer_store_b16(__builtin_bit_cast(u16, value), buffer_.rsrc,
                                            offset(row, column), 0, 0);
    }
  }

  Buffer buffer_;
  u32 rows_, n_, row_stride_;
  bool is_aligned_;
};

// Four neighbours of a row, as the results of an MFMA tile are not: number q of a lane's kNTiles
// such in row tile t.
__device__ inline F32x4 neighbours(const Accumulators& acc, u32 t, u32 q) {
  F32x4 result;
#pragma unroll
  for (u32 e = 0; e < 4; ++e) {
    const u32 column = 4 * q + e;
    result[e] = acc.tile[t][column % kNTiles][column / kNTiles];
  }
  return result;
}

// Reduces over the waves and splits, and stores. `tile` is this workgroup's of all.
__device__ inline void store_tile(const OutTile<Out>& out, const Accumulators& acc, u32 n0,
                                  u32 wave, u32 wave_n, u32 lane, void* workspace, u32* counts,
                                  u32 tile) {
  constexpr u32 kTilesPerWave = kTilesOfWave<kWaves, kTiles>;
  __shared__ F32x4 memory[kWavesN][kWaves][kWaves > 1 ? kTiles * kWaveSize : 1];
  F32x4 sums[kTiles], totals[kTilesPerWave];
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) sums[t] = neighbours(acc, t / kNTiles, t % kNTiles);
  reduce_waves<kWaves, kTiles>(memory[wave_n], sums, wave, wave, lane,
                               [&](u32 i, u32, F32x4 total) { totals[i] = total; });
  if (wave >= kTiles) return;
  if constexpr (kSplit > 1) {
    using Reducer = WaveSplitKReducer<kSplit, kTiles, kWaves>;
    Reducer reducer(workspace, counts, tile * kWavesN + wave_n, wave);
    if (!reducer.reduce(totals, workgroup_id_y())) return;
  }
#pragma unroll
  for (u32 i = 0; i < kTilesPerWave; ++i) {
    const u32 t = wave + i * kWaves;
    if (t >= kTiles) return;
    const u32 column = n0 + lane / kTileRows * 4 * kNTiles + t % kNTiles * 4;
    out.store(totals[i], t / kNTiles * kTileRows + lane % kTileRows, column);
  }
}

// The same with slices of K in the MFMA tiles.
__device__ inline void store_sliced(const OutTile<Out>& out, const Accumulators& acc, u32 n0,
                                    u32 wave, u32 lane) {
  constexpr u32 kItems = kTileM * kWaveN;
  __shared__ LdsPartials<f32, kWaves, kItems> partials;
  const u32 column = lane % kTileRows, group = lane / kTileRows;
#pragma unroll
  for (u32 t = 0; t < kTiles; ++t) {
    const F32x4 values = acc.tile[t / kNTiles][t % kNTiles];
    // A lane's rows of w are slices 4 * (group % (kSlices / 4)) + 0..3 of row 4 * group / kSlices.
    const f32 low = column % 2 ? values[1] : values[0], high = column % 2 ? values[3] : values[2];
    f32 value = column % 4 < 2 ? low : high;
    if (kSlices == 16 && column / 4 != group) value = 0;
    value = sum_over_lanes<kSlices == 16 ? kWaveSize : kSlices>(value);
    const u32 m = t / kNTiles * kRows + column / kSlices;
    const u32 n = 4 * group / kSlices * kNTiles + t % kNTiles;
    if (lane % kSlices == 0 && (kSlices < 16 || group == 0)) {
      partials.items[wave][m * kWaveN + n] = value;
    }
  }
  workgroup_barrier();
  for (u32 item = thread_id(); item < kItems; item += kThreads) {
    out.store(partials.sum(item), item / kWaveN, n0 + item % kWaveN);
  }
}

}  // namespace

// Grid: tiles along N, splits of K, tiles along M of all batches. The divisions take 0.2 us, so
// that only several tiles along M, which share w, are given to XCDs by batches.
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
a16w16_stream(const Input* __restrict__ x,  // [B, M, K], rows x_row elements apart
              const Input* __restrict__ w,  // [B, N, K] or [B, K, N], rows w_row elements apart
              u32 m, u32 n, u32 k, u32 x_row, u32 w_row,
              u32 tiles,  // of the grid, splits aside
              u64 x_batch,
              u64 w_batch,            // elements from one batch to the next
              Out* __restrict__ out,  // [B, M, N], rows out_row elements apart
              u64 out_batch, u32 out_row, void* __restrict__ workspace,
              u32* __restrict__ counts) {  // used with kSplit > 1
  const u32 m_tiles = (m + kTileM - 1) / kTileM, n_tiles = (n + kTileN - 1) / kTileN,
            tile = workgroup_id_z() * n_tiles + workgroup_id_x();
  u32 n_tile = workgroup_id_x(), m_tile = 0, batch = workgroup_id_z();
  if (m_tiles > 1) {
    const u32 order = kSplit == 1 ? xcd_remap(tile, tiles) : tile;
    const u32 row_tile = readfirstlane(order / n_tiles);
    n_tile = order - row_tile * n_tiles;
    batch = readfirstlane(row_tile / m_tiles);
    m_tile = row_tile - batch * m_tiles;
  }
  const u32 lane = lane_id(), wave_idx = wave_id();
  const u32 wave = wave_idx % kWaves, wave_n = wave_idx / kWaves;
  const u32 m0 = m_tile * kTileM, rows = m - m0;
  const u32 n0 = n_tile * kTileN + wave_n * kWaveN;
  constexpr u32 kSize = sizeof(Input);
  const u32 x_rows = rows < kTileM ? rows : kTileM;
  const u32 w_elems = kColumns ? (k - 1) * w_row + n : (n - 1) * w_row + k;
  const Operands args = {
      make_buffer(x + batch * x_batch + u64{m0} * x_row, ((x_rows - 1) * x_row + k) * kSize),
      make_buffer(w + batch * w_batch, w_elems * kSize), k, x_row * kSize, w_row * kSize};
  const Accumulators acc = multiply_all(args, n0, workgroup_id_y() * kWaves + wave, lane);
  const OutTile<Out> out_tile(out + batch * out_batch + u64{m0} * out_row, rows, n, out_row);
  if constexpr (kSlices > 1) {
    store_sliced(out_tile, acc, n0, wave, lane);
  } else {
    store_tile(out_tile, acc, n0, wave, wave_n, lane, workspace, counts, tile);
  }
}
