#include "vgpu/exec/landing_scan.h"

#include "vgpu/isa/wait_counter.h"

namespace vgpu {
namespace {

constexpr u32 kMostSteps = 16'384;  // of a walk; what is not found by then is taken as unknown

bool meet(const RegRange& range, u32 first, u32 count) {
  return range.first < first + count && first < u32{range.first} + range.count;
}

template <u32 kMost>
bool meet(const RegList<kMost>& list, u32 first, u32 count) {
  for (const RegRange& range : list) {
    if (meet(range, first, count)) return true;
  }
  return false;
}

// Loads of one queue come in order: the later one's value stays, whenever they land.
bool in_order(Queue a, Queue b) { return a == b && a != Queue::kScalar; }

bool touches(const Operands& operands, Queue queue, u32 first, u32 count) {
  if (queue == Queue::kScalar) {
    return meet(operands.sreads, first, count) || meet(operands.swrites, first, count);
  }
  if (meet(operands.vreads, first, count)) return true;
  return meet(operands.vwrites, first, count) && !in_order(operands.queue, queue);
}

bool covers(Queue queue, u32 code, u32 later) {
  if (queue == Queue::kVector) return vector_wait(code) <= later;
  if (queue == Queue::kLds) return lgkm_wait(code) <= later;
  return lgkm_wait(code) == 0;
}

bool joins(Queue queue, Queue other) {
  return other == queue || (other == Queue::kFlat && queue != Queue::kScalar);
}

// A full counter holds the wave back until the oldest is over.
bool full(Queue queue, u32 later) {
  return (queue == Queue::kVector && later >= kMostVector) ||
         (queue == Queue::kLds && later >= kMostLgkm);
}

}  // namespace

void LandingScan::describe(const Inst& inst, Node& node) const {
  if (!inst.op) {  // stops the launch
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
  node.observes = observes_others(inst);
  node.waits = inst.op->category == Category::kWait;
  node.flow = inst.op->flow;
  node.unknown =
      inst.op->flags & kKnownAtRunTime || node.flow == Flow::kCall || node.flow == Flow::kIndirect;
}

LandingScan::Node& LandingScan::node(u32 index) {
  std::unique_ptr<Node>& slot = nodes_[index];
  if (!slot) {
    slot = std::make_unique<Node>();
    Inst inst;
    decode(program_.arch, program_.words, program_.count, index, inst);
    describe(inst, *slot);
  }
  return *slot;
}

// From `place` to a branch or an end. True: the load's registers are touched, or nobody knows.
bool LandingScan::step(const Walk& walk, Place place, u32& steps) {
  while (true) {
    if (place.index >= program_.count || ++steps > kMostSteps) return true;
    Node& at = node(place.index);
    if (at.walk == walks_ && at.least <= place.later) return false;  // has been here
    at.walk = walks_;
    at.least = place.later;
    if (at.unknown || touches(at.operands, walk.queue, walk.first, walk.count)) {
      return true;
    }
    if (at.flow == Flow::kEnd || (at.waits && covers(walk.queue, at.code, place.later))) {
      return false;
    }
    if (joins(walk.queue, at.operands.queue) && full(walk.queue, ++place.later)) return false;
    if (at.flow == Flow::kBranch) open_.push_back({at.target, place.later});
    place.index = at.flow == Flow::kJump ? at.target : at.following;
  }
}

bool LandingScan::seen(u32 index, Queue queue) {
  const Node& load = node(index);
  const Walk walk = {queue, load.dst, load.result};
  u32 steps = 0;
  ++walks_;
  open_.assign(1, {load.following, 0});
  while (!open_.empty()) {
    const Place place = open_.back();
    open_.pop_back();
    if (step(walk, place, steps)) return true;
  }
  return false;
}

// A FLAT load comes from memory or from LDS.
bool LandingScan::may_be_seen(u32 index) {
  Node& load = node(index);
  if (load.known || !load.result) return load.seen;
  const Queue queue = load.operands.queue;
  load.known = true;
  load.seen = queue == Queue::kFlat ? seen(index, Queue::kVector) || seen(index, Queue::kLds)
                                    : seen(index, queue);
  return load.seen;
}

// Whether an instruction that a kernel reaches is one of those asked for.
template <class Is>
bool LandingScan::reaches(u32 entry, const Is& is) {
  std::vector<bool> reached(program_.count);
  std::vector<u32> open = {entry};
  while (!open.empty()) {
    const u32 index = open.back();
    open.pop_back();
    if (index >= program_.count || reached[index]) continue;
    reached[index] = true;
    const Node& at = node(index);
    if (is(index, at)) return true;
    if (at.flow == Flow::kEnd) continue;
    if (at.flow == Flow::kBranch || at.flow == Flow::kJump) open.push_back(at.target);
    if (at.flow != Flow::kJump) open.push_back(at.following);
  }
  return false;
}

bool LandingScan::kernel_has_some(u32 entry) {
  const auto [found, fresh] = late_.try_emplace(entry, false);
  if (fresh) {
    found->second = reaches(entry, [this](u32 index, const Node&) { return may_be_seen(index); });
  }
  return found->second;
}

bool LandingScan::kernel_observes_others(u32 entry) {
  const auto [found, fresh] = observing_.try_emplace(entry, false);
  if (fresh) {
    found->second = reaches(entry, [](u32, const Node& at) {
      return at.observes || at.flow == Flow::kCall || at.flow == Flow::kIndirect;
    });
  }
  return found->second;
}

}  // namespace vgpu
