// What sampled workgroups did, as the replay wants it: a stream of words a wave.
//
// An instruction is a head word (its dword index, and how many words follow), then, for memory, a
// word that says how much, and the lines it touches.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "vgpu/machine/observer.h"

namespace vgpu {

inline constexpr u32 kLineBytes = 128, kPageLines = 32;  // a page of 4 KiB has 32 lines

struct Head {
  static constexpr u32 kPcBits = 24;
  static u32 pc(u32 word) { return word & ((1u << kPcBits) - 1); }
  static u32 words(u32 word) { return word >> kPcBits; }
};

// The word behind a head: LDS cycles, or an access of global memory and its lines.
struct LdsWord {
  static constexpr u32 kTag = 1;
  static u32 make(u32 cycles, u32 conflicts, bool write);
  static u32 cycles(u32 word) { return word >> 3 & 4095; }
  static u32 conflicts(u32 word) { return word >> 15 & 4095; }
  static bool is_write(u32 word) { return word >> 2 & 1; }
};
struct GlobalWord {
  static constexpr u32 kTag = 2;
  static u32 make(u32 bytes, u32 lanes, u32 segments, u32 lines, bool write);
  static bool is_write(u32 word) { return word >> 2 & 1; }
  static u32 lanes(u32 word) { return word >> 3 & 127; }
  static u32 bytes(u32 word) { return (word >> 10 & 63) + 1; }  // a lane
  static u32 segments(u32 word) { return word >> 16 & 255; }    // of 64 bytes
  static u32 lines(u32 word) { return word >> 24; }
};
// Behind an access by which workgroups may wait for one another: of one dword, that was asked for
// past the caches, or written by one lane. The line is the word before.
struct FlagWord {
  enum Kind : u32 { kPoll, kStore, kAtomic };
  static constexpr u32 kTag = 3;
  static u32 make(u32 dword, Kind kind) { return kTag | kind << 2 | dword << 4; }
  static Kind kind(u32 word) { return static_cast<Kind>(word >> 2 & 3); }
  static u32 dword(u32 word) { return word >> 4; }
};
inline u32 tag_of(u32 word) { return word & 3; }

// Calls `act` for each line of global memory that a stream has.
template <class Stream, class Act>
void for_each_line(Stream& stream, const Act& act) {
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = at + 1 + Head::words(stream[at]);
    for (++at; at < end; ++at) {
      if (tag_of(stream[at]) != GlobalWord::kTag) continue;
      for (u32 lines = GlobalWord::lines(stream[at]); lines; --lines) act(stream[++at]);
    }
  }
}

// A page that a workgroup touched: lines by number are (its place in `pages`) * 32 + the line in
// it.
struct TracedPage {
  u64 number;    // of the host's address
  u32 read = 0;  // lines, a bit each
  u32 written = 0;
};

// The latest load of a wave that asks past the caches, as those do that wait for somebody's flag.
struct Poll {
  static constexpr u32 kNone = ~0u;
  u32 pc = kNone;  // none, or none since the wave did something else
  std::size_t at = 0;
};

// A dword that one lane has written: perhaps a flag.
struct FlagWrite {
  u32 line;  // as in the stream
  u32 word;  // FlagWord
};
inline u64 flag_name(u32 line, u32 word) {
  return u64{line} * (kLineBytes / 4) + FlagWord::dword(word);
}

// What a wave does beyond `most` words is only counted: it may loop for as long as there is work.
struct GroupTrace {
  u64 flat = 0;
  std::size_t most = ~std::size_t{0};
  u64 instructions = 0, left_out = 0;
  std::vector<std::vector<u32>> waves;
  std::vector<Poll> polls;  // of waves
  std::vector<TracedPage> pages;
  std::vector<FlagWrite> flags;

  GroupTrace(u64 flat_id, u32 wave_count) : flat(flat_id), waves(wave_count), polls(wave_count) {}
  u32 page(u64 number);

 private:
  std::unordered_map<u64, u32> index_;
  u64 last_ = ~u64{0};
  u32 last_index_ = 0;
};

// Writes into the GroupTrace that the runner has put into the workgroup.
std::unique_ptr<Observer> make_tracer();

}  // namespace vgpu
