// When a debugged launch stops: breakpoints, steps, and NaN or Inf that is stored.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vgpu/isa/wave.h"
#include "vgpu/machine/memory_access.h"
#include "vgpu/object/code_object.h"
#include "vgpu/object/debug_lines.h"

namespace vgpu {

inline constexpr i64 kAny = -1;  // of a breakpoint's workgroup or wave

struct Breakpoint {
  u32 id, index;  // index: dword of the text
  i64 wave, group[3];

  bool matches(const Wave& w) const;
};

// The breakpoints of a launch. A bit per dword of the text, so that an instruction without one
// costs a test.
class Breakpoints {
 public:
  explicit Breakpoints(u32 text_dwords) : is_set_(text_dwords) {}
  void clear();
  bool add(const Breakpoint& breakpoint);  // false: beyond the text
  // Returns the ids of those that the wave is at.
  std::vector<u32> hit(const Wave& w) const;

 private:
  std::vector<bool> is_set_;
  std::vector<Breakpoint> all_;
};

// The source lines of each instruction of a code object, read when they are first asked for.
class LineTable {
 public:
  explicit LineTable(const CodeObject& object) : object_(object) {}
  // Returns an instruction's own line, then those of the calls around it that were inlined. Empty
  // where there is none.
  const std::vector<SourceLine>& find(u32 index);

 private:
  void read();

  const CodeObject& object_;
  std::vector<std::vector<SourceLine>> lines_;  // [0]: none
  std::vector<u32> ids_;                        // by dword, an index in lines_
};

// How far a launch runs on.
enum class Goal : u8 {
  kContinue,  // to a breakpoint or the launch's end
  kAnywhere,  // to the next instruction of any wave
  kInst,      // the wave's next instruction, `count` times
  kStep,      // to the wave's next instruction of another source line
  kNext,      // the same, by lines of the kernel: past what is inlined there
  kBarrier,   // to the wave's next s_barrier, or its end
  kEnd,       // to the wave's end
  kGroup,     // to the first instruction of a workgroup
};

struct Resume {
  Goal goal = Goal::kContinue;
  const Workgroup* of_group = nullptr;  // the workgroup of `wave`
  u32 wave = 0;
  u64 count = 1;
  u32 group[3] = {};               // kGroup
  std::optional<SourceLine> line;  // kStep and kNext: where the wave was

  bool is_about(const Wave& w) const {
    const bool is_of_wave = goal >= Goal::kInst && goal <= Goal::kEnd;
    return is_of_wave && w.group == of_group && w.index == wave;
  }
  // Returns whether the launch stops before this instruction. Counts instructions down.
  bool is_reached(const Wave& w, const Inst& inst, LineTable& lines);
  // Returns the line that kStep or kNext compares.
  std::optional<SourceLine> line_at(u32 index, LineTable& lines) const;
};

// Numbers that are not finite, as an element of a type of 2, 4 or 8 bytes.
struct FloatType {
  const char* name;
  u32 bytes;
  u64 exponent;  // mask
};
const FloatType* float_type(const std::string& name);

struct NonFinite {
  u32 lane;
  u64 address, value;
};

// Watches global memory for NaN and Inf that a store or an atomic leaves there.
class NonFiniteWatch {
 public:
  // Watches [begin, end); a null type turns it off.
  void set(const FloatType* type, u64 begin, u64 end);
  void access(const Access& access);      // before it
  std::optional<NonFinite> after_inst();  // once memory holds the result

 private:
  struct Store {
    u32 lane, bytes;
    u64 address;
  };
  const FloatType* type_ = nullptr;
  u64 begin_ = 0, end_ = 0;
  std::vector<Store> stores_;  // of the running instruction
};

}  // namespace vgpu
