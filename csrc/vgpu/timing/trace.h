// The trace of a sampled workgroup: a stream of words per wave.
//
// An instruction is a head word (its dword index and the number of payload words). A memory
// instruction has a payload: a word that describes the access, then the lines it touches.
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

// Payload words: the cycles of an LDS access, or a global access followed by its lines.
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
  static u32 bytes(u32 word) { return (word >> 10 & 63) + 1; }  // per lane
  static u32 segments(u32 word) { return word >> 16 & 255; }    // of 64 bytes
  static u32 lines(u32 word) { return word >> 24; }
};
// Follows a global access that may synchronise workgroups: a one-dword load that bypasses the
// caches, or a one-dword write by a single lane. The preceding word is the line.
struct FlagWord {
  enum Kind : u32 { kPoll, kStore, kAtomic };
  static constexpr u32 kTag = 3;
  static u32 make(u32 dword, Kind kind) { return kTag | kind << 2 | dword << 4; }
  static Kind kind(u32 word) { return static_cast<Kind>(word >> 2 & 3); }
  static u32 dword(u32 word) { return word >> 4; }
};
inline u32 tag_of(u32 word) { return word & 3; }

// Calls `fn` for each global-memory line of a stream.
template <class Stream, class Fn>
void for_each_line(Stream& stream, const Fn& fn) {
  for (std::size_t pos = 0; pos < stream.size();) {
    const std::size_t end = pos + 1 + Head::words(stream[pos]);
    for (++pos; pos < end; ++pos) {
      if (tag_of(stream[pos]) != GlobalWord::kTag) continue;
      for (u32 lines = GlobalWord::lines(stream[pos]); lines; --lines) fn(stream[++pos]);
    }
  }
}

// A page that a workgroup touched. A line number in the stream is 32 * (index in `pages`) + line
// within the page.
struct TracedPage {
  u64 number;    // page number of the host address
  u32 read = 0;  // bit mask of lines
  u32 written = 0;
};

// The latest cache-bypassing load of a wave: a candidate for a spin-wait.
struct Poll {
  static constexpr u32 kNoPc = ~0u;
  u32 pc = kNoPc;  // kNoPc: none since the last other memory or packed instruction
  std::size_t stream_pos = 0;
};

// A dword written by a single lane: a candidate for a spin flag.
struct FlagWrite {
  u32 line;  // as in the stream
  u32 word;  // a FlagWord
};
inline u64 flag_id(u32 line, u32 word) {
  return u64{line} * (kLineBytes / 4) + FlagWord::dword(word);
}

// Instructions beyond `max_words` are only counted: a persistent wave may loop as long as there is
// work.
struct WorkgroupTrace {
  u64 flat = 0;
  std::size_t max_words = ~std::size_t{0};
  u64 instructions = 0, untraced = 0;
  std::vector<std::vector<u32>> waves;
  std::vector<Poll> polls;  // per wave
  std::vector<TracedPage> pages;
  std::vector<FlagWrite> flags;

  WorkgroupTrace(u64 flat_id, u32 wave_count)
      : flat(flat_id), waves(wave_count), polls(wave_count) {}
  u32 page(u64 number);

 private:
  std::unordered_map<u64, u32> index_;
  u64 last_page_ = ~u64{0};
  u32 last_index_ = 0;
};

// Makes an observer that writes to the WorkgroupTrace that the runner attached to the workgroup.
std::unique_ptr<Observer> make_tracer();

}  // namespace vgpu
