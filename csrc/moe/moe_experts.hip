// kStage 1: out[r] = silu(in[t] Wg) * (in[t] Wu)     kStage 2: out[r] = in[r] Wd
//
// r goes over the rows of all experts, expert by expert; t is the token of r, by the expert's list,
// or r's own number where the expert is shared; W are that expert's. f16 or bf16, sums in fp32.
// For gfx942; moe_experts_pingpong.hip is gfx950's.
//
// Layout. A workgroup a CU takes tile after tile: kRows rows of an expert by 256 rows of weights,
// of stage 1 128 of gate and 128 of up. Eight waves, 2 along rows and 4 along weights; a wave has
// every other 32 rows, and of weights 64: of gate 32 and of up 32, so that both of a column meet in
// one lane. 32 rows that are not there are not multiplied. Weights are operand A: a lane holds 4
// neighbours of a row of out. A step of 32 along K goes through registers (lds_tile_16bit.h), which
// have two on their way, into one of two LDS buffers while the other is multiplied. Results go
// through LDS too (cshuffle_32x32.h).
//
// Promises. Deterministic: a row's sums go along K, wherever it lies. Memory that is not there is
// not touched. N and K are multiples of 8, rows of all are aligned to 16 bytes; `in` of stage 1,
// and an expert's weights, are below 2 GiB.
#include "moe/cshuffle_32x32.h"
#include "moe/exp.h"
#include "moe/expert_tile_scheduler.h"
#include "moe/lds_tile_16bit.h"
#include "moe/wave_mfma_32x32.h"
#include "rfops/chip/sync.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/global_to_lds.h"

namespace {

using namespace rfops;

using In = RFOPS_IN;                 // f16 or bf16
constexpr u32 kStage = RFOPS_STAGE;  // 1: gate, up and SiLU; 2: down
constexpr u32 kTable = RFOPS_TABLE;  // experts of a table of [K, N]; 0: stacked [E, N, K]
constexpr u32 kEach = RFOPS_EACH;    // experts of a lane
// Stacked weights lie in tiles of 16 rows by 16 bytes (global_to_lds.h).
using Order = OperandLayout<RFOPS_SHUFFLED>;
constexpr u32 kStep = 32;                          // of K
constexpr u32 kRows = RFOPS_ROWS, kColumns = 256;  // of a tile
constexpr u32 kThreads = kMWaves * kNWaves * kWaveSize;
constexpr u32 kSubs = (kRows + kSub * kMWaves - 1) / (kSub * kMWaves);  // operands of a wave
constexpr u32 kRoom = (kRows + 127) / 128 * 128;  // rows in LDS: 512 threads load 128
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
using Lds = Rows16<kStep>;
using Experts = ExpertTileScheduler<kRows, kEach, kSub>;

using Store = WaveStore32<In, kOutColumns / kNWaves>;
struct Step {
  u8 rows[kRoom * Lds::kBytes], weights[kColumns * Lds::kBytes];
};
struct Memory {
  Step first;
  union {
    Step second;
    u8 stores[kMWaves * kNWaves][Store::kBytes];  // the next tile's second step comes later
  };
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

template <u32 kCount>
struct Pointers {
  const In* of[kCount];
};

// What multiplies an expert's rows: of stage 1 gate and up, of stage 2 down, twice.
struct Weights {
  const In *first, *second;
  u32 n, k;
};

// Of a row of LDS: its column of out, and whether it is of the second matrix.
struct Column {
  u32 n;
  bool is_second;
};
__device__ inline Column column_of(u32 row) {
  if constexpr (kStage == 2) return {row, false};
  return {row / 64 * 32 + row % 32, row % 64 >= 32};
}

using RowsLoader = RowLoader<kRoom, kStep, kThreads>;
using StackedLoader = RowLoader<kColumns, kStep, kThreads, Order::kKStrideBytes>;

struct Stacked {
  using Loader = StackedLoader;
  static __device__ Loader load(const Weights& w, u32 n0) {
    const u32 row_bytes = w.k * sizeof(In), rows = kStage == 1 ? 2 * w.n : w.n;
    return Loader(Span{w.first, rows * row_bytes}, [&](u32 row) {
      const Column c = column_of(row);
      if (n0 + c.n >= w.n) return kOutOfBounds;
      return Order::offset(n0 + c.n + (c.is_second ? w.n : 0), 0, row_bytes);
    });
  }
};
struct Tables {
  using Loader = ColumnLoader<kThreads>;
  static __device__ Loader load(Weights w, u32 n0) {
    const u32 half = wave_id() / 4, row_bytes = w.n * sizeof(In);
    const In *first = w.first,
             *second = w.second;  // a choice of members would be one of addresses
    const u32 column = kStage == 1 ? n0 : n0 + half * Loader::kColumns;
    return Loader(Span{half == 1 ? second : first, w.k * row_bytes}, column, w.n, row_bytes,
                  [&](u32 n) {
                    return kStage == 1 ? n / kSub * 2 * kSub + half * kSub + n % kSub
                                       : half * Loader::kColumns + n;
                  });
  }
};
template <bool kIsTable>
struct LayoutOf {
  using Type = Stacked;
};
template <>
struct LayoutOf<true> {
  using Type = Tables;
};
using Layout = LayoutOf<(kTable > 0)>::Type;

// Even steps have number 0, in LDS and in registers, odd ones 1.
template <u32 kOf>
struct StepOf {};

// All of K: this wave's kOwn times 32 rows by its 64 of weights.
template <u32 kOwn>
__device__ inline void run_mainloop(Sums<kOwn>& sums, RowsLoader& rows, Layout::Loader& weights,
                                    u32 k_end) {
  LdsBytes* const to_rows[] = {(LdsBytes*)memory.first.rows, (LdsBytes*)memory.second.rows};
  LdsBytes* const to_weights[] = {(LdsBytes*)memory.first.weights,
                                  (LdsBytes*)memory.second.weights};
  const Reader<kStep, Layout::Loader> reader;
  Operands<kOwn> held;
  const auto advance = [&]<u32 kStarts>(u32 step, u32 c, Starts<kStarts>, auto start) {
    multiply_and_read<In, kStarts>(sums, held, reader, to_rows[step], to_weights[step], c, start);
  };
  const auto commit = [&]<u32 kOf>(StepOf<kOf>) {
    rows.template commit<kOf>(to_rows[kOf]);
    weights.template commit<kOf>(to_weights[kOf]);
  };
  const auto issue = [&]<u32 kOf>(StepOf<kOf>, u32 k) {
    rows.template issue<kOf>(k, k_end);
    weights.template issue<kOf>(k, k_end);
  };
  // Of the step in one buffer; the next one is committed to the other, the one after the next
  // is on its way, and that after it starts.
  const auto step = [&]<u32 kOf>(StepOf<kOf>, u32 k) {
    constexpr StepOf<kOf ^ 1> kNext;
    static_assert(Lds::kChunks == 4, "two pairs a step");
    advance(kOf, 2, Starts<2>{}, [&](u32 n) {
      if (n == 0) {
        commit(kNext);
      } else {
        issue(kNext, k + 3 * kStep);
      }
    });
    // All have read this step, and written the next one.
    wait_lgkmcnt();
    s_barrier();
    advance(kOf ^ 1, 0, Starts<0>{}, [](u32) {});
  };
  issue(StepOf<0>{}, 0);
  issue(StepOf<1>{}, kStep);
  commit(StepOf<0>{});
  issue(StepOf<0>{}, 2 * kStep);
  wait_lgkmcnt();
  s_barrier();
  held = reader.template read<kOwn>(to_rows[0], to_weights[0], 0);
  for (u32 k = 0; k < k_end; k += 2 * kStep) {  // of an odd number the last one adds zeros
    step(StepOf<0>{}, k);
    step(StepOf<1>{}, k + kStep);
  }
  wait_lgkmcnt();
  s_barrier();  // or the next tile's first step is written over what others read
}

template <u32 kOwn>
__device__ inline void store(const Sums<kOwn>& sums, In* out, const ExpertTile& tile, u32 n) {
  u32 lane = lane_id();
  force_vgpr(lane);  // what follows is computed here: of all heights it would fill registers
  const u32 wave = wave_id(), wave_m = wave / kNWaves, wave_n = wave % kNWaves;
  const Buffer buffer = make_buffer(out + u64{tile.first} * n, tile.rows * n * sizeof(In));
  const Store to(buffer, lane, tile.n * kOutColumns + wave_n * (kOutColumns / kNWaves), n,
                 n * sizeof(In), (LdsBytes*)memory.stores[wave]);
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    to.store((i * kMWaves + wave_m) * kSub, [&](u32 j, u32 q) {
      F32x4 four;
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        const f32 sum = sums.of[i][j][4 * q + e];
        four[e] = kStage == 1 ? silu(sum) * sums.of[i][1][4 * q + e] : sum;
      }
      return four;
    });
  }
}

template <u32 kOwn>
__device__ inline void make_tile(u32 own, RowsLoader& rows, Layout::Loader& weights, In* out,
                                 const ExpertTile& tile, u32 n, u32 k) {
  if constexpr (kOwn > 0) {
    if (own < kOwn) return make_tile<kOwn - 1>(own, rows, weights, out, tile, n, k);
  }
  Sums<kOwn> sums = {};
  run_mainloop<kOwn>(sums, rows, weights, k);
  store<kOwn>(sums, out, tile, n);
}

}  // namespace

#if RFOPS_TABLE
#define RFOPS_WEIGHTS Pointers<kTable> first, Pointers<kTable> second
#define RFOPS_KERNEL moe_experts_table
#else
#define RFOPS_WEIGHTS const In* __restrict__ first
#define RFOPS_KERNEL moe_experts
#endif

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads), amdgpu_waves_per_eu(2, 2)))
    RFOPS_KERNEL(In* __restrict__ out,           // [rows, N]
                 const In* __restrict__ in,      // [M, K], rows in_row bytes apart
                 RFOPS_WEIGHTS,                  // [E, N or 2 N, K], or [K, N] an expert
                 const u32* __restrict__ lists,  // [routed, M]; stage 1
                 u32* __restrict__ counts,       // [routed]; stage 2 leaves them 0
                 u32* __restrict__ offsets,      // [E + 1]; stage 1 writes them
                 u32 m, u32 routed, u32 experts, u32 all_rows, u32 n, u32 k, u32 in_row,
                 u32 groups) {  // a multiple of 8
  const u32 n_tiles = (n + kOutColumns - 1) / kOutColumns;
  const Experts all(experts, n_tiles, m, all_rows,
                    RowsOfExpert<kStage>(counts, offsets, m, routed, experts));
  publish_offsets<kStage>(all, counts, offsets, routed, experts);
  const auto tile_of = [&](u32 number) { return all.tile(number); };
  for_each_row_slice<kSub>(all, routed, groups, tile_of, [&](const ExpertTile& tile) {
    Weights w = {nullptr, nullptr, n, k};
#if RFOPS_TABLE
    w.first = first.of[tile.expert];
    w.second = second.of[tile.expert];
#else
    w.first = w.second = first + u64{tile.expert} * (kStage == 1 ? 2 * n : n) * k;
#endif
    Layout::Loader weights = Layout::load(w, tile.n * kOutColumns);
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* list = lists + u64{tile.expert} * m + tile.row;
    const u8* from = reinterpret_cast<const u8*>(in);
    u32 bytes = (m - 1) * in_row + k * sizeof(In);
    if constexpr (kStage == 2) {
      from += u64{tile.first} * in_row;
      bytes = tile.rows * in_row;
    }
    RowsLoader rows(Span{from, bytes}, [&](u32 row) {
      if (row >= tile.rows) return kOutOfBounds;
      return (is_list ? list[row] : kStage == 1 ? tile.row + row : row) * in_row;
    });
    // Of every second 32 rows, those that are there.
    const u32 subs = (tile.rows + kSub - 1) / kSub, wave_m = wave_id() / kNWaves;
    make_tile<kSubs>((subs + 1 - wave_m) / 2, rows, weights, out, tile, n, k);
  });
}
