// What the checking mode found: one entry an instruction and kind of defect.
#pragma once

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
  Finding& at(u64 where) {
    address = where;
    has_address = true;
    return *this;
  }

  u32 group[3] = {};
  u32 wave = 0;
  u32 lane = kNoLane;  // kNoLane: of the wave
  u64 address = 0;     // LDS and scratch: the offset
  bool has_address = false;
  std::string detail;  // what is wrong, in words
  u64 count = 1;       // how often, with this one
};

// Of one thread; deduplicated, the first occurrence is kept with its details.
class Findings {
 public:
  using Key = std::pair<u32, FindingKind>;  // dword index of the instruction, kind

  // True, and counted, where this defect is known. Else the caller describes it to add().
  bool known(u32 index, FindingKind kind);
  void add(u32 index, FindingKind kind, Finding finding);
  void merge(Findings&& other);

  bool empty() const { return entries_.empty(); }
  const std::map<Key, Finding>& entries() const { return entries_; }

 private:
  std::map<Key, Finding> entries_;
};

// A number as 0x... text.
std::string hex(u64 value);

// "v5", "v[5:6]", "a3", "s[4:5]", "vcc": a register as the disassembler names it.
std::string vector_register(u32 reg);
std::string scalar_register(u32 reg);

// The text of an instruction of the program.
std::string instruction_text(const Program& program, u32 index);

}  // namespace vgpu
