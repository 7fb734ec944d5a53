// Which bytes of hipMalloc's memory have been written: by copies, fills and kernels.
//
// Only blocks that were allocated while checking was on are followed; all other memory counts as
// written.
#pragma once

#include "vgpu/machine/allocations.h"

namespace vgpu {

// Checking goes on: blocks from now on are followed. Off: all is forgotten.
void follow_writes(bool on);

// A byte for each of the block's, 1 where it has been written. Null where it is not followed. It
// lives until the block is freed and another launch begins, or checking goes off.
u8* written_bytes(const Allocation& block);

// Forgets blocks that are no more.
void forget_freed_blocks();

// A copy or fill of the host has written [pointer, pointer + size).
void note_host_write(const void* pointer, u64 size);

}  // namespace vgpu
