// Which loads must land late: those whose registers another instruction touches before a wait that
// is sure to cover them. Code of compilers has none.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "vgpu/isa/check_operands.h"

namespace vgpu {

// Of a program; its owner serialises.
class LandingScan {
 public:
  explicit LandingScan(const Program& program) : program_(program), nodes_(program.count) {}

  // Whether it can be seen when the instruction at `index`, if it is a load, lands. True also where
  // the way to its wait is not known.
  bool may_be_seen(u32 index);
  // Whether that holds for some load that a kernel reaches.
  bool kernel_has_some(u32 entry);
  // Whether a kernel reaches an instruction by which it learns of other workgroups. True also where
  // it is not known what it reaches.
  bool kernel_observes_others(u32 entry);

 private:
  // What a walk needs to know of an instruction.
  struct Node {
    Operands operands;
    u32 following = 0, target = 0;  // dword indices
    u32 least = ~u32{0};            // instructions of the queue before it, on the ways of `walk`
    u32 walk = 0;
    Flow flow = Flow::kNext;
    bool unknown = false;  // where it goes on, or what it touches
    bool waits = false;
    bool observes = false;  // other workgroups
    u16 code = 0;           // of the wait
    u8 result = 0;          // of a load
    u16 dst = 0;
    bool known = false, seen = false;  // what may_be_seen() gives
  };
  struct Walk {
    Queue queue;
    u16 first;  // what is loaded
    u8 count;
  };
  struct Place {
    u32 index, later;  // instructions of the queue since the load
  };

  Node& node(u32 index);
  void describe(const Inst& inst, Node& node) const;
  bool seen(u32 index, Queue queue);
  bool step(const Walk& walk, Place place, u32& steps);
  template <class Is>
  bool reaches(u32 entry, const Is& is);

  const Program& program_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Place> open_;
  u32 walks_ = 0;
  std::unordered_map<u32, bool> late_, observing_;  // kernels, by entry
};

}  // namespace vgpu
