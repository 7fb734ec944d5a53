// Other hazards that hardware does not resolve: vector instructions that overwrite the data of a
// preceding wide store, and results of dot products. Distances are LLVM's, as in check_hazards.h.
#pragma once

#include "vgpu/isa/check_operands.h"
#include "vgpu/watch/check_findings.h"

namespace vgpu {

struct SpacingState {
  struct Entry {
    u64 end_time = 0;  // last time at which it is a hazard
    u32 index = 0, first = 0, count = 0;
    const OpInfo* op = nullptr;
    bool overlaps(u32 row, u32 rows) const { return first < row + rows && row < first + count; }
  };
  static constexpr u32 kEntries = 4;  // more than fit in any distance

  u64 clock = 0;
  u64 end_time = 0;  // maximum over all entries
  Entry stores[kEntries], dots[kEntries];
};

// One per host thread.
class SpacingCheck {
 public:
  SpacingCheck(const Program& program, u32 accum_offset, Findings& findings)
      : program_(program), accum_offset_(accum_offset), findings_(findings) {}

  void before_inst(SpacingState& state, const Wave& wave, const Inst& inst,
                   const Operands& operands);

 private:
  using Entry = SpacingState::Entry;
  u32 row(u32 reg) const { return reg < 256 ? reg : accum_offset_ + reg - 256; }
  void check(const SpacingState& state, const Wave& wave, const Inst& inst,
             const Operands& operands);
  void note(SpacingState& state, Entry (&list)[SpacingState::kEntries], const Inst& inst, u32 reg,
            u32 count, u32 distance);
  void report(const SpacingState& state, const Wave& wave, const Inst& inst,
              const char* description, const Entry& entry);

  const Program& program_;
  u32 accum_offset_;
  Findings& findings_;
};

}  // namespace vgpu
