// Finds loads with an observable completion time: another instruction accesses their registers
// before a wait that certainly covers them. Compiled code has none.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "vgpu/isa/check_operands.h"

namespace vgpu {

// Per program; the owner serialises calls.
class LoadVisibilityScan {
 public:
  explicit LoadVisibilityScan(const Program& program) : program_(program), nodes_(program.count) {}

  // Returns whether the completion time of the instruction at `index`, if it is a load, is
  // observable. Also true if the path to its wait is unknown.
  bool may_be_observed(u32 index);
  // Returns whether that holds for any load that a kernel reaches.
  bool kernel_has_observable_load(u32 entry);
  // Returns whether a kernel reaches an instruction by which it observes other workgroups. Also
  // true if the reachable code is unknown.
  bool kernel_observes_workgroups(u32 entry);

 private:
  // Properties of an instruction that a walk needs.
  struct Node {
    Operands operands;
    u32 following = 0, target = 0;  // dword indices
    // Minimum number of later instructions of the queue on any path of `walk`.
    u32 min_issued = ~u32{0};
    u32 walk = 0;
    Flow flow = Flow::kNext;
    bool is_opaque = false;  // control flow or register accesses are unknown
    bool waits = false;
    bool observes = false;  // observes other workgroups
    u16 code = 0;           // s_waitcnt immediate
    u8 result = 0;          // registers loaded
    u16 dst = 0;
    bool is_known = false, is_observed = false;  // cached result of may_be_observed()
  };
  struct Walk {
    Queue queue;
    u16 first;  // destination of the load
    u8 count;
  };
  struct ProgramPoint {
    u32 index, num_later;  // instructions of the queue issued since the load
  };

  Node& node(u32 index);
  void describe(const Inst& inst, Node& node) const;
  bool observes(u32 index, Queue queue);
  bool step(const Walk& walk, ProgramPoint point, u32& steps);
  template <class Predicate>
  bool reaches(u32 entry, const Predicate& predicate);

  const Program& program_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<ProgramPoint> open_;
  u32 walks_ = 0;
  std::unordered_map<u32, bool> observable_, observing_entries_;  // per kernel entry
};

}  // namespace vgpu
