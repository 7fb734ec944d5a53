// Executes one kernel launch on the host's cores.
#pragma once

#include <string>

#include "vgpu/object/launch.h"

namespace vgpu {

// The end of the error text of a launch that a signal has ended.
inline constexpr const char* kInterrupted = "interrupted by a signal";

// Runs a launch to its end (launches are synchronous). Returns an empty text, or that of the fault,
// which names kernel, instruction and offset.
std::string run(const Launch& launch);

// A launch as an observer sees it, before it runs (rfops/challenge/recorder.py).
struct ObservedLaunch {
  const u8* code;  // the ELF file of its code object
  u64 code_bytes;
  const char* kernel;
  u32 grid[3], block[3], dynamic_lds, args_bytes;
  const u8* args;  // explicit and hidden ones
};
using LaunchObserver = void (*)(const ObservedLaunch*);
void set_launch_observer(LaunchObserver observer);  // of this process; null: none
bool has_launch_observer();
void observe_launch(const Launch& launch);  // calls the observer, if there is one

// Shown what a call of the runtime copies or fills, in the calling thread. The bytes may be there
// only when the call has returned.
using WriteObserver = void (*)(const void* address, u64 size);
void set_write_observer(WriteObserver observer);
void observe_write(const void* address, u64 size);

// What a fault's text is about.
enum class FaultKind : u8 { kTimeout, kMemory, kOther };
FaultKind fault_kind(const std::string& text);

}  // namespace vgpu
