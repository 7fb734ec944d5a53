#include "vgpu/watch/check_lds.h"

#include <algorithm>

#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

constexpr u32 kLogEntries = 1 << 14;
constexpr u32 kMaxNumber = (1u << 26) - 1;  // a stamp has 27 bits for the number

// Layout of a stamp: wave 3:0, is a signal 4, number 30:5. Bit 31: the wave is known, the time is
// not.
constexpr u32 kUnnumbered = u32{1} << 31;
constexpr u32 make_stamp(u32 number, bool is_signal, u32 wave) {
  return number << 5 | u32{is_signal} << 4 | wave;
}
constexpr u32 wave_of(u32 stamp) { return stamp & 15; }
constexpr bool is_signal_stamp(u32 stamp) { return stamp >> 4 & 1; }
constexpr u32 number_of(u32 stamp) { return stamp >> 5; }

// Returns whether the access with `stamp` happens before the current access of `wave`.
bool ordered(const LdsState& state, u32 wave, u32 stamp) {
  if (number_of(stamp) <= state.floor[wave] || wave_of(stamp) == wave) return true;
  return number_of(stamp) <= state.clock[wave][wave_of(stamp)];
}

void set_floor(LdsState& state, u32 wave) {
  u32 min_number = ~u32{0};
  for (u32 w = 0; w < state.wave_count; ++w) {
    if (w != wave) min_number = std::min(min_number, state.clock[wave][w]);
  }
  state.floor[wave] = min_number;
}

void drop_completed(std::deque<LdsState::Stamped>& list, u32 done) {
  while (!list.empty() && list.front().queue_number <= done) list.pop_front();
}

// The cells that an access covers.
struct Cells {
  u32 first, count;
  Cells(const LdsState& state, u32 offset, u32 bytes)
      : first(offset >> state.shift), count(bytes >> state.shift) {}
  u32 end() const { return first + count; }
};

// kCount is the number of cells if it is a common one, so that loops unroll; 0: any number.
template <u32 kCount>
u32 latest(const u32* stamps, u32 count) {
  u32 max_stamp = 0;
  for (u32 i = 0; i < (kCount ? kCount : count); ++i) max_stamp = std::max(max_stamp, stamps[i]);
  return max_stamp;
}

// Refines the cells from dwords to bytes.
void refine(LdsState& state) {
  for (std::vector<u32>* list : {&state.writes, &state.reads, &state.readers}) {
    std::vector<u32> bytes(list->size() * 4);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = (*list)[i / 4];
    *list = std::move(bytes);
  }
  state.shift = 0;
}

bool whole_dwords(const Access& access) {
  u64 low = access.bytes;
  for_lanes(access.mask, [&](u32 lane) { low |= access.addresses[lane]; });  // LDS is page-aligned
  return low % 4 == 0;
}

// Returns the waves that have read this cell since the last barrier.
u32 readers_of(const LdsState& state, u32 cell) {
  const u32 entry = state.readers[cell];
  return entry >> 16 == state.epoch ? entry & 0xffff : 0;
}

template <u32 kCount>
void add_readers(LdsState& state, const Cells& cells, u32 wave) {
  const u32 epoch_bits = state.epoch << 16, bit = 1u << wave;
  u32* readers = &state.readers[cells.first];
  for (u32 i = 0; i < (kCount ? kCount : cells.count); ++i) {
    const u32 same_epoch = (readers[i] ^ epoch_bits) >> 16 ? 0 : readers[i] & 0xffff;
    readers[i] = epoch_bits | same_epoch | bit;
  }
}

template <u32 kCount>
void set_stamps(u32* stamps, u32 count, u32 stamp) {
  for (u32 i = 0; i < (kCount ? kCount : count); ++i) stamps[i] = stamp;
}

// Calls body(cells) for the cells of a recorded access, once if its lanes are contiguous, as in
// LDS-DMA.
template <class Body>
void for_cells(const LdsState& state, const LdsState::Stamped& access, Body body) {
  u32 differs = ~access.mask ? 1 : 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    differs |= access.offsets[lane] ^ (access.offsets[0] + lane * access.bytes);
  }
  if (!differs) return body(Cells(state, access.offsets[0], kLanes * access.bytes));
  for_lanes(access.mask, [&](u32 lane) { body(Cells(state, access.offsets[lane], access.bytes)); });
}

}  // namespace

// Stamps increase from workgroup to workgroup, so that nothing has to be cleared.
void LdsCheck::begin(LdsState& state, u32 lds_bytes, u32 wave_count) {
  state.wave_count = std::min(wave_count, kMaxWaves);
  const std::size_t cells = (lds_bytes >> state.shift) + 1;
  if (state.writes.size() < cells || state.number > kMaxNumber / 2) {
    state.writes.assign(std::max(state.writes.size(), cells), 0);
    state.reads.assign(state.writes.size(), 0);
    state.readers.assign(state.writes.size(), 0);
    state.number = 0;
  }
  if (state.log.empty()) state.log.resize(kLogEntries);
  next_epoch(state);
  for (u32 w = 0; w < kMaxWaves; ++w) {
    state.dma_in_flight[w].clear();
    state.in_flight[w].clear();
  }
}

void LdsCheck::next_epoch(LdsState& state) {
  if (++state.epoch > 0xffff) {
    std::fill(state.readers.begin(), state.readers.end(), 0);
    state.epoch = 1;
  }
  state.has_signal = false;
  for (u32 w = 0; w < state.wave_count; ++w) {
    for (u32 peer = 0; peer < state.wave_count; ++peer) state.clock[w][peer] = state.number;
    state.floor[w] = state.number;
    state.sync[w] = state.number;
  }
}

u32 LdsCheck::next_stamp(LdsState& state, bool is_signal, u32 wave, u32 index) {
  if (state.number < kMaxNumber) ++state.number;
  state.log[state.number % kLogEntries] = index;
  return make_stamp(state.number, is_signal, wave);
}

// Accesses still in flight count as made after the barrier.
void LdsCheck::restamp_in_flight(LdsState& state, u32 wave, const WaitState& waits) {
  drop_completed(state.dma_in_flight[wave], waits.vector.done);
  drop_completed(state.in_flight[wave], waits.lds.done);
  for (LdsState::Stamped& access : state.dma_in_flight[wave]) restamp(state, wave, access);
  for (LdsState::Stamped& access : state.in_flight[wave]) restamp(state, wave, access);
}

void LdsCheck::restamp(LdsState& state, u32 wave, LdsState::Stamped& access) {
  const u32 old = access.stamp;
  access.stamp = next_stamp(state, is_signal_stamp(old), wave, access.index);
  const u32 new_stamp = access.stamp;
  u32* const stamps = access.is_write ? state.writes.data() : state.reads.data();
  for_cells(state, access, [&](const Cells& cells) {
    for (u32 c = cells.first; c < cells.end(); ++c)
      stamps[c] = stamps[c] == old ? new_stamp : stamps[c];
    if (!access.is_write) add_readers<0>(state, cells, wave);
  });
}

void LdsCheck::signal(LdsState& state, u32 wave) {
  if (state.wave_count < 2 || wave >= kMaxWaves) return;
  for (u32 w = 0; w < state.wave_count; ++w) {
    state.clock[wave][w] = std::max(state.clock[wave][w], state.sync[w]);
    state.sync[w] = std::max(state.sync[w], w == wave ? state.number : state.clock[wave][w]);
  }
  set_floor(state, wave);
  state.has_signal = true;
}

void LdsCheck::access(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                      const Operands& operands, const Access& access) {
  if (!access.mask || wave.index >= kMaxWaves) return;
  if (state.shift && !whole_dwords(access)) refine(state);
  const u32 stamp = next_stamp(state, operands.signals, wave.index, inst.index);
  drop_completed(state.dma_in_flight[wave.index], waits.vector.done);
  const AccessContext context = {waits, wave, inst, operands, access, stamp};
  switch (access.bytes >> state.shift) {
    case 1:
      lanes<1>(state, context);
      break;
    case 2:
      lanes<2>(state, context);
      break;
    case 4:
      lanes<4>(state, context);
      break;
    default:
      lanes<0>(state, context);
  }
  remember(state, waits, wave, inst, operands, access, stamp);
  if (operands.signals) signal(state, wave.index);
}

template <u32 kCount>
void LdsCheck::lanes(LdsState& state, const AccessContext& context) {
  const u32 wave = context.wave.index, floor = state.floor[wave];
  const auto& dma = state.dma_in_flight[wave];
  const bool own_dma = !context.operands.lds_dma && !dma.empty();
  const u32 oldest = own_dma ? number_of(dma.front().stamp) : ~u32{0};
  const u64 base = host_address(context.wave.group->lds);
  for_lanes(context.access.mask, [&](u32 lane) {
    const u32 offset = static_cast<u32>(context.access.addresses[lane] - base);
    const Cells cells(state, offset, context.access.bytes);
    u32 *const writes = &state.writes[cells.first], *const reads = &state.reads[cells.first];
    const u32 written = number_of(latest<kCount>(writes, cells.count));
    if (written >= oldest) [[unlikely]]
      check_own_dma(state, context, lane, offset);
    if (context.access.is_write) {
      const u32 read = number_of(latest<kCount>(reads, cells.count));
      if (std::max(written, read) > floor) [[unlikely]]
        check_write(state, context, lane, offset);
      set_stamps<kCount>(writes, cells.count, context.stamp);
    } else {
      if (written > floor) [[unlikely]]
        check_read(state, context, lane, offset);
      set_stamps<kCount>(reads, cells.count, context.stamp);
      add_readers<kCount>(state, cells, wave);
    }
  });
}

void LdsCheck::remember(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                        const Operands& operands, const Access& access, u32 stamp) {
  const bool dma = operands.lds_dma;
  auto& list = dma ? state.dma_in_flight[wave.index] : state.in_flight[wave.index];
  drop_completed(list, dma ? waits.vector.done : waits.lds.done);
  LdsState::Stamped& entry = list.emplace_back();
  entry.stamp = stamp;
  entry.queue_number = dma ? waits.vector.issued : waits.lds.issued;
  entry.index = inst.index;
  entry.is_write = access.is_write;
  entry.bytes = access.bytes;
  entry.mask = access.mask;
  const u64 base = host_address(wave.group->lds);
  for_lanes(access.mask, [&](u32 lane) {
    entry.offsets[lane] = static_cast<u32>(access.addresses[lane] - base);
  });
}

// Checks a read of the wave's own LDS-DMA data, which is valid after its vmcnt wait.
void LdsCheck::check_own_dma(const LdsState& state, const AccessContext& context, u32 lane,
                             u32 offset) {
  const auto& list = state.dma_in_flight[context.wave.index];
  const Cells cells(state, offset, context.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    if (wave_of(state.writes[c]) != context.wave.index) continue;
    const auto dma = std::find_if(list.begin(), list.end(), [&](const LdsState::Stamped& pending) {
      return pending.stamp == state.writes[c];
    });
    if (dma == list.end()) continue;
    return report(context.wave, context.inst, lane, c << state.shift,
                  std::string(context.access.is_write ? "overwrites" : "reads") +
                      " data that the LDS-DMA at text offset " + hex(dma->index * 4) + " (" +
                      instruction_text(program_, dma->index) +
                      ") of the same wave may still write: no s_waitcnt vmcnt(" +
                      std::to_string(context.waits.vector.issued - dma->queue_number) +
                      ") between them");
  }
}

void LdsCheck::check_read(const LdsState& state, const AccessContext& context, u32 lane,
                          u32 offset) {
  const Cells cells(state, offset, context.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    const u32 written = state.writes[c];
    if (ordered(state, context.wave.index, written)) continue;
    if (context.operands.signals && is_signal_stamp(written)) continue;
    return report(context.wave, context.inst, lane, c << state.shift,
                  "reads data that " + describe_access(state, written) +
                      " writes, with no barrier between them");
  }
}

// Returns the stamp of the last read of a cell by another wave that is not ordered before `wave`;
// 0: none.
u32 LdsCheck::unordered_read(const LdsState& state, u32 wave, bool is_signal, u32 cell) {
  const u32 last_read = state.reads[cell];
  if (!ordered(state, wave, last_read))
    return is_signal && is_signal_stamp(last_read) ? 0 : last_read;
  // Another wave may have read the cell before the last reader. If atomics have ordered waves since
  // the barrier, that order is unknown.
  const u32 other_readers = state.has_signal ? 0 : readers_of(state, cell) & ~(1u << wave);
  return other_readers
             ? make_stamp(0, false, static_cast<u32>(std::countr_zero(other_readers))) | kUnnumbered
             : 0;
}

// A write that changes nothing is harmless (all waves set the same flag), so it is judged after it
// has executed.
void LdsCheck::check_write(const LdsState& state, const AccessContext& context, u32 lane,
                           u32 offset) {
  const u32 wave = context.wave.index;
  const bool is_signal = context.operands.signals;
  const Cells cells(state, offset, context.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    const u32 written = state.writes[c], read = unordered_read(state, wave, is_signal, c);
    const bool both_are_signals = is_signal && is_signal_stamp(written);
    const bool writes_conflict = !both_are_signals && !ordered(state, wave, written);
    if (!writes_conflict && !read) continue;
    const u32 b = c << state.shift;
    Conflict conflict = {lane, b, writes_conflict ? written : read, !writes_conflict, 0, {}};
    conflict.bytes = std::min<u32>(offset + context.access.bytes - b, sizeof(conflict.old));
    std::memcpy(conflict.old, context.wave.group->lds + b, conflict.bytes);
    conflicts_.push_back(conflict);
    return;
  }
}

void LdsCheck::after_inst(const LdsState& state, const Wave& wave, const Inst& inst) {
  for (const Conflict& c : conflicts_) {
    if (!std::memcmp(c.old, wave.group->lds + c.offset, c.bytes)) continue;
    report(wave, inst, c.lane, c.offset,
           "overwrites data that " + describe_access(state, c.peer_stamp) +
               (c.is_peer_read ? " reads" : " writes") + ", with no barrier between them");
    break;
  }
  conflicts_.clear();
}

std::string LdsCheck::describe_access(const LdsState& state, u32 stamp) const {
  std::string text = "wave " + std::to_string(wave_of(stamp));
  if (stamp & kUnnumbered || state.number - number_of(stamp) >= kLogEntries) return text;
  const u32 index = state.log[number_of(stamp) % kLogEntries];
  return text + " at text offset " + hex(index * 4) + " (" + instruction_text(program_, index) +
         ")";
}

void LdsCheck::report(const Wave& wave, const Inst& inst, u32 lane, u32 offset,
                      const std::string& detail) {
  findings_.report(inst.index, FindingKind::kLdsRace, Finding(wave, lane).with_address(offset),
                   detail);
}

}  // namespace vgpu
