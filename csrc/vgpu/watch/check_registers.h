// Uninitialised reads: an undefined value propagates through copies and arithmetic unreported, and
// is a finding when it decides something: an address, a branch, EXEC, or stored data.
//
// Granularity: a vector register one flag per lane; a scalar register one per bit (lane masks are
// built bit by bit, and compilers leave bits of inactive lanes undefined); LDS and private memory
// one per byte.
#pragma once

#include <vector>

#include "vgpu/isa/check_operands.h"
#include "vgpu/machine/observer.h"
#include "vgpu/watch/check_memory.h"

namespace vgpu {

// The source of an undefined value.
struct Origin {
  enum Kind : u8 { kRegister, kLds, kScratch, kGlobal };
  Kind kind = kRegister;
  u16 reg = 0;    // kRegister: the register that was never written; scalars from 1000
  u32 index = 0;  // otherwise: the load's index
};

// Undefined bits of a scalar value.
struct ScalarBits {
  u64 bits = 0;
  Origin origin;
};
struct LaneBits {
  u64 lanes = 0;
  Origin origin;
};

struct RegisterState {
  bool started = false;
  u64 vgpr[kVgprRows];
  Origin vgpr_origin[kVgprRows];
  VectorSet vectors;  // rows with an undefined lane
  ScalarSet scalars;  // registers with an undefined bit
  u32 sgpr[128];
  Origin sgpr_origin[128];
  bool scc = false;
  Origin scc_origin;
  std::vector<u8> scratch;  // 1 if written; in the layout of private memory
};

// One per host thread.
class RegisterCheck {
 public:
  RegisterCheck(const Program& program, const Kernel& kernel, const KnownMemory& memory,
                Findings& findings);

  void before_inst(RegisterState& state, Wave& wave, const Inst& inst, const Operands& operands) {
    passes_ = operands.queue == Queue::kNone && state.started && all_defined(state, operands);
    if (!passes_) follow(state, wave, inst, operands);
  }
  // `lds`: per byte of the workgroup's LDS 1 if it was written.
  void access(RegisterState& state, std::vector<u8>& lds, const Wave& wave, const Inst& inst,
              const Operands& operands, const Access& access);
  void after_inst(RegisterState& state, const Wave& wave, const Inst& inst,
                  const Operands& operands) {
    if (!passes_) finish(state, wave, inst, operands);
  }

  // Returns whether the running instruction's address is undefined; the address itself is then
  // meaningless.
  bool address_undefined() const { return address_undefined_; }

  // Returns the shadow of bytes of global memory; null if they are not tracked.
  u8* written(u64 address, u32 bytes);

 private:
  u32 row(u32 reg) const { return reg < 256 ? reg : accum_offset_ + reg - 256; }
  // Returns whether all sources are defined, so that the instruction needs no tracking.
  static bool all_defined(const RegisterState& state, const Operands& operands) {
    const bool scc = state.scc && (operands.reads_scc || operands.writes_scc);
    return !scc && !state.vectors.overlaps(operands.vectors) &&
           !state.scalars.overlaps(operands.scalars);
  }
  void start(RegisterState& state, const Wave& wave);
  void follow(RegisterState& state, Wave& wave, const Inst& inst, const Operands& operands);
  void finish(RegisterState& state, const Wave& wave, const Inst& inst, const Operands& operands);

  // Implemented in check_registers.cpp: sources and decisions.
  LaneBits lanes_of(const RegisterState& state, const RegRange& range) const;
  LaneBits source_lanes(const RegisterState& state, const Src& src, u32 dwords) const;
  LaneBits register_lanes(const RegisterState& state, u32 reg) const;
  ScalarBits scalar_bits(const RegisterState& state, u32 reg, u32 dwords) const;
  ScalarBits source_bits(const RegisterState& state, const Src& src, u32 dwords) const;
  void set_lanes(RegisterState& state, u32 reg, const LaneBits& value, u64 mask);
  void set_bits(RegisterState& state, u32 reg, u32 dwords, const ScalarBits& value);
  void check_addresses(RegisterState& state, const Wave& wave, const Inst& inst,
                       const Operands& operands);
  void check_branch(RegisterState& state, const Wave& wave, const Inst& inst);
  void check_exec(RegisterState& state, const Wave& wave, const Inst& inst,
                  const ScalarBits& undefined);
  void report(const Wave& wave, const Inst& inst, u32 lane, const std::string& description,
              const Origin& origin, const u64* address = nullptr);
  void report_memory(const Wave& wave, const Inst& inst, u32 lane, u64 address,
                     const std::string& detail);
  std::string origin_text(const Origin& origin) const;

  // Implemented in check_scalar.cpp: scalar instructions.
  void scalar(RegisterState& state, const Wave& wave, const Inst& inst, const Operands& operands);
  ScalarBits scalar_result(const RegisterState& state, const Wave& wave, const Inst& inst,
                           const Operands& operands, bool& scc_undefined) const;

  // Implemented in check_vector.cpp: vector instructions.
  void vector(RegisterState& state, Wave& wave, const Inst& inst, const Operands& operands);
  LaneBits any_source(const RegisterState& state, Wave& wave, const Inst& inst,
                      const Operands& operands);
  LaneBits selected(const RegisterState& state, const Wave& wave, const Inst& inst) const;
  LaneBits permuted_bytes(const RegisterState& state, const Wave& wave, const Inst& inst) const;
  void rows(RegisterState& state, const Inst& inst, const Operands& operands, u64 mask);
  void wide(RegisterState& state, Wave& wave, const Inst& inst, const Operands& operands, u64 mask);
  void read_lane(RegisterState& state, const Wave& wave, const Inst& inst,
                 const Operands& operands);
  void write_lane(RegisterState& state, const Wave& wave, const Inst& inst);
  void exchange(RegisterState& state, Wave& wave, const Inst& inst, Spread spread);
  void matrix(RegisterState& state, const Inst& inst);
  LaneBits dpp_source(const LaneBits& source, Wave& wave, const Inst& inst);
  LaneBits crossbar(const RegisterState& state, Wave& wave, const Inst& inst,
                    const Operands& operands);

  // Implemented in check_shadow.cpp: memory. A shadow has one byte per byte, 1 if it was written.
  template <class Shadow>
  void load(const Inst& inst, const Access& access, Origin::Kind kind, const Shadow& shadow);
  template <class Shadow>
  void store(const RegisterState& state, const Inst& inst, const Access& access,
             const Shadow& shadow);
  template <class Shadow>
  void transfer(const RegisterState& state, const Wave& wave, const Inst& inst,
                const Operands& operands, const Access& access, Origin::Kind kind,
                const Shadow& shadow);
  void check_store(RegisterState& state, const Wave& wave, const Inst& inst,
                   const Operands& operands, const Access& access);
  void load_scalar(const Inst& inst, const Access& access);
  LaneBits stored_lanes(const RegisterState& state, const Inst& inst, u32 dword) const;

  const Program& program_;
  const KnownMemory& memory_;
  Findings& findings_;
  u32 accum_offset_;

  bool passes_ = false;        // the running instruction involves no undefined value
  bool tests_result_ = false;  // SCC, undefined so far, is "result not 0"

  // State of the running memory instruction.
  u64 exec_ = 0;
  bool address_undefined_ = false;
  u32 next_row_ = 0;        // dwords moved by its earlier accesses
  LaneBits loaded_[32];     // undefined lanes of the loaded data
  MemoryRange last_range_;  // range of the previous global access: a cache

  // A wave with flags instead of values, on which lane permutations are executed.
  std::vector<u32> flags_;
  Wave shadow_;
};

}  // namespace vgpu
