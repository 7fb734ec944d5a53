// State of a wave and of its workgroup, and the faults that end a launch.
#pragma once

#include <stdexcept>
#include <string>

#include "vgpu/isa/isa.h"

namespace vgpu {

struct Program;  // program.h: the decoded text of a loaded code object
struct Workgroup;
class Observer;
class LoadQueue;

// A fault in device code: ends the launch with this error text.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// kSlow: running, with a condition (Slow) that only the runner's slow path handles.
enum class WaveState : u8 { kRunning, kSlow, kAtBarrier, kAsleep, kDone };
enum Slow : u8 {
  kIndexed = 1,           // VGPR indexing (s_set_gpr_idx_on)
  kSkipping = 2,          // s_setvskip: vector instructions are not issued
  kLoadsInFlight = 4,     // loads are in flight (load_queue.h)
  kRandomCompletion = 8,  // every load completes at a random time (schedule.h)
  kTrackLoads = 16,       // loads are counted, because some may be deferred
};

// Rows of the vector register file: 256 arch + 256 acc + padding for the widest tuple (32
// registers), so that no encoding can index outside.
inline constexpr u32 kVgprRows = 512 + 32;

// Aperture bases: no host pointer has these high bits.
inline constexpr u64 kSharedBaseAddr = u64{0x7f00} << 48;
inline constexpr u64 kPrivateBaseAddr = u64{0x7f01} << 48;
inline constexpr u64 kApertureMask = ~u64{0xffffffff};

// Initial value of registers and LDS: a NaN, and an implausible address and count.
inline constexpr u32 kPoisonWord = 0x7fb0dead;

struct Wave {
  alignas(64) u32 sgpr[128];
  u32* vgpr = nullptr;    // [kVgprRows][kLanes]
  u32* acc = nullptr;     // vgpr + accum_offset * kLanes
  u8* scratch = nullptr;  // private memory, dword-interleaved: (off / 4) * 256 + lane * 4 + off % 4
  u32 scratch_bytes = 0;  // per lane
  u32 pc = 0;             // dword index of the next instruction
  u32 current = 0;        // dword index of the running instruction
  bool scc = false;
  bool fp_split = false;  // f16/f64 rounding or denormal mode differs from that of f32
  WaveState state = WaveState::kRunning;
  u8 slow = 0;   // a mask of Slow
  u32 mode = 0;  // MODE register: round 3:0, denorm 7:4, dx10_clamp 8, ieee 9, fp16_ovfl 23,
                 // vskip 28
  u64 launched_lanes = 0;  // lanes that exist in the wave
  u32 index = 0;           // within the workgroup
  Workgroup* group = nullptr;
  Program* program = nullptr;
  Observer* observer = nullptr;  // counters, checks or trace; null if off
  LoadQueue* load_queue = nullptr;

  u64 exec() const { return load<u64>(&sgpr[kExecLo]); }
  void set_exec(u64 mask) { store<u64>(&sgpr[kExecLo], mask); }
  u64 vcc() const { return load<u64>(&sgpr[kVccLo]); }
  void set_vcc(u64 mask) { store<u64>(&sgpr[kVccLo], mask); }
  u32* v(u32 reg) { return vgpr + reg * kLanes; }
  // Returns a register that may be an AGPR (256..511).
  u32* va(u32 reg) { return reg < 256 ? vgpr + reg * kLanes : acc + (reg - 256) * kLanes; }
  u64 sgpr64(u32 reg) const { return sgpr[reg & 127] | u64{sgpr[(reg + 1) & 127]} << 32; }
  void set_sgpr64(u32 reg, u64 value) {
    sgpr[reg & 127] = static_cast<u32>(value);
    sgpr[(reg + 1) & 127] = static_cast<u32>(value >> 32);
  }
  bool is_running() const { return state <= WaveState::kSlow; }
  void run() { state = slow ? WaveState::kSlow : WaveState::kRunning; }
  void set_slow(Slow condition, bool enabled) {
    slow = static_cast<u8>(enabled ? slow | condition : slow & ~condition);
    if (is_running()) run();
  }
  bool ieee() const { return mode >> 9 & 1; }
  bool dx10_clamp() const { return mode >> 8 & 1; }
  bool fp16_ovfl() const { return mode >> 23 & 1; }
};

struct Workgroup {
  u32 id[3] = {};
  u32 wave_count = 0;
  u8* lds = nullptr;  // lds_bytes, then padding that keeps wide reads inside the buffer
  u32 lds_bytes = 0;
  Arch arch = Arch::kGfx950;
  struct WorkgroupCheckState* check_state = nullptr;  // state of the checks; null if off
  class LdsDmaQueue* lds_dma_queue = nullptr;
  struct WorkgroupTrace* trace = nullptr;  // trace for timing; null if not sampled
};

// Read a scalar source of 32 or 64 bits.
u32 read_scalar32(const Wave& wave, const Src& src);
u64 read_scalar64(const Wave& wave, const Src& src);

// Raises a Fault that names kernel, instruction and offset, followed by `message`.
[[noreturn]] void fault(const Wave& wave, const Inst& inst, const std::string& message);

}  // namespace vgpu
