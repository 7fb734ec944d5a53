// As moe_experts.hip, for gfx950:
// kStage 1: out[r] = silu(in[t] Wg) * (in[t] Wu)     kStage 2: out[r] = in[r] Wd
//
// Layout. A workgroup a CU takes tile after tile: up to kRows rows of an expert by 256 of weights,
// of stage 1 128 of gate and 128 of up. Eight waves, 2 along rows and 4 along weights, two a SIMD,
// share rows out in tiles of 16: 32 that are not there are not multiplied. The loop is
// pingpong_mainloop.h's. Weights are operand A: a lane ends with neighbours of a row of out, of
// stage 1 with gate and up of them.
//
// Promises. Deterministic: a row's sums go along K, wherever it lies, and are the same of stacked
// weights and of tables. Memory that is not there is
// not touched. N and K are multiples of 8, rows of all are aligned to 16 bytes; `in` of stage 1,
// and an expert's weights, are below 2 GiB.
#include "moe/exp.h"
#include "moe/expert_tile_scheduler.h"
#include "moe/pingpong_mainloop.h"
#include "rfops/wave/reduce_scatter.h"

namespace {

using namespace rfops;

using In = RFOPS_IN;                         // f16 or bf16
constexpr u32 kStage = RFOPS_STAGE;          // 1: gate, up and SiLU; 2: down
constexpr u32 kRows = RFOPS_ROWS;            // of a tile at most
constexpr u32 kTable = RFOPS_TABLE;          // experts of a table of [K, N]; 0: stacked [E, N, K]
constexpr u32 kColumns = 2 * kPingPongHalf;  // rows of weights of a tile
constexpr u32 kOutColumns = kStage == 1 ? kColumns / 2 : kColumns;
template <bool kIsTable>
struct OrderOf {
  using Type = OperandLayout<RFOPS_SHUFFLED>;
};
template <>
struct OrderOf<true> {
  using Type = InColumns;
};
using Order = OrderOf<(kTable > 0)>::Type;
using Experts =
    ExpertTileScheduler<kRows, RFOPS_EACH, kPingPongRows, 1, kPingPongRows>;  // usually 256

struct Memory {
  PingPongMemory<kRows> operands;
  KeptRows<Experts> rows;
};
static_assert(sizeof(Memory) <= kLdsBytes, "one workgroup a CU");
__shared__ Memory memory;

// Of two tiles of weights, four neighbours each, 8 of one: half of the lanes have these of the
// first tile (PingPong::column).
__device__ inline U32x4 neighbours(F32x4 first, F32x4 second) {
  using Values = Vec4<In>;
  const U32x2 a = __builtin_bit_cast(U32x2, __builtin_convertvector(first, Values));
  const U32x2 b = __builtin_bit_cast(U32x2, __builtin_convertvector(second, Values));
  const u32 a0 = a[0], a1 = a[1], b0 = b[0], b1 = b[1];
  const auto [low, low_next] = details::swap_halves<16>(a0, b0);
  const auto [high, high_next] = details::swap_halves<16>(a1, b1);
  return {low, high, low_next, high_next};
}

template <u32 kTiles>
__device__ inline void store(u32 lane, PingPongSums<kTiles>& sums, In* out, const ExpertTile& tile,
                             u32 n) {
  const u32 row_bytes = n * sizeof(In);
  const u32 column = tile.n * kOutColumns + PingPong::column(lane);
  const Buffer buffer = make_buffer(out + u64{tile.first} * n, tile.rows * row_bytes);
  const auto put = [&](u32 i, u32 n_at, F32x4 first, F32x4 second) {
    const u32 at = PingPong::row<kTiles>(i, lane) * row_bytes + n_at * sizeof(In);
    __builtin_amdgcn_raw_buffer_store_b128(neighbours(first, second), buffer.rsrc,
                                           at | (n_at < n ? 0 : kOutOfBounds), 0, 0);
  };
#pragma unroll
  for (u32 i = 0; i < kTiles; ++i) {
    F32x4(&of)[2][PingPong::kWTiles] = sums.of[i];
    if constexpr (kStage == 1) {
#pragma unroll
      for (u32 j = 0; j < PingPong::kWTiles; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) of[0][j][e] = silu(of[0][j][e]) * of[1][j][e];
      }
      put(i, column, of[0][0], of[0][1]);
    } else {
      put(i, column, of[0][0], of[0][1]);
      put(i, column + kPingPongHalf, of[1][0], of[1][1]);
    }
    sched_barrier();  // else all are made before one is stored
  }
}

template <u32 kCount>
struct Pointers {
  const In* of[kCount];
};

// What multiplies an expert's rows: all of it, or of a table gate and up, or down, twice.
struct Weights {
  const In *first, *second;
  u32 n0;
};
template <class Of = Order>
__device__ inline PingPongWeights<Of> loads_of(u32 thread, const Weights& w, u32 n, u32 k) {
  if constexpr (kTable > 0) {
    const u32 next = kStage == 1 ? w.n0 : w.n0 + kPingPongHalf;
    const auto from = [&](const In* of, u32 n0) {
      return Span{of + n0, n0 < n ? (k * n - n0) * static_cast<u32>(sizeof(In)) : 0};
    };
    return {thread, from(w.first, w.n0), from(w.second, next), n * static_cast<u32>(sizeof(In))};
  } else {
    const u32 row_bytes = k * sizeof(In), all = kStage == 1 ? 2 * n : n;
    return {thread, Span{w.first, all * row_bytes}, w.n0, kStage == 1 ? n : kPingPongHalf,
            row_bytes};
  }
}

// A tile of kTiles times 32 rows at most.
template <u32 kTiles, class OffsetOf>
__device__ inline void make_tile(u32 tiles, Span rows, OffsetOf offset_of, const Weights& w,
                                 In* out, const ExpertTile& tile, u32 n, u32 k) {
  if constexpr (kTiles > 1) {
    if (tiles < kTiles) {
      return make_tile<kTiles - 1>(tiles, rows, offset_of, w, out, tile, n, k);
    }
  }
  u32 thread = thread_id();
  force_vgpr(thread);  // what follows is computed here: of all heights it would fill registers
  const PingPongWeights<Order> weights = loads_of(thread, w, n, k);
  const PingPongRows<kTiles> own(thread, rows, offset_of);
  PingPongSums<kTiles> sums = {};
  PingPongWave<In, kRows, kTiles, Order>(&memory.operands, thread, own, weights, k)
      .run_mainloop(sums);
  u32 lane = lane_id();
  force_vgpr(lane);
  store<kTiles>(lane, sums, out, tile, n);
}

}  // namespace

#if RFOPS_TABLE
#define RFOPS_WEIGHTS Pointers<kTable> first, Pointers<kTable> second
#define RFOPS_KERNEL moe_experts_pingpong_table
#else
#define RFOPS_WEIGHTS const In* __restrict__ first
#define RFOPS_KERNEL moe_experts_pingpong
#endif

extern "C" __global__ void
    __attribute__((amdgpu_flat_work_group_size(kPingPongThreads, kPingPongThreads),
                   amdgpu_waves_per_eu(2, 2)))
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
  memory.rows.keep(all);
  const auto tile_of = [](u32 number) { return memory.rows.rows().tile(number); };
  for_each_row_slice<kPingPongRows>(all, routed, groups, tile_of, [&](const ExpertTile& tile) {
    Weights w = {nullptr, nullptr, tile.n * kOutColumns};
#if RFOPS_TABLE
    w.first = first.of[tile.expert], w.second = second.of[tile.expert];
#else
    w.first = first + u64{tile.expert} * (kStage == 1 ? 2 * n : n) * k;
#endif
    const bool is_list = kStage == 1 && tile.expert < routed;
    const u32* list = lists + u64{tile.expert} * m + tile.row;
    const u8* from = reinterpret_cast<const u8*>(in);
    u32 bytes = (m - 1) * in_row + k * sizeof(In);
    if constexpr (kStage == 2) {
      from += u64{tile.first} * in_row;
      bytes = tile.rows * in_row;
    }
    const auto offset_of = [&](u32 row) {
      if (row >= tile.rows) return kOutOfBounds;
      return (is_list ? list[row] : kStage == 1 ? tile.row + row : row) * in_row;
    };
    const u32 tiles = (tile.rows + kPingPongRows - 1) / kPingPongRows;
    make_tile<kRows / kPingPongRows>(tiles, Span{from, bytes}, offset_of, w, out, tile, n, k);
  });
}
