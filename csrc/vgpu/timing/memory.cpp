#include "vgpu/timing/memory.h"

#include <bit>

namespace vgpu {
namespace {

constexpr double kLine = 128;
constexpr u32 kNoLine = ~0u;
// Ways compared per iteration, so that the compiler vectorises the search.
constexpr u32 kWaysPerCompare = 4;
// Reads that the model remembers when it charges bus turnarounds to writes.
constexpr u32 kMaxPendingReads = 256;

// Returns the clk per line at one XCD's share of the GPU's bandwidth `tb_s`.
double line_clk(double tb_s, const Constants& k, double ghz) {
  return kLine * k.xccs * ghz / (tb_s * 1e3);
}

}  // namespace

void Tags::reset(double bytes, double num_ways, double line_bytes) {
  num_ways_ =
      (static_cast<u32>(num_ways) + kWaysPerCompare - 1) / kWaysPerCompare * kWaysPerCompare;
  sets_ = std::max(1u, static_cast<u32>(bytes / line_bytes / num_ways_));
  clock_ = 0;
  const std::size_t count = std::size_t{sets_} * num_ways_;
  tags_.assign(count, kNoLine);
  last_used_.assign(count, 0);
  lines_.assign(count, {});
}

Tags::Lookup Tags::find(u32 line, u32 hash) {
  const u32 first = hash % sets_ * num_ways_;
  const u32* const tags = tags_.data() + first;
  u32* const last_used = last_used_.data() + first;
  ++clock_;
  for (u32 first_way = 0; first_way < num_ways_; first_way += kWaysPerCompare) {
    u32 matches = 0;
    for (u32 i = 0; i < kWaysPerCompare; ++i) matches |= u32{tags[first_way + i] == line} << i;
    if (!matches) continue;
    const u32 way = first_way + static_cast<u32>(std::countr_zero(matches));
    last_used[way] = clock_;
    return {first + way, true};
  }
  u32 oldest = last_used[0];
  for (u32 i = 1; i < num_ways_; ++i) oldest = std::min(oldest, last_used[i]);
  u32 victim = 0;
  while (last_used[victim] != oldest) ++victim;
  tags_[first + victim] = line;
  last_used[victim] = clock_;
  lines_[first + victim] = {};
  return {first + victim, false};
}

XcdMemory::XcdMemory(const Constants& k, double ghz, const MemoryState& state)
    : half_l2_latency_((k.l2_latency - k.l1_latency) / 2),
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
      contended_fraction_(state.contended),
      contended_trips_(k.taken_trips),
      from_hbm_(state.in_mall ? 0 : 1 / std::max(1.0, state.sharing)),
      channels_(k.l2_channels),
      fabric_(k.fabric_channels),
      hbm_(k.hbm_channels),
      hbm_lines_(std::max(1u, static_cast<u32>(k.hbm_interleave / kLine))),
      hbm_banks_(std::max(1u, static_cast<u32>(k.hbm_banks))),
      hbm_row_clk_(k.hbm_row_ns * ghz),
      open_rows_(static_cast<std::size_t>(hbm_.count()) * hbm_banks_, ~0u),
      hbm_turnaround_clk_(k.hbm_turn_ns * ghz),
      write_lines_(std::max(1u, static_cast<u32>(k.hbm_write_interleave / kLine))),
      in_mall_(state.in_mall) {
  fabric_clk_ *= fabric_.count();
  fabric_write_clk_ *= fabric_.count();
  hbm_clk_ *= hbm_.count();
  write_queue_clk_ = k.hbm_write_queue * hbm_clk_;
  l2_.reset(k.l2_bytes, k.l2_ways);
  // A line that several XCDs read occupies the Infinity Cache once.
  mall_.reset(k.mall_mib * 1048576 * std::max(1.0, state.sharing) / k.xccs, 16);
}

double Servers::busy() const {
  double busy = 0;
  for (const Server& server : servers_) busy += server.busy;
  return busy / count();
}
double Servers::last_free() const {
  double latest = 0;
  for (const Server& server : servers_) latest = std::max(latest, server.free);
  return latest;
}

// Returns where a line comes from. A line that this XCD has read before hits the Infinity Cache
// while capacity lasts. Of the others, a fraction was requested earlier by another XCD and is in
// flight to the Infinity Cache.
XcdMemory::Origin XcdMemory::origin(u32 line, u32 hash) {
  if (mall_.find(line, hash >> 7).hit || from_hbm_ == 0) return Origin::kMall;
  return hash_line(line * 2654435761u) < from_hbm_ * 4294967295.0 ? Origin::kHbm : Origin::kShared;
}

// Each channel keeps one row open per bank; another row of the bank is a row miss.
double XcdMemory::read_hbm(double clk, u32 line) {
  const u32 row = line / hbm_lines_, hash = hash_line(row);
  u32& open = open_rows_[hbm_.index(hash) * hbm_banks_ + (hash >> 16) % hbm_banks_];
  const double cost = hbm_clk_ + (open == row ? 0 : hbm_row_clk_);
  counts.hbm_rows += open != row;
  open = row;
  reads_ = std::min(reads_ + 1, kMaxPendingReads);
  return hbm_.serve(clk, cost, hash) + hbm_latency_clk_;
}

// Writes wait in caches and queues until a channel is idle, so fewer consecutive lines reach one
// channel. A write between reads also pays for the bus turnaround.
double XcdMemory::write_hbm(double clk, u32 line) {
  const double turnaround = reads_ ? hbm_turnaround_clk_ : 0;
  reads_ -= reads_ > 0;
  return hbm_.serve(clk, hbm_clk_ + turnaround, hash_line(line / write_lines_));
}

double XcdMemory::read(double clk, u32 line) {
  const u32 hash = hash_line(line);
  const double start = channels_.serve(clk + half_l2_latency_, line_clk_, hash);
  ++counts.l2_lines;
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  double& ready = l2_.ready(slot);
  if (hit) {
    ++counts.l2_hits;
    return std::max(start, ready) + half_l2_latency_ + l1_latency_;
  }
  const double depart_clk = fabric_.serve(start, fabric_clk_, hash >> 9);
  ++counts.mall_lines;
  switch (origin(line, hash)) {
    case Origin::kMall:
      ready = depart_clk + mall_clk_;
      break;
    case Origin::kShared:
      ready = depart_clk + (mall_clk_ + hbm_latency_clk_) / 2;
      break;
    case Origin::kHbm:
      ++counts.hbm_lines;
      ready = read_hbm(depart_clk, line);
      break;
  }
  return ready + half_l2_latency_ + l1_latency_;
}

// Decides by a hash whether another XCD has modified the line since this XCD wrote it, with
// probability contended_fraction_.
bool XcdMemory::is_contended() const {
  return hash_line(static_cast<u32>(counts.write_requests) * 2654435761u) <
         contended_fraction_ * 4294967295.0;
}

// An atomic executes in L2 on a line that this XCD must own exclusively; if another XCD owns it,
// that XCD writes it back first.
double XcdMemory::acquire_line(double clk, u32 line, u32 hash, bool contended) {
  // The line crosses the fabric in both directions, several times.
  const double transfer_clk = contended ? contended_trips_ * (fabric_clk_ + fabric_write_clk_) : 0;
  const double depart_clk = fabric_.serve(clk, fabric_clk_ + transfer_clk, hash >> 9);
  ++counts.mall_lines;
  const Origin source = origin(line, hash);
  if (contended) return depart_clk + 2 * mall_clk_;
  if (source != Origin::kHbm) return depart_clk + mall_clk_;
  ++counts.hbm_lines;
  return read_hbm(depart_clk, line);
}

// Writes back a dirty line. Returns when the memory controller's write queue accepts it. If
// operands stay in the Infinity Cache between launches, the line stays there.
double XcdMemory::write_back(double clk, u32 line, u32 hash, bool contended) {
  const double depart_clk = fabric_.serve(clk, fabric_write_clk_, hash >> 9);
  ++counts.written_lines;
  if (contended) return clk;
  const double served = in_mall_ ? depart_clk : write_hbm(depart_clk, line);
  return served - write_queue_clk_;
}

// L2 combines writes: the write-back of a line is charged once, when the line becomes dirty.
double XcdMemory::write(double clk, u32 line, double atomic) {
  const u32 hash = hash_line(line);
  const double cost = std::max(line_clk_, atomic);
  const double start = channels_.serve(clk + half_l2_latency_, cost, hash);
  ++counts.l2_lines;
  ++counts.write_requests;
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  const bool contended = atomic > 0 && is_contended();
  double done = start;
  if (!(hit && l2_.dirty(slot)) || contended) {
    if (atomic > 0 && !(hit && !contended)) done = acquire_line(start, line, hash, contended);
    l2_.dirty(slot) = true;
    l2_.ready(slot) = hit && !contended ? std::min(l2_.ready(slot), done) : done;
    done = std::max(done, write_back(start, line, hash, contended));
  } else if (atomic > 0) {
    done = std::max(start, l2_.ready(slot));
  }
  return done + cost + half_l2_latency_ + l1_latency_;
}

double XcdMemory::read_scalar(double clk, u32 line) {
  const u32 hash = hash_line(line);
  const auto [slot, hit] = l2_.find(line, l2_set(line));
  double& ready = l2_.ready(slot);
  if (hit) return std::max(clk, ready) + k_l2_;
  const bool from_hbm = origin(line, hash) != Origin::kMall;
  ready = clk + (from_hbm ? k_hbm_ : k_mall_);
  return ready + k_l2_;
}

}  // namespace vgpu
