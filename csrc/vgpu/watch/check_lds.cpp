#include "vgpu/watch/check_lds.h"

#include <algorithm>

#include "vgpu/exec/memory.h"

namespace vgpu {
namespace {

constexpr u32 kLogEntries = 1 << 14;
constexpr u32 kMostNumber = (1u << 26) - 1;  // of the 27 bits that a stamp has for it

// A stamp: wave 3:0, whether it signals 4, number 30:5. Bit 31: who made it is known, but not when.
constexpr u32 kUnnumbered = u32{1} << 31;
constexpr u32 make_stamp(u32 number, bool signals, u32 wave) {
  return number << 5 | u32{signals} << 4 | wave;
}
constexpr u32 wave_of(u32 stamp) { return stamp & 15; }
constexpr bool signals_by(u32 stamp) { return stamp >> 4 & 1; }
constexpr u32 number_of(u32 stamp) { return stamp >> 5; }

// Whether the access behind `stamp` lies before what `wave` does now.
bool ordered(const LdsState& state, u32 wave, u32 stamp) {
  if (number_of(stamp) <= state.floor[wave] || wave_of(stamp) == wave) return true;
  return number_of(stamp) <= state.clock[wave][wave_of(stamp)];
}

void set_floor(LdsState& state, u32 wave) {
  u32 least = ~u32{0};
  for (u32 w = 0; w < state.wave_count; ++w) {
    if (w != wave) least = std::min(least, state.clock[wave][w]);
  }
  state.floor[wave] = least;
}

void drop_arrived(std::deque<LdsState::Stamped>& list, u32 done) {
  while (!list.empty() && list.front().queued <= done) list.pop_front();
}

// The cells of some bytes.
struct Cells {
  u32 first, count;
  Cells(const LdsState& state, u32 offset, u32 bytes)
      : first(offset >> state.shift), count(bytes >> state.shift) {}
  u32 end() const { return first + count; }
};

// Loops over an access' cells know their number where it is a usual one; 0 is any.
template <u32 kCount>
u32 latest(const u32* stamps, u32 count) {
  u32 most = 0;
  for (u32 i = 0; i < (kCount ? kCount : count); ++i) most = std::max(most, stamps[i]);
  return most;
}

// From dwords to bytes.
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
  for_lanes(access.mask, [&](u32 lane) { low |= access.at[lane]; });  // LDS begins at a page
  return low % 4 == 0;
}

// The waves that read this cell since the last barrier.
u32 readers_of(const LdsState& state, u32 cell) {
  const u32 entry = state.readers[cell];
  return entry >> 16 == state.epoch ? entry & 0xffff : 0;
}

template <u32 kCount>
void add_readers(LdsState& state, const Cells& cells, u32 wave) {
  const u32 now = state.epoch << 16, bit = 1u << wave;
  u32* readers = &state.readers[cells.first];
  for (u32 i = 0; i < (kCount ? kCount : cells.count); ++i) {
    const u32 since = (readers[i] ^ now) >> 16 ? 0 : readers[i] & 0xffff;
    readers[i] = now | since | bit;
  }
}

template <u32 kCount>
void set_stamps(u32* stamps, u32 count, u32 stamp) {
  for (u32 i = 0; i < (kCount ? kCount : count); ++i) stamps[i] = stamp;
}

// Calls body(cells) for the cells of a remembered access, all at once where its lanes lie side by
// side, as those of LDS-DMA do.
template <class Body>
void for_cells(const LdsState& state, const LdsState::Stamped& access, Body body) {
  u32 apart = ~access.mask ? 1 : 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    apart |= access.at[lane] ^ (access.at[0] + lane * access.bytes);
  }
  if (!apart) return body(Cells(state, access.at[0], kLanes * access.bytes));
  for_lanes(access.mask, [&](u32 lane) { body(Cells(state, access.at[lane], access.bytes)); });
}

}  // namespace

// Numbers run on from group to group, so that nothing has to be cleared.
void LdsCheck::begin(LdsState& state, u32 lds_bytes, u32 wave_count) {
  state.wave_count = std::min(wave_count, kMostWaves);
  const std::size_t cells = (lds_bytes >> state.shift) + 1;
  if (state.writes.size() < cells || state.number > kMostNumber / 2) {
    state.writes.assign(std::max(state.writes.size(), cells), 0);
    state.reads.assign(state.writes.size(), 0);
    state.readers.assign(state.writes.size(), 0);
    state.number = 0;
  }
  if (state.log.empty()) state.log.resize(kLogEntries);
  next_epoch(state);
  for (u32 w = 0; w < kMostWaves; ++w) {
    state.dma_on_way[w].clear();
    state.on_way[w].clear();
  }
}

void LdsCheck::next_epoch(LdsState& state) {
  if (++state.epoch > 0xffff) {
    std::fill(state.readers.begin(), state.readers.end(), 0);
    state.epoch = 1;
  }
  state.signalled = false;
  for (u32 w = 0; w < state.wave_count; ++w) {
    for (u32 other = 0; other < state.wave_count; ++other) state.clock[w][other] = state.number;
    state.floor[w] = state.number;
    state.sync[w] = state.number;
  }
}

u32 LdsCheck::next_stamp(LdsState& state, bool signals, u32 wave, u32 index) {
  if (state.number < kMostNumber) ++state.number;
  state.log[state.number % kLogEntries] = index;
  return make_stamp(state.number, signals, wave);
}

// What is still on its way counts as made behind the barrier.
void LdsCheck::carry_over(LdsState& state, u32 wave, const WaitState& waits) {
  drop_arrived(state.dma_on_way[wave], waits.vector.done);
  drop_arrived(state.on_way[wave], waits.lds.done);
  for (LdsState::Stamped& access : state.dma_on_way[wave]) restamp(state, wave, access);
  for (LdsState::Stamped& access : state.on_way[wave]) restamp(state, wave, access);
}

void LdsCheck::restamp(LdsState& state, u32 wave, LdsState::Stamped& access) {
  const u32 old = access.stamp;
  access.stamp = next_stamp(state, signals_by(old), wave, access.index);
  const u32 now = access.stamp;
  u32* const stamps = access.is_write ? state.writes.data() : state.reads.data();
  for_cells(state, access, [&](const Cells& cells) {
    for (u32 c = cells.first; c < cells.end(); ++c) stamps[c] = stamps[c] == old ? now : stamps[c];
    if (!access.is_write) add_readers<0>(state, cells, wave);
  });
}

void LdsCheck::signal(LdsState& state, u32 wave) {
  if (state.wave_count < 2 || wave >= kMostWaves) return;
  for (u32 w = 0; w < state.wave_count; ++w) {
    state.clock[wave][w] = std::max(state.clock[wave][w], state.sync[w]);
    state.sync[w] = std::max(state.sync[w], w == wave ? state.number : state.clock[wave][w]);
  }
  set_floor(state, wave);
  state.signalled = true;
}

void LdsCheck::access(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                      const Operands& operands, const Access& access) {
  if (!access.mask || wave.index >= kMostWaves) return;
  if (state.shift && !whole_dwords(access)) refine(state);
  const u32 stamp = next_stamp(state, operands.signals, wave.index, inst.index);
  drop_arrived(state.dma_on_way[wave.index], waits.vector.done);
  const Running now = {waits, wave, inst, operands, access, stamp};
  switch (access.bytes >> state.shift) {
    case 1:
      lanes<1>(state, now);
      break;
    case 2:
      lanes<2>(state, now);
      break;
    case 4:
      lanes<4>(state, now);
      break;
    default:
      lanes<0>(state, now);
  }
  remember(state, waits, wave, inst, operands, access, stamp);
  if (operands.signals) signal(state, wave.index);
}

template <u32 kCount>
void LdsCheck::lanes(LdsState& state, const Running& now) {
  const u32 wave = now.wave.index, floor = state.floor[wave];
  const auto& dma = state.dma_on_way[wave];
  const bool own_dma = !now.operands.lds_dma && !dma.empty();
  const u32 oldest = own_dma ? number_of(dma.front().stamp) : ~u32{0};
  const u64 base = host_address(now.wave.group->lds);
  for_lanes(now.access.mask, [&](u32 lane) {
    const u32 from = static_cast<u32>(now.access.at[lane] - base);
    const Cells cells(state, from, now.access.bytes);
    u32 *const writes = &state.writes[cells.first], *const reads = &state.reads[cells.first];
    const u32 written = number_of(latest<kCount>(writes, cells.count));
    if (written >= oldest) [[unlikely]]
      check_own_dma(state, now, lane, from);
    if (now.access.is_write) {
      const u32 read = number_of(latest<kCount>(reads, cells.count));
      if (std::max(written, read) > floor) [[unlikely]]
        check_write(state, now, lane, from);
      set_stamps<kCount>(writes, cells.count, now.stamp);
    } else {
      if (written > floor) [[unlikely]]
        check_read(state, now, lane, from);
      set_stamps<kCount>(reads, cells.count, now.stamp);
      add_readers<kCount>(state, cells, wave);
    }
  });
}

void LdsCheck::remember(LdsState& state, const WaitState& waits, const Wave& wave, const Inst& inst,
                        const Operands& operands, const Access& access, u32 stamp) {
  const bool dma = operands.lds_dma;
  auto& list = dma ? state.dma_on_way[wave.index] : state.on_way[wave.index];
  drop_arrived(list, dma ? waits.vector.done : waits.lds.done);
  LdsState::Stamped& entry = list.emplace_back();
  entry.stamp = stamp;
  entry.queued = dma ? waits.vector.issued : waits.lds.issued;
  entry.index = inst.index;
  entry.is_write = access.is_write;
  entry.bytes = access.bytes;
  entry.mask = access.mask;
  const u64 base = host_address(wave.group->lds);
  for_lanes(access.mask,
            [&](u32 lane) { entry.at[lane] = static_cast<u32>(access.at[lane] - base); });
}

// The wave's own LDS-DMA: its data is there when vmcnt says so.
void LdsCheck::check_own_dma(const LdsState& state, const Running& now, u32 lane, u32 offset) {
  const auto& list = state.dma_on_way[now.wave.index];
  const Cells cells(state, offset, now.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    if (wave_of(state.writes[c]) != now.wave.index) continue;
    const auto dma = std::find_if(list.begin(), list.end(), [&](const LdsState::Stamped& on_way) {
      return on_way.stamp == state.writes[c];
    });
    if (dma == list.end()) continue;
    return report(now.wave, now.inst, lane, c << state.shift,
                  std::string(now.access.is_write ? "overwrites" : "reads") +
                      " what the LDS-DMA at text offset " + hex(dma->index * 4) + " (" +
                      instruction_text(program_, dma->index) +
                      ") of the same wave may still write: no s_waitcnt vmcnt(" +
                      std::to_string(now.waits.vector.issued - dma->queued) + ") between them");
  }
}

void LdsCheck::check_read(const LdsState& state, const Running& now, u32 lane, u32 offset) {
  const Cells cells(state, offset, now.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    const u32 written = state.writes[c];
    if (ordered(state, now.wave.index, written)) continue;
    if (now.operands.signals && signals_by(written)) continue;
    return report(now.wave, now.inst, lane, c << state.shift,
                  "reads what " + who(state, written) + " writes, with no barrier between them");
  }
}

// The last read of a cell by another wave that nothing orders before `wave`; 0: none.
u32 LdsCheck::unordered_read(const LdsState& state, u32 wave, bool signals, u32 cell) {
  const u32 last = state.reads[cell];
  if (!ordered(state, wave, last)) return signals && signals_by(last) ? 0 : last;
  // Another wave may have read it before the last reader did. Where atomics order waves since the
  // barrier, who read before whom is not known.
  const u32 others = state.signalled ? 0 : readers_of(state, cell) & ~(1u << wave);
  return others ? make_stamp(0, false, static_cast<u32>(std::countr_zero(others))) | kUnnumbered
                : 0;
}

// A write that changes nothing harms nobody (all waves set the same flag), so the judgement waits
// until the write has happened.
void LdsCheck::check_write(const LdsState& state, const Running& now, u32 lane, u32 offset) {
  const u32 wave = now.wave.index;
  const bool signals = now.operands.signals;
  const Cells cells(state, offset, now.access.bytes);
  for (u32 c = cells.first; c < cells.end(); ++c) {
    const u32 written = state.writes[c], read = unordered_read(state, wave, signals, c);
    const bool both_signal = signals && signals_by(written);
    const bool writes_meet = !both_signal && !ordered(state, wave, written);
    if (!writes_meet && !read) continue;
    const u32 b = c << state.shift;
    Conflict conflict = {lane, b, writes_meet ? written : read, !writes_meet, 0, {}};
    conflict.bytes = std::min<u32>(offset + now.access.bytes - b, sizeof(conflict.old));
    std::memcpy(conflict.old, now.wave.group->lds + b, conflict.bytes);
    conflicts_.push_back(conflict);
    return;
  }
}

void LdsCheck::after(const LdsState& state, const Wave& wave, const Inst& inst) {
  for (const Conflict& c : conflicts_) {
    if (!std::memcmp(c.old, wave.group->lds + c.offset, c.bytes)) continue;
    report(wave, inst, c.lane, c.offset,
           "overwrites what " + who(state, c.other) + (c.other_reads ? " reads" : " writes") +
               ", with no barrier between them");
    break;
  }
  conflicts_.clear();
}

std::string LdsCheck::who(const LdsState& state, u32 stamp) const {
  std::string text = "wave " + std::to_string(wave_of(stamp));
  if (stamp & kUnnumbered || state.number - number_of(stamp) >= kLogEntries) return text;
  const u32 index = state.log[number_of(stamp) % kLogEntries];
  return text + " at text offset " + hex(index * 4) + " (" + instruction_text(program_, index) +
         ")";
}

void LdsCheck::report(const Wave& wave, const Inst& inst, u32 lane, u32 offset,
                      const std::string& detail) {
  if (findings_.known(inst.index, FindingKind::kLdsRace)) return;
  Finding finding = Finding(wave, lane).at(offset);
  finding.detail = detail;
  findings_.add(inst.index, FindingKind::kLdsRace, std::move(finding));
}

}  // namespace vgpu
