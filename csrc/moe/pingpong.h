// The ping-pong GEMM of 16-bit rows and weights (gfx950): up to kRows rows by two
// halves of 128 weight rows, which may be apart. Operands are [rows, K]; direct-to-LDS loads of 16
// bytes per lane fill LDS. PingPongWave multiplies the tiles.
//
// Eight waves, 2 along rows and 4 along weights. LDS holds two K-steps of 64 in halves: X0, X1, W0,
// W1. A wave has kTiles tiles of 16 rows, half of them in X0 and half in X1 (the odd one in X0),
// and two tiles of each half of the weights.
//
// Rows are stored in LDS in the layout of lds_swizzle.h; so are row-major weights. Preshuffled
// weights (tiles of 16 rows by 16 bytes, global_to_lds.h) keep their memory order, so a load moves
// 1 contiguous KiB. Column-major weights [K, N] are stored as 256 contiguous bytes per k, and the
// LDS reads transpose them.
#pragma once

#include "moe/lds_tile_16bit.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx950__)

constexpr u32 kPingPongThreads = 512;
constexpr u32 kPingPongHalf = 128;  // weight rows
constexpr u32 kPingPongRows = 32;   // rows of one tile of each wave along rows
constexpr u32 kPingPongStep = kRowBytes / 2;
constexpr u32 kPingPongLoad = kPingPongThreads * kVecBytes;  // bytes

struct PingPong {
  static constexpr u32 kMWaves = 2, kNWaves = 4, kWTiles = 2;
  static constexpr u32 kRowsPerLoad = kPingPongThreads / kRowChunks;
  static constexpr u32 kWLoads = kPingPongHalf / kRowsPerLoad;
  // Returns how many of a wave's kTiles tiles are in half `half` of the rows; `loads` returns how
  // many loads fill that half.
  static constexpr u32 tiles(u32 total, u32 half) { return (total + 1 - half) / 2; }
  static constexpr u32 loads(u32 total, u32 half) {
    return (tiles(total, half) * kPingPongRows + kRowsPerLoad - 1) / kRowsPerLoad;
  }

  // Returns the row of the output tile that a lane holds of its wave's tile i.
  template <u32 kTiles>
  __device__ static u32 row(u32 i, u32 lane) {
    constexpr u32 kHalf0Tiles = tiles(kTiles, 0);
    const u32 wave = wave_id() / kNWaves, half = i < kHalf0Tiles ? 0 : 1;
    const u32 tile = half == 0 ? wave * kHalf0Tiles + i : wave * tiles(kTiles, 1) + i - kHalf0Tiles;
    return half * kHalf0Tiles * kPingPongRows + tile * kTileRows + lane % kTileRows;
  }
  // Returns the first of the four columns of a half that a lane holds of the wave's first weight
  // tile; `column` the first of the eight it holds after `neighbours` exchanged two tiles.
  __device__ static u32 first_column() { return wave_id() % kNWaves * (kWTiles * kTileRows); }
  __device__ static u32 column(u32 lane) {
    const u32 group = lane / kTileRows;
    return first_column() + group % 2 * kTileRows + group / 2 * 8;
  }
};

// The row and the 16-byte chunk that a thread loads of kRowsPerLoad rows, and the fragment reader.
template <class Layout>
struct PingPongLayout {
  using Reader = RowReader;
  __device__ static u32 row(u32 thread) { return thread / kRowChunks; }
  __device__ static u32 chunk(u32 thread) { return thread % kRowChunks ^ lds_swizzle(row(thread)); }
};
template <>
struct PingPongLayout<OperandLayout<true>> {
  static constexpr u32 kChunk = kTileRows * kVecBytes;  // bytes of a chunk of all rows of a tile
  class Reader {
   public:
    __device__ Reader(const LdsBytes* memory, u32 lane, u32 row)
        : base_(memory + row * kRowBytes + lane * kVecBytes) {}
    template <u32 kOffsetBytes = 0>
    __device__ Fragment read(u32 tile) const {
      const LdsBytes* const src = base_ + kOffsetBytes + tile * kLdsTile;
      return {lds_load_b128(src), lds_load_b128(src + kRowChunks / 2 * kChunk)};
    }

   private:
    const LdsBytes* base_;
  };
  __device__ static u32 row(u32 thread) {
    return thread / (kRowChunks * kTileRows) * kTileRows + thread % kTileRows;
  }
  __device__ static u32 chunk(u32 thread) { return thread / kTileRows % kRowChunks; }
};
using PingPongX = PingPongLayout<OperandLayout<false>>;

// Column-major weights [K, N]. ds_read_b64_tr_b16 transposes 4 k by 16 columns over 16 lanes: each
// lane supplies the address of 4 columns of one k, and lane j receives the 4 k of column j. 32
// lanes are served together and read k 0..3 and 8..11, or 16 further; the swizzle gives the two
// chunks of 16 columns of each k a bank pair of its own. Chunk c of k is stored at 256 k + 16 (c ^
// swizzle(k)).
struct ColMajor {};
template <>
struct PingPongLayout<ColMajor> {
  static constexpr u32 kBytes = kPingPongHalf * 2, kChunks = kBytes / kVecBytes;  // per k
  static constexpr u32 kKPerLoad = kPingPongThreads / kChunks;
  static constexpr u32 swizzle(u32 k) { return 2 * (k % 4 + k / 8 % 2 * 4); }
  static constexpr u32 offset(u32 k, u32 chunk) {
    return k * kBytes + (chunk ^ swizzle(k)) * kVecBytes;
  }
  // Returns a lane's offset of the first of a tile's four reads; the others are 4, 32 and 36 k
  // later.
  static constexpr u32 read_offset(u32 lane, u32 tile) {
    const u32 col_quad = lane % 4;
    return offset(lane / 16 * 8 + lane % 16 / 4, tile * 2 + col_quad / 2) + col_quad % 2 * 8;
  }
  class Reader {
   public:
    __device__ Reader(const LdsBytes* memory, u32 lane, u32 row) {
#pragma unroll
      for (u32 i = 0; i < PingPong::kWTiles; ++i) {
        tile_base_[i] = memory + read_offset(lane, row / kTileRows + i);
        force_vgpr(tile_base_[i]);  // otherwise each read adds what exceeds its immediate offset
      }
    }
    template <u32 kOffsetBytes = 0>
    __device__ Fragment read(u32 tile) const {
      const LdsBytes* const src = tile_base_[tile] + kOffsetBytes;
      return {read_8k(src), read_8k(src + 32 * kBytes)};
    }

   private:
    __device__ static U32x4 read_8k(const LdsBytes* src) {
      const auto read_4k = [](const LdsBytes* ptr) {
        return __builtin_bit_cast(U32x2,
                                  __builtin_amdgcn_ds_read_tr16_b64_v4i16((RFOPS_LDS I16x4*)ptr));
      };
      return __builtin_shufflevector(read_4k(src), read_4k(src + 4 * kBytes), 0, 1, 2, 3);
    }
    const LdsBytes* tile_base_[PingPong::kWTiles];
  };
  __device__ static u32 k(u32 thread) { return thread / kChunks; }
  __device__ static u32 chunk(u32 thread) { return thread % kChunks ^ swizzle(k(thread)); }
};
using PingPongColumns = PingPongLayout<ColMajor>;
static_assert(PingPongColumns::kBytes * PingPongColumns::kKPerLoad == kPingPongLoad);
static_assert(PingPongColumns::swizzle(4) == 0 && PingPongColumns::swizzle(32) == 0);
static_assert(details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                        [](u32 l) { return PingPongColumns::read_offset(l, 0); }) &&
                  details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                            [](u32 l) {
                                              return PingPongColumns::read_offset(l, 5);
                                            }),
              "reads must have no bank conflict");

template <u32 kRows>
struct PingPongMemory {
  static constexpr u32 kX0 = PingPong::loads(kRows / kPingPongRows, 0) * PingPong::kRowsPerLoad;
  static constexpr u32 kX1 = PingPong::loads(kRows / kPingPongRows, 1) * PingPong::kRowsPerLoad;
  u8 x0[2][kX0 * kRowBytes], x1[2][kX1 * kRowBytes], w[2][2][kPingPongHalf * kRowBytes];
};

// Gathered rows: offset_of(row) returns the offset of the row's first element, or kOutOfBounds.
template <u32 kTiles>
struct PingPongRows {
  template <class OffsetOf>
  __device__ PingPongRows(u32 thread, Span span, OffsetOf offset_of)
      : buffer(make_buffer_words(span.base, span.bytes)) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 count = PingPong::tiles(kTiles, half) * kPingPongRows;
      const u32 row_begin = half * PingPong::tiles(kTiles, 0) * kPingPongRows;
#pragma unroll
      for (u32 i = 0; i < PingPong::loads(kTiles, half); ++i) {
        const u32 row = PingPongX::row(thread) + i * PingPong::kRowsPerLoad;
        const u32 row_offset = row < count ? offset_of(row_begin + row) : kOutOfBounds;
        offset[half][i] = row_offset + PingPongX::chunk(thread) * kVecBytes;
      }
    }
  }
  U32x4 buffer;
  u32 offset[2][PingPong::loads(kTiles, 0)];
};

// 128 weight rows from n0 on, and 128 that start half_rows later.
template <class Layout>
class PingPongWeights {
 public:
  __device__ PingPongWeights(u32 thread, Span span, u32 n0, u32 half_rows, u32 row_bytes)
      : buffer_(make_buffer_words(span.base, span.bytes)),
        offset_(Layout::offset(n0 + PingPongLayout<Layout>::row(thread),
                               PingPongLayout<Layout>::chunk(thread), row_bytes)),
        k_(PingPongLayout<Layout>::chunk(thread) * (kVecBytes / 2)),
        load_stride_(PingPong::kRowsPerLoad * row_bytes),
        half1_offset_(half_rows * row_bytes) {}

  // Issues the two loads of half kHalf of K-step `k_step`; k is the end of K. LDS destination:
  // lds_base + kLdsOffset.
  template <u32 kLdsOffset, u32 kHalf>
  __device__ void issue(u32 k_step, u32 k, u32 lds_base) const {
    const u32 offset = offset_ | (k_step * kPingPongStep + k_ < k ? 0 : kOutOfBounds);
    const u32 base = kHalf == 0 ? 0 : half1_offset_,
              k_offset = k_step * kRowBytes * Layout::kKStrideBytes;
    buffer_load_lds_b128<kLdsOffset>(buffer_, offset, base, k_offset, lds_base);
    buffer_load_lds_b128<kLdsOffset + kPingPongLoad>(buffer_, offset, base + load_stride_, k_offset,
                                                     lds_base);
  }

 private:
  U32x4 buffer_;
  u32 offset_, k_, load_stride_, half1_offset_;
};

// 128 columns of weights, and 128 more of the same or another matrix, rows row_bytes apart.
// Out-of-range columns load arbitrary values; out-of-range k load zeros.
template <>
class PingPongWeights<ColMajor> {
  using Columns = PingPongColumns;

 public:
  __device__ PingPongWeights(u32 thread, Span half0, Span half1, u32 row_bytes)
      : buffer_{make_buffer_words(half0.base, half0.bytes),
                make_buffer_words(half1.base, half1.bytes)},
        offset_(Columns::k(thread) * row_bytes + Columns::chunk(thread) * kVecBytes),
        load_stride_(Columns::kKPerLoad * row_bytes) {}

  template <u32 kLdsOffset, u32 kHalf>
  __device__ void issue(u32 k_step, u32, u32 lds_base) const {
    const u32 k_offset = k_step * (kPingPongStep / Columns::kKPerLoad) * load_stride_;
    buffer_load_lds_b128<kLdsOffset>(buffer_[kHalf], offset_, 0, k_offset, lds_base);
    buffer_load_lds_b128<kLdsOffset + kPingPongLoad>(buffer_[kHalf], offset_, load_stride_,
                                                     k_offset, lds_base);
  }

 private:
  U32x4 buffer_[2];
  u32 offset_, load_stride_;
};

template <u32 kTiles>
struct PingPongAccumulators {
  F32x4 acc[kTiles][2][PingPong::kWTiles];
};

// The mainloop over K.
//
// A K-step has four phases, one per quarter of the accumulators; a phase has a memory part and a
// compute part with a barrier after each. There are two waves per SIMD, and the waves of the second
// half along rows run one part later: while one wave computes, the other reads LDS and issues
// loads.
//
//   phase  even step: reads       computes    odd: reads       computes    issues, for step + 2
//     0    X0                     X0 x W0     X0               X0 x W1     the W read last
//     1    W1                     X0 x W1     W0               X0 x W0     X0
//     2    X1                     X1 x W1     X1               X1 x W0     the W read in phase 1
//     3    W1 of the next step    X1 x W0     W0 of the next   X1 x W1     X1
//
// What a memory part issues is read seven phases later; each phase ends when at most the loads of
// the last six phases are in flight. The last two K-steps issue nothing.
template <class Input, u32 kRows, u32 kTiles, class Layout>
class PingPongWave {
  using Memory = PingPongMemory<kRows>;
  using Accumulators = PingPongAccumulators<kTiles>;
  using Weights = PingPongLayout<Layout>;
  static constexpr u32 kSteps = 2;

 public:
  __device__ PingPongWave(void* memory, u32 thread, const PingPongRows<kTiles>& rows,
                          const PingPongWeights<Layout>& weights, u32 k)
      : memory_((LdsBytes*)memory),
        rows_(rows),
        weights_(weights),
        k_(k),
        lane_k_(PingPongX::chunk(thread) * (kVecBytes / 2)),
        lds_base_(LdsDmaLoader<kPingPongThreads / kWaveSize>::wave_lds_base(memory_)),
        x_readers_{{memory_, thread % kWaveSize, wave_m() * PingPong::tiles(kTiles, 0) * kTileRows},
                   {memory_ + sizeof(Memory::x0), thread % kWaveSize,
                    wave_m() * PingPong::tiles(kTiles, 1) * kTileRows}},
        w_reader_(memory_ + kW, thread % kWaveSize,
                  wave_id() % PingPong::kNWaves * PingPong::kWTiles * kTileRows) {}

  __device__ void run_mainloop(Accumulators& accumulators) {
    issue_step<0>(0);
    issue_step<1>(1);
    wait_vmcnt<in_flight(3, 0)>();
    if (wave_m() == 1) s_barrier();
    s_barrier();
    read_w<0, 0>();  // phase 3 of the previous step would have read it
    wait_lgkmcnt();
    s_barrier();
    s_barrier();
    const u32 steps = (k_ + kPingPongStep - 1) / kPingPongStep;
    for (u32 k_step = 0; k_step + kSteps < steps; k_step += kSteps) {
      step<0, false>(accumulators, k_step);
      step<1, false>(accumulators, k_step + 1);
    }
    step<0, true>(accumulators, 0);  // with an odd number of K-steps the last one adds zeros
    step<1, true>(accumulators, 0);
    if (wave_m() == 0) s_barrier();
  }

 private:
  static constexpr u32 kW = sizeof(Memory::x0) + sizeof(Memory::x1);

  __device__ static u32 wave_m() { return wave_id() / PingPong::kNWaves; }

  // Returns the loads that a phase issues; in_flight returns those of the six phases up to this
  // one, of which the last `idle` issued none.
  static constexpr u32 loads_of_phase(u32 phase) {
    return phase % 2 == 0 ? PingPong::kWLoads : PingPong::loads(kTiles, phase % 4 / 2);
  }
  static constexpr u32 in_flight(u32 phase, u32 idle) {
    u32 count = 0;
    for (u32 ago = idle; ago < 6; ++ago) count += loads_of_phase(phase + 8 - ago);
    return count;
  }

  template <u32 kLdsOffset, u32 kHalf, u32 kLoad = 0>
  __device__ void issue_rows(u32 k_step) const {
    if constexpr (kLoad < PingPong::loads(kTiles, kHalf)) {
      const u32 oob_bits = k_step * kPingPongStep + lane_k_ < k_ ? 0 : kOutOfBounds,
                offset = rows_.offset[kHalf][kLoad];
      buffer_load_lds_b128<kLdsOffset>(rows_.buffer, offset | oob_bits, 0, k_step * kRowBytes,
                                       lds_base_);
      issue_rows<kLdsOffset + kPingPongLoad, kHalf, kLoad + 1>(k_step);
    }
  }
  // Issues the loads for K-step `k_step` in phase kPhase of an even or odd step.
  template <u32 kOdd, u32 kPhase>
  __device__ void issue(u32 k_step) const {
    if constexpr (kPhase % 2 == 0) {
      constexpr u32 kHalf = kPhase == 0 ? kOdd : 1 - kOdd;
      constexpr u32 kLdsOffset = kW + (2 * kOdd + kHalf) * kPingPongHalf * kRowBytes;
      weights_.template issue<kLdsOffset, kHalf>(k_step, k_, lds_base_);
    } else if constexpr (kPhase == 1) {
      issue_rows<kOdd * Memory::kX0 * kRowBytes, 0>(k_step);
    } else {
      issue_rows<sizeof(Memory::x0) + kOdd * Memory::kX1 * kRowBytes, 1>(k_step);
    }
  }
  template <u32 kOdd>
  __device__ void issue_step(u32 k_step) const {
    issue<kOdd, 0>(k_step), issue<kOdd, 1>(k_step), issue<kOdd, 2>(k_step), issue<kOdd, 3>(k_step);
  }

  template <u32 kOdd, u32 kHalf>
  __device__ void read_x() {
    constexpr u32 kOffsetBytes = kOdd * (kHalf == 0 ? Memory::kX0 : Memory::kX1) * kRowBytes;
#pragma unroll
    for (u32 i = 0; i < PingPong::tiles(kTiles, kHalf); ++i) {
      x_[i] = x_readers_[kHalf].template read<kOffsetBytes>(i);
    }
    sched_barrier();
  }
  template <u32 kOdd, u32 kHalf>
  __device__ void read_w() {
    constexpr u32 kOffsetBytes = (2 * kOdd + kHalf) * kPingPongHalf * kRowBytes;
#pragma unroll
    for (u32 j = 0; j < PingPong::kWTiles; ++j)
      w_[kHalf][j] = w_reader_.template read<kOffsetBytes>(j);
    sched_barrier();
  }

  // Weight half kOdd is used first.
  template <u32 kOdd, bool kIsLast>
  __device__ void step(Accumulators& accumulators, u32 k_step) {
    const auto advance = [&]<u32 kPhase>(Phase<kPhase>) {
      if constexpr (!kIsLast) issue<kOdd, kPhase>(k_step + kSteps);
      compute<kOdd, kPhase, kIsLast ? 4 * kOdd + kPhase + 1 : 0>(accumulators);
    };
    read_x<kOdd, 0>(), advance(Phase<0>{});
    read_w<kOdd, 1 - kOdd>(), advance(Phase<1>{});
    read_x<kOdd, 1>(), advance(Phase<2>{});
    if constexpr (!kIsLast || kOdd == 0) read_w<1 - kOdd, 1 - kOdd>();
    advance(Phase<3>{});
  }
  template <u32 kPhase>
  struct Phase {};

  // Ends a phase's memory part and runs its compute part.
  template <u32 kOdd, u32 kPhase, u32 kIdle>
  __device__ void compute(Accumulators& accumulators) {
    constexpr u32 kQuarter = kPhase ^ kOdd, kXHalf = kQuarter / 2,
                  kWHalf = kQuarter == 1 || kQuarter == 2;
    constexpr u32 kTile0 = kXHalf * PingPong::tiles(kTiles, 0);
    sched_barrier();
    wait_lgkmcnt();
    wait_vmcnt<in_flight(kPhase, kIdle)>();
    set_wave_priority<0>();
    s_barrier();
    if constexpr (kIdle > 0) force_registers<kTile0, kXHalf, kWHalf>(accumulators);
#pragma unroll
    for (u32 k_half = 0; k_half < 2; ++k_half) {
#pragma unroll
      for (u32 i = 0; i < PingPong::tiles(kTiles, kXHalf); ++i) {
#pragma unroll
        for (u32 t = 0; t < PingPong::kWTiles; ++t) {
          const u32 j = i % 2 == 0 ? t : PingPong::kWTiles - 1 - t;  // consecutive MFMAs share x
          F32x4& tile_acc = accumulators.acc[kTile0 + i][kWHalf][j];
          const Fragment &w = w_[kWHalf][j], &x = x_[i];
          tile_acc = k_half == 0 ? mfma_16x16x32<Input>(w.low, x.low, tile_acc)
                                 : mfma_16x16x32<Input>(w.high, x.high, tile_acc);
        }
      }
    }
    if constexpr (kIdle > 0) force_registers<kTile0, kXHalf, kWHalf>(accumulators);
    sched_barrier();
    set_wave_priority<1>();
    s_barrier();
  }

  // Forces the operands and accumulators of a phase of the last steps into VGPRs, because the
  // compiler would otherwise allocate the accumulators elsewhere and copy them.
  template <u32 kTile0, u32 kXHalf, u32 kWHalf>
  __device__ void force_registers(Accumulators& accumulators) {
#pragma unroll
    for (u32 j = 0; j < PingPong::kWTiles; ++j) {
      force_vgpr(w_[kWHalf][j].low), force_vgpr(w_[kWHalf][j].high);
#pragma unroll
      for (u32 i = 0; i < PingPong::tiles(kTiles, kXHalf); ++i)
        force_vgpr(accumulators.acc[kTile0 + i][kWHalf][j]);
    }
  }

  LdsBytes* memory_;
  PingPongRows<kTiles> rows_;
  PingPongWeights<Layout> weights_;
  u32 k_, lane_k_, lds_base_;  // end of K; first k of the thread's chunk in a step
  PingPongX::Reader x_readers_[2];
  Weights::Reader w_reader_;
  Fragment x_[PingPong::tiles(kTiles, 0)], w_[2][PingPong::kWTiles];
};

#endif

}  // namespace rfops
