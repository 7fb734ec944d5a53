// Caches and memory as one XCD sees them: tags, when a line is there, and what is busy how long.
#pragma once

#include <algorithm>
#include <vector>

#include "vgpu/timing/parts.h"

namespace vgpu {

// A fixed hash of a line's number: which channel and set it goes to. Host addresses are not the
// device's, so the real one could not be used.
constexpr u32 hash_line(u32 x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Which set of L2: the lines of a page one after another in an order of its own, so that what lies
// together fills the sets evenly, and what is a page apart does not meet in one.
constexpr u32 l2_set(u32 line) { return line ^ (hash_line(line / 32) & 31); }

// Least recently used ways of sets.
class Tags {
 public:
  struct Found {
    u32 slot;
    bool hit;
  };
  void reset(double bytes, double ways, double line_bytes = 128);
  // Finds the line, or gives it the slot of the one that was used longest ago.
  Found find(u32 line, u32 hash);
  double& ready(u32 slot) { return lines_[slot].ready; }
  bool& dirty(u32 slot) { return lines_[slot].dirty; }

 private:
  struct Line {
    double ready = 0;
    bool dirty = false;
  };
  u32 sets_ = 1, ways_ = 1, clock_ = 0;
  std::vector<u32> tags_, used_;  // used_ 0: empty
  std::vector<Line> lines_;
};

// Serves one thing after another.
struct Server {
  double free = 0, busy = 0;
  double take(double at, double cost) {
    const double start = std::max(at, free);
    free = start + cost;
    busy += cost;
    return start;
  }
};

// Channels side by side, a line on one of them: some are busy while others are not.
class Servers {
 public:
  explicit Servers(double count) : all_(static_cast<std::size_t>(std::max(1.0, count))) {}
  // `cost`: of one channel.
  double take(double at, double cost, u32 hash) { return all_[hash % all_.size()].take(at, cost); }
  u32 index(u32 hash) const { return static_cast<u32>(hash % all_.size()); }
  double count() const { return static_cast<double>(all_.size()); }
  double busy() const;  // of all, in the time of one
  double last() const;

 private:
  std::vector<Server> all_;
};

struct MemoryCounts {
  u64 l1_lines = 0, l1_hits = 0, l2_lines = 0, l2_hits = 0, mall_lines = 0, hbm_lines = 0;
  u64 hbm_rows = 0;  // opened for reads
  u64 written_lines = 0, write_requests = 0, scalar_lines = 0, scalar_hits = 0;
};

// How a launch finds memory.
struct MemoryState {
  double sharing = 1;    // XCDs that read a line of memory, on average
  double taken = 0;      // share of writes before which another XCD has written the line
  bool in_mall = false;  // operands lie in the Infinity Cache
  bool in_l2 = false;    // and what of them fits in L2, from a launch before
};

// What is behind the compute units of one XCD.
class XcdMemory {
 public:
  XcdMemory(const Constants& k, double ghz, const MemoryState& state);
  // A line that leaves the CU's port at `at`: when it is back in L1.
  double read(double at, u32 line);
  // When the writer knows that the write has been taken. `atomic`: clk of an atomic in its channel,
  // 0 for a plain store.
  double write(double at, u32 line, double atomic);
  // A line of the scalar cache's, asked for at `at`.
  double read_scalar(double at, u32 line);
  // A launch before has used the line.
  void keep(u32 line) { l2_.find(line, l2_set(line)); }
  double drained() const { return std::max(fabric_.last(), hbm_.last()); }
  const Servers& l2() const { return channels_; }
  const Servers& fabric() const { return fabric_; }
  const Servers& hbm() const { return hbm_; }

  MemoryCounts counts;

 private:
  double half_, l1_latency_, line_clk_, fabric_clk_, fabric_write_clk_, hbm_clk_;
  double mall_clk_, hbm_latency_clk_, k_l2_, k_mall_, k_hbm_;
  double taken_, taken_trips_;
  double from_hbm_;  // of lines that are new to this XCD, the share that it fetches itself
  Servers channels_, fabric_, hbm_;
  u32 hbm_lines_;  // side by side on one channel: a row of a bank
  u32 hbm_banks_;
  double hbm_row_clk_;
  std::vector<u32> open_rows_;  // of each channel's banks
  double hbm_turn_clk_, write_queue_clk_;
  u32 write_lines_;  // side by side on one channel
  u32 reads_ = 0;    // of HBM, after which no write has come yet
  bool in_mall_;
  Tags l2_, mall_;

  enum class Origin : u8 { kMall, kShared, kHbm };
  Origin origin(u32 line, u32 hash);
  double read_hbm(double at, u32 line);
  double write_hbm(double at, u32 line);
  double write_back(double at, u32 line, u32 hash, bool taken);
  double own(double at, u32 line, u32 hash, bool taken);
  bool is_taken() const;
};

}  // namespace vgpu
