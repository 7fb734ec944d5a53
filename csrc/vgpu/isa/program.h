// The text section of a loaded code object, decoded lazily, instruction by instruction.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "vgpu/isa/isa.h"

namespace vgpu {

class LoadVisibilityScan;

struct Program {
  Arch arch = Arch::kGfx950;
  const u32* words = nullptr;  // the text section in the loaded image
  u32 count = 0;               // in dwords
  u64 address = 0;             // host address of words[0], as s_getpc_b64 returns it
  Inst* insts = nullptr;       // one entry per dword; exec is null until the entry is decoded

  Program(Arch arch, const u32* words, u32 count);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Returns whether a kernel entered at `entry` has loads whose completion time is observable
  // (load_visibility.h).
  bool observes_pending_loads(u32 entry);
  // Returns whether the kernel's behaviour may depend on the progress of other workgroups.
  bool observes_other_workgroups(u32 entry);

  // Decodes the entry at `index`. Thread-safe.
  void decode_slot(u32 index);

 private:
  std::mutex mutex_;
  std::unique_ptr<LoadVisibilityScan> scan_;  // created at the first query
};

// Returns whether the instruction may pass information between workgroups: a global atomic, or an
// access that bypasses the caches.
constexpr bool synchronises(const Inst& inst) {
  return inst.op && is_memory(inst.format) && inst.format != Format::kDs &&
         inst.op->category != Category::kVmemCache &&
         (inst.op->flags & kAtomic || inst.sc0 || inst.sc1);
}
// Returns whether it may receive such information.
constexpr bool observes_other_workgroups(const Inst& inst) {
  const bool atomic = inst.op && inst.op->flags & kAtomic;
  return synchronises(inst) && (atomic ? inst.sc0 : inst.op->dst != Type::kNone);
}

// Decodes the instruction at dword `index`. Always fills `inst`: an unknown encoding gets an exec
// that raises a Fault with encoding, offset and kernel.
void decode(Arch arch, const u32* words, u32 count, u32 index, Inst& inst);

// Returns assembler text that clang accepts.
std::string disassemble(const Inst& inst);

// All opcode tables (tables.cpp).
struct OpTables {
  const OpTable* const* tables;
  u32 count;
};
OpTables all_tables();

}  // namespace vgpu
