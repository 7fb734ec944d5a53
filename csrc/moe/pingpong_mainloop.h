// The loop over K of pingpong_tiles.h.
//
// A step has four phases, one for each quarter of the products, and a phase a memory part and a
// compute part with a barrier after each. There are two waves a SIMD, and those of the second half
// along rows are a part behind: while one wave computes the other one reads LDS and starts loads.
//
//   phase  even step: reads       computes    odd: reads       computes    starts, for k + 2
//     0    X0                     X0 x W0     X0               X0 x W1     the W read last
//     1    W1                     X0 x W1     W0               X0 x W0     X0
//     2    X1                     X1 x W1     X1               X1 x W0     the W read in phase 1
//     3    W1 of the next step    X1 x W0     W0 of the next   X1 x W1     X1
//
// What a memory part starts is read seven phases later; all but the last six phases' have arrived
// at the end of each. The last two steps start nothing.
#pragma once

#include "moe/pingpong_tiles.h"
#include "rfops/chip/sync.h"

namespace rfops {

#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx950__)

template <class In, u32 kRows, u32 kTiles, class Order>
class PingPongWave {
  using Memory = PingPongMemory<kRows>;
  using Sums = PingPongSums<kTiles>;
  using Weights = PingPongOrder<Order>;
  static constexpr u32 kSteps = 2;

 public:
  __device__ PingPongWave(void* memory, u32 thread, const PingPongRows<kTiles>& rows,
                          const PingPongWeights<Order>& weights, u32 k)
      : memory_((LdsBytes*)memory),
        rows_(rows),
        weights_(weights),
        k_(k),
        own_k_(PingPongX::chunk(thread) * (kVecBytes / 2)),
        place_(LdsDmaLoader<kPingPongThreads / kWaveSize>::wave_lds_base(memory_)),
        of_x_{{memory_, thread % kWaveSize, wave_m() * PingPong::tiles(kTiles, 0) * kTileRows},
              {memory_ + sizeof(Memory::x0), thread % kWaveSize,
               wave_m() * PingPong::tiles(kTiles, 1) * kTileRows}},
        of_w_(memory_ + kW, thread % kWaveSize,
              wave_id() % PingPong::kNWaves * PingPong::kWTiles * kTileRows) {}

  __device__ void run_mainloop(Sums& sums) {
    start_step<0>(0);
    start_step<1>(1);
    wait_vmcnt<in_flight(3, 0)>();
    if (wave_m() == 1) s_barrier();
    s_barrier();
    read_w<0, 0>();  // as the phase before the first would
    wait_lgkmcnt();
    s_barrier();
    s_barrier();
    const u32 steps = (k_ + kPingPongStep - 1) / kPingPongStep;
    for (u32 at = 0; at + kSteps < steps; at += kSteps) {
      step<0, false>(sums, at);
      step<1, false>(sums, at + 1);
    }
    step<0, true>(sums, 0);  // of an odd number the last one adds zeros
    step<1, true>(sums, 0);
    if (wave_m() == 0) s_barrier();
  }

 private:
  static constexpr u32 kW = sizeof(Memory::x0) + sizeof(Memory::x1);

  __device__ static u32 wave_m() { return wave_id() / PingPong::kNWaves; }

  // Loads that a phase starts; and that six phases up to this one did, of which the last `idle`
  // ones started none.
  static constexpr u32 started(u32 phase) {
    return phase % 2 == 0 ? PingPong::kWLoads : PingPong::loads(kTiles, phase % 4 / 2);
  }
  static constexpr u32 in_flight(u32 phase, u32 idle) {
    u32 count = 0;
    for (u32 before = idle; before < 6; ++before) count += started(phase + 8 - before);
    return count;
  }

  template <u32 kTo, u32 kHalf, u32 kLoad = 0>
  __device__ void start_rows(u32 at) const {
    if constexpr (kLoad < PingPong::loads(kTiles, kHalf)) {
      const u32 outside = at * kPingPongStep + own_k_ < k_ ? 0 : kOutOfBounds,
                from = rows_.from[kHalf][kLoad];
      buffer_load_lds_b128<kTo>(rows_.buffer, from | outside, 0, at * kRowBytes, place_);
      start_rows<kTo + kPingPongLoad, kHalf, kLoad + 1>(at);
    }
  }
  // What phase kPhase of an even or odd step starts for step `at`.
  template <u32 kOdd, u32 kPhase>
  __device__ void start(u32 at) const {
    if constexpr (kPhase % 2 == 0) {
      constexpr u32 kHalf = kPhase == 0 ? kOdd : 1 - kOdd;
      constexpr u32 kTo = kW + (2 * kOdd + kHalf) * kPingPongHalf * kRowBytes;
      weights_.template start<kTo, kHalf>(at, k_, place_);
    } else if constexpr (kPhase == 1) {
      start_rows<kOdd * Memory::kX0 * kRowBytes, 0>(at);
    } else {
      start_rows<sizeof(Memory::x0) + kOdd * Memory::kX1 * kRowBytes, 1>(at);
    }
  }
  template <u32 kOdd>
  __device__ void start_step(u32 at) const {
    start<kOdd, 0>(at), start<kOdd, 1>(at), start<kOdd, 2>(at), start<kOdd, 3>(at);
  }

  template <u32 kOdd, u32 kHalf>
  __device__ void read_x() {
    constexpr u32 kAt = kOdd * (kHalf == 0 ? Memory::kX0 : Memory::kX1) * kRowBytes;
#pragma unroll
    for (u32 i = 0; i < PingPong::tiles(kTiles, kHalf); ++i) {
      x_[i] = of_x_[kHalf].template read<kAt>(i);
    }
    sched_barrier();
  }
  template <u32 kOdd, u32 kHalf>
  __device__ void read_w() {
    constexpr u32 kAt = (2 * kOdd + kHalf) * kPingPongHalf * kRowBytes;
#pragma unroll
    for (u32 j = 0; j < PingPong::kWTiles; ++j) w_[kHalf][j] = of_w_.template read<kAt>(j);
    sched_barrier();
  }

  // The first half of weights to be used is number kOdd.
  template <u32 kOdd, bool kIsLast>
  __device__ void step(Sums& sums, u32 at) {
    const auto advance = [&]<u32 kPhase>(Phase<kPhase>) {
      if constexpr (!kIsLast) start<kOdd, kPhase>(at + kSteps);
      compute<kOdd, kPhase, kIsLast ? 4 * kOdd + kPhase + 1 : 0>(sums);
    };
    read_x<kOdd, 0>(), advance(Phase<0>{});
    read_w<kOdd, 1 - kOdd>(), advance(Phase<1>{});
    read_x<kOdd, 1>(), advance(Phase<2>{});
    if constexpr (!kIsLast || kOdd == 0) read_w<1 - kOdd, 1 - kOdd>();
    advance(Phase<3>{});
  }
  template <u32 kPhase>
  struct Phase {};

  // The end of a phase's memory part, and its compute part.
  template <u32 kOdd, u32 kPhase, u32 kIdle>
  __device__ void compute(Sums& sums) {
    constexpr u32 kQuarter = kPhase ^ kOdd, kX = kQuarter / 2, kOf = kQuarter == 1 || kQuarter == 2;
    constexpr u32 kFirst = kX * PingPong::tiles(kTiles, 0);
    sched_barrier();
    wait_lgkmcnt();
    wait_vmcnt<in_flight(kPhase, kIdle)>();
    set_wave_priority<0>();
    s_barrier();
    if constexpr (kIdle > 0) pin_all<kFirst, kX, kOf>(sums);
#pragma unroll
    for (u32 piece = 0; piece < 2; ++piece) {
#pragma unroll
      for (u32 i = 0; i < PingPong::tiles(kTiles, kX); ++i) {
#pragma unroll
        for (u32 t = 0; t < PingPong::kWTiles; ++t) {
          const u32 j = i % 2 == 0 ? t : PingPong::kWTiles - 1 - t;  // neighbours share operands
          F32x4& sum = sums.of[kFirst + i][kOf][j];
          const Fragment &w = w_[kOf][j], &x = x_[i];
          sum = piece == 0 ? mfma_16x16x32<In>(w.low, x.low, sum)
                           : mfma_16x16x32<In>(w.high, x.high, sum);
        }
      }
    }
    if constexpr (kIdle > 0) pin_all<kFirst, kX, kOf>(sums);
    sched_barrier();
    set_wave_priority<1>();
    s_barrier();
  }

  // What a phase of the last steps multiplies has its registers, or the sums get others.
  template <u32 kFirst, u32 kX, u32 kOf>
  __device__ void pin_all(Sums& sums) {
#pragma unroll
    for (u32 j = 0; j < PingPong::kWTiles; ++j) {
      force_vgpr(w_[kOf][j].low), force_vgpr(w_[kOf][j].high);
#pragma unroll
      for (u32 i = 0; i < PingPong::tiles(kTiles, kX); ++i) force_vgpr(sums.of[kFirst + i][kOf][j]);
    }
  }

  LdsBytes* memory_;
  PingPongRows<kTiles> rows_;
  PingPongWeights<Order> weights_;
  u32 k_, own_k_, place_;  // of K: all, and where a thread's of a step begin
  PingPongX::Reader of_x_[2];
  Weights::Reader of_w_;
  Fragment x_[PingPong::tiles(kTiles, 0)], w_[2][PingPong::kWTiles];
};

#endif

}  // namespace rfops
