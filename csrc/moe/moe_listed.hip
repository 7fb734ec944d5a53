// kStage 1: h[r] = T(silu(x[t] Wg) * (x[t] Wu))
// kStage 2: y[r] = T(h[r] Wd)
//
// r is a row of an expert (expert_rows.h), t its token, W the expert's weights. For experts of few
// rows: weights are read once per 16 kMaxTiles rows, from memory to registers. Elements are T, f16
// or bf16, or FP8 (e4m3fnuz on gfx942, e4m3 on gfx950) with fp32 scales per 1 x 128 of x and h and
// per 128 x 128 of W.
//
// Layout. A workgroup has one expert, whose rows it lists itself. In stage 1 it has 16 columns of
// gate and the same 16 of up, and its waves interleave along K in spans of kLines cache lines;
// their partials are reduced in LDS in the order of the waves. In stage 2 a wave has all of K of 32
// columns, and then of the next 32. While a wave multiplies, the loads of others are in flight.
// Loads of weights bring whole cache lines of a row, which the wave reorders to fragments through
// its own LDS. Weights are MFMA operand A, rows operand B: up to kMaxTiles tiles of 16; a tile's
// missing rows are zeros without a memory access.
//
// With kHBlocks, h of FP8 weights has type T and the workgroup quantises its rows to LDS
// (lds_fp8_rows.h), while its first weights are in flight; missing rows are then undefined. With
// kIsRawX, x of FP8 weights has type T, and each wave quantises its blocks of the rows
// (wave_fp8_rows.h), while weights are in flight.
//
// Guarantees: bitwise deterministic.
// Requires: K of 128-byte lines; N a multiple of 32, FP8 of 128; rows 16-byte aligned; at most
// 256 kRounds tokens; an expert's weights, x and h below 2 GiB.
#include "moe/expert_rows.h"
#include "moe/lds_fp8_rows.h"
#include "moe/wave_fp8_rows.h"
#include "rfops/group/wave_reduce.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/matrix/mfma_fp8.h"
#include "rfops/number/exp.h"
#include "rfops/tile/wave_loader.h"

namespace {

using namespace rfops;

using i64 = long long;
using Input = RFOPS_IN;              // T
using Id = RFOPS_ID;                 // of topk_ids: i32 or i64
constexpr u32 kStage = RFOPS_STAGE;  // 1: gate, up and SiLU; 2: down
constexpr bool kIsFp8 = RFOPS_FP8;
constexpr u32 kTopK = RFOPS_TOP_K;
constexpr u32 kRounds = RFOPS_ROUNDS;  // tokens of a thread
constexpr u32 kWaves = 4, kThreads = kWaves * kWaveSize;
constexpr u32 kMaxTiles = RFOPS_TILES;  // of 16 rows that a pass over the weights has
constexpr u32 kColTiles = 2;         // of 16 weight rows, of a wave: gate and up, or adjacent ones
constexpr u32 kLines = RFOPS_LINES;  // cache lines of a row of weights per load
// Blocks of K of h that stage 2 quantises itself; 0: h is as the MFMA takes it.
constexpr u32 kHBlocks = RFOPS_H_BLOCKS;
constexpr bool kIsRaw = kHBlocks > 0;
// Whether the rows of h are ordered by token (moe_fp8_stream_up_tile.hip), not as those of y.
constexpr bool kHByToken = RFOPS_H_BY_TOKEN;
static_assert(!kHByToken || kIsRaw, "h of moe_fp8_stream_up_tile.hip");
// Whether all workgroups of an expert are of one XCD, whose L2 then has the rows of x.
constexpr bool kByXcd = RFOPS_BY_XCD;
static_assert(!kByXcd || kStage == 1, "stage 1 reads more of x than of h");
static_assert(!kIsRaw || (kStage == 2 && kIsFp8), "h that FP8 weights multiply");
constexpr bool kIsRawX = RFOPS_RAW_X;  // whether stage 1 quantises x
static_assert(!kIsRawX || (kStage == 1 && kIsFp8 && kMaxTiles == 1 && kLines == 2),
              "rows of a tile that FP8 weights multiply, in registers beside these");
constexpr u32 kScaleColumns = 128;
constexpr u32 kMatrices = kStage == 1 ? 2 : 1;  // a wave's tiles of one share scales
// Lines of x that a wave loads at a time.
template <u32 kRowTiles>
constexpr u32 kXLines = kLines * kRowTiles <= 4 ? kLines : 4 / kRowTiles;

using Rows = ExpertRows<kTopK, kThreads, kRounds, kMaxTiles * kTileRows>;
using OutVec = Vec4<Input>;
using XRows = WaveFp8Rows<Input, kIsRawX ? kLines : 2>;
constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }
constexpr u32 kSumItems = kColTiles * kMaxTiles * kWaveSize;
constexpr u32 kOrderItems = kLines * kLdsTile / sizeof(F32x4);
constexpr u32 kBanksBytes = kLdsBanks * sizeof(u32);
constexpr u32 kXItems =
    kIsRawX ? (XRows::kBytes + kBanksBytes - 1) / kBanksBytes * (kBanksBytes / u32{sizeof(F32x4)})
            : 0;
constexpr u32 kWaveItems = larger(larger(kStage == 1 ? kSumItems : 0, kOrderItems), kXItems);
static_assert(sizeof(Rows::Memory) <= kWaves * kWaveItems * sizeof(F32x4), "the list fits");
alignas(kRowBytes) __shared__ F32x4 memory[kWaves][kWaveItems];
template <u32 kRowTiles>
using RawRows = LdsFp8Rows<Input, kThreads, kRowTiles, kIsRaw ? kHBlocks : 1>;
struct RawMemory {
  Rows::Memory list;
  RawRows<kMaxTiles>::Memory rows;
};
alignas(kRowBytes) __shared__ u8 raw_memory[kIsRaw ? sizeof(RawMemory) : 1];

// Operands of kLines cache lines along K, of x fewer.
template <u32 kRowTiles>
struct Span {
  Fragment w[kColTiles][kLines], x[kRowTiles][kXLines<kRowTiles>];
  Dwords<kXLines<kRowTiles>> x_scale[kRowTiles];
  f32 w_scale[kMatrices][kLines];
  XRows::Loaded raw_x;
};

// What a workgroup reads and writes.
struct Operands {
  const u8 *w, *x;
  const f32 *w_scale, *x_scale;
  Input* out;
  u32 w_rows, x_bytes, row_bytes, in_row;  // of the expert; of all rows; of K; between rows of x
  u32 scale_rows_bytes;                    // of all rows of x
  u32 n, blocks, num_shared;
};

__device__ inline u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// The rows of a lane: of tile i the row in column l % 16 of the MFMA's result.
template <u32 kRowTiles>
struct LaneRows {
  u32 out[kRowTiles];                                // kNoRow where there is none
  u32 x_offset[kRowTiles], scale_offset[kRowTiles];  // bytes, kOutOfBounds where there is none
  u32 count;                                         // of rows of the pass
};

template <u32 kRowTiles>
class Product {
  static constexpr u32 kChunk = kXLines<kRowTiles>;
  using Loader = WaveTileLoader<RFOPS_SHUFFLED, kLines>;

 public:
  // `raw_rows` is null where h is not quantised here.
  __device__ Product(const Operands& operands, const LaneRows<kRowTiles>& rows,
                     const RawRows<kRowTiles>* raw_rows)
      : operands_(operands),
        rows_(rows),
        raw_rows_(raw_rows),
        w_({operands.w, 0, operands.w_rows, operands.w_rows, operands.row_bytes, 0,
            operands.row_bytes, Loader::kKStrideBytes},
           lane_id()),
        order_((LdsBytes*)memory, wave_id() * kWaveItems * u32{sizeof(F32x4)}, lane_id()),
        raw_x_(make_buffer(operands.x, operands.x_bytes), rows.x_offset[0], rows.count) {}
  using Sums = F32x4[kColTiles * kRowTiles];
  __device__ Sums& sums() { return sums_; }

  // Issues the loads of the lines from `line` on, zeros from line `end` on; column_of(c) returns
  // the first weight row of tile c.
  template <class ColumnOf>
  __device__ void issue(Span<kRowTiles>& span, ColumnOf column_of, u32 line, u32 end) const {
    if constexpr (kIsRawX) {
      raw_x_.load(span.raw_x, line, operands_.blocks);
    } else if constexpr (!kIsRaw) {
      load_x(span, line);
    }
#pragma unroll
    for (u32 c = 0; c < kColTiles; ++c) {
      // Opaque: hoisted out of the loop, the loads' rows take more SGPRs than there are.
      u32 row = column_of(c);
      force_sgpr(row);
#pragma unroll
      for (u32 s = 0; s < kLines; s += Loader::kTiles)
        w_.template load<kStreamed>(&span.w[c][s], row, line + s, end);
    }
    if constexpr (kIsFp8) load_w_scales(span, column_of, line);
    sched_barrier();
  }
  // Adds their products.
  __device__ void multiply(Span<kRowTiles>& span, u32 line) {
    if constexpr (kIsRawX) quantise_x(span, line);
#pragma unroll
    for (u32 c = 0; c < kColTiles; ++c) {
#pragma unroll
      for (u32 s = 0; s < kLines; s += Loader::kTiles) Loader::arrange(&span.w[c][s], order_);
    }
#pragma unroll
    for (u32 begin = 0; begin < kLines; begin += kChunk) {
      if (kIsRaw) {
        read_raw(span, line + begin);
      } else if (begin > 0) {
        load_x(span, line + begin);
      }
      multiply_chunk(span, line, begin);
    }
  }

 private:
  // kOutOfBounds beyond the last line, else 0.
  __device__ u32 oob_bits(u32 line) const { return line < operands_.blocks ? 0 : kOutOfBounds; }
  __device__ void load_x(Span<kRowTiles>& span, u32 line) const {
    const Buffer x = make_buffer(operands_.x, operands_.x_bytes);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (u32 s = 0; s < kChunk; ++s) {
        const u32 offset = rows_.x_offset[i] | oob_bits(line + s);
        span.x[i][s] = load_fragment(x, offset, (line + s) * kTileK);
      }
    }
    if constexpr (kIsFp8) {
      const Buffer scales = make_buffer(operands_.x_scale, operands_.scale_rows_bytes);
#pragma unroll
      for (u32 i = 0; i < kRowTiles; ++i)
        span.x_scale[i] =
            buffer_load_dwords<kChunk>(scales, rows_.scale_offset[i], line * u32{sizeof(f32)});
    }
    sched_barrier();
  }
  __device__ void read_raw(Span<kRowTiles>& span, u32 line) const {
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (u32 s = 0; s < kChunk; ++s) {
        // Beyond the last block, where weights are zeros, that one: no NaN.
        const u32 block = smaller(line + s, kHBlocks - 1);
        span.x[i][s] = raw_rows_->fragment(i, block);
        span.x_scale[i].dword[s] = __builtin_bit_cast(u32, raw_rows_->scale(i, block));
      }
    }
  }
  // Before the weights are there, which are loaded after x.
  __device__ void quantise_x(Span<kRowTiles>& span, u32 line) const {
    f32 scales[kLines];
    raw_x_.quantise(span.raw_x, span.x[0], scales, (LdsBytes*)memory[wave_id()]);
#pragma unroll
    for (u32 s = 0; s < kLines; ++s) span.x_scale[0].dword[s] = __builtin_bit_cast(u32, scales[s]);
    sched_barrier();
  }
  template <class ColumnOf>
  __device__ void load_w_scales(Span<kRowTiles>& span, ColumnOf column_of, u32 line) const {
#pragma unroll
    for (u32 c = 0; c < kMatrices; ++c) {
      const f32* const of_column =
          operands_.w_scale + column_of(c) / kScaleColumns * operands_.blocks;
#pragma unroll
      for (u32 s = 0; s < kLines; ++s)
        span.w_scale[c][s] = of_column[line + s < operands_.blocks ? line + s : 0];
    }
  }
  __device__ void multiply_chunk(const Span<kRowTiles>& span, u32 line, u32 begin) {
#pragma unroll
    for (u32 s = 0; s < kChunk; ++s) {
      const u32 l = begin + s;
#pragma unroll
      for (u32 i = 0; i < kRowTiles; ++i) {
        const Fragment& x = span.x[i][s];
#pragma unroll
        for (u32 c = 0; c < kColTiles; ++c) {
          F32x4& sum = sums_[i * kColTiles + c];
          if constexpr (kIsFp8) {
            F32x4 partial = {};
#pragma unroll
            for (u32 q = 0; q < kMatrixSteps; ++q)
              partial = mfma_fp8_step(q, span.w[c][l], x, partial);
            // Beyond a row's last block the scale is another row's, and may be NaN.
            const u32 in_bounds = line + l < operands_.blocks ? ~0u : 0;
            const u32 x_scale = span.x_scale[i].dword[s] & in_bounds;
            const f32 scale = __builtin_bit_cast(f32, x_scale) * span.w_scale[c % kMatrices][l];
#pragma unroll
            for (u32 e = 0; e < 4; ++e) sum[e] = __builtin_fmaf(partial[e], scale, sum[e]);
          } else {
            sum = mfma_16x16x32<Input>(span.w[c][l].low, x.low, sum);
            sum = mfma_16x16x32<Input>(span.w[c][l].high, x.high, sum);
          }
        }
      }
    }
  }

  const Operands& operands_;
  const LaneRows<kRowTiles>& rows_;
  const RawRows<kRowTiles>* raw_rows_;
  Loader w_;
  WaveOrder<kLines> order_;
  XRows raw_x_;
  Sums sums_ = {};
};

// The rows of a workgroup's pass over its expert.
struct Pass {
  const Rows& rows;
  u32 begin, count;
};

template <u32 kRowTiles>
__device__ inline LaneRows<kRowTiles> lane_rows(const Operands& operands, const Pass& pass) {
  LaneRows<kRowTiles> result;
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    const u32 index = i * kTileRows + lane_id() % kTileRows;
    const bool has_row = index < pass.count;
    const u32 row = pass.rows.row(pass.begin, smaller(index, pass.count - 1));
    const u32 x_row = kStage == 1 ? pass.rows.token(row) : row;
    result.out[i] = has_row ? row : Rows::kNoRow;
    const u32 chunk = kIsRawX ? 0 : lane_id() / kTileRows * kVecBytes;
    result.x_offset[i] = has_row ? x_row * operands.in_row + chunk : kOutOfBounds;
    result.scale_offset[i] = has_row ? x_row * operands.blocks * u32{sizeof(f32)} : kOutOfBounds;
  }
  result.count = pass.count;
  if (!kIsRaw) workgroup_barrier();  // the list's memory is free
  return result;
}

// Stage 1: 16 columns of h, from column n0 on.
template <u32 kRowTiles>
__device__ inline void make_h(const Operands& operands, const LaneRows<kRowTiles>& rows, u32 n0) {
  const u32 wave = wave_id(), lane = lane_id();
  Product<kRowTiles> product(operands, rows, nullptr);
  for (u32 line = wave * kLines; line < operands.blocks; line += kWaves * kLines) {
    Span<kRowTiles> span;
    product.issue(span, [&](u32 c) { return n0 + c * operands.n; }, line, operands.blocks);
    product.multiply(span, line);
  }
#pragma unroll
  for (u32 t = 0; t < kColTiles * kRowTiles; ++t)
    memory[wave][t * kWaveSize + lane] = product.sums()[t];
  workgroup_barrier();
  using Partials = LdsPartials<F32x4, kWaves, kWaveItems>;
  const auto& partials = reinterpret_cast<const Partials&>(memory);
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    if (i % kWaves != wave || rows.out[i] == Rows::kNoRow) continue;
    const F32x4 gate = partials.sum(i * kColTiles * kWaveSize + lane);
    const F32x4 up = partials.sum((i * kColTiles + 1) * kWaveSize + lane);
    OutVec values;
#pragma unroll
    for (u32 e = 0; e < 4; ++e) values[e] = static_cast<Input>(silu(gate[e]) * up[e]);
    const u64 offset = u64{rows.out[i]} * operands.n + n0 + lane / kTileRows * 4;
    *reinterpret_cast<OutVec*>(operands.out + offset) = values;
  }
}

constexpr u32 kStripColumns = kColTiles * kTileRows;

template <u32 kRowTiles>
__device__ inline void store_y(const Operands& operands, const LaneRows<kRowTiles>& rows, u32 strip,
                               const F32x4 (&sums)[kColTiles * kRowTiles]) {
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    if (rows.out[i] == Rows::kNoRow) continue;
    Input* const row = operands.out + u64{rows.out[i]} * operands.n + lane_id() / kTileRows * 4;
#pragma unroll
    for (u32 c = 0; c < kColTiles; ++c) {
      *reinterpret_cast<OutVec*>(row + strip * kStripColumns + c * kTileRows) =
          __builtin_convertvector(sums[i * kColTiles + c], OutVec);
    }
  }
}

// Stage 2: `strips` of 32 columns of y per wave; those of the waves are adjacent.
template <u32 kRowTiles>
__device__ inline void make_y(const Operands& operands, const LaneRows<kRowTiles>& rows,
                              u32 first_strip, u32 strips) {
  const u32 end = smaller(first_strip + strips * kWaves, operands.n / kStripColumns);
  for (u32 strip = first_strip + wave_id(); strip < end; strip += kWaves) {
    Product<kRowTiles> product(operands, rows, nullptr);
    for (u32 line = 0; line < operands.blocks; line += kLines) {
      Span<kRowTiles> span;
      product.issue(
          span, [&](u32 c) { return strip * kStripColumns + c * kTileRows; }, line,
          operands.blocks);
      product.multiply(span, line);
    }
    store_y(operands, rows, strip, product.sums());
  }
}

// The same of h that it quantises, while a wave's first weights are in flight.
template <u32 kRowTiles>
__device__ inline void make_y_of_raw(const Operands& operands, const Pass& pass, u32 first_strip,
                                     u32 strips) {
  const u32 end = smaller(first_strip + strips * kWaves, operands.n / kStripColumns);
  const auto row_of = [&](u32 i) {
    const u32 row = pass.rows.row(pass.begin, i);
    return kHByToken ? pass.rows.number_by_token(row, operands.num_shared) : row;
  };
  const auto rows_memory =
      (RFOPS_LDS typename RawRows<kRowTiles>::Memory*)(raw_memory + sizeof(Rows::Memory));
  RawRows<kRowTiles> raw_rows(rows_memory, make_buffer(operands.x, operands.x_bytes), pass.count);
  raw_rows.issue(row_of);
  sched_barrier();
  const LaneRows<kRowTiles> rows = lane_rows<kRowTiles>(operands, pass);
  Product<kRowTiles> product(operands, rows, &raw_rows);
  Span<kRowTiles> span;
  const auto issue = [&](u32 strip, u32 line) {
    product.issue(
        span, [&](u32 c) { return strip * kStripColumns + c * kTileRows; }, line, kHBlocks);
  };
  u32 strip = first_strip + wave_id();
  issue(strip, 0);
  raw_rows.commit(row_of);
  workgroup_barrier();
  while (true) {
#pragma unroll
    for (u32 line = 0; line < kHBlocks; line += kLines) {
      if (line > 0) issue(strip, line);
      product.multiply(span, line);
    }
    store_y(operands, rows, strip, product.sums());
    strip += kWaves;
    if (strip >= end) return;
    issue(strip, 0);
#pragma unroll
    for (auto& sum : product.sums()) sum = {};
  }
}

// What a workgroup computes: some columns of a pass over an expert.
struct Group {
  u32 work_idx, column_group;
};
__device__ inline Group group_of_workgroup(u32 n) {
  if constexpr (!kByXcd) return {workgroup_id_y(), workgroup_id_x()};
  const u32 groups = n / kTileRows, id = workgroup_id_y() * groups + workgroup_id_x();
  return {id / kXcds / groups * kXcds + id % kXcds, id / kXcds % groups};
}

template <u32 kRowTiles>
__device__ inline void make_rows(const Operands& operands, const Pass& pass, u32 column_group,
                                 u32 strips) {
  const u32 first_strip = column_group * strips * kWaves;
  if constexpr (kIsRaw) {
    make_y_of_raw<kRowTiles>(operands, pass, first_strip, strips);
  } else {
    const LaneRows<kRowTiles> rows = lane_rows<kRowTiles>(operands, pass);
    if constexpr (kStage == 1) {
      make_h(operands, rows, column_group * kTileRows);
    } else {
      make_y(operands, rows, first_strip, strips);
    }
  }
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads),
                                          amdgpu_waves_per_eu(2)))
moe_listed(const Id* __restrict__ topk_ids,  // [M, kTopK]
           u32 m, u32 routed, u32 shared,
           const u8* __restrict__ w,  // [E, 2 N, K] of stage 1, gate and then up; [E, N, K]
           u32 n, u32 k_bytes,
           const u8* __restrict__ x,  // [M, K], rows in_row bytes apart; stage 2: h
           u32 in_row,
           const f32* __restrict__ w_scale,  // [E, 2 N/128 or N/128, K/128] of FP8
           const f32* __restrict__ x_scale,  // [rows of x, K/128] of FP8
           Input* __restrict__ out,          // [M (kTopK + shared), N]
           u32 strips) {                     // of a wave; stage 2
  // Work is a pass over a shared expert, and then an expert, or a choice where these are fewer.
  constexpr u32 kPassRows = kMaxTiles * kTileRows;
  const Group group = group_of_workgroup(n);
  const u32 passes = (m + kPassRows - 1) / kPassRows, work_idx = group.work_idx;
  const u32 number = work_idx - shared * passes;  // of what is not shared
  if (kByXcd && work_idx >= shared * passes + smaller(routed, m * kTopK)) return;
  const bool is_shared = work_idx < shared * passes, is_choice = !is_shared && m * kTopK < routed;
  u32 expert = is_shared ? routed + work_idx / passes : number;
  if (is_choice) {
    const Id id = topk_ids[number];
    if (id < 0 || id >= static_cast<Id>(routed)) return;
    expert = static_cast<u32>(id);
  }
  expert = readfirstlane(expert);
  const auto list = kIsRaw ? (RFOPS_LDS Rows::Memory*)raw_memory : (RFOPS_LDS Rows::Memory*)memory;
  const Rows rows(list, topk_ids, m, routed, expert);
  if (rows.total() == 0) return;

  const u32 blocks = k_bytes / kTileK, w_rows = kMatrices * n;
  const u32 x_rows = kStage == 1 ? m : m * (kTopK + shared);
  const f32* const scales =
      kIsFp8 ? w_scale + u64{expert} * (w_rows / kScaleColumns) * blocks : nullptr;
  const Operands operands = {
      w + u64{expert} * w_rows * k_bytes,
      x,
      scales,
      x_scale,
      out,
      w_rows,
      kIsRaw ? x_rows * k_bytes * u32{sizeof(Input)}
             : (x_rows - 1) * in_row + k_bytes * (kIsRawX ? u32{sizeof(Input)} : 1),
      k_bytes,
      in_row,
      x_rows * blocks * u32{sizeof(f32)},
      n,
      blocks,
      shared};
  const u32 first_row = is_shared ? work_idx % passes * kPassRows : 0;
  const u32 end = is_shared ? smaller(first_row + kPassRows, m) : rows.total();
  for (u32 begin = first_row; begin < end; begin += kPassRows) {
    workgroup_barrier();  // all waves have read what the memory held
    rows.list(begin);
    workgroup_barrier();
    // Of the choices of an expert the first makes its rows.
    if (is_choice && begin == 0 && rows.row(0, 0) != number) return;
    const Pass pass = {rows, begin, smaller(end - begin, kPassRows)};
    if (pass.count <= kTileRows) {
      make_rows<1>(operands, pass, group.column_group, strips);
    } else if (kMaxTiles >= 2 && pass.count <= 2 * kTileRows) {
      make_rows<kMaxTiles >= 2 ? 2 : 1>(operands, pass, group.column_group, strips);
    } else {
      make_rows<kMaxTiles>(operands, pass, group.column_group, strips);
    }
  }
}
