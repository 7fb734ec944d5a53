// The state of a wave and of its workgroup, and the faults that end a launch.
#pragma once

#include <stdexcept>
#include <string>

#include "vgpu/isa/isa.h"

namespace vgpu {

struct Program;  // program.h: a loaded code object's decoded text
struct Workgroup;
class Observer;
class Landing;

// A fault in device code: ends the launch with an error code and this text.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// kSlow: running with something on that only the runner's slow path does.
enum class WaveState : u8 { kRunning, kSlow, kAtBarrier, kAsleep, kDone };
enum Slow : u8 {
  kIndexed = 1,    // VGPR indexing (s_set_gpr_idx_on)
  kSkipping = 2,   // s_setvskip: vector instructions are not issued
  kHolding = 4,    // what loads bring has not landed (landing.h)
  kLate = 8,       // every load lands late (schedule.h)
  kFollowed = 16,  // its loads are counted, as some of them may be held
};

// Rows of the vector register file: 256 arch + 256 acc, and room for the tuple that starts at the
// last register, so that no encoding can index outside (the widest tuple has 32 registers).
inline constexpr u32 kVgprRows = 512 + 32;

inline constexpr u64 kSharedBaseAddr = u64{0x7f00} << 48;  // apertures: outside any host pointer
inline constexpr u64 kPrivateBaseAddr = u64{0x7f01} << 48;
inline constexpr u64 kApertureMask = ~u64{0xffffffff};

// Registers and LDS that nobody has written hold this: a NaN, and no plausible address or count.
inline constexpr u32 kPoisonWord = 0x7fb0dead;

struct Wave {
  alignas(64) u32 sgpr[128];
  u32* vgpr = nullptr;    // [kVgprRows][kLanes]
  u32* acc = nullptr;     // vgpr + accum_offset * kLanes
  u8* scratch = nullptr;  // private memory, dword-interleaved: (off / 4) * 256 + lane * 4 + off % 4
  u32 scratch_bytes = 0;  // per lane
  u32 pc = 0;             // dword index of the next instruction
  u32 current = 0;        // dword index of the instruction that runs
  bool scc = false;
  bool fp_split = false;  // f16/f64 rounding or denormal mode differs from that of f32
  WaveState state = WaveState::kRunning;
  u8 slow = 0;       // of Slow
  u32 mode = 0;      // MODE register: round 3:0, denorm 7:4, dx10_clamp 8, ieee 9, fp16_ovfl 23,
                     // vskip 28
  u64 launched = 0;  // lanes that exist
  u32 index = 0;     // in the workgroup
  Workgroup* group = nullptr;
  Program* program = nullptr;
  Observer* observer = nullptr;  // counters or checks, when they are on
  Landing* landing = nullptr;

  u64 exec() const { return load<u64>(&sgpr[kExecLo]); }
  void set_exec(u64 mask) { store<u64>(&sgpr[kExecLo], mask); }
  u64 vcc() const { return load<u64>(&sgpr[kVccLo]); }
  void set_vcc(u64 mask) { store<u64>(&sgpr[kVccLo], mask); }
  u32* v(u32 reg) { return vgpr + reg * kLanes; }
  // A register that may be an AGPR (256..511).
  u32* va(u32 reg) { return reg < 256 ? vgpr + reg * kLanes : acc + (reg - 256) * kLanes; }
  u64 sgpr64(u32 reg) const { return sgpr[reg & 127] | u64{sgpr[(reg + 1) & 127]} << 32; }
  void set_sgpr64(u32 reg, u64 value) {
    sgpr[reg & 127] = static_cast<u32>(value);
    sgpr[(reg + 1) & 127] = static_cast<u32>(value >> 32);
  }
  bool runs() const { return state <= WaveState::kSlow; }
  void run() { state = slow ? WaveState::kSlow : WaveState::kRunning; }
  void set_slow(Slow why, bool on) {
    slow = static_cast<u8>(on ? slow | why : slow & ~why);
    if (runs()) run();
  }
  bool ieee() const { return mode >> 9 & 1; }
  bool dx10_clamp() const { return mode >> 8 & 1; }
  bool fp16_ovfl() const { return mode >> 23 & 1; }
};

struct Workgroup {
  u32 id[3] = {};
  u32 wave_count = 0;
  u8* lds = nullptr;  // lds_bytes, then padding that catches nothing but keeps wide reads inside
  u32 lds_bytes = 0;
  Arch arch = Arch::kGfx950;
  struct GroupWatch* watch = nullptr;  // what checks know of it, when they are on
  class Arrivals* arrivals = nullptr;
  struct GroupTrace* trace = nullptr;  // what timing takes down of it, when it is sampled
};

// Value of a scalar source (32 or 64 bits as its type says).
u32 read_scalar32(const Wave& wave, const Src& src);
u64 read_scalar64(const Wave& wave, const Src& src);

// Raises Fault with kernel, instruction and position in front of `what`.
[[noreturn]] void fault(const Wave& wave, const Inst& inst, const std::string& what);

}  // namespace vgpu
