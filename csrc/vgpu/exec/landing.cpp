#include "vgpu/exec/landing.h"

#include <algorithm>
#include <iterator>

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

constexpr u32 kMostRegisters = 4, kMostScalars = 16;

// Cycles, roughly: issue, and from there to the registers while other waves load as well.
constexpr u64 kIssue = 4, kQuarterRate = 16, kSleep = 64;
constexpr u64 kLdsLatency = 128, kScalarLatency = 200, kVectorLatency = 800;
constexpr u32 kRandomLatencies = 17;  // random ones are 0, 1, 2, 4 ... 32768

u64 cycles(const Inst& inst) {
  if (!inst.op) return kIssue;
  const u32 count = static_cast<u32>(inst.imm & 0x7f);
  switch (inst.op->category) {
    case Category::kNop:
      return kIssue * (count + 1);
    case Category::kSleep:
      return kSleep * (count + 1);
    case Category::kTrans:
      return kQuarterRate;
    default:
      return kIssue;
  }
}

bool counting(const Wave& wave) { return wave.slow & (kHolding | kFollowed | kLate); }

// The lanes that a FLAT load finds in LDS.
u64 lanes_in_lds(Wave& wave, const Inst& inst) {
  const u32* high = wave.v(inst.addr) + kLanes;
  u64 lanes = 0;
  for_lanes(wave.exec(), [&](u32 lane) {
    if (high[lane] == static_cast<u32>(kSharedBaseAddr >> 32)) lanes |= lane_bit(lane);
  });
  return lanes;
}

}  // namespace

// -------------------------------------------------------------------------------- LDS-DMA

void Arrivals::clear() {
  unused_.splice(unused_.end(), on_way_);
  arrived_ = last_;
}

Arrivals::Piece& Arrivals::next() {
  if (unused_.empty()) unused_.emplace_back();
  return unused_.front();
}

u64 Arrivals::send() {
  on_way_.splice(on_way_.end(), unused_, unused_.begin());
  return ++last_;
}

void Arrivals::arrive(u64 number) {
  for (; arrived_ < number; ++arrived_) {
    Piece& piece = on_way_.front();
    const Transfer store = piece.dwords == 1   ? store_dwords<1>
                           : piece.dwords == 3 ? store_dwords<3>
                                               : store_dwords<4>;
    store(piece.rows, piece.to.at, piece.mask);
    unused_.splice(unused_.begin(), on_way_, on_way_.begin());
  }
}

// -------------------------------------------------------------------------------- time

void Landing::begin(Wave& wave, u64 seed) {
  wave.landing = this;
  random_ = Random(seed);
  vector_.count = lds_.count = scalar_ = {};
  clock_ = matrix_free_ = scalar_due_ = 0;
  next_due_ = ~u64{0};
  unused_.insert(unused_.end(), held_.begin(), held_.end());
  held_.clear();
}

// Until the instruction can be issued.
void Landing::stall(const Wave& wave, const Inst& inst) {
  if (!inst.op || inst.op->category != Category::kMfma) return;
  const MatrixShape* shape = matrix_shape(inst);
  if (!shape) return;
  clock_ = std::max(clock_, matrix_free_);
  matrix_free_ = clock_ + 4 * matrix_passes(*shape, inst, wave.group->arch);
}

u64 Landing::latency(const Wave& wave, u64 usual) {
  return wave.slow & kLate ? (u64{1} << random_.below(kRandomLatencies)) / 2 : usual;
}

// -------------------------------------------------------------------------------- counting

// These three say whether something is over by it.

bool Landing::issue(InOrder& queue, u64 latency, u32 most) {
  const u64 before = queue.due_of(queue.count.issued);
  const bool idle = queue.count.issued == queue.count.done;
  const bool over = wait(queue, most - 1);  // a full counter holds the wave back
  ++queue.count.issued;
  queue.due_of(queue.count.issued) = std::max(clock_ + latency, idle ? 0 : before);
  return over;
}

bool Landing::wait(InOrder& queue, u32 left) {
  const u32 before = queue.count.done;
  queue.count.wait(left);
  if (queue.count.done == before) return false;
  clock_ = std::max(clock_, queue.due_of(queue.count.done));
  return true;
}

bool Landing::wait(u32 code) {
  const u32 lgkm = lgkm_wait(code);
  const bool vector = wait(vector_, vector_wait(code)), lds = wait(lds_, lgkm);
  if (lgkm || scalar_.issued == scalar_.done) return vector || lds;
  scalar_.wait(0);
  clock_ = std::max(clock_, scalar_due_);
  return true;
}

void Landing::issue(Wave& wave, Queue queue) {
  bool over = false;
  if (queue == Queue::kVector || queue == Queue::kFlat) {
    over |= issue(vector_, latency(wave, kVectorLatency), kMostVector);
  }
  if (queue == Queue::kLds || queue == Queue::kFlat) {
    over |= issue(lds_, latency(wave, kLdsLatency), kMostLgkm);
  }
  if (queue == Queue::kScalar) {
    ++scalar_.issued;
    scalar_due_ = std::max(scalar_due_, clock_ + kScalarLatency);
  }
  if (over) land_those_over(wave);
}

void Landing::before(Wave& wave, const Inst& inst) {
  stall(wave, inst);
  if (clock_ >= next_due_) land_those_due(wave);
  if (inst.queue != Queue::kNone) issue(wave, inst.queue);
  if (inst.op && inst.op->category == Category::kWait) {
    if (wait(static_cast<u32>(inst.imm))) land_those_over(wave);
  }
  clock_ += cycles(inst);
}

// The fast path counts nothing: what was issued there does not matter to what comes after.
void Landing::start(Wave& wave, Queue queue) {
  if (counting(wave)) return;  // before() has counted this instruction
  vector_.count.wait(0);
  lds_.count.wait(0);
  scalar_.wait(0);
  issue(wave, queue);
}

// -------------------------------------------------------------------------------- holding

Landing::Held& Landing::add(Wave& wave, Queue queue) {
  start(wave, queue);
  if (unused_.empty()) {
    unused_.push_back(static_cast<u32>(pool_.size()));
    pool_.emplace_back();
  }
  held_.push_back(unused_.back());
  unused_.pop_back();
  wave.set_slow(kHolding, true);
  return pool_[held_.back()];
}

// A FLAT load comes by the way of the memory that its lanes read.
void Landing::number(Wave& wave, const Inst& inst, Held& held) {
  const bool flat = inst.queue == Queue::kFlat;
  const u64 in_lds = flat ? lanes_in_lds(wave, inst) : 0;
  const bool vector = inst.queue == Queue::kVector || (flat && in_lds != wave.exec());
  const bool lds = inst.queue == Queue::kLds || (flat && in_lds);
  number(wave, held, vector, lds);
}

void Landing::number(Wave& wave, Held& held, bool vector, bool lds) {
  const bool scalar = !vector && !lds;
  held.number[0] = vector ? vector_.count.issued : 0;
  held.number[1] = lds ? lds_.count.issued : 0;
  held.number[2] = scalar ? scalar_.issued : 0;
  held.due = scalar ? clock_ + latency(wave, kScalarLatency) : 0;
  if (vector) held.due = std::max(held.due, vector_.due_of(held.number[0]));
  if (lds) held.due = std::max(held.due, lds_.due_of(held.number[1]));
  next_due_ = std::min(next_due_, held.due);
}

void Landing::run(Wave& wave, const Inst& inst) {
  const bool scalar = inst.queue == Queue::kScalar;
  const u32 most = scalar ? kMostScalars : kMostRegisters, count = inst.result;
  const bool comes = scalar ? inst.dst + count <= std::size(wave.sgpr) : wave.exec() != 0;
  if (!count || count > most || !comes) return inst.op->exec(wave, inst);
  u32* registers = scalar ? &wave.sgpr[inst.dst] : wave.va(inst.dst);
  const u64 bytes = u64{count} * (scalar ? 1 : kLanes) * sizeof(u32);
  alignas(64) u32 old[kMostRegisters * kLanes];
  Held& held = add(wave, inst.queue);
  held.place = scalar ? Place::kScalar : Place::kVector;
  held.first = inst.dst;
  held.count = static_cast<u8>(count);
  held.mask = wave.exec();
  number(wave, inst, held);  // the load may overwrite its address
  std::memcpy(old, registers, bytes);
  inst.op->exec(wave, inst);
  std::memcpy(held.data, registers, bytes);
  std::memcpy(registers, old, bytes);
}

void Landing::hold(Wave& wave, u64 arrival) {
  Held& held = add(wave, Queue::kVector);
  held.place = Place::kLds;
  held.arrival = arrival;
  number(wave, held, true, false);
}

bool Landing::overlaps(const Inst& inst) const {
  const Place place = inst.queue == Queue::kScalar ? Place::kScalar : Place::kVector;
  for (const u32 at : held_) {
    const Held& held = pool_[at];
    if (held.place != place) continue;
    if (inst.dst < held.first + held.count && held.first < inst.dst + inst.result) return true;
  }
  return false;
}

// -------------------------------------------------------------------------------- landing

bool Landing::over(const Held& held) const {
  return held.number[0] <= vector_.count.done && held.number[1] <= lds_.count.done &&
         held.number[2] <= scalar_.done;
}

void Landing::land(Wave& wave, const Held& held) {
  if (held.place == Place::kScalar) {
    std::memcpy(&wave.sgpr[held.first], held.data, held.count * sizeof(u32));
  } else if (held.place == Place::kLds) {
    wave.group->arrivals->arrive(held.arrival);
  } else {
    u32* rows = wave.va(held.first);
    for (u32 d = 0; d < held.count; ++d) {
      for_lanes(held.mask,
                [&](u32 lane) { rows[d * kLanes + lane] = held.data[d * kLanes + lane]; });
    }
  }
}

void Landing::land_those_over(Wave& wave) {
  u32 left = 0;
  next_due_ = ~u64{0};
  for (const u32 at : held_) {
    const Held& held = pool_[at];
    if (over(held)) {
      land(wave, held);
      unused_.push_back(at);
    } else {
      next_due_ = std::min(next_due_, held.due);
      held_[left++] = at;
    }
  }
  held_.resize(left);
  if (!left) wave.set_slow(kHolding, false);
}

// Loads of one queue come in order, scalar ones in any.
void Landing::land_those_due(Wave& wave) {
  const auto reach = [](WaitCounter& counter, u32 number) {
    if (number) counter.wait(counter.issued - number);
  };
  for (const u32 at : held_) {
    Held& held = pool_[at];
    if (held.due > clock_) continue;
    reach(vector_.count, held.number[0]);
    reach(lds_.count, held.number[1]);
    held.number[2] = 0;
  }
  land_those_over(wave);
}

void Landing::all(Wave& wave) {
  vector_.count.wait(0);
  lds_.count.wait(0);
  scalar_.wait(0);
  land_those_over(wave);
}

void run_late(Wave& wave, const Inst& inst) { wave.landing->run(wave, inst); }

}  // namespace vgpu
