// The text of a loaded code object, decoded instruction by instruction as it is reached.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "vgpu/isa/isa.h"

namespace vgpu {

class LandingScan;

struct Program {
  Arch arch = Arch::kGfx950;
  const u32* words = nullptr;  // the text section as it lies in the loaded image
  u32 count = 0;               // dwords
  u64 address = 0;             // host address of words[0]: what s_getpc_b64 sees
  Inst* insts = nullptr;       // one slot a dword; its exec is null until the slot is decoded

  Program(Arch arch, const u32* words, u32 count);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Whether a kernel that starts at `entry` has loads whose landing can be seen (landing_scan.h).
  bool lands_late(u32 entry);
  // Whether what it does may depend on which of its workgroups are how far.
  bool observes_others(u32 entry);

  // Fills the slot at `index`. Any number of threads may ask for the same one.
  void decode_slot(u32 index);

 private:
  std::mutex mutex_;
  std::unique_ptr<LandingScan> scan_;  // of loads; made with the first
};

// Whether an instruction may tell other workgroups something, or learn it from them: a global
// atomic, or an access past the caches.
constexpr bool synchronises(const Inst& inst) {
  return inst.op && is_memory(inst.format) && inst.format != Format::kDs &&
         inst.op->category != Category::kVmemCache &&
         (inst.op->flags & kAtomic || inst.sc0 || inst.sc1);
}
// Whether it may learn something.
constexpr bool observes_others(const Inst& inst) {
  const bool atomic = inst.op && inst.op->flags & kAtomic;
  return synchronises(inst) && (atomic ? inst.sc0 : inst.op->dst != Type::kNone);
}

// Decodes the instruction at dword `index`. Always fills `inst`: an encoding that no table has gets
// an exec that raises a Fault with the encoding, the offset and the kernel.
void decode(Arch arch, const u32* words, u32 count, u32 index, Inst& inst);

// Assembler text of a decoded instruction, as clang reads it back.
std::string disassemble(const Inst& inst);

// All opcode tables (tables.cpp).
struct OpTables {
  const OpTable* const* tables;
  u32 count;
};
OpTables all_tables();

}  // namespace vgpu
