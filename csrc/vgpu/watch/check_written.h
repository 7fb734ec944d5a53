// Tracks which bytes of hipMalloc's memory have been written by copies, fills and kernels.
//
// Only blocks allocated while checking was on are tracked; all other memory counts as written.
#pragma once

#include "vgpu/machine/allocations.h"

namespace vgpu {

// Turns tracking on for later blocks, or off, which drops all state.
void track_writes(bool enabled);

// Returns one byte per byte of the block, 1 if written; null if the block is not tracked. Valid
// until the block is freed and another launch begins, or checking is turned off.
u8* written_bytes(const Allocation& block);

// Drops the state of freed blocks.
void forget_freed_blocks();

// Records a write of [pointer, pointer + size) by a host copy or fill.
void note_host_write(const void* pointer, u64 size);

}  // namespace vgpu
