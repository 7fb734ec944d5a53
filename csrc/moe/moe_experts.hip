// kStage 1: out[r] = silu(x[t] Wg) * (x[t] Wu)     kStage 2: out[r] = x[r] Wd
//
// r is a row of all experts, ordered by expert; t is the token of r by the expert's list, or r's
// index within the expert if the expert is shared; W are that expert's weights. f16 or bf16, fp32
// sums. This is the gfx942 kernel; gfx950 has moe_experts_pingpong.hip.
//
// Layout. One persistent workgroup per CU. A tile is kRows rows of an expert by 256 weight rows, in
// stage 1 128 of gate and 128 of up. Eight waves, 2 along rows and 4 along weights; a wave has
// every second tile of 32 rows and 64 weight rows: in stage 1 32 of gate and 32 of up, so that both
// values of a column are in one lane. 32 rows that are all out of range are not multiplied. Weights
// are MFMA operand A: a lane holds 4 adjacent columns of a row of out. K-steps of 32 are loaded
// through registers (lds_tile_16bit.h), two in flight, into one of two LDS stages while the other
// one is multiplied. Results are stored through LDS too (wave_mfma_32x32.h).
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, in any tile.
// Out-of-range rows and columns are not accessed.
// Requires: N and K multiples of 8; rows 16-byte aligned; x of stage 1, and an expert's weights,
// below 2 GiB.
#include "moe/expert_tile_scheduler.h"
#include "moe/lds_tile_16bit.h"
#include "moe/wave_mfma_32x32.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/number/exp.h"
#include "rfops/tile/global_to_lds.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;              // f16 or bf16
constexpr u32 kStage = RFOPS_STAGE;  // 1: gate, up and SiLU; 2: down
constexpr u32 kTable = RFOPS_TABLE;  // experts of a table of [K, N]; 0: stacked [E, N, K]
constexpr u32 kExpertsPerLane = RFOPS_EACH;
// Stacked weights may be preshuffled: tiles of 16 rows by 16 bytes (global_to_lds.h).
using OperandOrder = OperandLayout<RFOPS_SHUFFLED>;
constexpr u32 kStep = 32;                          // elements of K
constexpr u32 kRows = RFOPS_ROWS, kColumns = 256;  // of a tile
constexpr u32 kThreads = kMWaves * kNWaves * kWaveSize;
constexpr u32 kSubs = (kRows + kSub * kMWaves - 1) / (kSub * kMWaves);  // 32-row tiles of a wave
constexpr u32 kStagedRows = (kRows + 127) / 128 * 128;  // rows in LDS: 512 threads load 128
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
using Lds = Rows16<kStep>;
using Experts = ExpertTileScheduler<kRows, kExpertsPerLane, kSub>;

using Store = WaveStore32<Input, kOutColumns / kNWaves>;
struct Step {
  u8 rows[kStagedRows * Lds::kBytes], weights[kColumns * Lds::kBytes];
};
struct Memory {
  Step stage0;
  union {
    Step stage1;
    u8 stores[kMWaves * kNWaves][Store::kBytes];  // free until the next tile's second K-step
  };
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

template <u32 kCount>
struct Pointers {
  const Input* matrix[kCount];
};

// The matrices of an expert: gate and up in stage 1, twice down in stage 2.
struct Weights {
  const Input *first_matrix, *second_matrix;
  u32 n, k;
};

// Output column of a weight row in LDS, and whether the row belongs to the second matrix.
struct Column {
  u32 n;
  bool is_second;
};
__device__ inline Column column_of(u32 row) {
  if constexpr (kStage == 2) return {row, false};
  return {row / 64 * 32 + row % 32, row % 64 >= 32};
}

using RowsLoader = RowLoader<kStagedRows, kStep, kThreads>;
using StackedLoader = RowLoader<kColumns, kStep, kThreads, OperandOrder::kKStrideBytes>;

struct Stacked {
  using Loader = StackedLoader;
  static __device__ Loader load(const Weights& w, u32 n0) {
    const u32 row_bytes = w.k * sizeof(Input), rows = kStage == 1 ? 2 * w.n : w.n;
    return Loader(Span{w.first_matrix, rows * row_bytes}, [&](u32 row) {
      const Column c = column_of(row);
      if (n0 + c.n >= w.n) return kOutOfBounds;
      return OperandOrder::offset(n0 + c.n + (c.is_second ? w.n : 0), 0, row_bytes);
    });
  }
};
struct Tables {
  using Loader = ColumnLoader<kThreads>;
  static __device__ Loader load(Weights w, u32 n0) {
    const u32 half = wave_id() / 4, row_bytes = w.n * sizeof(Input);
    // Copies, because the compiler would select between the addresses of the members.
    const Input *first_matrix = w.first_matrix, *second_matrix = w.second_matrix;
    const u32 column = kStage == 1 ? n0 : n0 + half * Loader::kColumns;
    return Loader(Span{half == 1 ? second_matrix : first_matrix, w.k * row_bytes}, column, w.n,
                  row_bytes, [&](u32 n) {
                    return kStage == 1 ? n / kSub * 2 * kSub + half * kSub + n % kSub
                                       : half * Loader::kColumns + n;
                  });
  }
};
template <bool kIsTable>
struct WeightLayoutOf {
  using Type = Stacked;
};
template <>
struct WeightLayoutOf<true> {
  using Type = Tables;
};
using WeightLayout = WeightLayoutOf<(kTable > 0)>::Type;

// Even K-steps use stage 0 of LDS and registers, odd ones stage 1.
template <u32 kStage>
struct StageOf {};

// The mainloop over K: this wave's kRowTiles tiles of 32 rows by its 64 weight rows.
template <u32 kRowTiles>
__device__ inline void run_mainloop(Accumulators<kRowTiles>& accumulators, RowsLoader& rows,
                                    WeightLayout::Loader& weights, u32 k_end) {
  LdsBytes* const row_tiles[] = {(LdsBytes*)memory.stage0.rows, (LdsBytes*)memory.stage1.rows};
  LdsBytes* const weight_tiles[] = {(LdsBytes*)memory.stage0.weights,
                                    (LdsBytes*)memory.stage1.weights};
  const Reader<kStep, WeightLayout::Loader> reader;
  Operands<kRowTiles> fragments;
  const auto advance = [&]<u32 kLoads>(u32 step, u32 c, LoadCount<kLoads>, auto load) {
    multiply_and_read<Input, kLoads>(accumulators, fragments, reader, row_tiles[step],
                                     weight_tiles[step], c, load);
  };
  const auto commit = [&]<u32 kStage>(StageOf<kStage>) {
    rows.template commit<kStage>(row_tiles[kStage]);
    weights.template commit<kStage>(weight_tiles[kStage]);
  };
  const auto issue = [&]<u32 kStage>(StageOf<kStage>, u32 k) {
    rows.template issue<kStage>(k, k_end);
    weights.template issue<kStage>(k, k_end);
  };
  // Multiplies the K-step in one stage. The next one is committed to the other stage, the one after
  // it is in flight, and the loads of the third are issued.
  const auto step = [&]<u32 kStage>(StageOf<kStage>, u32 k) {
    constexpr StageOf<kStage ^ 1> kNext;
    static_assert(Lds::kChunks == 4, "a K-step must have two pairs of chunks");
    advance(kStage, 2, LoadCount<2>{}, [&](u32 n) {
      if (n == 0) {
        commit(kNext);
      } else {
        issue(kNext, k + 3 * kStep);
      }
    });
    // All waves have read this K-step and written the next one.
    wait_lgkmcnt();
    s_barrier();
    advance(kStage ^ 1, 0, LoadCount<0>{}, [](u32) {});
  };
  issue(StageOf<0>{}, 0);
  issue(StageOf<1>{}, kStep);
  commit(StageOf<0>{});
  issue(StageOf<0>{}, 2 * kStep);
  wait_lgkmcnt();
  s_barrier();
  fragments = reader.template read<kRowTiles>(row_tiles[0], weight_tiles[0], 0);
  for (u32 k = 0; k < k_end; k += 2 * kStep) {  // with an odd number of K-steps the last adds zeros
    step(StageOf<0>{}, k);
    step(StageOf<1>{}, k + kStep);
  }
  wait_lgkmcnt();
  s_barrier();  // the next tile's first K-step overwrites what these reads used
}

template <u32 kRowTiles>
__device__ inline void store(const Accumulators<kRowTiles>& accumulators, Input* out,
                             const ExpertTile& tile, u32 n) {
  u32 lane = lane_id();
  force_vgpr(lane);  // recomputed here, because hoisted values of all heights would fill registers
  const u32 wave = wave_id(), wave_m = wave / kNWaves, wave_n = wave % kNWaves;
  const Buffer buffer = make_buffer(out + u64{tile.global_row} * n, tile.rows * n * sizeof(Input));
  const Store out_rows(buffer, lane, tile.n * kOutColumns + wave_n * (kOutColumns / kNWaves), n,
                       n * sizeof(Input), (LdsBytes*)memory.stores[wave]);
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    out_rows.store((i * kMWaves + wave_m) * kSub, [&](u32 j, u32 q) {
      F32x4 v4;
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        const f32 sum = accumulators.acc[i][j][4 * q + e];
        v4[e] = kStage == 1 ? silu(sum) * accumulators.acc[i][1][4 * q + e] : sum;
      }
      return v4;
    });
  }
}

template <u32 kRowTiles>
__device__ inline void make_tile(u32 row_tiles, RowsLoader& rows, WeightLayout::Loader& weights,
                                 Input* out, const ExpertTile& tile, u32 n, u32 k) {
  if constexpr (kRowTiles > 0) {
    if (row_tiles < kRowTiles)
      return make_tile<kRowTiles - 1>(row_tiles, rows, weights, out, tile, n, k);
  }
  Accumulators<kRowTiles> accumulators = {};
  run_mainloop<kRowTiles>(accumulators, rows, weights, k);
  store<kRowTiles>(accumulators, out, tile, n);
}

}  // namespace

#if RFOPS_TABLE
#define RFOPS_WEIGHTS Pointers<kTable> w, Pointers<kTable> w_up
#define RFOPS_KERNEL moe_experts_table
#else
#define RFOPS_WEIGHTS const Input* __restrict__ w
#define RFOPS_KERNEL moe_experts
#endif

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    RFOPS_KERNEL(Input* __restrict__ out,        // [rows, N]
                 const Input* __restrict__ x,    // [M, K], rows in_row bytes apart
                 RFOPS_WEIGHTS,                  // [E, N or 2 N, K], or [K, N] per expert
                 const u32* __restrict__ lists,  // [routed, M]; stage 1
                 u32* __restrict__ counts,       // [routed]; stage 2 leaves them 0
                 u32* __restrict__ offsets,      // [E + 1]; stage 1 writes them
                 u32 m, u32 routed, u32 experts, u32 all_rows, u32 n, u32 k, u32 x_row,
                 u32 groups) {  // a multiple of 8
  const u32 n_tiles = (n + kOutColumns - 1) / kOutColumns;
  const Experts scheduler(experts, n_tiles, m, all_rows,
                          RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  publish_offsets<kStage>(scheduler, counts, offsets, routed, experts);
  const auto tile_of = [&](u32 number) { return scheduler.tile(number); };
  for_each_row_slice<kSub>(scheduler, routed, groups, tile_of, [&](const ExpertTile& tile) {
    Weights matrices = {nullptr, nullptr, n, k};
#if RFOPS_TABLE
    matrices.first_matrix = w.matrix[tile.expert];
    matrices.second_matrix = w_up.matrix[tile.expert];
#else
    matrices.first_matrix = matrices.second_matrix = w + u64{tile.expert} * (kStage == 1 ? 2 * n : n) * k;
#endif
    WeightLayout::Loader weights = WeightLayout::load(matrices, tile.n * kOutColumns);
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* list = lists + u64{tile.expert} * m + tile.row;
    const u8* x_bytes = reinterpret_cast<const u8*>(x);
    u32 bytes = (m - 1) * x_row + k * sizeof(Input);
    if constexpr (kStage == 2) {
      x_bytes += u64{tile.global_row} * x_row;
      bytes = tile.rows * x_row;
    }
    RowsLoader rows(Span{x_bytes, bytes}, [&](u32 row) {
      if (row >= tile.rows) return kOutOfBounds;
      return (is_list ? list[row] : kStage == 1 ? tile.row + row : row) * x_row;
    });
    // Every second tile of 32 rows that is in bounds.
    const u32 subs = (tile.rows + kSub - 1) / kSub, wave_m = wave_id() / kNWaves;
    make_tile<kSubs>((subs + 1 - wave_m) / 2, rows, weights, out, tile, n, k);
  });
}
