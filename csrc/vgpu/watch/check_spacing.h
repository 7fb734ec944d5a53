// Other hazards that hardware leaves to the program: the data of a wide store that the next vector
// instructions overwrite, and results of dot products. Distances are LLVM's, as of check_hazards.h.
#pragma once

#include "vgpu/isa/check_operands.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct SpacingState {
  struct Entry {
    u64 until = 0;  // the last time at which it is a hazard
    u32 index = 0, first = 0, count = 0;
    const OpInfo* op = nullptr;
    bool overlaps(u32 row, u32 rows) const { return first < row + rows && row < first + count; }
  };
  static constexpr u32 kEntries = 4;  // more than lie within any distance

  u64 now = 0;
  u64 until = 0;  // of all entries
  Entry stores[kEntries], dots[kEntries];
};

// Of one thread.
class SpacingCheck {
 public:
  SpacingCheck(const Program& program, u32 accum_offset, Findings& findings)
      : program_(program), accum_offset_(accum_offset), findings_(findings) {}

  void before(SpacingState& state, const Wave& wave, const Inst& inst, const Operands& operands);

 private:
  using Entry = SpacingState::Entry;
  u32 row(u32 reg) const { return reg < 256 ? reg : accum_offset_ + reg - 256; }
  void check(const SpacingState& state, const Wave& wave, const Inst& inst,
             const Operands& operands);
  void note(SpacingState& state, Entry (&list)[SpacingState::kEntries], const Inst& inst, u32 reg,
            u32 count, u32 distance);
  void report(const SpacingState& state, const Wave& wave, const Inst& inst, const char* what,
              const Entry& entry);

  const Program& program_;
  u32 accum_offset_;
  Findings& findings_;
};

}  // namespace vgpu
