// kStage 1: out[r] = silu(x[t] Wg) * (x[t] Wu)     kStage 2: out[r] = x[r] Wd
//
// The gfx950 kernel of moe_experts.hip, which defines r, t and W.
//
// Layout. One persistent workgroup per CU. A tile is up to kRows rows of an expert by 256 weight
// rows, in stage 1 128 of gate and 128 of up. Eight waves, 2 along rows and 4 along weights, two
// per SIMD, share the rows in tiles of 16; 32 rows that are all out of range are not multiplied.
// The mainloop is in pingpong.h. Weights are MFMA operand A: a lane holds adjacent columns of
// a row of out, in stage 1 both gate and up of them.
//
// Guarantees: bitwise deterministic: the sum of a row is in the order of K, in any tile, and is the
// same for stacked weights and tables. Out-of-range rows and columns are not accessed.
// Requires: N and K multiples of 8; rows 16-byte aligned; x of stage 1, and an expert's weights,
// below 2 GiB.
#include "moe/expert_tile_scheduler.h"
#include "moe/pingpong.h"
#include "rfops/number/exp.h"
#include "rfops/wave/reduce_scatter.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;                      // f16 or bf16
constexpr u32 kStage = RFOPS_STAGE;          // 1: gate, up and SiLU; 2: down
constexpr u32 kRows = RFOPS_ROWS;            // of a tile, at most
constexpr u32 kTable = RFOPS_TABLE;          // experts of a table of [K, N]; 0: stacked [E, N, K]
constexpr u32 kColumns = 2 * kPingPongHalf;  // weight rows of a tile
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
template <bool kIsTable>
struct LayoutOf {
  using Type = OperandLayout<RFOPS_SHUFFLED>;
};
template <>
struct LayoutOf<true> {
  using Type = ColMajor;
};
using Layout = LayoutOf<(kTable > 0)>::Type;
using Experts =
    ExpertTileScheduler<kRows, RFOPS_EACH, kPingPongRows, 1, kPingPongRows>;  // usually 256

struct Memory {
  PingPongMemory<kRows> operands;
  LdsScheduler<Experts> rows;
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

// Exchanges the values of two weight tiles between lanes, so that a lane has 8 adjacent columns of
// one tile instead of four of each; half of the lanes get those of tile0 (PingPong::column).
__device__ inline U32x4 neighbours(F32x4 tile0, F32x4 tile1) {
  using Values = Vec4<Input>;
  const U32x2 a = __builtin_bit_cast(U32x2, __builtin_convertvector(tile0, Values));
  const U32x2 b = __builtin_bit_cast(U32x2, __builtin_convertvector(tile1, Values));
  const u32 a0 = a[0], a1 = a[1], b0 = b[0], b1 = b[1];
  const auto [low, low_next] = details::swap_halves<16>(a0, b0);
  const auto [high, high_next] = details::swap_halves<16>(a1, b1);
  return {low, high, low_next, high_next};
}

template <u32 kTiles>
__device__ inline void store(u32 lane, PingPongAccumulators<kTiles>& accumulators, Input* out,
                             const ExpertTile& tile, u32 n) {
  const u32 row_bytes = n * sizeof(Input);
  const u32 column = tile.n * kOutColumns + PingPong::column(lane);
  const Buffer buffer = make_buffer(out + u64{tile.global_row} * n, tile.rows * row_bytes);
  const auto store_x8 = [&](u32 i, u32 col, F32x4 tile0, F32x4 tile1) {
    const u32 offset = PingPong::row<kTiles>(i, lane) * row_bytes + col * sizeof(Input);
    __builtin_amdgcn_raw_buffer_store_b128(neighbours(tile0, tile1), buffer.rsrc,
                                           offset | (col < n ? 0 : kOutOfBounds), 0, 0);
  };
#pragma unroll
  for (u32 i = 0; i < kTiles; ++i) {
    F32x4(&acc)[2][PingPong::kWTiles] = accumulators.acc[i];
    if constexpr (kStage == 1) {
#pragma unroll
      for (u32 j = 0; j < PingPong::kWTiles; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) acc[0][j][e] = silu(acc[0][j][e]) * acc[1][j][e];
      }
      store_x8(i, column, acc[0][0], acc[0][1]);
    } else {
      store_x8(i, column, acc[0][0], acc[0][1]);
      store_x8(i, column + kPingPongHalf, acc[1][0], acc[1][1]);
    }
    sched_barrier();  // otherwise all values are computed before one is stored
  }
}

template <u32 kCount>
struct Pointers {
  const Input* matrix[kCount];
};

// The matrices of an expert: gate and up, or twice down; stacked weights have one.
struct Weights {
  const Input *first_matrix, *second_matrix;
  u32 n0;
};
template <class WLayout = Layout>
__device__ inline PingPongWeights<WLayout> weight_loads(u32 thread, const Weights& w, u32 n,
                                                        u32 k) {
  if constexpr (kTable > 0) {
    const u32 next = kStage == 1 ? w.n0 : w.n0 + kPingPongHalf;
    const auto span_from = [&](const Input* matrix, u32 n0) {
      return Span{matrix + n0, n0 < n ? (k * n - n0) * static_cast<u32>(sizeof(Input)) : 0};
    };
    return {thread, span_from(w.first_matrix, w.n0), span_from(w.second_matrix, next),
            n * static_cast<u32>(sizeof(Input))};
  } else {
    const u32 row_bytes = k * sizeof(Input), num_rows = kStage == 1 ? 2 * n : n;
    return {thread, Span{w.first_matrix, num_rows * row_bytes}, w.n0,
            kStage == 1 ? n : kPingPongHalf, row_bytes};
  }
}

// Computes a tile of at most kTiles times 32 rows.
template <u32 kTiles, class OffsetOf>
__device__ inline void make_tile(u32 tiles, Span rows, OffsetOf offset_of, const Weights& w,
                                 Input* out, const ExpertTile& tile, u32 n, u32 k) {
  if constexpr (kTiles > 1) {
    if (tiles < kTiles) {
      return make_tile<kTiles - 1>(tiles, rows, offset_of, w, out, tile, n, k);
    }
  }
  u32 thread = thread_id();
  force_vgpr(
      thread);  // recomputed here, because hoisted values of all heights would fill registers
  const PingPongWeights<Layout> weights = weight_loads(thread, w, n, k);
  const PingPongRows<kTiles> row_loads(thread, rows, offset_of);
  PingPongAccumulators<kTiles> accumulators = {};
  PingPongWave<Input, kRows, kTiles, Layout>(&memory.operands, thread, row_loads, weights, k)
      .run_mainloop(accumulators);
  u32 lane = lane_id();
  force_vgpr(lane);
  store<kTiles>(lane, accumulators, out, tile, n);
}

}  // namespace

#if RFOPS_TABLE
#define RFOPS_WEIGHTS Pointers<kTable> w, Pointers<kTable> w_up
#define RFOPS_KERNEL moe_experts_pingpong_table
#else
#define RFOPS_WEIGHTS const Input* __restrict__ w
#define RFOPS_KERNEL moe_experts_pingpong
#endif

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kPingPongThreads, kPingPongThreads),
                   amdgpu_waves_per_eu(2, 2)))
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
  memory.rows.save(scheduler);
  const auto tile_of = [](u32 number) { return memory.rows.load().tile(number); };
  for_each_row_slice<kPingPongRows>(
      scheduler, routed, groups, tile_of, [&](const ExpertTile& tile) {
        Weights matrices = {nullptr, nullptr, tile.n * kOutColumns};
#if RFOPS_TABLE
        matrices.first_matrix = w.matrix[tile.expert],
        matrices.second_matrix = w_up.matrix[tile.expert];
#else
    matrices.first_matrix = w + u64{tile.expert} * (kStage == 1 ? 2 * n : n) * k;
#endif
        const bool is_list = kStage == 1 && tile.expert < routed;
        const u32* list = lists + u64{tile.expert} * m + tile.row;
        const u8* x_bytes = reinterpret_cast<const u8*>(x);
        u32 bytes = (m - 1) * x_row + k * sizeof(Input);
        if constexpr (kStage == 2) {
          x_bytes += u64{tile.global_row} * x_row;
          bytes = tile.rows * x_row;
        }
        const auto offset_of = [&](u32 row) {
          if (row >= tile.rows) return kOutOfBounds;
          return (is_list ? list[row] : kStage == 1 ? tile.row + row : row) * x_row;
        };
        const u32 tiles = (tile.rows + kPingPongRows - 1) / kPingPongRows;
        make_tile<kRows / kPingPongRows>(tiles, Span{x_bytes, bytes}, offset_of, matrices, out,
                                         tile, n, k);
      });
}
