#include "vgpu/timing/memory.h"

#include <bit>

namespace vgpu {
namespace {

constexpr double kLine = 128;
constexpr u32 kNoLine = ~0u;
constexpr u32 kAtOnce = 4;   // ways that are compared together
constexpr u32 kMixed = 256;  // lines that controllers have before them, to write or to read

// clk that a line takes of an XCD's share of the chip's rate.
double line_clk(double tb_s, const Constants& k, double ghz) {
  return kLine * k.xccs * ghz / (tb_s * 1e3);
}

}  // namespace

void Tags::reset(double bytes, double ways, double line_bytes) {
  ways_ = (static_cast<u32>(ways) + kAtOnce - 1) / kAtOnce * kAtOnce;
  sets_ = std::max(1u, static_cast<u32>(bytes / line_bytes / ways_));
  clock_ = 0;
  const std::size_t count = std::size_t{sets_} * ways_;
  tags_.assign(count, kNoLine);
  used_.assign(count, 0);
  lines_.assign(count, {});
}

Tags::Found Tags::find(u32 line, u32 hash) {
  const u32 first = hash % sets_ * ways_;
  const u32* const tags = tags_.data() + first;
  u32* const used = used_.data() + first;
  ++clock_;
  for (u32 from = 0; from < ways_; from += kAtOnce) {
    u32 found = 0;
    for (u32 i = 0; i < kAtOnce; ++i) found |= u32{tags[from + i] == line} << i;
    if (!found) continue;
    const u32 way = from + static_cast<u32>(std::countr_zero(found));
    used[way] = clock_;
    return {first + way, true};
  }
  u32 least = used[0];
  for (u32 i = 1; i < ways_; ++i) least = std::min(least, used[i]);
  u32 victim = 0;
  while (used[victim] != least) ++victim;
  tags_[first + victim] = line;
  used[victim] = clock_;
  lines_[first + victim] = {};
  return {first + victim, false};
}

XcdMemory::XcdMemory(const Constants& k, double ghz, const MemoryState& state)
    : half_((k.l2_latency - k.l1_latency) / 2),
      l1_latency_(k.l1_latency),
      line_clk_(k.l2_line_clk),
      fabric_clk_(line_clk(k.mall_tb_s, k, ghz)),
      fabric_write_clk_(line_clk(k.mall_write_tb_s, k, ghz)),
      hbm_clk_(line_clk(k.hbm_tb_s, k, ghz)),
      mall_clk_(k.mall_ns * ghz),
      hbm_latency_clk_(k.hbm_ns * ghz),
      k_l2_(k.k_l2_latency),
      k_mall_(k.k_mall_ns * ghz),
      k_hbm_(k.k_hbm_ns * ghz),
      taken_(state.taken),
      taken_trips_(k.taken_trips),
      from_hbm_(state.in_mall ? 0 : 1 / std::max(1.0, state.sharing)),
      channels_(k.l2_channels),
      fabric_(k.fabric_channels),
      hbm_(k.hbm_channels),
      hbm_lines_(std::max(1u, static_cast<u32>(k.hbm_interleave / kLine))),
      hbm_banks_(std::max(1u, static_cast<u32>(k.hbm_banks))),
      hbm_row_clk_(k.hbm_row_ns * ghz),
      open_rows_(static_cast<std::size_t>(hbm_.count()) * hbm_banks_, ~0u),
      hbm_turn_clk_(k.hbm_turn_ns * ghz),
      write_lines_(std::max(1u, static_cast<u32>(k.hbm_write_interleave / kLine))),
      in_mall_(state.in_mall) {
  fabric_clk_ *= fabric_.count();
  fabric_write_clk_ *= fabric_.count();
  hbm_clk_ *= hbm_.count();
  write_queue_clk_ = k.hbm_write_queue * hbm_clk_;
  l2_.reset(k.l2_bytes, k.l2_ways);
  // Lines that several XCDs read take the space of one.
  mall_.reset(k.mall_mib * 1048576 * std::max(1.0, state.sharing) / k.xccs, 16);
}

double Servers::busy() const {
  double busy = 0;
  for (const Server& server : all_) busy += server.busy;
  return busy / count();
}
double Servers::last() const {
  double last = 0;
  for (const Server& server : all_) last = std::max(last, server.free);
  return last;
}

// A line that this XCD has read before lies in the Infinity Cache for as long as it has room. Of
// the others, those that another XCD was first to ask for are on their way there.
XcdMemory::Origin XcdMemory::origin(u32 line, u32 hash) {
  if (mall_.find(line, hash >> 7).hit || from_hbm_ == 0) return Origin::kMall;
  return hash_line(line * 2654435761u) < from_hbm_ * 4294967295.0 ? Origin::kHbm : Origin::kShared;
}

// A channel has a row of each bank open; another row of the bank costs it time to open.
double XcdMemory::read_hbm(double at, u32 line) {
  const u32 row = line / hbm_lines_, hash = hash_line(row);
  u32& open = open_rows_[hbm_.index(hash) * hbm_banks_ + (hash >> 16) % hbm_banks_];
  const double cost = hbm_clk_ + (open == row ? 0 : hbm_row_clk_);
  counts.hbm_rows += open != row;
  open = row;
  reads_ = std::min(reads_ + 1, kMixed);
  return hbm_.take(at, cost, hash) + hbm_latency_clk_;
}

// Writes wait in caches and queues until a channel has time for them, so that less of what lies
// together is on one. Between reads they cost it a share of the turn from reads to writes and back.
double XcdMemory::write_hbm(double at, u32 line) {
  const double turn = reads_ ? hbm_turn_clk_ : 0;
  reads_ -= reads_ > 0;
  return hbm_.take(at, hbm_clk_ + turn, hash_line(line / write_lines_));
}

double XcdMemory::read(double at, u32 line) {
  const u32 hash = hash_line(line);
  const double start = channels_.take(at + half_, line_clk_, hash);
  ++counts.l2_lines;
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  double& ready = l2_.ready(slot);
  if (hit) {
    ++counts.l2_hits;
    return std::max(start, ready) + half_ + l1_latency_;
  }
  const double left = fabric_.take(start, fabric_clk_, hash >> 9);
  ++counts.mall_lines;
  switch (origin(line, hash)) {
    case Origin::kMall:
      ready = left + mall_clk_;
      break;
    case Origin::kShared:
      ready = left + (mall_clk_ + hbm_latency_clk_) / 2;
      break;
    case Origin::kHbm:
      ++counts.hbm_lines;
      ready = read_hbm(left, line);
      break;
  }
  return ready + half_ + l1_latency_;
}

// Whether another XCD has had the line since this one wrote it: of all writes that share.
bool XcdMemory::is_taken() const {
  return hash_line(static_cast<u32>(counts.write_requests) * 2654435761u) < taken_ * 4294967295.0;
}

// An atomic works on the line in L2, which must be there, and this XCD's alone: another XCD that
// has it writes it back first.
double XcdMemory::own(double at, u32 line, u32 hash, bool taken) {
  // Taken away and fetched: across the fabric, both ways, more than once.
  const double more = taken ? taken_trips_ * (fabric_clk_ + fabric_write_clk_) : 0;
  const double left = fabric_.take(at, fabric_clk_ + more, hash >> 9);
  ++counts.mall_lines;
  const Origin from = origin(line, hash);
  if (taken) return left + 2 * mall_clk_;
  if (from != Origin::kHbm) return left + mall_clk_;
  ++counts.hbm_lines;
  return read_hbm(left, line);
}

// A dirty line's way to memory, and when there is room for it before the channels. What fits the
// Infinity Cache from launch to launch stays there.
double XcdMemory::write_back(double at, u32 line, u32 hash, bool taken) {
  const double left = fabric_.take(at, fabric_write_clk_, hash >> 9);
  ++counts.written_lines;
  if (taken) return at;
  const double served = in_mall_ ? left : write_hbm(left, line);
  return served - write_queue_clk_;
}

// L2 combines writes: what lies behind is charged once for a line, when it becomes dirty.
double XcdMemory::write(double at, u32 line, double atomic) {
  const u32 hash = hash_line(line);
  const double cost = std::max(line_clk_, atomic);
  const double start = channels_.take(at + half_, cost, hash);
  ++counts.l2_lines;
  ++counts.write_requests;
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  const bool taken = atomic > 0 && is_taken();
  double done = start;
  if (!(hit && l2_.dirty(slot)) || taken) {
    if (atomic > 0 && !(hit && !taken)) done = own(start, line, hash, taken);
    l2_.dirty(slot) = true;
    l2_.ready(slot) = hit && !taken ? std::min(l2_.ready(slot), done) : done;
    done = std::max(done, write_back(start, line, hash, taken));
  } else if (atomic > 0) {
    done = std::max(start, l2_.ready(slot));
  }
  return done + cost + half_ + l1_latency_;
}

double XcdMemory::read_scalar(double at, u32 line) {
  const u32 hash = hash_line(line);
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  double& ready = l2_.ready(slot);
  if (hit) return std::max(at, ready) + k_l2_;
  const bool far = origin(line, hash) != Origin::kMall;
  ready = at + (far ? k_hbm_ : k_mall_);
  return ready + k_l2_;
}

}  // namespace vgpu
