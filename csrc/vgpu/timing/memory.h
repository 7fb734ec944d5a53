// Caches and memory of one XCD: tags, completion times, and occupancy of channels.
#pragma once

#include <algorithm>
#include <vector>

#include "vgpu/timing/gpu_model.h"

namespace vgpu {

// Hash of a line number; it selects channel and set. The hardware's own hash is not usable, because
// host addresses differ from device addresses.
constexpr u32 hash_line(u32 x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Returns the L2 set index of a line. The lines of a page are permuted per page, so that contiguous
// lines fill the sets evenly and lines one page apart do not conflict.
constexpr u32 l2_set(u32 line) { return line ^ (hash_line(line / 32) & 31); }

// Set-associative tags with LRU replacement.
class Tags {
 public:
  struct Lookup {
    u32 slot;
    bool hit;
  };
  void reset(double bytes, double num_ways, double line_bytes = 128);
  // Finds the line, or replaces the least recently used way of its set.
  Lookup find(u32 line, u32 hash);
  double& ready(u32 slot) { return lines_[slot].ready; }
  bool& dirty(u32 slot) { return lines_[slot].dirty; }

 private:
  struct Line {
    double ready = 0;
    bool dirty = false;
  };
  u32 sets_ = 1, num_ways_ = 1, clock_ = 0;
  std::vector<u32> tags_, last_used_;  // last_used_ 0: empty
  std::vector<Line> lines_;
};

// A resource that serves one request at a time.
struct Server {
  double free = 0, busy = 0;
  double serve(double clk, double cost) {
    const double start = std::max(clk, free);
    free = start + cost;
    busy += cost;
    return start;
  }
};

// Parallel channels. Each line maps to one channel, so channels may be unevenly busy.
class Servers {
 public:
  explicit Servers(double count) : servers_(static_cast<std::size_t>(std::max(1.0, count))) {}
  // `cost` is the occupancy of one channel.
  double serve(double clk, double cost, u32 hash) {
    return servers_[hash % servers_.size()].serve(clk, cost);
  }
  u32 index(u32 hash) const { return static_cast<u32>(hash % servers_.size()); }
  double count() const { return static_cast<double>(servers_.size()); }
  double busy() const;  // mean over the channels
  double last_free() const;

 private:
  std::vector<Server> servers_;
};

struct MemoryCounts {
  u64 l1_lines = 0, l1_hits = 0, l2_lines = 0, l2_hits = 0, mall_lines = 0, hbm_lines = 0;
  u64 hbm_rows = 0;  // row misses of reads
  u64 written_lines = 0, write_requests = 0, scalar_lines = 0, scalar_hits = 0;
};

// Cache contents at the start of a launch, and sharing between XCDs.
struct MemoryState {
  double sharing = 1;    // mean number of XCDs that read a line
  double contended = 0;  // fraction of writes to lines that another XCD has written since
  bool in_mall = false;  // operands are in the Infinity Cache
  bool in_l2 = false;    // and in L2 as far as they fit: a warm launch
};

// L2, Infinity Cache and HBM as one XCD sees them.
class XcdMemory {
 public:
  XcdMemory(const Constants& k, double ghz, const MemoryState& state);
  // Reads a line requested by the CU at `clk`. Returns when it is in L1.
  double read(double clk, u32 line);
  // Writes a line. Returns when the write is acknowledged. `atomic`: occupancy of the L2 channel by
  // an atomic, 0 for a store.
  double write(double clk, u32 line, double atomic);
  // Reads a line for the scalar cache, requested at `clk`.
  double read_scalar(double clk, u32 line);
  // Marks a line as left in L2 by an earlier launch.
  void preload(u32 line) { l2_.find(line, l2_set(line)); }
  double drain_clk() const { return std::max(fabric_.last_free(), hbm_.last_free()); }
  const Servers& l2() const { return channels_; }
  const Servers& fabric() const { return fabric_; }
  const Servers& hbm() const { return hbm_; }

  MemoryCounts counts;

 private:
  double half_l2_latency_, l1_latency_, line_clk_, fabric_clk_, fabric_write_clk_, hbm_clk_;
  double mall_clk_, hbm_latency_clk_, k_l2_, k_mall_, k_hbm_;
  double contended_fraction_, contended_trips_;
  double from_hbm_;  // fraction of this XCD's first reads that go to HBM
  Servers channels_, fabric_, hbm_;
  u32 hbm_lines_;  // consecutive lines per channel: one row of a bank
  u32 hbm_banks_;
  double hbm_row_clk_;
  std::vector<u32> open_rows_;  // per channel and bank
  double hbm_turnaround_clk_, write_queue_clk_;
  u32 write_lines_;  // consecutive lines per channel, for writes
  u32 reads_ = 0;    // HBM reads since the last write, at most kMaxPendingReads
  bool in_mall_;
  Tags l2_, mall_;

  enum class Origin : u8 { kMall, kShared, kHbm };
  Origin origin(u32 line, u32 hash);
  double read_hbm(double clk, u32 line);
  double write_hbm(double clk, u32 line);
  double write_back(double clk, u32 line, u32 hash, bool contended);
  double acquire_line(double clk, u32 line, u32 hash, bool contended);
  bool is_contended() const;
};

}  // namespace vgpu
