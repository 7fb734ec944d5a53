// The mainloop over K of the tiles of pingpong_tiles.h.
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
#pragma once

#include "moe/pingpong_tiles.h"
#include "rfops/chip/sync.h"

namespace rfops {

#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx950__)

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
