// Findings of the checking mode: one entry per instruction and kind of defect.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "vgpu/isa/wave.h"
#include "vgpu/object/code_object.h"

namespace vgpu {

enum class FindingKind : u8 {
  kOutOfBounds,
  kUseAfterFree,
  kMissingWait,
  kLdsRace,
  kBarrierDivergence,
  kUninitialised,
  kMatrixHazard,
  kHazard,
};

const char* finding_name(FindingKind kind);

inline constexpr u32 kNoLane = ~u32{0};

struct Finding {
  Finding() = default;
  explicit Finding(const Wave& of_wave, u32 of_lane = kNoLane);
  Finding& with_address(u64 new_address) {
    address = new_address;
    has_address = true;
    return *this;
  }

  u32 group[3] = {};
  u32 wave = 0;
  u32 lane = kNoLane;  // kNoLane: concerns the whole wave
  u64 address = 0;     // LDS and scratch: an offset
  bool has_address = false;
  std::string detail;  // description of the defect
  u64 count = 1;       // number of occurrences
};

// Called with each new finding of this host thread before the launch goes on; empty by default. The
// debugger stops there.
using FindingListener = std::function<void(u32 index, FindingKind, const Finding&)>;
FindingListener& finding_listener();

// One per host thread. Deduplicated: the details of the first occurrence are kept.
class Findings {
 public:
  using Key = std::pair<u32, FindingKind>;  // (dword index of the instruction, kind)

  // Returns whether this defect is known, and counts it. Otherwise the caller describes it with
  // add().
  bool contains(u32 index, FindingKind kind);
  void add(u32 index, FindingKind kind, Finding finding);
  // Adds a finding with this description, unless the defect is known.
  void report(u32 index, FindingKind kind, Finding finding, const std::string& detail);
  void merge(Findings&& source);

  bool empty() const { return entries_.empty(); }
  const std::map<Key, Finding>& entries() const { return entries_; }

 private:
  std::map<Key, Finding> entries_;
};

// Formats a number as 0x... text.
std::string hex(u64 value);

// Format a register as the disassembler does: "v5", "v[5:6]", "a3", "s[4:5]", "vcc".
std::string vector_register(u32 reg);
std::string scalar_register(u32 reg);

// Returns the assembler text of an instruction of the program.
std::string instruction_text(const Program& program, u32 index);

}  // namespace vgpu
