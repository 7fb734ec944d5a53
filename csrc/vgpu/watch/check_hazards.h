// MFMA hazards: hardware does not stall an instruction that uses a matrix instruction's registers
// too early. The required distances are LLVM's (GCNHazardRecognizer), in wait states between the
// two instructions.
#pragma once

#include "vgpu/isa/check_operands.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct HazardState {
  struct Rows {
    u32 first = 0, count = 0;
    bool overlaps(const Rows& rhs) const {
      return first < rhs.first + rhs.count && rhs.first < first + count;
    }
    bool equals(const Rows& rhs) const { return first == rhs.first && count == rhs.count; }
  };
  enum Unit : u8 { kXdl, kSingle, kDouble };  // kSingle: f32 sources
  struct Matrix {
    u64 time = 0;  // issue time, in wait states
    u32 index = 0, passes = 0;
    Unit unit = kXdl;
    bool small = false;  // a 4 x 4 shape
    Rows result, addend;
    bool small_double() const { return unit == kDouble && small; }
  };
  struct Vector {
    u64 time = 0;
    u32 index = 0;
    Rows result;
  };
  static constexpr u32 kMatrices = 32, kVectors = 4;  // more than fit in any distance

  static constexpr u64 kStart = 64;  // initial clock, far from the zero-initialised entries
  u64 clock = kStart;
  Vector exec_write;    // last write of EXEC by a vector instruction
  u64 matrix_free = 0;  // earliest issue of the next matrix instruction
  u32 matrix_count = 0, vector_count = 0;
  Matrix matrices[kMatrices];
  Vector vectors[kVectors];
};

// One per host thread.
class HazardCheck {
 public:
  HazardCheck(const Program& program, u32 accum_offset, Findings& findings)
      : program_(program), accum_offset_(accum_offset), findings_(findings) {}

  void before_inst(HazardState& state, const Wave& wave, const Inst& inst,
                   const Operands& operands);

 private:
  using Rows = HazardState::Rows;
  Rows rows(u32 reg, u32 count) const {
    return {reg < 256 ? reg : accum_offset_ + reg - 256, count};
  }
  void check_vector(const HazardState& state, const Wave& wave, const Inst& inst,
                    const Operands& operands);
  void issue_matrix(HazardState& state, const Wave& wave, const Inst& inst,
                    const Operands& operands);
  void check_vectors(const HazardState& state, const Wave& wave, const Inst& inst,
                     const Rows& rows);
  void check_input(const HazardState& state, const Wave& wave, const Inst& inst, const Rows& rows);
  void check_addend(const HazardState& state, const Wave& wave, const Inst& inst, const Rows& rows,
                    const HazardState::Matrix& next);
  const HazardState::Matrix* writer(const HazardState& state, const Rows& rows) const;
  void require(const HazardState& state, const Wave& wave, const Inst& inst,
               const char* description, u64 time, u32 index, u32 distance);

  const Program& program_;
  u32 accum_offset_;
  Findings& findings_;
};

}  // namespace vgpu
