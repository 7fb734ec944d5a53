#include "vgpu/exec/load_visibility.h"

#include "vgpu/isa/wait_counter.h"

namespace vgpu {
namespace {

constexpr u32 kMaxSteps = 16'384;  // per walk; beyond this the load counts as observable

bool overlap(const RegRange& range, u32 first, u32 count) {
  return range.first < first + count && first < u32{range.first} + range.count;
}

template <u32 kCapacity>
bool overlap(const RegList<kCapacity>& list, u32 first, u32 count) {
  for (const RegRange& range : list) {
    if (overlap(range, first, count)) return true;
  }
  return false;
}

// Loads of one queue complete in order: the later value remains, whenever they complete.
bool in_order(Queue a, Queue b) { return a == b && a != Queue::kScalar; }

bool touches(const Operands& operands, Queue queue, u32 first, u32 count) {
  if (queue == Queue::kScalar) {
    return overlap(operands.sreads, first, count) || overlap(operands.swrites, first, count);
  }
  if (overlap(operands.vreads, first, count)) return true;
  return overlap(operands.vwrites, first, count) && !in_order(operands.queue, queue);
}

bool covers(Queue queue, u32 code, u32 num_later) {
  if (queue == Queue::kVector) return vector_wait(code) <= num_later;
  if (queue == Queue::kLds) return lgkm_wait(code) <= num_later;
  return lgkm_wait(code) == 0;
}

bool joins(Queue queue, Queue rhs) {
  return rhs == queue || (rhs == Queue::kFlat && queue != Queue::kScalar);
}

// A full counter stalls the wave until the oldest instruction has completed.
bool full(Queue queue, u32 num_later) {
  return (queue == Queue::kVector && num_later >= kMaxVector) ||
         (queue == Queue::kLds && num_later >= kMaxLgkm);
}

}  // namespace

void LoadVisibilityScan::describe(const Inst& inst, Node& node) const {
  if (!inst.op) {  // an unknown instruction ends the launch
    node.flow = Flow::kEnd;
    return;
  }
  node.following = inst.index + inst.dwords;
  node.operands = operands_of(inst);
  node.dst = inst.dst;
  if (is_memory(inst.format)) node.result = result_dwords(node.operands);
  if (inst.format == Format::kSopp) {
    node.target = node.following + static_cast<u32>(inst.imm);
    node.code = static_cast<u16>(inst.imm);
  }
  node.observes = observes_other_workgroups(inst);
  node.waits = inst.op->category == Category::kWait;
  node.flow = inst.op->flow;
  node.is_opaque =
      inst.op->flags & kDynamicOperands || node.flow == Flow::kCall || node.flow == Flow::kIndirect;
}

LoadVisibilityScan::Node& LoadVisibilityScan::node(u32 index) {
  std::unique_ptr<Node>& slot = nodes_[index];
  if (!slot) {
    slot = std::make_unique<Node>();
    Inst inst;
    decode(program_.arch, program_.words, program_.count, index, inst);
    describe(inst, *slot);
  }
  return *slot;
}

// Walks from `point` to a branch or an end. Returns true if the load's registers are accessed, or
// control flow is unknown.
bool LoadVisibilityScan::step(const Walk& walk, ProgramPoint point, u32& steps) {
  while (true) {
    if (point.index >= program_.count || ++steps > kMaxSteps) return true;
    Node& current = node(point.index);
    if (current.walk == walks_ && current.min_issued <= point.num_later)
      return false;  // already visited
    current.walk = walks_;
    current.min_issued = point.num_later;
    if (current.is_opaque || touches(current.operands, walk.queue, walk.first, walk.count)) {
      return true;
    }
    if (current.flow == Flow::kEnd ||
        (current.waits && covers(walk.queue, current.code, point.num_later))) {
      return false;
    }
    if (joins(walk.queue, current.operands.queue) && full(walk.queue, ++point.num_later))
      return false;
    if (current.flow == Flow::kBranch) open_.push_back({current.target, point.num_later});
    point.index = current.flow == Flow::kJump ? current.target : current.following;
  }
}

bool LoadVisibilityScan::observes(u32 index, Queue queue) {
  const Node& load = node(index);
  const Walk walk = {queue, load.dst, load.result};
  u32 steps = 0;
  ++walks_;
  open_.assign(1, {load.following, 0});
  while (!open_.empty()) {
    const ProgramPoint point = open_.back();
    open_.pop_back();
    if (step(walk, point, steps)) return true;
  }
  return false;
}

// A FLAT load may complete through the queue of memory or of LDS.
bool LoadVisibilityScan::may_be_observed(u32 index) {
  Node& load = node(index);
  if (load.is_known || !load.result) return load.is_observed;
  const Queue queue = load.operands.queue;
  load.is_known = true;
  load.is_observed = queue == Queue::kFlat
                         ? observes(index, Queue::kVector) || observes(index, Queue::kLds)
                         : observes(index, queue);
  return load.is_observed;
}

// Returns whether a kernel reaches an instruction that satisfies the predicate.
template <class Predicate>
bool LoadVisibilityScan::reaches(u32 entry, const Predicate& predicate) {
  std::vector<bool> reached(program_.count);
  std::vector<u32> open = {entry};
  while (!open.empty()) {
    const u32 index = open.back();
    open.pop_back();
    if (index >= program_.count || reached[index]) continue;
    reached[index] = true;
    const Node& current = node(index);
    if (predicate(index, current)) return true;
    if (current.flow == Flow::kEnd) continue;
    if (current.flow == Flow::kBranch || current.flow == Flow::kJump)
      open.push_back(current.target);
    if (current.flow != Flow::kJump) open.push_back(current.following);
  }
  return false;
}

bool LoadVisibilityScan::kernel_has_observable_load(u32 entry) {
  const auto [it, inserted] = observable_.try_emplace(entry, false);
  if (inserted) {
    it->second = reaches(entry, [this](u32 index, const Node&) { return may_be_observed(index); });
  }
  return it->second;
}

bool LoadVisibilityScan::kernel_observes_workgroups(u32 entry) {
  const auto [it, inserted] = observing_entries_.try_emplace(entry, false);
  if (inserted) {
    it->second = reaches(entry, [](u32, const Node& current) {
      return current.observes || current.flow == Flow::kCall || current.flow == Flow::kIndirect;
    });
  }
  return it->second;
}

}  // namespace vgpu
