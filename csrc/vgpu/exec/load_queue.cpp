#include "vgpu/exec/load_queue.h"

#include <algorithm>
#include <iterator>

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

constexpr u32 kMaxRegisters = 4, kMaxScalars = 16;

// Approximate cycles: issue, and latency from issue to writeback under load.
constexpr u64 kIssue = 4, kQuarterRate = 16, kSleep = 64;
constexpr u64 kLdsLatency = 128, kScalarLatency = 200, kVectorLatency = 800;
constexpr u32 kRandomLatencies = 17;  // random latencies are 0, 1, 2, 4 ... 32768

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

bool counting(const Wave& wave) {
  return wave.slow & (kLoadsInFlight | kTrackLoads | kRandomCompletion);
}

// Returns the lanes of a FLAT load that access LDS.
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

void LdsDmaQueue::clear() {
  unused_.splice(unused_.end(), in_flight_);
  num_completed_ = last_number_;
}

LdsDmaQueue::DmaTransfer& LdsDmaQueue::next() {
  if (unused_.empty()) unused_.emplace_back();
  return unused_.front();
}

u64 LdsDmaQueue::send() {
  in_flight_.splice(in_flight_.end(), unused_, unused_.begin());
  return ++last_number_;
}

void LdsDmaQueue::complete(u64 number) {
  for (; num_completed_ < number; ++num_completed_) {
    DmaTransfer& transfer = in_flight_.front();
    const Transfer store = transfer.dwords == 1   ? store_dwords<1>
                           : transfer.dwords == 3 ? store_dwords<3>
                                                  : store_dwords<4>;
    store(transfer.rows, transfer.dst.lane, transfer.mask);
    unused_.splice(unused_.begin(), in_flight_, in_flight_.begin());
  }
}

// -------------------------------------------------------------------------------- time

void LoadQueue::begin(Wave& wave, u64 seed) {
  wave.load_queue = this;
  random_ = Random(seed);
  vector_.count = lds_.count = scalar_ = {};
  clock_ = matrix_free_ = scalar_due_clk_ = 0;
  next_due_clk_ = ~u64{0};
  unused_.insert(unused_.end(), pending_.begin(), pending_.end());
  pending_.clear();
}

// Advances the clock to the earliest issue of the instruction.
void LoadQueue::stall(const Wave& wave, const Inst& inst) {
  if (!inst.op || inst.op->category != Category::kMfma) return;
  const MatrixShape* shape = matrix_shape(inst);
  if (!shape) return;
  clock_ = std::max(clock_, matrix_free_);
  matrix_free_ = clock_ + 4 * matrix_passes(*shape, inst, wave.group->arch);
}

u64 LoadQueue::latency(const Wave& wave, u64 default_latency) {
  return wave.slow & kRandomCompletion ? (u64{1} << random_.next_below(kRandomLatencies)) / 2
                                       : default_latency;
}

// -------------------------------------------------------------------------------- counting

// Each of these returns whether a pending load has completed.

bool LoadQueue::issue(OrderedQueue& queue, u64 latency, u32 max_in_flight) {
  const u64 prev_due = queue.due_clk_of(queue.count.issued);
  const bool idle = queue.count.issued == queue.count.done;
  const bool completed = wait(queue, max_in_flight - 1);  // a full counter stalls the wave
  ++queue.count.issued;
  queue.due_clk_of(queue.count.issued) = std::max(clock_ + latency, idle ? 0 : prev_due);
  return completed;
}

bool LoadQueue::wait(OrderedQueue& queue, u32 num_left) {
  const u32 prev_done = queue.count.done;
  queue.count.wait(num_left);
  if (queue.count.done == prev_done) return false;
  clock_ = std::max(clock_, queue.due_clk_of(queue.count.done));
  return true;
}

bool LoadQueue::wait(u32 code) {
  const u32 lgkm = lgkm_wait(code);
  const bool vector = wait(vector_, vector_wait(code)), lds = wait(lds_, lgkm);
  if (lgkm || scalar_.issued == scalar_.done) return vector || lds;
  scalar_.wait(0);
  clock_ = std::max(clock_, scalar_due_clk_);
  return true;
}

void LoadQueue::issue(Wave& wave, Queue queue) {
  bool completed = false;
  if (queue == Queue::kVector || queue == Queue::kFlat) {
    completed |= issue(vector_, latency(wave, kVectorLatency), kMaxVector);
  }
  if (queue == Queue::kLds || queue == Queue::kFlat) {
    completed |= issue(lds_, latency(wave, kLdsLatency), kMaxLgkm);
  }
  if (queue == Queue::kScalar) {
    ++scalar_.issued;
    scalar_due_clk_ = std::max(scalar_due_clk_, clock_ + kScalarLatency);
  }
  if (completed) complete_waited(wave);
}

void LoadQueue::before_inst(Wave& wave, const Inst& inst) {
  stall(wave, inst);
  if (clock_ >= next_due_clk_) complete_due(wave);
  if (inst.queue != Queue::kNone) issue(wave, inst.queue);
  if (inst.op && inst.op->category == Category::kWait) {
    if (wait(static_cast<u32>(inst.imm))) complete_waited(wave);
  }
  clock_ += cycles(inst);
}

// Starts tracking. The fast path does not count, because its earlier instructions do not affect
// later ones.
void LoadQueue::start(Wave& wave, Queue queue) {
  if (counting(wave)) return;  // before_inst() has counted this instruction
  vector_.count.wait(0);
  lds_.count.wait(0);
  scalar_.wait(0);
  issue(wave, queue);
}

// -------------------------------------------------------------------------------- deferral

LoadQueue::PendingLoad& LoadQueue::add(Wave& wave, Queue queue) {
  start(wave, queue);
  if (unused_.empty()) {
    unused_.push_back(static_cast<u32>(pool_.size()));
    pool_.emplace_back();
  }
  pending_.push_back(unused_.back());
  unused_.pop_back();
  wave.set_slow(kLoadsInFlight, true);
  return pool_[pending_.back()];
}

// A FLAT load completes with the queue of the memory that its lanes access.
void LoadQueue::number(Wave& wave, const Inst& inst, PendingLoad& load) {
  const bool flat = inst.queue == Queue::kFlat;
  const u64 in_lds = flat ? lanes_in_lds(wave, inst) : 0;
  const bool vector = inst.queue == Queue::kVector || (flat && in_lds != wave.exec());
  const bool lds = inst.queue == Queue::kLds || (flat && in_lds);
  number(wave, load, vector, lds);
}

void LoadQueue::number(Wave& wave, PendingLoad& load, bool vector, bool lds) {
  const bool scalar = !vector && !lds;
  load.number[0] = vector ? vector_.count.issued : 0;
  load.number[1] = lds ? lds_.count.issued : 0;
  load.number[2] = scalar ? scalar_.issued : 0;
  load.due_clk = scalar ? clock_ + latency(wave, kScalarLatency) : 0;
  if (vector) load.due_clk = std::max(load.due_clk, vector_.due_clk_of(load.number[0]));
  if (lds) load.due_clk = std::max(load.due_clk, lds_.due_clk_of(load.number[1]));
  next_due_clk_ = std::min(next_due_clk_, load.due_clk);
}

void LoadQueue::run(Wave& wave, const Inst& inst) {
  const bool scalar = inst.queue == Queue::kScalar;
  const u32 max_count = scalar ? kMaxScalars : kMaxRegisters, count = inst.result;
  const bool has_effect = scalar ? inst.dst + count <= std::size(wave.sgpr) : wave.exec() != 0;
  if (!count || count > max_count || !has_effect) return inst.op->exec(wave, inst);
  u32* registers = scalar ? &wave.sgpr[inst.dst] : wave.va(inst.dst);
  const u64 bytes = u64{count} * (scalar ? 1 : kLanes) * sizeof(u32);
  alignas(64) u32 old[kMaxRegisters * kLanes];
  PendingLoad& load = add(wave, inst.queue);
  load.dst_file = scalar ? DstFile::kScalar : DstFile::kVector;
  load.first = inst.dst;
  load.count = static_cast<u8>(count);
  load.mask = wave.exec();
  number(wave, inst, load);  // the load may overwrite its address register
  std::memcpy(old, registers, bytes);
  inst.op->exec(wave, inst);
  std::memcpy(load.data, registers, bytes);
  std::memcpy(registers, old, bytes);
}

void LoadQueue::hold(Wave& wave, u64 dma_number) {
  PendingLoad& load = add(wave, Queue::kVector);
  load.dst_file = DstFile::kLds;
  load.dma_number = dma_number;
  number(wave, load, true, false);
}

bool LoadQueue::overlaps(const Inst& inst) const {
  const DstFile file = inst.queue == Queue::kScalar ? DstFile::kScalar : DstFile::kVector;
  for (const u32 slot : pending_) {
    const PendingLoad& load = pool_[slot];
    if (load.dst_file != file) continue;
    if (inst.dst < load.first + load.count && load.first < inst.dst + inst.result) return true;
  }
  return false;
}

// -------------------------------------------------------------------------------- completion

bool LoadQueue::is_complete(const PendingLoad& load) const {
  return load.number[0] <= vector_.count.done && load.number[1] <= lds_.count.done &&
         load.number[2] <= scalar_.done;
}

void LoadQueue::complete(Wave& wave, const PendingLoad& load) {
  if (load.dst_file == DstFile::kScalar) {
    std::memcpy(&wave.sgpr[load.first], load.data, load.count * sizeof(u32));
  } else if (load.dst_file == DstFile::kLds) {
    wave.group->lds_dma_queue->complete(load.dma_number);
  } else {
    u32* rows = wave.va(load.first);
    for (u32 d = 0; d < load.count; ++d) {
      for_lanes(load.mask,
                [&](u32 lane) { rows[d * kLanes + lane] = load.data[d * kLanes + lane]; });
    }
  }
}

void LoadQueue::complete_waited(Wave& wave) {
  u32 num_left = 0;
  next_due_clk_ = ~u64{0};
  for (const u32 slot : pending_) {
    const PendingLoad& load = pool_[slot];
    if (is_complete(load)) {
      complete(wave, load);
      unused_.push_back(slot);
    } else {
      next_due_clk_ = std::min(next_due_clk_, load.due_clk);
      pending_[num_left++] = slot;
    }
  }
  pending_.resize(num_left);
  if (!num_left) wave.set_slow(kLoadsInFlight, false);
}

// Loads of one queue complete in order, scalar loads in any order.
void LoadQueue::complete_due(Wave& wave) {
  const auto reach = [](WaitCounter& counter, u32 number) {
    if (number) counter.wait(counter.issued - number);
  };
  for (const u32 slot : pending_) {
    PendingLoad& load = pool_[slot];
    if (load.due_clk > clock_) continue;
    reach(vector_.count, load.number[0]);
    reach(lds_.count, load.number[1]);
    load.number[2] = 0;
  }
  complete_waited(wave);
}

void LoadQueue::complete_all(Wave& wave) {
  vector_.count.wait(0);
  lds_.count.wait(0);
  scalar_.wait(0);
  complete_waited(wave);
}

void run_delayed(Wave& wave, const Inst& inst) { wave.load_queue->run(wave, inst); }

}  // namespace vgpu
