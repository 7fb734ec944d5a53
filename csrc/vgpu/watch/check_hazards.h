// MFMA hazards: nothing holds an instruction back that uses a matrix instruction's registers too
// early. Distances are LLVM's (GCNHazardRecognizer), in wait states between the two instructions.
#pragma once

#include "vgpu/isa/check_operands.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct HazardState {
  struct Rows {
    u32 first = 0, count = 0;
    bool overlaps(const Rows& other) const {
      return first < other.first + other.count && other.first < first + count;
    }
    bool same(const Rows& other) const { return first == other.first && count == other.count; }
  };
  enum Unit : u8 { kXdl, kSingle, kDouble };  // the single-precision unit takes f32 sources
  struct Matrix {
    u64 time = 0;  // of issue, in wait states
    u32 index = 0, passes = 0;
    Unit unit = kXdl;
    bool small = false;  // 4 x 4
    Rows result, addend;
    bool small_double() const { return unit == kDouble && small; }
  };
  struct Vector {
    u64 time = 0;
    u32 index = 0;
    Rows result;
  };
  static constexpr u32 kMatrices = 32, kVectors = 4;  // more than lie within any distance

  static constexpr u64 kStart = 64;  // far behind what did not happen, at time 0
  u64 now = kStart;
  Vector exec_write;    // the last by a vector instruction
  u64 matrix_free = 0;  // when the next matrix instruction can be issued
  u32 matrix_count = 0, vector_count = 0;
  Matrix matrices[kMatrices];
  Vector vectors[kVectors];
};

// Of one thread.
class HazardCheck {
 public:
  HazardCheck(const Program& program, u32 accum_offset, Findings& findings)
      : program_(program), accum_offset_(accum_offset), findings_(findings) {}

  void before(HazardState& state, const Wave& wave, const Inst& inst, const Operands& operands);

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
  void need(const HazardState& state, const Wave& wave, const Inst& inst, const char* what,
            u64 time, u32 index, u32 distance);

  const Program& program_;
  u32 accum_offset_;
  Findings& findings_;
};

}  // namespace vgpu
