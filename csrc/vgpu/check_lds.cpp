#include "check_lds.h"

#include <algorithm>

#include "memory.h"

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

u32 latest(const u32* stamps, u32 count) {
  u32 most = 0;
  for (u32 i = 0; i < count; ++i) most = std::max(most, stamps[i]);
  return most;
}

// The waves that read this byte since the last barrier.
u32 readers_of(const LdsState& state, u32 offset) {
  const u32 entry = state.readers[offset];
  return entry >> 16 == state.epoch ? entry & 0xffff : 0;
}

void add_readers(LdsState& state, u32 offset, u32 count, u32 wave) {
  const u32 now = state.epoch << 16, bit = 1u << wave;
  u32* readers = &state.readers[offset];
  for (u32 i = 0; i < count; ++i) {
    const u32 since = (readers[i] ^ now) >> 16 ? 0 : readers[i] & 0xffff;
    readers[i] = now | since | bit;
  }
}

}  // namespace

// Numbers run on from group to group, so that nothing has to be cleared.
void LdsCheck::begin(LdsState& state, u32 lds_bytes, u32 wave_count) {
  state.wave_count = std::min(wave_count, kMostWaves);
  if (state.writes.size() < lds_bytes || state.number > kMostNumber / 2) {
    state.writes.assign(std::max<std::size_t>(state.writes.size(), lds_bytes), 0);
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
  for_lanes(access.mask, [&](u32 lane) {
    for (u32 b = access.at[lane]; b < access.at[lane] + access.bytes; ++b) {
      u32& last = access.is_write ? state.writes[b] : state.reads[b];
      if (last == old) last = access.stamp;
      if (!access.is_write) add_readers(state, b, 1, wave);
    }
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
  const u32 stamp = next_stamp(state, operands.signals, wave.index, inst.index);
  if (!operands.lds_dma) check_own_dma(state, waits, wave, inst, access);
  const u64 base = host_address(wave.group->lds);
  for_lanes(access.mask, [&](u32 lane) {
    const u32 from = static_cast<u32>(access.at[lane] - base);
    if (access.is_write) {
      check_write(state, wave, operands.signals, access, lane, from);
      std::fill_n(&state.writes[from], access.bytes, stamp);
    } else {
      check_read(state, wave, inst, operands.signals, access, lane, from);
      std::fill_n(&state.reads[from], access.bytes, stamp);
      add_readers(state, from, access.bytes, wave.index);
    }
  });
  remember(state, waits, wave, inst, operands, access, stamp);
  if (operands.signals) signal(state, wave.index);
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
void LdsCheck::check_own_dma(LdsState& state, const WaitState& waits, const Wave& wave,
                             const Inst& inst, const Access& access) {
  auto& list = state.dma_on_way[wave.index];
  drop_arrived(list, waits.vector.done);
  if (list.empty()) return;
  const u32 oldest = number_of(list.front().stamp);
  const u64 base = host_address(wave.group->lds);
  for (u64 lanes = access.mask; lanes; lanes &= lanes - 1) {
    const u32 lane = static_cast<u32>(std::countr_zero(lanes));
    const u32 from = static_cast<u32>(access.at[lane] - base);
    if (number_of(latest(&state.writes[from], access.bytes)) < oldest) continue;
    for (u32 b = from; b < from + access.bytes; ++b) {
      const auto dma = std::find_if(list.begin(), list.end(), [&](const LdsState::Stamped& on_way) {
        return on_way.stamp == state.writes[b];
      });
      if (dma == list.end()) continue;
      return report(wave, inst, lane, b,
                    std::string(access.is_write ? "overwrites" : "reads") +
                        " what the LDS-DMA at text offset " + hex(dma->index * 4) + " (" +
                        instruction_text(program_, dma->index) +
                        ") of the same wave may still write: no s_waitcnt vmcnt(" +
                        std::to_string(waits.vector.issued - dma->queued) + ") between them");
    }
  }
}

void LdsCheck::check_read(const LdsState& state, const Wave& wave, const Inst& inst, bool signals,
                          const Access& access, u32 lane, u32 offset) {
  if (number_of(latest(&state.writes[offset], access.bytes)) <= state.floor[wave.index]) return;
  for (u32 b = offset; b < offset + access.bytes; ++b) {
    const u32 written = state.writes[b];
    if (ordered(state, wave.index, written) || (signals && signals_by(written))) continue;
    return report(
        wave, inst, lane, b,
        "reads what " + who(state, state.writes[b]) + " writes, with no barrier between them");
  }
}

// The last read of a byte by another wave that nothing orders before `wave`; 0: none.
u32 LdsCheck::unordered_read(const LdsState& state, u32 wave, bool signals, u32 offset) {
  const u32 last = state.reads[offset];
  if (!ordered(state, wave, last)) return signals && signals_by(last) ? 0 : last;
  // Another wave may have read it before the last reader did. Where atomics order waves since the
  // barrier, who read before whom is not known.
  const u32 others = state.signalled ? 0 : readers_of(state, offset) & ~(1u << wave);
  return others ? make_stamp(0, false, static_cast<u32>(std::countr_zero(others))) | kUnnumbered
                : 0;
}

// A write that changes nothing harms nobody (all waves set the same flag), so the judgement waits
// until the write has happened.
void LdsCheck::check_write(const LdsState& state, const Wave& wave, bool signals,
                           const Access& access, u32 lane, u32 offset) {
  const u32 last = std::max(latest(&state.writes[offset], access.bytes),
                            latest(&state.reads[offset], access.bytes));
  if (number_of(last) <= state.floor[wave.index]) return;
  for (u32 b = offset; b < offset + access.bytes; ++b) {
    const u32 written = state.writes[b], read = unordered_read(state, wave.index, signals, b);
    const bool both_signal = signals && signals_by(written);
    const bool writes_meet = !both_signal && !ordered(state, wave.index, written);
    if (!writes_meet && !read) continue;
    Conflict conflict = {lane, b, writes_meet ? written : read, !writes_meet, 0, {}};
    conflict.bytes = std::min<u32>(offset + access.bytes - b, sizeof(conflict.old));
    std::memcpy(conflict.old, wave.group->lds + b, conflict.bytes);
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
